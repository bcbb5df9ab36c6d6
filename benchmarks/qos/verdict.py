"""From rounds to figures, tables and targets.  Ratios are taken within each round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from benchmarks.pages import number
from benchmarks.qos.storm import Restart
from benchmarks.qos.topics import ManyTopics
from benchmarks.relay.statistics import Run, Target, spread
from benchmarks.relay.verdict import Figure

__all__ = ["WINDOWS", "Loop", "Round", "doubts_of", "figures_of", "tables_of", "targets_of"]

WINDOWS = (1, 5, 20, 100)
BOUND_WINDOWS = (20, 100)
MIB = 2**20
US = "µs/message"


@dataclass(frozen=True, slots=True)
class Loop:
    """A path at one QoS and window."""

    run: Run
    ack_median_s: float
    ack_p99_s: float

    def cpu_us(self, part: str) -> float:
        return self.run.cpu_us_per_delivered[part]

    @property
    def total_us(self) -> float:
        """CPU per message of all processes of the path."""
        used = self.run.cpu_us_per_delivered
        return sum(us for name, us in used.items() if name != "generator")


@dataclass(frozen=True, slots=True)
class Round:
    """What one round measured; a part that was left out is empty."""

    loops: Mapping[int, Mapping[str, Mapping[int, Loop]]] = field(default_factory=dict)
    """By QoS, path and window."""
    topics: Mapping[str, Mapping[int, ManyTopics]] = field(default_factory=dict)
    """By path and number of topics."""
    storms: Mapping[str, Mapping[str, Run]] = field(default_factory=dict)
    """By path, and with TLS or without."""
    restart: Restart | None = None


def figures_of(rounds: Sequence[Round]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}

    def add(name: str, unit: str, values: Iterable[float]) -> None:
        found[name] = Figure(unit, len(rounds), spread(list(values)))

    for qos, paths in rounds[0].loops.items():
        for window in paths["direct"]:
            where = f"QoS {qos}, W = {window}"
            of = [{path: loops[window] for path, loops in one.loops[qos].items()} for one in rounds]
            for path, other in (("node", "direct"), ("node", "never"), ("linked", "bridge")):
                if other not in paths:
                    continue
                ratios = (one[path].run.rate / one[other].run.rate for one in of)
                add(f"rate, {path} / {other}, {where}", "x", ratios)
            for path, part in (("node", "node"), ("linked", "near node"), ("linked", "far node")):
                add(f"CPU {part}, {where}", US, (one[path].cpu_us(part) for one in of))
            if "bridge" not in paths:
                continue
            totals = (one["linked"].total_us / one["bridge"].total_us for one in of)
            add(f"CPU of all, linked / bridge, {where}", "x", totals)
    _add_topics(rounds, add)
    for kind in rounds[0].storms.get("direct", ()):
        runs = [{path: of[kind] for path, of in one.storms.items()} for one in rounds]
        for path in ("direct", "node"):
            add(f"storm, {kind}, {path}", "clients/s", (one[path].rate for one in runs))
            for part in runs[0][path].cpu_us_per_delivered:
                used = (one[path].cpu_us_per_delivered[part] for one in runs)
                add(f"CPU {part}, storm, {kind}, {path}", "µs/client", used)
        ratios = (one["node"].rate / one["direct"].rate for one in runs)
        add(f"storm, {kind}, node / direct", "x", ratios)
    if restarts := [one.restart for one in rounds if one.restart is not None]:
        add("node listens again", "s", (one.listens_s for one in restarts))
        add("all are back", "s", (one.back_s for one in restarts))
    return found


def _add_topics(rounds: Sequence[Round], add: Callable[[str, str, Iterable[float]], None]) -> None:
    for path, found in rounds[0].topics.items():
        for count, first in found.items():
            what = f"{path}, {count:,} topics"
            of = [one.topics[path][count] for one in rounds]
            add(f"rate, {what}", "msg/s", (one.run.rate for one in of))
            for part in first.resident_bytes:
                used = (one.run.cpu_us_per_delivered[part] for one in of)
                add(f"CPU {part}, {what}", US, used)
                add(f"memory {part}, {what}", "MiB", (one.resident_bytes[part] / MIB for one in of))
    if (linked := rounds[0].topics.get("linked")) is not None:
        few, many = min(linked), max(linked)
        for part in ("near node", "far node"):
            grown = (
                one.topics["linked"][many].run.cpu_us_per_delivered[part]
                / one.topics["linked"][few].run.cpu_us_per_delivered[part]
                for one in rounds
            )
            add(f"CPU {part}, {many:,} / {few:,} topics", "x", grown)


def targets_of(figures: Mapping[str, Figure], rounds: Sequence[Round]) -> list[Target]:
    """Those of the plan; of parts that were left out, none."""

    def target(shown: str, figure: str, bound: float, *, at_least: bool = False) -> Target:
        found = figures[figure]
        unit = "µs" if found.unit == US else found.unit
        return Target(shown, unit, found.spread.median, bound, at_least=at_least)

    found: list[Target] = []
    for qos, paths in rounds[0].loops.items():
        for window in paths["direct"]:
            where = f"QoS {qos}, W = {window}"
            if window in (1, *BOUND_WINDOWS):
                bound = 0.6 if window == 1 else 0.95
                name = f"rate, node / direct, {where}"
                found.append(target(f"through a node: {name}", name, bound, at_least=True))
            name = f"rate, node / never, {where}"
            shown = f"through a node: rate / that with `rest_s` = 0, {where}"
            found.append(target(shown, name, 1.0, at_least=True))
        if 20 in paths["direct"]:
            name = f"CPU node, QoS {qos}, W = 20"
            found.append(target(f"through a node: {name}", name, 6.0))
    for window in rounds[0].loops.get(1, {}).get("direct", ()):
        if window in BOUND_WINDOWS:
            where = f"QoS 1, W = {window}"
            name = f"rate, linked / bridge, {where}"
            found.append(target(name, name, 1.0, at_least=True))
            found.append(target(f"linked: CPU near node, {where}", f"CPU near node, {where}", 8.0))
            found.append(target(f"linked: CPU far node, {where}", f"CPU far node, {where}", 12.0))
            name = f"CPU of all, linked / bridge, {where}"
            found.append(target(name, name, 1.3))
    if (linked := rounds[0].topics.get("linked")) is not None:
        few, many = min(linked), max(linked)
        for part in ("near node", "far node"):
            name = f"CPU {part}, {many:,} / {few:,} topics"
            found.append(target(name, name, 1.5))
            name = f"memory {part}, linked, {many:,} topics"
            found.append(target(name, name, 300.0))
    for name in rounds[0].storms.get("direct", ()):
        shown = f"storm, {name}, node / direct"
        found.append(target(shown, shown, 0.5, at_least=True))
    if rounds[0].restart is not None:
        found.append(target("after a node's restart all are back within", "all are back", 3.0))
    return found


def tables_of(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Of the loops: medians over the rounds, one table for each QoS and kind of figure."""
    found: list[dict[str, Any]] = []
    for qos, paths in rounds[0].loops.items():
        windows = list(paths["direct"])
        columns = [f"W = {window}" for window in windows]

        rates = [_row(rounds, qos, path, path, lambda loop: loop.run.rate) for path in paths]
        cpu = [
            _row(rounds, qos, f"{path}: {part}", path, partial(Loop.cpu_us, part=part))
            for path, runs in paths.items()
            for part in runs[windows[0]].run.cpu_us_per_delivered
            if part != "generator"
        ]
        taken = []
        for path in paths:
            taken.append(
                _row(rounds, qos, f"{path}: median", path, lambda loop: loop.ack_median_s * 1000)
            )
            taken.append(
                _row(rounds, qos, f"{path}: p99", path, lambda loop: loop.ack_p99_s * 1000)
            )
        answer = "PUBACK" if qos == 1 else "PUBCOMP"
        for caption, rows in (
            (f"QoS {qos}: messages a second.", rates),
            (f"QoS {qos}: CPU per message, µs.", cpu),
            (f"QoS {qos}: from PUBLISH to {answer}, ms.", taken),
        ):
            found.append({"caption": caption, "headings": ["path", *columns], "rows": rows})
    return found


def _row(
    rounds: Sequence[Round], qos: int, head: str, path: str, read: Callable[[Loop], float]
) -> list[str]:
    windows = rounds[0].loops[qos][path]
    values = (median(read(each.loops[qos][path][w]) for each in rounds) for w in windows)
    return [head, *(number(value) for value in values)]


def doubts_of(rounds: Sequence[Round]) -> list[str]:
    runs = [
        loop.run
        for one in rounds
        for paths in one.loops.values()
        for loops in paths.values()
        for loop in loops.values()
    ]
    runs += [each.run for one in rounds for found in one.topics.values() for each in found.values()]
    runs += [run for one in rounds for found in one.storms.values() for run in found.values()]
    disturbed = sum(not run.quiet_slices for run in runs)
    if not disturbed:
        return []
    return [f"In {disturbed} of {len(runs)} runs other processes took part of the machine."]
