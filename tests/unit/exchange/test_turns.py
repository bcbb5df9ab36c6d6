"""Slices of time, and who waits for the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.exchange.turns import SHORT_SLICE_S, SLICE_S, Turns
from support.hosts import HandHost


class Loop(HandHost):
    """The test says when the next turn begins."""

    def __init__(self) -> None:
        super().__init__()
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> Any:
        self.soon.append(callback)


def test_who_waits_is_served_in_turn() -> None:
    served: list[str] = []

    class Busy:
        def __init__(self, name: str, turns: Turns, left: int) -> None:
            self.name, self.turns, self.left = name, turns, left

        def go_on(self, ends_s: float) -> None:
            served.append(self.name)
            self.left -= 1
            if self.left:
                self.turns.wait(self)

    host = HandHost()
    turns = Turns(host)
    for name, left in (("a", 3), ("b", 1), ("c", 2)):
        turns.wait(Busy(name, turns, left))
    host.run()
    assert not turns
    assert served == ["a", "b", "c", "a", "c", "a"]


def test_what_comes_in_one_turn_shares_a_slice() -> None:
    """Many clients, each with a little less input than a slice, do not add up."""
    clock_s = 100.0
    host = Loop()
    soon = host.soon

    class Client:
        def go_on(self, ends_s: float) -> None:
            pass

    host.clock = lambda: clock_s
    turns = Turns(host)
    assert turns.slice_ends_s() == clock_s + SLICE_S
    assert not turns.used_up()
    clock_s += 0.8 * SLICE_S
    assert turns.slice_ends_s() == pytest.approx(clock_s + 0.2 * SLICE_S)
    clock_s += SLICE_S
    assert turns.slice_ends_s() == clock_s + SHORT_SLICE_S
    assert turns.used_up()
    soon.pop()()
    assert not soon
    assert not turns.used_up()
    assert turns.slice_ends_s() == clock_s + SLICE_S
    soon.pop()()
    turns.wait(Client())
    assert turns.used_up()
    assert turns.slice_ends_s() == clock_s + SHORT_SLICE_S
    soon.pop()()
    assert turns.used_up()  # who waited has just been served
    assert turns.slice_ends_s() == clock_s + SHORT_SLICE_S
    clock_s += 2 * SLICE_S
    assert turns.slice_ends_s() == clock_s + SLICE_S


def test_short_slices_need_not_notice_turns() -> None:
    """Many small reads, one after the other: nothing is scheduled for them."""
    clock_s = 100.0
    host = Loop()
    soon = host.soon

    host.clock = lambda: clock_s
    turns = Turns(host)
    turns.slice_ends_s()
    soon.pop()()
    for _ in range(100):
        clock_s += 0.0005
        assert turns.slice_ends_s() == clock_s + SLICE_S
    assert not soon
