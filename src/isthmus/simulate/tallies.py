"""What a bulk simulation counted, and how it is recorded in the one log.

    task ──▶ tallies ──▶ all of them in one order ──▶ LOG/tallies/run=RUN/s0.parquet, `runs`

A task answers for some runs at once, as what it draws or builds serves all of them.  A tally
stands for things of which all that was asked for is equal (`pipeline.log.schema`).

Invariants:

* The rows of a run are in one order, whoever counted them and when; there is no clock.  So the
  same simulation gives the same bytes.
* The run's row is written last: a run that is in `runs` is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from isthmus.pipeline.log.run_files import remove_run
from isthmus.pipeline.log.schema import SCHEMA_VERSION, columns_of, file_path
from isthmus.pipeline.log.writing import write_table

__all__ = [
    "COUNTED",
    "WRITER",
    "BulkTask",
    "Counted",
    "Tally",
    "amount",
    "histogram",
    "in_order",
    "is_recorded",
    "record",
]

WRITER: Final = "s0"
"""One for all of a simulation, as of the exact simulator."""
COUNTED: Final = columns_of(
    "run text!, part int!, what text!, given int, value int, count int!, total int!"
)
"""What tasks hand back: the columns of `tallies`, in types that Spark has."""

Longs = npt.NDArray[np.int64]


class Tally(NamedTuple):
    """A row of `tallies` but for its part."""

    what: str
    given: int | None
    value: int | None
    things: int
    """The column `count`."""
    total: int


class Counted(NamedTuple):
    """A tally, whose it is, and from which part of the work."""

    run: str
    part: int
    tally: Tally


class BulkTask(Protocol):
    """A piece of work that any worker can do; picklable."""

    @property
    def cost(self) -> float:
        """About how many seconds it takes; only to share tasks out well."""

    @property
    def memory_bytes(self) -> int:
        """What it takes at the most, besides the program itself."""

    def counted(self) -> Iterator[Counted]:
        """Do it: a function of what is in the task, and of nothing else."""


def amount(what: str, count: int, total: int, given: int | None = None) -> Tally:
    """So many things, and the sum of their values."""
    return Tally(what, given, None, int(count), int(total))


def histogram(what: str, values: Longs, given: Longs | None = None) -> Iterator[Tally]:
    """One tally for all things that have the same value, and the same of what is `given`."""
    pairs = np.stack([np.zeros_like(values) if given is None else given, values], axis=1)
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    for (common, value), count in zip(found.tolist(), counts.tolist(), strict=True):
        yield Tally(what, None if given is None else common, value, count, value * count)


def in_order(counted: Iterable[Counted]) -> pa.Table:
    """All of them as :data:`COUNTED`, sorted by everything."""
    rows = [(run, part, *tally) for run, part, tally in counted]
    columns = zip(*rows, strict=True) if rows else ([],) * len(COUNTED)
    arrays = [pa.array(column, field.type) for field, column in zip(COUNTED, columns, strict=True)]
    return sorted_rows(pa.Table.from_arrays(arrays, schema=COUNTED))


def sorted_rows(counted: pa.Table) -> pa.Table:
    """The same rows in the one order."""
    return counted.sort_by([(name, "ascending") for name in COUNTED.names])


def is_recorded(log: Path, run: str) -> bool:
    """Whether it is there, whole."""
    return file_path(log, "runs", run, WRITER).exists()


def record(
    log: Path, scenario: str, labels: Mapping[str, Mapping[str, str]], counted: pa.Table
) -> None:
    """Write every run of `labels`; what there was of one that did not end is replaced."""
    of_run = counted.column("run").to_pylist()
    bounds = _bounds(of_run)
    for run, own in labels.items():
        remove_run(log, run)
        first, end = bounds.get(run, (0, 0))
        rows = counted.slice(first, end - first).drop_columns(["run"])
        written = write_table(log, "tallies", run, WRITER, rows)
        write_table(log, "runs", run, WRITER, [_row(run, scenario, own, written)])


def _bounds(of_run: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Where the rows of each run stand; they stand together."""
    found: dict[str, tuple[int, int]] = {}
    for index, run in enumerate(of_run):
        first, _ = found.get(run, (index, index))
        found[run] = (first, index + 1)
    return found


def _row(run: str, scenario: str, labels: Mapping[str, str], rows: int) -> dict[str, object]:
    return {
        "run": run,
        "schema_version": SCHEMA_VERSION,
        "scenario": scenario,
        "scenario_json": json.dumps(dict(labels), sort_keys=True),
        "labels": sorted(labels.items()),
        "started_ns": 0,
        "ended_ns": 1,
        "window_start_ns": 0,
        "window_end_ns": 1,
        "interval_ns": None,
        "topics": [],
        "clients": [],
        "clocks": [{"writer": WRITER, "machine": "virtual", "offset_ns": 0, "error_ns": 0}],
        "files": [{"table": "tallies", "writer": WRITER, "rows": rows}],
        "strays": [],
        "limited_by": "",
        "notes": [],
    }
