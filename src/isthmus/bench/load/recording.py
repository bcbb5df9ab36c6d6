"""The files of one run that one load process writes, filled while the run goes on.

    add ──▶ a block of preallocated columns ──full──▶ recording thread ──▶ a row group of the file

The thread encodes and writes; PyArrow lets go of the interpreter meanwhile, so clients are served
on.  Each table has `BLOCKS` blocks of `BLOCK_ROWS` rows and no more (deliveries: 4 of 8 MiB,
publishes: 4 of 5 MiB).  When the thread has all of them, `add` waits for one: the process reads
no more, TCP holds the brokers back, and the time is counted in `stalled_ns`, which is part of the
process's headroom.  An error of the thread, like a full disk, comes out of the next `add` or
`close`.

The files are those of :mod:`isthmus.pipeline.log.schema`.  One that is there already is not
touched: `RunRefused`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from isthmus.bench.load.receiving import Columns
from isthmus.pipeline.log.schema import TABLES, Table
from isthmus.pipeline.log.writing import TableFile, number_array

__all__ = ["BLOCKS", "BLOCK_ROWS", "Recorder"]

BLOCK_ROWS: Final = 1 << 18
BLOCKS: Final = 4


class _Block:
    """Room for `BLOCK_ROWS` rows of a table."""

    def __init__(self, table: Table) -> None:
        self.columns: dict[str, NDArray[Any]] = {
            field.name: np.empty(BLOCK_ROWS, field.type.to_pandas_dtype())
            for field in TABLES[table]
        }
        self.rows = 0

    def fill(self, columns: Columns, begin: int) -> int:
        """Copy rows from `begin` on, as many as fit; where the rest begins."""
        total = len(next(iter(columns.values())))
        count = min(BLOCK_ROWS - self.rows, total - begin)
        for name, values in columns.items():
            self.columns[name][self.rows : self.rows + count] = values[begin : begin + count]
        self.rows += count
        return begin + count


class _BlockFile(TableFile):
    """One table of the run: its file and its blocks."""

    def __init__(self, log: Path, table: Table, run: str, writer: str) -> None:
        super().__init__(log, table, run, writer)
        self.rows = 0
        self.free: queue.SimpleQueue[_Block] = queue.SimpleQueue()
        self.filling: _Block | None = None

    def preallocate(self) -> None:
        """The blocks, for a table of numbers that `add` fills."""
        for _ in range(BLOCKS):
            self.free.put(_Block(self.table))
        self.filling = self.free.get()

    def write_block(self, block: _Block) -> None:
        self.write_columns(
            {
                field.name: number_array(field.type, block.columns[field.name][: block.rows])
                for field in self.schema
            }
        )


class Recorder:
    """Writes some tables of a run until it is closed."""

    def __init__(self, log: Path, run: str, writer: str, tables: Sequence[Table]) -> None:
        self.stalled_ns = 0
        """Time that `add` waited because all blocks were being written."""
        self._files: dict[Table, _BlockFile] = {}
        self._error: BaseException | None = None
        self._jobs: queue.Queue[tuple[_BlockFile, _Block | Mapping[str, Sequence[Any]]] | None]
        self._jobs = queue.Queue(maxsize=2 * BLOCKS)
        try:
            for table in tables:
                self._files[table] = file = _BlockFile(log, table, run, writer)
                if table in ("publishes", "deliveries"):
                    file.preallocate()
        except BaseException:
            for file in self._files.values():
                file.close()
            raise
        self._thread = threading.Thread(target=self._write, name=f"recording {run}", daemon=True)
        self._thread.start()

    def add(self, table: Table, columns: Columns) -> None:
        """Rows of publishes or deliveries, as columns of equal length."""
        file = self._files[table]
        total = len(next(iter(columns.values())))
        begin = 0
        while begin < total:
            block = file.filling
            if block is None:
                raise RuntimeError(f"{table} is closed, or has no blocks")
            begin = block.fill(columns, begin)
            if block.rows == BLOCK_ROWS:
                file.filling = self._hand_over(file, block)
        file.rows += total

    def add_rows(self, table: Table, columns: Mapping[str, Sequence[Any]]) -> None:
        """A row group of its own, for what comes seldom."""
        self._check()
        file = self._files[table]
        file.rows += len(next(iter(columns.values())))
        self._jobs.put((file, columns))

    def close(self) -> dict[Table, int]:
        """Write what is left and end the files; the number of rows of each."""
        for file in self._files.values():
            if file.filling is not None and file.filling.rows:
                self._jobs.put((file, file.filling))
            file.filling = None
        self._jobs.put(None)
        self._thread.join()
        self._check()
        return {table: file.rows for table, file in self._files.items()}

    def rows(self, table: Table) -> int:
        """Rows added so far."""
        return self._files[table].rows

    def _hand_over(self, file: _BlockFile, block: _Block) -> _Block:
        self._check()
        self._jobs.put((file, block))
        if file.free.empty():
            began_ns = time.monotonic_ns()
            free = file.free.get()
            self.stalled_ns += time.monotonic_ns() - began_ns
            return free
        return file.free.get()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        """The recording thread; after an error it goes on emptying the queue, so nobody waits."""
        while (job := self._jobs.get()) is not None:
            file, what = job
            try:
                if self._error is None:
                    if isinstance(what, _Block):
                        file.write_block(what)
                    else:
                        file.write_columns(what)
            except BaseException as error:  # noqa: BLE001 - raised again by `_check`
                self._error = error
            if isinstance(what, _Block):
                what.rows = 0
                file.free.put(what)
        for file in self._files.values():
            try:
                file.close()
            except BaseException as error:  # noqa: BLE001 - raised again by `_check`
                self._error = self._error or error
