"""The layout of a PUBLISH by hand agrees with the codec; identifiers come in turn."""

from __future__ import annotations

import pytest

from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packet_ids import IDENTIFIERS, free_packet_id
from isthmus.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.publish_layout import (
    DUP,
    LENGTHS,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RETAIN,
    acknowledgment,
    length_bytes,
    packet_id_at,
    property_bounds,
    publish,
    publish_answer,
    publish_id,
    topic_bounds,
    topic_start,
)
from isthmus.mqtt.reason_codes import ReasonCode


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 100, 20_000, 3_000_000])
def test_a_publish_is_where_the_codec_puts_it(level: int, qos: int, size: int) -> None:
    block = b"\x01\x01" if level == 5 else None
    properties = Properties(payload_format_indicator=1) if block else Properties()
    packet = Publish(
        "sport/tennis", bytes(size), qos, retain=True, packet_id=517 if qos else 0,
        dup=qos > 0, properties=properties,
    )  # fmt: skip
    frame = encode(packet, level)
    first = PUBLISH | (DUP if qos else 0) | qos << 1 | RETAIN
    assert publish(first, b"sport/tennis", packet.packet_id, block, packet.payload) == frame
    stream = b"\xc0\0" + frame
    start, end = topic_bounds(stream, 2)
    assert stream[start:end] == b"sport/tennis"
    assert start == topic_start(stream, 2) == topic_start(frame) + 2
    if qos:
        assert packet_id_at(stream, end) == publish_id(frame) == 517
        end += 2
    if block is not None:
        start, end = property_bounds(stream, end)
        assert stream[start:end] == block
    assert stream[end:] == packet.payload


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_lengths_come_back(value: int) -> None:
    written = length_bytes(value)
    assert property_bounds(written, 0) == (len(written), len(written) + value)
    assert value >= 128 or LENGTHS[value] == written


def test_acknowledgments_are_the_codecs() -> None:
    assert acknowledgment(PUBACK, 517) == encode(PubAck(517), 5)
    assert acknowledgment(PUBREC, 517) == encode(PubRec(517), 4)
    assert acknowledgment(PUBREL, 65_535) == encode(PubRel(65_535), 5)
    assert acknowledgment(PUBCOMP, 1) == encode(PubComp(1), 4)
    refused = acknowledgment(PUBREC, 7, b"\x97")
    assert refused == encode(PubRec(7, ReasonCode.QUOTA_EXCEEDED), 5)
    assert packet_id_at(refused) == 7
    assert (publish_answer(0x32), publish_answer(0x3C)) == (PUBACK, PUBREC)


def test_identifiers_come_in_turn_and_pass_over_those_in_use() -> None:
    assert free_packet_id(0, ()) == 1
    assert free_packet_id(1, {2: "", 3: ""}, {4}) == 5
    assert free_packet_id(IDENTIFIERS, {1}) == 2
    assert free_packet_id(3, {4, 1}, identifiers=4) == 2
