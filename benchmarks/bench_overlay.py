"""How fast a fabric builds itself and is repaired: live, against bridges, and by the simulator.

    python benchmarks/bench_overlay.py [--rounds 5] [--quick] [--docs] [--out FILE]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))  # and `support`

from benchmarks.command import parser_of, run
from benchmarks.overlay.plot import draw
from benchmarks.overlay.rounds import Fault, Plan, Round, measure_round
from benchmarks.overlay.simulated import Row, measure
from benchmarks.overlay.verdict import (
    doubts_of,
    figures_of,
    leaf_lost,
    simulated_document,
    simulated_table,
    targets_of,
)
from benchmarks.relay.report import conclude, machine_facts

from isthmus.reproduce.shared_report import write_between_marks

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    parser = parser_of(
        "overlay", __doc__.splitlines()[0], "about 3 minutes", "tree-performance.md", loops=False
    )
    parser.add_argument("--sizes", type=int, nargs="+", help=f"default: {Plan().sizes}")
    options = parser.parse_args(arguments)
    plan = _plan(options)
    return run(
        "overlay",
        140,
        lambda console: _bench(plan, options.out, options.page, console),
        check=options.check,
    )


def _plan(options: argparse.Namespace) -> Plan:
    plan = Plan()
    if options.quick:
        plan = replace(
            plan,
            rounds=3,
            faults=(Fault("root"),),
            sizes=(5, 20, 50, 100),
            mesh_sizes=(5, 20),
            seeds=2,
        )
    wanted = {"rounds": options.rounds, "sizes": options.sizes and tuple(options.sizes)}
    return replace(plan, **{key: value for key, value in wanted.items() if value is not None})


def _bench(plan: Plan, out: Path, page: Path | None, console: Console) -> bool:
    machine = machine_facts(console)
    began = time.perf_counter()
    rounds: list[Round] = []
    load_averages: list[float] = []
    for number in range(plan.rounds):
        load_averages.append(round(os.getloadavg()[0], 2))
        rounds.append(measure_round(plan))
        console.print(f"round {number + 1} of {plan.rounds}:\n{rounds[-1].line()}", soft_wrap=True)
    rows = _simulated(plan, console)
    took_s = round(time.perf_counter() - began, 1)
    figures = figures_of(rounds)
    simulated = simulated_document(rows)
    table = simulated_table(simulated)
    _print(console, table)
    parts: dict[str, Any] = {"machine": machine, "plan": asdict(plan), "took_s": took_s}
    parts |= {
        "load_averages": load_averages,
        "doubts": doubts_of(load_averages, machine["cores"]),
        "simulated": simulated,
        "tables": [table],
        "rounds": [asdict(one) for one in rounds],
    }
    met = conclude(console, out, parts, figures, targets_of(figures, rounds), page=page)
    if page is not None:
        draw(page.with_suffix(".json"))
        write_between_marks(page.with_name("tree.md"), "leaf-lost", [leaf_lost(simulated)])
    return met


def _simulated(plan: Plan, console: Console) -> list[Row]:
    rows = []
    for shape, sizes in (("graph", plan.sizes), ("mesh", plan.mesh_sizes)):
        for count in sizes:
            for seed in range(1, plan.seeds + 1):
                rows.append(measure(shape, count, seed))
            console.print(f"simulated: {shape} of {count}, {plan.seeds} fabrics")
    return rows


def _print(console: Console, table: dict[str, Any]) -> None:
    shown = Table(*table["headings"])
    for row in _rows(table):
        shown.add_row(*row)
    console.print(shown)
    console.print(table["caption"], soft_wrap=True)


def _rows(table: dict[str, Any]) -> Sequence[Sequence[str]]:
    rows: Sequence[Sequence[str]] = table["rows"]
    return rows


if __name__ == "__main__":
    sys.exit(main())
