"""What the encoder refuses to write, and that it says whose fault it is."""

from __future__ import annotations

from typing import cast

import pytest

from isthmus.errors import LocalProtocolError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
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
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import REASON_CODES, ConnectReturnCode, ReasonCode
from isthmus.mqtt.rules import Rule

R = ReasonCode
V3 = 4
SOME = Properties(user_properties=(("a", "b"),))

FORBIDDEN: list[tuple[Rule, int, Packet]] = [
    (Rule.PROTOCOL_LEVEL, V3, Connect(protocol_level=5)),
    (Rule.PROTOCOL_LEVEL, 5, Connect(protocol_level=4)),
    (Rule.PASSWORD_WITHOUT_USERNAME, V3, Connect(password=b"p", protocol_level=4)),
    (Rule.NEEDS_VERSION_5, V3, Connect(properties=SOME, protocol_level=4)),
    (Rule.NEEDS_VERSION_5, V3, Connect(will=Will("w", properties=SOME), protocol_level=4)),
    (Rule.AUTHENTICATION_DATA, 5, Connect(properties=Properties(authentication_data=b""))),
    (Rule.WILL_QOS, 5, Connect(will=Will("w", qos=3))),
    (Rule.WILL_QOS, 5, Connect(will=Will("w", qos=-1))),
    (Rule.INTEGER_RANGE, 5, Connect(keep_alive=65_536)),
    (Rule.INTEGER_RANGE, 5, Connect(keep_alive=-1)),
    (Rule.FIELD_TOO_LONG, 5, Connect("x" * 65_536)),
    (Rule.FIELD_TOO_LONG, 5, Connect(password=bytes(65_536))),
    (Rule.FIELD_TOO_LONG, 5, Connect(will=Will("w", bytes(65_536)))),
    (Rule.NULL_CHARACTER, 5, Connect("a\0")),
    (Rule.UTF8, V3, Connect(username="\udfff", protocol_level=4)),
    (Rule.SESSION_PRESENT, V3, ConnAck(True, ConnectReturnCode.NOT_AUTHORIZED)),
    (Rule.SESSION_PRESENT, 5, ConnAck(True, R.NOT_AUTHORIZED)),
    (Rule.QOS, 5, Publish("t", qos=3, packet_id=1)),
    (Rule.DUP_AT_QOS_0, 5, Publish("t", dup=True)),
    (Rule.PACKET_ID_AT_QOS_0, 5, Publish("t", packet_id=1)),
    (Rule.PACKET_ID, V3, Publish("t", qos=1)),
    (Rule.INTEGER_RANGE, V3, Publish("t", qos=1, packet_id=65_536)),
    (Rule.NO_TOPIC, 5, Publish("")),
    (Rule.NEEDS_VERSION_5, V3, Publish("", properties=Properties(topic_alias=1))),
    (Rule.PACKET_ID, 5, PubAck(0)),
    (Rule.NEEDS_VERSION_5, V3, PubAck(1, properties=SOME)),
    (Rule.PACKET_ID, 5, PubRec(0)),
    (Rule.PACKET_ID, 5, PubRel(0)),
    (Rule.PACKET_ID, 5, PubComp(0)),
    (Rule.INTEGER_RANGE, 5, PubComp(-1)),
    (Rule.SUBSCRIBE_EMPTY, 5, Subscribe(1, ())),
    (Rule.PACKET_ID, 5, Subscribe(0, (Subscription("a"),))),
    (Rule.SUBSCRIPTION_QOS, 5, Subscribe(1, (Subscription("a", 3),))),
    (Rule.RETAIN_HANDLING, 5, Subscribe(1, (Subscription("a", retain_handling=3),))),
    (Rule.NO_LOCAL_SHARED, 5, Subscribe(1, (Subscription("$share/g/a", no_local=True),))),
    (Rule.NEEDS_VERSION_5, V3, Subscribe(1, (Subscription("a", no_local=True),))),
    (Rule.NEEDS_VERSION_5, V3, Subscribe(1, (Subscription("a", retain_as_published=True),))),
    (Rule.NEEDS_VERSION_5, V3, Subscribe(1, (Subscription("a", retain_handling=1),))),
    (Rule.UNSUBSCRIBE_EMPTY, V3, Unsubscribe(1, ())),
    (Rule.SUBACK_EMPTY, V3, SubAck(1, ())),
    (Rule.UNSUBACK_EMPTY, 5, UnsubAck(1)),
    (Rule.NEEDS_VERSION_5, V3, UnsubAck(1, (R.SUCCESS,))),
    (Rule.NEEDS_VERSION_5, V3, Disconnect(properties=SOME)),
    (Rule.PACKET_TYPE, V3, Auth()),
    (Rule.AUTHENTICATION_METHOD, 5, Auth(R.RE_AUTHENTICATE)),
]


@pytest.mark.parametrize(("rule", "level", "packet"), FORBIDDEN)
def test_forbidden(rule: Rule, level: int, packet: Packet) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(packet, level)
    error = caught.value
    assert error.problem.startswith(f"{type(packet).__name__}: {rule.problem}")
    assert (error.reason_code, error.section) == (rule.reason_code, rule.section(level))


@pytest.mark.parametrize(
    ("level", "packet", "reason_code"),
    [
        (V3, Publish("a/+"), 0x82),
        (5, Publish("#"), 0x82),
        (5, Connect(will=Will("")), 0x82),
        (5, Subscribe(1, (Subscription("a#"),)), 0x82),
        (V3, Unsubscribe(1, ("",)), 0x82),
    ],
)
def test_topics_are_checked(level: int, packet: Packet, reason_code: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(packet, level)
    assert caught.value.reason_code == reason_code


def _with_code(type_name: str, code: int) -> Packet:
    reason_code = cast(ReasonCode, code)  # what a caller may get wrong
    method = Properties(authentication_method="m")
    packets: dict[str, Packet] = {
        "CONNACK": ConnAck(reason_code=reason_code),
        "PUBACK": PubAck(1, reason_code),
        "PUBREC": PubRec(1, reason_code),
        "PUBREL": PubRel(1, reason_code),
        "PUBCOMP": PubComp(1, reason_code),
        "SUBACK": SubAck(1, (reason_code,)),
        "UNSUBACK": UnsubAck(1, (reason_code,)),
        "DISCONNECT": Disconnect(reason_code),
        "AUTH": Auth(reason_code, method),
    }
    return packets[type_name]


@pytest.mark.parametrize("packet_type", REASON_CODES, ids=lambda packet_type: packet_type.name)
def test_each_packet_has_its_reason_codes(packet_type: int) -> None:
    allowed = next(codes for known, codes in REASON_CODES.items() if known == packet_type)
    name = next(known.name for known in REASON_CODES if known == packet_type)
    for code in range(256):
        packet = _with_code(name, code)
        if code in allowed.codes:
            assert decode(encode(packet, 5), 5) == packet
        else:
            with pytest.raises(LocalProtocolError) as caught:
                encode(packet, 5)
            assert (caught.value.reason_code, caught.value.section) == (0x82, allowed.section)


@pytest.mark.parametrize(
    ("packet", "allowed"),
    [("CONNACK", {0, 1, 2, 3, 4, 5}), ("SUBACK", {0, 1, 2, 0x80}), ("PUBACK", {0})],
)
def test_return_codes_of_v3(packet: str, allowed: set[int]) -> None:
    for code in range(256):
        if code in allowed:
            assert decode(encode(_with_code(packet, code), V3), V3) == _with_code(packet, code)
        else:
            with pytest.raises(LocalProtocolError):
                encode(_with_code(packet, code), V3)


def test_longest_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    # The true limit would take a quarter of a gigabyte.
    monkeypatch.setattr("isthmus.mqtt.encoding.MAX_VARIABLE_BYTE_INTEGER", 100)
    assert len(encode(Publish("t", bytes(97)), V3)) == 102
    with pytest.raises(LocalProtocolError) as caught:
        encode(Publish("t", bytes(98)), V3)
    assert (caught.value.reason_code, caught.value.section) == (0x95, "2.2.3")


@pytest.mark.parametrize("level", [0, 2, 6])
def test_no_such_level(level: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode(Disconnect(), level)
    with pytest.raises(LocalProtocolError):
        decode(b"\xc0\x00", level)
