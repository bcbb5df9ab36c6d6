"""Writing a log: whole tables, files that grow, and the rows of a program that has no threads.

* :func:`write_table` writes a small table in one go.
* :class:`TableFile` is a file of one table that grows by row groups; one that is there already is
  not touched.
* :class:`RowWriter` takes single rows of several tables and writes a row group when it has
  :data:`GROUP_ROWS` of one, so that its memory is bounded however long the run is.

The run's own row comes last, by :func:`write_table`; before it the files belong to no run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from isthmus.errors import LogError, RunRefused
from isthmus.pipeline.log.reading import NAME, LoggedFile
from isthmus.pipeline.log.schema import TABLES, Table, file_path, with_footer

__all__ = ["GROUP_ROWS", "RowWriter", "TableFile", "number_array", "parquet_options", "write_table"]

GROUP_ROWS: Final = 1 << 16


def parquet_options(table: Table) -> dict[str, Any]:
    """How PyArrow's writer is to write the table.

    Numbers and times that grow are cheapest as differences: half the CPU of PyArrow's defaults to
    write and to read, and smaller.  Every page has a checksum, so that a flipped bit is found.
    """
    grow = {name for name in TABLES[table].names if name == "message" or name.startswith("t_")}
    if table not in ("publishes", "deliveries", "hops"):
        return {"compression": "zstd", "write_page_checksum": True}
    return {
        "compression": "zstd",
        "write_page_checksum": True,
        "use_dictionary": [name for name in TABLES[table].names if name not in grow],
        "column_encoding": dict.fromkeys(sorted(grow), "DELTA_BINARY_PACKED"),
    }


def write_table(
    log: Path, table: Table, run: str, writer: str, rows: pa.Table | Iterable[Mapping[str, Any]]
) -> int:
    """Write a small table whole; the number of its rows.  The file is there complete or not at all.

    For small tables; what comes by and by goes through a :class:`TableFile`.
    """
    _check_names(log, run, writer)
    schema = with_footer(table, run, writer)
    if isinstance(rows, pa.Table):
        data = rows.cast(schema)
    else:
        data = pa.Table.from_pylist(list(rows), schema=schema)
    path = file_path(log, table, run, writer)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(data, unfinished, **parquet_options(table))
    unfinished.replace(path)
    return int(data.num_rows)


class TableFile:
    """The file that one writer has of one table of a run."""

    def __init__(self, log: Path, table: Table, run: str, writer: str) -> None:
        """Raises `RunRefused` if there is one."""
        _check_names(log, run, writer)
        self.table = table
        self.writer = writer
        self.schema = with_footer(table, run, writer)
        self.path = file_path(log, table, run, writer)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = self.path.open("xb")
        except FileExistsError:
            raise RunRefused(run, f"{self.path} is there already; give another name") from None
        self._parquet = pq.ParquetWriter(self._file, self.schema, **parquet_options(table))

    def write_columns(self, columns: Mapping[str, Any]) -> None:
        """A row group, from Arrow arrays or what :func:`_array` makes one of."""
        arrays = [
            value if isinstance(value, pa.Array) else _array(field.type, value)
            for field, value in ((field, columns[field.name]) for field in self.schema)
        ]
        self._parquet.write_table(pa.Table.from_arrays(arrays, schema=self.schema))

    def close(self) -> None:
        """The file is complete."""
        try:
            self._parquet.close()
        finally:
            self._file.close()


class RowWriter:
    """Some tables of a run, filled row by row."""

    def __init__(self, log: Path, run: str, writer: str, tables: Sequence[Table]) -> None:
        self._files: dict[Table, TableFile] = {}
        try:
            for table in tables:
                self._files[table] = TableFile(log, table, run, writer)
        except BaseException:
            self.discard()
            raise
        self._waiting: dict[Table, list[Sequence[Any]]] = {table: [] for table in tables}
        self.rows: dict[Table, int] = dict.fromkeys(tables, 0)
        """Added so far."""

    def add(self, table: Table, row: Sequence[Any]) -> None:
        """A row, its values in the order of the table's columns."""
        waiting = self._waiting[table]
        waiting.append(row)
        self.rows[table] += 1
        if len(waiting) >= GROUP_ROWS:
            self._write(table)

    def close(self) -> tuple[LoggedFile, ...]:
        """Write what is left and end the files: what `runs.files` says of them."""
        for table, file in self._files.items():
            self._write(table)
            file.close()
        return tuple(
            LoggedFile(table, file.writer, self.rows[table]) for table, file in self._files.items()
        )

    def discard(self) -> None:
        """The run failed, perhaps because there is no room for it: take its files away."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()
            file.path.unlink()

    def _write(self, table: Table) -> None:
        waiting = self._waiting[table]
        if waiting:
            names = TABLES[table].names
            columns = dict(zip(names, zip(*waiting, strict=True), strict=True))
            waiting.clear()
            self._files[table].write_columns(columns)


def _check_names(log: Path, run: str, writer: str) -> None:
    for what, name in (("run", run), ("writer", writer)):
        if not NAME.fullmatch(name):
            raise LogError(
                log, f"{what} {name!r}: use letters, digits, '.', '_' and '-', no '.' first"
            )


# `pa.array` would load pandas the first time it is called: two seconds in the middle of a run.


def number_array(kind: Any, values: NDArray[Any], valid: Any = None) -> Any:
    """Numbers as an Arrow array, not copied."""
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def _array(kind: Any, values: Sequence[Any]) -> Any:
    """Texts, bytes, or whole numbers of which some may be None."""
    if kind in (pa.string(), pa.binary()):
        parts = [value.encode() for value in values] if kind == pa.string() else values
        ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
        return pa.Array.from_buffers(kind, len(parts), buffers)
    known = np.array([value is not None for value in values], np.bool_)
    numbers = np.array([value or 0 for value in values], kind.to_pandas_dtype())
    bitmap = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return number_array(kind, numbers, bitmap)
