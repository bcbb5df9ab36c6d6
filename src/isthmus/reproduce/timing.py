"""How long the measurements of an experiment last, and how long all of it will take.

The paper's last 80 s, with 10 s cut at each end.  The quick ones must all end within ten minutes on
two cores, so they share what time there is: each experiment gets its part of what is left.  Two
bounds hold whatever the plan says, because below them Definition 1 could not be judged: a window
holds several messages of every publisher, and enough messages of all of them together that one in
flight at its edge does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from isthmus.bench.limit import Times
from isthmus.reproduce.experiments import Experiment

__all__ = ["FULL", "QUICK", "Lengths", "Timing", "forecast_s", "lengths_for"]

FULL_MEASUREMENTS: Final = 5
COARSE_MEASUREMENTS: Final = 2
"""Of a search by bisection from a good first guess."""
AROUND_S: Final = 1.6
"""Of a measurement beyond its duration: the common start, the drain, files, the summary."""
SESSION_S: Final = 4.0
"""Nodes and load processes, start and end."""
MESSAGES: Final = 300
"""Published in a window at least; in step 1, which only looks for the power of two, a quarter."""
ROUNDS: Final = 2.0
"""Messages of each publisher in a window at least."""

START_S: Final = {
    "mosquitto": 0.2,
    "embedded": 0.5,
    "aedes": 0.5,
    "moquette": 2.0,
    "ejabberd": 3.0,
    "hivemq": 6.0,
    "activemq": 2.0,
    "rabbitmq": 10.0,
}
"""Typical start and stop of a broker, for the plan only."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One way to spend the time."""

    coarse: Times
    full: Times
    shortest_s: float
    """What the duration of `full` may shrink to when time is short."""
    latency_interval_s: float
    budget_s: float | None
    """For all experiments together; None: as long as it takes."""
    end_s: float
    """For the indexes and the report."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of the measurements of one experiment."""

    coarse: Times
    full: Times


FULL: Final = Timing(
    coarse=Times(20.0, 5.0),
    full=Times(80.0, 10.0),
    shortest_s=80.0,
    latency_interval_s=1.0,
    budget_s=None,
    end_s=120.0,
)
QUICK: Final = Timing(
    coarse=Times(1.5, 0.3),
    full=Times(4.0, 0.5),
    shortest_s=2.4,
    latency_interval_s=0.05,
    budget_s=540.0,
    end_s=45.0,
)


def lengths_for(
    timing: Timing, left: Sequence[Experiment], first_interval_ns: int, spent_s: float
) -> Lengths:
    """For the first of `left`, which are still to be made, when `spent_s` have passed."""
    duration_s = timing.full.duration_s
    if timing.budget_s is not None:
        around_s = sum(_around_s(timing, each) for each in left)
        for_full_s = timing.budget_s - timing.end_s - spent_s - around_s
        each_s = round(for_full_s / (len(left) * FULL_MEASUREMENTS), 1)
        duration_s = min(max(each_s, timing.shortest_s), duration_s)
    publishers = sum(place.publishers for place in left[0].scenario.place)
    each_s = first_interval_ns / 1e9 / max(1, publishers)
    rounds_s = ROUNDS * first_interval_ns / 1e9
    return Lengths(
        _at_least(timing.coarse, max(MESSAGES / 4 * each_s, rounds_s)),
        _at_least(Times(duration_s, timing.full.trim_s), max(MESSAGES * each_s, rounds_s)),
    )


def forecast_s(
    timing: Timing, left: Sequence[Experiment], egress: float | None, spent_s: float
) -> list[float]:
    """How long each of `left` will take, roughly; `egress` is bare Mosquitto's where known."""
    forecast: list[float] = []
    for number, experiment in enumerate(left):
        first_interval_ns = experiment.first_interval_ns(egress)
        lengths = lengths_for(timing, left[number:], first_interval_ns, spent_s + sum(forecast))
        more_s = COARSE_MEASUREMENTS * (lengths.coarse.duration_s - timing.coarse.duration_s)
        full_s = FULL_MEASUREMENTS * lengths.full.duration_s
        forecast.append(_around_s(timing, experiment) + more_s + full_s)
    return forecast


def _at_least(times: Times, window_s: float) -> Times:
    """`times`, or longer so that the window is `window_s`."""
    return Times(max(times.duration_s, round(window_s + 2 * times.trim_s, 1)), times.trim_s)


def _around_s(timing: Timing, experiment: Experiment) -> float:
    """All but the duration of the measurements at full length."""
    starts_s = max(START_S.get(broker, 2.0) for broker in experiment.brokers)
    coarse_s = COARSE_MEASUREMENTS * timing.coarse.duration_s
    return SESSION_S + starts_s + coarse_s + (COARSE_MEASUREMENTS + FULL_MEASUREMENTS) * AROUND_S
