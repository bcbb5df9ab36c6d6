"""The 27 properties: their bytes, where they may stand, and the table as a whole."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from isthmus.errors import LocalProtocolError, RemoteProtocolError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import ConnAck, Connect, Packet, Publish, Subscribe, Subscription, Will
from isthmus.mqtt.primitives import PacketType, Reader
from isthmus.mqtt.properties import (
    PROPERTIES,
    WILL,
    Kind,
    Properties,
    PropertySpec,
    read_properties,
    write_properties,
)

T = PacketType
MESSAGE: set[int] = {T.PUBLISH, WILL}
ANSWERS: set[int] = {
    T.CONNACK, T.PUBACK, T.PUBREC, T.PUBREL, T.PUBCOMP, T.SUBACK, T.UNSUBACK, T.DISCONNECT, T.AUTH,
}  # fmt: skip
CARRIERS: set[int] = {T.CONNECT, T.PUBLISH, T.SUBSCRIBE, T.UNSUBSCRIBE, WILL} | ANSWERS

# Table 2-4 of MQTT 5: identifier and value on the wire, field, value, packets.
TABLE: list[tuple[str, str, Any, set[int]]] = [
    ("01 01", "payload_format_indicator", 1, MESSAGE),
    ("02 00000E10", "message_expiry_interval", 3600, MESSAGE),
    ("03 0002 6A73", "content_type", "js", MESSAGE),
    ("08 0003 722F31", "response_topic", "r/1", MESSAGE),
    ("09 0002 00FF", "correlation_data", b"\x00\xff", MESSAGE),
    ("0B 8001", "subscription_identifiers", (128,), {T.PUBLISH, T.SUBSCRIBE}),
    ("11 FFFFFFFF", "session_expiry_interval", 0xFFFFFFFF, {T.CONNECT, T.CONNACK, T.DISCONNECT}),
    ("12 0001 69", "assigned_client_identifier", "i", {T.CONNACK}),
    ("13 0000", "server_keep_alive", 0, {T.CONNACK}),
    ("15 0001 6D", "authentication_method", "m", {T.CONNECT, T.CONNACK, T.AUTH}),
    ("16 0000", "authentication_data", b"", {T.CONNECT, T.CONNACK, T.AUTH}),
    ("17 00", "request_problem_information", False, {T.CONNECT}),
    ("18 00000001", "will_delay_interval", 1, {WILL}),
    ("19 01", "request_response_information", True, {T.CONNECT}),
    ("1A 0000", "response_information", "", {T.CONNACK}),
    ("1C 0001 68", "server_reference", "h", {T.CONNACK, T.DISCONNECT}),
    ("1F 0002 C3A9", "reason_string", "é", ANSWERS),
    ("21 0001", "receive_maximum", 1, {T.CONNECT, T.CONNACK}),
    ("22 FFFF", "topic_alias_maximum", 65535, {T.CONNECT, T.CONNACK}),
    ("23 FFFF", "topic_alias", 65535, {T.PUBLISH}),
    ("24 00", "maximum_qos", 0, {T.CONNACK}),
    ("25 00", "retain_available", False, {T.CONNACK}),
    ("26 0001 61 0001 62", "user_properties", (("a", "b"),), CARRIERS),
    ("27 00000001", "maximum_packet_size", 1, {T.CONNECT, T.CONNACK}),
    ("28 00", "wildcard_subscription_available", False, {T.CONNACK}),
    ("29 01", "subscription_identifier_available", True, {T.CONNACK}),
    ("2A 00", "shared_subscription_available", False, {T.CONNACK}),
]


def read(block: bytes, carrier: int) -> Properties:
    wire = bytes((len(block),)) + block
    reader = Reader(wire, 0, len(wire), 5)
    properties = read_properties(reader, carrier)
    reader.finish()
    return properties


@pytest.mark.parametrize(("wire", "name", "value", "carriers"), TABLE)
def test_property(wire: str, name: str, value: Any, carriers: set[int]) -> None:
    block = bytes.fromhex(wire)
    properties = Properties(**{name: value})
    for carrier in CARRIERS:
        if carrier in carriers:
            assert read(block, carrier) == properties
            assert write_properties(properties, carrier) == bytes((len(block),)) + block
        else:
            with pytest.raises(RemoteProtocolError, match="not allowed here") as caught:
                read(block, carrier)
            assert (caught.value.reason_code, caught.value.section) == (0x81, "2.2.2.2")
            with pytest.raises(RemoteProtocolError, match="not allowed here"):
                write_properties(properties, carrier)


@pytest.mark.parametrize(("wire", "name", "value", "carriers"), TABLE)
def test_repeated_property(wire: str, name: str, value: Any, carriers: set[int]) -> None:
    block = bytes.fromhex(wire)
    for carrier in carriers:
        if name == "user_properties" or (name == "subscription_identifiers" and carrier == 3):
            assert read(block * 2, carrier) == Properties(**{name: value * 2})
        else:
            with pytest.raises(RemoteProtocolError, match="more than once") as caught:
                read(block * 2, carrier)
            assert caught.value.reason_code == 0x82


@pytest.mark.parametrize(("wire", "name", "value", "carriers"), TABLE)
def test_truncated_property(wire: str, name: str, value: Any, carriers: set[int]) -> None:
    block = bytes.fromhex(wire)
    for carrier in carriers:
        for end in range(1, len(block)):
            with pytest.raises(RemoteProtocolError) as caught:
                read(block[:end], carrier)
            assert (caught.value.reason_code, caught.value.section) == (0x81, "2.1.4")


def test_table_and_fields_are_the_same() -> None:
    assert len(TABLE) == len(PROPERTIES) == 27
    assert [spec.name for spec in PROPERTIES] == [field.name for field in fields(Properties)]
    assert [spec.name for spec in PROPERTIES] == [name for _, name, _, _ in TABLE]
    identifiers = [spec.identifier for spec in PROPERTIES]
    assert identifiers == sorted(set(identifiers))


NUMBERS = (Kind.BYTE, Kind.BOOLEAN, Kind.TWO_BYTE_INTEGER, Kind.FOUR_BYTE_INTEGER)


@pytest.mark.parametrize(
    "spec", [spec for spec in PROPERTIES if spec.kind in NUMBERS], ids=lambda spec: spec.name
)
def test_numbers_out_of_range_are_not_written(spec: PropertySpec) -> None:
    carrier = min(spec.carriers)
    value: Any
    for value in (spec.minimum - 1, spec.maximum + 1):
        with pytest.raises(RemoteProtocolError) as caught:
            write_properties(Properties(**{spec.name: value}), carrier)
        assert caught.value.reason_code == (0x94 if spec.name == "topic_alias" else 0x82)
    for value in (spec.minimum, spec.maximum):
        block = write_properties(Properties(**{spec.name: value}), carrier)
        assert getattr(read(block[1:], carrier), spec.name) == value


def test_order_of_user_properties_is_kept() -> None:
    pairs = (("z", "1"), ("a", "2"), ("z", "1"), ("", ""))
    packet = Publish("t", properties=Properties(user_properties=pairs))
    assert decode(encode(packet, 5), 5) == packet


def test_long_property_block_has_a_long_length() -> None:
    packet = ConnAck(properties=Properties(reason_string="x" * 200))
    frame = encode(packet, 5)
    assert frame[:9].hex(" ") == "20 cf 01 00 00 cb 01 1f 00"
    assert decode(frame, 5) == packet


@pytest.mark.parametrize(
    "packet",
    [
        Publish("t", properties=Properties(subscription_identifiers=(0,))),
        Publish("t", properties=Properties(subscription_identifiers=(268_435_456,))),
        Publish("t", properties=Properties(response_topic="a/#")),
        Publish("t", properties=Properties(content_type="\0")),
        Publish("t", properties=Properties(content_type="\ud800")),
        Publish("t", properties=Properties(correlation_data=bytes(65_536))),
        Publish("t", properties=Properties(user_properties=(("k", "x" * 65_536),))),
        Publish("t", properties=Properties(receive_maximum=1)),
        Connect(will=Will("w", properties=Properties(topic_alias=1))),
        Subscribe(1, (Subscription("a"),), Properties(subscription_identifiers=(1, 2))),
    ],
)
def test_wrong_properties_are_our_fault_when_encoding(packet: Packet) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(packet, 5)
    assert caught.value.section
