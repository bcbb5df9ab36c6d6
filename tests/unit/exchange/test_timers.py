"""Timers by key: one of a kind, and none after it was canceled."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import cast

import pytest

from isthmus.exchange.host import Host
from isthmus.exchange.timers import Timers
from support.hosts import HandHost


class Desk:
    """Timers on a virtual clock, and which have fired when."""

    def __init__(self) -> None:
        self.host = HandHost()
        self.timers = Timers(cast(Host, self.host), self._fired)
        self.fired: list[tuple[float, Hashable]] = []
        self.then: Callable[[Hashable], None] = lambda _: None

    def _fired(self, key: Hashable) -> None:
        self.fired.append((self.host.now(), key))
        self.then(key)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_it_fires_once_when_its_time_has_come(desk: Desk) -> None:
    desk.timers.set_timer(2.0, "a")
    desk.timers.set_timer(1.0, ("b", 7))
    desk.host.run(0.5)
    assert desk.fired == []
    desk.host.run(100.0)
    assert desk.fired == [(1.0, ("b", 7)), (2.0, "a")]


@pytest.mark.parametrize("second_s", [0.5, 3.0])
def test_a_timer_of_the_same_key_is_replaced(desk: Desk, second_s: float) -> None:
    desk.timers.set_timer(1.0, "a")
    desk.timers.set_timer(second_s, "a")
    desk.host.run(100.0)
    assert desk.fired == [(second_s, "a")]


def test_one_that_runs_is_left_alone_by_set_timer_unless_set(desk: Desk) -> None:
    desk.timers.set_timer_unless_set(1.0, "a")
    desk.timers.set_timer_unless_set(0.5, "a")
    desk.timers.set_timer_unless_set(0.7, "b")
    desk.host.run(100.0)
    assert desk.fired == [(0.7, "b"), (1.0, "a")]


def test_one_that_has_fired_or_was_canceled_can_be_set_again(desk: Desk) -> None:
    desk.timers.set_timer_unless_set(1.0, "a")
    desk.host.run(1.0)
    desk.timers.set_timer_unless_set(1.0, "a")
    desk.timers.cancel_timer("a")
    desk.timers.set_timer_unless_set(3.0, "a")
    desk.host.run(100.0)
    assert desk.fired == [(1.0, "a"), (4.0, "a")]


def test_who_is_called_may_set_the_same_timer_again(desk: Desk) -> None:
    desk.then = lambda key: desk.timers.set_timer_unless_set(1.0, key)
    desk.timers.set_timer(1.0, "a")
    desk.host.run(3.5)
    assert desk.fired == [(1.0, "a"), (2.0, "a"), (3.0, "a")]


def test_a_canceled_timer_does_not_fire_and_the_others_do(desk: Desk) -> None:
    desk.timers.set_timer(1.0, "a")
    desk.timers.set_timer(1.0, "b")
    desk.timers.cancel_timer("a")
    desk.timers.cancel_timer("never set")
    desk.host.run(100.0)
    assert desk.fired == [(1.0, "b")]


def test_none_fires_after_all_were_canceled_not_even_of_the_same_moment(desk: Desk) -> None:
    desk.then = lambda _: desk.timers.cancel_all()
    for key in "abc":
        desk.timers.set_timer(1.0, key)
    desk.host.run(100.0)
    assert desk.fired == [(1.0, "a")]
    desk.timers.set_timer_unless_set(1.0, "b")
    desk.host.run(100.0)
    assert desk.fired == [(1.0, "a"), (101.0, "b")]
