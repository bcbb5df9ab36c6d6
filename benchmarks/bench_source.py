"""Messages taken from the broker against messages taken from clients: two linked nodes, in turns.

    python benchmarks/bench_source.py [--rounds 5] [--quick] [--out FILE] [--docs]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import parser_of, run
from benchmarks.fabric.crossing import measure_crossing, palindrome
from benchmarks.fabric.sites import Site
from benchmarks.relay.processes import configured_node, node_file, running_broker
from benchmarks.relay.report import conclude, machine_facts
from benchmarks.relay.saturation import ClosedLoop
from benchmarks.relay.statistics import Run, Target
from benchmarks.relay.verdict import Figure, Figures, doubts_of

from isthmus.processes.ports import free_port

__all__ = ["main"]

SOURCES = ("clients", "broker")
LEAST = 0.8
QUEUE = "max_queued_messages 100000"
"""Else a Mosquitto drops what a subscriber does not read at once, at QoS 0 too."""

Round = Mapping[str, Run]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run of the benchmark does."""

    rounds: int = 5
    closed: ClosedLoop = field(default_factory=ClosedLoop)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    plan = Plan()
    if options.quick:
        quick = replace(plan.closed, warmup_s=0.2, slices=2, slice_s=0.3, patience=2)
        plan = Plan(3, quick)
    closed = {"window": options.window, "batch": options.batch}
    closed = {key: value for key, value in closed.items() if value is not None}
    plan = replace(plan, closed=replace(plan.closed, **closed))
    if options.rounds is not None:
        plan = replace(plan, rounds=options.rounds)
    return run(
        "source",
        140,
        lambda console: _bench(plan, options.out, options.page, console),
        check=options.check,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    description = __doc__.splitlines()[0]
    return parser_of("source", description, "about 30 s", "source-performance.md").parse_args(
        arguments
    )


def _bench(plan: Plan, out: Path, page: Path | None, console: Console) -> bool:
    machine = machine_facts(console)
    began = time.perf_counter()
    gc.disable()  # a collection in the generator would be taken for a delay of the path
    rounds: list[Round] = []
    for number in range(plan.rounds):
        rounds.append(_round(plan, number))
        shown = ", ".join(
            f"{source} {one.rate:,.0f}/s (limit: {one.limit})" for source, one in rounds[-1].items()
        )
        console.print(f"round {number + 1} of {plan.rounds}: {shown}")
    figures = _figures(rounds)
    ratio = figures["rate broker / clients"].spread.median
    targets = [Target("highest rate, broker / clients", "x", ratio, LEAST, at_least=True)]
    parts: dict[str, Any] = {
        "machine": machine,
        "plan": asdict(plan),
        "took_s": round(time.perf_counter() - began, 1),
        "doubts": doubts_of([one for each in rounds for one in each.values()]),
        "rounds": [{source: asdict(one) for source, one in each.items()} for each in rounds],
    }
    return conclude(console, out, parts, figures, targets, page=page)


def _round(plan: Plan, number: int) -> Round:
    with ExitStack() as stack:
        sites = {source: stack.enter_context(_running(source)) for source in SOURCES}
        return measure_crossing(sites, palindrome(SOURCES, number), plan.closed)


@contextmanager
def _running(source: str) -> Iterator[Site]:
    """Two Mosquittos with a node before each, which take messages as `source` says."""
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(running_broker(QUEUE)) for name in ("near", "far")}
        admin = free_port()
        link = {name: free_port() for name in brokers}
        nodes = {}
        for name, broker in brokers.items():
            mqtt = free_port()
            config = node_file(
                name,
                broker.port,
                peer=link["near"] if name == "far" else 0,
                mqtt=mqtt,
                link=link[name],
                admin=admin if name == "near" else free_port(),
            ).replace("[broker]\n", f'[broker]\nsource = "{source}"\n')
            nodes[name] = stack.enter_context(configured_node(config, mqtt))
        pids = {f"{name} broker": broker.pid for name, broker in brokers.items()}
        pids |= {f"{name} node": node.pid for name, node in nodes.items()}
        yield Site(nodes["near"].port, nodes["far"].port, pids, admin)


def _quiet(one: Round) -> bool:
    return all(run.quiet_slices for run in one.values())


def _figures(rounds: Sequence[Round]) -> dict[str, Figure]:
    figures = Figures(rounds)
    for source in SOURCES:
        figures.add(f"rate {source}", "msg/s", _quiet, lambda one, s=source: one[s].rate)  # type: ignore[misc]
    figures.add(
        "rate broker / clients",
        "x",
        _quiet,
        lambda one: one["broker"].rate / one["clients"].rate,
    )
    for source in SOURCES:
        for process in rounds[0][source].cpu_us_per_delivered:
            figures.add(
                f"CPU {process}, {source}",
                "µs/delivered",
                _quiet,
                lambda one, s=source, p=process: one[s].cpu_us_per_delivered[p],  # type: ignore[misc]
            )
    return figures.found


if __name__ == "__main__":
    raise SystemExit(main())
