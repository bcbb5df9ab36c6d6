"""The sweep of the Skip Graph thesis by one Spark worker and by two: how much faster are two?

    python benchmarks/bench_sim_spark.py [--quick] [--rounds N] [--cluster] [--out FILE] [--docs]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import RESULTS, run
from benchmarks.pages import DOCS, commit
from benchmarks.relay.report import cpu_model, write_json

from isthmus.errors import LoadError
from isthmus.pipeline.spark.cluster import Cluster
from isthmus.pipeline.spark.session import open_session
from isthmus.reproduce.skipgraph.experiments import Extent, Task, tasks
from isthmus.simulate.spread import spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main", "sweep", "verdict"]

PAGE = DOCS / "bulk-simulator.md"
BEGIN, END = "<!-- bench-sim-spark: begin -->\n", "<!-- bench-sim-spark: end -->\n"
TARGET = 1.7
WORKERS = (1, 2)
ROUNDS = 5
SEED = 1


def sweep(*, quick: bool) -> list[Task]:
    """Fig. 3.9 and 3.10, all patterns, up to 1,000,000 nodes; quick: the largest in portions."""
    extent = Extent.of(quick=False, up_to=1_000_000)
    all_ = tasks("paths", extent, SEED)
    return [task for task in all_ if task.in_portions] if quick else all_


@contextmanager
def session(workers: int, *, cluster: bool) -> Iterator[SparkSession]:
    """With so many workers of one core."""
    if not cluster:
        with open_session(f"local[{workers}]", quick=True) as spark:
            yield spark
        return
    with Cluster(workers=workers) as started, open_session(started.master_url, quick=True) as spark:
        yield spark


def measure(workers: int, some: Sequence[Task], *, cluster: bool) -> dict[str, Any]:
    """How long the sweep takes once every worker is up, and a digest of what it counted."""
    load = os.getloadavg()[0]
    with session(workers, cluster=cluster) as spark:
        warm = [Task(task.points, SEED) for task in tasks("depths", Extent(), SEED)[:8]]
        spread(spark, [Task(task.points, SEED, cost=1.0) for task in warm])
        began_s = time.perf_counter()
        found = spread(spark, some)
        took_s = time.perf_counter() - began_s
    digest = hashlib.sha256(repr(found.to_pylist()).encode()).hexdigest()
    return {"workers": workers, "took_s": took_s, "digest": digest, "load_average_before": load}


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 when it failed, or when `--check` is given and the target was missed."""
    parser = argparse.ArgumentParser(prog="bench_sim_spark", description="One worker against two.")
    parser.add_argument("--quick", action="store_true", help="three rounds of a part of the sweep")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--cluster", action="store_true", help="a master and workers, not local[N]")
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
            rows.append({"round": number, **measure(workers, some, cluster=options.cluster)})
            row = rows[-1]
            console.print(
                f"round {number + 1}: {workers} worker{'s' * (workers > 1)}, {row['took_s']:.1f} s "
                f"(load average before: {row['load_average_before']:.1f})"
            )
    document = {
        "commit": commit(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "where": "standalone cluster" if options.cluster else "local[N]",
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
    """The ratio of each round, and whether the median reaches the target."""
    if len({row["digest"] for row in rows}) != 1:
        raise LoadError("the same seed counted differently on another number of workers")
    ratios = []
    for number in sorted({row["round"] for row in rows}):
        took_s = {row["workers"]: row["took_s"] for row in rows if row["round"] == number}
        ratios.append(took_s[1] / took_s[2])
    median = statistics.median(ratios)
    return {
        "ratios": ratios,
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
        f"at least {document['target']}: {'met' if document['met'] else 'MISSED'}"
    )


def _write_page(document: Mapping[str, Any]) -> None:
    """What stands between the two marks."""
    loads = [row["load_average_before"] for row in document["rows"]]
    text = (
        f"{_said(document).capitalize()}. Every round counted the same, to the last digit. "
        f"{document['where']}, {document['cpu']}, {document['cores']} cores, load average before "
        f"the measurements {min(loads):.1f} to {max(loads):.1f}, {document['time']}, commit "
        f"{document['commit']} (`make bench-sim-spark ARGS=--docs`, "
        "[bulk-simulator-spark.json](bulk-simulator-spark.json)).\n"
    )
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + text + END + after)


if __name__ == "__main__":
    sys.exit(main())
