"""One Spark worker against two: the ratio of each round, and what makes it fail."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.bench_sim_spark import sweep, verdict

from isthmus.errors import LoadError


def row(
    number: int, workers: int, took_s: float, digest: str = "x", others_cores: float = 0.0
) -> dict[str, Any]:
    return {
        "round": number,
        "workers": workers,
        "took_s": took_s,
        "busiest_s": 12.0 / workers,
        "others_cores": others_cores,
        "digest": digest,
    }


def test_the_median_of_the_rounds_ratios_counts() -> None:
    rows = [
        row(0, 1, 18),
        row(0, 2, 10),
        row(1, 2, 10),
        row(1, 1, 17),
        row(2, 1, 30),
        row(2, 2, 20),
    ]
    found = verdict(rows)
    assert found["ratios"] == [1.8, 1.7, 1.5]
    assert (found["median"], found["least"], found["most"]) == (1.7, 1.5, 1.8)
    assert found["met"]
    assert not verdict([*rows, row(3, 1, 10), row(3, 2, 10), row(4, 1, 10), row(4, 2, 10)])["met"]


def test_rounds_that_others_disturbed_count_only_if_all_are_such() -> None:
    rows = [row(0, 1, 19), row(0, 2, 10), row(1, 2, 10), row(1, 1, 10, others_cores=0.9)]
    assert verdict(rows)["ratios"] == [1.9]
    assert verdict(rows)["quiet_rounds"] == 1
    alone = verdict(rows[2:])
    assert alone["ratios"] == [1.0]
    assert (alone["quiet_rounds"], alone["met"]) == (0, False)
    assert alone["busiest_median"] == 2.0


def test_other_results_fail_it() -> None:
    with pytest.raises(LoadError, match="counted differently"):
        verdict([row(0, 1, 2), row(0, 2, 1, "y")])


def test_the_sweep_has_all_patterns_of_both_methods() -> None:
    points = [point for task in sweep(quick=False) for point in task.points]
    assert {point.method for point in points} == {"proposed", "scribe"}
    assert len({(p.method, p.pattern, p.nodes) for p in points}) == 2 * 6 * 4
    assert {point.nodes for task in sweep(quick=True) for point in task.points} == {1_000_000}
