"""The quick plan stays within its budget, and windows are long enough to judge by."""

from __future__ import annotations

from isthmus.reproduce.experiments import choose, experiments
from isthmus.reproduce.timing import FULL, MESSAGES, QUICK, forecast_s, lengths_for

ALL = experiments(quick=True)


def test_the_papers_times_are_the_papers() -> None:
    lengths = lengths_for(FULL, ALL, 10_000_000, 1e6)
    assert (lengths.full.duration_s, lengths.full.trim_s) == (80.0, 10.0)


def test_all_of_the_quick_plan_fits_into_ten_minutes() -> None:
    assert sum(forecast_s(QUICK, ALL, None, 0.0)) + QUICK.end_s < 600


def test_what_was_lost_is_made_up_for_within_bounds() -> None:
    one = choose(ALL, ["C-sf"])
    plenty = lengths_for(QUICK, one, 10_000_000, 0.0)
    late = lengths_for(QUICK, ALL[8:], 10_000_000, 400.0)
    assert plenty.full.duration_s == QUICK.full.duration_s
    assert late.full.duration_s == QUICK.shortest_s


def test_a_slow_broker_gets_longer_windows() -> None:
    slow = choose(ALL, ["single-embedded"])
    lengths = lengths_for(QUICK, slow, 800_000_000, 0.0)
    window_s = lengths.full.duration_s - 2 * lengths.full.trim_s
    assert window_s * 50 / 0.8 >= MESSAGES
    assert lengths.coarse.duration_s - 2 * lengths.coarse.trim_s >= 1.6
