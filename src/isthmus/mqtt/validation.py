"""What a packet's values must satisfy, whichever way it goes.

`decode` calls `check_packet` on what it has read, `encode` on what it is about to write, so
the two cannot disagree.  Rules about bits that no value represents (reserved flags) are
with the decoder; rules about properties are with their table.

Not checked, because it depends on more than one packet or is left open by the
specification: a zero-length client id with clean session 0 (the server's to refuse),
whether a payload is UTF-8 when its format indicator says so (a receiver MAY check), and
which side may send what.
"""

from __future__ import annotations

from isthmus.mqtt.filters.topics import SHARE_PREFIX, check_topic_filter, check_topic_name
from isthmus.mqtt.packets import (
    PACKET_TYPES,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
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
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import check_reason_code
from isthmus.mqtt.rules import Rule

__all__ = ["check_packet"]


def check_packet(packet: Packet, level: int) -> None:
    """Raise the rule that the packet breaks at that protocol level, if any."""
    match packet:
        case Publish():
            _check_publish(packet, level)
        case Connect():
            _check_connect(packet, level)
        case ConnAck():
            _check_connack(packet, level)
        case PubAck() | PubRec() | PubRel() | PubComp():
            _check_packet_id(packet.packet_id, level)
            _check_outcome(packet, level)
        case Subscribe():
            _check_subscribe(packet, level)
        case Unsubscribe():
            _check_unsubscribe(packet, level)
        case SubAck() | UnsubAck():
            _check_packet_id(packet.packet_id, level)
            _check_reason_codes(packet, level)
        case Disconnect():
            _check_outcome(packet, level)
        case Auth():
            _check_auth(packet, level)


def _check_packet_id(packet_id: int, level: int) -> None:
    if packet_id == 0:
        raise Rule.PACKET_ID.broken(level)


def _check_properties(properties: Properties, level: int) -> None:
    if level != 5 and properties != NO_PROPERTIES:
        raise Rule.NEEDS_VERSION_5.broken(level, "properties")


def _check_outcome(
    packet: ConnAck | PubAck | PubRec | PubRel | PubComp | Disconnect | Auth, level: int
) -> None:
    check_reason_code(PACKET_TYPES[type(packet)], packet.reason_code, level)
    _check_properties(packet.properties, level)


def _check_connect(packet: Connect, level: int) -> None:
    if packet.protocol_level != level:
        raise Rule.PROTOCOL_LEVEL.broken(level, f"{packet.protocol_level}, not {level}")
    if level != 5 and packet.password is not None and packet.username is None:
        raise Rule.PASSWORD_WITHOUT_USERNAME.broken(level)
    properties = packet.properties
    _check_properties(properties, level)
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise Rule.AUTHENTICATION_DATA.broken(level)
    if packet.will is not None:
        _check_will(packet.will, level)


def _check_will(will: Will, level: int) -> None:
    if not 0 <= will.qos <= 2:
        raise Rule.WILL_QOS.broken(level, str(will.qos))
    _check_properties(will.properties, level)
    check_topic_name(will.topic)


def _check_connack(packet: ConnAck, level: int) -> None:
    _check_outcome(packet, level)
    if packet.session_present and packet.reason_code != 0:
        raise Rule.SESSION_PRESENT.broken(level, f"reason code 0x{packet.reason_code:02X}")


def _check_publish(packet: Publish, level: int) -> None:
    if not 0 <= packet.qos <= 2:
        raise Rule.QOS.broken(level, str(packet.qos))
    if packet.qos == 0:
        if packet.dup:
            raise Rule.DUP_AT_QOS_0.broken(level)
        if packet.packet_id:
            raise Rule.PACKET_ID_AT_QOS_0.broken(level, str(packet.packet_id))
    else:
        _check_packet_id(packet.packet_id, level)
    _check_properties(packet.properties, level)
    if packet.topic:
        check_topic_name(packet.topic)
    elif packet.properties.topic_alias is None:
        raise Rule.NO_TOPIC.broken(level)


def _check_subscribe(packet: Subscribe, level: int) -> None:
    _check_packet_id(packet.packet_id, level)
    _check_properties(packet.properties, level)
    if not packet.subscriptions:
        raise Rule.SUBSCRIBE_EMPTY.broken(level)
    for subscription in packet.subscriptions:
        _check_subscription(subscription, level)


def _check_subscription(subscription: Subscription, level: int) -> None:
    topic_filter = subscription.topic_filter
    check_topic_filter(topic_filter, shared_subscriptions=level == 5)
    if not 0 <= subscription.qos <= 2:
        raise Rule.SUBSCRIPTION_QOS.broken(level, str(subscription.qos))
    if not 0 <= subscription.retain_handling <= 2:
        raise Rule.RETAIN_HANDLING.broken(level, str(subscription.retain_handling))
    if level != 5 and (
        subscription.no_local or subscription.retain_as_published or subscription.retain_handling
    ):
        raise Rule.NEEDS_VERSION_5.broken(level, "subscription options beyond QoS")
    if subscription.no_local and topic_filter.startswith(SHARE_PREFIX):
        raise Rule.NO_LOCAL_SHARED.broken(level)


def _check_unsubscribe(packet: Unsubscribe, level: int) -> None:
    _check_packet_id(packet.packet_id, level)
    _check_properties(packet.properties, level)
    if not packet.topic_filters:
        raise Rule.UNSUBSCRIBE_EMPTY.broken(level)
    for topic_filter in packet.topic_filters:
        check_topic_filter(topic_filter, shared_subscriptions=level == 5)


def _check_reason_codes(packet: SubAck | UnsubAck, level: int) -> None:
    _check_properties(packet.properties, level)
    if isinstance(packet, UnsubAck) and level != 5:
        if packet.reason_codes:
            raise Rule.NEEDS_VERSION_5.broken(level, "reason codes in UNSUBACK")
        return
    if not packet.reason_codes:
        rule = Rule.SUBACK_EMPTY if isinstance(packet, SubAck) else Rule.UNSUBACK_EMPTY
        raise rule.broken(level)
    for code in packet.reason_codes:
        check_reason_code(PACKET_TYPES[type(packet)], code, level)


def _check_auth(packet: Auth, level: int) -> None:
    if level != 5:
        raise Rule.PACKET_TYPE.broken(level, "AUTH needs MQTT 5")
    _check_outcome(packet, level)
    # Section 3.15.2.2.2 demands the method, 3.15.2.1 allows to leave out everything after
    # a success: only that one form goes without.
    bare_success = packet.reason_code == 0 and packet.properties == NO_PROPERTIES
    if packet.properties.authentication_method is None and not bare_success:
        raise Rule.AUTHENTICATION_METHOD.broken(level)
