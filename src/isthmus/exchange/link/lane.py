"""One connection of a link: acknowledgment, retransmission, duplicate suppression.

Messages at QoS 1 and 2 are numbered when they are sent first; the packet identifier is the number's
remainder, and since all that is unacknowledged lies within less than half of the identifiers, the
receiver knows the whole number.  A lane outlives its TCP connection: after a reconnect the sender
sends again what was not acknowledged, in order, and the receiver recognizes what it had already.

    sender                                     receiver
    PUBLISH n ──────────────────────────────▶  accepted if n is new
              ◀──────────────── PUBACK n       when the message is safe: see below   (QoS 1)
              ◀──────────────── PUBREC n                                             (QoS 2)
    PUBREL n  ──────────────────────────────▶
              ◀──────────────── PUBCOMP n

              ◀─────── PUBACK or PUBREC n, 0x10   it is *taken*: it waits there, and here (below)
              ◀─────── PUBACK or PUBREC n, 0x80   somebody does without it (0x83: a broker)

"Safe" means that everyone this node passed the message on to has acknowledged it in turn: its
broker, and the neighbors further on.  So a message that is acknowledged has reached every broker
it was routed to, and a node that crashes with messages in hand has not acknowledged them; but for
what had waited so long that it was let go (`isthmus.exchange.traffic.in_hand`).

What is to be confirmed to its publisher (`Message.confirm`) is not let go: it is *taken*.  It makes
room for others in the window, and is kept here until the neighbor says by name that it is safe, or
missed (`$isthmus/safe`).  After a reconnect it is sent again as a new one, before all that came
after it; who has it in hand knows it by its number in the fabric.

Numbers belong to a *stream*: from a connection before which nothing was unacknowledged to the next
such one, within one link object's life.  Each end says at the beginning of every connection which
stream follows, and the receiver remembers what it has accepted of which stream, also when it has
let the neighbor go meanwhile.  A receiver that was restarted has forgotten, so it may get, and
pass on, a message twice: at least once, over crashes.

Invariants: numbers are sent first, and accepted, in increasing order and without a gap, but for
what was sent on a connection that broke and was given up before the next; at most `WINDOW`
messages are in flight, and none more than `SPAN` numbers after another; a message leaves the lane
only by an acknowledgment, unsent by its expiry, superseded, or with all the others.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.apart.spool import Record
from isthmus.exchange.link.runs import Run
from isthmus.exchange.traffic.message import Fate, Message, to_link
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.publish_layout import PUBACK, PUBCOMP, PUBREC, PUBREL, acknowledgment
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["FAR", "SPAN", "WINDOW", "Held", "Incoming", "Outgoing", "OutgoingLane", "Writes"]

WINDOW = 2_000
SPAN = IDENTIFIERS // 2 - 2 * WINDOW
"""How far numbers may run ahead of one that is not acknowledged."""
FAR = SPAN // 2
"""How far they do before the receiver stops leaving that one unacknowledged."""
MAX_BUSY = 4 * WINDOW
"""What one stream may leave unacknowledged; more than `WINDOW`, as its sender may have given some
of it up."""
IN_HAND_BYTES = 472
"""What it takes to know whom to acknowledge a message to, as measured."""

_REASONS = frozenset(Fate)
_UNSENT = -1
_GONE = -1
"""The QoS of an entry that was sent in the place of an earlier one."""


def packet_id_of(number: int) -> int:
    return number % IDENTIFIERS + 1


class Writes(Protocol):
    """`to_link`, or the same under another name."""

    def __call__(
        self,
        message: Message,
        qos: int,
        packet_id: int,
        now_s: float,
        label: bytes = b"",
        *,
        dup: bool = False,
    ) -> bytes: ...


class Outgoing:
    """A message that has not been acknowledged."""

    __slots__ = ("in_hand", "label", "message", "number", "qos", "record", "released")

    def __init__(
        self, message: Message, qos: int, in_hand: Held | None, label: bytes = b""
    ) -> None:
        self.message = message
        self.qos = qos
        self.in_hand = in_hand
        """Waits for it, if it came from a neighbor."""
        self.label = label
        self.record: Record | None = None
        """Its place on disk, if the neighbor is set apart."""
        self.number = _UNSENT
        """Given when it is sent first."""
        self.released = False
        """QoS 2: PUBREC came, the message itself is no longer needed."""

    @property
    def cost(self) -> int:
        """The bytes that it takes in memory, roughly."""
        return self.message.cost + (IN_HAND_BYTES if self.in_hand is not None else 0)

    def finish(self, neighbor: str) -> None:
        """`neighbor`, whom it was for, has it, or does without it."""
        if self.record is not None:
            self.record.over()
        if self.in_hand is not None:
            self.in_hand.acknowledged_by(neighbor)

    def is_kept(self, neighbor: str) -> None:
        """It is on disk: who waits for `neighbor` need not wait any longer."""
        if self.in_hand is not None:
            in_hand, self.in_hand = self.in_hand, _NOBODY
            in_hand.acknowledged_by(neighbor)


class OutgoingLane:
    """The sending half."""

    __slots__ = (
        "_again",
        "_fresh",
        "_in_flight",
        "_latest",
        "_neighbor",
        "_next",
        "_oldest",
        "_taken",
        "expired",
        "taken_bytes",
        "unacked_bytes",
        "write",
    )

    def __init__(self, neighbor: str, write: Writes = to_link) -> None:
        """`write` makes a packet of a message."""
        self._neighbor = neighbor
        self.write = write
        self._next = 0
        self._oldest = 0
        """No number in flight is less."""
        self._in_flight: dict[int, Outgoing | Run] = {}
        """By packet identifier, in the order of their numbers."""
        self._again: deque[Outgoing] = deque()
        """Sent before, on a connection that broke."""
        self._fresh: deque[Outgoing | Run] = deque()
        """Never sent; of a run that is the first one, the rest."""
        self._taken: dict[tuple[str, str, bytes], list[Outgoing]] = {}
        """By origin, number and label: what the neighbor has, and has not said to be safe.

        More than one if it was sent more than once, as after a crash.
        """
        self._latest: dict[tuple[str, str], Outgoing] = {}
        """Of messages that were put again, by origin and number."""
        self.unacked_bytes = 0
        self.taken_bytes = 0
        """Of these, what the neighbor has taken."""
        self.expired = 0

    def __len__(self) -> int:
        """How many messages are not acknowledged."""
        taken = sum(map(len, self._taken.values()))
        fresh = sum(each.waiting if isinstance(each, Run) else 1 for each in self._fresh)
        return taken + len(self._in_flight) + len(self._again) + fresh

    @property
    def all_sent(self) -> bool:
        return not self._again and not self._fresh

    def put(self, entry: Outgoing, *, again: bool = False) -> None:
        """Take it over until it is acknowledged, or expires.

        `again` if it was put before, with another label: if that is not in flight, this goes in its
        place, before all that came after it.
        """
        if again:
            self._spread()
            self._latest[_key(entry)] = entry
        elif self._latest:
            self._latest.pop(_key(entry), None)  # of the same message, and to be sent as well
        entry.number = _UNSENT
        self.unacked_bytes += entry.cost
        fresh = self._fresh
        if fresh and _place(fresh[-1]) > (place := entry.message.place):
            # It went another way first: what has come after it waits here already.
            self._spread()
            fresh.insert(bisect_right(fresh, place, key=_place), entry)
        else:
            fresh.append(entry)

    def put_run(self, run: Run) -> None:
        """Take over all of its messages, none of which was put before."""
        fresh = self._fresh
        if self._latest or (fresh and _place(fresh[-1]) > run.place):
            for message in run.unsent():
                self.put(Outgoing(message, 1, None, run.label))
            return
        self.unacked_bytes += run.cost
        fresh.append(run)

    def _spread(self) -> None:
        """Have an object for each message: something else is to happen than in a run."""
        if any(isinstance(each, Run) for each in self._in_flight.values()):
            spread = [(key, self._single(key, each)) for key, each in self._in_flight.items()]
            self._in_flight = dict(spread)
        if any(isinstance(each, Run) for each in self._fresh):
            waiting = list(self._fresh)
            self._fresh.clear()
            for each in waiting:
                if isinstance(each, Run):
                    self._fresh += [Outgoing(one, 1, None, each.label) for one in each.unsent()]
                else:
                    self._fresh.append(each)

    @staticmethod
    def _single(packet_id: int, entry: Outgoing | Run) -> Outgoing:
        """What is in flight under an identifier."""
        if not isinstance(entry, Run):
            return entry
        single = Outgoing(entry.message_of(packet_id), 1, None, entry.label)
        single.number = entry.number_of(packet_id)
        return single

    def append(self, entry: Outgoing) -> None:
        """Take it over, behind all that wait: it has waited on disk."""
        self.unacked_bytes += entry.cost
        self._fresh.append(entry)

    def transmit(self, now_s: float) -> list[bytes]:
        """The packets that may be sent now."""
        packets: list[bytes] = []
        if self._again and self._latest:
            self._number_anew()
        while self._again and len(self._in_flight) < WINDOW:
            entry = self._again.popleft()
            packet_id = packet_id_of(entry.number)
            self._in_flight[packet_id] = entry
            if entry.released:
                packets.append(acknowledgment(PUBREL, packet_id))
            else:
                packets.append(
                    self.write(entry.message, entry.qos, packet_id, now_s, entry.label, dup=True)
                )
        while self._fresh and (room := WINDOW - len(self._in_flight)) > 0 and self._has_span():
            first = self._fresh[0]
            if isinstance(first, Run):
                packets += self._send_run(first, min(room, SPAN - (self._next - self._oldest)))
                if not first.waiting:
                    self._fresh.popleft()
                continue
            entry = first
            self._fresh.popleft()
            if entry.qos == _GONE:
                continue
            latest = self._latest.get(_key(entry)) if self._latest else None
            if latest is not None and latest is not entry:
                self._finish(entry)
                if latest.number != _UNSENT:
                    continue  # it went in the place of an earlier one
                entry = self._move(latest)
            if entry.message.expired(now_s):
                self.expired += 1
                self._finish(entry)
                continue
            entry.number = self._next
            self._next += 1
            packet_id = packet_id_of(entry.number)
            self._in_flight[packet_id] = entry
            packets.append(self.write(entry.message, entry.qos, packet_id, now_s, entry.label))
        return packets

    def _send_run(self, run: Run, most: int) -> list[bytes]:
        number = self._next
        packets = run.send(number, most)
        self._next += len(packets)
        self._in_flight.update(dict.fromkeys(map(packet_id_of, range(number, self._next)), run))
        return packets

    def _move(self, latest: Outgoing) -> Outgoing:
        """To where an earlier one was; the entry further behind counts no more."""
        moved = Outgoing(latest.message, latest.qos, latest.in_hand, latest.label)
        self._latest[_key(latest)] = moved
        latest.qos = _GONE
        return moved

    def _is_superseded(self, entry: Outgoing) -> bool:
        latest = self._latest.get(_key(entry))
        return latest is not None and latest is not entry and latest.number == _UNSENT

    def _number_anew(self) -> None:
        """What was sent before cannot get another label: from there on all are sent as new ones."""
        kept: deque[Outgoing] = deque()
        anew: list[Outgoing] = []
        for entry in self._again:
            if entry.released or not (anew or self._is_superseded(entry)):
                kept.append(entry)
            else:
                anew.append(entry)
        self._again = kept
        self._send_as_new(anew)

    def _send_as_new(self, anew: list[Outgoing]) -> None:
        """Entries in order, that were sent before, go before all that was not."""
        for entry in anew:
            entry.number = _UNSENT
        fresh = self._fresh
        self._spread()
        while anew and fresh and _place(fresh[0]) < anew[-1].message.place:
            # It went another way first, and comes here only now.
            insort(anew, _alone(fresh.popleft()), key=_place)
        fresh.extendleft(reversed(anew))

    def _has_span(self) -> bool:
        """Whether the next number is not too far from the oldest unacknowledged one."""
        if self._next - self._oldest < SPAN:
            return True
        self._oldest = self._next
        for packet_id, oldest in self._in_flight.items():
            if isinstance(oldest, Run):
                self._oldest = oldest.number_of(packet_id)
            else:
                self._oldest = oldest.number
            break
        return self._next - self._oldest < SPAN

    def connection_lost(self) -> None:
        """What was in flight will be sent again first, in order."""
        self._spread()
        self._again.extendleft(map(_alone, reversed(self._in_flight.values())))
        self._in_flight.clear()
        if self._taken:
            # What the neighbor had to say of it may be lost; its number there is another one's.
            taken = list(chain.from_iterable(self._taken.values()))
            self._taken, self.taken_bytes = {}, 0
            sent = [entry for entry in self._again if not entry.released]
            self._again = deque(entry for entry in self._again if entry.released)
            self._send_as_new(sorted((*taken, *sent), key=lambda each: each.number))

    def acknowledged(self, head: int, packet_id: int, reason: int = 0) -> bytes:
        """PUBACK, PUBREC or PUBCOMP came; what to answer."""
        entry = self._in_flight.get(packet_id)
        if entry is None:
            # After a reconnect a message can be acknowledged twice: because it became safe, and
            # because it was repeated.  And if it is not repeated yet, it will be.
            return b""
        if isinstance(entry, Run):
            entry = self._in_flight[packet_id] = self._single(packet_id, entry)
        if reason:
            if reason not in _REASONS or not entry.message.confirm or head == PUBCOMP:
                raise RemoteProtocolError(f"an acknowledgment with the reason 0x{reason:02x}")
            if reason != Fate.TAKEN:
                entry.message.misses(Fate(reason))
        if head == PUBREC:
            if entry.qos != 2:
                raise RemoteProtocolError("PUBREC for a message that is not QoS 2")
            if reason == Fate.TAKEN and not entry.released:  # else it is said twice
                entry = self._in_flight[packet_id] = self._move_to_taken(entry)
            entry.released = True
            return acknowledgment(PUBREL, packet_id)
        if (head == PUBACK) != (entry.qos == 1) or (head == PUBCOMP and not entry.released):
            raise RemoteProtocolError("an acknowledgment that does not fit the message's QoS")
        del self._in_flight[packet_id]
        if reason == Fate.TAKEN:
            self._is_taken(entry)
        else:
            self._finish(entry)
        return b""

    def all_acknowledged(self, packet_ids: Sequence[int]) -> None:
        """PUBACKs without a reason came."""
        in_flight = self._in_flight
        for packet_id in packet_ids:
            entry = in_flight.get(packet_id)
            if isinstance(entry, Run):
                del in_flight[packet_id]
                self.unacked_bytes -= entry.acknowledged(packet_id)
            else:
                self.acknowledged(PUBACK, packet_id)

    def _is_taken(self, entry: Outgoing) -> None:
        self._taken.setdefault((*_key(entry), entry.label), []).append(entry)
        self.taken_bytes += entry.cost

    def _move_to_taken(self, entry: Outgoing) -> Outgoing:
        """At QoS 2: what stays in its place, for the rest of the handshake."""
        self._is_taken(entry)
        rest = Outgoing(entry.message, entry.qos, None, entry.label)
        rest.number = entry.number
        self.unacked_bytes += rest.cost
        return rest

    def settled(self, origin: str, number: str, label: bytes, fate: Fate) -> bool:
        """The neighbor says that what it had taken is safe, or missed; whether it was here."""
        entries = self._taken.pop((origin, number, label), [])
        for entry in entries:
            self.taken_bytes -= entry.cost
            if fate is not Fate.SAFE:
                entry.message.misses(fate)
            self._finish(entry)
        return bool(entries)

    def _finish(self, entry: Outgoing) -> None:
        if self._latest and self._latest.get(_key(entry)) is entry:
            del self._latest[_key(entry)]
        self.unacked_bytes -= entry.cost
        entry.finish(self._neighbor)

    def drop(self, unwanted: Callable[[Message], bool], *, misses: bool = True) -> None:
        """Between two connections: be done with messages that the next one must not carry.

        The neighbor `misses` them, or they are not for it.
        """
        self._spread()
        for waiting in (self._again, self._fresh):
            entries = list(map(_alone, waiting))
            waiting.clear()
            for entry in entries:
                if entry.released or not unwanted(entry.message):
                    waiting.append(entry)
                elif entry.qos != _GONE:
                    if misses:
                        entry.message.misses()
                    self._finish(entry)

    def unacknowledged(self) -> list[Outgoing]:
        """What it keeps, in order, but for what has been released."""
        self._spread()
        taken = chain.from_iterable(self._taken.values())
        entries = [*taken, *self._in_flight.values(), *self._again, *self._fresh]
        return [
            entry for entry in map(_alone, entries) if not entry.released and entry.qos != _GONE
        ]

    def take(self) -> list[Outgoing]:
        """Forget everything; what was not acknowledged, in order, is the caller's to finish.

        What has been released is acknowledged but for a formality, and is finished here.
        """
        left = self.unacknowledged()
        entries = list(map(_alone, [*self._in_flight.values(), *self._again, *self._fresh]))
        self._taken.clear()
        self._in_flight.clear()
        self._again.clear()
        self._fresh.clear()
        self._latest.clear()
        self.unacked_bytes = self.taken_bytes = 0
        for entry in entries:
            if entry.released:
                entry.finish(self._neighbor)
        return left


def _alone(entry: Outgoing | Run) -> Outgoing:
    assert not isinstance(entry, Run), "what is in a run has been spread"
    return entry


def _place(entry: Outgoing | Run) -> tuple[float, str]:
    return entry.place if isinstance(entry, Run) else entry.message.place


def _key(entry: Outgoing) -> tuple[str, str]:
    return entry.message.origin, entry.message.number


class Held(Protocol):
    """A message that was accepted and is not safe yet."""

    message: Message
    size: int

    def wait_for(self, branch: str) -> None:
        """It was passed on to `branch`."""
        ...

    def acknowledged_by(self, branch: str) -> None:
        """`branch` has it, or does without it."""
        ...


class _Nobody:
    """Who waited for what is on disk; it counts as it did."""

    message = Message(b"", b"")
    size = 0

    def wait_for(self, branch: str) -> None: ...

    def acknowledged_by(self, branch: str) -> None: ...


_NOBODY = _Nobody()


class Incoming:
    """The receiving half, for one stream."""

    __slots__ = ("_accepted", "_busy", "_taken", "answer", "relieving", "unsafe", "unsafe_bytes")

    def __init__(self) -> None:
        self._accepted: int | None = None
        self._busy: set[int] = set()
        self._taken: set[int] = set()
        """What the neighbor was told to be taken, and is not safe."""
        self.answer: Callable[[bytes], None] | None = None
        """Sends to whoever the stream comes from now: another link may have taken it up."""
        self.unsafe: dict[int, Held] = {}
        """By number, the oldest first, what was taken and may be let go."""
        self.unsafe_bytes = 0
        self.relieving = False
        """It will be looked again whether some of it can be."""

    def hold(self, number: int, held: Held) -> None:
        self.unsafe[number] = held
        self.unsafe_bytes += held.size

    @property
    def is_far_ahead(self) -> bool:
        """Whether so many came after the oldest of `unsafe` that its sender would have to stop."""
        return self._accepted is not None and self._accepted - next(iter(self.unsafe)) > FAR

    def accept(self, packet_id: int, qos: int, fate: Fate = Fate.SAFE) -> int | bytes:
        """A numbered PUBLISH came: its number, or, for a repetition, what to answer.

        `fate`: what has become of it, if it was here and all are done with it.
        """
        number = self._number(packet_id)
        if self._accepted is not None and number <= self._accepted:
            # If it is still on its way, the acknowledgment will follow.
            if number in self._busy:
                return b""
            return _answer(number, qos, Fate.TAKEN if number in self._taken else fate)
        if len(self._busy) >= MAX_BUSY:
            raise RemoteProtocolError(
                f"more than {MAX_BUSY} messages of one lane unacknowledged",
                reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )
        self._accepted = number
        self._busy.add(number)
        return number

    def accept_next(self, packet_id: int) -> int | None:
        """The same for a message that is just the next one, as most are; None if it is not."""
        accepted = self._accepted
        if accepted is None or packet_id != (accepted + 1) % IDENTIFIERS + 1:
            return None
        if len(self._busy) >= MAX_BUSY:
            return None
        self._accepted = number = accepted + 1
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

    def over(self, number: int, qos: int, reason: int = 0) -> bytes:
        """The message is safe, or else as `reason` says: the acknowledgment to send."""
        self._busy.discard(number)
        if held := self.unsafe.pop(number, None):
            self.unsafe_bytes -= held.size
        if reason == Fate.TAKEN:
            self._taken.add(number)
        return _answer(number, qos, reason)

    def settled(self, number: int) -> None:
        """What was taken is safe, or missed."""
        self._taken.discard(number)


def _answer(number: int, qos: int, reason: int) -> bytes:
    first = PUBREC if qos == 2 else PUBACK
    return acknowledgment(first, packet_id_of(number), bytes((reason,)) if reason else b"")
