"""Messages to be confirmed, in hand: nothing is called safe that is not."""

from __future__ import annotations

import pytest

from isthmus.exchange.link.lane import Incoming
from isthmus.exchange.link.link import SETTLED_AT_ONCE, SETTLED_TOPIC, Link
from isthmus.exchange.traffic.in_hand import HERE, MAX_MISSED, MAX_UNSAFE, InHand
from isthmus.exchange.traffic.message import Fate
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.packets import Publish
from unit.exchange.traffic.test_in_hand import QUEUE_BYTES, Stage, puback


class ConfirmedStage(Stage):
    def arrives(
        self, packet_id: int, *, number: str = "1.1", came_from: str = "", hops: int = 1
    ) -> InHand:
        in_hand = super().arrives(packet_id, number=number, came_from=came_from, hops=hops)
        in_hand.message.confirm = True
        return in_hand


def refusal(packet_id: int, fate: Fate) -> bytes:
    return bytes((0x40, 3, 0, packet_id, fate))


@pytest.mark.parametrize("fate", [Fate.MISSED, Fate.REFUSED])
def test_what_was_missed_is_missed_when_it_comes_again(fate: Fate) -> None:
    """From a neighbor that was restarted, or over another link: with the same number."""
    stage = ConfirmedStage()
    first = stage.taken(1, "b")
    first.message.misses(fate)
    first.acknowledged_by("b")
    assert stage.answers == [refusal(1, fate)]
    stage.hand.repeated(stage.arrives(2))
    assert stage.answers[1:] == [refusal(2, fate)]


def test_what_was_missed_is_missed_when_its_answer_was_lost() -> None:
    """It is repeated on the same lane, whose connection broke."""
    stage = ConfirmedStage()
    first = stage.taken(1, "b")
    first.message.misses()
    first.acknowledged_by("b")
    again = stage.incoming.accept(1, 1, stage.hand.fate_of(first.message))
    assert again == refusal(1, Fate.MISSED)


def test_what_is_remembered_of_missed_ones_is_bounded() -> None:
    stage = ConfirmedStage()
    for number in range(1, MAX_MISSED + 10):
        stage.incoming = Incoming()
        in_hand = stage.arrives(1, number=f"1.{number:x}")
        in_hand.message.misses()
        in_hand.acknowledged_by(HERE)
    assert len(stage.hand._missed) == MAX_MISSED
    assert stage.hand.fate_of(in_hand.message) is Fate.MISSED


def test_copies_that_wait_are_taken_and_told_what_becomes_of_them() -> None:
    """Beyond `MAX_UNSAFE`; those of what need not be confirmed are acknowledged at once."""
    stage = ConfirmedStage()
    link = Link(stage.neighbor, "s", qos=1, queue_bytes=QUEUE_BYTES, round_robin=False)
    lanes = Incoming(), Incoming(), stage.incoming
    firsts = []
    for number in range(1, MAX_UNSAFE + 3):
        stage.incoming = lanes[number % 2]
        firsts.append(in_hand := stage.arrives(number, number=f"1.{number:x}", hops=2))
        stage.hand.take(in_hand)
        stage.incoming = lanes[2]
        stage.hand.repeated(stage.arrives(number, number=f"1.{number:x}", hops=1))
        stage.hand.relieve(stage.incoming, link)
    assert stage.answers == [refusal(1, Fate.TAKEN), refusal(2, Fate.TAKEN)]
    stage.answers.clear()
    firsts[0].acknowledged_by(HERE)
    firsts[1].message.misses()
    firsts[1].acknowledged_by(HERE)
    firsts[2].acknowledged_by(HERE)
    stage.host.engine.run_until(1.0)
    settled = decode(stage.answers.pop(), 5)
    assert isinstance(settled, Publish)
    assert (settled.topic, settled.payload) == (SETTLED_TOPIC, b"+o#1.1\n-o#1.2")
    assert stage.answers == [puback(3)]


def test_copies_without_end_take_no_more_room() -> None:
    """A neighbor says the same again and again, under numbers that are new."""
    stage = ConfirmedStage()
    link = Link(stage.neighbor, "s", qos=1, queue_bytes=QUEUE_BYTES, round_robin=False)
    first = stage.taken(1, "b")
    stage.incoming = Incoming()
    stage.incoming.answer = stage.answers.append
    for packet_id in range(1, 3 * MAX_UNSAFE):
        stage.hand.repeated(copy := stage.arrives(packet_id, hops=1))
        stage.hand.relieve(stage.incoming, link)
    assert not copy.message.payload
    assert len(first._copies or ()) == MAX_UNSAFE + 1
    assert len(stage.incoming._taken) == 1
    stage.answers.clear()
    first.acknowledged_by("b")
    stage.host.engine.run_until(20.0)
    said = [decode(each, 5) for each in stage.answers]
    assert [each.payload for each in said if isinstance(each, Publish)] == [b"+o#1.1"]
    assert len(said) == MAX_UNSAFE + 2
    assert not stage.incoming._taken


def test_what_waits_with_another_one_is_not_one_of_its_copies() -> None:
    """It was forwarded for one label, and has another one by now."""
    stage = ConfirmedStage()
    link = Link(stage.neighbor, "s", qos=1, queue_bytes=QUEUE_BYTES, round_robin=False)
    first = stage.taken(1, "b")
    stage.incoming = Incoming()
    waits = stage.arrives(1)
    stage.hand.waits_with(waits, b"")
    waits.acknowledged_by(HERE)
    waits.take()
    for packet_id in range(2, MAX_UNSAFE + 4):
        stage.hand.repeated(stage.arrives(packet_id, hops=1))
        stage.hand.relieve(stage.incoming, link)
    first.acknowledged_by("b")
    assert not waits.waits_for


def test_who_wait_for_each_other_are_not_told_that_it_is_safe() -> None:
    stage = ConfirmedStage()
    first = stage.taken(1, "b")
    stage.hand.repeated(stage.arrives(2, hops=3))
    stage.host.engine.run_until(20.0)
    assert stage.answers == [refusal(2, Fate.MISSED)]
    first.acknowledged_by("b")
    assert stage.answers[1:] == [puback(1)]


def test_many_that_are_settled_at_once_go_in_packets_that_the_other_end_takes() -> None:
    stage = ConfirmedStage()
    many = 2 * SETTLED_AT_ONCE + 1
    for number in range(1, many + 1):
        stage.hand.take(in_hand := stage.arrives(number, number=f"1.{number:x}"))
        in_hand.take()
        in_hand.acknowledged_by(HERE)
    stage.answers.clear()
    stage.host.engine.run_until(1.0)
    said = [decode(each, 5) for each in stage.answers]
    lines = [each.payload.split(b"\n") for each in said if isinstance(each, Publish)]
    assert [len(each) for each in lines] == [SETTLED_AT_ONCE, SETTLED_AT_ONCE, 1]
