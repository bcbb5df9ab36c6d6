"""Clock offsets: the true one is always within the error that is stated."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.coordinator.clocks import (
    FEWEST_ROUNDS,
    ROUNDS,
    Offset,
    Round,
    ask_clock,
    best,
    between,
)
from isthmus.bench.load import clock

delays = st.integers(0, 10**9)
offsets = st.integers(-(10**18), 10**18)


def one_round(asked_ns: int, offset_ns: int, there_ns: int, back_ns: int) -> Round:
    """A question that took `there_ns` one way and `back_ns` the other."""
    read_ns = asked_ns + there_ns
    return Round(asked_ns, read_ns - offset_ns, read_ns + back_ns)


@given(offsets, st.lists(st.tuples(delays, delays), min_size=1))
def test_the_true_offset_is_within_the_error(offset_ns: int, trips: list[tuple[int, int]]) -> None:
    found = best([one_round(10**18, offset_ns, there, back) for there, back in trips])
    assert abs(found.offset_ns - offset_ns) <= found.error_ns
    assert found.error_ns <= min(there + back for there, back in trips) // 2 + 1


@given(offsets, st.integers(-(10**6), 10**6), st.tuples(delays, delays), st.tuples(delays, delays))
def test_a_drifting_clock_is_within_the_error_all_the_time(
    offset_ns: int, drift_ns: int, first: tuple[int, int], last: tuple[int, int]
) -> None:
    before = best([one_round(10**18, offset_ns, *first)])
    after = best([one_round(2 * 10**18, offset_ns + drift_ns, *last)])
    found = between(before, after)
    for part in range(5):
        true_ns = offset_ns + drift_ns * part // 4
        assert abs(found.offset_ns - true_ns) <= found.error_ns + 1


def test_the_shortest_round_decides() -> None:
    slow, quick = one_round(1000, 77, 0, 5000), one_round(9000, 77, 20, 20)
    assert best([slow, quick]) == Offset(77, 21)


def test_asking_takes_many_rounds_and_few_of_a_slow_one() -> None:
    def rounds_of(step_ns: int) -> int:
        times = iter(range(0, step_ns * 1000, step_ns))
        asked = []

        def ask() -> int:
            asked.append(next(times))
            return asked[-1]

        found = ask_clock(ask, lambda: next(times))
        assert abs(found.offset_ns) <= found.error_ns
        return len(asked)

    assert rounds_of(1000) == ROUNDS
    assert rounds_of(200_000_000) == FEWEST_ROUNDS


def test_the_clock_is_the_systems_own_unless_it_is_shifted() -> None:
    assert clock.now_ns is time.time_ns
    code = (
        "import time; from isthmus.bench.load.clock import now_ns; print(now_ns() - time.time_ns())"
    )
    shifted = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, clock.SHIFT_VARIABLE: "-3600000000000"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert abs(int(shifted.stdout) + 3600 * 10**9) < 60 * 10**9
