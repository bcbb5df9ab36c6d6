"""``isthmus reproduce skipgraph``: the evaluation of the Skip Graph thesis.

    OUT/log/            what every simulation counted, in the one log
    OUT/parts/          what a long one has counted so far; gone when it is in the log
    OUT/figures/        the rows of each figure, as the Spark jobs made them
    OUT/calls.json      when it was simulated, and how long that took
    OUT/report.html     the thesis's figures and statements beside ours
    OUT/results.json    all of it

In a folder that holds simulations of the same seed already, those are used and the others are made:
one that was interrupted goes on, and a larger `--up-to` adds to it.

What it takes in memory is told before it begins.  Tasks that do not fit side by side come one after
the other; if one does not fit by itself, all is refused (`simulate.fit`).

Source: thesis chapters 3 and 4.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from rich.console import Console

from isthmus.pipeline.spark.job import write_tables
from isthmus.pipeline.spark.job_progress import shown_progress
from isthmus.pipeline.spark.session import open_session
from isthmus.processes.resources import FreeResources
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.folder import check_kind
from isthmus.reproduce.narration import clock, print_claims
from isthmus.reproduce.skipgraph.experiments import FIGURES, Task, chosen_figures, tasks
from isthmus.reproduce.skipgraph.jobs import compute_figures
from isthmus.reproduce.skipgraph.paper import compare
from isthmus.reproduce.skipgraph.points import EXPERIMENTS, Experiment
from isthmus.reproduce.skipgraph.report import Reproduced, Settings, write_report
from isthmus.simulate.fit import Fit, check_memory
from isthmus.simulate.parts import Parts
from isthmus.simulate.spread import in_batches, local_workers, spread
from isthmus.simulate.tallies import is_recorded, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Reproduced", "Settings", "reproduce", "run_skipgraph"]

CALLS: Final = "calls.json"


def run_skipgraph(settings: Settings) -> int:
    """The command: 0 when everything was simulated, whatever came out."""
    reproduce(settings)
    return 0


def reproduce(
    settings: Settings,
    *,
    console: Console | None = None,
    free_bytes: Callable[[], int] = lambda: FreeResources().now()[1],
    write: Callable[[Reproduced, Sequence[Claim]], None] = write_report,
) -> Reproduced:
    """Simulate, compute the figures, write the report; the last two are seams for tests."""
    console = console or Console(highlight=False)
    began_s = time.monotonic()
    figures = chosen_figures(settings.only)
    planned = _planned(settings, figures)
    done = Reproduced(settings)
    log = settings.out / "log"
    missing = {name: _missing(log, some) for name, some in planned.items()}
    done.runs = len({p.run for some in planned.values() for task in some for p in task.points})
    fits = _checked_memory(settings, missing, free_bytes())
    done.estimate_bytes = max((fit.needed_bytes for fit in fits.values()), default=None)
    kind = {"what": "isthmus reproduce skipgraph", "quick": settings.quick, "seed": settings.seed}
    check_kind(settings.out, kind)
    _say_plan(console, done, missing, fits)
    with open_session(settings.master, quick=True) as spark:
        done.stages_s["Spark's start"] = time.monotonic() - began_s
        for name, some in missing.items():
            if some:
                done.simulated += _simulate(console, spark, done, some, fits.get(name))
        with _stage(console, spark, done, "figures", f"figures: {', '.join(figures)}"):
            runs = [p.run for some in planned.values() for task in some for p in task.points]
            made = compute_figures(spark, log, list(dict.fromkeys(runs)), figures)
    done.figures = made
    tables = {name: pa.Table.from_pylist(rows) for name, rows in made.items()}
    write_tables(settings.out / "figures", tables)
    done.took_s = time.monotonic() - began_s
    _keep_call(done)
    claims = compare(done.figures)
    claims = [claim for claim in claims if not settings.only or claim.verdict != "not measured"]
    write(done, claims)
    print_claims(console, claims)
    took = clock(done.took_s)
    console.print(f"took {took}; the report is {settings.out / 'report.html'}", soft_wrap=True)
    return done


def _keep_call(done: Reproduced) -> None:
    """Note how long what is in the folder took; one that simulated nothing is not worth it."""
    path = done.settings.out / CALLS
    done.calls = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if done.simulated:
        done.calls.append(done.call())
        path.write_text(json.dumps(done.calls, indent=1) + "\n", encoding="utf-8")


def _planned(settings: Settings, figures: Sequence[str]) -> dict[Experiment, list[Task]]:
    needed = {FIGURES[name] for name in figures}
    return {
        name: tasks(name, settings.extent, settings.seed) for name in EXPERIMENTS if name in needed
    }


def _missing(log: Path, some: Sequence[Task]) -> list[Task]:
    """Those of which a run is not in the log; all parts of a run are simulated together."""
    there = {run: is_recorded(log, run) for run in {p.run for task in some for p in task.points}}
    return [task for task in some if not all(there[point.run] for point in task.points)]


def _checked_memory(
    settings: Settings, missing: dict[Experiment, list[Task]], free_bytes: int
) -> dict[Experiment, Fit]:
    """About what each takes here; nothing on a cluster, of which nothing is known."""
    every = [task for some in missing.values() for task in some]
    workers = local_workers(settings.master)
    if workers is None or not every:
        return {}
    nodes = max(point.nodes for task in every for point in task.points)
    return {
        name: check_memory(nodes, some, workers, free_bytes)
        for name, some in missing.items()
        if some
    }


def _say_plan(
    console: Console,
    done: Reproduced,
    missing: dict[Experiment, list[Task]],
    fits: dict[Experiment, Fit],
) -> None:
    count = sum(map(len, missing.values()))
    largest = max(done.settings.extent.networks())
    said = f"{done.runs} runs, networks of up to {largest:,} nodes: {count:,} tasks to simulate"
    if done.estimate_bytes is not None:
        cost_s = sum(task.cost for some in missing.values() for task in some)
        said += (
            f", up to about {done.estimate_bytes / 2**30:.1f} GiB of memory and "
            f"{clock(cost_s)} of one core"
        )
    console.print(said, soft_wrap=True)
    workers = local_workers(done.settings.master)
    for name, fit in fits.items():
        if workers is not None and fit.lanes < workers:
            large = sum(fit.is_large(task) for task in missing[name])
            console.print(
                f"{name}: {large} of {len(missing[name]):,} tasks are too large for memory side by "
                f"side; {fit.lanes} at once",
                soft_wrap=True,
            )


def _simulate(
    console: Console, spark: SparkSession, done: Reproduced, some: Sequence[Task], fit: Fit | None
) -> int:
    """One experiment, recorded when it is whole; what is counted before is kept in parts."""
    name = some[0].points[0].experiment
    labels = {p.run: p.labels(done.settings.seed) for task in some for p in task.points}
    parts = Parts(done.settings.out / "parts", name)
    there = parts.pieces()
    left = [task for task in some if not task.pieces <= there]
    kept = {piece for task in some if task.pieces <= there for piece in task.pieces}
    words = f"{EXPERIMENTS[name]}: {len(left):,} tasks"
    if kept:
        words += f", {len(some) - len(left):,} others were done before"
    with _stage(console, spark, done, name, words):
        pieces = in_batches(left, local_workers(done.settings.master) or os.cpu_count() or 1)
        for number, batch in enumerate(pieces):
            counted = spread(spark, batch, fit)
            if len(pieces) > 1 or kept:
                parts.keep(counted)
                kept |= {piece for task in batch for piece in task.pieces}
                console.print(f"{name}: {number + 1} of {len(pieces)} pieces are kept")
        whole = parts.counted(kept) if kept else counted
        record(done.settings.out / "log", f"skipgraph {name}", labels, whole)
    parts.clear()
    return len(labels)


@contextmanager
def _stage(
    console: Console, spark: SparkSession, done: Reproduced, name: str, words: str
) -> Iterator[None]:
    """Say what is being done, show how far it is, and keep how long it took."""
    console.print(words, markup=False, soft_wrap=True)
    began_s = time.monotonic()
    with shown_progress(spark, console, name):
        yield
    done.stages_s[name] = time.monotonic() - began_s
