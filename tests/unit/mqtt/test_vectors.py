"""Packets against bytes written by hand, most of them the specification's own examples.

Each vector is decoded, and encoded again unless it is a form that the encoder shortens.
"""

from __future__ import annotations

import pytest

from isthmus.mqtt.decoding import connect_level, decode, decode_connect
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
from isthmus.mqtt.primitives import Reader, write_variable_byte_integer
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode

VECTORS: dict[str, tuple[int, str, Packet]] = {
    "3.1.1 figure 3.6, CONNECT with flags 11001110": (
        4,
        "10 28  0004 4D515454 04 CE 000A  0003 636964  0004 77696C6C  0003 627965"
        "  0004 75736572  0006 736563726574",
        Connect(
            "cid",
            keep_alive=10,
            username="user",
            password=b"secret",
            will=Will("will", b"bye", qos=1),
            protocol_level=4,
        ),
    ),
    "3.1.1, the smallest CONNECT; brokers judge the empty id without clean session": (
        4,
        "10 0C  0004 4D515454 04 00 0000  0000",
        Connect(clean_start=False, protocol_level=4),
    ),
    "5 figure 3-6, CONNECT with Session Expiry Interval": (
        5,
        "10 2F  0004 4D515454 05 CE 000A  05 11 0000000A  0003 636964"
        "  00 0004 77696C6C  0003 627965  0004 75736572  0006 736563726574",
        Connect(
            "cid",
            keep_alive=10,
            username="user",
            password=b"secret",
            will=Will("will", b"bye", qos=1),
            properties=Properties(session_expiry_interval=10),
        ),
    ),
    "5, password without user name": (
        5,
        "10 10  0004 4D515454 05 42 0000 00  0000  0001 70",
        Connect(password=b"p"),
    ),
    "5, will with properties": (
        5,
        "10 1B  0004 4D515454 05 2C 0000 00  0001 63  07 01 01 18 00000005  0001 77  0000",
        Connect(
            "c",
            clean_start=False,
            will=Will(
                "w",
                b"",
                qos=1,
                retain=True,
                properties=Properties(will_delay_interval=5, payload_format_indicator=1),
            ),
        ),
    ),
    "3.1.1 CONNACK": (4, "20 02 01 00", ConnAck(True, ConnectReturnCode.ACCEPTED)),
    "3.1.1 CONNACK, refused": (
        4,
        "20 02 00 05",
        ConnAck(False, ConnectReturnCode.NOT_AUTHORIZED),
    ),
    "5 CONNACK": (
        5,
        "20 08 00 00 05 21 0014 24 01",
        ConnAck(properties=Properties(maximum_qos=1, receive_maximum=20)),
    ),
    "5 CONNACK, refused": (5, "20 03 00 88 00", ConnAck(False, ReasonCode.SERVER_UNAVAILABLE)),
    "3.1.1 figure 3.11, PUBLISH": (
        4,
        "32 07  0003 612F62 000A",
        Publish("a/b", qos=1, packet_id=10),
    ),
    "5 figure 3-9, PUBLISH": (
        5,
        "32 08  0003 612F62 000A 00",
        Publish("a/b", qos=1, packet_id=10),
    ),
    "3.1.1 PUBLISH with every flag": (
        4,
        "3D 08  0003 612F62 0001 FF",
        Publish("a/b", b"\xff", qos=2, retain=True, dup=True, packet_id=1),
    ),
    "3.1.1 PUBLISH at QoS 0, whose payload begins at once": (
        4,
        "30 07  0003 612F62 000A",
        Publish("a/b", b"\x00\x0a"),
    ),
    "5 PUBLISH by topic alias": (
        5,
        "30 08  0000 03 23 0007 6869",
        Publish("", b"hi", properties=Properties(topic_alias=7)),
    ),
    "5 PUBLISH from a server, two Subscription Identifiers": (
        5,
        "30 09  0001 61 05 0B 01 0B 8001",
        Publish("a", properties=Properties(subscription_identifiers=(1, 128))),
    ),
    "1.5.4 figure 1-2, A and U+2A6D4": (
        5,
        "30 08  0005 41 F0AA9B94 00",
        Publish("A\U0002a6d4"),
    ),
    "1.5.4-3, U+FEFF is kept": (5, "30 06  0003 EFBBBF 00", Publish("\ufeff")),
    "3.1.1 PUBACK": (4, "40 02 000A", PubAck(10)),
    "5 PUBACK, short": (5, "40 02 000A", PubAck(10)),
    "5 PUBACK with a reason": (5, "40 03 000A 10", PubAck(10, ReasonCode.NO_MATCHING_SUBSCRIBERS)),
    "5 PUBACK with a reason and its text": (
        5,
        "40 08 000A 87 04 1F 0001 6E",
        PubAck(10, ReasonCode.NOT_AUTHORIZED, Properties(reason_string="n")),
    ),
    "PUBREC": (4, "50 02 FFFF", PubRec(0xFFFF)),
    "PUBREL": (4, "62 02 0001", PubRel(1)),
    "5 PUBREL": (5, "62 03 0001 92", PubRel(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)),
    "PUBCOMP": (5, "70 02 0001", PubComp(1)),
    "3.1.1 figure 3.23, SUBSCRIBE": (
        4,
        "82 0E  000A  0003 612F62 01  0003 632F64 02",
        Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2))),
    ),
    "5 figure 3-21, SUBSCRIBE": (
        5,
        "82 0F  000A 00  0003 612F62 01  0003 632F64 02",
        Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2))),
    ),
    "5 SUBSCRIBE with every option and an identifier of four bytes": (
        5,
        "82 0D  0001 05 0B FFFFFF7F  0002 612F 2E",
        Subscribe(
            1,
            (Subscription("a/", 2, no_local=True, retain_as_published=True, retain_handling=2),),
            Properties(subscription_identifiers=(268_435_455,)),
        ),
    ),
    "3.1.1 figure 3.26, SUBACK": (
        4,
        "90 05  000A 00 02 80",
        SubAck(
            10,
            (
                ReasonCode.GRANTED_QOS_0,
                ReasonCode.GRANTED_QOS_2,
                ReasonCode.UNSPECIFIED_ERROR,
            ),
        ),
    ),
    "5 SUBACK": (
        5,
        "90 05  000A 00 01 A2",
        SubAck(10, (ReasonCode.GRANTED_QOS_1, ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)),
    ),
    "3.1.1 figure 3.30, UNSUBSCRIBE": (
        4,
        "A2 0C  000A  0003 612F62  0003 632F64",
        Unsubscribe(10, ("a/b", "c/d")),
    ),
    "5 figure 3-30, UNSUBSCRIBE": (
        5,
        "A2 0D  000A 00  0003 612F62  0003 632F64",
        Unsubscribe(10, ("a/b", "c/d")),
    ),
    "3.1.1 UNSUBACK": (4, "B0 02 000A", UnsubAck(10)),
    "5 UNSUBACK": (
        5,
        "B0 05 000A 00 00 11",
        UnsubAck(10, (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)),
    ),
    "PINGREQ": (4, "C0 00", PingReq()),
    "PINGRESP": (5, "D0 00", PingResp()),
    "3.1.1 DISCONNECT": (4, "E0 00", Disconnect()),
    "5 DISCONNECT, short": (5, "E0 00", Disconnect()),
    "5 DISCONNECT with a reason": (
        5,
        "E0 01 04",
        Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE),
    ),
    "5 figure 3-24, DISCONNECT": (
        5,
        "E0 07  00 05 11 00000000",
        Disconnect(properties=Properties(session_expiry_interval=0)),
    ),
    "5 AUTH": (
        5,
        "F0 0C  18 0A 15 0002 4D31 16 0002 0001",
        Auth(
            ReasonCode.CONTINUE_AUTHENTICATION,
            Properties(authentication_method="M1", authentication_data=b"\x00\x01"),
        ),
    ),
    "5 AUTH, short": (5, "F0 00", Auth()),
}

# Forms that are right but longer than what the encoder chooses.
LONG_FORMS: dict[str, tuple[int, str, Packet]] = {
    "PUBACK says success": (5, "40 03 000A 00", PubAck(10)),
    "PUBACK says success without properties": (5, "40 04 000A 00 00", PubAck(10)),
    "DISCONNECT says normal": (5, "E0 01 00", Disconnect()),
    "DISCONNECT says normal without properties": (5, "E0 02 00 00", Disconnect()),
    "AUTH says success without properties": (5, "F0 02 00 00", Auth()),
    "Remaining Length in four bytes": (4, "C0 80808000", PingReq()),
    "Property Length in two bytes": (5, "30 05  0001 61 8000", Publish("a")),
}


@pytest.mark.parametrize(("level", "wire", "packet"), VECTORS.values(), ids=VECTORS.keys())
def test_vector(level: int, wire: str, packet: Packet) -> None:
    frame = bytes.fromhex(wire)
    assert decode(frame, level) == packet
    assert decode(bytearray(frame), level) == packet
    assert decode(memoryview(frame), level) == packet
    assert encode(packet, level) == frame


@pytest.mark.parametrize(("level", "wire", "packet"), LONG_FORMS.values(), ids=LONG_FORMS.keys())
def test_long_form(level: int, wire: str, packet: Packet) -> None:
    frame = bytes.fromhex(wire)
    assert decode(frame, level) == packet
    assert len(encode(packet, level)) < len(frame)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (0, "00"),
        (127, "7F"),
        (128, "8001"),
        (16_383, "FF7F"),
        (16_384, "808001"),
        (2_097_151, "FFFF7F"),
        (2_097_152, "80808001"),
        (268_435_455, "FFFFFF7F"),
    ],
)
def test_variable_byte_integer_table_1_1(value: int, wire: str) -> None:
    encoded = bytes.fromhex(wire)
    assert write_variable_byte_integer(value, 5, "value") == encoded
    assert Reader(encoded, 0, len(encoded), 5).variable_byte_integer() == value


def test_connect_level_is_its_own_whatever_the_connection_was() -> None:
    frame = encode(Connect("c", protocol_level=4), 4)
    packet = decode(frame, 5)
    assert packet == decode_connect(frame) == Connect("c", protocol_level=4)


@pytest.mark.parametrize(
    ("wire", "level"),
    [
        ("10 0C 0004 4D515454 04 00 0000 0000", 4),
        ("10 80808000 0004 4D515454 05", 5),  # all that is needed, though no valid packet
        ("10 0C 0004 4D515454 84 00 0000 0000", 0x84),
        ("10 0C 0004 4D515454", 0),
        ("10 0C 0004 4D515455 04 00 0000 0000", 0),
        ("20 0C 0004 4D515454 04 00 0000 0000", 0),
        ("10 FFFFFFFF 0004 4D515454 04 00", 0),
        ("10", 0),
        ("", 0),
    ],
)
def test_connect_level(wire: str, level: int) -> None:
    assert connect_level(bytes.fromhex(wire)) == level


def test_secrets_stay_out_of_repr() -> None:
    packet = Connect(
        "c",
        username="u",
        password=b"hunter2",
        properties=Properties(authentication_method="M", authentication_data=b"hunter3"),
    )
    assert "hunter" not in repr(packet)
    assert "authentication_method='M'" in repr(packet)
