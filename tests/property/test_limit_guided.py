"""The guided search finds what steps 1 to 5 find, in fewer measurements."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.limit.search import Found, LimitSearch, SearchOptions, Trial, TrialOutcome

MIN_NS = 50_000
MAX_NS = 60_000_000_000

intervals = st.one_of(st.integers(MIN_NS, 1_000_000), st.integers(MIN_NS, MAX_NS))


def brokers(threshold_ns: int, trial: Trial, noise: random.Random | None = None) -> TrialOutcome:
    """Keep up with `threshold_ns` and anything longer; else forward as much as they can."""
    ratio = min(1.0, 0.99 * trial.interval_ns / threshold_ns)
    if noise is not None:
        ratio *= noise.uniform(0.98, 1.02)
    under = trial.interval_ns >= threshold_ns if noise is None else ratio >= 0.99
    rate = 1e9 / trial.interval_ns
    by = "nothing" if under else "brokers"
    return TrialOutcome(f"r{trial.number}", under, ratio, rate, rate * ratio, 0.0, True, by)


def searched(
    options: SearchOptions, threshold_ns: int, noise: random.Random | None = None
) -> Found:
    search = LimitSearch(options)
    while (trial := search.next()) is not None:
        search.record(trial, brokers(threshold_ns, trial, noise))
        assert trial.number < 100, "endless"
    assert search.limit is not None
    return search.limit


@given(intervals, intervals)
def test_the_same_limit_as_by_the_papers_steps(first_ns: int, threshold_ns: int) -> None:
    steps = searched(SearchOptions(first_ns), threshold_ns)
    guided = searched(SearchOptions(first_ns, guided=True), threshold_ns)
    assert (guided.verdict, guided.interval_ns, guided.smaller_interval_ns) == (
        steps.verdict,
        steps.interval_ns,
        steps.smaller_interval_ns,
    )
    assert guided.limited_by == steps.limited_by
    assert guided.is_lower_bound == steps.is_lower_bound


@given(st.integers(1_000_000, 1_000_000_000), st.floats(0.9, 1.1))
def test_a_good_guess_takes_few_measurements(threshold_ns: int, guess: float) -> None:
    found = searched(SearchOptions(round(threshold_ns * guess), guided=True), threshold_ns)
    assert found.verdict == "found"
    assert 2 <= found.measurements <= 6


@given(st.integers(1_000_000, 1_000_000_000), st.floats(0.05, 20.0))
def test_a_bad_guess_takes_no_more_than_bisection(threshold_ns: int, guess: float) -> None:
    found = searched(SearchOptions(round(threshold_ns * guess), guided=True), threshold_ns)
    assert found.verdict == "found"
    assert found.measurements <= 13


@given(intervals, intervals, st.randoms(use_true_random=False))
def test_noise_neither_keeps_it_going_nor_takes_its_proof(
    first_ns: int, threshold_ns: int, noise: random.Random
) -> None:
    found = searched(SearchOptions(first_ns, guided=True), threshold_ns, noise)
    if found.verdict == "found":
        assert found.outcome is not None
        assert found.outcome.satisfies
        assert found.smaller is not None
        assert not found.smaller.satisfies
        assert found.interval_ns is not None
        assert found.smaller_interval_ns is not None
        assert found.interval_ns <= 1.05 * found.smaller_interval_ns + 1


def test_publishers_that_were_held_back_point_nowhere_but_up() -> None:
    search = LimitSearch(SearchOptions(10_000_000, guided=True))
    tried = []
    while (trial := search.next()) is not None:
        tried.append(trial.interval_ns)
        paced = trial.interval_ns >= 14_000_000
        search.record(trial, TrialOutcome("r", True, 1.0, 1.0, 1.0, 0.0, paced, "brokers"))
    assert search.limit is not None
    assert search.limit.interval_ns == 14_000_000
    assert len(tried) <= 8


def test_a_doubtful_failure_has_a_second_chance() -> None:
    def outcomes(*ratios: float) -> LimitSearch:
        search = LimitSearch(SearchOptions(10_000_000, guided=True))
        for ratio in ratios:
            trial = search.next()
            assert trial is not None
            rate = 1e9 / trial.interval_ns
            under = ratio >= 0.99
            search.record(
                trial, TrialOutcome("r", under, ratio, rate, rate * ratio, 0.0, True, "brokers")
            )
        return search

    def next_ns(search: LimitSearch) -> int:
        trial = search.next()
        assert trial is not None
        return trial.interval_ns

    assert next_ns(outcomes(0.975)) == 10_000_000
    assert next_ns(outcomes(0.975, 1.0)) < 10_000_000
    assert next_ns(outcomes(0.975, 0.98)) > 10_000_000
    assert next_ns(outcomes(0.9)) > 10_000_000
    # So little came out after the first one had shown what is possible: that is doubtful too.
    just_below = next_ns(outcomes(1.0))
    assert next_ns(outcomes(1.0, 0.7)) == just_below
    assert next_ns(outcomes(1.0, 0.7, 1.0)) < just_below
    assert outcomes(1.0, 0.7, 0.7).next() is None
