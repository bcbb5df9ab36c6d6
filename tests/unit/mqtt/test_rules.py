"""For every rule of the specification that a frame can break, frames that break it.

The last test makes sure that none is left out.
"""

from __future__ import annotations

import pytest

from isthmus.errors import MalformedPacket, RemoteProtocolError, UnsupportedProtocolVersion
from isthmus.mqtt.decoding import decode, decode_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect, PubRel, Subscribe, Subscription
from isthmus.mqtt.primitives import ReadLimits
from isthmus.mqtt.rules import Rule

CONNECT_V3 = "0004 4D515454 04"
CONNECT_V5 = "0004 4D515454 05"

# (rule, level, frame); the reason code and the section are the rule's.
BROKEN: list[tuple[Rule, int, str]] = [
    (Rule.PACKET_TYPE, 4, "00 00"),
    (Rule.PACKET_TYPE, 5, "00 00"),
    (Rule.PACKET_TYPE, 4, "F0 00"),
    (Rule.FLAGS, 4, "11 0C" + CONNECT_V3 + "00 0000 0000"),
    (Rule.FLAGS, 5, "21 03 00 00 00"),
    (Rule.FLAGS, 4, "42 02 0001"),
    (Rule.FLAGS, 4, "52 02 0001"),
    (Rule.FLAGS, 4, "60 02 0001"),
    (Rule.FLAGS, 4, "6A 02 0001"),
    (Rule.FLAGS, 4, "72 02 0001"),
    (Rule.FLAGS, 4, "80 06 0001 0001 61 00"),
    (Rule.FLAGS, 5, "92 04 0001 00 00"),
    (Rule.FLAGS, 5, "A0 06 0001 00 0001 61"),
    (Rule.FLAGS, 4, "B2 02 0001"),
    (Rule.FLAGS, 4, "C1 00"),
    (Rule.FLAGS, 4, "D8 00"),
    (Rule.FLAGS, 4, "E2 00"),
    (Rule.FLAGS, 5, "F1 00"),
    (Rule.VARIABLE_BYTE_INTEGER, 4, "C0 8080808000"),
    (Rule.VARIABLE_BYTE_INTEGER, 5, "30 08 0001 61 FFFFFFFF 01"),
    (Rule.VARIABLE_BYTE_INTEGER, 5, "30 09 0001 61 05 0B FFFFFFFF"),
    (Rule.FRAME_LENGTH, 4, "C0 01"),
    (Rule.FRAME_LENGTH, 5, "C0 00 00"),
    (Rule.FRAME_LENGTH, 4, "30 05 0001 61"),
    (Rule.TRUNCATED, 4, ""),
    (Rule.TRUNCATED, 5, "C0"),
    (Rule.TRUNCATED, 5, "C0 80"),
    (Rule.TRUNCATED, 4, "30 03 0002 61"),
    (Rule.TRUNCATED, 4, "32 04 0001 61 00"),
    (Rule.TRUNCATED, 4, "40 01 00"),
    (Rule.TRUNCATED, 4, "82 05 0001 0001 61"),
    (Rule.TRUNCATED, 5, "30 05 0001 61 03 01"),  # Property Length beyond the packet
    (Rule.TRUNCATED, 5, "30 07 0001 61 01 23 0001"),  # a property beyond Property Length
    (Rule.TRUNCATED, 5, "30 06 0001 61 02 02 00"),
    (Rule.TRUNCATED, 5, "F0 01 18"),  # AUTH may not stop after its reason code
    (Rule.TRAILING_BYTES, 4, "C0 01 00"),
    (Rule.TRAILING_BYTES, 4, "40 03 0001 00"),
    (Rule.TRAILING_BYTES, 4, "E0 01 00"),
    (Rule.TRAILING_BYTES, 4, "20 03 00 00 00"),
    (Rule.TRAILING_BYTES, 4, "B0 03 0001 00"),
    (Rule.TRAILING_BYTES, 4, "10 0D" + CONNECT_V3 + "00 0000 0000 00"),
    (Rule.TRAILING_BYTES, 5, "E0 03 00 00 00"),
    (Rule.UTF8, 4, "30 04 0002 C328"),
    (Rule.UTF8, 5, "30 06 0003 EDA080 00"),  # the surrogate U+D800
    (Rule.UTF8, 5, "30 05 0002 C080 00"),  # U+0000 in two bytes
    (Rule.UTF8, 4, "10 10" + CONNECT_V3 + "80 0000 0001 63 0001 FF"),
    (Rule.UTF8, 5, "30 08 0001 61 04 03 0001 FF"),
    (Rule.NULL_CHARACTER, 4, "30 05 0003 610062"),
    (Rule.NULL_CHARACTER, 5, "30 0B 0001 61 07 26 0001 00 0001 61"),
    (Rule.PACKET_ID, 4, "32 05 0001 61 0000"),
    (Rule.PACKET_ID, 5, "34 06 0001 61 0000 00"),
    (Rule.PACKET_ID, 4, "40 02 0000"),
    (Rule.PACKET_ID, 5, "50 02 0000"),
    (Rule.PACKET_ID, 4, "62 02 0000"),
    (Rule.PACKET_ID, 4, "70 02 0000"),
    (Rule.PACKET_ID, 4, "82 06 0000 0001 61 00"),
    (Rule.PACKET_ID, 4, "90 03 0000 00"),
    (Rule.PACKET_ID, 4, "A2 05 0000 0001 61"),
    (Rule.PACKET_ID, 4, "B0 02 0000"),
    (Rule.PROTOCOL_NAME, 5, "10 0C 0004 4D515455 05 00 0000 0000"),
    (Rule.PROTOCOL_NAME, 4, "10 0C 0004 6D717474 04 00 0000 0000"),
    (Rule.CONNECT_RESERVED, 4, "10 0C" + CONNECT_V3 + "01 0000 0000"),
    (Rule.CONNECT_RESERVED, 5, "10 0D" + CONNECT_V5 + "03 0000 00 0000"),
    (Rule.WILL_QOS_WITHOUT_WILL, 4, "10 0C" + CONNECT_V3 + "0A 0000 0000"),
    (Rule.WILL_QOS_WITHOUT_WILL, 5, "10 0D" + CONNECT_V5 + "18 0000 00 0000"),
    (Rule.WILL_QOS, 4, "10 11" + CONNECT_V3 + "1E 0000 0000 0001 77 0000"),
    (Rule.WILL_QOS, 5, "10 13" + CONNECT_V5 + "1E 0000 00 0000 00 0001 77 0000"),
    (Rule.WILL_RETAIN_WITHOUT_WILL, 4, "10 0C" + CONNECT_V3 + "22 0000 0000"),
    (Rule.WILL_RETAIN_WITHOUT_WILL, 5, "10 0D" + CONNECT_V5 + "22 0000 00 0000"),
    (Rule.PASSWORD_WITHOUT_USERNAME, 4, "10 0F" + CONNECT_V3 + "42 0000 0000 0001 70"),
    (Rule.CONNACK_RESERVED, 4, "20 02 02 00"),
    (Rule.CONNACK_RESERVED, 5, "20 03 80 00 00"),
    (Rule.SESSION_PRESENT, 4, "20 02 01 02"),
    (Rule.SESSION_PRESENT, 5, "20 03 01 87 00"),
    (Rule.DUP_AT_QOS_0, 4, "38 03 0001 61"),
    (Rule.DUP_AT_QOS_0, 5, "38 04 0001 61 00"),
    (Rule.QOS, 4, "36 05 0001 61 0001"),
    (Rule.QOS, 5, "36 06 0001 61 0001 00"),
    (Rule.NO_TOPIC, 4, "30 02 0000"),
    (Rule.NO_TOPIC, 5, "30 03 0000 00"),
    (Rule.SUBSCRIBE_EMPTY, 4, "82 02 0001"),
    (Rule.SUBSCRIBE_EMPTY, 5, "82 03 0001 00"),
    (Rule.UNSUBSCRIBE_EMPTY, 4, "A2 02 0001"),
    (Rule.UNSUBSCRIBE_EMPTY, 5, "A2 03 0001 00"),
    (Rule.SUBACK_EMPTY, 4, "90 02 0001"),
    (Rule.SUBACK_EMPTY, 5, "90 03 0001 00"),
    (Rule.UNSUBACK_EMPTY, 5, "B0 03 0001 00"),
    (Rule.SUBSCRIPTION_RESERVED, 4, "82 06 0001 0001 61 04"),
    (Rule.SUBSCRIPTION_RESERVED, 5, "82 07 0001 00 0001 61 40"),
    (Rule.SUBSCRIPTION_RESERVED, 5, "82 07 0001 00 0001 61 80"),
    (Rule.SUBSCRIPTION_QOS, 4, "82 06 0001 0001 61 03"),
    (Rule.SUBSCRIPTION_QOS, 5, "82 07 0001 00 0001 61 03"),
    (Rule.RETAIN_HANDLING, 5, "82 07 0001 00 0001 61 30"),
    (Rule.NO_LOCAL_SHARED, 5, "82 10 0001 00 000A 2473686172652F672F61 04"),
    (Rule.PROPERTY_NOT_ALLOWED, 5, "30 07 0001 61 03 21 0001"),  # Receive Maximum in PUBLISH
    (Rule.PROPERTY_NOT_ALLOWED, 5, "30 06 0001 61 02 7F 00"),  # no such property
    (Rule.PROPERTY_NOT_ALLOWED, 5, "30 07 0001 61 03 8100 01"),  # in two bytes
    (Rule.PROPERTY_NOT_ALLOWED, 5, "10 12" + CONNECT_V5 + "00 0000 05 18 00000001 0000"),
    (
        Rule.PROPERTY_NOT_ALLOWED,
        5,
        "10 16" + CONNECT_V5 + "06 0000 00 0000 03 23 0001 0001 77 0000",
    ),  # a topic alias in a will
    (Rule.RESPONSE_TOPIC, 5, "30 0A 0001 61 06 08 0003 612F2B"),
    (Rule.RESPONSE_TOPIC, 5, "30 07 0001 61 03 08 0000"),
    (Rule.AUTHENTICATION_DATA, 5, "10 11" + CONNECT_V5 + "00 0000 04 16 0001 61 0000"),
    (Rule.AUTHENTICATION_METHOD, 5, "F0 02 18 00"),
    (Rule.AUTHENTICATION_METHOD, 5, "F0 06 00 04 1F 0001 61"),
]

# Rules that no frame handed to `decode` can break, and where they are tested.
ELSEWHERE = {
    Rule.PROPERTY_BYTES,
    Rule.FILTERS,
    Rule.NOT_CONNECT,  # decode_connect, below
    Rule.SUBSCRIPTION_IDENTIFIER_FROM_CLIENT,  # test_packets_publish_properties.py
    Rule.FIELD_TOO_LONG,  # from here on: test_packets_encoding.py
    Rule.INTEGER_RANGE,
    Rule.PACKET_TOO_LONG,
    Rule.PACKET_ID_AT_QOS_0,
    Rule.PROTOCOL_LEVEL,
    Rule.NEEDS_VERSION_5,
}


@pytest.mark.parametrize(
    ("rule", "level", "wire"), BROKEN, ids=[f"{rule.name}-{wire}" for rule, _, wire in BROKEN]
)
def test_broken_rule(rule: Rule, level: int, wire: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(bytes.fromhex(wire), level)
    error = caught.value
    assert error.problem.startswith(rule.problem)
    assert (error.reason_code, error.section) == (rule.reason_code, rule.section(level))
    assert isinstance(error, MalformedPacket) == (rule.reason_code == 0x81)


# What the specification says, spelled out once, so that the table cannot be wrong unnoticed.
@pytest.mark.parametrize(
    ("level", "wire", "reason_code", "section"),
    [
        (4, "82 02 0001", 0x82, "MQTT-3.8.3-3"),
        (5, "82 03 0001 00", 0x82, "MQTT-3.8.3-2"),
        (5, "36 06 0001 61 0001 00", 0x81, "MQTT-3.3.1-4"),
        (5, "30 05 0002 C080 00", 0x81, "MQTT-1.5.4-1"),
        (4, "30 04 0002 C080", 0x81, "MQTT-1.5.3-1"),
        (5, "30 04 0001 2B 00", 0x82, "MQTT-3.3.2-2"),
        (4, "30 03 0001 23", 0x82, "MQTT-3.3.2-2"),
        (5, "10 12" + CONNECT_V5 + "06 0000 00 0000 00 0000 0000", 0x82, "MQTT-4.7.3-1"),
        (5, "10 13" + CONNECT_V5 + "06 0000 00 0000 00 0001 2B 0000", 0x82, "MQTT-3.3.2-2"),
        (5, "82 08 0001 00 0002 6123 00", 0x82, "MQTT-4.7.1-1"),
        (5, "A2 07 0001 00 0002 612B", 0x82, "MQTT-4.7.1-2"),
        (5, "A2 05 0001 00 0000", 0x82, "MQTT-4.7.3-1"),
        (5, "82 0D 0001 00 0007 2473686172652F 00", 0x82, "MQTT-4.8.2-1"),
        (5, "30 06 0000 03 23 0000", 0x94, "MQTT-3.3.2-8"),
        (5, "30 09 0000 06 23 0001 23 0001", 0x82, "3.3.2.3.4"),
        (5, "30 06 0001 61 02 01 02", 0x82, "3.3.2.3.2"),
        (5, "30 06 0001 61 02 0B 00", 0x82, "3.8.2.1.2"),
        (5, "82 0B 0001 04 0B 01 0B 02 0001 61 00", 0x82, "3.8.2.1.2"),
        (5, "10 10" + CONNECT_V5 + "00 0000 03 21 0000 0000", 0x82, "3.1.2.11.3"),
        (5, "10 12" + CONNECT_V5 + "00 0000 05 27 00000000 0000", 0x82, "3.1.2.11.4"),
        (5, "10 0F" + CONNECT_V5 + "00 0000 02 17 02 0000", 0x82, "3.1.2.11.7"),
        (5, "10 0F" + CONNECT_V5 + "00 0000 02 19 02 0000", 0x82, "3.1.2.11.6"),
        (5, "20 05 00 00 02 24 02", 0x82, "3.2.2.3.4"),
        (5, "20 05 00 00 02 25 FF", 0x82, "3.2.2.3.5"),
        (5, "20 03 00 01 00", 0x82, "MQTT-3.2.2-8"),
        (4, "20 02 00 06", 0x82, "3.2.2.3"),
        (5, "40 03 0001 92", 0x82, "MQTT-3.4.2-1"),
        (5, "50 03 0001 01", 0x82, "MQTT-3.5.2-1"),
        (5, "62 03 0001 10", 0x82, "MQTT-3.6.2-1"),
        (5, "70 03 0001 80", 0x82, "MQTT-3.7.2-1"),
        (5, "90 04 0001 00 03", 0x82, "MQTT-3.9.3-2"),
        (4, "90 03 0001 87", 0x82, "MQTT-3.9.3-2"),
        (5, "B0 04 0001 00 01", 0x82, "MQTT-3.11.3-2"),
        (5, "E0 01 01", 0x82, "MQTT-3.14.2-1"),
        (5, "F0 02 80 00", 0x82, "MQTT-3.15.2-1"),
    ],
)
def test_reason_code_and_section(level: int, wire: str, reason_code: int, section: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(bytes.fromhex(wire), level)
    assert (caught.value.reason_code, caught.value.section) == (reason_code, section)


@pytest.mark.parametrize(
    ("wire", "level"),
    [
        ("10 0C 0004 4D515454 03 00 0000 0000", 3),
        ("10 0C 0004 4D515454 06 00 0000 0000", 6),
        ("10 0C 0004 4D515454 84 00 0000 0000", 0x84),  # a bridge of Mosquitto's
        ("10 0E 0006 4D5149736470 04 02 003C 0000", 4),  # the name of MQTT 3.1
    ],
)
def test_unsupported_protocol_version(wire: str, level: int) -> None:
    with pytest.raises(UnsupportedProtocolVersion) as caught:
        decode_connect(bytes.fromhex(wire))
    assert caught.value.level == level
    assert (caught.value.reason_code, caught.value.section) == (0x84, "MQTT-3.1.2-2")


def test_mqtt_3_1_is_read() -> None:
    connect = decode_connect(bytes.fromhex("10 0F 0006 4D5149736470 03 02 003C 0001 61"))
    assert connect == Connect("a", keep_alive=60, protocol_level=3)
    assert encode(connect, 3) == bytes.fromhex("10 0F 0006 4D5149736470 03 02 003C 0001 61")
    # It marks also these as sent again, which later versions forbid.
    assert decode(bytes.fromhex("6A 02 0001"), 3) == PubRel(1)
    assert decode(bytes.fromhex("8A 06 0001 0001 61 00"), 3) == Subscribe(1, (Subscription("a"),))
    with pytest.raises(MalformedPacket):
        decode(bytes.fromhex("4A 02 0001"), 3)


@pytest.mark.parametrize(
    ("rule", "level", "wire"),
    [
        (Rule.PROPERTY_BYTES, 5, "10 12" + CONNECT_V5 + "02 0000 05 11 0000000A 0000"),
        (
            Rule.PROPERTY_BYTES,
            5,
            "10 18" + CONNECT_V5 + "06 0000 00 0000 05 1800000001 0001 61 0000",
        ),
        (Rule.PROPERTY_BYTES, 5, "40 09 0001 00 05 26 0000 0000"),
        (Rule.FILTERS, 4, "82 0E 0001 0001 61 00 0001 62 00 0001 63 00"),
        (Rule.FILTERS, 5, "A2 0C 0001 00 0001 61 0001 62 0001 63"),
    ],
)
def test_a_readers_limits(rule: Rule, level: int, wire: str) -> None:
    decoded = bytes.fromhex(wire)
    with pytest.raises(RemoteProtocolError, match=rule.problem) as caught:
        decode(decoded, level, ReadLimits(property_bytes=4, filters=2))
    assert caught.value.reason_code == 0x97
    if rule is Rule.FILTERS:
        decode(decoded, level, ReadLimits(property_bytes=4, filters=3))


def test_first_packet_is_connect() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_connect(bytes.fromhex("C0 00"))
    assert (caught.value.reason_code, caught.value.section) == (0x82, "MQTT-3.1.0-1")


def test_empty_frame_is_no_connect() -> None:
    with pytest.raises(MalformedPacket):
        decode_connect(b"")


def test_v3_has_no_shared_subscriptions() -> None:
    decode(bytes.fromhex("82 0C 0001 0007 2473686172652F 00"), 4)


def test_no_rule_is_left_out() -> None:
    assert {rule for rule, _, _ in BROKEN} | ELSEWHERE == set(Rule)
