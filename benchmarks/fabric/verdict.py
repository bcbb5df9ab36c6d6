"""From rounds to figures, and from figures to the targets.

A figure is the median over the rounds that nobody disturbed while it was measured; over all
rounds when there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.fabric.local import FAR
from benchmarks.fabric.million import Million
from benchmarks.fabric.rounds import Round
from benchmarks.fabric.sites import PATHS
from benchmarks.relay.statistics import Run, Target
from benchmarks.relay.verdict import Figure, Figures, doubts_of

__all__ = ["doubts", "figures_of", "round_document", "targets_of"]

KINDS = ("waiting", "lazy")
FILTERS = 1_000_000
NOTHING_US = 0.05
"""What counts as no CPU per published message: keep-alives do not cost the same every second.  The
bridge's far broker pays a hundred times as much."""

Reading = Callable[[Round], float]


def figures_of(rounds: Sequence[Round]) -> dict[str, Figure]:
    """Median and spread over the rounds of all that the rounds measured."""
    figures = Figures(rounds)
    add = figures.add
    for kind in KINDS:
        quiet = _quiet(kind)
        for path in PATHS:
            add(f"rate {path}, {kind}", "msg/s", quiet, _rate(kind, path))
        for path in PATHS[1:]:
            add(f"rate {path} / bridge, {kind}", "x", quiet, _ratio(kind, path))
            add(f"CPU of all, {path} / bridge, {kind}", "x", quiet, _total_ratio(kind, path))
        for path in PATHS:
            for process in rounds[0].runs(kind)[path].cpu_us_per_delivered:
                name = f"CPU {process}, {path}, {kind}"
                add(name, "µs/delivered", quiet, _cpu(kind, path, process))
    for path in PATHS:
        quiet = _quiet_local(path)
        add(f"local rate, {path}", "msg/s", quiet, _local_rate(path))
        for process in FAR:
            if process in rounds[0].local[path].idle_cores:
                unit = "µs/published"
                add(f"local {process}, {path}, raw", unit, quiet, _raw(path, process))
                add(f"local {process}, {path}, above idle", unit, quiet, _above(path, process))
    return figures.found


def _quiet(kind: str) -> Callable[[Round], bool]:
    return lambda one: all(run.quiet_slices for run in one.runs(kind).values())


def _quiet_local(path: str) -> Callable[[Round], bool]:
    return lambda one: one.local[path].run.quiet_slices > 0


def _rate(kind: str, path: str) -> Reading:
    return lambda one: one.runs(kind)[path].rate


def _ratio(kind: str, path: str) -> Reading:
    return lambda one: one.ratio(kind, path)


def _cpu(kind: str, path: str, process: str) -> Reading:
    return lambda one: one.runs(kind)[path].cpu_us_per_delivered[process]


def _total(run: Run) -> float:
    """CPU per delivered message of all processes of the path, brokers and nodes."""
    return sum(us for name, us in run.cpu_us_per_delivered.items() if name != "generator")


def _total_ratio(kind: str, path: str) -> Reading:
    return lambda one: _total(one.runs(kind)[path]) / _total(one.runs(kind)["bridge"])


def _local_rate(path: str) -> Reading:
    return lambda one: one.local[path].run.rate


def _raw(path: str, process: str) -> Reading:
    return lambda one: one.local[path].raw_us(process)


def _above(path: str, process: str) -> Reading:
    return lambda one: one.local[path].above_idle_us(process)


def targets_of(
    figures: Mapping[str, Figure], rounds: Sequence[Round], million: Million | None
) -> list[Target]:
    """Every figure that was to be reached."""
    crossed = max(one.local["sf"].crossed or 0 for one in rounds)
    published = min(one.local["sf"].published_rate for one in rounds)
    return [
        *(_rate_target(figures, kind) for kind in KINDS),
        *(_cpu_target(figures, kind) for kind in KINDS),
        Target(
            "SF, all local: messages that crossed",
            "",
            crossed,
            0.0,
            note=f"most of any round, while {published:,.0f} a second or more were published",
        ),
        *(_nothing_target(figures, process) for process in FAR),
        *_million_targets(million),
    ]


def _cpu_target(figures: Mapping[str, Figure], kind: str) -> Target:
    def total(path: str) -> float:
        end = f", {path}, {kind}"
        return sum(
            figure.spread.median
            for name, figure in figures.items()
            if name.startswith("CPU") and name.endswith(end) and "generator" not in name
        )

    return Target(
        f"CPU of all processes per delivered message, SF / bridge, {kind}",
        "x",
        figures[f"CPU of all, sf / bridge, {kind}"].spread.median,
        1.2,
        note=f"{total('sf'):.2f} against {total('bridge'):.2f} µs; "
        f"PF {figures[f'CPU of all, pf / bridge, {kind}'].spread.median:.3f} x",
    )


def _rate_target(figures: Mapping[str, Figure], kind: str) -> Target:
    return Target(
        f"highest rate, SF / bridge, {kind}",
        "x",
        figures[f"rate sf / bridge, {kind}"].spread.median,
        1.0,
        at_least=True,
        note=f"PF {figures[f'rate pf / bridge, {kind}'].spread.median:.3f} x",
    )


def _nothing_target(figures: Mapping[str, Figure], process: str) -> Target:
    def median(path: str, what: str) -> float:
        return figures[f"local {process}, {path}, {what}"].spread.median

    others = [f"raw {median('sf', 'raw'):.3f}", f"PF {median('pf', 'above idle'):.2f}"]
    if process == "far broker":
        others.append(f"bridge {median('bridge', 'above idle'):.2f}")
    return Target(
        f"SF, all local: CPU of the {process}",
        "µs/published",
        median("sf", "above idle"),
        NOTHING_US,
        note="above idle, 0 within what keep-alives vary by; " + ", ".join(others),
    )


def _million_targets(million: Million | None) -> list[Target]:
    match_us = memory_mib = None
    match_note = memory_note = "not measured"
    if million is not None:
        slowest = max(million.routes, key=lambda routes: routes.median_us)
        match_note = f"slowest median, {slowest.hits} filters match; p99 {slowest.p99_us:.1f} µs"
        memory_note = (
            f"resident at its highest; {million.bytes_per_filter:,.0f} B per filter, "
            f"taken in within {million.take_in_s:.1f} s"
        )
        if million.filters >= FILTERS:
            match_us, memory_mib = slowest.median_us, million.peak_bytes / 2**20
        else:
            only = f"with {million.filters:,} filters only: {slowest.median_us:.1f} µs, "
            match_note = f"{only}{match_note}"
            memory_note = f"with {million.filters:,} filters only; {memory_note}"
    return [
        Target("one match among a million", "µs", match_us, 20.0, note=match_note),
        Target("node with a million", "MiB", memory_mib, 1024.0, note=memory_note),
    ]


def round_document(one: Round) -> dict[str, Any]:
    """A round as it stands in the file; what loses a message never becomes a round."""
    return asdict(one) | {
        "lost": 0,
        "ratio": {kind: {path: one.ratio(kind, path) for path in PATHS} for kind in KINDS},
        "limit": {kind: {p: run.limit for p, run in one.runs(kind).items()} for kind in KINDS},
        "local_us_per_published": {
            path: {
                process: {"raw": local.raw_us(process), "above_idle": local.above_idle_us(process)}
                for process in local.idle_cores
            }
            for path, local in one.local.items()
        },
    }


def doubts(rounds: Sequence[Round]) -> list[str]:
    """What makes the figures doubtful, in words."""
    return doubts_of(
        [
            run
            for one in rounds
            for kind in (one.waiting, one.lazy, {path: it.run for path, it in one.local.items()})
            for run in kind.values()
        ]
    )
