"""The job behind `isthmus bench index`: all indexes of a log by Spark, written and shown.

OUT gets each table as Parquet and CSV, and all of them in one `indexes.json`.  A file is there
complete or not at all; those of an earlier job are replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isthmus.pipeline.count.tables import INDEXES
from isthmus.pipeline.spark.indexes import compute
from isthmus.pipeline.spark.job_progress import shown_progress
from isthmus.pipeline.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["More", "print_summary", "run_job", "write_tables"]

More = Callable[["SparkSession", dict[str, "DataFrame"]], dict[str, "DataFrame"]]
"""Further tables, each in its order, from the session and the tables of indexes."""

_KEYS: Final = {
    "summary": ("run",),
    "per_second": ("run", "second"),
    "latency": ("run", "kind", "scope", "name"),
    "losses": ("run", "scope", "name"),
    "hops": ("run", "scope", "name"),
    "usage": ("run", "writer", "node", "process"),
    "traffic": ("run", "writer", "kind", "node", "peer"),
    "rows": ("run", "table", "outcome", "reason"),
}
"""What the rows of each table are in order of."""

_WIDE: Final = 120
_WIDE_ONLY: Final = ("interval", "double", "disorder", "limited by")
"""Columns that a console with fewer characters does not show."""


def run_job(
    log: Path,
    out: Path | None = None,
    *,
    master: str = "local[*]",
    connect: str | None = None,
    memory: str | None = None,
    runs: Sequence[str] | None = None,
    show: bool = True,
    more: More | None = None,
) -> dict[str, pa.Table]:
    """Every table of indexes of `log`, or of its named `runs`; written to `out` if given.

    Those of `more` come with them, computed in the same session.

    The session's arguments are those of `open_session`.  The progress is shown on standard error
    and the summary on standard output, unless `show` is false.  A log that cannot be trusted
    raises `LogError`, and nothing is written.
    """
    with (
        open_session(master, connect=connect, quick=True, memory=memory) as spark,
        shown_progress(spark, Console(stderr=True, highlight=False) if show else None),
    ):
        computed = compute(spark, log, runs)
        tables = {name: _in_order(name, frame.toArrow()) for name, frame in computed.items()}
        if more is not None:
            tables |= {name: frame.toArrow() for name, frame in more(spark, computed).items()}
    if out is not None:
        write_tables(out, tables)
    if show:
        print_summary(Console(highlight=False), tables["summary"])
    return tables


def write_tables(out: Path, tables: dict[str, pa.Table]) -> None:
    """Write `tables` into the folder `out` as Parquet, CSV and JSON."""
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        _complete(out / f"{name}.parquet", partial(pq.write_table, table))
        _complete(out / f"{name}.csv", partial(pa_csv.write_csv, _flat(table)))
    rows = {name: [_plain(row) for row in table.to_pylist()] for name, table in tables.items()}
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    _complete(out / "indexes.json", lambda path: path.write_text(text, "utf-8"))


def print_summary(console: Console, summary: pa.Table) -> None:
    """A line per run: throughput, the limit, losses and the latency of l-clients."""
    lines = [_summary_line(row) for row in summary.to_pylist()]
    hidden = _WIDE_ONLY if console.width < _WIDE else ()
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = [name for name in lines[0] if name not in hidden] if lines else []
    for name in columns:
        left = name in ("run", "limit", "limited by")
        shown.add_column(name, justify="left" if left else "right", no_wrap=name != "run")
    for line in lines:
        shown.add_row(*(escape(line[name]) for name in columns))
    console.print(shown)


def _summary_line(row: dict[str, Any]) -> dict[str, str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f}"

    interval_ns, ratio = row["interval_ns"], row["limit_ratio"]
    return {
        "run": row["run"],
        "interval": "" if interval_ns is None else f"{interval_ns / 1e6:g} ms",
        "in/s": number(row["ingress"]),
        "out/s": number(row["egress"]),
        "ratio": "" if ratio is None else f"{ratio:.3f}",
        "limit": "" if ratio is None else "under" if row["under_limit"] else "over",
        "lost": number(row["lost"]),
        "double": number(row["duplicates"]),
        "disorder": number(row["order_violations"]),
        "p50 µs": number(row["latency_p50_us"]),
        "p99 µs": number(row["latency_p99_us"]),
        "limited by": row["limited_by"],
    }


def _in_order(name: str, table: pa.Table) -> pa.Table:
    """The rows in order, and the columns exactly as :data:`INDEXES` has them."""
    ordered = table.sort_by([(key, "ascending") for key in _KEYS[name]])
    return ordered.cast(INDEXES[name])


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "labels": dict(row["labels"])} if "labels" in row else row


def _flat(table: pa.Table) -> pa.Table:
    """CSV has text and numbers only: labels and notes as JSON."""
    for index, column in enumerate(table.schema):
        if pa.types.is_nested(column.type):
            values = table.column(index).to_pylist()
            of_map = pa.types.is_map(column.type)
            texts = [json.dumps(dict(v) if of_map else v, ensure_ascii=False) for v in values]
            table = table.set_column(index, column.name, pa.array(texts, pa.string()))
    return table


def _complete(path: Path, write: Callable[[Path], object]) -> None:
    unfinished = path.with_name(f".{path.name}.part")
    write(unfinished)
    unfinished.replace(path)
