"""Faults as they are made: in which order, with which record, and what if one cannot be made."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from isthmus.bench.coordinator.faults import MadeFault, Making
from isthmus.config.faults import Crash, Cut
from isthmus.errors import LoadError, ShapingFailed
from support.waiting import wait_for

CRASH = Crash(node="a", at_s=0.02, for_s=0.01)
CUT = Cut(source=("a", "b"), target=("c",), at_s=0.01, for_s=0.03)


class Rig:
    """Writes down what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.asked = 0

    def kill(self, node: str) -> None:
        self.done.append(f"kill {node}")

    def start_again(self, node: str) -> None:
        self.done.append(f"start {node}")

    def is_ready(self, node: str) -> bool:
        self.asked += 1
        return self.asked == 3

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        self.done.append(f"cut {len(list(ways))}")

    def heal(self, ways: Iterable[tuple[str, str]]) -> None:
        self.done.append(f"heal {len(list(ways))}")


def test_in_the_order_of_time_and_with_their_times() -> None:
    rig = Rig()
    with Making([CUT], [CRASH], rig, time.monotonic()) as making:
        assert making.over_for_s < 0
        wait_for(lambda: making.over_for_s >= 0, 10, "the faults")
        making.check()
    assert rig.done == ["cut 4", "kill a", "start a", "heal 4"]
    cut, crash = making.made
    assert (cut.fault, crash.fault) == (CUT, CRASH)
    assert cut.ended_ns is not None
    assert cut.ready_ns is None
    assert crash.ended_ns is not None
    assert crash.ready_ns is not None
    assert crash.began_ns < crash.ended_ns <= crash.ready_ns


def test_what_ends_goes_before_what_begins_at_the_same_time() -> None:
    rig = Rig()
    again = CUT.model_copy(update={"at_s": CUT.end_s})
    with Making([again, CUT], [], rig, time.monotonic()) as making:
        wait_for(lambda: making.over_for_s >= 0, 10, "the faults")
    assert rig.done == ["cut 4", "heal 4"] * 2
    assert [made.fault for made in making.made] == [CUT, again]


def test_one_that_cannot_be_made_fails_the_measurement() -> None:
    class Broken(Rig):
        def cut(self, ways: Iterable[tuple[str, str]]) -> None:
            raise ShapingFailed("is gone", "")

    with Making([CUT], [], Broken(), time.monotonic()) as making:

        def failed() -> bool:
            try:
                making.check()
            except ShapingFailed:
                return True
            return False

        wait_for(failed, 10, "the failure")
        assert making.over_for_s < 0


def test_without_faults_nothing_is_needed() -> None:
    with Making([], [], None, time.monotonic() - 1) as making:
        making.check()
        assert making.over_for_s >= 0
    with pytest.raises(LoadError, match="nobody is there to make them"):
        Making([CUT], [], None, 0.0)


def test_an_interrupted_measurement_makes_no_more() -> None:
    rig = Rig()
    with Making([CUT.model_copy(update={"at_s": 3600.0})], [], rig, time.monotonic()):
        pass
    assert rig.done == []


def test_in_words() -> None:
    s = 1_000_000_000
    crash = MadeFault(CRASH, 2 * s, 3 * s, 4 * s)
    assert (
        crash.in_words(s)
        == "a was killed at 1.000 s, started again at 2.000 s and ready at 3.000 s"
    )
    assert MadeFault(CRASH, 2 * s).in_words(s).endswith("again at never and ready at never")
    cut = MadeFault(CUT, 2 * s, 3 * s)
    assert cut.in_words(s) == "nothing passed between a, b and c from 1.000 s to 2.000 s"
    one_way = MadeFault(CUT.model_copy(update={"one_way": True}), 2 * s, 3 * s)
    assert one_way.in_words(s) == "nothing passed from a, b to c from 1.000 s to 2.000 s"
