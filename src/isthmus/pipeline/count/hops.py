"""Counting `hops`: how many links messages crossed, and how far away who got them was.

A hop counts if its message was published in the run, and sent in the window.  All hops to one node
stand in one file in the order of sending, so the first that brings a message to a node is found
here; every other one to the same node is *repeated*: sent again after a break, or come another way.

Memory: a batch, and 12 bytes for each hop that counts, four times that for a moment at the end.

Definitions: ``docs/reference/indexes.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from isthmus.pipeline.count.kernel import NO_SLOT, Slots
from isthmus.pipeline.count.partials import UNKNOWN_HOP, Partial
from isthmus.pipeline.count.published import Numbers
from isthmus.pipeline.log.reading import Run
from isthmus.pipeline.log.roster import Roster, check_times, column

__all__ = ["HopCount"]

Ints = NDArray[np.int64]


class HopCount:
    """What one file of `hops` adds to the indexes of its run."""

    def __init__(self, run: Run, published: Mapping[int, Numbers], path: Path) -> None:
        self._run = run
        self._path = path
        self._roster = roster = Roster(run)
        self._slots = Slots(roster, published)
        self._published_to = roster.topics("publisher")
        of_topic = [self._slots.messages[topic] for topic in range(len(run.topics))]
        self._ends = np.cumsum(of_topic, dtype=np.int64)
        """Where the messages of each topic end, if all are put one after the other."""
        self._starts = self._ends - np.array(of_topic, np.int64)
        self._messages = int(self._ends[-1]) if of_topic else 0
        self._nodes: dict[str, int] = {}
        self._hops, self._bytes = (np.zeros(len(of_topic), np.int64) for _ in range(2))
        self._arrivals: list[Ints] = []
        self._crossed: list[NDArray[np.uint32]] = []
        self._rejected = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of `batch`, which follow those counted before."""
        rows = batch.num_rows
        for name in ("publisher", "message", "topic", "t_send_ns"):
            if batch.column(name).null_count:
                batch = batch.filter(pc.is_valid(batch.column(name)))
        if not batch.num_rows:
            self._rejected += rows
            return
        check_times(self._path, "t_ns", column(batch, "t_ns"), self._run)
        sent_ns = column(batch, "t_send_ns")
        check_times(self._path, "t_send_ns", sent_ns, self._run)
        publisher = self._roster.index(column(batch, "publisher"))
        topic = self._published_to[publisher]
        slot = self._slots.of(publisher, column(batch, "message"))
        good = (topic == column(batch, "topic")) & (slot != NO_SLOT)
        self._rejected += rows - int(np.count_nonzero(good))
        sent_ns = sent_ns + self._roster.offset_ns[publisher]
        good &= (sent_ns >= self._run.window_start_ns) & (sent_ns < self._run.window_end_ns)
        topic = topic[good]
        count = len(self._hops)
        self._hops += np.bincount(topic, minlength=count)
        sizes = np.bincount(topic, column(batch, "bytes")[good], count)
        self._bytes += np.rint(sizes).astype(np.int64)  # exact: far below 2^53
        node = self._targets(batch.column("target"))[good]
        self._arrivals.append(node * self._messages + self._starts[topic] + slot[good])
        self._crossed.append(column(batch, "hops")[good])

    def partials(self) -> Iterator[Partial]:
        """All that was counted."""
        run = self._run.run
        if self._rejected:
            yield Partial(run, "rejected", "hops", UNKNOWN_HOP, amount=self._rejected)
        arrivals = np.concatenate([np.empty(0, np.int64), *self._arrivals])
        crossed = np.concatenate([np.empty(0, np.uint32), *self._crossed])
        self._arrivals, self._crossed = [], []
        first, at = np.unique(arrivals, return_index=True)
        node, message = np.divmod(first, max(self._messages, 1))
        topic = np.searchsorted(self._ends, message, "right")
        firsts = np.bincount(topic, minlength=len(self._hops))
        for what, counts in (
            ("hops", self._hops),
            ("hop bytes", self._bytes),
            ("repeated hops", self._hops - firsts),
        ):
            for index in np.flatnonzero(counts).tolist():
                yield Partial(run, what, number=index, amount=int(counts[index]))
        for (index, links), reached in self._paths(node, topic, crossed[at]).items():
            yield Partial(run, "path", number=index, part=links, amount=reached)

    def _targets(self, names: pa.Array) -> Ints:
        """The numbers of these nodes, counted in the order of their first hop."""
        encoded = names.dictionary_encode()
        known = [
            self._nodes.setdefault(name, len(self._nodes))
            for name in encoded.dictionary.to_pylist()
        ]
        indexes = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(encoded))
        return np.array(known, np.int64)[indexes]

    def _paths(
        self, node: Ints, topic: Ints, crossed: NDArray[np.uint32]
    ) -> Counter[tuple[int, int]]:
        """By topic and links crossed: the subscribers at nodes that messages were brought to."""
        at_node: Counter[tuple[str, int]] = Counter(
            (client.node, client.topic)
            for client in self._run.clients
            if client.role == "subscriber"
        )
        names = list(self._nodes)
        found: Counter[tuple[int, int]] = Counter()
        topics, most = len(self._hops), int(crossed.max(initial=0)) + 1
        kinds, count = np.unique((node * topics + topic) * most + crossed, return_counts=True)
        for kind, messages in zip(kinds.tolist(), count.tolist(), strict=True):
            where, links = divmod(kind, most)
            one, index = divmod(where, topics)
            subscribers = at_node[names[one], index]
            if subscribers:
                found[index, links] += messages * subscribers
        return found
