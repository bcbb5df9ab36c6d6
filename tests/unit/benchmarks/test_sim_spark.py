"""One Spark worker against two: the ratio of each round, and what makes it fail."""

from __future__ import annotations

import os
from typing import Any

import pytest
from benchmarks.bench_sim_spark import SEEDS, held_to, sweep, verdict

from isthmus.errors import LoadError


def row(
    number: int, workers: int, took_s: float, digest: str = "x", others_cores: float = 0.0
) -> dict[str, Any]:
    return {
        "round": number,
        "workers": workers,
        "took_s": took_s,
        "workers_s": [12.0 / workers] * workers,
        "own_s": 13.0,
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
    assert alone["cpu_median"] == 2.0
    assert (alone["others_least"], alone["others_most"]) == (0.0, 0.9)


def test_the_busiest_worker_bounds_the_ratio_by_processor_time() -> None:
    two = {**row(0, 2, 10), "workers_s": [8.0, 4.0]}
    assert verdict([row(0, 1, 19), two])["cpu_median"] == 13 / 8


def test_a_worker_has_one_core() -> None:
    before = os.sched_getaffinity(0)
    with held_to(1):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(LoadError, match="need 99999 cores"), held_to(99_999):
        pass


def test_other_results_fail_it() -> None:
    with pytest.raises(LoadError, match="counted differently"):
        verdict([row(0, 1, 2), row(0, 2, 1, "y")])


def test_the_sweep_has_all_patterns_of_both_methods() -> None:
    points = [point for task in sweep(quick=False) for point in task.points]
    assert {point.method for point in points} == {"proposed", "scribe"}
    assert len({(p.method, p.pattern, p.nodes) for p in points}) == 2 * 6 * 4
    # No task is so long that a second worker would have to wait for it.
    all_ = sweep(quick=False)
    assert len({task.seed for task in all_}) == len(SEEDS)
    assert max(task.cost for task in all_) < sum(task.cost for task in all_) / 15
    assert {point.nodes for task in sweep(quick=True) for point in task.points} == {1_000_000}
