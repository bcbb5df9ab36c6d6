"""The bulk simulator: how fast and how large, up to a hundred million nodes.

    python benchmarks/bench_sim.py [--quick | --large] [--sizes N ...] [--reproduce] [--out FILE]
                                   [--docs]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import RESULTS, run
from benchmarks.pages import commit
from benchmarks.relay.report import cpu_model, write_json

from isthmus.errors import LoadError
from isthmus.processes.resources import FreeResources
from isthmus.sim.bulk.memory import check_memory

__all__ = ["main", "summary", "targets"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "bulk-simulator.md"
BEGIN, END = "<!-- bench-sim: begin -->\n", "<!-- bench-sim: end -->\n"
SMALL = 100_000
SIZES = (100_000, 1_000_000, 10_000_000)
LARGE = 100_000_000
QUICK = (100_000, 1_000_000)
BUILDS = 9
"""How often the small network is built."""
ROUNDS = {100_000: 5, 1_000_000: 5, 10_000_000: 3}
"""Others: once."""
BOUNDS = (
    # what, nodes, key, most
    ("building 100,000 nodes, all tables kept", SMALL, "graph_s", 0.5),
    ("10,000,000 nodes built and all patterns answered", 10_000_000, "total_s", 90.0),
    ("memory for 10,000,000 nodes", 10_000_000, "peak_gib", 4.0),
    ("100,000,000 nodes built and all patterns answered", LARGE, "total_s", 900.0),
    ("memory for 100,000,000 nodes", LARGE, "peak_gib", 16.0),
    ("all of `isthmus reproduce skipgraph`, up to 100,000 nodes", SMALL, "reproduce_s", 300.0),
)
KEYS = (
    "graph_s",
    "build_s",
    "total_s",
    "build_cpu_s",
    "total_cpu_s",
    "peak_gib",
    "reproduce_s",
)
SEED = 1


# ---- in a process of its own -------------------------------------------------------------


def measure(nodes: int, *, patterns: bool, workers: int = 1) -> dict[str, Any]:
    """Build a network and answer the patterns; what it took."""
    from isthmus.sim.bulk.graph import skip_graph
    from isthmus.sim.bulk.levels import table_sizes
    from isthmus.sim.bulk.patterns import PATTERNS, path_lengths
    from isthmus.sim.bulk.vectors import drawn_vectors

    if not patterns:
        graph_s = []
        for _ in range(BUILDS):
            began_s = time.perf_counter()
            skip_graph(drawn_vectors(SEED, 0, nodes))
            graph_s.append(time.perf_counter() - began_s)
        return {"nodes": nodes, "graph_s": graph_s}
    began_s, cpu_s = time.perf_counter(), time.process_time()
    sizes = table_sizes(drawn_vectors(SEED, 0, nodes))
    entries = float(sizes.mean())
    del sizes
    build_s, build_cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    found = path_lengths(list(PATTERNS.values()), nodes, SEED, "mrf", workers=workers)
    return {
        "nodes": nodes,
        "build_s": build_s,
        "build_cpu_s": build_cpu_s,
        "total_s": time.perf_counter() - began_s,
        "total_cpu_s": time.process_time() - cpu_s,
        "peak_gib": _peak_gib(),
        "entries_per_node": entries,
        "hops": {name: lengths.mean for name, lengths in found.items()},
        "pairs": sum(lengths.pairs for lengths in found.values()),
    }


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def in_a_process(nodes: int, *, patterns: bool, workers: int = 1) -> dict[str, Any]:
    """So that the memory is that of this measurement alone."""
    command = [sys.executable, __file__, "--measure", str(nodes), "--workers", str(workers)]
    if not patterns:
        command.append("--build-only")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise LoadError(f"{nodes:,} nodes: exit code {ended.returncode}\n{ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def reproduced(*more: str) -> dict[str, Any]:
    """The thesis's evaluation at its own sizes, from the command to its report, Spark and all."""
    with tempfile.TemporaryDirectory(prefix="bench-sim-") as folder:
        out = Path(folder) / "out"
        arguments = ["reproduce", "skipgraph", "--up-to", str(SMALL), "--out", str(out), *more]
        command = [sys.executable, "-m", "isthmus", *arguments]
        began_s = time.perf_counter()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        took_s = time.perf_counter() - began_s
        if ended.returncode:
            raise LoadError(f"{' '.join(arguments)}: {ended.returncode}\n{ended.stderr[-2000:]}")
        figures = len(json.loads((out / "results.json").read_text())["figures"])
    return {"nodes": SMALL, "reproduce_s": took_s, "figures": figures}


# ---- all of it ---------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    if options.measure:
        found = measure(options.measure, patterns=not options.build_only, workers=options.workers)
        print(json.dumps(found))
        return 0
    return run("sim", 120, lambda console: _bench(options, console), check=options.check)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_sim", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to a million nodes, some seconds")
    parser.add_argument("--large", action="store_true", help="a hundred million nodes as well")
    parser.add_argument("--sizes", type=int, nargs="+", help=f"default: {SIZES}")
    parser.add_argument(
        "--reproduce",
        action="store_true",
        help="`isthmus reproduce skipgraph` as well, some minutes",
    )
    parser.add_argument("--rounds", type=int, help="of each size; default: by size")
    parser.add_argument("--workers", type=int, default=1, help="threads that answer; default 1")
    parser.add_argument("--out", type=Path, default=RESULTS / "sim.json", help="JSON to write")
    parser.add_argument("--docs", action="store_true", help=f"also write {PAGE.name} and its JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--build-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _bench(options: argparse.Namespace, console: Console) -> bool:
    sizes = list(options.sizes or (QUICK if options.quick else SIZES))
    if options.large:
        sizes.append(LARGE)
    if min(sizes) < 1000:
        raise LoadError("a network has 1,000 nodes at least: one topic of the larger patterns")
    _, free_bytes = FreeResources().now()
    estimates = {nodes: check_memory(nodes, free_bytes) for nodes in sizes}
    rows = [in_a_process(SMALL, patterns=False)]
    console.print(f"building {SMALL:,} nodes: {_shown(rows[0]['graph_s'])} s")
    for nodes in sizes:
        rounds = options.rounds or ROUNDS.get(nodes, 1)
        for _ in range(rounds):
            rows.append(in_a_process(nodes, patterns=True, workers=options.workers))
            row = rows[-1]
            console.print(
                f"{nodes:,} nodes: built in {row['build_s']:.2f} s, all in {row['total_s']:.2f} s, "
                f"{row['peak_gib']:.2f} GiB (estimate {estimates[nodes] / 2**30:.2f})"
            )
    if options.reproduce:
        rows.append(reproduced())
        console.print(f"isthmus reproduce skipgraph: {rows[-1]['reproduce_s']:.0f} s")
    found = summary(rows)
    document: dict[str, Any] = {
        "commit": commit(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "workers": options.workers,
        "load_average_at_end": list(os.getloadavg()),
        "estimates_gib": {str(nodes): size / 2**30 for nodes, size in estimates.items()},
        "rows": rows,
        "summary": found,
        "targets": targets(found),
        "growth": growth(found),
    }
    _print(console, document)
    write_json(document, options.out)
    if options.docs:
        write_json(document, PAGE.with_suffix(".json"))
        _draw(document, PAGE.with_suffix(".png"))
        _write_page(document)
    return all(target["met"] for target in document["targets"])


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By number of nodes: median, least and most of everything that was measured."""
    found: dict[str, dict[str, Any]] = {}
    for nodes in sorted({row["nodes"] for row in rows}):
        some = [row for row in rows if row["nodes"] == nodes]
        entry: dict[str, Any] = {}
        for key in KEYS:
            values = [
                value
                for row in some
                if key in row
                for value in (row[key] if isinstance(row[key], list) else [row[key]])
            ]
            if values:
                entry[key] = {
                    "median": statistics.median(values),
                    "low": min(values),
                    "high": max(values),
                    "rounds": len(values),
                }
        answered = [row for row in some if "hops" in row]
        if answered:
            entry["hops"] = answered[0]["hops"]
            entry["pairs"] = answered[0]["pairs"]
            if any(row["hops"] != entry["hops"] for row in answered):
                raise LoadError(f"{nodes:,} nodes: the same seed gave different path lengths")
        found[str(nodes)] = entry
    return found


def targets(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those whose size was measured; the slowest round counts."""
    judged = []
    for name, nodes, key, most in BOUNDS:
        spread = found.get(str(nodes), {}).get(key)
        if spread is not None:
            value = spread["high"]
            judged.append({"name": name, "value": value, "most": most, "met": value <= most})
    return judged


def growth(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Nanoseconds for each node and each doubling of nodes: the same if it grows as N log N."""
    return {
        nodes: entry["build_s"]["median"] * 1e9 / (int(nodes) * math.log2(int(nodes)))
        for nodes, entry in found.items()
        if "total_s" in entry
    }


# ---- what people see ---------------------------------------------------------------------

HEADINGS = ("nodes", "built, s", "and all patterns, s", "memory, GiB", "built, ns per N log₂ N")


def _shown(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _spread(spread: Mapping[str, Any] | None) -> str:
    if spread is None:
        return ""
    shown = f"{spread['median']:.2f}"
    return shown if spread["rounds"] == 1 else f"{shown} ({spread['low']:.2f}-{spread['high']:.2f})"


def _cells(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            f"{int(nodes):,}",
            *(_spread(entry.get(key)) for key in ("build_s", "total_s", "peak_gib")),
            f"{document['growth'][nodes]:.1f}" if nodes in document["growth"] else "",
        )
        for nodes, entry in document["summary"].items()
        if "total_s" in entry
    ]


def _print(console: Console, document: Mapping[str, Any]) -> None:
    table = Table(*HEADINGS)
    for cells in _cells(document):
        table.add_row(*cells)
    console.print(table)
    for target in document["targets"]:
        verdict = "met" if target["met"] else "MISSED"
        console.print(
            f"{target['name']}: {target['value']:.2f}, at most {target['most']:g}: {verdict}"
        )


def _draw(document: Mapping[str, Any], picture: Path) -> None:
    """Time against nodes, both logarithmic, beside what N log N would be."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from isthmus.bench.report.plots import COLORS, STYLE, short

    entries = {int(nodes): entry for nodes, entry in document["summary"].items()}
    nodes = [count for count, entry in entries.items() if "total_s" in entry]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        ax = figure.subplots()
        for key, label, color in (
            ("total_s", "built, and all patterns answered", COLORS["sf"]),
            ("build_s", "built", COLORS["pf"]),
        ):
            medians = [entries[count][key]["median"] for count in nodes]
            ax.plot(nodes, medians, "o-", color=color, label=label)
            scale = medians[-1] / (nodes[-1] * math.log2(nodes[-1]))
            law = [scale * count * math.log2(count) for count in nodes]
            ax.plot(nodes, law, linestyle=(0, (2, 2)), color=color, linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel="nodes", ylabel="seconds")
        ax.set_title("Dashed: N log N through the last point")
        ax.xaxis.set_major_formatter(lambda value, _: short(value))
        ax.legend(frameon=False)
        figure.savefig(picture, dpi=100, metadata={"Software": None})


def _write_page(document: Mapping[str, Any]) -> None:
    """What stands between the two marks."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|--:|--:|--:|--:|--:|"]
    lines += [f"| {' | '.join(cells)} |" for cells in _cells(document)]
    answered = {nodes: entry for nodes, entry in document["summary"].items() if "hops" in entry}
    names = next(iter(answered.values()))["hops"]
    lines += ["", f"| mean hops | {' | '.join(names)} |", "|--:" * (len(names) + 1) + "|"]
    for nodes, entry in answered.items():
        means = " | ".join(f"{mean:.3f}" for mean in entry["hops"].values())
        lines.append(f"| {int(nodes):,} nodes | {means} |")
    lines += ["", "| target | at most | measured | |", "|---|--:|--:|---|"]
    lines += [
        f"| {target['name']} | {target['most']:g} | {target['value']:.2f} | "
        f"{'met' if target['met'] else '**missed**'} |"
        for target in document["targets"]
    ]
    lines += [
        "",
        f"Building {SMALL:,} nodes with all tables kept: "
        f"{_spread(document['summary'][str(SMALL)]['graph_s'])} s. "
        f"{document['workers']} thread{'s' * (document['workers'] > 1)} on {document['cpu']}, "
        f"{document['time']}, commit {document['commit']}. "
        f"The slowest round counts. Load average at the end: "
        f"{document['load_average_at_end'][0]:.1f} on {document['cores']} cores.",
        "",
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + END + after)


if __name__ == "__main__":
    sys.exit(main())
