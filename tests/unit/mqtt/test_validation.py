"""What a packet's values must satisfy, value by value; frames are in `test_rules`."""

from __future__ import annotations

import pytest

from isthmus.errors import LocalProtocolError, RemoteProtocolError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
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
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from isthmus.mqtt.rules import Rule
from isthmus.mqtt.validation import check_packet

SOME = Properties(user_properties=(("a", "b"),))
WANTED = (Subscription("a/+/#"),)
GRANTED = (ReasonCode.GRANTED_QOS_0,)
BOTH = (4, 5)

GOOD: list[tuple[tuple[int, ...], Packet]] = [
    ((5,), Connect(properties=SOME)),
    ((5,), Connect(password=b"without a name")),
    ((5,), Connect(properties=Properties(authentication_method="m", authentication_data=b"d"))),
    ((5,), Connect(properties=Properties(authentication_method="m"))),
    ((5,), Connect(will=Will("w", properties=SOME))),
    ((4,), Connect(protocol_level=4, username="u", password=b"p")),
    ((4,), Connect(protocol_level=4, username="u")),
    ((4,), Connect(protocol_level=4, will=Will("w", qos=2))),
    (BOTH, ConnAck()),
    (BOTH, ConnAck(session_present=True)),
    ((4,), ConnAck(reason_code=ConnectReturnCode.NOT_AUTHORIZED)),
    ((5,), ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED, properties=SOME)),
    (BOTH, Publish("a")),
    (BOTH, Publish("a", qos=1, packet_id=1)),
    (BOTH, Publish("a", qos=2, dup=True, packet_id=65_535)),
    ((5,), Publish("", properties=Properties(topic_alias=1))),
    ((5,), Publish("a", properties=SOME)),
    *((BOTH, kind(1)) for kind in (PubAck, PubRec, PubRel, PubComp)),
    *((((5,), kind(1, properties=SOME))) for kind in (PubAck, PubRec, PubRel, PubComp)),
    ((5,), PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS)),
    ((5,), PubRel(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)),
    (BOTH, Subscribe(1, WANTED)),
    (BOTH, Subscribe(1, (Subscription("a", qos=2), Subscription("$share/g/a", qos=1)))),
    ((4,), Subscribe(1, (Subscription("$share/"),))),  # a filter as any other
    ((5,), Subscribe(1, (Subscription("a", 0, True, True, 2),), SOME)),
    ((5,), Subscribe(1, (Subscription("$shared/a", no_local=True),))),
    (BOTH, SubAck(1, (ReasonCode.GRANTED_QOS_2, ReasonCode.UNSPECIFIED_ERROR))),
    ((5,), SubAck(1, (ReasonCode.QUOTA_EXCEEDED,), SOME)),
    (BOTH, Unsubscribe(1, ("a", "b/#"))),
    ((5,), Unsubscribe(1, ("a",), SOME)),
    ((4,), UnsubAck(1)),
    ((5,), UnsubAck(1, (ReasonCode.NO_SUBSCRIPTION_EXISTED,), SOME)),
    (BOTH, PingReq()),
    (BOTH, PingResp()),
    (BOTH, Disconnect()),
    ((5,), Disconnect(ReasonCode.SERVER_MOVED, SOME)),
    ((5,), Auth()),
    ((5,), Auth(properties=Properties(authentication_method="m"))),
    ((5,), Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="m"))),
]

NEEDS_5 = Rule.NEEDS_VERSION_5
BAD: list[tuple[Rule, int, Packet]] = [
    (Rule.PROTOCOL_LEVEL, 4, Connect(protocol_level=5)),
    (Rule.PROTOCOL_LEVEL, 5, Connect(protocol_level=4)),
    (Rule.PASSWORD_WITHOUT_USERNAME, 4, Connect(protocol_level=4, password=b"")),
    (NEEDS_5, 4, Connect(protocol_level=4, properties=SOME)),
    (Rule.AUTHENTICATION_DATA, 5, Connect(properties=Properties(authentication_data=b"d"))),
    (Rule.WILL_QOS, 4, Connect(protocol_level=4, will=Will("w", qos=3))),
    (Rule.WILL_QOS, 5, Connect(will=Will("w", qos=-1))),
    (NEEDS_5, 4, Connect(protocol_level=4, will=Will("w", properties=SOME))),
    (NEEDS_5, 4, ConnAck(properties=SOME)),
    (Rule.SESSION_PRESENT, 4, ConnAck(True, ConnectReturnCode.SERVER_UNAVAILABLE)),
    (Rule.SESSION_PRESENT, 5, ConnAck(True, ReasonCode.SERVER_BUSY)),
    (Rule.QOS, 4, Publish("a", qos=3, packet_id=1)),
    (Rule.QOS, 5, Publish("a", qos=-1)),
    (Rule.DUP_AT_QOS_0, 5, Publish("a", dup=True)),
    (Rule.PACKET_ID_AT_QOS_0, 4, Publish("a", packet_id=1)),
    (Rule.PACKET_ID, 4, Publish("a", qos=1)),
    (Rule.PACKET_ID, 5, Publish("a", qos=2)),
    (NEEDS_5, 4, Publish("a", properties=SOME)),
    (Rule.NO_TOPIC, 4, Publish("")),
    (Rule.NO_TOPIC, 5, Publish("", properties=SOME)),
    *((Rule.PACKET_ID, 5, kind(0)) for kind in (PubAck, PubRec, PubRel, PubComp)),
    *((NEEDS_5, 4, kind(1, properties=SOME)) for kind in (PubAck, PubRec, PubRel, PubComp)),
    (Rule.PACKET_ID, 5, Subscribe(0, WANTED)),
    (NEEDS_5, 4, Subscribe(1, WANTED, SOME)),
    (Rule.SUBSCRIBE_EMPTY, 4, Subscribe(1, ())),
    (Rule.SUBSCRIPTION_QOS, 5, Subscribe(1, (Subscription("a"), Subscription("b", qos=3)))),
    (Rule.SUBSCRIPTION_QOS, 4, Subscribe(1, (Subscription("a", qos=-1),))),
    (Rule.RETAIN_HANDLING, 5, Subscribe(1, (Subscription("a", retain_handling=3),))),
    (Rule.RETAIN_HANDLING, 5, Subscribe(1, (Subscription("a", retain_handling=-1),))),
    (NEEDS_5, 4, Subscribe(1, (Subscription("a", no_local=True),))),
    (NEEDS_5, 4, Subscribe(1, (Subscription("a", retain_as_published=True),))),
    (NEEDS_5, 4, Subscribe(1, (Subscription("a", retain_handling=1),))),
    (Rule.NO_LOCAL_SHARED, 5, Subscribe(1, (Subscription("$share/g/a", no_local=True),))),
    (Rule.PACKET_ID, 4, SubAck(0, GRANTED)),
    (NEEDS_5, 4, SubAck(1, GRANTED, SOME)),
    (Rule.SUBACK_EMPTY, 4, SubAck(1, ())),
    (Rule.SUBACK_EMPTY, 5, SubAck(1, ())),
    (Rule.PACKET_ID, 5, Unsubscribe(0, ("a",))),
    (NEEDS_5, 4, Unsubscribe(1, ("a",), SOME)),
    (Rule.UNSUBSCRIBE_EMPTY, 5, Unsubscribe(1, ())),
    (Rule.PACKET_ID, 4, UnsubAck(0)),
    (NEEDS_5, 4, UnsubAck(1, properties=SOME)),
    (NEEDS_5, 4, UnsubAck(1, (ReasonCode.SUCCESS,))),
    (Rule.UNSUBACK_EMPTY, 5, UnsubAck(1)),
    (NEEDS_5, 4, Disconnect(properties=SOME)),
    (Rule.PACKET_TYPE, 4, Auth()),
    (Rule.AUTHENTICATION_METHOD, 5, Auth(ReasonCode.CONTINUE_AUTHENTICATION)),
    (Rule.AUTHENTICATION_METHOD, 5, Auth(properties=SOME)),
]

BAD_CODES: list[tuple[int, Packet]] = [
    (4, ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED)),
    (5, ConnAck(reason_code=ConnectReturnCode.NOT_AUTHORIZED)),
    (5, PubAck(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)),
    (4, PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS)),
    (5, PubRec(1, ReasonCode.GRANTED_QOS_1)),
    (5, PubRel(1, ReasonCode.NO_MATCHING_SUBSCRIBERS)),
    (5, PubComp(1, ReasonCode.UNSPECIFIED_ERROR)),
    (5, SubAck(1, (*GRANTED, ReasonCode.NO_SUBSCRIPTION_EXISTED))),
    (4, SubAck(1, (ReasonCode.QUOTA_EXCEEDED,))),
    (5, UnsubAck(1, (ReasonCode.SUCCESS, ReasonCode.GRANTED_QOS_2))),
    (4, Disconnect(ReasonCode.SERVER_MOVED)),
    (5, Disconnect(ReasonCode.GRANTED_QOS_1)),
    (5, Auth(ReasonCode.NOT_AUTHORIZED, Properties(authentication_method="m"))),
]

BAD_TOPICS: list[tuple[int, Packet]] = [
    *((level, Publish(name)) for level in BOTH for name in ("a/+", "#", "a\0")),
    (5, Publish("+", properties=Properties(topic_alias=1))),
    (4, Connect(protocol_level=4, will=Will("a/#"))),
    (5, Connect(will=Will(""))),
    *((level, Subscribe(1, (*WANTED, Subscription("a#")))) for level in BOTH),
    *((level, Subscribe(1, (Subscription(""),))) for level in BOTH),
    (5, Subscribe(1, (Subscription("$share/"),))),
    *((level, Unsubscribe(1, ("a", "b+"))) for level in BOTH),
    (5, Unsubscribe(1, ("$share//a",))),
]


@pytest.mark.parametrize("packet", [packet for _, packet in GOOD], ids=repr)
def test_what_the_specification_allows_passes_and_survives_the_wire(packet: Packet) -> None:
    (levels,) = (levels for levels, other in GOOD if other is packet)
    for level in levels:
        check_packet(packet, level)
        assert decode(encode(packet, level), level) == packet


@pytest.mark.parametrize(("rule", "level", "packet"), BAD)
def test_what_it_forbids_is_told_with_the_rule_of_that_level(
    rule: Rule, level: int, packet: Packet
) -> None:
    with pytest.raises(RemoteProtocolError, match=rule.problem) as caught:
        check_packet(packet, level)
    assert caught.value.section == rule.section(level)
    assert caught.value.reason_code == rule.reason_code


@pytest.mark.parametrize(("level", "packet"), BAD_CODES)
def test_a_reason_code_must_be_one_of_that_packet_at_that_level(level: int, packet: Packet) -> None:
    with pytest.raises(RemoteProtocolError, match="is not a reason code of"):
        check_packet(packet, level)


@pytest.mark.parametrize(("level", "packet"), BAD_TOPICS)
def test_names_and_filters_are_checked_wherever_they_stand(level: int, packet: Packet) -> None:
    with pytest.raises(RemoteProtocolError, match=r"topic|filter|share"):
        check_packet(packet, level)


@pytest.mark.parametrize(
    ("level", "packet"), [*((level, packet) for _, level, packet in BAD), *BAD_CODES, *BAD_TOPICS]
)
def test_what_would_be_refused_when_read_is_never_written(level: int, packet: Packet) -> None:
    """And then it is our own fault."""
    with pytest.raises(LocalProtocolError):
        encode(packet, level)


@pytest.mark.parametrize(
    ("level", "packet"),
    [
        (4, Connect("", clean_start=False, protocol_level=4)),
        (5, Connect("", clean_start=False)),
        (5, Publish("a", b"\xff", properties=Properties(payload_format_indicator=1))),
        (5, Publish("a", properties=Properties(subscription_identifiers=(7,)))),
        (4, Publish("$SYS/a")),
    ],
)
def test_what_takes_more_than_one_packet_to_judge_is_left_to_others(
    level: int, packet: Packet
) -> None:
    check_packet(packet, level)
