"""Tasks of a bulk simulation, spread over the workers of Spark.

    range(n) ─▶ mapInArrow: simulate ─▶ tallies ─▶ one order

A task is a function of itself, so it does not matter which worker does it, how many there are, in
which order, or whether one of them does it twice.  Without Spark (`spark=None`) they are done here,
one after the other, with the same result.

The longest tasks begin first, and short ones go together, so that all workers end at about the same
time.  Only what Spark Connect has too is used.

What it takes is told before anything begins (`check_memory`): the program itself and the largest
task for each worker.  What is free elsewhere, on a cluster, is not known here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from isthmus.errors import SimulationTooLarge, SparkFailed
from isthmus.simulate.tallies import COUNTED, BulkTask, in_order, sorted_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_memory", "local_workers", "shares", "spread"]

SHARE_S: Final = 0.25
"""Tasks are put together until they take about so long; Spark needs some 10 ms for each share."""
PROGRAM_BYTES: Final = 200 << 20
"""A Python worker with NumPy and PyArrow."""
SPARK_BYTES: Final = 1 << 30
"""The JVM and this process."""


def spread(spark: SparkSession | None, tasks: Sequence[BulkTask]) -> pa.Table:
    """What all tasks counted, as `COUNTED` in its one order; raises `SparkFailed`."""
    if spark is None:
        return in_order(each for task in tasks for each in task.counted())
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    shared = shares(tasks)

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


def shares(tasks: Sequence[BulkTask]) -> list[list[BulkTask]]:
    """The longest first; short ones together."""
    found: list[list[BulkTask]] = []
    cost = SHARE_S
    for task in sorted(tasks, key=lambda task: -task.cost):
        if cost + task.cost > SHARE_S:
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


def check_memory(nodes: int, tasks: Sequence[BulkTask], workers: int, free_bytes: int) -> int:
    """About what it takes; raises `SimulationTooLarge` if that is more than what is free.

    `nodes` are those of the largest network, for the message.
    """
    largest = sorted((task.memory_bytes for task in tasks), reverse=True)[:workers]
    needed = SPARK_BYTES + sum(PROGRAM_BYTES + each for each in largest)
    if needed > free_bytes:
        raise SimulationTooLarge(nodes, needed, free_bytes)
    return needed
