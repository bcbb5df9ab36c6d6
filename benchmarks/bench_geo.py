"""Gateways of `geo`: the look-up, coverings, one broker against the relay, four against one.

    python benchmarks/bench_geo.py [--rounds 5] [--quick] [--out FILE] [--docs]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import parser_of, run
from benchmarks.fabric.crossing import palindrome
from benchmarks.geo.covering import Covering, measure_covering
from benchmarks.geo.load import Crowd, connect_crowd
from benchmarks.geo.lookup import Lookup, measure_lookup
from benchmarks.geo.sites import Paths, slow_paths, unlimited_paths
from benchmarks.relay.processes import cpu_ns, machine_busy_ns
from benchmarks.relay.report import conclude, machine_facts
from benchmarks.relay.saturation import ClosedLoop, saturate
from benchmarks.relay.statistics import Run, Slice, Target, pool
from benchmarks.relay.verdict import Figures, doubts_of

from isthmus.errors import QuotaUnavailable

__all__ = ["main"]

CROWDS = (
    Crowd("QoS 0, 10 subscribers", 0, 10, 10),
    Crowd("QoS 0, 1 subscriber", 0, 10, 1),
    Crowd("QoS 1, 10 subscribers", 1, 10, 10),
    Crowd("QoS 1, 1 subscriber", 1, 10, 1),
)
SLOW = Crowd("slow brokers", 0, 10, 10)
NEVER_SLOWER, OF_FOUR, LOOKUP_US, COVERING_MS = 0.9, 3.5, 1.0, 10.0

Runs = Mapping[str, Run]
"""By path."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run of the benchmark does."""

    rounds: int = 5
    cpu: float = 0.05
    """Cores of a slow broker."""
    closed: ClosedLoop = field(default_factory=lambda: ClosedLoop(slices=3))
    slow: ClosedLoop = field(
        default_factory=lambda: ClosedLoop(window=4000, warmup_s=1.0, slices=3, patience=1)
    )


@dataclass(frozen=True, slots=True)
class Round:
    """Of everything that is measured."""

    lookup: Lookup
    covering: Covering
    before_one: Mapping[str, Runs]
    """`relay` and `gateway`, by crowd."""
    slow: Runs | None
    """`direct`, `one` and `four`; None without quotas."""

    @property
    def runs(self) -> list[Run]:
        found = [one for runs in self.before_one.values() for one in runs.values()]
        return [*found, *(self.slow or {}).values()]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    plan = Plan()
    if options.quick:
        closed = replace(plan.closed, warmup_s=0.2, slices=2, slice_s=0.3, patience=2)
        plan = replace(plan, rounds=3, closed=closed)
    if options.rounds is not None:
        plan = replace(plan, rounds=options.rounds)
    if options.cpu is not None:
        plan = replace(plan, cpu=options.cpu)
    return run(
        "geo",
        140,
        lambda console: _bench(plan, options.out, options.page, console),
        check=options.check,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    description = __doc__.splitlines()[0]
    parser = parser_of("geo", description, "about 1 minute", "geo-performance.md", loops=False)
    parser.add_argument("--cpu", type=float, help="cores of a slow broker; default 0.05")
    return parser.parse_args(arguments)


def _bench(plan: Plan, out: Path, page: Path | None, console: Console) -> bool:
    machine = machine_facts(console)
    began = time.perf_counter()
    doubts: list[str] = []
    rounds: list[Round] = []
    for number in range(plan.rounds):
        rounds.append(_round(plan, number, doubts))
        console.print(f"round {number + 1} of {plan.rounds}: {_line(rounds[-1])}")
    figures = _figures(rounds)
    parts: dict[str, Any] = {
        "machine": machine,
        "plan": asdict(plan),
        "took_s": round(time.perf_counter() - began, 1),
        "doubts": [
            *dict.fromkeys(doubts),
            *doubts_of([one for each in rounds for one in each.runs]),
        ],
        "rounds": [asdict(one) for one in rounds],
    }
    return conclude(console, out, parts, figures.found, _targets(figures), page=page)


# ---- one round ---------------------------------------------------------------------------------


def _round(plan: Plan, number: int, doubts: list[str]) -> Round:
    lookup, covering = measure_lookup(number), measure_covering()
    gc.collect()
    gc.disable()  # a collection in the generator would be taken for a delay of the path
    try:
        before_one: dict[str, Runs] = {}
        for crowd in CROWDS:
            with unlimited_paths() as paths:
                before_one[crowd.name] = _measure(paths, crowd, plan.closed, number)
        try:
            with slow_paths(plan.cpu) as paths:
                slow = _measure(paths, SLOW, plan.slow, number)
        except QuotaUnavailable as problem:
            doubts.append(f"slow brokers were not measured: {problem}")
            slow = None
    finally:
        gc.enable()
    return Round(lookup, covering, before_one, slow)


def _measure(paths: Paths, crowd: Crowd, closed: ClosedLoop, number: int) -> Runs:
    """Each path at saturation, there and back; its slices pooled."""
    slices: dict[str, list[Slice]] = {path: [] for path in paths.ports}
    for path in palindrome(tuple(paths.ports), number):

        def clocks(pids: Mapping[str, int] = paths.pids[path]) -> Mapping[str, int]:
            used = {name: cpu_ns(pid) for name, pid in pids.items()}
            return used | {"generator": time.process_time_ns(), "machine": machine_busy_ns()}

        with connect_crowd(crowd, paths.ports[path]) as load:
            slices[path] += saturate(load, closed, clocks)
    return {path: pool(parts) for path, parts in slices.items()}


def _line(one: Round) -> str:
    shown = [f"look-up {one.lookup.hot_us:.3f} µs, cold {one.lookup.cold_us:.2f} µs"]
    for name, runs in one.before_one.items():
        relay, gateway = runs["relay"], runs["gateway"]
        shown.append(
            f"{name}: {relay.rate:,.0f}/s, gateway {gateway.rate:,.0f}/s = "
            f"{gateway.rate / relay.rate:.3f}"
        )
    if one.slow is not None:
        rates = {path: each.rate for path, each in one.slow.items()}
        shown.append(
            ", ".join(f"{path} {rate:,.0f}/s" for path, rate in rates.items())
            + f" = {rates['four'] / rates['direct']:.2f}, {rates['four'] / rates['one']:.2f}"
        )
    return "; ".join(shown)


# ---- figures and targets -----------------------------------------------------------------------


def _figures(rounds: Sequence[Round]) -> Figures[Round]:
    figures = Figures(rounds)

    def add(name: str, unit: str, read: Any, quiet: Any = lambda _: True) -> None:
        figures.add(name, unit, quiet, read)

    add("look-up, hot", "µs", lambda one: one.lookup.hot_us)
    add("look-up, cold", "µs", lambda one: one.lookup.cold_us)
    add("look-up, the first time", "µs", lambda one: one.lookup.first_us)
    add("table of 100,000 cells, built in", "s", lambda one: one.lookup.table.build_s)
    add("table of 100,000 cells, memory", "MiB", lambda one: one.lookup.table.memory_mib)
    for key, name in (
        ("world_ms", "circle of 15 km on the whole Earth"),
        ("world_slowest_ms", "circle of 15 km on the whole Earth, slowest city"),
        ("own_area_ms", "circle of 15 km in an area of 1 degree"),
        ("own_area_slowest_ms", "circle of 15 km in an area of 1 degree, slowest city"),
    ):
        add(name, "ms", lambda one, key=key: getattr(one.covering, key))
    for key, name in (
        ("world_filters", "its filters, the whole Earth"),
        ("own_area_filters", "its filters, an area of 1 degree"),
    ):
        add(name, "filters", lambda one, key=key: getattr(one.covering, key))
    for crowd in CROWDS:
        _add_crowd(figures, crowd.name)
    if all(one.slow is not None for one in rounds):
        for path in ("direct", "one", "four"):
            add(f"rate {path}, slow brokers", "msg/s", lambda one, p=path: one.slow[p].rate)
        add("four / direct", "x", lambda one: one.slow["four"].rate / one.slow["direct"].rate)
        add("four / one", "x", lambda one: one.slow["four"].rate / one.slow["one"].rate)
        add(
            "node's cores before four slow brokers",
            "cores",
            lambda one: one.slow["four"].cores["node"],
        )
        add(
            "load's cores before four slow brokers",
            "cores",
            lambda one: one.slow["four"].cores["generator"],
        )
    return figures


def _add_crowd(figures: Figures[Round], crowd: str) -> None:
    def quiet(one: Round) -> bool:
        return all(each.quiet_slices for each in one.before_one[crowd].values())

    def add(name: str, unit: str, read: Any) -> None:
        figures.add(f"{name}, {crowd}", unit, quiet, read)

    for path in ("relay", "gateway"):
        add(f"rate {path}", "msg/s", lambda one, p=path: one.before_one[crowd][p].rate)
        add(
            f"CPU of the node, {path}",
            "µs/delivered",
            lambda one, p=path: one.before_one[crowd][p].cpu_us_per_delivered["node"],
        )
    add(
        "rate gateway / relay",
        "x",
        lambda one: one.before_one[crowd]["gateway"].rate / one.before_one[crowd]["relay"].rate,
    )


def _targets(figures: Figures[Round]) -> list[Target]:
    def median(name: str) -> float | None:
        figure = figures.found.get(name)
        return None if figure is None else figure.spread.median

    return [
        Target("look-up with 100,000 cells, hot", "µs", median("look-up, hot"), LOOKUP_US),
        Target(
            "covering a city-sized circle, k = 12",
            "ms",
            median("circle of 15 km on the whole Earth, slowest city"),
            COVERING_MS,
            note="the Earth's cells, the slowest of seven cities",
        ),
        Target(
            "the same in an area of one degree",
            "ms",
            median("circle of 15 km in an area of 1 degree, slowest city"),
            COVERING_MS,
            note="27 m wide cells, thousands of filters, the slowest of seven cities",
        ),
        *(
            Target(
                f"gateway / relay, {crowd.name}",
                "x",
                median(f"rate gateway / relay, {crowd.name}"),
                NEVER_SLOWER,
                at_least=True,
            )
            for crowd in CROWDS
        ),
        Target(
            "four emulated servers / one",
            "x",
            median("four / direct"),
            OF_FOUR,
            at_least=True,
            note="clients at the one broker itself, without a node",
        ),
        Target(
            "four emulated servers / one behind a gateway",
            "x",
            median("four / one"),
            OF_FOUR,
            at_least=True,
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
