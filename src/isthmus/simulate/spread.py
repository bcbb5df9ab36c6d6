"""Tasks of a bulk simulation, spread over the workers of Spark.

    range(n) ─▶ mapInArrow: simulate ─▶ tallies ─▶ one order

A task is a function of itself, so it does not matter which worker does it, how many there are, in
which order, or whether one of them does it twice.  Without Spark (`spark=None`) they are done here,
one after the other, with the same result.

The longest tasks begin first, and short ones go together, so that all workers end at about the same
time; large ones that do not fit into memory side by side come one after the other (`fit`).  Only
what Spark Connect has too is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from isthmus.errors import SparkFailed
from isthmus.simulate.fit import Fit
from isthmus.simulate.tallies import COUNTED, BulkTask, in_order, sorted_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["in_batches", "local_workers", "shares", "spread"]

AnyTask = TypeVar("AnyTask", bound=BulkTask)

SHARE_S: Final = 0.25
"""Tasks are put together until they take about so long; Spark needs some 10 ms for each share."""
BATCH_S: Final = 60.0
"""About so long all workers have something to do before what they counted can be kept."""


def spread(
    spark: SparkSession | None, tasks: Sequence[BulkTask], fit: Fit | None = None
) -> pa.Table:
    """What all tasks counted, as `COUNTED` in its one order; raises `SparkFailed`.

    With `fit`, tasks that do not fit into memory side by side are not done at once.
    """
    if spark is None:
        return in_order(each for task in tasks for each in task.counted())
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    shared = shares(tasks, fit)

    def simulate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column("id").to_pylist():
                for task in shared[share]:
                    yield from in_order(task.counted()).to_batches()

    numbers = spark.range(0, len(shared), 1, max(len(shared), 1))
    try:
        found = numbers.mapInArrow(simulate, from_arrow_schema(COUNTED)).toArrow()
    except PySparkException as error:
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        python = [line for line in said if re.match(r"\w+(Error|Exception): ", line)]
        raise SparkFailed("the simulation", f"a task failed: {(python or said)[-1]}") from error
    return sorted_rows(found.cast(COUNTED))


def shares(tasks: Sequence[BulkTask], fit: Fit | None = None) -> list[list[BulkTask]]:
    """The longest first; short ones together; large ones in as many shares as `fit` has lanes.

    A share is done by one worker, one task after the other.
    """
    longest = sorted(tasks, key=lambda task: -task.cost)
    large = [] if fit is None else [task for task in longest if fit.is_large(task)]
    lanes: list[list[BulkTask]] = [[] for _ in range(min(len(large), fit.lanes if fit else 0))]
    for task in large:
        min(lanes, key=_cost).append(task)
    found: list[list[BulkTask]] = []
    for task in longest:
        if fit is not None and fit.is_large(task):
            continue
        if not found or _cost(found[-1]) + task.cost > SHARE_S:
            found.append([])
        found[-1].append(task)
    return lanes + found


def _cost(some: Sequence[BulkTask]) -> float:
    return sum(task.cost for task in some)


def in_batches(tasks: Sequence[AnyTask], workers: int) -> list[list[AnyTask]]:
    """The longest first, in pieces that keep all workers busy for `BATCH_S` or so."""
    found: list[list[AnyTask]] = []
    cost = 0.0
    for task in sorted(tasks, key=lambda task: -task.cost):
        if not found or cost > BATCH_S * workers:
            found.append([])
            cost = 0.0
        found[-1].append(task)
        cost += task.cost
    return found


def local_workers(master: str) -> int | None:
    """How many tasks run at once on this machine; None on a cluster."""
    given = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    if given is None:
        return None
    if given[1] == "*":
        return len(os.sched_getaffinity(0))
    return int(given[1] or 1)
