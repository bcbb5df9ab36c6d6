"""The indexes of 200 million deliveries: our Spark job against DuckDB on the same files.

    python benchmarks/bench_pipeline.py [--rounds 3] [--scale 1.0] [--data DIR] [--out FILE]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import RESULTS, run
from benchmarks.pipeline.generate import Shape, generate
from benchmarks.pipeline.rounds import Taken, differences, take
from benchmarks.relay.report import document_of, machine_facts, write_json
from benchmarks.relay.statistics import Target

__all__ = ["main", "targets_of"]

LIMIT_TIMES: Final = 1.5
LIMIT_BYTES: Final = 4 << 30
LIMIT_DOUBLING: Final = 2.0


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    parser = argparse.ArgumentParser(prog="bench_pipeline", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="of each engine; default 3")
    parser.add_argument("--scale", type=float, default=1.0, help="1.0: 20 M and 200 M rows")
    parser.add_argument("--data", type=Path, default=RESULTS, help="where the logs are written")
    parser.add_argument("--time-limit", type=float, default=900, help="seconds for one engine")
    parser.add_argument("--out", type=Path, default=RESULTS / "pipeline.json")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args(arguments)
    if not 0.0005 <= options.scale <= 100 or options.rounds < 1:
        parser.error("--scale is from 0.0005 to 100, --rounds 1 or more")
    return run("pipeline", 120, lambda console: _bench(options, console), check=options.check)


def _bench(options: argparse.Namespace, console: Console) -> bool:
    machine = machine_facts(console)
    began = time.perf_counter()
    logs = {}
    for scale in (options.scale / 2, options.scale):
        logs[scale] = options.data / f"pipeline-log-{scale:g}"
        console.print(f"log at scale {scale:g}: {200 * scale:g} million deliveries")
        generate(logs[scale], Shape(scale), console.print)
    taken: dict[tuple[str, float], list[Taken]] = {}
    full, half = options.scale, options.scale / 2
    order = [("duckdb-counted", full), ("spark", full), ("duckdb-exact", full), ("spark", half)]
    for number in range(options.rounds):
        for engine, scale in order:
            one = take(engine, logs[scale], options.time_limit)
            shown = _line(one) if one else f"took longer than {options.time_limit:g} s"
            console.print(f"round {number + 1}, {engine} at scale {scale:g}: {shown}")
            if one is not None:
                taken.setdefault((engine, scale), []).append(one)
    differ = _compare(taken, full)
    targets = targets_of(taken, full, half, differ, options.time_limit)
    parts: dict[str, Any] = {
        "machine": machine,
        "scale": full,
        "took_s": round(time.perf_counter() - began, 1),
        "differences": differ,
        "rounds": [
            {"scale": scale} | {k: v for k, v in asdict(one).items() if k != "tables"}
            for (_, scale), several in taken.items()
            for one in several
        ],
    }
    write_json(document_of(parts, targets), options.out)
    _report(console, taken, targets, differ)
    console.print(f"written to {options.out}")
    return all(target.met for target in targets)


def _line(one: Taken) -> str:
    return (
        f"{one.work_s:.1f} s of work, {one.startup_s:.1f} s to start, {one.cpu_s:.0f} s CPU, "
        f"{one.peak_bytes / 2**30:.2f} GiB"
    )


def _compare(taken: dict[tuple[str, float], list[Taken]], full: float) -> list[str]:
    """Where our tables are not DuckDB's; of its counting form those that it has alike."""
    found: list[str] = []
    for ours in taken.get(("spark", full), [])[:1]:
        for engine in ("duckdb-exact", "duckdb-counted"):
            for theirs in taken.get((engine, full), [])[:1]:
                same = theirs
                if engine == "duckdb-counted":  # its latency is that of duplicates too
                    tables = {k: v for k, v in theirs.tables.items() if k != "latency"}
                    same = replace(theirs, tables=tables)
                found += [f"{engine}: {difference}" for difference in differences(ours, same)]
    return found


def targets_of(
    taken: dict[tuple[str, float], list[Taken]],
    full: float,
    half: float,
    differ: list[str],
    time_limit_s: float,
) -> list[Target]:
    """The verdicts.  What could not be measured is not met; a DuckDB that was stopped took longer
    than the limit, so that the ratio is at most the one to the limit."""

    def work_s(engine: str, scale: float) -> float | None:
        several = taken.get((engine, scale))
        return statistics.median(one.work_s for one in several) if several else None

    def over(engine: str, scale: float, least_s: float | None = None) -> float | None:
        other = work_s(engine, scale) or least_s
        return spark / other if spark is not None and other is not None else None

    spark = work_s("spark", full)
    peak_bytes = max((one.peak_bytes for one in taken.get(("spark", full), ())), default=None)
    peak = None if peak_bytes is None else peak_bytes / 2**30
    compared = spark is not None and ("duckdb-exact", full) in taken
    stopped = f"DuckDB was stopped after {time_limit_s:g} s"
    return [
        Target(
            f"time over DuckDB's for {what}",
            "times",
            over(engine, full, time_limit_s),
            LIMIT_TIMES,
            note="" if (engine, full) in taken else stopped,
        )
        for engine, what in (("duckdb-exact", "the same tables"), ("duckdb-counted", "counts only"))
    ] + [
        Target("memory", "GiB", peak, LIMIT_BYTES / 2**30),
        Target("time for twice the rows", "times", over("spark", half), LIMIT_DOUBLING),
        Target(
            "tables that differ from DuckDB's", "", float(len(differ)) if compared else None, 0.0
        ),
    ]


def _report(
    console: Console,
    taken: dict[tuple[str, float], list[Taken]],
    targets: list[Target],
    differ: list[str],
) -> None:
    table = Table("engine", "scale", "work, s (least, median, most)", "start-up, s", "GiB")
    for (engine, scale), several in taken.items():
        times = sorted(one.work_s for one in several)
        spread = f"{times[0]:.1f}, {statistics.median(times):.1f}, {times[-1]:.1f}"
        startup = f"{statistics.median(one.startup_s for one in several):.1f}"
        peak = f"{max(one.peak_bytes for one in several) / 2**30:.2f}"
        table.add_row(engine, f"{scale:g}", spread, startup, peak)
    console.print(table)
    for target in targets:
        met = "met   " if target.met else "missed"
        value = "not measured" if target.value is None else f"{target.value:.2f} {target.unit}"
        note = f"; {target.note}" if target.note else ""
        bound = f"(at most {target.bound:g})"
        console.print(f"{met}  {target.name}: {value} {bound}{note}", markup=False)
    for difference in differ:
        console.print(difference, style="red", markup=False)


if __name__ == "__main__":
    raise SystemExit(main())
