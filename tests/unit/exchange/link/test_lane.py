"""Acknowledgment, retransmission and duplicate suppression on one lane."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link.lane import (
    MAX_BUSY,
    SPAN,
    WINDOW,
    Incoming,
    Outgoing,
    OutgoingLane,
)
from isthmus.exchange.traffic.message import Fate, Message, from_link
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.publish_layout import PUBACK, PUBCOMP, PUBREC, acknowledgment
from support.held import Held


def message(number: int) -> Message:
    return Message(b"t", str(number).encode(), qos=2, origin="a")


def add(
    lane: OutgoingLane, message: Message, qos: int, done: Callable[[], None] | None = None
) -> None:
    held = Held(message, done, "b") if done is not None else None
    lane.put(Outgoing(message, qos, held))


def payloads(frames: list[bytes]) -> list[int]:
    return [int(from_link(frame, 0.0)[0].payload) for frame in frames]


def test_what_is_not_acknowledged_is_sent_again_in_order_and_marked() -> None:
    lane = OutgoingLane("b")
    done: list[int] = []
    for number in range(5):
        add(lane, message(number), 1, lambda n=number: done.append(n))  # type: ignore[misc]
    assert payloads(list(lane.transmit(0.0))) == [0, 1, 2, 3, 4]
    lane.acknowledged(0x40, 2)  # number 1
    lane.connection_lost()
    add(lane, message(5), 1)
    again = list(lane.transmit(0.0))
    assert payloads(again) == [0, 2, 3, 4, 5]
    assert [bool(frame[0] & 8) for frame in again] == [True] * 4 + [False]
    assert done == [1]


def taken_at_qos_2() -> tuple[OutgoingLane, list[str]]:
    """A message that is to be confirmed, and of which its neighbor has said that it is taken."""
    lane = OutgoingLane("b")
    done: list[str] = []
    kept = numbered(0)
    kept.qos, kept.confirm = 2, True
    add(lane, kept, 2, lambda: done.append(kept.fate.name))
    list(lane.transmit(0.0))
    lane.acknowledged(PUBREC, 1, Fate.TAKEN)
    return lane, done


@pytest.mark.parametrize("fate", [Fate.SAFE, Fate.MISSED])
def test_what_is_said_to_be_taken_twice_waits_once(fate: Fate) -> None:
    """After a reconnect: because it was just taken, and because it came again."""
    lane, done = taken_at_qos_2()
    lane.acknowledged(PUBREC, 1, Fate.TAKEN)
    lane.acknowledged(PUBCOMP, 1)
    assert not done
    assert lane.settled("a", numbered(0).number, b"", fate)
    assert done == [fate.name]
    assert (len(lane), lane.unacked_bytes) == (0, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_copies_that_are_taken_are_settled_by_one_word(qos: int) -> None:
    """One has waited on disk since an earlier life, one came again from the node before."""
    lane = OutgoingLane("b")
    done: list[int] = []
    for number in range(2):
        kept = numbered(0)
        kept.qos, kept.confirm = qos, True
        add(lane, kept, qos, lambda n=number: done.append(n))  # type: ignore[misc]
    list(lane.transmit(0.0))
    for packet_id in (1, 2):
        lane.acknowledged(PUBREC if qos == 2 else PUBACK, packet_id, Fate.TAKEN)
        if qos == 2:
            lane.acknowledged(PUBCOMP, packet_id)
    assert (len(lane), len(lane.unacknowledged())) == (2, 2)
    assert lane.settled("a", numbered(0).number, b"", Fate.SAFE)
    assert sorted(done) == [0, 1]
    assert (len(lane), lane.unacked_bytes, lane.taken_bytes) == (0, 0, 0)


def test_what_is_taken_is_sent_again_where_it_was() -> None:
    """What has waited on disk seems to have come when it was not, if the clock has jumped."""
    lane = OutgoingLane("b")
    for number, arrived_s in enumerate((1.0, 5.0, 4.0, 6.0)):
        kept = numbered(number, arrived_s)
        kept.confirm = number == 0
        lane.append(Outgoing(kept, 1, None))
    list(lane.transmit(7.0))
    lane.acknowledged(PUBACK, 1, Fate.TAKEN)
    lane.connection_lost()
    assert payloads(list(lane.transmit(8.0))) == [0, 1, 2, 3]


def test_nothing_becomes_of_a_message_by_its_pubcomp() -> None:
    lane, _ = taken_at_qos_2()
    with pytest.raises(RemoteProtocolError, match="an acknowledgment with the reason 0x10"):
        lane.acknowledged(PUBCOMP, 1, Fate.TAKEN)


def numbered(number: int, arrived_s: float = 0.0) -> Message:
    each = Message(b"t", str(number).encode(), qos=1, origin="a", arrived_s=arrived_s)
    each.number = f"1.{number:012x}"
    return each


def labels(frames: list[bytes]) -> list[tuple[int, bytes]]:
    sent = [from_link(frame, 0.0)[0] for frame in frames]
    return [(int(each.payload), each.label) for each in sent]


@pytest.mark.parametrize("sent", [True, False])
def test_what_is_put_again_takes_the_place_that_it_had(*, sent: bool) -> None:
    """Whether it was sent before, on a connection that broke, or not."""
    lane = OutgoingLane("b")
    messages = [numbered(number) for number in range(3)]
    finished: list[int] = []
    for number, each in enumerate(messages):
        held = Held(each, lambda n=number: finished.append(n), "b")  # type: ignore[misc]
        lane.put(Outgoing(each, 1, held, b"old"))
    if sent:
        assert len(list(lane.transmit(0.0))) == 3
        lane.connection_lost()
    lane.put(Outgoing(messages[1], 1, None, b"new"), again=True)
    frames = list(lane.transmit(0.0))
    assert labels(frames) == [(0, b"old"), (1, b"new"), (2, b"old")]
    assert finished == [1], "the older copy is nobody's any more"
    for packet_id in range(1, 10):
        lane.acknowledged(0x40, packet_id)
    list(lane.transmit(0.0))
    assert len(lane) == lane.unacked_bytes == 0


def test_what_is_in_flight_stays_and_comes_before_what_is_put_again() -> None:
    lane = OutgoingLane("b")
    each = numbered(0)
    lane.put(Outgoing(each, 1, None, b"old"))
    assert labels(list(lane.transmit(0.0))) == [(0, b"old")]
    lane.put(Outgoing(each, 1, None, b"new"), again=True)
    assert labels(list(lane.transmit(0.0))) == [(0, b"new")]


@pytest.mark.parametrize("apart_s", [1.0, 0.0])
def test_what_went_another_way_first_waits_before_what_has_come_after_it(apart_s: float) -> None:
    """Also if all came in one read: then their numbers tell."""
    lane = OutgoingLane("b")
    for number in (3, 1, 4, 2):
        lane.put(Outgoing(numbered(number, number * apart_s), 1, None))
    assert payloads(list(lane.transmit(5.0))) == [1, 2, 3, 4]


def test_what_went_another_way_first_comes_before_what_gets_another_label() -> None:
    lane = OutgoingLane("b")
    older, newer = numbered(1, 1.0), numbered(2, 2.0)
    lane.put(Outgoing(newer, 1, None, b"old"))
    assert labels(list(lane.transmit(2.0))) == [(2, b"old")]
    lane.connection_lost()
    lane.put(Outgoing(older, 1, None, b"new"))
    lane.put(Outgoing(newer, 1, None, b"new"), again=True)
    assert labels(list(lane.transmit(3.0))) == [(1, b"new"), (2, b"new")]


def test_the_window_bounds_what_is_in_flight() -> None:
    lane = OutgoingLane("b")
    for number in range(WINDOW + 3):
        add(lane, message(number), 1)
    assert len(list(lane.transmit(0.0))) == WINDOW
    lane.acknowledged(0x40, 1)
    assert payloads(list(lane.transmit(0.0))) == [WINDOW]


def test_qos_2_takes_four_packets_and_resumes_at_pubrel() -> None:
    lane = OutgoingLane("b")
    add(lane, message(0), 2)
    list(lane.transmit(0.0))
    assert lane.acknowledged(0x50, 1) == b"\x62\x02\x00\x01"
    lane.connection_lost()
    assert list(lane.transmit(0.0)) == [b"\x62\x02\x00\x01"]
    assert lane.acknowledged(0x70, 1) == b""
    assert not len(lane)
    assert lane.unacked_bytes == 0


@pytest.mark.parametrize(("head", "packet_id"), [(0x50, 1), (0x70, 1)])
def test_acknowledgments_that_fit_nothing_are_the_peers_fault(head: int, packet_id: int) -> None:
    lane = OutgoingLane("b")
    add(lane, message(0), 1)
    list(lane.transmit(0.0))
    with pytest.raises(RemoteProtocolError):
        lane.acknowledged(head, packet_id)


def test_an_acknowledgment_that_comes_twice_changes_nothing() -> None:
    lane = OutgoingLane("b")
    add(lane, message(0), 1)
    list(lane.transmit(0.0))
    lane.acknowledged(0x40, 1)
    assert lane.acknowledged(0x40, 1) == b""


def test_an_expired_message_that_was_never_sent_is_done() -> None:
    lane = OutgoingLane("b")
    done: list[bool] = []
    add(lane, Message(b"t", b"", qos=1, origin="a", expiry_s=5), 1, lambda: done.append(True))
    assert list(lane.transmit(6.0)) == []
    assert done == [True]


def test_what_expires_unsent_uses_up_no_number() -> None:
    lane, receiver = OutgoingLane("b"), Incoming()
    expired = 0
    for number in range(3 * IDENTIFIERS):
        fleeting = number % IDENTIFIERS != 0
        add(lane, Message(b"t", b"", qos=1, origin="a", expiry_s=1 if fleeting else None), 1)
        expired += fleeting
    frames = list(lane.transmit(6.0))
    assert [receiver.accept(from_link(frame, 0.0)[1], 1) for frame in frames] == [0, 1, 2]
    assert lane.expired == expired


def test_numbers_do_not_run_away_from_one_that_is_not_acknowledged() -> None:
    """Else its identifier would be given to another, and be acknowledged with that."""
    lane, receiver = OutgoingLane("b"), Incoming()
    first: list[bool] = []
    add(lane, message(0), 1, lambda: first.append(True))
    sent = list(lane.transmit(0.0))
    for number in range(1, 2 * IDENTIFIERS):
        add(lane, message(number), 1)
        sent += lane.transmit(0.0)
        while len(sent) > 1:
            lane.acknowledged(0x40, from_link(sent.pop(), 0.0)[1])
        if number % 10_000 == 0:
            lane.connection_lost()  # the receiver must know the first one for what it is
            (again,) = lane.transmit(0.0)
            receiver.accept(from_link(again, 0.0)[1], 1)
    assert not first
    assert 2 * IDENTIFIERS - SPAN <= len(lane) <= 2 * IDENTIFIERS
    lane.acknowledged(0x40, from_link(sent[0], 0.0)[1])
    assert first == [True]
    assert len(list(lane.transmit(0.0))) == WINDOW


def test_what_was_released_is_not_sent_anew_on_other_lanes() -> None:
    lane = OutgoingLane("b")
    done: list[int] = []
    for number in range(2):
        add(lane, message(number), 2, lambda n=number: done.append(n))  # type: ignore[misc]
    list(lane.transmit(0.0))
    lane.acknowledged(0x50, 1)
    assert [entry.message.payload for entry in lane.take()] == [b"1"]
    assert done == [0]
    assert len(lane) == lane.unacked_bytes == 0


def test_a_sender_that_minds_no_window_is_stopped() -> None:
    receiver = Incoming()
    for number in range(MAX_BUSY):
        receiver.accept(number + 1, 1)
    with pytest.raises(RemoteProtocolError) as caught:
        receiver.accept(MAX_BUSY + 1, 1)
    assert caught.value.reason_code == 0x93


def test_repetitions_are_answered_and_not_accepted() -> None:
    incoming = Incoming()
    assert incoming.accept(1, 1) == 0
    assert incoming.accept(1, 1) == b""  # not safe yet
    assert incoming.over(0, 1) == b"\x40\x02\x00\x01"
    assert incoming.accept(1, 1) == b"\x40\x02\x00\x01"
    assert incoming.accept(2, 2) == 1
    assert incoming.over(1, 2) == b"\x50\x02\x00\x02"


@pytest.mark.parametrize("seed", range(20))
def test_exactly_once_over_any_number_of_connections(seed: int) -> None:
    """Both ends live: whatever connections break, and whenever, each message is taken once."""
    rng = random.Random(seed)
    sender, receiver = OutgoingLane("b"), Incoming()
    taken: list[int] = []
    busy: list[tuple[int, int]] = []
    there: list[bytes] = []
    back: list[bytes] = []
    total, added = IDENTIFIERS + 500 if seed == 0 else 300, 0
    while added < total or len(sender):
        for _ in range(rng.randrange(200 if seed == 0 else 4)):
            if added < total:
                add(sender, message(added), rng.choice((1, 2)))
                added += 1
        there += sender.transmit(0.0)
        while there and rng.random() < 0.95:
            frame = there.pop(0)
            if frame[0] == 0x62:
                back.append(acknowledgment(PUBCOMP, int.from_bytes(frame[2:])))
                continue
            received, packet_id = from_link(frame, 0.0)
            qos = frame[0] >> 1 & 3
            number = receiver.accept(packet_id, qos)
            if isinstance(number, int):
                taken.append(int(received.payload))
                busy.append((number, qos))
            elif number:
                back.append(number)
        rng.shuffle(busy)
        while busy and rng.random() < 0.9:
            back.append(receiver.over(*busy.pop()))
        while back and rng.random() < 0.95:
            answer = back.pop(0)
            if reply := sender.acknowledged(answer[0], int.from_bytes(answer[2:])):
                there.append(reply)
        if rng.random() < 0.05:
            sender.connection_lost()
            there.clear()
            back.clear()
    assert taken == list(range(total))
