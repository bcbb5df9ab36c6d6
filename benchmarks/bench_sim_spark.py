"""The sweep of the Skip Graph thesis by one Spark worker and by two: how much faster are two?

    python benchmarks/bench_sim_spark.py [--quick] [--rounds N] [--out FILE] [--docs]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import RESULTS, run
from benchmarks.pages import DOCS, commit
from benchmarks.relay.report import cpu_model, write_json

from isthmus.errors import LoadError
from isthmus.pipeline.spark.session import open_session, session_processes
from isthmus.reproduce.skipgraph.experiments import Extent, Task, tasks
from isthmus.simulate.spread import spread

__all__ = ["main", "sweep", "verdict"]

PAGE = DOCS / "bulk-simulator.md"
BEGIN, END = "<!-- bench-sim-spark: begin -->\n", "<!-- bench-sim-spark: end -->\n"
TARGET = 1.7
WORKERS = (1, 2)
ROUNDS = 5
QUIET_CORES = 0.15
"""What other processes may take while it is measured."""
SEED = 1


def sweep(*, quick: bool) -> list[Task]:
    """Fig. 3.9 and 3.10, all patterns, up to 1,000,000 nodes; quick: the largest in portions."""
    extent = Extent.of(quick=False, up_to=1_000_000)
    all_ = tasks("paths", extent, SEED)
    return [task for task in all_ if task.in_portions] if quick else all_


def measure(workers: int, some: Sequence[Task]) -> dict[str, Any]:
    """How long the sweep takes once every worker is up, and a digest of what it counted."""
    load = os.getloadavg()[0]
    with open_session(f"local[{workers}]", quick=True) as spark:
        warm = [Task(task.points, SEED) for task in tasks("depths", Extent(), SEED)[:8]]
        spread(spark, [Task(task.points, SEED, cost=1.0) for task in warm])
        began_s, busy_s, own_s = time.perf_counter(), _busy_s(), _own_s()
        found = spread(spark, some)
        took_s = time.perf_counter() - began_s
        used_s = {pid: used - own_s.get(pid, 0.0) for pid, used in _own_s().items()}
        others_s = _busy_s() - busy_s - sum(used_s.values())
        python_s = sorted((used for pid, used in used_s.items() if _is_worker(pid)), reverse=True)
    digest = hashlib.sha256(repr(found.to_pylist()).encode()).hexdigest()
    return {
        "workers": workers,
        "took_s": took_s,
        "busiest_s": python_s[0],
        "others_cores": max(0.0, others_s / took_s),
        "digest": digest,
        "load_average_before": load,
    }


def _busy_s() -> float:
    """Processor time that this machine has used."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _own_s() -> dict[int, float]:
    """Processor time of this process and of those of its session, by process."""
    found = {}
    for pid in (os.getpid(), *(session_processes())):
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            found[pid] = times.user + times.system
    return found


def _is_worker(pid: int) -> bool:
    """Whether it is a Python worker of Spark's."""
    try:
        return "pyspark.worker" in psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 when it failed, or when `--check` is given and the target was missed."""
    parser = argparse.ArgumentParser(prog="bench_sim_spark", description="One worker against two.")
    parser.add_argument("--quick", action="store_true", help="three rounds of a part of the sweep")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--out", type=Path, default=RESULTS / "sim-spark.json", help="JSON file")
    parser.add_argument("--docs", action="store_true", help=f"also write {PAGE.name} and a JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when the target is missed")
    options = parser.parse_args(arguments)
    return run("sim-spark", 120, lambda console: _bench(options, console), check=options.check)


def _bench(options: argparse.Namespace, console: Console) -> bool:
    some = sweep(quick=options.quick)
    rows: list[dict[str, Any]] = []
    for number in range(options.rounds or (3 if options.quick else ROUNDS)):
        # There and back, so that a slow drift of the machine touches both alike.
        for workers in WORKERS if number % 2 == 0 else WORKERS[::-1]:
            rows.append({"round": number, **measure(workers, some)})
            row = rows[-1]
            console.print(
                f"round {number + 1}: {workers} worker{'s' * (workers > 1)}, {row['took_s']:.1f} s "
                f"(busiest worker {row['busiest_s']:.1f} s of processor time; others took "
                f"{row['others_cores']:.2f} cores)"
            )
    document = {
        "commit": commit(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "where": "local[N]",
        "tasks": len(some),
        "quick": options.quick,
        "rows": rows,
        **verdict(rows),
    }
    console.print(_said(document))
    write_json(document, options.out)
    if options.docs:
        write_json(document, PAGE.with_name("bulk-simulator-spark.json"))
        _write_page(document)
    return bool(document["met"])


def verdict(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ratio of each round, and whether the median reaches the target.

    Where others left both measurements of a round alone, those rounds count; else all do.
    """
    if len({row["digest"] for row in rows}) != 1:
        raise LoadError("the same seed counted differently on another number of workers")
    numbers = sorted({row["round"] for row in rows})
    quiet = [
        number
        for number in numbers
        if all(row["others_cores"] <= QUIET_CORES for row in rows if row["round"] == number)
    ]
    ratios, busiest = (
        [
            by_workers[1] / by_workers[2]
            for number in quiet or numbers
            for by_workers in [{row["workers"]: row[key] for row in rows if row["round"] == number}]
        ]
        for key in ("took_s", "busiest_s")
    )
    median = statistics.median(ratios)
    return {
        "quiet_rounds": len(quiet),
        "ratios": ratios,
        "busiest_ratios": busiest,
        "busiest_median": statistics.median(busiest),
        "median": median,
        "least": min(ratios),
        "most": max(ratios),
        "target": TARGET,
        "met": median >= TARGET,
    }


def _said(document: Mapping[str, Any]) -> str:
    seconds = {
        workers: statistics.median(
            row["took_s"] for row in document["rows"] if row["workers"] == workers
        )
        for workers in WORKERS
    }
    return (
        f"two Spark workers: {document['median']:.2f} times one "
        f"({document['least']:.2f} to {document['most']:.2f}, {len(document['ratios'])} rounds; "
        f"median {seconds[1]:.1f} s and {seconds[2]:.1f} s for {document['tasks']} tasks), "
        f"at least {document['target']}: {'met' if document['met'] else 'MISSED'}; "
        "by processor time of the busiest worker, which others cannot lengthen, "
        f"{document['busiest_median']:.2f} "
        f"({min(document['busiest_ratios']):.2f} to {max(document['busiest_ratios']):.2f})"
    )


def _write_page(document: Mapping[str, Any]) -> None:
    """What stands between the two marks."""
    others = [row["others_cores"] for row in document["rows"]]
    said = _said(document)
    text = (
        f"{said[0].upper()}{said[1:]}. Every round counted the same, to the last digit. "
        f"{document['where']}, {document['cpu']}, {document['cores']} cores, of which others took "
        f"{min(others):.1f} to {max(others):.1f}"
        + (". " if document["quiet_rounds"] else ", so that no round was quiet. ")
        + f"{document['time']}, commit "
        f"{document['commit']} (`make bench-sim-spark ARGS=--docs`, "
        "[bulk-simulator-spark.json](bulk-simulator-spark.json)).\n"
    )
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + text + END + after)


if __name__ == "__main__":
    sys.exit(main())
