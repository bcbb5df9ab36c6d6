"""QoS 1 and 2, many topics and connection storms: through nodes, and without them.

    python benchmarks/bench_qos.py [--rounds 5] [--only loops|topics|storm] [--quick] [--docs]

What is measured, how, and how to read it is in ``docs/explanation/qos-performance.md``.
"""

from __future__ import annotations

import argparse
import ssl
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))  # and `support`

from benchmarks.command import parser_of, run
from benchmarks.fabric.crossing import palindrome
from benchmarks.qos.loops import Measured, closed_loop
from benchmarks.qos.sites import PATHS, running_doors, running_paths
from benchmarks.qos.storm import Restart, restart, storm
from benchmarks.qos.topics import ManyTopics, in_turn
from benchmarks.qos.verdict import (
    WINDOWS,
    Loop,
    Round,
    doubts_of,
    figures_of,
    tables_of,
    targets_of,
)
from benchmarks.relay.processes import raise_file_limit
from benchmarks.relay.report import conclude, machine_facts
from benchmarks.relay.statistics import Run, Slice, pool

from isthmus.errors import LoadError

__all__ = ["PARTS", "QosPlan", "main"]

PARTS = ("loops", "topics", "storm")


@dataclass(frozen=True, slots=True)
class QosPlan:
    """Who publishes how, for how long, and who comes."""

    parts: tuple[str, ...] = PARTS
    rounds: int = 5
    qos: tuple[int, ...] = (1, 2)
    windows: tuple[int, ...] = WINDOWS
    clients: int = 20
    warmup_s: float = 0.2
    run_s: float = 0.6
    topics: tuple[int, ...] = (1_000, 200_000, 1_000_000)
    topic_messages: int = 200_000
    """At most, after all topics have had their turn."""
    storm_clients: int = 3_000
    back_clients: int = 5_000


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    plan = QosPlan()
    if options.quick:
        plan = replace(
            plan,
            rounds=3,
            run_s=0.3,
            windows=(1, 20),
            topics=(1_000, 100_000),
            topic_messages=40_000,
            storm_clients=1_000,
            back_clients=1_000,
        )
    if options.rounds is not None:
        plan = replace(plan, rounds=options.rounds)
    if options.only:
        plan = replace(plan, parts=(options.only,))
    return run(
        "qos",
        140,
        lambda console: _bench(plan, options.out, options.page, console),
        check=options.check,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    first = __doc__.splitlines()[0]
    parser = parser_of("qos", first, "about 3 minutes", "qos-performance.md", loops=False)
    parser.add_argument("--only", choices=PARTS, help="one part; default: all")
    options = parser.parse_args(arguments)
    if options.page is not None and (options.only or options.quick):
        parser.error("the page shows all of it: --docs goes with neither --only nor --quick")
    return options


def _bench(plan: QosPlan, out: Path, page: Path | None, console: Console) -> bool:
    machine = machine_facts(console)
    raise_file_limit()
    rounds: list[Round] = []
    for number in range(plan.rounds):
        began_s = time.monotonic()
        rounds.append(_round(plan, number, console))
        taken_s = time.monotonic() - began_s
        console.print(f"round {number + 1} of {plan.rounds}: {taken_s:.0f} s")
    figures = figures_of(rounds)
    parts: dict[str, Any] = {
        "machine": machine,
        "plan": asdict(plan),
        "doubts": doubts_of(rounds),
        "tables": tables_of(rounds),
        "rounds": [asdict(each) for each in rounds],
    }
    return conclude(console, out, parts, figures, targets_of(figures, rounds), page=page)


def _round(plan: QosPlan, number: int, console: Console) -> Round:
    found = Round()
    if "loops" in plan.parts:
        found = replace(found, loops={qos: _loops(plan, number, qos, console) for qos in plan.qos})
    if "topics" in plan.parts:
        found = replace(found, topics=_topics(plan, number, console))
    if "storm" in plan.parts:
        found = replace(
            found, storms=_storms(plan, number, console), restart=_restart(plan, console)
        )
    return found


def _loops(plan: QosPlan, number: int, qos: int, console: Console) -> dict[str, dict[int, Loop]]:
    """Of each window all paths there and back, side by side."""
    paths = PATHS if qos == 1 else PATHS[:-1]  # `sites` says why
    found: dict[str, dict[int, Loop]] = {path: {} for path in paths}
    with running_paths(paths, qos) as sites:
        for window in plan.windows:
            measured: dict[str, list[Measured]] = defaultdict(list)
            for path in palindrome(paths, number):
                try:
                    one = closed_loop(
                        sites[path],
                        qos=qos,
                        window=window,
                        clients=plan.clients,
                        warmup_s=plan.warmup_s,
                        run_s=plan.run_s,
                    )
                except LoadError as error:
                    raise LoadError(f"{path}, QoS {qos}, W = {window}: {error}") from error
                measured[path].append(one)
            for path, several in measured.items():
                found[path][window] = _pooled(several)
            shown = ", ".join(f"{path} {found[path][window].run.rate:,.0f}/s" for path in paths)
            console.print(f"QoS {qos}, W = {window}: {shown}")
    return found


def _pooled(several: list[Measured]) -> Loop:
    count = len(several)
    return Loop(
        pool([each.slice for each in several]),
        sum(each.ack_median_s for each in several) / count,
        sum(each.ack_p99_s for each in several) / count,
    )


def _topics(plan: QosPlan, number: int, console: Console) -> dict[str, dict[int, ManyTopics]]:
    """From few to many, so that what a process holds afterwards is what the many take."""
    found: dict[str, dict[int, ManyTopics]] = {}
    paths = ("direct", "linked")
    with running_paths(paths) as sites:
        for path in paths if number % 2 == 0 else paths[::-1]:
            found[path] = {}
            for topics in plan.topics:
                found[path][topics] = each = in_turn(sites[path], topics, plan.topic_messages)
                used = each.run.cpu_us_per_delivered
                shown = ", ".join(
                    f"{part} {used[part]:.1f} µs {held / 2**20:.0f} MiB"
                    for part, held in each.resident_bytes.items()
                )
                console.print(f"{path}, {topics:,} topics: {each.run.rate:,.0f}/s, {shown}")
    return found


def _storms(plan: QosPlan, number: int, console: Console) -> Mapping[str, Mapping[str, Run]]:
    slices: dict[str, dict[str, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder,
        running_doors(Path(folder)) as doors,
    ):
        for kind in ("TCP", "TLS"):
            turns = palindrome(("direct", "node"), number)
            for path in turns if kind == "TCP" else turns[:2]:  # with TLS it takes long enough
                door = doors[path]
                context = ssl.create_default_context(cafile=door.ca) if kind == "TLS" else None
                if context is not None:
                    context.check_hostname = False  # it is told no name
                one = storm(door.ports[kind], door.pids, plan.storm_clients, context)
                slices[path][kind].append(one)
    found = {path: {kind: pool(each) for kind, each in of.items()} for path, of in slices.items()}
    for path, of in found.items():
        shown = ", ".join(f"{kind} {each.rate:,.0f} clients/s" for kind, each in of.items())
        console.print(f"storm, {path}: {shown}")
    return found


def _restart(plan: QosPlan, console: Console) -> Restart:
    found = restart(plan.back_clients)
    console.print(f"restart: listens after {found.listens_s:.2f} s, all back {found.back_s:.2f} s")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
