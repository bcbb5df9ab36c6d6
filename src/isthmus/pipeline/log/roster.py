"""The clients of a run as arrays, to look up whole columns of client numbers at once.

Every array has one entry more than there are clients: the last stands for a number that no client
has.  So a column of a log becomes a column of indexes, and every question about a row's client is
one lookup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isthmus.errors import LogError
from isthmus.pipeline.log.reading import TIME_RANGE_NS, Run

__all__ = ["ELSEWHERE", "NOT_ONE", "Roster", "check_times", "column"]

NOT_ONE: Final = -1
"""In place of a topic: the client has not the role that was asked for, or there is none."""
ELSEWHERE: Final = -2
"""In place of a topic: the client belongs into the file of another writer."""


class Roster:
    """Who is who in `run`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.clients = tuple(sorted(run.clients, key=lambda client: client.client))
        self.numbers = np.array([client.client for client in self.clients], np.int64)
        self.unknown = len(self.clients)
        self._dense = bool((self.numbers == np.arange(self.unknown)).all())
        offsets = run.offsets_ns
        self.offset_ns = np.array(
            [offsets[client.writer] for client in self.clients] + [0], np.int64
        )
        self.is_t = np.array([client.kind == "t" for client in self.clients] + [False])

    def topics(self, role: str, writer: str | None = None) -> NDArray[np.int32]:
        """Each client's topic if it has `role`; with `writer` also whether it is of that one."""
        topics = np.full(self.unknown + 1, NOT_ONE, np.int32)
        for index, client in enumerate(self.clients):
            if client.role == role:
                here = writer is None or client.writer == writer
                topics[index] = client.topic if here else ELSEWHERE
        return topics

    def index(self, numbers: NDArray[np.uint32]) -> NDArray[np.intp]:
        """Where the clients with these numbers stand in every array."""
        if self._dense:  # as the load tool numbers them
            return np.minimum(numbers, self.unknown).astype(np.intp)
        found = np.searchsorted(self.numbers, numbers)
        missing = self.numbers[np.minimum(found, self.unknown - 1)] != numbers
        return np.where(missing, self.unknown, found)

    def refuse_elsewhere(self, path: Path, index: NDArray[np.intp], rows: str) -> None:
        """Refuse a file with rows of clients whose `rows` belong into another writer's."""
        client = self.clients[int(index[0])]
        raise LogError(
            path,
            f"holds {len(index)} {rows} of client {client.client} ({client.name}) and maybe others "
            f"of writer {client.writer!r}; all {rows} of a client stand in the file of its writer",
        )


def column(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """A column of numbers without empty values, not copied.

    Like PyArrow's `to_numpy`, which would import pandas first: a second of CPU in each process.
    """
    array = batch.column(name)
    dtype = np.dtype(array.type.to_pandas_dtype())
    offset = array.offset * dtype.itemsize
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype, len(array), offset)
    return values


def check_times(path: Path, name: str, times_ns: NDArray[np.int64], run: Run) -> None:
    """Refuse times that cannot be of this run; so that no sum of two can overflow."""
    for time_ns in (int(times_ns.min()), int(times_ns.max())):
        if abs(time_ns - run.started_ns) >= TIME_RANGE_NS:
            raise LogError(
                path,
                f"has {name} {time_ns}; the run began at {run.started_ns}, weeks away: "
                "these are no nanoseconds since the epoch, or a clock was wrong",
            )
