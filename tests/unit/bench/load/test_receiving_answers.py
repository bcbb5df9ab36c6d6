"""What subscribers and publishers answer at QoS 1 and 2, for any chunking."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.load.acknowledging import MAX_IN_FLIGHT, Answers, InFlight
from isthmus.errors import MalformedPacket, RemoteProtocolError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Packet, PingResp, PubAck, PubComp, Publish, PubRec, PubRel

BODY = bytes(40)


def wire(packets: Sequence[Packet]) -> bytes:
    return b"".join(encode(packet, 4) for packet in packets)


def in_chunks(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


ids = st.integers(1, MAX_IN_FLIGHT)
incoming = st.one_of(
    st.builds(lambda i: Publish("topic1", BODY, 1, packet_id=i), ids),
    st.builds(lambda i: Publish("topic1", BODY, 2, packet_id=i), ids),
    st.builds(lambda i: Publish("a/longer/topic", BODY, 1, packet_id=i), ids),
    st.builds(PubRel, ids),
    st.just(Publish("topic1", BODY)),
    st.just(PingResp()),
)


def answer(packet: Packet) -> list[Packet]:
    match packet:
        case Publish(qos=1):
            return [PubAck(packet.packet_id)]
        case Publish(qos=2):
            return [PubRec(packet.packet_id)]
        case PubRel():
            return [PubComp(packet.packet_id)]
    return []


@given(st.lists(incoming, max_size=30), st.integers(1, 300))
def test_a_subscriber_answers_every_packet_in_order(packets: list[Packet], size: int) -> None:
    answers = Answers()
    got = b"".join(answers.take(chunk) for chunk in in_chunks(wire(packets), size))
    assert got == wire([reply for packet in packets for reply in answer(packet)])


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("count", [1, 5, 6, 500])
def test_equal_messages_are_answered_together(qos: int, count: int) -> None:
    packets = [Publish("topic1", BODY, qos, packet_id=n * 131 + 1) for n in range(count)]
    expected = wire([reply for packet in packets for reply in answer(packet)])
    assert Answers().take(wire(packets)) == expected


def test_frames_of_one_length_that_are_not_alike_are_answered_one_by_one() -> None:
    packets = [Publish("a" * (1 + n % 3), bytes(40 - n % 3), 1, packet_id=n + 1) for n in range(60)]
    assert len({len(encode(packet, 4)) for packet in packets}) == 1
    expected = wire([PubAck(packet.packet_id) for packet in packets])
    assert Answers().take(wire(packets)) == expected


def test_bad_bytes_raise() -> None:
    with pytest.raises(RemoteProtocolError, match="remaining length"):
        Answers().take(b"\x32\xff\xff\xff\xff\x01")
    with pytest.raises(RemoteProtocolError, match="remaining length"):
        InFlight().answered(b"\x40\xff\xff\xff\xff\x01")


def test_a_publisher_at_qos_1_may_use_an_id_again_after_its_puback() -> None:
    flight = InFlight()
    flight.sent(flight.next_ids(3))
    assert len(flight) == 3
    assert flight.answered(wire([PubAck(2), PubAck(1)])) == b""
    assert len(flight) == 1
    assert flight.next_ids(2) == [4, 5]


def test_all_ids_in_flight_hold_the_publisher_until_the_next_in_turn_is_free() -> None:
    flight = InFlight()
    first = flight.next_ids(MAX_IN_FLIGHT + 10)
    assert first == list(range(1, MAX_IN_FLIGHT + 1))
    flight.sent(first)
    assert flight.next_ids(1) == []
    flight.answered(wire([PubAck(2)]))
    assert flight.next_ids(1) == []  # 1 comes first
    flight.answered(wire([PubAck(1)]))
    assert flight.next_ids(5) == [1, 2]


@given(st.integers(1, 60), st.integers(1, 11))
def test_a_publisher_at_qos_2_releases_what_was_received(count: int, size: int) -> None:
    flight = InFlight()
    sent = flight.next_ids(count)
    flight.sent(sent)
    received = wire([PubRec(number) for number in sent])
    released = b"".join(flight.answered(chunk) for chunk in in_chunks(received, size))
    assert released == wire([PubRel(number) for number in sent])
    assert len(flight) == count
    completed = wire([PubComp(number) for number in reversed(sent)])
    assert b"".join(flight.answered(chunk) for chunk in in_chunks(completed, size)) == b""
    assert len(flight) == 0


def test_mixed_answers_are_taken_one_by_one() -> None:
    flight = InFlight()
    flight.sent(flight.next_ids(4))
    mixed = wire([PubRec(1), PubAck(2), PingResp(), PubComp(1), PubRec(4)])
    assert flight.answered(mixed) == wire([PubRel(1), PubRel(4)])
    assert len(flight) == 2


def test_an_answer_to_nothing_is_the_brokers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="packet id 9, which is not in flight"):
        InFlight().answered(wire([PubAck(9)]))
    with pytest.raises(MalformedPacket, match="of 2 bytes"):
        InFlight().answered(b"\x40\x00")
