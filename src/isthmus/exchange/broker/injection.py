"""What is published at the local broker for one neighbor: queue, window, blame; without I/O.

    waiting ──window has room──▶ in flight ──PUBACK / PUBREC, PUBCOMP──▶ done
       ▲                             ├──session lost──▶ waiting again, first, as a suspect
       │                             └──refused (reason ≥ 0x80)──▶ done, counted
       └── suspects are tried alone ──TRIES sessions fell with it──▶ set aside, done

A message counts as done when the broker has acknowledged it; only then is it acknowledged to the
neighbor.  What the broker's CONNACK says is obeyed: Receive Maximum, Maximum QoS, Maximum Packet
Size [MQTT-3.2.2-15], Retain Available [MQTT-3.2.2-14].

**What a broker closes on.**  A session that falls takes no verdict along: any message in flight may
be the cause, or the broker crashed.  So what was in flight is sent again in a small window, one
message at first and one more for each that is acknowledged, after the new session has answered a
PINGREQ.  A message with which such a session falls while nothing else is in flight is *accused*;
the shell has it blamed (`blame`) only if it knows that the broker itself stood through it.  After
`TRIES` times in a row it is set aside, and everything behind it flows again.  So it does when the
broker keeps the session and just does not acknowledge (`acquit`).

At QoS 0 nobody can be blamed: what was written may be the cause or lost with the session.  So what
a broker may well close on, by its topic (`isthmus.exchange.broker.aversions`), is published at QoS
1.

**Bounds.**  QoS 1 and 2 wait as long as it takes, on disk if they can (`set_apart`); who injects
bounds them (`in_hand`), and may have the oldest given up that were never sent.  At QoS 0
`MAX_WAITING_BYTES` may wait, and what comes then is dropped and counted.  A retained message is
never dropped: over the bound the newest of a topic takes the place of the one before, so the
retained store of the fabric bounds these.  What is published at QoS 1 for the sake of its topic
counts until it is acknowledged.

**Sessions that are resumed** (``source = "broker"``).  At QoS 2 a message is sent again under its
identifier, with DUP set, or only released if the broker has said PUBREC [MQTT-4.4.0-1]: it is
published once.

RabbitMQ 3.10 answers QoS 2 with PUBACK, which is taken for what it is: an acknowledgment.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import repeat
from typing import Final, Protocol

from isthmus.errors import MalformedPacket
from isthmus.exchange.apart.spool import Record
from isthmus.exchange.broker.aversions import Aversions, is_special
from isthmus.exchange.broker.set_apart import BrokerApart
from isthmus.exchange.link.lane import IN_HAND_BYTES
from isthmus.exchange.traffic.message import Fate, Message, plain_to_broker, to_broker
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.framing import body_offset
from isthmus.mqtt.packet_ids import IDENTIFIERS, free_packet_id
from isthmus.mqtt.packets import ConnAck, PubAck, PubRec
from isthmus.mqtt.publish_layout import DUP, PUBCOMP, PUBREC, PUBREL, acknowledgment, packet_id_at
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = [
    "INNOCENT_FAREWELLS",
    "MAX_WAITING_BYTES",
    "TRIES",
    "InjectedMessage",
    "Injection",
    "InjectionShell",
    "SessionTerms",
]

WINDOW: Final = 1_000
MAX_WAITING_BYTES: Final = 8 << 20
TRIES: Final = 3
ENTRY_BYTES: Final = 400
"""What a waiting message takes beside its bytes."""

_UNLIMITED: Final = 1 << 62

INNOCENT_FAREWELLS: Final = frozenset(
    (
        ReasonCode.SERVER_BUSY,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.SESSION_TAKEN_OVER,
        ReasonCode.MESSAGE_RATE_TOO_HIGH,
        ReasonCode.ADMINISTRATIVE_ACTION,
        ReasonCode.USE_ANOTHER_SERVER,
        ReasonCode.SERVER_MOVED,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
        ReasonCode.MAXIMUM_CONNECT_TIME,
    )
)
"""Reasons of a broker's DISCONNECT that no message has caused."""


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """What the broker grants a session."""

    level: int = 5
    window: int = WINDOW
    maximum_qos: int = 2
    maximum_packet_bytes: int = _UNLIMITED
    retain_available: bool = True

    @classmethod
    def of(cls, connack: ConnAck, level: int) -> SessionTerms:
        said = connack.properties
        return cls(
            level,
            min(WINDOW, said.receive_maximum or WINDOW),
            2 if said.maximum_qos is None else said.maximum_qos,
            said.maximum_packet_size or _UNLIMITED,
            said.retain_available is not False,
        )


class InjectionShell(Protocol):
    """What the injection needs of whoever has the connection."""

    def now(self) -> float: ...

    def write(self, data: bytes) -> None:
        """Write to the session, at the end of this turn."""
        ...

    def prove(self) -> None:
        """Have the session answer a PINGREQ; `Injection.proven` is called then, never at once."""
        ...

    def set_aside(self, message: Message, cause: str) -> None:
        """Keep it for people, and say so."""
        ...

    def refused(self, message: Message, code: int) -> None:
        """The broker's acknowledgment says no."""
        ...


class InjectedMessage:
    """A message on its way to the broker."""

    __slots__ = (
        "apart",
        "done",
        "falls",
        "kept",
        "message",
        "packet_id",
        "record",
        "released",
        "suspect",
    )

    def __init__(self, message: Message, done: Callable[[], None] | None) -> None:
        self.message = message
        self.done = done
        self.kept: Callable[[], None] | None = None
        """To be told when it is on disk."""
        self.record: Record | None = None
        """Its place there, if the broker is set apart."""
        self.apart: BrokerApart | None = None
        """Who is told when it is over: of those that can wait on disk."""
        self.suspect = False
        """It was in flight when a session fell."""
        self.falls = 0
        """Times in a row that a healthy session fell with it alone."""
        self.packet_id = 0
        """QoS 2, in a session that is resumed: under which the broker may know it."""
        self.released = False
        """QoS 2: the broker has said PUBREC, so it has it."""

    @property
    def cost(self) -> int:
        """What it takes of `MAX_WAITING_BYTES`."""
        message = self.message
        if message.qos:
            return 0
        return ENTRY_BYTES + len(message.topic) + len(message.payload) + len(message.properties)

    def finish(self) -> None:
        if self.apart is not None:
            self.apart.over(self)
        if self.done is not None:
            self.done()


class Injection:
    """The messages of one neighbor for the local broker, over any number of sessions."""

    def __init__(
        self,
        shell: InjectionShell,
        counters: Counter[str],
        aversions: Aversions | None = None,
        *,
        identifiers: int = IDENTIFIERS,
    ) -> None:
        """`aversions` are the broker's, for all that publish there."""
        self._identifiers = identifiers
        self.published: Callable[[Sequence[bytes], Sequence[bytes]], None] | None = None
        """Is told topics and payloads of what is written, if anybody wants to know."""
        self._reserved: set[int] = set()
        """Identifiers that the broker may know from an earlier connection."""
        self._sweeping: set[int] = set()
        self._unswept = False
        """QoS 2 has to wait: the broker may know identifiers of an earlier life of the node."""
        self._shell = shell
        self._aversions = Aversions() if aversions is None else aversions
        self._counters = counters
        self._waiting: deque[InjectedMessage] = deque()
        self._waiting_bytes = 0
        self._raised_bytes = 0
        """Of what came at QoS 0, is published at QoS 1 and is not done."""
        self._newest: dict[bytes, InjectedMessage] = {}
        """By topic the last retained message at QoS 0 that waits."""
        self._in_flight: dict[int, InjectedMessage] = {}
        self._unreleased: Counter[bytes] = Counter()
        """Topics with messages at QoS 2 in flight."""
        self.apart: BrokerApart | None = None
        """How the broker is set apart, if it can be."""
        self._last_id = 0
        self._terms: SessionTerms | None = None
        self._packet_bytes = _UNLIMITED
        self._flowing = False
        """A session stands and takes bytes."""
        self._clear = False
        """The same, and no suspect is being tried: QoS 0 need not wait."""
        self._asked = self._proven = False
        self._suspects_in_flight = 0
        self._trial_window = 1
        self.acknowledgments = 0
        """How many came so far."""

    def __len__(self) -> int:
        behind = self.apart.spool.behind if self.apart is not None else 0
        return len(self._waiting) + len(self._in_flight) + behind

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def on_trial(self) -> bool:
        """Whether a suspect is in flight, or the next to be sent."""
        return self._suspects_in_flight > 0 or bool(self._waiting and self._waiting[0].suspect)

    # ---- messages ------------------------------------------------------------------------

    def inject(
        self,
        message: Message,
        done: Callable[[], None] | None,
        kept: Callable[[], None] | None = None,
        *,
        on_disk: bool = True,
    ) -> bool:
        """Publish `message`; False if it had to be dropped, which only happens at QoS 0.

        If not `on_disk`, it is of no use to another life of the node, and waits in memory.
        """
        entry = InjectedMessage(message, done)
        if message.qos and self.apart is not None and on_disk:
            entry.kept, entry.apart = kept, self.apart
            if self.apart.takes(entry):
                return True
        if message.qos == 0:
            if is_special(message.topic):
                return self._inject_special(entry)
            if self._clear and not self._waiting and message.topic not in self._unreleased:
                self._send(entry)
                return True
            if self._waiting_bytes + entry.cost > MAX_WAITING_BYTES:
                return message.retain and self._supersede(entry)
        return self._enqueue(entry, newest=message.retain and message.qos == 0)

    def _enqueue(self, entry: InjectedMessage, *, newest: bool) -> bool:
        if newest:
            self._newest[entry.message.topic] = entry
        self._wait(entry)
        self._advance()
        return True

    def entry(self, message: Message) -> InjectedMessage:
        """One that has waited on disk."""
        entry = InjectedMessage(message, None)
        entry.apart = self.apart
        return entry

    def entries(self) -> list[InjectedMessage]:
        """Those that can wait on disk, in order."""
        entries = (*self._in_flight.values(), *self._waiting)
        return [entry for entry in entries if entry.apart is not None]

    def has_on(self, matters: Callable[[bytes], bool]) -> bool:
        """Whether something waits, or is not acknowledged, on a topic that matters.

        What is on disk alone counts as such, whatever its topic.
        """
        entries = (*self._in_flight.values(), *self._waiting)
        behind = self.apart is not None and self.apart.spool.behind
        return bool(behind) or any(matters(entry.message.topic) for entry in entries)

    def put_back(self, entries: Iterable[InjectedMessage]) -> None:
        """What has waited on disk is next."""
        self._waiting.extend(entries)
        self._advance()

    def _inject_special(self, entry: InjectedMessage) -> bool:
        """Publish what came at QoS 0 at QoS 1, so that it can be blamed."""
        message, done, cost = entry.message, entry.done, entry.cost
        if self._raised_bytes + cost > MAX_WAITING_BYTES and not message.retain:
            return False

        def over() -> None:
            self._raised_bytes -= cost
            if done is not None:
                done()

        entry.message, entry.done = copy(message), over
        entry.message.qos = 1
        self._raised_bytes += cost
        if message.retain and self._raised_bytes > MAX_WAITING_BYTES:
            return self._supersede(entry)
        return self._enqueue(entry, newest=message.retain)

    def inject_plain(self, topics: Sequence[bytes], payloads: Sequence[bytes]) -> int:
        """Publish messages at QoS 0, not retained, without properties: the hot path.

        Their topics are not special ones.  How many of them had to be dropped.
        """
        if (
            self._clear
            and not self._waiting
            and not self._aversions
            and (not self._unreleased or self._unreleased.keys().isdisjoint(topics))
        ):
            assert self._terms is not None
            packets = list(map(plain_to_broker, topics, payloads, repeat(self._terms.level)))
            if max(map(len, packets)) <= self._packet_bytes:
                self._shell.write(b"".join(packets))
                if self.published is not None:
                    self.published(topics, payloads)
                return 0
        messages = map(Message, topics, payloads)
        return sum(not self.inject(message, None) for message in messages)

    def give_up(self, size: int, neighbor: str = "") -> int:
        """See `Host.give_up_injected`; of `neighbor` alone, if others share this."""
        # Suspects may be at the broker already, and one of them may stand accused.  What is on disk
        # stays there.
        newest = {each.message.topic: each for each in self._waiting if each.message.retain}
        given_up, kept = [], deque[InjectedMessage]()
        for entry in self._waiting:
            message = entry.message
            if (
                size > 0
                and message.qos
                and (not neighbor or _neighbor_of(message) == neighbor)
                and not entry.suspect
                and (entry.record is None or not entry.record.is_on_disk)
                and newest.get(message.topic) is not entry
                and self._newest.get(message.topic) is not entry
            ):
                size -= message.cost + IN_HAND_BYTES
                given_up.append(entry)
            else:
                kept.append(entry)
        self._waiting = kept
        for entry in given_up:
            entry.message.misses()
            entry.finish()
        if self.apart is None or size <= 0:
            return len(given_up)
        return len(given_up) + self.apart.give_up(
            size, lambda message: not neighbor or _neighbor_of(message) == neighbor
        )

    def _wait(self, entry: InjectedMessage) -> None:
        self._waiting.append(entry)
        self._waiting_bytes += entry.cost

    def _supersede(self, entry: InjectedMessage) -> bool:
        """Over the bound only the newest retained message of a topic is kept."""
        topic = entry.message.topic
        older = self._newest.get(topic)
        if older is None:
            self._newest[topic] = entry
            self._wait(entry)
            return True
        self._counters["inject_dropped"] += 1
        older.finish()
        self._waiting_bytes += entry.cost - older.cost
        older.message, older.done = entry.message, entry.done
        return True

    def _advance(self) -> None:
        while self._flowing and self._waiting:
            entry = self._waiting[0]
            message = entry.message
            if not self._may_go(entry):
                return
            if message.qos < 2 and message.topic in self._unreleased:
                return  # a broker may apply a QoS 2 message at its PUBREL, after this one
            self._waiting.popleft()
            self._waiting_bytes -= entry.cost
            if self._newest.get(message.topic) is entry:
                del self._newest[message.topic]
            if message.expired(self._shell.now()):
                self._counters["expired"] += 1
                entry.finish()
            else:
                self._send(entry)

    def _may_go(self, entry: InjectedMessage) -> bool:
        assert self._terms is not None
        if self._unswept and entry.message.qos == 2:
            return False
        if not entry.suspect:
            return not self._suspects_in_flight and len(self._in_flight) < self._terms.window
        if self._in_flight and self._suspects_in_flight == 0:
            return False
        if not self._proven:
            if not self._asked:
                self._asked = True
                self._shell.prove()
            return False
        return len(self._in_flight) < min(self._trial_window, self._terms.window)

    def _send(self, entry: InjectedMessage) -> None:
        assert self._terms is not None
        terms, message = self._terms, entry.message
        if self._aversions and (why := self._aversions.to(message.topic, self._shell.now())):
            self._set_aside(entry, f"the broker closes on {why}")
            return
        if message.retain and not terms.retain_available:
            self._counters["retain_unavailable"] += 1
            if _is_from_comparison(message):
                entry.finish()  # who is subscribed has had it, or was not there
                return
            message = copy(message)
            message.retain = False
        qos = min(message.qos, terms.maximum_qos)
        packet_id = 0
        again = qos == 2 and entry.packet_id > 0
        if again:
            packet_id = entry.packet_id
        elif qos:
            packet_id = self._last_id = free_packet_id(
                self._last_id, self._in_flight, self._reserved, self._identifiers
            )
        if again and entry.released:
            frame = acknowledgment(PUBREL, packet_id)
        else:
            frame = to_broker(message, terms.level, qos, packet_id, self._shell.now())
            if again:
                frame = b"%c%b" % (frame[0] | DUP, frame[1:])
        if len(frame) > self._packet_bytes:
            self._set_aside(
                entry,
                f"{len(frame)} bytes; the broker takes packets of {self._packet_bytes} at most",
            )
            return
        self._shell.write(frame)
        if self.published is not None and not entry.released:
            self.published((message.topic,), (message.payload,))
        if qos == 0:
            entry.finish()
            return
        self._reserved.discard(packet_id)
        self._in_flight[packet_id] = entry
        if entry.suspect:
            self._suspects_in_flight += 1
            self._clear = False
        if qos == 2:
            self._unreleased[message.topic] += 1

    # ---- the session ---------------------------------------------------------------------

    def opened(self, terms: SessionTerms, *, resumed: bool = False, unswept: bool = False) -> None:
        """The broker has accepted a session, or resumed one that it has kept.

        If it is `unswept`, the broker may have kept it of an earlier life: `sweep` is called.
        """
        self._terms = terms
        self._unswept = unswept
        if not resumed:
            self._reserved.clear()
            for entry in self._waiting:
                entry.packet_id, entry.released = 0, False
        self._packet_bytes = terms.maximum_packet_bytes
        self._flowing = self._clear = True
        self._advance()

    def may_write(self, yes: bool) -> None:
        """The session's buffer is full, or has room again."""
        self._flowing = yes and self._terms is not None
        self._clear = self._flowing and not self._suspects_in_flight
        self._advance()

    def proven(self) -> None:
        """The session has answered a PINGREQ."""
        self._proven = self._terms is not None
        self._advance()

    def lost(self) -> InjectedMessage | None:
        """The session is gone; what was in flight goes first in the next one, as suspects.

        Returns the message that is accused: the only one in flight, in a session that was proven.
        """
        accused: InjectedMessage | None = None
        if self._suspects_in_flight == 1 and len(self._in_flight) == 1:
            (accused,) = self._in_flight.values()
        for packet_id, entry in reversed(self._in_flight.items()):
            entry.suspect = True
            if entry.message.qos == 2:
                entry.packet_id = packet_id
                self._reserved.add(packet_id)
            self._waiting.appendleft(entry)
            self._waiting_bytes += entry.cost
        self._in_flight.clear()
        self._unreleased.clear()
        self._terms = None
        self._flowing = self._clear = self._asked = self._proven = False
        self._suspects_in_flight = 0
        self._trial_window = 1
        self._sweeping = set()
        return accused

    def acknowledged(self, frame: bytes) -> None:
        """A PUBACK, PUBREC or PUBCOMP came."""
        pos = body_offset(frame, 0)  # a reason string can make it long
        if len(frame) < pos + 2:
            raise MalformedPacket("an acknowledgment without a packet identifier")
        packet_id = packet_id_at(frame, pos)
        code = _refusal(frame)
        if frame[0] == PUBREC and code is None:
            if packet_id in self._in_flight:
                self._in_flight[packet_id].released = True
            self._shell.write(acknowledgment(PUBREL, packet_id))
            return
        if self._sweeping and frame[0] == PUBCOMP:
            self._sweeping.discard(packet_id)
            if not self._sweeping:
                self.swept()
            return
        entry = self._in_flight.pop(packet_id, None)
        if entry is None:
            return  # a broker that acknowledges twice
        self.acknowledgments += 1
        if entry.suspect:
            self._suspects_in_flight -= 1
            self._trial_window += 1
            self._clear = self._flowing and not self._suspects_in_flight
        topic = entry.message.topic
        if topic in self._unreleased and entry.message.qos == 2:
            self._unreleased[topic] -= 1
            if self._unreleased[topic] == 0:
                del self._unreleased[topic]
        if code is not None:
            self._counters["inject_refused"] += 1
            self._shell.refused(entry.message, code)
            entry.message.misses(Fate.REFUSED)
        entry.finish()
        self._advance()
        if self.apart is not None:
            self.apart.refill()

    @property
    def is_unswept(self) -> bool:
        return self._unswept

    def sweep(self) -> None:
        """Release what an earlier life of the node may have left at the broker at QoS 2.

        A message under one of these identifiers would be taken for a repetition.  Until all are
        answered, or `swept` is called, none is sent.
        """
        if self._unswept:
            self._sweeping = set(range(1, self._identifiers + 1))
            self._shell.write(
                b"".join(acknowledgment(PUBREL, each) for each in sorted(self._sweeping))
            )

    def swept(self) -> None:
        """There is nothing to be released, or nobody answers."""
        self._unswept = False
        self._sweeping = set()
        self._advance()

    # ---- blame ---------------------------------------------------------------------------

    def blame(self, accused: InjectedMessage, cause: str) -> bool:
        """The broker stood, only the session fell; True if the message was set aside for it.

        To be called between `lost` and `opened`.
        """
        accused.falls += 1
        if accused.falls < TRIES:
            return False
        popped = self._waiting.popleft()
        assert popped is accused, "the accused is the first to be sent"
        self._waiting_bytes -= accused.cost
        self._aversions.learn(accused.message.topic, self._shell.now())
        self._set_aside(accused, f"{TRIES} sessions fell with it: {cause}")
        return True

    def acquit(self) -> None:
        """The session stands, and the suspects in flight are not acknowledged: let others go on."""
        for entry in self._in_flight.values():
            entry.suspect = False
        self._suspects_in_flight = 0
        self._clear = self._flowing
        self._advance()

    def forgive(self) -> None:
        """The broker itself was away: nobody is blamed for that, nor for what was before."""
        self._aversions.clear()
        if self._waiting:
            self._waiting[0].falls = 0

    def _set_aside(self, entry: InjectedMessage, cause: str) -> None:
        self._counters["set_aside"] += 1
        self._shell.set_aside(entry.message, cause)
        entry.message.misses(Fate.REFUSED)
        entry.finish()


def _is_from_comparison(message: Message) -> bool:
    """Whether the comparison of two stores brought it: what comes live has come over a link."""
    return message.hops == 0


def _refusal(frame: bytes) -> int | None:
    """The reason code of a v5 acknowledgment that refuses the message."""
    if len(frame) <= 4:
        return None
    packet = decode(frame, 5)
    if isinstance(packet, PubAck | PubRec) and packet.reason_code >= 0x80:
        return int(packet.reason_code)
    return None


def _neighbor_of(message: Message) -> str:
    return message.came_from.name if message.came_from is not None else ""
