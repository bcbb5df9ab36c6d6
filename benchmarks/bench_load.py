"""How many messages per second the load tool receives, sends and records.

    python benchmarks/bench_load.py [--rounds 5] [--quick] [--out FILE]

What is measured, how, and how to read it is in ``docs/explanation/load-tool.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import RESULTS, run
from benchmarks.load.rounds import (
    Crowd,
    Flood,
    Plan,
    Sending,
    measure_crowd,
    measure_flood,
    measure_sending,
)
from benchmarks.relay.processes import raise_file_limit
from benchmarks.relay.report import conclude, machine_facts
from benchmarks.relay.statistics import Target, spread
from benchmarks.relay.verdict import Figure

__all__ = ["main"]

TARGET_RATE = 250_000
BUSY_CORES = 0.15
"""What others may use before a flood is in doubt."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    parser = argparse.ArgumentParser(prog="bench_load", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="default 5, with --quick 3")
    parser.add_argument("--seconds", type=float, help="of each flood; default 4, with --quick 1.5")
    parser.add_argument("--quick", action="store_true", help="about 2 minutes, for a first look")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "load.json", help="JSON file to write"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args(arguments)
    plan = replace(Plan(), rounds=3, seconds=1.5) if options.quick else Plan()
    given = {"rounds": options.rounds, "seconds": options.seconds}
    plan = replace(plan, **{key: value for key, value in given.items() if value is not None})
    if plan.rounds < 1:
        parser.error("--rounds must be at least 1")
    return run("load", 120, lambda console: _bench(plan, options.out, console), check=options.check)


def _bench(plan: Plan, out: Path, console: Console) -> bool:
    machine = machine_facts(console)
    began = time.perf_counter()
    floods: list[Flood] = []
    sendings: list[Sending] = []
    for number in range(plan.rounds):
        for per_write in plan.per_write:
            for processes in plan.processes:
                floods.append(measure_flood(plan, processes, per_write))
                console.print(f"round {number + 1} of {plan.rounds}: {floods[-1].line()}")
        for asked in plan.asked:
            sendings.append(measure_sending(plan, asked))
            console.print(f"round {number + 1} of {plan.rounds}: {sendings[-1].line()}")
    crowd = _crowd(plan, console)
    figures = _figures(plan, floods, sendings)
    targets = [
        Target(
            f"recorded, {processes} load processes" if processes > 1 else "recorded, 1 process",
            "msg/s",
            figures[_name("rate", processes, plan.per_write[0])].spread.median,
            TARGET_RATE,
            at_least=True,
            note="the source and the writing of the files included",
        )
        for processes in plan.processes
    ]
    disturbed = sum(flood.others_cores > BUSY_CORES for flood in floods)
    doubts = []
    if disturbed:
        doubts.append(f"others used over {BUSY_CORES} cores in {disturbed} of {len(floods)} floods")
    parts = {
        "machine": machine,
        "plan": asdict(plan),
        "took_s": round(time.perf_counter() - began, 1),
        "doubts": doubts,
        "floods": [asdict(flood) | {"rate": flood.rate} for flood in floods],
        "sendings": [asdict(sending) for sending in sendings],
        "crowd": None if crowd is None else asdict(crowd),
    }
    return conclude(console, out, parts, figures, targets)


def _crowd(plan: Plan, console: Console) -> Crowd | None:
    needed, allowed = plan.crowd + 100, raise_file_limit()
    if allowed < needed:
        console.print(
            f"idle clients not measured: {needed} open files are needed, {allowed} are allowed; "
            f"raise the hard limit (ulimit -Hn {needed})"
        )
        return None
    crowd = measure_crowd(plan.crowd)
    console.print(crowd.line())
    return crowd


def _name(what: str, processes: int, per_write: int) -> str:
    return f"{what}, {processes} process{'es' if processes > 1 else ''}, {per_write} per write"


def _figures(plan: Plan, floods: list[Flood], sendings: list[Sending]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for per_write in plan.per_write:
        for processes in plan.processes:
            these = [f for f in floods if (f.processes, f.per_write) == (processes, per_write)]
            for what, unit, values in (
                ("rate", "msg/s", [f.rate for f in these]),
                ("CPU tool", "µs/msg", [f.tool_cpu_ns / f.messages / 1000 for f in these]),
                ("CPU source", "µs/msg", [f.source_cpu_ns / f.messages / 1000 for f in these]),
            ):
                name = _name(what, processes, per_write)
                figures[name] = Figure(unit, len(these), spread(values))
    for asked in plan.asked:
        sent = [one for one in sendings if one.asked == asked]
        for what, unit, values in (
            ("sent of", "%", [100 * one.sent / one.offered for one in sent]),
            ("CPU tool sending", "µs/msg", [one.tool_cpu_ns / one.sent / 1000 for one in sent]),
            ("latest of", "ms", [one.late_ms_max for one in sent]),
        ):
            figures[f"{what} {asked:,} msg/s"] = Figure(unit, len(sent), spread(values))
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
