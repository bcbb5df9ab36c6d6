"""From rounds to figures, and from figures to the targets.

A figure is the median over the rounds that nobody disturbed while it was measured; over all
rounds when there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from benchmarks.relay.idle import Idle
from benchmarks.relay.rounds import PATHS, Round
from benchmarks.relay.statistics import Run, Spread, Target, spread

__all__ = [
    "Figure",
    "Figures",
    "doubts",
    "doubts_of",
    "figures_of",
    "round_document",
    "targets_of",
]

IDLE_CLIENTS = 5000
TIMES = "x"
PER_SECOND = "msg/s"
PER_DELIVERED = "µs/delivered"

Reading = Callable[[Round], float]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Figure:
    """A summary over the rounds, and how many of them it rests on."""

    unit: str
    rounds: int
    spread: Spread


class Figures(Generic[R]):
    """Medians and spreads over rounds, by name."""

    def __init__(self, rounds: Sequence[R]) -> None:
        self._rounds = rounds
        self.found: dict[str, Figure] = {}

    def add(
        self, name: str, unit: str, quiet: Callable[[R], bool], read: Callable[[R], float]
    ) -> None:
        """What `read` finds in the rounds that were `quiet`, or in all if none was."""
        used = [one for one in self._rounds if quiet(one)] or list(self._rounds)
        self.found[name] = Figure(unit, len(used), spread([read(one) for one in used]))


def figures_of(rounds: Sequence[Round]) -> dict[str, Figure]:
    """Median and spread over the rounds of all that the rounds measured."""
    figures = Figures(rounds)
    add = figures.add
    add("rate direct", PER_SECOND, _quiet, lambda r: r.saturated["direct"].rate)
    add("rate through node", PER_SECOND, _quiet, lambda r: r.saturated["node"].rate)
    add("rate ratio", TIMES, _quiet, lambda r: r.rate_ratio)
    add("rate direct, lazy", PER_SECOND, _quiet_lazy, lambda r: r.lazy["direct"].rate)
    add("rate through node, lazy", PER_SECOND, _quiet_lazy, lambda r: r.lazy["node"].rate)
    add("rate ratio, lazy", TIMES, _quiet_lazy, lambda r: r.lazy_rate_ratio)
    add("CPU broker, direct", PER_DELIVERED, _quiet, _cpu("direct", "broker"))
    add("CPU generator, direct", PER_DELIVERED, _quiet, _cpu("direct", "generator"))
    add("CPU broker, node", PER_DELIVERED, _quiet, _cpu("node", "broker"))
    add("CPU node, node", PER_DELIVERED, _quiet, _cpu("node", "node"))
    add("CPU generator, node", PER_DELIVERED, _quiet, _cpu("node", "generator"))
    add("node CPU / broker CPU, same run", TIMES, _quiet, lambda r: r.cpu_ratio("node"))
    add("node CPU / broker CPU, direct", TIMES, _quiet, lambda r: r.cpu_ratio("direct"))
    add("latency median, direct", "ms", _calm, lambda r: r.latency["direct"].median_us / 1000)
    add("latency median, node", "ms", _calm, lambda r: r.latency["node"].median_us / 1000)
    add("latency p99, direct", "ms", _calm, lambda r: r.latency["direct"].p99_us / 1000)
    add("latency p99, node", "ms", _calm, lambda r: r.latency["node"].p99_us / 1000)
    add("added median latency", "ms", _calm, lambda r: r.added_median_ms)
    return figures.found


def _quiet(one: Round) -> bool:
    return all(one.saturated[path].quiet_slices for path in PATHS)


def _quiet_lazy(one: Round) -> bool:
    return all(one.lazy[path].quiet_slices for path in PATHS)


def _calm(one: Round) -> bool:
    return all(one.latency[path].quiet for path in PATHS)


def _cpu(path: str, process: str) -> Reading:
    return lambda one: one.saturated[path].cpu_us_per_delivered[process]


def targets_of(
    figures: Mapping[str, Figure], listens_s: Sequence[float], idle: Idle | None
) -> list[Target]:
    """Every figure that was to be reached; the highest rate with either kind of subscriber."""
    against_direct = figures["node CPU / broker CPU, direct"].spread.median
    rss_mib, rss_note = None, "not measured"
    if idle is not None:
        rss_note = f"{idle.bytes_per_client:,.0f} B per client"
        if idle.clients >= IDLE_CLIENTS:
            rss_mib = idle.connected.rss_bytes / 2**20
        else:
            rss_note += f", with {idle.clients} clients only"
    return [
        Target(
            "highest rate, node / direct",
            TIMES,
            figures["rate ratio"].spread.median,
            0.95,
            at_least=True,
            note="subscribers wait for data, as clients do",
        ),
        Target(
            "highest rate, node / direct, lazy",
            TIMES,
            figures["rate ratio, lazy"].spread.median,
            0.95,
            at_least=True,
            note="subscribers never have to be woken",
        ),
        Target(
            "CPU per delivered, node / Mosquitto",
            TIMES,
            figures["node CPU / broker CPU, same run"].spread.median,
            0.6,
            note=f"{against_direct:.3f} against the direct run's Mosquitto",
        ),
        Target(
            "listens after",
            "s",
            max(listens_s),
            1.0,
            note=f"slowest; median {spread(listens_s).median:.3f} s",
        ),
        Target("added median latency", "ms", figures["added median latency"].spread.median, 0.3),
        Target(
            f"RSS with {IDLE_CLIENTS} idle clients",
            "MiB",
            rss_mib,
            80.0,
            note=rss_note,
        ),
    ]


def round_document(one: Round) -> dict[str, Any]:
    """A round as it stands in the file; what loses a message never becomes a round."""
    return asdict(one) | {
        "lost": 0,
        "limit": {path: run.limit for path, run in one.saturated.items()},
        "limit_lazy": {path: run.limit for path, run in one.lazy.items()},
        "rate_ratio": one.rate_ratio,
        "rate_ratio_lazy": one.lazy_rate_ratio,
        "cpu_ratio_same_run": one.cpu_ratio("node"),
        "cpu_ratio_direct": one.cpu_ratio("direct"),
        "added_median_ms": one.added_median_ms,
    }


def doubts(rounds: Sequence[Round]) -> list[str]:
    """What makes the figures doubtful, in words."""
    found = doubts_of(
        [run for one in rounds for kind in (one.saturated, one.lazy) for run in kind.values()]
    )
    paces = [pace for one in rounds for pace in one.latency.values()]
    noisy = sum(not pace.quiet for pace in paces)
    if noisy:
        found.append(f"other processes disturbed {noisy} of {len(paces)} latency runs")
    return found


def doubts_of(runs: Sequence[Run]) -> list[str]:
    """What makes the figures of `runs` doubtful."""
    found = []
    limited = sum("generator" in run.limit for run in runs)
    if limited:
        found.append(
            f"the load generator was at its limit in {limited} of {len(runs)} runs: "
            "their rates are lower bounds"
        )
    noisy = sum(not run.quiet_slices for run in runs)
    if noisy:
        found.append(f"other processes disturbed {noisy} of {len(runs)} runs throughout")
    return found
