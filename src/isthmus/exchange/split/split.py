"""A client's session with several brokers, which looks like one to everything before it.

To the pair of sessions that a client has (`isthmus.exchange.client`) it is the wire to its broker:
bytes go in by `write` and come out by the broker session's `data_received`.  Behind it stands a
`Part` for each broker that the client needs, opened when something is to be sent there.

    client ═ ClientSession ═ BrokerSession ─ Split ┬─ Part ─ broker
                                                   └─ Part ─ broker

* Who lets the client in, and who else is greeted then, is `greeting`'s to say.
* A PUBLISH goes to the broker in charge of its topic, which acknowledges it.
* SUBSCRIBE and UNSUBSCRIBE go in parts, and their answers come back as one (`subscribing`).
* What brokers send gets identifiers of the client's side (`delivering`).
* AUTH is between the client and the first broker.  DISCONNECT goes to all of them.
* PINGREQ is answered here.  Brokers are asked for a sign of life every half keep-alive interval, as
  long as there is one of the client; without any for 1.5 of them the client is gone.
* A broker that stands and ends a part ends the client's connection, as with one broker.  One that
  is away takes nothing but its topics along (`part`).

Invariants: packets of the client reach each broker in their order, and the other way; the client is
told nothing from within a call of `write`; each of its packet identifiers is answered once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from isthmus.exchange.client.checks import TopicAliases
from isthmus.exchange.host import Cancellable
from isthmus.exchange.split.delivering import Delivering
from isthmus.exchange.split.greeting import Greeting
from isthmus.exchange.split.kept import KeptSession
from isthmus.exchange.split.life import PartState
from isthmus.exchange.split.part import Part
from isthmus.exchange.split.subscribing import Subscribing
from isthmus.mqtt.decoding import decode, decode_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import body_offset, scan
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.packets import ConnAck, Disconnect, Publish
from isthmus.mqtt.publish_layout import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    QOS,
    acknowledgment,
    packet_id_at,
    property_bounds,
    publish_answer,
    publish_id,
    topic_bounds,
)
from isthmus.mqtt.publish_properties import check_publish_properties
from isthmus.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from isthmus.exchange.client.broker_session import BrokerSession
    from isthmus.exchange.client.relay import Relay

__all__ = ["Split"]

COPIES_S: Final = 30.0
"""After a client is back, what came for it meanwhile has come."""
IDLE_BEAT_S: Final = 30.0
"""How often brokers are asked for a sign of life if the client's keep-alive is off."""

_PINGREQ, _PINGRESP = 0xC0, b"\xd0\x00"
_SUBSCRIBE, _UNSUBSCRIBE, _DISCONNECT, _AUTH = 0x80, 0xA0, 0xE0, 0xF0
_ANSWERS: Final = frozenset((PUBACK, PUBREC, PUBCOMP))
_QOS_2: Final = 0x04


class Split:
    """The wire between a client's broker session and several brokers."""

    def __init__(self, relay: Relay, session: BrokerSession) -> None:
        assert relay.exchange.brokers is not None
        assert relay.exchange.kept_sessions is not None
        self.relay = relay
        self.host = relay.host
        self.brokers = relay.exchange.brokers
        self.sessions = relay.exchange.kept_sessions
        self._session = session
        self.level = 4
        self.greeting: Greeting | None = None
        """From the CONNECT on."""
        self.delivering = Delivering(self)
        self.subscribing = Subscribing(self)
        self._kept = KeptSession()
        self._parts: dict[str, Part] = {}
        self._held: deque[tuple[bytes, bytes]] = deque()
        """By topic, what waits because that moves to another broker."""
        self._held_bytes = 0
        self._is_held = False
        """The client is not read on its account."""
        self._aliases = TopicAliases()
        self._aliases.maximum = IDENTIFIERS
        self._over = False
        self.lingers = True
        """What waits for a broker's greeting is still said when the client has gone."""
        self._writing = self._ends = False
        self._out: list[bytes] = []
        self._out_packets = 0
        self._flushing = False
        self._reading_held = False
        self._client_holds = 0
        self._beat_s = IDLE_BEAT_S
        self._beating: Cancellable | None = None
        self._keeps_alive = False
        self._silent_beats = 0

    @property
    def client_id(self) -> str:
        return self.greeting.client_id if self.greeting is not None else ""

    @property
    def is_open(self) -> bool:
        """The client has its CONNACK."""
        return self.greeting is not None and self.greeting.over and not self._over

    @property
    def kept(self) -> KeptSession:
        """What outlives its connection, if its session does."""
        return self._kept

    @property
    def standing(self) -> list[str]:
        """At which brokers the client has a session that stands."""
        return [name for name, part in self._parts.items() if part.state is PartState.OPEN]

    def open(self) -> None:
        self.host.call_soon(self._opened)

    def _opened(self) -> None:
        self.brokers.splits[self] = None
        self._session.connection_made(self)

    # ---- a wire ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Whole packets of the client."""
        self.write_packets(data, scan(data))

    def write_packets(self, data: bytes, offsets: Sequence[int]) -> None:
        """Likewise, for who knows where they begin."""
        self._silent_beats = 0
        self._writing = True
        self._packets(data, offsets)
        self._writing = False
        for part in self._parts.values():
            part.flush()

    def close(self) -> None:
        """The client's connection ends, or the broker session does."""
        self.end()

    abort = close

    def is_closing(self) -> bool:
        return self._over

    def pause_reading(self) -> None:
        if not self._reading_held:
            self._reading_held = True
            for part in self._parts.values():
                part.hold_reading()

    def resume_reading(self) -> None:
        if self._reading_held:
            self._reading_held = False
            for part in self._parts.values():
                part.release_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The parts have theirs."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def stop_reading_client(self) -> None:
        self._client_holds += 1
        if self._client_holds == 1:
            self._session.pause_writing()

    def read_client_again(self) -> None:
        self._client_holds -= 1
        if self._client_holds == 0:
            self._session.resume_writing()

    # ---- to the client ---------------------------------------------------------------------

    def answer(self, frame: bytes) -> None:
        """Tell the client; by the end of this turn."""
        self.hand_on(frame, 1)
        self.flush_soon()

    def hand_on(self, data: bytes, packets: int) -> None:
        """So many packets for the client; whoever calls sees to it that they are flushed."""
        if not self._over:
            self._out.append(data)
            self._out_packets += packets

    def flush_soon(self) -> None:
        if self._out and not self._flushing:
            self._flushing = True
            self.host.call_soon(self.flush)

    def flush(self) -> None:
        """Hand on what there is; not from within `write`."""
        self._flushing = False
        if self._out:
            data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
            packets, self._out_packets = self._out_packets, 0
            self._out.clear()
            self._session.packets_received(data, packets)

    # ---- parts -----------------------------------------------------------------------------

    def part_at(self, name: str) -> Part | None:
        """The session at a broker, if there is one."""
        return self._parts.get(name)

    def has_part(self, name: str) -> bool:
        return name in self._parts

    def part(self, name: str, *, try_anyway: bool = False) -> Part:
        """The session at a broker, opened if there is none."""
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = Part(self, name)
            if self._reading_held:
                part.hold_reading()
            earlier = self.sessions.leaving.get((self.client_id, name))
            if earlier is None:
                part.connect(try_anyway=try_anyway)
            else:  # which would take this one over, if its CONNECT came later
                earlier.followers.append(part)
        return part

    def drop(self, part: Part) -> None:
        """It is not wanted after all."""
        del self._parts[part.name]
        part.over()

    def pass_on(self, name: str, frame: bytes) -> None:
        """An answer to what a broker sent."""
        if (part := self._parts.get(name)) is not None:
            part.pass_on(frame)

    def connect_for(self, part: Part) -> bytes:
        assert self.greeting is not None
        return self.greeting.connect_for(part, self._kept)

    def part_accepted(self, part: Part, connack: ConnAck, frame: bytes) -> None:
        assert self.greeting is not None
        if self._over:
            return
        if self.is_open:
            self._kept.brokers[part.name] = None
            self._restore(part)
        else:
            self.greeting.accepted(part, connack, frame)

    def part_refused(self, part: Part, frame: bytes) -> None:
        if self.greeting is not None and not self._over:
            self.greeting.refused(part, frame)

    def part_away(self, part: Part) -> None:
        if self.greeting is not None and not self._over:
            self.greeting.away(part)

    def part_lost(self, part: Part) -> None:
        self.delivering.lost(part)

    def part_auth(self, part: Part, frame: bytes) -> None:
        if self.greeting is not None and self.greeting.first in (None, part):
            self.answer(frame)
            self.flush()  # before a CONNACK, which begins what is handed on with it

    # ---- the client comes in ---------------------------------------------------------------

    def nobody_there(self, cause: str) -> None:
        """No broker can be reached."""
        self._session.failed(cause or "no broker can be reached")
        self.end()

    def any_present(self) -> bool:
        return any(part.present and part.is_accepted for part in self._parts.values())

    def let_in(self, connack: ConnAck, frame: bytes, kept: KeptSession) -> None:
        greeting = self.greeting
        assert greeting is not None
        self._kept = self.subscribing.kept = kept
        self._kept.remember(greeting.connect)
        if kept.copies:
            known = [each for theirs in kept.copies.values() for each in theirs]
            self.host.call_later(COPIES_S, partial(kept.forget_copies, known))
        self.brokers.moved_wills.pop(greeting.client_id, None)
        self.sessions.accepted(greeting.client_id, self, kept, greeting.expiry_s > 0)
        accepted = [part for part in self._parts.values() if part.is_accepted]
        for part in accepted:
            kept.brokers[part.name] = None
        self._set_beat(connack)
        self.hand_on(frame, 1)
        self.delivering.begin(kept.identifiers, greeting.connect.properties.receive_maximum)
        self.flush()
        for part in accepted:
            if self.is_open:  # an orphan may have said all it had to say
                self._restore(part)
                part.client_let_in()
        self.flush()

    def _restore(self, part: Part) -> None:
        """Give a broker what it does not know; and forget what it has forgotten."""
        if not part.present:
            self.delivering.forget(part)
        part.restore(self._kept)

    def part_restored(self, part: Part, told: Iterable[str], untold: Iterable[str]) -> None:
        """It has answered all that it was told of."""
        changed = False
        self._kept.quiet.pop(part.name, None)
        self._kept.asked.get(part.name, set()).difference_update(told)
        for of_brokers, filters in ((self._kept.untold, told), (self._kept.unwanted, untold)):
            theirs = of_brokers.get(part.name, {})
            for each in filters:
                changed = theirs.pop(each, 0) is None or changed
            if not theirs:
                of_brokers.pop(part.name, None)
        if changed:
            self.kept_changed()

    def restored(self, part: Part, refused: int) -> None:
        if refused and self.greeting is not None:
            self.brokers.counters["subscriptions_not_restored"] += refused
            self.host.log(
                "warning",
                "broker refuses subscriptions that it had granted",
                broker=part.name,
                client_id=self.greeting.client_id,
                filters=refused,
            )

    def kept_changed(self) -> None:
        if self.greeting is not None and self.greeting.expiry_s:
            self.sessions.changed(self.greeting.client_id)

    # ---- packets of the client -------------------------------------------------------------

    def _packets(self, data: bytes, offsets: Sequence[int]) -> None:
        """Most go on unchanged, those in a row in one piece; the others one by one."""
        at, end = 0, len(offsets) - 1
        while at < end and not (self._ends or self._over):
            head = data[offsets[at]]
            if head & 0xF0 == PUBLISH:
                after = self._messages(data, offsets, at)
            elif head == PUBACK:
                after = self._pubacks(data, offsets, at)
            else:
                after = at
            if after == at:
                after += 1
                self._packet(head, data[offsets[at] : offsets[after]])
            at = after

    def _messages(self, data: bytes, offsets: Sequence[int], at: int) -> int:
        """Where the row ends that begins with this PUBLISH and has gone to its broker."""
        move = self.brokers.move
        if move is not None and move.is_under_way:
            return at
        start, stop = offsets[at], offsets[at + 1]
        qos = data[start] & QOS
        begin = start + 1
        while data[begin] >= 0x80:
            begin += 1
        begin += 3
        if qos == _QOS_2 or begin > stop:
            return at
        end = begin + (data[begin - 2] << 8 | data[begin - 1])
        after_id = end + qos  # at QoS 1 that is 2
        if after_id > stop:
            return at
        if self.level == 5 and (begin == end or after_id == stop or data[after_id]):
            return at  # with an alias, maybe
        part = self._parts.get(self.brokers.of(data[begin:end]))
        return at if part is None else part.take(data, offsets, at, end)

    def _pubacks(self, data: bytes, offsets: Sequence[int], at: int) -> int:
        """Where the row ends that begins with this PUBACK and has gone to a broker."""
        part = self._parts.get(self.delivering.sender(data, offsets, at))
        if part is None or part.state is not PartState.OPEN:
            return at
        after = self.delivering.take_back(data, offsets, at)
        part.put(data[offsets[at] : offsets[after]])
        return after

    def _packet(self, head: int, frame: bytes) -> None:
        kind = head & 0xF0
        if kind == PUBLISH:
            self._publish(head, frame)
        elif head in _ANSWERS:
            self.delivering.answered(head, frame)
        elif head == PUBREL:
            self._release(frame)
        elif head == _PINGREQ:
            self.answer(_PINGRESP)
        elif kind == _SUBSCRIBE:
            self.subscribing.subscribe(frame)
        elif kind == _UNSUBSCRIBE:
            self.subscribing.unsubscribe(frame)
        elif kind == _DISCONNECT:
            self._disconnect(frame)
        elif kind == _AUTH:
            self._auth(frame)
        elif self.greeting is None:
            connect = decode_connect(frame)
            self.level = connect.protocol_level
            self.greeting = Greeting(self, connect)
            self.greeting.begin()

    def _publish(self, head: int, frame: bytes) -> None:
        begin, end = topic_bounds(frame)
        topic = frame[begin:end]
        if self.level == 5:
            start, stop = property_bounds(frame, end + 2 if head & QOS else end)
            if start < stop and (alias := check_publish_properties(frame, start, stop)):
                topic = self._aliases.topic(alias, topic)
                frame = _without_alias(frame, topic)
        name = self.brokers.of(topic)
        if not name:
            self.refuse_publish(frame, ReasonCode.TOPIC_NAME_INVALID, "")
            return
        move = self.brokers.move
        if move is not None and move.holds(topic):
            self._hold(topic, frame)
        else:
            self._send(name, frame)

    def _send(self, name: str, frame: bytes) -> None:
        if frame[0] & QOS == _QOS_2:
            self._kept.releases[publish_id(frame)] = name
        self.part(name).send(frame)

    def _hold(self, topic: bytes, frame: bytes) -> None:
        """Until it is clear at which broker the topic lives."""
        self._held.append((topic, frame))
        self._held_bytes += len(frame)
        if self._held_bytes > self.relay.limits.buffer_bytes and not self._is_held:
            self._is_held = True
            self.stop_reading_client()

    def release_held(self) -> None:
        """It is clear now."""
        held, self._held = self._held, deque()
        self._held_bytes = 0
        for topic, frame in held:
            if self._over:
                break
            name = self.brokers.of(topic)
            if name:
                self._send(name, frame)
            else:
                self.refuse_publish(frame, ReasonCode.TOPIC_NAME_INVALID, "")
        for part in self._parts.values():
            part.flush()
        if self._is_held:
            self._is_held = False
            self.read_client_again()

    def note_will(self, broker_of: Callable[[str], str]) -> None:
        """If its topic has left the broker that has the will, the node sees to it."""
        will = self.greeting.connect.will if self.greeting is not None else None
        if will is not None and broker_of(will.topic) != self.brokers.place_of(will.topic):
            self.brokers.note_will(self.client_id)

    def refuse_publish(self, frame: bytes, code: ReasonCode, broker: str) -> None:
        """A PUBLISH that no broker gets: MQTT 5 says so, MQTT 3.1.1 has to close."""
        head = frame[0]
        if not head & QOS:
            self.brokers.counters["broker_away_dropped"] += 1
        elif self.level == 5:
            self.brokers.counters["broker_away_refused"] += 1
            packet_id = publish_id(frame)
            self._kept.releases.pop(packet_id, None)
            self.answer(acknowledgment(publish_answer(head), packet_id, bytes((code,))))
        else:
            self.refuse_by_closing(broker)

    def refuse_by_closing(self, broker: str) -> None:
        if self._over or self._ends:
            return
        self.brokers.counters["broker_away_refused"] += 1
        self.relay.counters.refusals["publish-not-taken"] += 1
        self.host.log(
            "warning",
            "client closed: its message has no broker, and MQTT 3.1.1 no other answer",
            client_id=self.greeting.client_id if self.greeting is not None else "",
            broker=broker,
        )
        self.end()

    def _release(self, frame: bytes) -> None:
        packet_id = packet_id_at(frame, body_offset(frame, 0))
        name = self._kept.releases.get(packet_id)
        if name is not None:
            self.part(name).send(frame)
            return
        # Of an earlier life of the node: whoever had a session of the client may have it.
        had = [part for part in self._parts.values() if part.present]
        if len(had) == 1:
            had[0].send(frame)
            return
        for part in had:
            part.pass_on(frame)
        self.answer(acknowledgment(PUBCOMP, packet_id, b"\x92" if self.level == 5 else b""))

    def refused_under_way(self, broker: str, packet_id: int) -> None:
        """A QoS 2 message that the broker may have got."""
        self._kept.refused.setdefault(broker, {})[packet_id] = None

    def released(self, packet_id: int) -> None:
        self._kept.releases.pop(packet_id, None)

    def _disconnect(self, frame: bytes) -> None:
        packet = decode(frame, self.level)
        assert isinstance(packet, Disconnect)
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None and self.greeting is not None and self.greeting.expiry_s:
            self.greeting.expiry_s = expiry_s
        for part in self._parts.values():
            part.send(frame)

    def _auth(self, frame: bytes) -> None:
        first = self.greeting.first if self.greeting is not None else None
        part = first or next(iter(self._parts.values()), None)
        if part is not None:
            part.pass_on(frame)

    # ---- time ------------------------------------------------------------------------------

    def _set_beat(self, connack: ConnAck) -> None:
        assert self.greeting is not None
        keep_alive = self.greeting.connect.keep_alive
        if connack.properties.server_keep_alive is not None:
            keep_alive = connack.properties.server_keep_alive
        self._beat_s = keep_alive / 2 if keep_alive else IDLE_BEAT_S
        self._keeps_alive = bool(keep_alive)
        self._beating = self.host.call_later(self._beat_s, self._beat)

    def _beat(self) -> None:
        if self._keeps_alive and not self._client_holds:
            self._silent_beats += 1
        if self._silent_beats > 3:
            if self.level == 5:
                self.answer(encode(Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT), 5))
            self.end()
            return
        self._beating = self.host.call_later(self._beat_s, self._beat)
        for part in list(self._parts.values()):
            part.beat(self._beat_s)

    # ---- ends ------------------------------------------------------------------------------

    def misbehaved(self, part: Part, error: Exception) -> None:
        """A broker sent what is not MQTT."""
        self.relay.counters.refusals["broker-protocol-error"] += 1
        self.host.log("warning", "broker sent bad bytes", broker=part.name, detail=str(error))
        self.end()

    def taken_over(self) -> None:
        """Another connection has this client id now, also where this one is not greeted yet."""
        self.lingers = False
        if self.level == 5:
            self.answer(encode(Disconnect(ReasonCode.SESSION_TAKEN_OVER), 5))
        self.end()

    def end(self) -> None:
        """Every part is over, and the broker session hears so."""
        if self._over:
            return
        if self._writing:
            if not self._ends:
                self._ends = True
                self.host.call_soon(self.end)
            return
        self.flush()
        self._end()

    def _end(self) -> None:
        if self._over:
            return  # what was handed on was the end already
        was_open = self.is_open
        self._over = True
        self.brokers.splits.pop(self, None)
        self.brokers.counters["publishes_held_and_left"] += len(self._held)
        if self._beating is not None:
            self._beating.cancel()
        for part in self._parts.values():
            part.over()
        self.subscribing.over()
        if was_open and self.greeting is not None:
            keeps = self.greeting.expiry_s > 0
            self.sessions.ended(self.greeting.client_id, self, keeps)
        self.host.call_soon(self._ended)

    def _ended(self) -> None:
        self._session.connection_lost(None)


def _without_alias(frame: bytes, topic: bytes) -> bytes:
    """A PUBLISH with its topic in place of the alias: no broker knows the client's aliases."""
    packet = decode(frame, 5)
    assert isinstance(packet, Publish)
    properties = replace(packet.properties, topic_alias=None)
    return encode(replace(packet, topic=topic.decode(), properties=properties), 5)
