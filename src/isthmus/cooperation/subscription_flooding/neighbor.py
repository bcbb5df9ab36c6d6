"""One neighbor in SF: what it has inter-subscribed here, and what it has still to be told.

`Neighbor.table` holds what is wanted on our side of the link, and its announced filters are what we
inter-subscribe there.  The table's `announce` and `withdraw` are the difference between that and
what has been sent.  A filter that comes and goes before it was sent leaves no trace in them, so
however long a neighbor takes to acknowledge, no more waits for it than there is to tell.  When the
link is new, everything is told once more: `repeat` goes through what was announced at that moment.

Invariant, while the link is established: what was sent since, with `announce` and what `repeat` has
not come to, and without `withdraw`, is what the table announces.

A neighbor's packets wait in `inbox` until there is time for them.  It can have no more than
`MAX_INBOX` there: as many packets as it may have unanswered, and as many answers to ours.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from operator import length_hint
from typing import Final

from isthmus.cooperation.api import ReceivedPacket, SessionInfo
from isthmus.cooperation.subscription_flooding.changes import Changes
from isthmus.cooperation.subscription_flooding.crossing_table import CrossingTable
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.cover_table import CoverTable
from isthmus.mqtt.framing import body_offset
from isthmus.mqtt.packet_ids import free_packet_id
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = [
    "BATCH_BYTES",
    "BATCH_FILTERS",
    "WINDOW",
    "Neighbor",
    "check_size",
    "take_batch",
]

BATCH_FILTERS: Final = 1000
BATCH_BYTES: Final = 32 * 1024
"""A packet ends before either limit, unless one filter alone is longer."""

WINDOW: Final = 256
"""How many SUBSCRIBEs and UNSUBSCRIBEs a neighbor may have left unacknowledged."""

MAX_INBOX: Final = 2 * WINDOW + 16

_HEADER_BYTES: Final = 16


class Neighbor:
    """What is wanted beyond one link, and what the neighbor is told of our side's wants."""

    __slots__ = (
        "all_told",
        "changes",
        "crossing",
        "ending",
        "established",
        "filling",
        "forgotten",
        "inbox",
        "last_packet_id",
        "life",
        "received",
        "repeat",
        "session",
        "synchronizing",
        "table",
        "unacknowledged",
    )

    def __init__(self, session: SessionInfo) -> None:
        self.session = session
        self.crossing = session.crossing
        """What the table is for."""
        self.established = False
        self.inbox: deque[ReceivedPacket] = deque()
        self.received: dict[str, int] = {}  # in order; to the life that it was repeated in
        self.life = 0  # how many times the neighbor has begun
        self.synchronizing = False  # between the neighbor's `begin` and `end`
        self.table = _table(session)
        self.changes: Changes[None] = Changes()
        """What the table has to hold, or no longer; the mark is for `all_told`."""
        self.filling = False  # the table does not have all yet that others want
        self.repeat: Iterator[str] = iter(())  # announced before the link was new
        self.ending = False  # our `end` is still to be sent
        self.all_told = False  # what was wanted when the link was new is in the table
        self.unacknowledged: dict[int, int] = {}  # packet id to number of filters
        self.forgotten: frozenset[int] = frozenset()  # unacknowledged when the link went down
        self.last_packet_id = 0

    def put(self, message: ReceivedPacket) -> None:
        """Keep a packet until there is time for it."""
        if len(self.inbox) >= MAX_INBOX:
            raise RemoteProtocolError(
                f"neighbor {self.session.name} sends more than {MAX_INBOX} packets without "
                "waiting for an answer",
                section="4.13",
                reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )
        self.inbox.append(message)

    def cross_otherwise(self) -> CoverTable:
        """The link has other rules than before: another table, which is to be filled."""
        before, self.table = self.table, _table(self.session)
        self.crossing = self.session.crossing
        self.changes = Changes()
        self.filling = True
        return before

    def begin(self) -> None:
        """The link is new: all is to be told."""
        self.established = True
        self.repeat = iter(list(self.table.announced))
        self.table.announce = OrderedDict()
        self.table.withdraw = OrderedDict()
        self.ending = True
        self.all_told = False
        self.changes.unmark(None)
        self.forgotten = frozenset(self.unacknowledged)
        self.unacknowledged.clear()

    def went_down(self) -> None:
        """All is told when the link is back, by both sides."""
        self.established = False
        self.synchronizing = False
        self.inbox.clear()

    def next_announced(self) -> tuple[str, ...]:
        """The filters of the next SUBSCRIBE; none if those it looked at are no longer announced."""
        table = self.table
        for topic_filter in islice(self.repeat, BATCH_FILTERS):
            if table.is_announced(topic_filter):
                table.announce.setdefault(topic_filter)
            else:
                table.withdraw.pop(topic_filter, None)  # by `end` the neighbor does without it
        return take_batch(table.announce)

    @property
    def announcing(self) -> bool:
        """Whether there is anything for another SUBSCRIBE."""
        return bool(self.table.announce) or length_hint(self.repeat) > 0

    def waiting(self) -> int:
        """How many filters it has still to be told of."""
        return len(self.table.announce) + len(self.table.withdraw) + length_hint(self.repeat)

    def packet_id(self, filters: int) -> int:
        """A packet identifier that is free now and waits for the answer from now on."""
        chosen = free_packet_id(self.last_packet_id, self.unacknowledged, self.forgotten)
        self.last_packet_id = chosen
        self.unacknowledged[chosen] = filters
        return chosen


def _table(session: SessionInfo) -> CoverTable:
    return CoverTable() if session.crossing is None else CrossingTable(session.crossing)


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


def check_size(session: SessionInfo, message: bytes) -> None:
    """Refuse a SUBSCRIBE or UNSUBSCRIBE larger than `take_batch` makes, before it is decoded."""
    if len(message) <= BATCH_BYTES + _HEADER_BYTES:
        return
    start = body_offset(message, 0) + 3  # the packet's identifier, and no properties
    if message[start - 1] == 0 and len(message) - start <= 65_535 + 3:
        first = message[start] << 8 | message[start + 1]
        if len(message) - start - 2 - first <= 1:
            return  # one filter, which may be as long as a filter can be
    raise RemoteProtocolError(
        f"neighbor {session.name} sends {len(message)} bytes of filters in one packet; "
        f"at most {BATCH_BYTES} are allowed",
        section="4.13",
        reason_code=ReasonCode.PACKET_TOO_LARGE,
    )
