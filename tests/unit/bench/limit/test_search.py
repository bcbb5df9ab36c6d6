"""Steps 1-5 of ILDM §5.3, interval by interval, and how a search can end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.bench.limit.search import Found, LimitSearch, SearchOptions, Trial, TrialOutcome
from isthmus.errors import LimitError

MS = 1_000_000


def outcome(
    ok: bool,
    *,
    kept_pace: bool = True,
    limited_by: str = "",
    egress: float = 100.0,
    narrow: bool = False,
) -> TrialOutcome:
    ratio = 1.0 if ok else 0.98 if narrow else 0.9
    return TrialOutcome("run", ok, ratio, egress / 10, egress, 0.0, kept_pace, limited_by)


def searched(
    options: SearchOptions, system: Callable[[Trial], TrialOutcome]
) -> tuple[list[Trial], Found]:
    search = LimitSearch(options)
    trials: list[Trial] = []
    while (trial := search.next()) is not None:
        trials.append(trial)
        search.record(trial, system(trial))
    assert search.limit is not None
    return trials, search.limit


def at_least(threshold_ms: float) -> Callable[[Trial], TrialOutcome]:
    return lambda trial: outcome(trial.interval_ns >= threshold_ms * MS)


def in_ms(trials: list[Trial]) -> list[float]:
    return [trial.interval_ns / MS for trial in trials]


def test_the_papers_example() -> None:
    trials, found = searched(SearchOptions(1 * MS), at_least(3.14))
    assert in_ms(trials[:3]) == [1, 2, 4]
    assert in_ms(trials[3:]) == pytest.approx([4 - 0.1 * k for k in range(1, 20)])
    assert found.verdict == "found"
    assert found.interval_ns == 3.2 * MS
    assert found.smaller_interval_ns == 3.1 * MS
    assert found.measurements == len(trials) == 22
    assert [trial.number for trial in trials] == list(range(22))


@pytest.mark.parametrize(
    ("first_ms", "step_1"),
    [
        (0.25, [0.25, 0.5, 1, 2, 4]),
        (1, [1, 2, 4]),
        (2, [2, 4]),
        (4, [4, 2]),
        (16, [16, 8, 4, 2]),
    ],
)
def test_step_1_reaches_the_same_x_from_either_side(first_ms: float, step_1: list[float]) -> None:
    trials, found = searched(SearchOptions(int(first_ms * MS)), at_least(3.14))
    assert in_ms(trials[:-19]) == step_1
    assert found.interval_ns == 3.2 * MS


@pytest.mark.parametrize(("threshold_ms", "result"), [(3.95, 4.0), (2.05, 2.1)])
def test_the_ends_of_the_grid_are_not_measured_twice(threshold_ms: float, result: float) -> None:
    trials, found = searched(SearchOptions(1 * MS), at_least(threshold_ms))
    assert in_ms(trials[3:]) == pytest.approx([4 - 0.1 * k for k in range(1, 20)])
    assert found.interval_ns == result * MS


# ---- noise -----------------------------------------------------------------------------------


def test_a_doubtful_failure_is_measured_again_and_once_only() -> None:
    def system(trial: Trial) -> TrialOutcome:
        narrow = trial.interval_ns in (3.1 * MS, 2.5 * MS)
        again = narrow and trial.number and trials[-1] == trial.interval_ns
        trials.append(trial.interval_ns)
        ok = trial.interval_ns >= 3.14 * MS or (trial.interval_ns == 3.1 * MS and again)
        return outcome(bool(ok), narrow=narrow)

    trials: list[int] = []
    _, found = searched(SearchOptions(1 * MS), system)
    assert found.interval_ns == 3.1 * MS
    assert found.measurements == len(trials) == 24
    assert trials.count(int(3.1 * MS)) == trials.count(int(2.5 * MS)) == 2


def test_the_minimum_counts_where_longer_intervals_fail_and_it_is_said() -> None:
    def system(trial: Trial) -> TrialOutcome:
        return outcome(trial.interval_ns >= 3.14 * MS and trial.interval_ns != 3.6 * MS)

    _, found = searched(SearchOptions(1 * MS), system)
    assert found.interval_ns == 3.2 * MS
    assert "1 longer intervals" in found.notes[0]
    assert "3.6 ms" in found.notes[0]


# ---- what bounded it -------------------------------------------------------------------------


def test_publishers_that_fall_behind_are_not_under_the_limit() -> None:
    def system(trial: Trial) -> TrialOutcome:
        return outcome(True, kept_pace=trial.interval_ns >= 3.14 * MS, limited_by="brokers")

    _, found = searched(SearchOptions(1 * MS), system)
    assert found.interval_ns == 3.2 * MS
    assert not found.is_lower_bound


@pytest.mark.parametrize(
    ("limited_by", "lower"),
    [("brokers", False), ("", False), ("load tool", True), ("machine", True), ("network", True)],
)
def test_what_gave_way_first(limited_by: str, lower: bool) -> None:
    def system(trial: Trial) -> TrialOutcome:
        ok = trial.interval_ns >= 3.14 * MS
        by = limited_by if trial.interval_ns == 3.1 * MS else "subscribers"
        return outcome(ok, limited_by="nothing" if ok else by)

    _, found = searched(SearchOptions(1 * MS), system)
    assert found.limited_by == limited_by
    assert found.is_lower_bound is lower
    assert bool(found.notes) is lower
    assert all(f"the {limited_by} gave way before the brokers" in note for note in found.notes)


def test_one_failure_of_the_brokers_own_shows_that_they_gave_way() -> None:
    def system(trial: Trial) -> TrialOutcome:
        ok = trial.interval_ns >= 3.14 * MS
        measured.append(trial.interval_ns)
        spoilt = measured.count(trial.interval_ns) == 1
        by = "nothing" if ok else "machine" if spoilt else "brokers"
        return outcome(ok, limited_by=by, narrow=True)

    measured: list[int] = []
    _, found = searched(SearchOptions(1 * MS), system)
    assert found.interval_ns == 3.2 * MS
    assert (found.limited_by, found.is_lower_bound) == ("brokers", False)


# ---- ends ------------------------------------------------------------------------------------


def test_a_limit_beyond_the_shortest_interval() -> None:
    trials, found = searched(SearchOptions(4 * MS, min_interval_ns=MS), at_least(0))
    assert in_ms(trials) == [4, 2, 1]
    assert (found.verdict, found.interval_ns, found.is_lower_bound) == ("beyond", MS, True)
    assert found.outcome is not None
    assert "beyond what was asked: 1 ms satisfies" in found.notes[-1]


def test_a_limit_beyond_the_longest_interval() -> None:
    options = SearchOptions(4 * MS, max_interval_ns=16 * MS)
    trials, found = searched(options, at_least(100))
    assert in_ms(trials) == [4, 8, 16]
    assert (found.verdict, found.interval_ns, found.outcome) == ("none", None, None)
    assert found.smaller_interval_ns == 16 * MS
    assert "not even 16 ms" in found.notes[-1]


def test_only_what_was_asked_for_can_be_recorded() -> None:
    search = LimitSearch(SearchOptions(MS))
    with pytest.raises(LimitError, match="expected Trial"):
        search.record(Trial(0, 2 * MS), outcome(True))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"first_interval_ns": 1_000}, "from 0.05 to 60000 ms"),
        ({"max_interval_ns": 10_000}, "not above the longest"),
        ({"min_interval_ns": 1}, "40 ns or more"),
    ],
)
def test_wrong_options(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(LimitError, match=words):
        SearchOptions(**{"first_interval_ns": MS, **wrong})
