"""Summaries: slices to one run, runs to a round, rounds to a median with its spread, targets.

A run is measured in slices.  A slice during which *other* processes of the machine took more
than `QUIET_CORES` says more about them than about the relay; it is left out, and counted.  If no
slice was quiet all are used, and the run says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "QUIET_CORES",
    "Run",
    "Slice",
    "Spread",
    "Target",
    "percentile",
    "pool",
    "slices_of",
    "spread",
]

QUIET_CORES = 0.15
BUSY_CORES = 0.93  # a single-threaded process that uses so much of a core is at its limit


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of a run: messages delivered and CPU time used by each process of the path.

    `cpu_ns` has the keys ``broker``, ``node`` and ``generator``, and ``machine`` for everything
    that ran, these included.
    """

    elapsed_s: float
    delivered: int
    cpu_ns: Mapping[str, int]

    @property
    def others_cores(self) -> float:
        """Cores that processes outside the path kept busy."""
        path = sum(ns for name, ns in self.cpu_ns.items() if name != "machine")
        return (self.cpu_ns["machine"] - path) / self.elapsed_s / 1e9

    @property
    def quiet(self) -> bool:
        """Whether nobody else disturbed."""
        return self.others_cores <= QUIET_CORES


@dataclass(frozen=True, slots=True)
class Run:
    """Pooled slices of one path (direct or through the node) in one round.

    `slices` were measured, `quiet_slices` of them used; if none was quiet, all were used.
    """

    rate: float  # delivered messages per second
    slowest_slice_rate: float
    cpu_us_per_delivered: Mapping[str, float]
    cores: Mapping[str, float]
    others_cores: float
    slices: int
    quiet_slices: int

    @property
    def limit(self) -> str:
        """What kept the rate from being higher, as far as CPU time tells."""
        at_limit = [name for name, used in self.cores.items() if used >= BUSY_CORES]
        return " and ".join(at_limit) if at_limit else "none at a full core"


def slices_of(
    push_until: Callable[[float], int],
    cpu_ns: Callable[[], Mapping[str, int]],
    wanted: int,
    slice_s: float,
    patience: int,
) -> list[Slice]:
    """Slices until `wanted` of them were quiet, at most `patience` times as many.

    `push_until` loads until that time of `time.perf_counter` and tells how much was done by then.
    """
    found: list[Slice] = []
    then, before = time.perf_counter(), cpu_ns()
    done = push_until(then)
    while sum(part.quiet for part in found) < wanted and len(found) < wanted * patience:
        now_done = push_until(then + slice_s)
        now, after = time.perf_counter(), cpu_ns()
        used = {name: after[name] - before[name] for name in after}
        found.append(Slice(now - then, now_done - done, used))
        then, before, done = now, after, now_done
    return found


def pool(slices: Sequence[Slice]) -> Run:
    """One run from the quiet ones of its slices."""
    quiet = [part for part in slices if part.quiet]
    used = quiet or list(slices)
    elapsed_s = sum(part.elapsed_s for part in used)
    delivered = sum(part.delivered for part in used)
    names = [name for name in used[0].cpu_ns if name != "machine"]
    cpu_ns = {name: sum(part.cpu_ns[name] for part in used) for name in names}
    return Run(
        rate=delivered / elapsed_s,
        slowest_slice_rate=min(part.delivered / part.elapsed_s for part in used),
        cpu_us_per_delivered={name: ns / delivered / 1000 for name, ns in cpu_ns.items()},
        cores={name: ns / elapsed_s / 1e9 for name, ns in cpu_ns.items()},
        others_cores=sum(part.others_cores * part.elapsed_s for part in used) / elapsed_s,
        slices=len(slices),
        quiet_slices=len(quiet),
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and how far the values lie around it."""

    median: float
    low: float
    high: float
    q1: float
    q3: float

    @property
    def iqr(self) -> float:
        """The width of the middle half."""
        return self.q3 - self.q1


def spread(values: Sequence[float]) -> Spread:
    """Median, extremes and quartiles of at least one value."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a spread needs at least one value")
    return Spread(
        statistics.median(ordered),
        ordered[0],
        ordered[-1],
        percentile(ordered, 25),
        percentile(ordered, 75),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the sorted values lie, interpolated linearly."""
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    at = (len(ordered) - 1) * percent / 100
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


@dataclass(frozen=True, slots=True)
class Target:
    """One figure that was to be reached; `value` is None if it could not be measured."""

    name: str
    unit: str
    value: float | None
    bound: float
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure was measured and reached."""
        if self.value is None:
            return False
        return self.value >= self.bound if self.at_least else self.value <= self.bound
