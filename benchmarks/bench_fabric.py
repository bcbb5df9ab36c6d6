"""Two brokers joined by two nodes against Mosquitto's own bridge, in one run; a million filters.

    python benchmarks/bench_fabric.py [--rounds 5] [--quick] [--out FILE]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import parser_of, run
from benchmarks.fabric.million import Million, measure_million
from benchmarks.fabric.rounds import Plan, Round, measure_round
from benchmarks.fabric.verdict import doubts, figures_of, round_document, targets_of
from benchmarks.relay.report import conclude, machine_facts

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    plan = _plan(options)
    return run(
        "fabric",
        140,
        lambda console: _bench(plan, options.out, options.page, console),
        check=options.check,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of(
        "fabric", __doc__.splitlines()[0], "about 2 minutes", "fabric-performance.md"
    )
    parser.add_argument(
        "--filters", type=int, help="inter-subscriptions on a node; default 1,000,000; 0: skip"
    )
    options = parser.parse_args(arguments)
    if options.filters and options.filters < 20_000:
        parser.error("--filters must be 0 or at least 20000")
    return options


def _plan(options: argparse.Namespace) -> Plan:
    plan = Plan()
    if options.quick:
        quick = replace(plan.closed, warmup_s=0.2, slices=2, slice_s=0.3, patience=2)
        plan = replace(plan, rounds=3, closed=quick, idle_s=1.0)
    closed = {"window": options.window, "batch": options.batch}
    closed = {key: value for key, value in closed.items() if value is not None}
    plan = replace(plan, closed=replace(plan.closed, **closed))
    top = {"rounds": options.rounds, "filters": options.filters}
    return replace(plan, **{key: value for key, value in top.items() if value is not None})


def _bench(plan: Plan, out: Path, page: Path | None, console: Console) -> bool:
    machine = machine_facts(console)
    began = time.perf_counter()
    million = _million(plan, console)
    gc.disable()  # a collection in the generator would be taken for a delay of the path
    rounds: list[Round] = []
    for number in range(plan.rounds):
        rounds.append(measure_round(plan, number))
        console.print(f"round {number + 1} of {plan.rounds}:\n{rounds[-1].line()}", soft_wrap=True)
    took_s = round(time.perf_counter() - began, 1)
    figures = figures_of(rounds)
    targets = targets_of(figures, rounds, million)
    parts: dict[str, Any] = {"machine": machine, "plan": asdict(plan), "took_s": took_s}
    parts |= {"doubts": doubts(rounds), **_documents(rounds, million)}
    return conclude(console, out, parts, figures, targets, page=page)


def _million(plan: Plan, console: Console) -> Million | None:
    if not plan.filters:
        return None
    found = measure_million(plan.filters, plan.topics)
    by_hits = ", ".join(
        f"{routes.hits} hits {routes.median_us:.1f} (p99 {routes.p99_us:.1f})"
        for routes in found.routes
    )
    console.print(
        f"{found.filters:,} inter-subscriptions: taken in within {found.take_in_s:.1f} s "
        f"({found.take_in_cpu_s:.1f} s CPU of the node), let go within {found.let_go_s:.1f} s; "
        f"µs per match: {by_hits};  RSS MiB: before {found.before.rss_bytes / 2**20:.0f}, with "
        f"them {found.after.rss_bytes / 2**20:.0f}, peak {found.peak_bytes / 2**20:.0f}",
        soft_wrap=True,
    )
    return found


def _documents(rounds: Sequence[Round], million: Million | None) -> dict[str, Any]:
    found = None
    if million is not None:
        found = asdict(million) | {"bytes_per_filter": million.bytes_per_filter}
    return {"rounds": [round_document(one) for one in rounds], "million": found}


if __name__ == "__main__":
    raise SystemExit(main())
