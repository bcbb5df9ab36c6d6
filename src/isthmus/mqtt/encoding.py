"""From packets to bytes: `encode`.

What the specification forbids is not written: it raises `LocalProtocolError`, with the
same reason code and section that `decode` would give whoever sent it.  The shortest
form is chosen where there are several: a reason code of success without properties is left
out of PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT and AUTH.
"""

from __future__ import annotations

from isthmus.errors import LocalProtocolError, RemoteProtocolError
from isthmus.mqtt.packets import (
    FLAGS,
    PACKET_TYPES,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.primitives import (
    MAX_VARIABLE_BYTE_INTEGER,
    PacketType,
    write_binary,
    write_integer,
    write_text,
    write_variable_byte_integer,
)
from isthmus.mqtt.properties import NO_PROPERTIES, WILL, Properties, write_properties
from isthmus.mqtt.rules import Rule
from isthmus.mqtt.validation import check_packet

__all__ = ["encode"]


def encode(packet: Packet, protocol_level: int) -> bytes:
    """The bytes of one packet at that protocol level (3, 4 or 5), fixed header included."""
    if protocol_level not in (3, 4, 5):
        raise LocalProtocolError(f"protocol level {protocol_level} is neither 3, 4 nor 5")
    try:
        check_packet(packet, protocol_level)
        body = _body(packet, protocol_level)
        if len(body) > MAX_VARIABLE_BYTE_INTEGER:
            raise Rule.PACKET_TOO_LONG.broken(protocol_level, f"{len(body)}")
    except RemoteProtocolError as error:
        raise LocalProtocolError(
            f"{type(packet).__name__}: {error.problem}",
            section=error.section,
            reason_code=error.reason_code,
        ) from None
    packet_type = PACKET_TYPES[type(packet)]
    if isinstance(packet, Publish):
        flags = packet.dup << 3 | packet.qos << 1 | packet.retain
    else:
        flags = FLAGS.get(packet_type, 0)
    length = write_variable_byte_integer(len(body), protocol_level, "Remaining Length")
    return bytes((packet_type << 4 | flags,)) + length + body


def _body(packet: Packet, level: int) -> bytes:
    """Everything after the fixed header."""
    match packet:
        case Publish():
            return _publish(packet, level)
        case Connect():
            return _connect(packet, level)
        case ConnAck():
            flags_and_code = bytes((packet.session_present, packet.reason_code))
            return flags_and_code + _properties(packet.properties, PacketType.CONNACK, level)
        case PubAck() | PubRec() | PubRel() | PubComp():
            return _packet_id(packet.packet_id, level) + _outcome(packet, level)
        case Subscribe():
            head = _packet_id(packet.packet_id, level)
            head += _properties(packet.properties, PacketType.SUBSCRIBE, level)
            return head + b"".join(_subscription(each, level) for each in packet.subscriptions)
        case Unsubscribe():
            head = _packet_id(packet.packet_id, level)
            head += _properties(packet.properties, PacketType.UNSUBSCRIBE, level)
            filters = (write_text(each, level, "topic filter") for each in packet.topic_filters)
            return head + b"".join(filters)
        case SubAck() | UnsubAck():
            head = _packet_id(packet.packet_id, level)
            head += _properties(packet.properties, PACKET_TYPES[type(packet)], level)
            return head + bytes(packet.reason_codes)
        case Disconnect() | Auth():
            return _outcome(packet, level)
        case PingReq() | PingResp():
            return b""


def _packet_id(packet_id: int, level: int) -> bytes:
    return write_integer(packet_id, 2, level, "Packet Identifier")


def _properties(properties: Properties, carrier: int, level: int) -> bytes:
    return write_properties(properties, carrier) if level == 5 else b""


def _outcome(packet: PubAck | PubRec | PubRel | PubComp | Disconnect | Auth, level: int) -> bytes:
    packet_type = PACKET_TYPES[type(packet)]
    no_properties = packet.properties == NO_PROPERTIES
    if level != 5 or (no_properties and packet.reason_code == 0):
        return b""
    code = bytes((packet.reason_code,))
    if no_properties and packet_type is not PacketType.AUTH:
        return code
    return code + write_properties(packet.properties, packet_type)


def _publish(packet: Publish, level: int) -> bytes:
    head = write_text(packet.topic, level, "topic")
    if packet.qos:
        head += _packet_id(packet.packet_id, level)
    return head + _properties(packet.properties, PacketType.PUBLISH, level) + packet.payload


def _subscription(subscription: Subscription, level: int) -> bytes:
    options = (
        subscription.qos
        | subscription.no_local << 2
        | subscription.retain_as_published << 3
        | subscription.retain_handling << 4
    )
    return write_text(subscription.topic_filter, level, "topic filter") + bytes((options,))


def _connect(packet: Connect, level: int) -> bytes:
    will = packet.will
    flags = packet.clean_start << 1
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    if packet.password is not None:
        flags |= 0x40
    if packet.username is not None:
        flags |= 0x80
    parts = [
        write_text("MQIsdp" if level == 3 else "MQTT", level, "protocol name"),
        bytes((level, flags)),
        write_integer(packet.keep_alive, 2, level, "Keep Alive"),
        _properties(packet.properties, PacketType.CONNECT, level),
        write_text(packet.client_id, level, "client id"),
    ]
    if will is not None:
        parts.append(_will(will, level))
    if packet.username is not None:
        parts.append(write_text(packet.username, level, "user name"))
    if packet.password is not None:
        parts.append(write_binary(packet.password, level, "password"))
    return b"".join(parts)


def _will(will: Will, level: int) -> bytes:
    return (
        _properties(will.properties, WILL, level)
        + write_text(will.topic, level, "will topic")
        + write_binary(will.payload, level, "will payload")
    )
