"""Counting `publishes`: what was sent when, and the numbers of each publisher's messages.

The load tool numbers a publisher's messages 0, 1, 2, … in the order of sending, so that "which
messages did it publish" is one pair of numbers.  Nothing relies on it: :class:`Numbers` keeps any
set as intervals, and messages that were published twice, or out of order, are found exactly, only
slower.  Memory: a batch, plus 16 bytes per interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isthmus.pipeline.count.histogram import tally
from isthmus.pipeline.count.partials import (
    NO_PUBLISHER,
    OTHER_TOPIC,
    TWICE,
    UNKNOWN_PUBLISHER,
    Partial,
)
from isthmus.pipeline.log.reading import Run
from isthmus.pipeline.log.roster import ELSEWHERE, NOT_ONE, Roster, check_times, column

__all__ = ["Numbers", "PublishCount"]

Ints = NDArray[np.int64]


class Numbers:
    """A set of message numbers as sorted, disjoint intervals [start, end) that do not touch."""

    def __init__(self, starts: Ints | None = None, ends: Ints | None = None) -> None:
        self.starts = np.empty(0, np.int64) if starts is None else starts
        self.ends = np.empty(0, np.int64) if ends is None else ends

    def __len__(self) -> int:
        return int((self.ends - self.starts).sum())

    @classmethod
    def from_bytes(cls, data: bytes) -> Numbers:
        starts, ends = np.frombuffer(data, "<i8").reshape(2, -1)
        return cls(starts, ends)

    def to_bytes(self) -> bytes:
        return np.stack([self.starts, self.ends]).astype("<i8").tobytes()

    @property
    def next(self) -> int:
        """The number after the last one."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def extend(self, count: int) -> None:
        """Add the `count` numbers from :attr:`next` on."""
        if len(self.ends):
            self.ends[-1] += count
        else:
            self.starts, self.ends = np.array([0]), np.array([count])

    def add(self, numbers: Ints) -> NDArray[np.bool_]:
        """Add `numbers`; which of them were not yet there (of equal ones, the first)."""
        distinct, first = np.unique(numbers, return_index=True)
        before = np.searchsorted(self.starts, distinct, "right") - 1
        known = (before >= 0) & (distinct < np.append(self.ends, 0)[before])
        new = distinct[~known]
        edges = np.flatnonzero(np.diff(new) != 1)
        starts = np.concatenate([self.starts, new[:1], new[edges + 1]])
        ends = np.concatenate([self.ends, new[edges] + 1, new[-1:] + 1])
        starts, ends = np.sort(starts), np.sort(ends)
        joined = np.flatnonzero(starts[1:] == ends[:-1])
        self.starts, self.ends = np.delete(starts, joined + 1), np.delete(ends, joined)
        taken = np.zeros(len(numbers), np.bool_)
        taken[first[~known]] = True
        return taken


class PublishCount:
    """What one file of `publishes` adds to the indexes of its run."""

    def __init__(self, run: Run, writer: str, path: Path) -> None:
        self._run = run
        self._path = path
        self._roster = Roster(run)
        self._topics = self._roster.topics("publisher", writer)
        self._offset_ns = run.offsets_ns[writer]
        self._numbers: dict[int, Numbers] = {}
        self._next = np.zeros(self._roster.unknown, np.int64)
        self._sent = np.zeros(self._roster.unknown, np.int64)
        self._seconds: Counter[int] = Counter()
        self._rejected: Counter[int] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of `batch`, which follow those counted before."""
        if not batch.num_rows:
            return
        index = self._roster.index(column(batch, "publisher"))
        message = column(batch, "message")
        times_ns = column(batch, "t_send_ns")
        check_times(self._path, "t_send_ns", times_ns, self._run)
        topics = self._topics[index]
        good = topics == column(batch, "topic")
        if not good.all():
            self._reject(index[~good], topics[~good])
            index, message, times_ns = index[good], message[good], times_ns[good]
            if not len(index):
                return
        taken = self._take(index, message)
        if not taken.all():
            self._rejected[TWICE] += int(np.count_nonzero(~taken))
            index, times_ns = index[taken], times_ns[taken]
        self._count(index, times_ns + self._offset_ns)

    def partials(self) -> Iterator[Partial]:
        """All that was counted."""
        run, clients = self._run.run, self._roster.clients
        for reason, rows in self._rejected.items():
            yield Partial(run, "rejected", "publishes", reason, amount=rows)
        for index, numbers in self._numbers.items():
            yield Partial(run, "published", number=clients[index].client, data=numbers.to_bytes())
        for sender in np.flatnonzero(self._sent):
            number = clients[sender].client
            yield Partial(run, "sent", number=number, amount=int(self._sent[sender]))
        for second, rows in self._seconds.items():
            yield Partial(run, "sent second", number=second, amount=rows)

    def _reject(self, index: NDArray[np.intp], topics: NDArray[np.int32]) -> None:
        elsewhere = topics == ELSEWHERE
        if elsewhere.any():
            self._roster.refuse_elsewhere(self._path, index[elsewhere], "publishes")
        unknown = index == self._roster.unknown
        no_publisher = (topics == NOT_ONE) & ~unknown
        self._rejected[UNKNOWN_PUBLISHER] += int(np.count_nonzero(unknown))
        self._rejected[NO_PUBLISHER] += int(np.count_nonzero(no_publisher))
        self._rejected[OTHER_TOPIC] += int(np.count_nonzero(topics >= 0))

    def _take(self, index: NDArray[np.intp], message: Ints) -> NDArray[np.bool_]:
        """Which rows bring a message for the first time; they are remembered."""
        taken = np.ones(len(index), np.bool_)
        small = np.uint16 if self._roster.unknown < 1 << 16 else np.uint32
        order = np.argsort(index.astype(small), kind="stable")
        index, message = index[order], message[order].astype(np.int64)
        starts = np.flatnonzero(np.diff(index, prepend=-1))
        ends = np.append(starts[1:], len(index))
        # In one go: whose rows simply go on counting?
        jumps = np.diff(message, prepend=0) != 1
        jumps[starts] = message[starts] != self._next[index[starts]]
        jumped = np.logical_or.reduceat(jumps, starts)
        for start, end, jump in zip(starts.tolist(), ends.tolist(), jumped.tolist(), strict=True):
            publisher = int(index[start])
            numbers = self._numbers.setdefault(publisher, Numbers())
            if jump:
                taken[order[start:end]] = numbers.add(message[start:end])
            else:
                numbers.extend(end - start)
            self._next[publisher] = numbers.next
        return taken

    def _count(self, index: NDArray[np.intp], times_ns: Ints) -> None:
        run = self._run
        inside = (times_ns >= run.window_start_ns) & (times_ns < run.window_end_ns)
        self._sent += np.bincount(index[inside], minlength=len(self._sent))
        by_t = times_ns[self._roster.is_t[index]]
        seconds, rows = tally((by_t - run.started_ns) // 1_000_000_000)
        self._seconds.update(dict(zip(seconds.tolist(), rows.tolist(), strict=True)))
