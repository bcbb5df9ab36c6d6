"""The limit search on made-up systems: for any threshold, the shortest interval of the grid."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.limit.search import GRID, Found, LimitSearch, SearchOptions, Trial, TrialOutcome

MIN_NS = 50_000
MAX_NS = 60_000_000_000

intervals = st.one_of(st.integers(MIN_NS, 1_000_000), st.integers(MIN_NS, MAX_NS))


def monotone(threshold_ns: int, trial: Trial) -> TrialOutcome:
    """A system that keeps up with `threshold_ns` and anything longer."""
    ok = trial.interval_ns >= threshold_ns
    rate = 1e9 / trial.interval_ns
    limited_by = "nothing" if ok else "brokers"
    return TrialOutcome(
        f"r{trial.number}", ok, 1.0 if ok else 0.5, rate, rate, 0.0, True, limited_by
    )


def searched(options: SearchOptions, threshold_ns: int) -> Found:
    search = LimitSearch(options)
    while (trial := search.next()) is not None:
        assert search.limit is None
        search.record(trial, monotone(threshold_ns, trial))
        assert trial.number < 200, "endless"
    assert search.limit is not None
    return search.limit


def oracle(first_ns: int, threshold_ns: int) -> tuple[str, int | None]:
    """Steps 1-5 as they stand in the paper, over every doubling and halving of the first."""
    series = [first_ns]
    while series[-1] * 2 <= MAX_NS:
        series.append(series[-1] * 2)
    while series[0] // 2 >= MIN_NS:
        series.insert(0, series[0] // 2)
    x = min((at for at in series if at >= threshold_ns), default=None)
    if x is None:
        return "none", None
    if x == series[0]:
        return "beyond", x
    half = series[series.index(x) - 1]
    grid = [half + (x - half) * index // GRID for index in range(GRID + 1)]
    return "found", min(at for at in grid if at >= threshold_ns)


@given(intervals, intervals, st.booleans())
def test_any_threshold_is_found_by_either_way(
    first_ns: int, threshold_ns: int, guided: bool
) -> None:
    found = searched(SearchOptions(first_ns, guided=guided), threshold_ns)
    assert (found.verdict, found.interval_ns) == oracle(first_ns, threshold_ns)
    assert found.is_lower_bound == (found.verdict == "beyond")
    if found.verdict == "found":
        assert found.interval_ns is not None
        assert found.smaller_interval_ns is not None
        assert found.smaller_interval_ns < threshold_ns <= found.interval_ns
        # The paper's bound, but for the rounding to whole nanoseconds.
        assert found.interval_ns <= 1.05 * found.smaller_interval_ns + 1
        assert found.limited_by == "brokers"
        assert found.notes == ()


@given(intervals, intervals)
def test_how_many_measurements_it_takes(first_ns: int, threshold_ns: int) -> None:
    found = searched(SearchOptions(first_ns), threshold_ns)
    if found.verdict == "found":
        # Step 4 of the paper measures 21 intervals, of which step 1 has two already.
        assert found.measurements - (GRID - 1) >= 2


@given(st.integers(0, 2**32), st.floats(0, 0.5), st.booleans())
def test_a_noisy_system_ends_and_what_it_says_was_measured(
    seed: int, noise: float, guided: bool
) -> None:
    rng = random.Random(seed)
    search = LimitSearch(SearchOptions(1_000_000, guided=guided))
    made: dict[int, list[TrialOutcome]] = {}
    while (trial := search.next()) is not None:
        threshold_ns = int(700_000 * rng.uniform(1 - noise, 1 + noise))
        outcome = monotone(threshold_ns, trial)
        if not outcome.satisfies:
            outcome = replace(
                outcome,
                ratio=rng.choice([0.5, 0.98]),
                limited_by="load tool" if rng.random() < noise else "brokers",
            )
        made.setdefault(trial.interval_ns, []).append(outcome)
        assert len(made[trial.interval_ns]) <= 2, "a second chance is the last"
        search.record(trial, outcome)
        assert trial.number < 2 * (21 + 20), "endless"

    found = search.limit
    assert found is not None
    if found.verdict == "found":
        assert found.interval_ns is not None
        assert found.smaller_interval_ns is not None
        assert any(each.satisfies for each in made[found.interval_ns])
        assert not any(each.satisfies for each in made[found.smaller_interval_ns])
        assert found.outcome in made[found.interval_ns]
        assert found.smaller in made[found.smaller_interval_ns]
        assert found.interval_ns <= 1.05 * found.smaller_interval_ns + 1
        gave_way = {each.limited_by for each in made[found.smaller_interval_ns]}
        assert found.is_lower_bound == (gave_way == {"load tool"})


@given(intervals, intervals, st.booleans(), st.integers(0, 40))
def test_going_on_from_any_point_ends_the_same(
    first_ns: int, threshold_ns: int, guided: bool, stop: int
) -> None:
    options = SearchOptions(first_ns, guided=guided)
    search, again = LimitSearch(options), LimitSearch(options)
    done: list[tuple[Trial, TrialOutcome]] = []
    while (trial := search.next()) is not None:
        done.append((trial, monotone(threshold_ns, trial)))
        search.record(*done[-1])
    for trial, outcome in done[:stop]:
        again.record(trial, outcome)
    for trial, outcome in done[stop:]:
        assert again.next() == trial
        again.record(trial, outcome)
    assert again.limit == search.limit
