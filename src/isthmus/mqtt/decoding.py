"""From bytes to packets: `decode` and `decode_connect`.

A frame is exactly one packet, fixed header included.  Whatever is wrong with it raises
`RemoteProtocolError` or one of its subclasses with MQTT 5's reason code and the place in
the specification, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias, TypeVar

from isthmus.errors import LocalProtocolError, UnsupportedProtocolVersion
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
from isthmus.mqtt.primitives import NO_LIMITS, PacketType, Reader, ReadLimits
from isthmus.mqtt.properties import NO_PROPERTIES, WILL, Properties, read_properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode, check_reason_code
from isthmus.mqtt.rules import Rule
from isthmus.mqtt.validation import check_packet

__all__ = ["Frame", "connect_level", "decode", "decode_connect"]

Frame: TypeAlias = bytes | bytearray | memoryview

_PROTOCOL_HEADER: Final = b"\x00\x04MQTT"
_LEVELS: Final = {"MQTT": (4, 5), "MQIsdp": (3,)}  # MQIsdp is the name that MQTT 3.1 has

T = TypeVar("T")
Acknowledged = TypeVar("Acknowledged", PubAck, PubRec, PubRel, PubComp)


def decode(frame: Frame, protocol_level: int, limits: ReadLimits = NO_LIMITS) -> Packet:
    """The packet in `frame`, by the rules of that protocol level (3, 4 or 5).

    A CONNECT says its level itself, which then holds instead.
    """
    if protocol_level not in (3, 4, 5):
        raise LocalProtocolError(f"protocol level {protocol_level} is neither 3, 4 nor 5")
    data = bytes(frame)
    reader = Reader(data, 0, len(data), protocol_level, limits)
    packet_type, flags = _read_fixed_header(reader)
    packet = _DECODERS[packet_type](reader, flags)
    reader.finish()
    check_packet(packet, reader.level)
    return packet


def decode_connect(frame: Frame, limits: ReadLimits = NO_LIMITS) -> Connect:
    """The CONNECT in `frame`; any other packet is an error, as it comes first [MQTT-3.1.0-1]."""
    if len(frame) > 0 and frame[0] >> 4 != PacketType.CONNECT:
        raise Rule.NOT_CONNECT.broken(5, f"its first byte is 0x{frame[0]:02X}")
    packet = decode(frame, 5, limits)
    assert isinstance(packet, Connect)
    return packet


def connect_level(frame: Frame) -> int:
    """The protocol level that a CONNECT names, or 0 where none can be read.

    For answering a CONNECT that does not decode in the client's own version.
    """
    head = bytes(frame[:12])  # the longest fixed header, the protocol name, the level
    if not head or head[0] >> 4 != PacketType.CONNECT:
        return 0
    name_at = next((at + 1 for at in range(1, min(5, len(head))) if head[at] < 0x80), len(head))
    level_at = name_at + len(_PROTOCOL_HEADER)
    if not head.startswith(_PROTOCOL_HEADER, name_at) or len(head) <= level_at:
        return 0
    return head[level_at]


def _read_fixed_header(reader: Reader) -> tuple[PacketType, int]:
    first = reader.byte()
    packet_type, flags = first >> 4, first & 0x0F
    if packet_type == 0 or (packet_type == PacketType.AUTH and reader.level != 5):
        raise Rule.PACKET_TYPE.broken(reader.level, str(packet_type))
    known = PacketType(packet_type)
    if known is not PacketType.PUBLISH and not _flags_allowed(known, flags, reader.level):
        raise Rule.FLAGS.broken(reader.level, f"{flags:04b} in {known.name}")
    length = reader.variable_byte_integer()
    if length != reader.remaining:
        raise Rule.FRAME_LENGTH.broken(
            reader.level, f"it says {length} bytes, {reader.remaining} follow"
        )
    return known, flags


def _flags_allowed(packet_type: PacketType, flags: int, level: int) -> bool:
    expected = FLAGS.get(packet_type, 0)
    # MQTT 3.1 sets DUP also in PUBREL, SUBSCRIBE and UNSUBSCRIBE (its section 2.1).
    return flags == expected or (level == 3 and expected != 0 and flags == expected | 0b1000)


def _read_connect(reader: Reader, _flags: int) -> Connect:
    name, level = reader.text(), reader.byte()
    if name not in _LEVELS:
        raise Rule.PROTOCOL_NAME.broken(level, ascii(name[:32]))
    if level not in _LEVELS[name]:
        raise UnsupportedProtocolVersion(level)
    reader.level = level
    flags = reader.byte()
    _check_connect_flags(flags, level)
    keep_alive = reader.two_byte_integer()
    properties = _read_properties(reader, PacketType.CONNECT)
    client_id = reader.text()
    will = _read_will(reader, flags) if flags & 0x04 else None
    return Connect(
        client_id=client_id,
        clean_start=bool(flags & 0x02),
        keep_alive=keep_alive,
        username=reader.text() if flags & 0x80 else None,
        password=reader.binary() if flags & 0x40 else None,
        will=will,
        properties=properties,
        protocol_level=level,
    )


def _check_connect_flags(flags: int, level: int) -> None:
    shown = f"Connect Flags are {flags:08b}"
    if flags & 0x01:
        raise Rule.CONNECT_RESERVED.broken(level, shown)
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise Rule.WILL_QOS.broken(level, shown)
    elif flags & 0x18:
        raise Rule.WILL_QOS_WITHOUT_WILL.broken(level, shown)
    elif flags & 0x20:
        raise Rule.WILL_RETAIN_WITHOUT_WILL.broken(level, shown)
    if level != 5 and flags & 0xC0 == 0x40:
        raise Rule.PASSWORD_WITHOUT_USERNAME.broken(level, shown)


def _read_will(reader: Reader, flags: int) -> Will:
    properties = _read_properties(reader, WILL)
    return Will(
        topic=reader.text(),
        payload=reader.binary(),
        qos=flags >> 3 & 3,
        retain=bool(flags & 0x20),
        properties=properties,
    )


def _read_properties(reader: Reader, carrier: int) -> Properties:
    return read_properties(reader, carrier) if reader.level == 5 else NO_PROPERTIES


def _read_reason_code(reader: Reader, packet_type: PacketType) -> ReasonCode:
    code = reader.byte()
    check_reason_code(packet_type, code, reader.level)
    return ReasonCode(code)


def _read_connack(reader: Reader, _flags: int) -> ConnAck:
    acknowledge_flags = reader.byte()
    if acknowledge_flags & 0xFE:
        raise Rule.CONNACK_RESERVED.broken(reader.level, f"{acknowledge_flags:08b}")
    code = reader.byte()
    check_reason_code(PacketType.CONNACK, code, reader.level)
    return ConnAck(
        bool(acknowledge_flags),
        ReasonCode(code) if reader.level == 5 else ConnectReturnCode(code),
        _read_properties(reader, PacketType.CONNACK),
    )


def _read_publish(reader: Reader, flags: int) -> Publish:
    qos = flags >> 1 & 3
    if qos == 3:
        raise Rule.QOS.broken(reader.level)
    topic = reader.text()
    packet_id = reader.two_byte_integer() if qos else 0
    properties = _read_properties(reader, PacketType.PUBLISH)
    return Publish(
        topic, reader.rest(), qos, bool(flags & 0x01), bool(flags & 0x08), packet_id, properties
    )


def _read_outcome(reader: Reader, packet_type: PacketType) -> tuple[ReasonCode, Properties]:
    """A reason code and properties, of which the tail may be left out (as in 3.4.2.1)."""
    if reader.level != 5 or not reader.remaining:
        return ReasonCode.SUCCESS, NO_PROPERTIES
    code = _read_reason_code(reader, packet_type)
    # Only AUTH may not stop after its reason code (3.15.2.1 against 3.4.2.2.1, 3.14.2.2.1).
    if not reader.remaining and packet_type is not PacketType.AUTH:
        return code, NO_PROPERTIES
    return code, read_properties(reader, packet_type)


def _read_acknowledgment(kind: type[Acknowledged], reader: Reader, _flags: int) -> Acknowledged:
    return kind(reader.two_byte_integer(), *_read_outcome(reader, PACKET_TYPES[kind]))


def _read_filters(reader: Reader, read_one: Callable[[Reader], T]) -> tuple[T, ...]:
    filters: list[T] = []
    while reader.remaining:
        if len(filters) == reader.limits.filters:
            raise Rule.FILTERS.broken(reader.level, f"the limit is {reader.limits.filters}")
        filters.append(read_one(reader))
    return tuple(filters)


def _read_subscribe(reader: Reader, _flags: int) -> Subscribe:
    packet_id = reader.two_byte_integer()
    properties = _read_properties(reader, PacketType.SUBSCRIBE)
    return Subscribe(packet_id, _read_filters(reader, _read_subscription), properties)


def _read_subscription(reader: Reader) -> Subscription:
    topic_filter, options = reader.text(), reader.byte()
    if options & (0xC0 if reader.level == 5 else 0xFC):
        raise Rule.SUBSCRIPTION_RESERVED.broken(reader.level, f"{options:08b}")
    return Subscription(
        topic_filter,
        qos=options & 3,
        no_local=bool(options & 0x04),
        retain_as_published=bool(options & 0x08),
        retain_handling=options >> 4 & 3,
    )


def _read_suback(reader: Reader, _flags: int) -> SubAck:
    packet_id = reader.two_byte_integer()
    properties = _read_properties(reader, PacketType.SUBACK)
    return SubAck(packet_id, _read_reason_codes(reader, PacketType.SUBACK), properties)


def _read_reason_codes(reader: Reader, packet_type: PacketType) -> tuple[ReasonCode, ...]:
    codes = []
    while reader.remaining:
        codes.append(_read_reason_code(reader, packet_type))
    return tuple(codes)


def _read_unsubscribe(reader: Reader, _flags: int) -> Unsubscribe:
    packet_id = reader.two_byte_integer()
    properties = _read_properties(reader, PacketType.UNSUBSCRIBE)
    return Unsubscribe(packet_id, _read_filters(reader, Reader.text), properties)


def _read_unsuback(reader: Reader, _flags: int) -> UnsubAck:
    packet_id = reader.two_byte_integer()
    if reader.level != 5:
        return UnsubAck(packet_id)
    properties = read_properties(reader, PacketType.UNSUBACK)
    return UnsubAck(packet_id, _read_reason_codes(reader, PacketType.UNSUBACK), properties)


_DECODERS: Final[dict[PacketType, Callable[[Reader, int], Packet]]] = {
    PacketType.CONNECT: _read_connect,
    PacketType.CONNACK: _read_connack,
    PacketType.PUBLISH: _read_publish,
    PacketType.PUBACK: partial(_read_acknowledgment, PubAck),
    PacketType.PUBREC: partial(_read_acknowledgment, PubRec),
    PacketType.PUBREL: partial(_read_acknowledgment, PubRel),
    PacketType.PUBCOMP: partial(_read_acknowledgment, PubComp),
    PacketType.SUBSCRIBE: _read_subscribe,
    PacketType.SUBACK: _read_suback,
    PacketType.UNSUBSCRIBE: _read_unsubscribe,
    PacketType.UNSUBACK: _read_unsuback,
    PacketType.PINGREQ: lambda _reader, _flags: PingReq(),
    PacketType.PINGRESP: lambda _reader, _flags: PingResp(),
    PacketType.DISCONNECT: lambda reader, _flags: Disconnect(
        *_read_outcome(reader, PacketType.DISCONNECT)
    ),
    PacketType.AUTH: lambda reader, _flags: Auth(*_read_outcome(reader, PacketType.AUTH)),
}
