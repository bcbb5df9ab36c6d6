"""One connection of a link: acknowledgement, retransmission, duplicate suppression.

Messages at QoS 1 and 2 are numbered; the packet identifier is the number's remainder, and since
fewer than half of the identifiers can be in flight, the receiver knows the whole number.  A lane
outlives its TCP connection: after a reconnect the sender sends again what was not acknowledged, in
order, and the receiver recognises what it had already.

    sender                                     receiver
    PUBLISH n ──────────────────────────────▶  accepted if n is new
              ◀──────────────── PUBACK n       when the message is safe: see below   (QoS 1)
              ◀──────────────── PUBREC n                                             (QoS 2)
    PUBREL n  ──────────────────────────────▶
              ◀──────────────── PUBCOMP n

"Safe" means that everyone this node passed the message on to has acknowledged it in turn: its
broker, and the neighbours further on.  So a message that is acknowledged has reached every broker
it was routed to, and a node that crashes with messages in hand has not acknowledged them.

Numbers belong to a *stream*: one link object's life in one incarnation of the sender.  Each end
says at the beginning of every connection which stream follows, and the receiver remembers what it
has accepted of which stream, also when it has let the neighbour go meanwhile.  A receiver that was
restarted has forgotten, so it may get, and pass on, a message twice: at least once, over crashes.

Invariants: numbers are accepted in increasing order; at most `WINDOW` are in flight; an entry
leaves `unacked` only by an acknowledgement or with the whole lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.message import Message, to_link

__all__ = ["IDENTIFIERS", "WINDOW", "Incoming", "Outgoing", "OutgoingLane"]

IDENTIFIERS = 65_535
WINDOW = 2_000

_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70


def packet_id_of(number: int) -> int:
    return number % IDENTIFIERS + 1


class Outgoing:
    """A numbered message that has not been acknowledged."""

    __slots__ = ("done", "message", "number", "qos", "released", "sent", "size")

    def __init__(
        self, number: int, message: Message, qos: int, done: Callable[[], None] | None
    ) -> None:
        self.number = number
        self.message = message
        self.qos = qos
        self.done = done
        self.size = len(message.payload) + len(message.topic) + len(message.properties) + 64
        self.sent = False
        """Whether it has been sent at all, on this connection or one before."""
        self.released = False
        """QoS 2: PUBREC came, the message itself is no longer needed."""


class OutgoingLane:
    """The sending half."""

    __slots__ = ("_in_flight", "_next", "_waiting", "unacked", "unacked_bytes")

    def __init__(self) -> None:
        self._next = 0
        self._in_flight: dict[int, Outgoing] = {}
        self._waiting: deque[Outgoing] = deque()
        self.unacked: dict[int, Outgoing] = {}
        self.unacked_bytes = 0

    def add(self, message: Message, qos: int, done: Callable[[], None] | None) -> None:
        """Take `message` over; `done` is called when it is acknowledged, or given up."""
        entry = Outgoing(self._next, message, qos, done)
        self._next += 1
        self.unacked[entry.number] = entry
        self.unacked_bytes += entry.size
        self._waiting.append(entry)

    def transmit(self, now_s: float) -> Iterator[bytes]:
        """The packets that may be sent now."""
        while self._waiting and len(self._in_flight) < WINDOW:
            entry = self._waiting.popleft()
            if not entry.sent and entry.message.expired(now_s):
                self._finish(entry)
                continue
            self._in_flight[packet_id_of(entry.number)] = entry
            if entry.released:
                yield bytes((_PUBREL, 2)) + packet_id_of(entry.number).to_bytes(2)
                continue
            dup, entry.sent = entry.sent, True
            yield to_link(entry.message, entry.qos, packet_id_of(entry.number), now_s, dup=dup)

    def connection_lost(self) -> None:
        """What was in flight will be sent again first, in order."""
        again = sorted(self._in_flight.values(), key=lambda entry: entry.number)
        self._in_flight.clear()
        self._waiting.extendleft(reversed(again))

    def acknowledged(self, head: int, packet_id: int) -> bytes:
        """PUBACK, PUBREC or PUBCOMP came; what to answer."""
        entry = self._in_flight.get(packet_id)
        if entry is None:
            # After a reconnect a message can be acknowledged twice: because it became safe, and
            # because it was repeated.  And if it is not repeated yet, it will be.
            return b""
        if head == _PUBREC:
            if entry.qos != 2:
                raise RemoteProtocolError("PUBREC for a message that is not QoS 2")
            entry.released = True
            return bytes((_PUBREL, 2)) + packet_id.to_bytes(2)
        if (head == _PUBACK) != (entry.qos == 1) or (head == _PUBCOMP and not entry.released):
            raise RemoteProtocolError("an acknowledgement that does not fit the message's QoS")
        del self._in_flight[packet_id]
        self._finish(entry)
        return b""

    def _finish(self, entry: Outgoing) -> None:
        del self.unacked[entry.number]
        self.unacked_bytes -= entry.size
        if entry.done is not None:
            entry.done()

    def give_up(self) -> list[Message]:
        """Forget everything; the messages that were never acknowledged."""
        entries = list(self.unacked.values())
        self.unacked.clear()
        self._in_flight.clear()
        self._waiting.clear()
        self.unacked_bytes = 0
        for entry in entries:
            if entry.done is not None:
                entry.done()
        return [entry.message for entry in entries if not entry.released]


class Incoming:
    """The receiving half, for one stream."""

    __slots__ = ("_accepted", "_busy")

    def __init__(self) -> None:
        self._accepted: int | None = None
        self._busy: set[int] = set()

    def accept(self, packet_id: int, qos: int) -> int | bytes:
        """A numbered PUBLISH came: its number, or, for a repetition, what to answer."""
        number = self._number(packet_id)
        if self._accepted is not None and number <= self._accepted:
            # If it is still on its way, the acknowledgement will follow.
            return b"" if number in self._busy else _answer(number, qos)
        self._accepted = number
        self._busy.add(number)
        return number

    def _number(self, packet_id: int) -> int:
        """The number nearest to the last one whose remainder the identifier is."""
        if packet_id == 0:
            raise RemoteProtocolError("packet identifier 0", section="MQTT-2.2.1-3")
        residue = packet_id - 1
        if self._accepted is None:
            return residue
        ahead = (residue - self._accepted) % IDENTIFIERS
        return self._accepted + (ahead if ahead <= IDENTIFIERS // 2 else ahead - IDENTIFIERS)

    def safe(self, number: int, qos: int) -> bytes:
        """The message is safe: the acknowledgement to send."""
        self._busy.discard(number)
        return _answer(number, qos)

    @staticmethod
    def released(packet_id: int) -> bytes:
        """PUBREL came."""
        return bytes((_PUBCOMP, 2)) + packet_id.to_bytes(2)


def _answer(number: int, qos: int) -> bytes:
    return bytes((_PUBREC if qos == 2 else _PUBACK, 2)) + packet_id_of(number).to_bytes(2)
