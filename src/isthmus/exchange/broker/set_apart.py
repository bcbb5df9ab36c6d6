"""A broker that does not take its messages as they come: its queue on disk (`apart.spool`).

It is set apart when what waits for it in memory takes more than `APART_PART` of `queue_bytes`, and
when what came from a neighbor has waited for it for too long (`traffic.in_hand`).  All that waits
is written then, and all that follows, until the broker has acknowledged everything.

Once on disk, a message is acknowledged to the neighbor that it came from (`kept`).  Who needs to
know when the broker itself has it (`done`) is kept in memory:

    to be confirmed   each of them, up to `CONFIRM_PART` of `queue_bytes`; beyond that its publisher
                      is told that it is not confirmed
    retained          the newest of each topic, which the store of the fabric bounds

What an earlier life has left is published first; if it was retained, without that flag: what the
broker is to retain the store knows better (`retained.broker`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from isthmus.exchange.apart.kept_message import read_kept, write_kept
from isthmus.exchange.apart.spool import Record, Spool
from isthmus.exchange.link.lane import IN_HAND_BYTES

if TYPE_CHECKING:
    from isthmus.exchange.broker.injection import InjectedMessage, Injection
    from isthmus.exchange.traffic.message import Message

__all__ = ["BROKER_SPOOL", "BrokerApart", "LeftOfAnother"]

BROKER_SPOOL: Final = "broker"
"""What its files are called, with the neighbor's name."""

APART_PART: Final = 0.5
RESIDENT_PART: Final = 0.25
REFILL_PART: Final = 0.125
CONFIRM_PART: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Clocks:
    now: Callable[[], float]
    wall_ms: Callable[[], int]


class BrokerApart:
    """The queue of one injection on disk; the injection itself has its head."""

    def __init__(
        self,
        injection: Injection,
        spool: Spool,
        queue_bytes: int,
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._injection = injection
        self._queue_bytes = queue_bytes
        self._clocks = _Clocks(now, wall_ms)
        self.spool = spool
        self.memory = 0
        """What the messages at QoS 1 and 2 take that are in the injection's queue."""
        self._unconfirmed: dict[int, InjectedMessage] = {}
        self._unconfirmed_bytes = 0
        self._retained: dict[bytes, tuple[int, Callable[[], None]]] = {}
        """By topic the newest that is on disk alone: its ordinal, and who is to know."""
        spool.attach(self)
        spool.on_room = self.refill

    def begin(self) -> None:
        """Set the broker apart: write all that waits for it."""
        if not self.spool.apart:
            for entry in self._injection.entries():
                entry.record = self.spool.keep(entry, cost_of(entry.message), resident=True)

    def takes(self, entry: InjectedMessage) -> bool:
        """A message for the broker that is, or is to be, set apart; False if it is to be sent.

        Then it is among those that are written.
        """
        spool, cost = self.spool, cost_of(entry.message)
        if not spool.apart:
            if self.memory <= self._queue_bytes * APART_PART:
                self.memory += cost
                return False
            self.begin()
        resident = not spool.behind and self.memory <= self._queue_bytes * RESIDENT_PART
        entry.record = spool.keep(entry, cost, resident=resident)
        if resident:
            self.memory += cost
        return not resident

    def over(self, entry: InjectedMessage) -> None:
        """The broker has it, or does without it."""
        self.memory -= cost_of(entry.message)
        if entry.record is not None:
            entry.record.over()

    def refill(self) -> None:
        """Read the next ones, if few are left in memory."""
        if self.spool.behind and self.memory <= self._queue_bytes * REFILL_PART:
            self.spool.load()

    def give_up(self, size: int, may: Callable[[Message], bool]) -> int:
        """Do without the oldest that the disk has not taken, but the newest retained of a topic."""
        newest: dict[bytes, InjectedMessage] = {
            each.message.topic: each for each in self.spool.unwritten() if each.message.retain
        }
        given_up: list[InjectedMessage] = self.spool.give_up(
            size,
            lambda each: may(each.message) and newest.get(each.message.topic) is not each,
        )
        for entry in given_up:
            entry.message.misses()
            if entry.done is not None:
                entry.done()
        return len(given_up)

    # ---- what the spool asks -------------------------------------------------------------

    def form(self, entry: Any) -> bytes:
        return write_kept(entry.message, b"", self._clocks.now(), self._clocks.wall_ms())

    def written(self, record: Record) -> None:
        entry: InjectedMessage = record.entry
        message = entry.message
        if entry.kept is not None:
            entry.kept()
        if record.resident or entry.done is None:
            return
        if message.confirm:
            cost = cost_of(message)
            if self._unconfirmed_bytes + cost > self._queue_bytes * CONFIRM_PART:
                message.misses()
                entry.done()
                return
            self._unconfirmed[record.ordinal] = entry
            self._unconfirmed_bytes += cost
        elif message.retain:
            older = self._retained.get(message.topic)
            self._retained[message.topic] = (record.ordinal, entry.done)
            if older is not None:
                older[1]()

    def loaded(self, records: list[tuple[Record, bytes]], unwritten: list[Any]) -> None:
        found = (self._entry(record, body) for record, body in records)
        entries = [entry for entry in found if entry is not None]
        for each in unwritten:
            each.record = None
            entries.append(each)
        for entry in entries:
            self.memory += cost_of(entry.message)
        self._injection.put_back(entries)
        self.refill()

    def _entry(self, record: Record, body: bytes) -> InjectedMessage | None:
        entry = self._unconfirmed.pop(record.ordinal, None)
        if entry is not None:
            self._unconfirmed_bytes -= cost_of(entry.message)
        else:
            kept = read_kept(body, self._clocks.now(), self._clocks.wall_ms())
            if kept is None:
                record.is_unreadable()
                return None
            message = kept.message
            if record.earlier:
                message.retain = False
            entry = self._injection.entry(message)
            ordinal, done = self._retained.get(message.topic, (-1, None))
            if ordinal == record.ordinal:
                del self._retained[message.topic]
                entry.done = done
        entry.record = record
        return entry


class LeftOfAnother:
    """What an earlier life has left for a session that is none any more.

    Another one has to `publish` it, and may put it on its own disk.  What is read at once is over
    before more is read.
    """

    def __init__(
        self,
        spool: Spool,
        publish: Callable[[Message, Callable[[], None], Callable[[], None]], object],
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._spool = spool
        self._publish = publish
        self._clocks = _Clocks(now, wall_ms)
        self._under_way = 0
        spool.attach(self)
        spool.load()

    def form(self, entry: Any) -> bytes:
        raise AssertionError("nothing is kept here any more")

    def written(self, record: Record) -> None:
        raise AssertionError("nothing is kept here any more")

    def loaded(self, records: list[tuple[Record, bytes]], unwritten: list[Any]) -> None:
        self._under_way += 1  # until all are given
        for record, body in records:
            kept = read_kept(body, self._clocks.now(), self._clocks.wall_ms())
            if kept is None:
                record.is_unreadable()
                continue
            kept.message.retain = False
            self._under_way += 1
            over = partial(self._over, record)
            self._publish(kept.message, over, over)
        self._went()

    def _over(self, record: Record) -> None:
        """The broker has it, or it is on the disk of the other session; both may be told."""
        if not record.is_over:
            record.over()
            self._went()

    def _went(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._spool.load()


def cost_of(message: Message) -> int:
    return message.cost + IN_HAND_BYTES
