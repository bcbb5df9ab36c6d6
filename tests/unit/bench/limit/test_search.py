"""Steps 1-5 of ILDM §5.3, interval by interval, and how a search can end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.bench.limit.search import Found, LimitSearch, Outcome, SearchOptions, Times, Trial
from isthmus.errors import LimitError

MS = 1_000_000
SHORT = Times(2.0, 0.5)


def outcome(
    ok: bool, *, kept_pace: bool = True, limited_by: str = "", egress: float = 100.0
) -> Outcome:
    ratio = 1.0 if ok else 0.9
    return Outcome("run", ok, ratio, egress / 10, egress, 0.0, kept_pace, limited_by)


def searched(
    options: SearchOptions, system: Callable[[Trial], Outcome]
) -> tuple[list[Trial], Found]:
    search = LimitSearch(options)
    trials: list[Trial] = []
    while (trial := search.next()) is not None:
        trials.append(trial)
        search.record(trial, system(trial))
    assert search.limit is not None
    return trials, search.limit


def at_least(threshold_ms: float) -> Callable[[Trial], Outcome]:
    return lambda trial: outcome(trial.interval_ns >= threshold_ms * MS)


def in_ms(trials: list[Trial]) -> list[float]:
    return [trial.interval_ns / MS for trial in trials]


def test_the_papers_example() -> None:
    trials, found = searched(SearchOptions(1 * MS, coarse=SHORT), at_least(3.14))
    assert in_ms(trials[:3]) == [1, 2, 4]
    assert all(trial.coarse for trial in trials[:3])
    assert in_ms(trials[3:]) == pytest.approx([4 - 0.1 * k for k in range(21)])
    assert not any(trial.coarse for trial in trials[3:])
    assert found.verdict == "found"
    assert found.interval_ns == 3.2 * MS
    assert found.smaller_interval_ns == 3.1 * MS
    assert found.measurements == len(trials) == 24
    assert [trial.number for trial in trials] == list(range(24))


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
    options = SearchOptions(int(first_ms * MS), bisect=True, coarse=SHORT)
    trials, found = searched(options, at_least(3.14))
    assert in_ms([trial for trial in trials if trial.coarse]) == step_1
    assert found.interval_ns == 3.2 * MS


def test_bisection_measures_five_and_no_end_twice() -> None:
    trials, found = searched(SearchOptions(1 * MS, bisect=True, coarse=SHORT), at_least(3.14))
    assert in_ms(trials) == [1, 2, 4, 3.0, 3.5, 3.2, 3.1]
    assert found.interval_ns == 3.2 * MS


@pytest.mark.parametrize(
    ("threshold_ms", "last", "result"), [(3.95, [3.9, 4.0], 4.0), (2.05, [2.1, 2.0], 2.1)]
)
def test_bisection_measures_an_end_at_length_before_it_counts(
    threshold_ms: float, last: list[float], result: float
) -> None:
    options = SearchOptions(1 * MS, bisect=True, coarse=SHORT)
    trials, found = searched(options, at_least(threshold_ms))
    assert in_ms(trials[-2:]) == last
    assert not trials[-1].coarse
    assert found.interval_ns == result * MS


def test_without_a_coarse_step_1_its_measurements_count_in_step_4() -> None:
    trials, found = searched(SearchOptions(1 * MS), at_least(3.95))
    assert in_ms(trials[3:]) == pytest.approx([4 - 0.1 * k for k in range(1, 20)])
    assert found.interval_ns == 4 * MS
    assert not any(trial.coarse for trial in trials)


# ---- noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bisect", [False, True])
def test_step_4_may_find_x_itself_not_under_the_limit(bisect: bool) -> None:
    def system(trial: Trial) -> Outcome:
        return outcome(trial.interval_ns >= (3 if trial.coarse else 5) * MS)

    options = SearchOptions(1 * MS, bisect=bisect, coarse=SHORT)
    trials, found = searched(options, system)
    assert found.interval_ns == 5 * MS
    assert found.notes == (
        "measured at full length 4 ms does not satisfy Definition 1, against step 1",
    )
    assert [trial.interval_ns for trial in trials].count(4 * MS) == 2


@pytest.mark.parametrize("bisect", [False, True])
def test_step_4_may_find_half_of_x_under_the_limit(bisect: bool) -> None:
    def system(trial: Trial) -> Outcome:
        return outcome(trial.interval_ns >= (3 if trial.coarse else 1.52) * MS)

    trials, found = searched(SearchOptions(8 * MS, bisect=bisect, coarse=SHORT), system)
    assert found.interval_ns == 1.55 * MS
    assert found.notes == ("measured at full length 2 ms satisfies Definition 1, against step 1",)
    assert in_ms(trials[:3]) == [8, 4, 2]


def test_short_and_long_measurements_that_never_agree() -> None:
    def system(trial: Trial) -> Outcome:
        return outcome(trial.coarse or trial.interval_ns > 10**12)

    _, found = searched(SearchOptions(1 * MS, coarse=SHORT, corrections=2, bisect=True), system)
    assert found.verdict == "unsettled"
    assert found.interval_ns is None
    assert found.is_lower_bound
    assert len(found.notes) == 4
    assert "given up after 2 corrections" in found.notes[-1]


def test_the_majority_of_repeats_decides_and_no_more_than_needed_are_made() -> None:
    def system(trial: Trial) -> Outcome:
        under = trial.interval_ns >= 3.14 * MS
        wrong = not trial.coarse and trial.repeat == 1  # every second measurement is wrong
        return outcome(under != wrong, egress=100.0 + trial.repeat)

    options = SearchOptions(1 * MS, bisect=True, coarse=SHORT, repeats=3)
    trials, found = searched(options, system)
    assert found.interval_ns == 3.2 * MS
    assert in_ms(trials) == [1, 2, 4, *3 * [3.0], *3 * [3.5], *3 * [3.2], *3 * [3.1]]
    assert found.outcome is not None
    assert found.outcome.egress == 102.0  # of 100 and 102 the upper median
    trials, _ = searched(options, at_least(3.14))
    assert in_ms(trials) == [1, 2, 4, *2 * [3.0], *2 * [3.5], *2 * [3.2], *2 * [3.1]]


def test_the_minimum_counts_where_longer_intervals_fail_and_it_is_said() -> None:
    def system(trial: Trial) -> Outcome:
        return outcome(trial.interval_ns >= 3.14 * MS and trial.interval_ns != 3.6 * MS)

    _, found = searched(SearchOptions(1 * MS), system)
    assert found.interval_ns == 3.2 * MS
    assert "1 longer intervals" in found.notes[0]
    assert "3.6 ms" in found.notes[0]


# ---- what bounded it -------------------------------------------------------------------------


def test_publishers_that_fall_behind_are_not_under_the_limit() -> None:
    def system(trial: Trial) -> Outcome:
        return outcome(True, kept_pace=trial.interval_ns >= 3.14 * MS, limited_by="brokers")

    _, found = searched(SearchOptions(1 * MS, bisect=True), system)
    assert found.interval_ns == 3.2 * MS
    assert not found.is_lower_bound


@pytest.mark.parametrize(
    ("limited_by", "lower"),
    [("brokers", False), ("", False), ("load tool", True), ("machine", True), ("network", True)],
)
def test_what_gave_way_first(limited_by: str, lower: bool) -> None:
    def system(trial: Trial) -> Outcome:
        ok = trial.interval_ns >= 3.14 * MS
        by = limited_by if trial.interval_ns == 3.1 * MS else "subscribers"
        return outcome(ok, limited_by="nothing" if ok else by)

    _, found = searched(SearchOptions(1 * MS, bisect=True), system)
    assert found.limited_by == limited_by
    assert found.is_lower_bound is lower
    assert bool(found.notes) is lower
    assert all(f"the {limited_by} gave way before the brokers" in note for note in found.notes)


def test_a_measurement_that_something_else_spoilt_has_no_vote() -> None:
    spoilt = ["load tool", "machine", "brokers"]

    def system(trial: Trial) -> Outcome:
        if trial.interval_ns == 3.2 * MS:  # under the limit, but for the load tool
            return outcome(trial.repeat > 1, limited_by="load tool")
        ok = trial.interval_ns >= 3.14 * MS
        return outcome(ok, limited_by="nothing" if ok else spoilt[min(trial.repeat, 2)])

    trials, found = searched(SearchOptions(1 * MS, bisect=True, coarse=SHORT, repeats=3), system)
    assert found.interval_ns == 3.2 * MS
    assert (found.limited_by, found.is_lower_bound) == ("brokers", False)
    assert in_ms(trials) == [1, 2, 4, *4 * [3.0], *2 * [3.5], *4 * [3.2], *4 * [3.1]]


def test_what_spoils_every_measurement_is_what_gave_way() -> None:
    def system(trial: Trial) -> Outcome:
        ok = trial.interval_ns >= 3.14 * MS
        return outcome(ok, limited_by="nothing" if ok else "machine")

    trials, found = searched(SearchOptions(1 * MS, bisect=True, coarse=SHORT, repeats=3), system)
    assert found.interval_ns == 3.2 * MS
    assert (found.limited_by, found.is_lower_bound) == ("machine", True)
    assert in_ms(trials) == [1, 2, 4, *3 * [3.0], *2 * [3.5], *2 * [3.2], *3 * [3.1]]


# ---- ends ------------------------------------------------------------------------------------


def test_a_limit_beyond_the_shortest_interval() -> None:
    options = SearchOptions(4 * MS, min_interval_ns=MS, coarse=SHORT)
    trials, found = searched(options, at_least(0))
    assert in_ms(trials) == [4, 2, 1, 1]
    assert not trials[-1].coarse
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
        search.record(Trial(0, 2 * MS, False, 0), outcome(True))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"repeats": 2}, "must be odd"),
        ({"repeats": -1}, "must be odd"),
        ({"first_interval_ns": 1_000}, "from 0.05 to 60000 ms"),
        ({"max_interval_ns": 10_000}, "not above the longest"),
        ({"min_interval_ns": 1}, "40 ns or more"),
        ({"corrections": -1}, "0 or more"),
        ({"coarse": Times(2.0, 1.0)}, "nothing is left"),
    ],
)
def test_wrong_options(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(LimitError, match=words):
        SearchOptions(**{"first_interval_ns": MS, **wrong})
