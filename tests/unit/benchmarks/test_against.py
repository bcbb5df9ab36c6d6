"""Two trees held against each other: whose turn it is, and what is divided by what."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks.bench_against import Pair, turns_of
from benchmarks.relay.statistics import Run


def run(rate: float, node_us: float, quiet: int = 2) -> Run:
    cpu = {"near node": node_us / 2, "far node": node_us / 2, "near broker": 4.0}
    return Run(rate, rate, cpu, {}, 0.0, 2, quiet)


def test_a_drift_touches_both_alike() -> None:
    for number in range(4):
        turns = turns_of(number)
        assert Counter(turns) == {"before": 4, "after": 4}
        places = {tree: sum(at for at, each in enumerate(turns) if each == tree) for tree in turns}
        assert places["before"] == places["after"]
    assert turns_of(0)[0] != turns_of(1)[0]


def test_after_is_divided_by_before() -> None:
    pair = Pair(run(100.0, 2.0), run(98.0, 2.1))
    assert pair.ratio(lambda found: found.rate) == pytest.approx(0.98)
    assert pair.ratio(lambda found: found.cpu_us_per_delivered["near node"]) == pytest.approx(1.05)
    assert pair.quiet
    assert not Pair(run(1.0, 1.0), run(1.0, 1.0, quiet=0)).quiet
