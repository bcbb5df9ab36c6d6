"""What one connection's publisher is told, and when; and what is kept for it."""

from __future__ import annotations

import pytest

from isthmus.exchange.client.confirming import TOLD_AT_ONCE, Confirming, ConfirmSettings
from isthmus.exchange.client.unreleased import Unreleased
from isthmus.exchange.traffic.message import Fate
from isthmus.mqtt.publish_layout import PUBACK, PUBREC, acknowledgment
from isthmus.sim.engine import Engine

WITHIN_S = 10.0


class Desk:
    """A client's connection: what it was told, and what its broker was."""

    def __init__(self, level: int = 5) -> None:
        self.protocol_level = level
        self.unreleased = Unreleased()
        self.engine = Engine(1)
        self.call_later = self.engine.call_later
        self.told = b""
        self.writes = self.longest = 0
        self.to_broker = b""
        self.unconfirmed = 0
        self.closed = False
        self.confirming = Confirming(self, WITHIN_S)

    def now(self) -> float:
        return self.engine.now_s

    def send(self, data: bytes, *, to_broker: bool) -> bool:
        if to_broker:
            self.to_broker += data
        else:
            self.told += data
            self.writes += 1
            self.longest = max(self.longest, len(data))
        return True

    def not_confirmed(self) -> None:
        self.unconfirmed += 1

    def close_unconfirmed(self) -> None:
        self.closed = True


def test_nothing_is_kept_of_what_is_over() -> None:
    """Whatever `confirm_s` is: a fast publisher would fill the memory with what is confirmed."""
    desk = Desk()
    told = 0
    for number in range(10_000):
        confirmed = desk.confirming.publish(number % 100 + 1, 1)
        told += len(desk.confirming.answer(acknowledgment(PUBACK, number % 100 + 1)))
        confirmed(Fate.SAFE)
    desk.engine.run_until(0.0)
    assert told + len(desk.told) == 40_000
    assert len(desk.confirming._late) <= 1
    assert not desk.confirming


@pytest.mark.parametrize("order", ["broker first", "fabric first"])
def test_both_must_have_it(order: str) -> None:
    desk = Desk()
    confirmed = desk.confirming.publish(7, 1)
    if order == "broker first":
        assert desk.confirming.answer(acknowledgment(PUBACK, 7)) == b""
        confirmed(Fate.SAFE)
        desk.engine.run_until(0.0)
        assert desk.told == acknowledgment(PUBACK, 7)
    else:
        confirmed(Fate.SAFE)
        assert desk.told == b""
        assert desk.confirming.answer(acknowledgment(PUBACK, 7)) == acknowledgment(PUBACK, 7)


@pytest.mark.parametrize("head", [PUBACK, PUBREC])
def test_who_hangs_up_is_told_nothing(head: int) -> None:
    desk = Desk()
    confirmed = desk.confirming.publish(7, 1 if head == PUBACK else 2)
    assert desk.confirming.answer(acknowledgment(head, 7)) == b""
    desk.confirming.close()
    desk.engine.run_until(2 * WITHIN_S)
    confirmed(Fate.SAFE)
    desk.engine.run_until(3 * WITHIN_S)
    assert (desk.told, desk.to_broker, desk.closed, desk.unconfirmed) == (b"", b"", False, 0)


def test_what_is_confirmed_in_one_turn_is_told_in_one_write() -> None:
    desk = Desk()
    told = [desk.confirming.publish(number, 1) for number in (1, 2, 3)]
    for number in (1, 2, 3):
        desk.confirming.answer(acknowledgment(PUBACK, number))
    for confirmed in reversed(told):
        confirmed(Fate.SAFE)
    assert desk.writes == 0
    desk.engine.run_until(0.0)
    assert desk.told == b"".join(acknowledgment(PUBACK, number) for number in (1, 2, 3))
    assert desk.writes == 1


def test_very_many_are_told_in_slices_and_in_order() -> None:
    desk = Desk()
    count = 3 * TOLD_AT_ONCE + 7
    told = [desk.confirming.publish(number, 1) for number in range(1, count + 1)]
    for number in range(1, count + 1):
        desk.confirming.answer(acknowledgment(PUBACK, number))
    for confirmed in told:
        confirmed(Fate.SAFE)
    desk.engine.run_until(0.0)
    assert (desk.longest, desk.writes) == (4 * TOLD_AT_ONCE, 4)
    assert desk.told == b"".join(acknowledgment(PUBACK, n) for n in range(1, count + 1))


def test_one_that_is_late_closes_the_connection_of_a_client_of_3_1_1_once() -> None:
    desk = Desk(level=4)
    for number in (1, 2, 3):
        desk.confirming.publish(number, 1)
        desk.confirming.answer(acknowledgment(PUBACK, number))
    desk.engine.run_until(2 * WITHIN_S)
    assert desk.closed
    assert (desk.told, desk.unconfirmed) == (b"", 1)


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        (Fate.SAFE, acknowledgment(PUBREC, 1)),
        (Fate.REFUSED, acknowledgment(PUBREC, 1, b"\x83")),
    ],
)
def test_who_was_not_told_what_became_of_it_is_told_when_it_comes_again(
    fate: Fate, told: bytes
) -> None:
    """At QoS 2: the connection ended before its broker answered."""
    desk, later = Desk(), Desk()
    later.unreleased = desk.unreleased
    assert not desk.unreleased.is_repetition(1, dup=False)
    desk.confirming.publish(1, 2)(fate)
    desk.confirming.close()
    assert later.unreleased.is_repetition(1, dup=True)
    later.confirming.repeated(1)
    assert later.confirming.answer(acknowledgment(PUBREC, 1)) == told
    later.unreleased.release(1)
    assert not later.unreleased.unconfirmed


def test_the_longest_prefix_counts() -> None:
    settings = ConfirmSettings.of(
        "local", {"a": "fabric", "a/b": "local", "a/b/c": "fabric", "ä/": "fabric"}, 10.0, 60.0
    )
    assert settings.is_on
    topics = ("a", "ab", "a/", "a/b", "a/bx", "a/b/", "a/b/c", "a/b/cd", "b", "", "ä/x", "ä")
    confirmed = [topic for topic in topics if settings.confirms(topic.encode())]
    assert confirmed == ["a", "ab", "a/", "a/b/c", "a/b/cd", "ä/x"]
    assert not ConfirmSettings.of("local", {"a": "local"}, 10.0, 60.0).is_on
    assert ConfirmSettings.of("fabric", {"": "local"}, 10.0, 60.0).confirms(b"x") is False
