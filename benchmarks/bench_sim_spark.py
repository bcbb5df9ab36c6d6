"""The sweep of the Skip Graph thesis by one Spark worker and by two: how much faster are two?

    python benchmarks/bench_sim_spark.py [--quick] [--rounds N] [--out FILE] [--docs]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from isthmus.simulate.spread import shares, spread

__all__ = ["main", "sweep", "verdict"]

PAGE = DOCS / "bulk-simulator.md"
BEGIN, END = "<!-- bench-sim-spark: begin -->\n", "<!-- bench-sim-spark: end -->\n"
TARGET = 1.7
WORKERS = (1, 2)
ROUNDS = 5
QUIET_CORES = 0.15
"""What other processes may take while it is measured."""
SEEDS = (1, 2)
"""The sweep is done for each of them, so that it takes a minute with one worker."""
PLAIN_TASKS = 10
"""Of those in portions: what a plain process does to show what the machine gives to two of them."""


def sweep(*, quick: bool) -> list[Task]:
    """Fig. 3.9 and 3.10, all patterns, up to 1,000,000 nodes; quick: the largest in portions."""
    extent = Extent.of(quick=False, up_to=1_000_000)
    all_ = [task for seed in SEEDS for task in tasks("paths", extent, seed)]
    return [task for task in all_ if task.in_portions] if quick else all_


@contextmanager
def held_to(cores: int) -> Iterator[None]:
    """So many cores, for this process and all that it starts meanwhile: one for each worker."""
    before = os.sched_getaffinity(0)
    if len(before) < cores:
        raise LoadError(f"{cores} workers need {cores} cores; this process has {len(before)}")
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(workers: int, some: Sequence[Task]) -> dict[str, Any]:
    """How long the sweep takes once every worker is up, and a digest of what it counted."""
    load = os.getloadavg()[0]
    with held_to(workers), open_session(f"local[{workers}]", quick=True) as spark:
        # Every worker has done something of each kind, so that all code is there.
        warm = [task for task in tasks("paths", Extent(1_000, 1_000), 1) if task.cost < 1]
        spread(spark, [Task(task.points, 1, cost=1.0) for task in warm])
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
        "workers_s": python_s[:workers],
        "own_s": sum(used_s.values()),
        "others_cores": max(0.0, others_s / took_s),
        "digest": digest,
        "load_average_before": load,
    }


def plain_ratio() -> float:
    """How much more two processes without Spark do than one: as much as the machine gives.

    Two cores share caches, memory and power; on some machines they are two threads of one.
    """
    cores = sorted(os.sched_getaffinity(0))[:2]
    (alone_s,) = _plain_s(cores[:1])
    return 2 * alone_s / max(_plain_s(cores))


def _plain_s(cores: Sequence[int]) -> list[float]:
    """How long it takes on each of these cores, all at once."""
    command = [sys.executable, __file__, "--plain"]
    begun = [
        subprocess.Popen([*command, str(core)], stdout=subprocess.PIPE, text=True) for core in cores
    ]
    said = [process.communicate()[0] for process in begun]
    if any(process.returncode for process in begun):
        raise LoadError("a plain process failed")
    return [float(each) for each in said]


def _plain(core: int) -> None:
    """In a process of its own: some portions, after one that does not count."""
    os.sched_setaffinity(0, {core})
    first, *rest = [task for task in sweep(quick=True) if task.cost > 0.2][: PLAIN_TASKS + 1]
    list(first.counted())
    began_s = time.perf_counter()
    for task in rest:
        list(task.counted())
    print(time.perf_counter() - began_s)


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
    parser.add_argument("--rounds", type=int, help=f"3 or more; default {ROUNDS}")
    parser.add_argument("--out", type=Path, default=RESULTS / "sim-spark.json", help="JSON file")
    parser.add_argument("--docs", action="store_true", help=f"also write {PAGE.name} and a JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when the target is missed")
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.plain is not None:
        _plain(options.plain)
        return 0
    return run("sim-spark", 120, lambda console: _bench(options, console), check=options.check)


def _bench(options: argparse.Namespace, console: Console) -> bool:
    some = sweep(quick=options.quick)
    rows: list[dict[str, Any]] = []
    plain = []
    for number in range(max(3, options.rounds or (3 if options.quick else ROUNDS))):
        plain.append(plain_ratio())
        console.print(
            f"round {number + 1}: two plain processes do {plain[-1]:.2f} times one's work"
        )
        for workers in WORKERS:
            rows.append({"round": number, **measure(workers, some)})
            row = rows[-1]
            each = " and ".join(f"{used:.1f}" for used in row["workers_s"])
            console.print(
                f"round {number + 1}: {workers} worker{'s' * (workers > 1)}, {row['took_s']:.1f} s "
                f"(processor time: workers {each} s, all {row['own_s']:.1f} s; others took "
                f"{row['others_cores']:.2f} cores)"
            )
    document = {
        "commit": commit(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "where": "local[N], held to N cores",
        "tasks": len(some),
        "shares": len(shares(some)),
        "quick": options.quick,
        "rows": rows,
        "plain_ratios": plain,
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
    rounds: dict[int, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        rounds.setdefault(row["round"], {})[row["workers"]] = row
    quiet = {
        number: both
        for number, both in rounds.items()
        if all(row["others_cores"] <= QUIET_CORES for row in both.values())
    }
    used = list((quiet or rounds).values())
    ratios = [both[1]["took_s"] / both[2]["took_s"] for both in used]
    by_cpu = [both[1]["own_s"] / _least_s(both[2]) for both in used]
    others = [row["others_cores"] for both in used for row in both.values()]
    median = statistics.median(ratios)
    return {
        "quiet_rounds": len(quiet),
        "ratios": ratios,
        "cpu_ratios": by_cpu,
        "cpu_median": statistics.median(by_cpu),
        "median": median,
        "least": min(ratios),
        "most": max(ratios),
        "others_least": min(others),
        "others_most": max(others),
        "target": TARGET,
        "met": median >= TARGET,
    }


def _least_s(row: Mapping[str, Any]) -> float:
    """How long it takes at least, with all cores to itself: the busiest worker, or all of it."""
    return float(max(*row["workers_s"], row["own_s"] / row["workers"]))


def _said(document: Mapping[str, Any]) -> str:
    seconds = {
        workers: statistics.median(
            row["took_s"] for row in document["rows"] if row["workers"] == workers
        )
        for workers in WORKERS
    }
    plain = document["plain_ratios"]
    low, high = (100 * document[key] / document["cores"] for key in ("others_least", "others_most"))
    return (
        f"two Spark workers: {document['median']:.2f} times one "
        f"({document['least']:.2f} to {document['most']:.2f}, {len(document['ratios'])} rounds; "
        f"median {seconds[1]:.1f} s and {seconds[2]:.1f} s for {document['tasks']} tasks), "
        f"at least {document['target']}: {'met' if document['met'] else 'MISSED'}. "
        f"Others took {low:.0f} to {high:.0f} % of the processor"
        + ("" if document["quiet_rounds"] else ", so that no round was quiet")
        + f". By processor time alone, in which waiting for others does not count: "
        f"{document['cpu_median']:.2f} "
        f"({min(document['cpu_ratios']):.2f} to {max(document['cpu_ratios']):.2f}). "
        f"Two plain processes without Spark: {statistics.median(plain):.2f} times one "
        f"({min(plain):.2f} to {max(plain):.2f})"
    )


def _write_page(document: Mapping[str, Any]) -> None:
    """What stands between the two marks."""
    said = _said(document)
    text = (
        f"{said[0].upper()}{said[1:]}. Every round counted the same, to the last digit. "
        f"{document['where']}, {document['cpu']}, {document['cores']} cores. "
        f"{document['time']}, commit "
        f"{document['commit']} (`make bench-sim-spark ARGS=--docs`, "
        "[bulk-simulator-spark.json](bulk-simulator-spark.json)).\n"
    )
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + text + END + after)


if __name__ == "__main__":
    sys.exit(main())
