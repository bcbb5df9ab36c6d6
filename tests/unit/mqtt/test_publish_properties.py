"""The relay's check of a PUBLISH's property block."""

from __future__ import annotations

import pytest

from isthmus.errors import MalformedPacket, RemoteProtocolError
from isthmus.mqtt.publish_properties import check_publish_properties

AROUND = b"\xff\xff\xff"  # what lies beside the block in a buffer must not matter


def check(wire: str, *, from_client: bool = True) -> int:
    block = bytes.fromhex(wire)
    buffer = AROUND + block + AROUND
    start, end = len(AROUND), len(AROUND) + len(block)
    alias = check_publish_properties(buffer, start, end, from_client=from_client)
    for other in (bytearray(buffer), memoryview(buffer)):
        assert check_publish_properties(other, start, end, from_client=from_client) == alias
    return alias


@pytest.mark.parametrize(
    ("wire", "alias"),
    [
        ("", 0),
        ("23 0001", 1),
        ("23 FFFF", 65535),
        ("01 01 02 00000001 03 0001 61 08 0001 62 09 0001 00", 0),
        ("26 0001 61 0001 62 23 0102 26 0001 61 0001 62", 0x102),
        ("03 0000 09 0000", 0),
    ],
)
def test_right_blocks(wire: str, alias: int) -> None:
    assert check(wire) == alias


def test_subscription_identifiers_come_from_servers_only() -> None:
    block = "0B 01 0B FFFFFF7F 23 0005"
    assert check(block, from_client=False) == 5
    with pytest.raises(RemoteProtocolError) as caught:
        check(block)
    assert (caught.value.reason_code, caught.value.section) == (0x82, "MQTT-3.3.4-6")


@pytest.mark.parametrize(
    ("wire", "reason_code", "section"),
    [
        ("23 0000", 0x94, "MQTT-3.3.2-8"),
        ("23 0001 23 0001", 0x82, "3.3.2.3.4"),
        ("01 02", 0x82, "3.3.2.3.2"),
        ("01 00 01 00", 0x82, "3.3.2.3.2"),
        ("03 0000 03 0000", 0x82, "3.3.2.3.9"),
        ("0B 00", 0x82, "3.8.2.1.2"),
        ("0B FFFFFFFF", 0x81, "1.5.5"),
        ("0B 80", 0x81, "2.1.4"),
        ("21 0001", 0x81, "2.2.2.2"),
        ("00", 0x81, "2.2.2.2"),
        ("8300 0000", 0x81, "2.2.2.2"),
        ("23", 0x81, "2.1.4"),
        ("23 00", 0x81, "2.1.4"),
        ("02 000000", 0x81, "2.1.4"),
        ("01", 0x81, "2.1.4"),
        ("03 00", 0x81, "2.1.4"),
        ("03 0002 61", 0x81, "2.1.4"),
        ("09 0001", 0x81, "2.1.4"),
        ("26 0001 61", 0x81, "2.1.4"),
        ("26 0001 61 0002 61", 0x81, "2.1.4"),
        ("03 0002 C328", 0x81, "MQTT-1.5.4-1"),
        ("26 0001 61 0003 EDA080", 0x81, "MQTT-1.5.4-1"),
        ("26 0001 00 0000", 0x81, "MQTT-1.5.4-2"),
        ("08 0001 23", 0x82, "MQTT-3.3.2-14"),
        ("08 0000", 0x82, "MQTT-3.3.2-14"),
    ],
)
def test_wrong_blocks(wire: str, reason_code: int, section: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check(wire, from_client=False)
    assert (caught.value.reason_code, caught.value.section) == (reason_code, section)
    assert isinstance(caught.value, MalformedPacket) == (reason_code == 0x81)
