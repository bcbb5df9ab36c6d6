"""Counting `deliveries`, the largest table: rates, losses, duplicates, order and latency at once.

One :class:`DeliveryCount` reads the file of one writer from its beginning to its end, a batch at a
time.  All that a subscriber received stands in that file in the order of arrival, so nothing has
to be joined, shuffled or sorted as a whole.

* Every message that a subscriber can receive has a *slot*: those of a pair (subscriber, publisher)
  follow each other in the order of sending.  `seen` has a byte per slot.
* A batch is brought into the order of pairs (a stable radix sort; within a pair the order of
  arrival stays).  A row whose slot is above all earlier ones of its pair is a first delivery in
  order: nearly all rows.  Only the others, the *late* ones, are looked up in `seen`: a first
  delivery out of order, or a duplicate.

Memory: a batch and its columns (about 100 bytes per row), a byte for each message that each
subscriber of this writer should receive, and the histograms
(:mod:`isthmus.pipeline.count.histogram`).

Definitions: ILDM §5.1-§5.3 and ``docs/reference/indexes.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isthmus.errors import LogError
from isthmus.pipeline.count.histogram import MOST_SERIES, Histograms, tally
from isthmus.pipeline.count.partials import (
    NOBODY_PUBLISHED,
    TOPIC_NOT_SUBSCRIBED,
    UNKNOWN_PUBLISHER,
    UNKNOWN_SUBSCRIBER,
    Partial,
)
from isthmus.pipeline.count.published import Numbers
from isthmus.pipeline.log.reading import Run
from isthmus.pipeline.log.roster import ELSEWHERE, NOT_ONE, Roster, check_times, column

__all__ = ["BATCH_ROWS", "NO_SLOT", "DeliveryCount", "Slots"]

Ints = NDArray[np.int64]
Index = NDArray[np.intp]
Flags = NDArray[np.bool_]

BATCH_ROWS: Final = 1 << 17
"""Rows that are read and counted together: few enough to stay in the cache."""

NO_SLOT: Final = -1
"""Of a message that nobody published."""


class Slots:
    """Where each message of each publisher stands in a subscriber's row of slots.

    A topic's messages follow each other, publisher by publisher, each in the order of sending.
    """

    def __init__(self, roster: Roster, published: Mapping[int, Numbers]) -> None:
        topics = roster.topics("publisher")
        self.rank = np.zeros(roster.unknown + 1, np.int64)
        """Of a publisher among those of its topic."""
        self.publishers: Counter[int] = Counter()
        """Per topic."""
        self.messages: Counter[int] = Counter()
        """Per topic."""
        none = Numbers()
        starts, ends, firsts = [], [], []
        self._count = np.zeros(roster.unknown + 1, np.int64)
        self._first = np.zeros(roster.unknown + 1, np.int64)
        self._dense = True
        for index, client in enumerate(roster.clients):
            if topics[index] == NOT_ONE:
                continue
            numbers = published.get(client.client, none)
            self.rank[index] = self.publishers[client.topic]
            self._first[index] = self.messages[client.topic]
            self._count[index] = len(numbers)
            self._dense = self._dense and numbers.next == len(numbers)
            lengths = numbers.ends - numbers.starts
            starts.append(numbers.starts + (index << 32))
            ends.append(numbers.ends + (index << 32))
            firsts.append(self._first[index] + np.cumsum(lengths) - lengths)
            self.publishers[client.topic] += 1
            self.messages[client.topic] += len(numbers)
        self._starts, self._ends, self._firsts = (
            np.concatenate([np.empty(0, np.int64), *arrays]) for arrays in (starts, ends, firsts)
        )

    def of(self, publisher: Index, message: Ints) -> Ints:
        """The slots of these messages; :data:`NO_SLOT` for what nobody published."""
        if self._dense:  # every publisher counted 0, 1, 2, …
            slots = self._first[publisher] + message
            slots[message >= self._count[publisher]] = NO_SLOT
            return slots
        if not len(self._starts):
            return np.full(len(message), NO_SLOT, np.int64)
        keys = (publisher.astype(np.int64) << 32) + message
        interval = np.maximum(np.searchsorted(self._starts, keys, "right") - 1, 0)
        start = self._starts[interval]
        found = (keys >= start) & (keys < self._ends[interval])
        return np.where(found, self._firsts[interval] + keys - start, NO_SLOT)


class DeliveryCount:
    """What one file of `deliveries` adds to the indexes of its run."""

    def __init__(self, run: Run, writer: str, published: Mapping[int, Numbers], path: Path) -> None:
        self._run = run
        self._path = path
        roster = self._roster = Roster(run)
        self._slots = Slots(roster, published)
        self._offset_ns = run.offsets_ns[writer]
        self._subscribed = roster.topics("subscriber", writer)
        self._published_to = roster.topics("publisher")
        self._place_subscribers()
        self._delivered, self._duplicates, self._violations, self._rest_ns = (
            np.zeros(roster.unknown, np.int64) for _ in range(4)
        )
        self._received = 0
        self._seconds: Counter[int] = Counter()
        self._rejected: Counter[int] = Counter()

    def _place_subscribers(self) -> None:
        """Give every subscriber of this writer its slots, its pairs and its latency series."""
        unknown = self._roster.unknown
        self._first_slot, self._first_pair, self._series_of = (
            np.zeros(unknown + 1, np.int64) for _ in range(3)
        )
        slots = pairs = 0
        series: dict[tuple[str, int], int] = {}
        for index in np.flatnonzero(self._subscribed >= 0):
            client = self._roster.clients[index]
            self._first_slot[index], self._first_pair[index] = slots, pairs
            slots += self._slots.messages[client.topic]
            pairs += self._slots.publishers[client.topic]
            key = (client.kind, client.topic if client.kind == "t" else client.client)
            self._series_of[index] = series.setdefault(key, len(series))
        self._seen = np.zeros(slots, np.uint8)
        self._highest = np.full(pairs, NO_SLOT, np.int64)
        self._pair_type = np.uint16 if pairs <= 1 << 16 else np.uint32
        if len(series) > MOST_SERIES:
            raise LogError(
                self._path,
                f"is of clients of {len(series)} topics; {MOST_SERIES} in one file at most: "
                "share them out among more writers",
            )
        self._series = tuple(series)
        self._histograms = Histograms(len(series))

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of `batch`, which follow those counted before."""
        if not batch.num_rows:
            return
        subscriber = self._roster.index(column(batch, "subscriber"))
        publisher = self._roster.index(column(batch, "publisher"))
        sent_ns, received_ns = column(batch, "t_send_ns"), column(batch, "t_receive_ns")
        check_times(self._path, "t_send_ns", sent_ns, self._run)
        check_times(self._path, "t_receive_ns", received_ns, self._run)
        slot, good = self._find(batch, subscriber, publisher)
        if not good.all():
            subscriber, publisher, slot = subscriber[good], publisher[good], slot[good]
            sent_ns, received_ns = sent_ns[good], received_ns[good]
            if not len(slot):
                return
        sent_ns = sent_ns + self._roster.offset_ns[publisher]
        received_ns = received_ns + self._offset_ns
        self._count_received(subscriber, received_ns)
        late, duplicate = self._follow(subscriber, publisher, slot)
        inside = (sent_ns >= self._run.window_start_ns) & (sent_ns < self._run.window_end_ns)
        self._violations += self._per_client(subscriber[late[inside[late]]])
        self._duplicates += self._per_client(subscriber[duplicate[inside[duplicate]]])
        inside[duplicate] = False
        if not inside.all():
            subscriber = subscriber[inside]
            sent_ns, received_ns = sent_ns[inside], received_ns[inside]
        self._delivered += self._per_client(subscriber)
        self._count_latency(subscriber, received_ns - sent_ns)

    def partials(self) -> Iterator[Partial]:
        """All that was counted."""
        run = self._run.run
        for reason, rows in self._rejected.items():
            yield Partial(run, "rejected", "deliveries", reason, amount=rows)
        yield Partial(run, "received", amount=self._received)
        for second, rows in self._seconds.items():
            yield Partial(run, "received second", number=second, amount=rows)
        for what, per_client in (
            ("delivered", self._delivered),
            ("duplicates", self._duplicates),
            ("order violations", self._violations),
        ):
            for index in np.flatnonzero(per_client):
                number = self._roster.clients[index].client
                yield Partial(run, what, number=number, amount=int(per_client[index]))
        for index in np.flatnonzero(self._rest_ns):
            kind, number = self._series[self._series_of[index]]
            yield Partial(run, "latency rest", kind, number, amount=int(self._rest_ns[index]))
        for series, block, values, data in self._histograms.blocks():
            kind, number = self._series[series]
            yield Partial(run, "latency", kind, number, block, values, data)

    def _find(
        self, batch: pa.RecordBatch, subscriber: Index, publisher: Index
    ) -> tuple[Ints, Flags]:
        """Each row's slot, and whether the row is used; the reasons of the others are counted."""
        topic = column(batch, "topic")
        subscribed, published_to = self._subscribed[subscriber], self._published_to[publisher]
        slot = self._slots.of(publisher, column(batch, "message"))
        good: Flags = (subscribed == topic) & (published_to == topic) & (slot != NO_SLOT)
        if not good.all():
            if (elsewhere := subscribed == ELSEWHERE).any():
                self._roster.refuse_elsewhere(self._path, subscriber[elsewhere], "deliveries")
            rest = ~good
            for reason, holds in (
                (UNKNOWN_SUBSCRIBER, subscribed == NOT_ONE),
                (UNKNOWN_PUBLISHER, published_to == NOT_ONE),
                (TOPIC_NOT_SUBSCRIBED, subscribed != topic),
                (NOBODY_PUBLISHED, rest),
            ):
                self._rejected[reason] += int(np.count_nonzero(rest & holds))
                rest = rest & ~holds
        return slot + self._first_slot[subscriber], good

    def _count_received(self, subscriber: Index, received_ns: Ints) -> None:
        by_t = self._roster.is_t[subscriber]
        if not by_t.all():
            received_ns = received_ns[by_t]
        run = self._run
        inside = (received_ns >= run.window_start_ns) & (received_ns < run.window_end_ns)
        self._received += int(np.count_nonzero(inside))
        seconds, rows = tally((received_ns - run.started_ns) // 1_000_000_000)
        self._seconds.update(dict(zip(seconds.tolist(), rows.tolist(), strict=True)))

    def _follow(self, subscriber: Index, publisher: Index, slot: Ints) -> tuple[Index, Index]:
        """The rows that are first deliveries out of order, and those that are duplicates."""
        pair = (self._first_pair[subscriber] + self._slots.rank[publisher]).astype(self._pair_type)
        order = np.argsort(pair, kind="stable")
        pair, slot = pair[order], slot[order]
        # Slots of later pairs are higher than all of earlier ones, so one running maximum serves
        # all pairs; at a pair's first row it takes up what earlier batches brought.
        starts = np.flatnonzero(np.diff(pair, prepend=pair[:1] + 1))
        pairs = pair[starts]
        running = slot.copy()
        running[starts] = np.maximum(slot[starts], self._highest[pairs])
        np.maximum.accumulate(running, out=running)
        before = np.empty_like(running)
        before[1:] = running[:-1]
        before[starts] = self._highest[pairs]
        self._highest[pairs] = running[np.append(starts[1:], len(slot)) - 1]
        in_order = slot > before
        self._seen[slot[in_order]] = 1
        behind = np.flatnonzero(~in_order)
        known = self._seen[slot[behind]] == 1
        unseen = behind[~known]
        distinct, first = np.unique(slot[unseen], return_index=True)
        self._seen[distinct] = 1
        again = np.delete(unseen, first)
        return order[unseen[first]], order[np.concatenate([behind[known], again])]

    def _count_latency(self, subscriber: Index, latency_ns: Ints) -> None:
        latency_us = latency_ns // 1000
        np.add.at(self._rest_ns, subscriber, latency_ns - latency_us * 1000)
        self._histograms.add(self._series_of[subscriber], latency_us)

    def _per_client(self, index: Index) -> Ints:
        return np.bincount(index, minlength=self._roster.unknown)
