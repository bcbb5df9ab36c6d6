"""Packet identifiers of what several brokers send to one client at QoS 1 and 2.

Each broker counts for itself, so what two of them send may have the same identifier.  The client
gets the broker's own where that is free, else another one, and its answers go back under the
broker's.  The memory belongs to the client's session and outlives its connections, as the brokers'
does: what is sent again has the identifier that it had.

When a broker has forgotten its session, the client may still answer what came from there.  Until it
has, its identifier is *nobody's*: used, and answered by the node, so that an answer to the old
message is not taken for one to the new.

(The other way, what the client sends has the client's identifiers at all brokers: it never uses one
twice.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

from isthmus.mqtt.packet_ids import IDENTIFIERS, free_packet_id

__all__ = ["Delivery", "Identifiers"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to the client."""

    broker: str
    """Empty if it is nobody's."""
    theirs: int
    """The broker's identifier; 0 if it is the client's, too."""
    qos: int


@cache
def _unchanged(broker: str, qos: int) -> Delivery:
    return Delivery(broker, 0, qos)


class Identifiers:
    """Of one client's session."""

    __slots__ = ("_changed", "_last", "cleared", "clearing", "deliveries", "is_new", "open")

    def __init__(self) -> None:
        self.deliveries: dict[int, Delivery] = {}
        """By the client's identifier."""
        self._changed: dict[tuple[str, int], int] = {}
        """The client's, by a broker and its own, where they are not the same."""
        self._last = 0
        self.open: set[int] = set()
        """What was sent on the present connection."""
        self.is_new = False
        """The session is older: the client may hold identifiers that nothing is known of."""
        self.cleared: set[int] = set()
        """Which ones it holds of nothing older, then."""
        self.clearing: set[int] = set()
        """Of which it is released, so that it does not take the next message for that one."""

    def begin(self) -> Iterator[int]:
        """A connection begins: which ones of nobody's the client is to be released of now."""
        self.open.clear()
        self.clearing.clear()
        for packet_id, delivery in list(self.deliveries.items()):
            if delivery.broker:
                continue
            if delivery.qos == 2:
                self.open.add(packet_id)
                yield packet_id
            else:
                del self.deliveries[packet_id]

    def take(self, broker: str, theirs: int, qos: int) -> bool:
        """Whether a broker's new message has its own identifier at the client, too."""
        if theirs in self.deliveries or (broker, theirs) in self._changed:
            return False
        self.deliveries[theirs] = _unchanged(broker, qos)
        self.open.add(theirs)
        return True

    def take_row(self, broker: str, ids: Sequence[int], qos: int) -> int:
        """How many of a broker's new messages, from the first, have their own identifiers."""
        new = set(ids)
        if len(new) == len(ids) and not self._changed and new.isdisjoint(self.deliveries):
            self.deliveries.update(dict.fromkeys(ids, _unchanged(broker, qos)))
            self.open |= new
            return len(ids)
        return sum(takewhile(bool, (self.take(broker, each, qos) for each in ids)))

    def give(self, broker: str, theirs: int, qos: int) -> int:
        """The client's identifier for a broker's; 0 if none is free."""
        packet_id = self._find(broker, theirs)
        if packet_id is None:
            if self.take(broker, theirs, qos):
                return theirs
            if len(self.deliveries) >= IDENTIFIERS:
                return 0
            packet_id = self._last = free_packet_id(self._last, self.deliveries)
            self.deliveries[packet_id] = Delivery(broker, theirs, qos)
            self._changed[broker, theirs] = packet_id
        self.open.add(packet_id)
        return packet_id

    def is_to_be_cleared(self, packet_id: int) -> bool:
        """Whether the client is to be released of it first; once for each."""
        if not self.is_new or packet_id in self.cleared:
            return False
        self.cleared.add(packet_id)
        self.clearing.add(packet_id)
        return True

    def _find(self, broker: str, theirs: int) -> int | None:
        delivery = self.deliveries.get(theirs)
        if delivery is not None and delivery.broker == broker and not delivery.theirs:
            return theirs
        return self._changed.get((broker, theirs))

    def is_open(self, broker: str, theirs: int) -> bool:
        """Whether it was sent on the present connection and is not answered."""
        return self._find(broker, theirs) in self.open

    def has(self, broker: str) -> bool:
        """Whether something of that broker was sent and is not answered."""
        return any(self.deliveries[each].broker == broker for each in self.open)

    def done(self, packet_id: int) -> Delivery | None:
        """The client has answered for the last time."""
        self.open.discard(packet_id)
        delivery = self.deliveries.pop(packet_id, None)
        if delivery is not None and delivery.theirs:
            self._changed.pop((delivery.broker, delivery.theirs), None)
        return delivery

    def answered(self, packet_id: int, like: Delivery) -> bool:
        """As `done`, if it is the same broker's as `like`, and at that QoS, both unchanged."""
        if self.deliveries.get(packet_id) is not like:
            return False
        del self.deliveries[packet_id]
        self.open.discard(packet_id)
        return True

    def row_answered(self, ids: Sequence[int], like: Delivery) -> bool:
        """As `answered`, of all of them or of none."""
        deliveries, found = self.deliveries, set(ids)
        if list(map(deliveries.get, ids)).count(like) != len(found) or len(found) != len(ids):
            return False
        for packet_id in ids:
            del deliveries[packet_id]
        self.open -= found
        return True

    def forget(self, broker: str) -> Iterator[int]:
        """The broker knows nothing any more: which ones, at QoS 2, the client is to be released of.

        A PUBREL does that, whether or not it has the message.
        """
        for packet_id, delivery in list(self.deliveries.items()):
            if delivery.broker != broker:
                continue
            if delivery.theirs:
                del self._changed[broker, delivery.theirs]
            if delivery.qos == 2 or packet_id in self.open:
                self.deliveries[packet_id] = _unchanged("", delivery.qos)
            else:
                del self.deliveries[packet_id]
            if delivery.qos == 2:
                self.open.add(packet_id)
                yield packet_id
