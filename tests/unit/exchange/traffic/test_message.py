"""The three forms of a message: what a client sent, what a link carries, what a broker gets."""

from __future__ import annotations

import pytest

from isthmus.cooperation.api import MAX_LABEL_BYTES
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.traffic.message import (
    Message,
    from_link,
    from_publish,
    number_of,
    plain_tail,
    plain_to_broker,
    plain_to_link,
    to_broker,
    to_link,
)
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.mqtt.properties import Properties

APP = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answer/here",
    correlation_data=b"\x02\x23\x00",
    user_properties=(("a", "1"), ("b", "2"), ("a", "3")),
)


def read(publish: Publish, level: int = 5, now_s: float = 0.0) -> Message:
    return from_publish(encode(publish, level), level, publish.topic.encode(), "edge-1", now_s)


def properties_of(frame: bytes) -> Properties:
    packet = decode(frame, 5)
    assert isinstance(packet, Publish)
    return packet.properties


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("size", [0, 30, 200, 20_000])
def test_a_message_survives_two_links(level: int, qos: int, retain: bool, size: int) -> None:
    properties = APP if level == 5 else Properties()
    publish = Publish("a/ü", bytes(size), qos, retain, False, 7 if qos else 0, properties)
    message = read(publish, level)
    message.version = "1-0-edge-1" if retain else ""
    once, packet_id = from_link(to_link(message, min(qos, 1), 99, 0.0), 0.0)
    assert packet_id == (99 if qos else 0)
    twice, _ = from_link(to_link(once, 0, 0, 0.0), 0.0)
    assert (once.hops, twice.hops) == (1, 2)
    assert (twice.origin, twice.version) == ("edge-1", message.version)
    assert decode(to_broker(twice, 5, qos, 7, 0.0), 5) == publish
    plain = Publish("a/ü", bytes(size), qos, retain, False, 7 if qos else 0)
    assert decode(to_broker(twice, 4, qos, 7, 0.0), 4) == plain


def test_a_link_publish_is_valid_mqtt_with_the_property_first() -> None:
    packet = decode(to_link(read(Publish("t", b"x", properties=APP)), 0, 0, 0.0), 5)
    assert isinstance(packet, Publish)
    assert packet.properties.user_properties == (("$i", "01:edge-1"), *APP.user_properties)


def test_expiry_is_counted_down_by_the_time_spent_and_ends_the_message() -> None:
    message = read(Publish("t", b"x", properties=Properties(message_expiry_interval=10)), now_s=100)
    assert properties_of(to_link(message, 0, 0, 103.9)).message_expiry_interval == 7
    there, _ = from_link(to_link(message, 0, 0, 103.9), 500.0)
    assert properties_of(to_broker(there, 5, 0, 0, 502.0)).message_expiry_interval == 5
    assert not there.expired(506.9)
    assert there.expired(507.0)


def test_an_alias_is_not_passed_on() -> None:
    aliased = Publish("", b"x", properties=Properties(topic_alias=3, content_type="c"))
    message = from_publish(encode(aliased, 5), 5, b"real", "edge-1", 0.0)
    packet = decode(to_broker(message, 5, 0, 0, 0.0), 5)
    assert packet == Publish("real", b"x", properties=Properties(content_type="c"))


def test_a_client_cannot_forge_the_property() -> None:
    forged = Properties(user_properties=(("$i", "00:somebody-else"),))
    message, _ = from_link(to_link(read(Publish("t", b"x", properties=forged)), 0, 0, 0.0), 0.0)
    assert message.origin == "edge-1"
    assert properties_of(to_broker(message, 5, 0, 0, 0.0)) == forged


@pytest.mark.parametrize(
    "user_properties",
    [
        (),
        (("x", "01:edge"),),
        *(
            (("$i", value),)
            for value in (
                "",
                "9",
                "91:edge",
                "0~:e",
                "01edge",
                "01:",
                "0:e",
                "01:two words",
                "0-1:edge",
                "01:edge#zz.1",
                "01:edge#1." + 17 * "0",
                "0" + 7 * "1" + ":edge",
            )
        ),
    ],
)
def test_a_publish_without_a_proper_property_is_refused(
    user_properties: tuple[tuple[str, str], ...],
) -> None:
    frame = encode(Publish("t", b"x", properties=Properties(user_properties=user_properties)), 5)
    with pytest.raises(RemoteProtocolError):
        from_link(frame, 0.0)


def test_every_truncation_of_a_link_publish_is_refused_cleanly() -> None:
    frame = to_link(read(Publish("topic", b"", 1, packet_id=9, properties=APP)), 1, 9, 0.0)
    for length in range(2, len(frame)):
        with pytest.raises(RemoteProtocolError):
            from_link(frame[:1] + bytes([length - 2]) + frame[3:length], 0.0)


@pytest.mark.parametrize("hops", [0, 8, 63, 64, 65, 1_000, 99_998])
def test_any_number_of_hops_can_be_told(hops: int) -> None:
    message = Message(b"t", b"x", origin="edge-1", hops=hops)
    assert from_link(to_link(message, 0, 0, 0.0), 0.0)[0].hops == hops + 1


@pytest.mark.parametrize("label", [b"", b"\0", b"level 3", bytes(MAX_LABEL_BYTES)])
@pytest.mark.parametrize("version", ["", "198f3c2b1a0-0-edge-1"])
@pytest.mark.parametrize("number", ["", number_of("198f", 2**48 - 1)])
def test_labels_versions_and_numbers_arrive(label: bytes, version: str, number: str) -> None:
    message = Message(b"t", b"x", origin="edge-1", version=version, number=number)
    there, _ = from_link(to_link(message, 0, 0, 0.0, label), 0.0)
    assert (there.label, there.version, there.number) == (label, version, number)


def test_a_label_that_is_too_long_is_refused() -> None:
    message = Message(b"t", b"x", origin="edge-1")
    with pytest.raises(RemoteProtocolError, match="makes no sense"):
        from_link(to_link(message, 0, 0, 0.0, bytes(MAX_LABEL_BYTES + 1)), 0.0)


@pytest.mark.parametrize("size", [0, 32, 90, 127, 128, 20_000])
@pytest.mark.parametrize("hops", [0, 3, 100])
def test_the_plain_forms_are_the_general_ones(size: int, hops: int) -> None:
    message = Message(b"some/topic", bytes(size), origin="edge-1", hops=hops)
    tail = plain_tail("edge-1", hops)
    assert plain_to_link(b"some/topic", tail, bytes(size)) == to_link(message, 0, 0, 0.0)
    for label in (b"", b"\0", b"range"):
        message.number = number_of("abc", 77)
        tail = plain_tail("edge-1", hops, label, "abc")
        rest = b"00000000004d" + bytes(size)
        assert plain_to_link(b"some/topic", tail, rest) == to_link(message, 0, 0, 0.0, label)
    for level in (4, 5):
        plain = plain_to_broker(b"some/topic", bytes(size), level)
        assert plain == to_broker(message, level, 0, 0, 0.0)
