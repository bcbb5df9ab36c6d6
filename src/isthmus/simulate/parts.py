"""What was counted so far of a simulation that takes long, so that it can go on after an end.

    FOLDER/paths-0000.parquet …      one file for each batch of tasks that was done, as `COUNTED`

A run goes into the log when all of it has been counted; until then the pieces are here.  A file is
there whole, or it is not there.  Which pieces those are is in the rows: their run and part.
"""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from isthmus.simulate.tallies import COUNTED, sorted_rows

__all__ = ["Parts"]

Piece = tuple[str, int]
"""A run, and a part of it."""


class Parts:
    """Of one experiment."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._name}-*.parquet"))

    def _rows(self) -> pa.Table:
        empty = COUNTED.empty_table()
        return pa.concat_tables([empty, *(pq.read_table(file) for file in self._files())])

    def pieces(self) -> set[Piece]:
        """All of which there are rows."""
        rows = self._rows().select(["run", "part"]).group_by(["run", "part"]).aggregate([])
        return set(zip(rows["run"].to_pylist(), rows["part"].to_pylist(), strict=True))

    def keep(self, counted: pa.Table) -> None:
        """The rows of some more tasks."""
        self._folder.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(file.stem[-4:]) for file in self._files()), default=-1)
        path = self._folder / f"{self._name}-{number:04d}.parquet"
        unfinished = path.with_suffix(".part")
        pq.write_table(counted, unfinished)
        os.replace(unfinished, path)

    def counted(self, pieces: Set[Piece]) -> pa.Table:
        """The rows of these alone, in the one order."""
        rows = self._rows()
        wanted = [
            piece in pieces
            for piece in zip(rows["run"].to_pylist(), rows["part"].to_pylist(), strict=True)
        ]
        return sorted_rows(rows.filter(pa.array(wanted, pa.bool_())))

    def clear(self) -> None:
        """They are in the log now."""
        for file in self._files():
            file.unlink()
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()
