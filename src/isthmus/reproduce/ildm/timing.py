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

from isthmus.reproduce.ildm.experiments import Experiment

__all__ = ["FULL", "QUICK", "WARM_UP_S", "Times", "Timing", "forecast_s", "times_for"]

MEASUREMENTS: Final = 4.8
"""Of a guided search from a good guess: over it, at it, below it and that again."""
AROUND_S: Final = 1.0
"""Of a measurement beyond its duration: the common start, the drain, files, the summary."""
SESSION_S: Final = 3.5
"""Nodes and load processes, start and end."""
WARM_UP_S: Final = 6.0
"""Load without quotas, for brokers that compile as they run."""
MESSAGES: Final = 300
"""Published in a window at least."""
UNSTEADY: Final = 1.5
"""Times as long are brokers measured that collect garbage and compile, which a quota draws out."""
ROUNDS: Final = 3.0
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
class Times:
    """How long a measurement takes, and what of it does not count at each end."""

    duration_s: float
    trim_s: float


@dataclass(frozen=True, slots=True)
class Timing:
    """One way to spend the time."""

    full: Times
    shortest_s: float
    """What the duration may shrink to when time is short."""
    latency_interval_s: float
    budget_s: float | None
    """For all experiments together; None: as long as it takes."""
    end_s: float
    """For the indexes and the report."""


FULL: Final = Timing(
    full=Times(80.0, 10.0),
    shortest_s=80.0,
    latency_interval_s=1.0,
    budget_s=None,
    end_s=120.0,
)
QUICK: Final = Timing(
    full=Times(6.0, 0.6),
    shortest_s=2.3,
    latency_interval_s=0.05,
    budget_s=530.0,
    end_s=45.0,
)


def times_for(
    timing: Timing, left: Sequence[Experiment], first_interval_ns: int, spent_s: float
) -> Times:
    """For the first of `left`, which are still to be made, when `spent_s` have passed."""
    duration_s = timing.full.duration_s
    if timing.budget_s is not None:
        around_s = sum(map(_around_s, left))
        for_full_s = timing.budget_s - timing.end_s - spent_s - around_s
        each_s = for_full_s / (sum(map(_share, left)) * MEASUREMENTS) * _share(left[0])
        duration_s = round(min(max(each_s, timing.shortest_s), duration_s), 1)
    publishers = sum(place.publishers for place in left[0].scenario.place)
    window_s = max(MESSAGES / max(1, publishers), ROUNDS) * first_interval_ns / 1e9
    trim_s = timing.full.trim_s
    return Times(max(duration_s, round(window_s + 2 * trim_s, 1)), trim_s)


def forecast_s(
    timing: Timing, left: Sequence[Experiment], egress: float | None, spent_s: float
) -> list[float]:
    """How long each of `left` will take, roughly; `egress` is bare Mosquitto's where known."""
    forecast: list[float] = []
    for number, experiment in enumerate(left):
        first_interval_ns = experiment.first_interval_ns(egress)
        times = times_for(timing, left[number:], first_interval_ns, spent_s + sum(forecast))
        forecast.append(_around_s(experiment) + MEASUREMENTS * times.duration_s)
    return forecast


def _share(experiment: Experiment) -> float:
    return UNSTEADY if experiment.compiles_as_it_runs else 1.0


def _around_s(experiment: Experiment) -> float:
    """All but the duration of the measurements."""
    starts_s = max(START_S.get(broker, 2.0) for broker in experiment.brokers)
    warm_s = WARM_UP_S + AROUND_S if experiment.compiles_as_it_runs else 0.0
    return SESSION_S + starts_s + warm_s + MEASUREMENTS * AROUND_S
