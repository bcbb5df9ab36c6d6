"""The indexes of a log, computed by Spark.

    range(n) ─▶ mapInArrow: one file after the other ─▶ partial counts ─▶ group by run ─▶ tables
                                                                          (a column of each)

A task reads its own files with PyArrow, counts with NumPy and hands back few rows
(:mod:`isthmus.pipeline.count.partials`); no delivery ever passes through the JVM, and nothing large
is shuffled.  `publishes` are counted first, because a delivery or a hop counts only if its message
was published; their small partial counts go through the driver to the tasks for those.

Only what Spark Connect has too is used, and only tasks touch the log.  So it runs unchanged on
``local[*]``, a standalone cluster and Spark Connect, as long as every executor sees the log's
folder under the same path and can import this package.

Memory: of a task see :mod:`isthmus.pipeline.count.kernel`; grouping a run takes 12 bytes per
distinct latency (in µs) of each file and topic.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from isthmus.errors import LogError
from isthmus.pipeline.count.counting import NEED_PUBLISHED, count_file, survey
from isthmus.pipeline.count.partials import PARTIALS, Partial, record_batches
from isthmus.pipeline.count.published import Numbers
from isthmus.pipeline.count.tables import INDEXES, index_tables
from isthmus.pipeline.log.reading import LoggedFile, list_runs, read_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["compute"]

_LEAST_TASKS: Final = 16
_TASK_ROWS: Final = 4_000_000
"""Files are put together until a task has about so many rows."""

_RESULTS: Final = pa.schema(
    [("run", pa.string()), ("error", pa.string())]
    + [
        (name, pa.list_(pa.struct([column.with_nullable(True) for column in schema])))
        for name, schema in INDEXES.items()
    ]
)
"""What grouping hands back: a run's rows of each table, or where and why its log is refused."""


@dataclass(frozen=True, slots=True)
class FileTask:
    """A file to count; `published` has the message numbers of the run's publishers."""

    run: str
    file: LoggedFile
    published: dict[int, bytes] = field(default_factory=dict)


def compute(
    spark: SparkSession, log: Path, runs: Sequence[str] | None = None
) -> dict[str, DataFrame]:
    """Every table of :data:`~isthmus.pipeline.count.tables.INDEXES` over all runs, or those named.

    The counting is done when this returns; the tables are cached in the session.  A log that
    cannot be trusted raises `LogError`.
    """
    folder = os.path.abspath(log)
    if runs is not None:
        runs = tuple(dict.fromkeys(runs))  # one that is named twice is counted once
    surveyed = _raised(_survey(spark, folder, runs).toArrow())
    files = [
        (run, LoggedFile(table, writer, rows))
        for run, item, rows in _columns(surveyed, "file", "run", "item", "amount")
        for table, writer in [item.split("/", 1)]
    ]
    first = [FileTask(run, file) for run, file in files if file.table not in NEED_PUBLISHED]
    counted = _raised(_count(spark, folder, first).toArrow())
    published: dict[str, dict[int, bytes]] = {}
    for run, publisher, data in _columns(counted, "published", "run", "number", "data"):
        published.setdefault(run, {})[publisher] = data
    last = [
        FileTask(run, file, published.get(run, {}))
        for run, file in files
        if file.table in NEED_PUBLISHED
    ]
    small = spark.createDataFrame(pa.concat_tables([surveyed, counted]), _spark(PARTIALS))
    results = _grouped(_count(spark, folder, last).union(small), folder).persist()
    for row in results.where("error IS NOT NULL").select("run", "error").collect():
        raise LogError(row["run"], row["error"])
    return {name: results.selectExpr(f"inline(`{name}`)") for name in INDEXES}


def _survey(spark: SparkSession, folder: str, runs: Sequence[str] | None) -> DataFrame:
    """Which files there are, as partial counts; by a task, as the driver may not see the log."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from record_batches(_guarded(partials))

    def partials() -> Iterator[Partial]:
        log = Path(folder)
        for run in list_runs(log) if runs is None else runs:
            yield from survey(read_run(log, run))

    return spark.range(0, 1, 1, 1).mapInArrow(look, _spark(PARTIALS))


def _count(spark: SparkSession, folder: str, tasks: Sequence[FileTask]) -> DataFrame:
    """The partial counts of the files of `tasks`."""
    shares = _shared_out(tasks)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column("id").to_pylist():
                for task in shares[share]:
                    yield from record_batches(_guarded(partial(_counted, folder, task)))

    return spark.range(0, len(shares), 1, max(len(shares), 1)).mapInArrow(count, _spark(PARTIALS))


def _counted(folder: str, task: FileTask) -> Iterator[Partial]:
    log = Path(folder)
    published = {number: Numbers.from_bytes(data) for number, data in task.published.items()}
    return count_file(log, read_run(log, task.run), task.file, published)


def _guarded(partials: Callable[[], Iterator[Partial]]) -> Iterator[Partial]:
    """The same; a log that cannot be trusted becomes a row, which the driver raises again."""
    try:
        yield from partials()
    except LogError as error:
        yield Partial(error.where, "error", data=error.problem.encode())


def _raised(partials: pa.Table) -> pa.Table:
    for where, problem in _columns(partials, "error", "run", "data"):
        raise LogError(where, problem.decode())
    return partials


def _shared_out(tasks: Sequence[FileTask]) -> list[list[FileTask]]:
    """Tasks of about equal length, the longest first: always the next file to the shortest."""
    total = sum(task.file.rows for task in tasks)
    shares = min(len(tasks), max(_LEAST_TASKS, total // _TASK_ROWS))
    heap: list[tuple[int, int, list[FileTask]]] = [(0, index, []) for index in range(shares)]
    for task in sorted(tasks, key=lambda task: -task.file.rows):
        rows, index, share = heap[0]
        share.append(task)
        heapq.heapreplace(heap, (rows + task.file.rows, index, share))
    return [share for _, _, share in sorted(heap, key=lambda entry: -entry[0])]


def _grouped(partials: DataFrame, folder: str) -> DataFrame:
    """The tables of every run, from the partial counts of all its files."""

    def finish(group: pa.Table) -> pa.Table:
        rows = [
            Partial(*row)
            for row in zip(*map(pa.ChunkedArray.to_pylist, group.columns), strict=True)
        ]
        for row in rows:
            if row.what == "error":
                refused = {"run": row.run, "error": row.data.decode()}
                return pa.Table.from_pylist([refused], _RESULTS)
        run = rows[0].run
        tables = index_tables(read_run(Path(folder), run), rows)
        return pa.Table.from_pylist([{"run": run, **tables}], _RESULTS)

    return partials.groupBy("run").applyInArrow(finish, _spark(_RESULTS))


def _columns(partials: pa.Table, what: str, *names: str) -> Iterator[tuple[Any, ...]]:
    """The named columns of those `partials` that are of `what`."""
    chosen = partials.filter(pc.equal(partials.column("what"), what))
    return zip(*(chosen.column(name).to_pylist() for name in names), strict=True)


def _spark(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
