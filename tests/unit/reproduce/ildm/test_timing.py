"""The quick plan stays within its budget, and windows are long enough to judge by."""

from __future__ import annotations

from isthmus.reproduce.ildm.experiments import choose, experiments
from isthmus.reproduce.ildm.timing import FULL, MESSAGES, QUICK, forecast_s, times_for

ALL = experiments(quick=True)


def test_the_papers_times_are_the_papers() -> None:
    times = times_for(FULL, ALL, 10_000_000, 1e6)
    assert (times.duration_s, times.trim_s) == (80.0, 10.0)


def test_all_of_the_quick_plan_fits_into_ten_minutes() -> None:
    assert sum(forecast_s(QUICK, ALL, None, 0.0)) + QUICK.end_s < 560


def test_what_was_lost_is_made_up_for_within_bounds() -> None:
    plenty = times_for(QUICK, choose(ALL, ["C-sf"]), 10_000_000, 0.0)
    late = times_for(QUICK, ALL[8:], 10_000_000, 400.0)
    assert plenty.duration_s == QUICK.full.duration_s
    assert late.duration_s == QUICK.shortest_s


def test_a_slow_broker_gets_longer_windows() -> None:
    times = times_for(QUICK, choose(ALL, ["single-embedded"]), 2_000_000_000, 0.0)
    assert (times.duration_s - 2 * times.trim_s) * 50 / 2.0 >= MESSAGES
