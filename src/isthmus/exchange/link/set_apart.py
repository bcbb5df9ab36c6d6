"""A neighbor that does not take its messages as they come: its queue on disk (`apart.spool`).

A link is set apart when more than `APART_PART` of `queue_bytes` waits in memory, when it is down
and something is for it, and when what came from a neighbor has waited for it for too long
(`traffic.in_hand`).  All that waits is written then, and all that follows, until the neighbor has
acknowledged everything.  Once on disk a message is acknowledged to whom it came from.  What is to
be confirmed to its publisher is not, since that means more: that every broker has it; it waits in
memory, too, up to `CONFIRM_PART` of `queue_bytes`, and beyond that its publisher is told that it is
not confirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isthmus.cooperation.api import SessionInfo
from isthmus.exchange.apart.kept_message import KeptMessage, read_kept, write_kept
from isthmus.exchange.apart.spool import Record, Spool
from isthmus.exchange.host import Host
from isthmus.exchange.link.lane import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from isthmus.exchange.link.link import Link

__all__ = ["LINK_SPOOL", "LinkApart"]

LINK_SPOOL: Final = "link"
"""What its files are called, with the neighbor's name."""

APART_PART: Final = 0.5
RESIDENT_PART: Final = 0.25
REFILL_PART: Final = 0.125
CONFIRM_PART: Final = 0.2
"""With the residents it leaves so much that publishers who are held can go on (`Link.has_room`)."""


class LinkApart:
    """The queue of one link on disk; the link's lanes have its head."""

    def __init__(
        self,
        host: Host,
        link: Link,
        spool: Spool,
        session_of: Callable[[str], SessionInfo | None],
    ) -> None:
        """`session_of` finds a neighbor by its name."""
        self._host = host
        self._link = link
        self._session_of = session_of
        self.spool = spool
        self._unconfirmed: dict[int, Outgoing] = {}
        """By ordinal, what is on disk alone and to be confirmed."""
        self._unconfirmed_bytes = 0
        self._leaves: Callable[[list[Outgoing]], None] | None = None
        spool.attach(self)
        spool.on_room = self._went_on

    @property
    def memory(self) -> int:
        """In memory, and in no lane."""
        return self.spool.unwritten_bytes + self._unconfirmed_bytes

    def begin(self) -> None:
        """Set the neighbor apart: write all that waits for it."""
        if self.spool.apart:
            return
        self._host.log(
            "info",
            "neighbor set apart: what waits for it goes to disk",
            neighbor=self._link.info.name,
            messages=self._link.unacked(),
        )
        for entry in self._link.unacknowledged():
            entry.record = self.spool.keep(entry, entry.cost, resident=True)

    @property
    def lets_pass(self) -> bool:
        """Whether it would take none of what is for the neighbor now."""
        link = self._link
        return not self.spool.apart and link.unacked_bytes() <= link.queue_bytes * APART_PART

    def takes(self, entry: Outgoing) -> bool:
        """A message for the neighbor that is, or is to be, set apart; False if it is to be sent.

        Then it is among those that are written.
        """
        spool, link = self.spool, self._link
        memory = link.unacked_bytes()
        if not spool.apart:
            if link.state.up and memory <= link.queue_bytes * APART_PART:
                return False
            self.begin()
        resident = not spool.behind and self._is_below(RESIDENT_PART)
        entry.record = spool.keep(entry, entry.cost, resident=resident)
        return not resident

    def refill(self) -> None:
        """Read the next ones, if few are left in memory, or all are sent.

        What the neighbor has and does not acknowledge may wait for somebody: others must not.
        """
        link = self._link
        few = self._is_below(REFILL_PART) or (self._is_below(APART_PART) and link.all_sent())
        if self._leaves is not None or (link.state.carries and few):
            self.spool.load()

    def _is_below(self, part: float) -> bool:
        """Whether less of `queue_bytes` is in memory, apart from what has been taken."""
        link = self._link
        lanes, most = link.lane_bytes(), link.queue_bytes
        return lanes <= most and lanes - link.taken_bytes() <= most * part

    def leave(self, leaves: Callable[[list[Outgoing]], None]) -> None:
        """The neighbor is given up: `leaves` gets all that is on disk, a part at a time.

        What it is given is its own to finish.
        """
        self._leaves = leaves
        if self.spool.behind:
            self.spool.load()

    # ---- what the spool asks -------------------------------------------------------------

    def form(self, entry: Any) -> bytes:
        host = self._host
        return write_kept(entry.message, entry.label, host.now(), host.wall_ms())

    def written(self, record: Record) -> None:
        entry: Outgoing = record.entry
        if not entry.message.confirm or entry.in_hand is None:
            entry.is_kept(self._link.info.name)
            return
        if record.resident:
            return
        if self._unconfirmed_bytes + entry.cost > self._link.queue_bytes * CONFIRM_PART:
            entry.message.misses()
            entry.is_kept(self._link.info.name)
            return
        self._unconfirmed[record.ordinal] = entry
        self._unconfirmed_bytes += entry.cost

    def loaded(self, records: list[tuple[Record, bytes]], unwritten: list[Any]) -> None:
        found = (self._entry(record, body) for record, body in records)
        entries = [entry for entry in found if entry is not None]
        for each in unwritten:
            each.record = None
            entries.append(each)
        if self._leaves is not None:
            self._leaves(entries)
            return
        link = self._link
        for entry in entries:
            link.put_back(entry)
        link.transmit_all(self._host.now())
        self.refill()

    def _entry(self, record: Record, body: bytes) -> Outgoing | None:
        entry = self._unconfirmed.pop(record.ordinal, None)
        if entry is None:
            kept = read_kept(body, self._host.now(), self._host.wall_ms())
            if kept is None:
                record.is_unreadable()
                return None
            entry = Outgoing(kept.message, self._link.qos_of(kept.message), None, kept.label)
            self._remember(kept)
        else:
            self._unconfirmed_bytes -= entry.cost
        entry.record = record
        return entry

    def _remember(self, kept: KeptMessage) -> None:
        """Who has had it, as far as they are still neighbors."""
        message = kept.message
        message.came_from = self._session_of(kept.came_from)
        sessions = (self._session_of(name) for name in kept.passed_to)
        message.passed_to = tuple((each, b"") for each in sessions if each is not None)

    def _went_on(self) -> None:
        self._link.look_for_room()
        self.refill()
