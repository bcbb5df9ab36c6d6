"""What the topology guard costs: fabrics of up to a thousand nodes in the exact simulator.

    python benchmarks/bench_guard.py [--quick] [--sizes N ...] [--out FILE] [--docs]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import RESULTS, run
from benchmarks.relay.report import cpu_model

from isthmus.errors import LoadError
from isthmus.exchange.link.links import LinkSettings
from isthmus.sim.collecting import few_collections
from isthmus.sim.fabric import SimFabric
from isthmus.sim.node import SimNode

__all__ = ["main"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "rings.md"
BEGIN, END = "<!-- bench-guard: begin -->\n", "<!-- bench-guard: end -->\n"
SIZES = (80, 200, 500, 1000)
QUICK = (40, 80)
LINKS_PER_NODE = {"tree": 1, "graph": 3}
TARGET_CPU_S = 60.0
"""For all links of a thousand nodes at once."""
DEAD_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one thing that happens, until nothing more follows from it."""

    cpu_s: float
    control_messages: int
    simulated_s: float


@dataclass(frozen=True, slots=True)
class Row:
    shape: str
    nodes: int
    links: int
    all_at_once: Cost
    one_cut: Cost
    one_link: Cost


def links_of(shape: str, nodes: int) -> list[tuple[int, int]]:
    """A random tree, and for a graph random links besides; the same ones in every run."""
    rng = random.Random(1)
    pairs = [(rng.randrange(number), number) for number in range(1, nodes)]
    found = set(pairs)
    while len(pairs) < LINKS_PER_NODE[shape] * nodes - (shape == "tree"):
        a, b = sorted(rng.sample(range(nodes), 2))
        if (a, b) not in found:
            found.add((a, b))
            pairs.append((a, b))
    rng.shuffle(pairs)
    return pairs


def measure(shape: str, count: int) -> Row:
    """All links come up in the same moment; then one of them is cut, and made again."""
    fabric = SimFabric(seed=1, algorithm="pf", link=LinkSettings(dead_after_s=DEAD_AFTER_S))
    nodes = [fabric.node(f"n{number}") for number in range(count)]
    pairs = links_of(shape, count)

    def link_all() -> None:
        for a, b in pairs:
            fabric.link(nodes[a], nodes[b])

    all_at_once = cost_of(fabric, link_all)
    check(fabric, nodes)
    a, b = (nodes[number] for number in sorted(pairs)[len(pairs) // 2])
    one_cut = cost_of(fabric, lambda: fabric.unlink(a, b))
    one_link = cost_of(fabric, lambda: fabric.link(a, b))
    check(fabric, nodes)
    return Row(shape, count, len(pairs), all_at_once, one_cut, one_link)


def cost_of(fabric: SimFabric, happens: Callable[[], None]) -> Cost:
    fabric.reset_counts()
    gc.collect()
    began_s, cpu_s = fabric.now_s, time.process_time()
    happens()
    fabric.settle()
    cpu_s = time.process_time() - cpu_s
    messages = sum(counts["CONTROL"] for counts in fabric.counts.values())
    return Cost(round(cpu_s, 3), messages, round(fabric.now_s - began_s, 3))


def check(fabric: SimFabric, nodes: Sequence[SimNode]) -> None:
    """The active links are one spanning tree, and everybody reaches everybody over it."""
    active = sum(len(around) for around in fabric.active_links().values())
    if active != 2 * (len(nodes) - 1):
        raise LoadError(f"{active // 2} active links for {len(nodes)} nodes")
    for node in nodes:
        if len(node.exchange.guard.ways()) != len(nodes) - 1:
            raise LoadError(f"{node.name} does not reach all others")


def exponent(rows: Sequence[Row], of: Callable[[Row], float]) -> float:
    """The slope of a straight line through the logarithms."""
    points = [(math.log(row.nodes), math.log(of(row))) for row in rows]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    along: float = sum((x - mean_x) * (y - mean_y) for x, y in points)
    across: float = sum((x - mean_x) ** 2 for x, _ in points)
    return round(along / across, 2)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and the target was missed."""
    options = _options(arguments)
    return run("guard", 120, lambda console: _bench(options, console), check=options.check)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_guard", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} nodes only, some seconds")
    parser.add_argument("--sizes", type=int, nargs="+", help=f"default: {SIZES}")
    parser.add_argument("--out", type=Path, default=RESULTS / "guard.json", help="JSON to write")
    parser.add_argument("--docs", action="store_true", help=f"also write {PAGE.name} and its JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when the target is missed")
    return parser.parse_args(arguments)


def _bench(options: argparse.Namespace, console: Console) -> bool:
    sizes = tuple(options.sizes or (QUICK if options.quick else SIZES))
    if len(set(sizes)) < 2:
        raise LoadError("an exponent needs two sizes at least")
    facts = {
        "commit": _commit(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average_at_start": list(os.getloadavg()),
    }
    rows = []
    for shape in LINKS_PER_NODE:
        for count in sizes:
            with few_collections():
                rows.append(measure(shape, count))
            console.print("  ".join(_cells(rows[-1])))
            gc.collect()
    document = {**facts, "rows": [asdict(row) for row in rows], "exponents": _exponents(rows)}
    _print(console, rows, document)
    _write(options.out, document)
    if options.docs:
        _write(PAGE.with_name("guard.json"), document)
        _write_page(rows, document)
    return all(row.all_at_once.cpu_s <= TARGET_CPU_S for row in rows)


def _exponents(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    found = {}
    for shape in LINKS_PER_NODE:
        some = [row for row in rows if row.shape == shape]
        found[shape] = {
            "all_at_once": exponent(some, lambda row: row.all_at_once.cpu_s),
            "one_cut": exponent(some, lambda row: row.one_cut.cpu_s),
            "one_link": exponent(some, lambda row: row.one_link.cpu_s),
        }
    return found


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PAGE.parent)
    return found.stdout.strip() or "unknown"


# ---- what people see ---------------------------------------------------------------------

HEADINGS = ("fabric", "links", "all links at once", "one cut", "one new link")


def _cells(row: Row) -> tuple[str, ...]:
    costs = (row.all_at_once, row.one_cut, row.one_link)
    return (
        f"{row.shape} of {row.nodes}",
        str(row.links),
        *(f"{cost.cpu_s:.2f} s, {cost.control_messages:,} messages" for cost in costs),
    )


def _print(console: Console, rows: Sequence[Row], document: dict[str, Any]) -> None:
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for shape, found in document["exponents"].items():
        console.print(f"{shape}: CPU grows with N to the power of {found}")
    worst_s = max(row.all_at_once.cpu_s for row in rows)
    console.print(f"target: at most {TARGET_CPU_S:g} s of CPU; the most was {worst_s:.1f} s")


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _write_page(rows: Sequence[Row], document: dict[str, Any]) -> None:
    """What stands between the two marks."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    powers = document["exponents"]
    lines += [
        "",
        f"CPU of the whole fabric, on {document['cpu']}, {document['time']}, commit "
        f"{document['commit']}. It grows with N to the power of {powers['tree']['all_at_once']} "
        f"(tree) and {powers['graph']['all_at_once']} (graph) for all links at once, "
        f"{powers['tree']['one_cut']} and {powers['graph']['one_cut']} for one cut, "
        f"{powers['tree']['one_link']} and {powers['graph']['one_link']} for one new link.",
        "",
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + END + after)


if __name__ == "__main__":
    sys.exit(main())
