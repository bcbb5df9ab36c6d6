"""Plain messages of local clients at QoS 1 that go together: no object for each of them.

What one read of a client brings is a `Batch`.  Each link that it goes to has a `Run` of it, which
stands in the lane's queues in the place of so many messages: they are numbered, written and
acknowledged by position.  Whenever something else happens to one of them than that it is sent once
and acknowledged, the lane makes what it makes of any other message (`Run.single`): before it is
sent again, goes to disk or another way, and when what waits is looked through.

Nothing that arrives anywhere depends on it; a message costs a third of the time.

Invariants: the messages of a run have consecutive numbers, in the order in which they came; one is
in the lane's queues as long as it is not acknowledged.  A payload stays in memory until every run
has its acknowledgment, and no longer, however long others of the batch wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.cooperation.api import Hop
from isthmus.exchange.traffic.message import (
    OVERHEAD_BYTES,
    Message,
    number_of,
    numbered_block,
    numbered_to_link,
)
from isthmus.mqtt.packet_ids import IDENTIFIERS

__all__ = ["BATCH_BYTES", "Batch", "Run"]

BATCH_BYTES = 8_192
"""Of packets; what is longer is worth an object of its own."""


class Batch:
    """Messages that came together, with consecutive numbers in the fabric."""

    __slots__ = (
        "_awaited",
        "_messages",
        "arrived_s",
        "first",
        "hops",
        "incarnation",
        "origin",
        "payloads",
        "topics",
    )

    def __init__(
        self,
        topics: Sequence[bytes],
        payloads: list[bytes],
        hops: tuple[Hop, ...],
        *,
        origin: str,
        incarnation: str,
        first: int,
        arrived_s: float,
    ) -> None:
        """`first` is the count in the number of the first one."""
        self.topics = topics
        self.payloads = payloads
        self.hops = hops
        """Who gets them, all of them alike."""
        self.origin = origin
        self.incarnation = incarnation
        self.first = first
        self.arrived_s = arrived_s
        self._messages: dict[int, Message] = {}
        self._awaited = [len(hops)] * len(topics)
        """How many have to acknowledge each."""

    def acknowledged(self, at: int) -> None:
        """One of those who have it has acknowledged it, of whom the last one ends it."""
        self._awaited[at] -= 1
        if self._awaited[at] <= 0:
            self.payloads[at] = b""

    def message(self, at: int) -> Message:
        """One of them, the same object whoever asks."""
        message = self._messages.get(at)
        if message is None:
            message = self._messages[at] = Message(
                self.topics[at],
                self.payloads[at],
                qos=1,
                origin=self.origin,
                number=number_of(self.incarnation, self.first + at),
                arrived_s=self.arrived_s,
            )
            message.passed_to = self.hops
        return message

    def cost(self, at: int) -> int:
        """`Message.cost` of it."""
        return len(self.payloads[at]) + len(self.topics[at]) + OVERHEAD_BYTES


class Run:
    """Those of a batch that go over one lane."""

    __slots__ = ("_block", "_indexes", "batch", "label", "number", "sent")

    def __init__(self, batch: Batch, indexes: Sequence[int], label: bytes) -> None:
        """`indexes` says which of the batch, in order."""
        self.batch = batch
        self.label = label
        self._indexes = indexes
        self._block = numbered_block(batch.origin, label, batch.incarnation)
        self.number = 0
        """Of the first one on the lane, as soon as that is sent."""
        self.sent = 0
        """How many of them."""

    @property
    def waiting(self) -> int:
        """How many were not sent yet."""
        return len(self._indexes) - self.sent

    @property
    def place(self) -> tuple[float, str]:
        """`Message.place` of the last one."""
        batch = self.batch
        return batch.arrived_s, number_of(batch.incarnation, batch.first + self._indexes[-1])

    @property
    def cost(self) -> int:
        return sum(map(self.batch.cost, self._indexes))

    def send(self, number: int, most: int) -> list[bytes]:
        """The packets of the next `most` ones; the first of them gets `number`."""
        if not self.sent:
            self.number = number
        batch, block = self.batch, self._block
        topics, payloads, first = batch.topics, batch.payloads, batch.first
        indexes = self._indexes[self.sent : self.sent + most]
        self.sent += len(indexes)
        return [
            numbered_to_link(topics[at], place % IDENTIFIERS + 1, block, first + at, payloads[at])
            for place, at in enumerate(indexes, number)
        ]

    def number_of(self, packet_id: int) -> int:
        """On the lane, of one that was sent."""
        return self.number + (packet_id - 1 - self.number) % IDENTIFIERS

    def acknowledged(self, packet_id: int) -> int:
        """One that was sent is over: what it took (`Message.cost`)."""
        at = self._indexes[(packet_id - 1 - self.number) % IDENTIFIERS]
        cost = self.batch.cost(at)
        self.batch.acknowledged(at)
        return cost

    def message_of(self, packet_id: int) -> Message:
        return self.batch.message(self._indexes[(packet_id - 1 - self.number) % IDENTIFIERS])

    def unsent(self) -> list[Message]:
        return [self.batch.message(at) for at in self._indexes[self.sent :]]
