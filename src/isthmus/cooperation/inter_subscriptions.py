"""One neighbour in SF: what it has inter-subscribed here, and what it has still to be told.

`Neighbor.table` holds what is wanted on our side of the link, and its announced filters are what we
inter-subscribe there.  `announce` and `withdraw` are the difference between that and what has been
sent.  A filter that comes and goes before it was sent leaves no trace in them, so however long a
neighbour takes to acknowledge, no more waits for it than there is to tell.

Invariant, while the link is established: what was sent, with `announce` and without `withdraw`, is
what the table announces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from isthmus.mqtt.cover_table import CoverChange, CoverTable

__all__ = ["BATCH_BYTES", "BATCH_FILTERS", "WINDOW", "Neighbor", "take_batch"]

BATCH_FILTERS: Final = 1000
BATCH_BYTES: Final = 32 * 1024
"""A packet ends before either limit, unless one filter alone is longer."""

WINDOW: Final = 256
"""How many SUBSCRIBEs and UNSUBSCRIBEs a neighbour may have left unacknowledged."""


class Neighbor:
    """What is wanted beyond one link, and what the neighbour is told of our side's wants."""

    __slots__ = (
        "announce",
        "ending",
        "established",
        "forgotten",
        "next_packet_id",
        "received",
        "repeated",
        "table",
        "unacknowledged",
        "withdraw",
    )

    def __init__(self) -> None:
        self.established = False
        self.received: dict[str, None] = {}  # in order, so that runs repeat
        self.repeated: set[str] | None = None  # between the neighbour's `begin` and `end`
        self.table = CoverTable()
        self.announce: dict[str, None] = {}  # in the table, not yet told
        self.withdraw: dict[str, None] = {}  # no longer in the table, not yet told
        self.ending = False  # our `end` is still to be sent
        self.unacknowledged: dict[int, int] = {}  # packet id to number of filters
        self.forgotten: frozenset[int] = frozenset()  # unacknowledged when the link went down
        self.next_packet_id = 0

    def need(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Our side's wants have changed."""
        for topic_filter in added:
            self._note(self.table.add(topic_filter))
        for topic_filter in removed:
            self._note(self.table.remove(topic_filter))

    def _note(self, change: CoverChange) -> None:
        for topic_filter in change.announce:
            if topic_filter in self.withdraw:
                del self.withdraw[topic_filter]
            else:
                self.announce[topic_filter] = None
        for topic_filter in change.withdraw:
            if topic_filter in self.announce:
                del self.announce[topic_filter]
            else:
                self.withdraw[topic_filter] = None

    def begin(self) -> None:
        """The link is new: all is to be told."""
        self.established = True
        self.announce = dict.fromkeys(self.table.announced)
        self.withdraw = {}
        self.ending = True
        self.forgotten = frozenset(self.unacknowledged)
        self.unacknowledged.clear()

    def packet_id(self, filters: int) -> int:
        """A packet identifier that is free now and waits for the answer from now on."""
        while True:
            self.next_packet_id = self.next_packet_id % 65_535 + 1
            chosen = self.next_packet_id
            if chosen not in self.unacknowledged and chosen not in self.forgotten:
                self.unacknowledged[chosen] = filters
                return chosen


def take_batch(filters: dict[str, None]) -> tuple[str, ...]:
    """Take the first filters out, as many as one packet holds and one at least."""
    batch: list[str] = []
    size = 0
    for topic_filter in filters:
        size += len(topic_filter.encode()) + 3  # its length and its options
        if batch and (size > BATCH_BYTES or len(batch) == BATCH_FILTERS):
            break
        batch.append(topic_filter)
    for topic_filter in batch:
        del filters[topic_filter]
    return tuple(batch)
