"""A client's session with several brokers, which looks like one to everything before it.

To the pair of sessions that a client has (`isthmus.exchange.client`) it is the wire to its broker:
bytes go in by `write` and come out by the broker session's `data_received`.  Behind it stands a
`Part` for each broker that the client needs, opened when something is to be sent there.

    client ═ ClientSession ═ BrokerSession ─ Split ┬─ Part ─ broker
                                                   └─ Part ─ broker

Who decides what:

* The first broker that can be reached, the default one before the others, lets the client in or
  refuses it; its CONNACK is the client's.  Then come, before the client has that: the broker in
  charge of the will, with the will; and where the client has, or may have, a session that it wants
  to go on with or to end.  All others are greeted when something is to be published or subscribed
  there: with the same id, login and properties, a share of the Receive Maximum, no Topic Alias
  Maximum.
* A PUBLISH goes to the broker in charge of its topic, which acknowledges it.  SUBSCRIBE and
  UNSUBSCRIBE go in parts (`subscribing`).  AUTH is between the client and the first.
* Session present is what any of them says; who has lost its part is given it back.
* A broker that stands and ends a part ends the client's connection, as with one broker.  One that
  is away takes nothing but its topics along (`part`), and gets subscriptions back when it returns.

The client's Receive Maximum holds over all brokers together: each gets its share, and if there are
more brokers than it allows messages, what is too much waits here, one message of each.

Invariants: packets of the client reach each broker in their order, and the other way; nothing is
written from within a call of `write`; each packet identifier of the client's is answered once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.checks import TopicAliases
from isthmus.exchange.host import Cancellable
from isthmus.exchange.split.kept import KeptSession, Wanted
from isthmus.exchange.split.life import PartState
from isthmus.exchange.split.part import Part
from isthmus.exchange.split.subscribing import Request
from isthmus.mqtt.decoding import decode, decode_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import body_offset, scan
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
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

IDLE_BEAT_S: Final = 30.0
"""How often brokers are asked for a sign of life if the client's keep-alive is off."""
FOR_EVER: Final = 0xFFFF_FFFF

_PINGREQ, _PINGRESP = 0xC0, b"\xd0\x00"
_SUBSCRIBE, _UNSUBSCRIBE, _DISCONNECT, _AUTH = 0x80, 0xA0, 0xE0, 0xF0
_ANSWERS: Final = frozenset((PUBACK, PUBREC, PUBCOMP))


class _Phase(Enum):
    CONNECT = "waiting for CONNECT"
    FIRST = "a broker decides"
    OTHERS = "other brokers are greeted"
    OPEN = "open"
    OVER = "over"


class Split:
    """The wire between a client's broker session and several brokers."""

    def __init__(self, relay: Relay, session: BrokerSession) -> None:
        assert relay.exchange.brokers is not None
        assert relay.exchange.kept_sessions is not None
        self.relay = relay
        self.host = relay.host
        self.brokers = relay.exchange.brokers
        self._sessions = relay.exchange.kept_sessions
        self._session = session
        self._phase = _Phase.CONNECT
        self.level = 4
        self._connect: Connect
        self._client_id = ""
        self._parts: dict[str, Part] = {}
        self._untried: Iterator[str] = iter(())
        self._first: Part | None = None
        self._connack: tuple[ConnAck, bytes] | None = None
        self._greeting: set[Part] = set()
        """Whose answer the client's CONNACK waits for."""
        self._will_broker = ""
        self._kept = KeptSession()
        self._resumes = False
        """It goes on with a session."""
        self._expiry_s = 0
        self._aliases = TopicAliases()
        self._aliases.maximum = IDENTIFIERS
        self._requests: dict[int, Request] = {}
        """By packet identifier; a client uses one for one packet at a time."""
        self._receive_maximum = IDENTIFIERS
        self._held: deque[tuple[Part, bytes]] = deque()
        """What is too much for the client's Receive Maximum."""
        self._out: list[bytes] = []
        self._flushing = False
        self._reading_held = False
        self._client_holds = 0
        self._beat_s = IDLE_BEAT_S
        self._beating: Cancellable | None = None
        self._keeps_alive = False
        self._silent_beats = 0
        self._writing = self._ends = False

    @property
    def is_open(self) -> bool:
        return self._phase is _Phase.OPEN

    def open(self) -> None:
        self.host.call_soon(self._opened)

    def _opened(self) -> None:
        self._session.connection_made(self)

    # ---- a wire ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Whole packets of the client."""
        self._silent_beats = 0
        self._writing = True
        for start, stop in pairwise(scan(data)):
            if self._ends or self._phase is _Phase.OVER:
                break
            self._packet(data[start], data[start:stop])
        self._writing = False
        for part in self._parts.values():
            part.flush()

    def close(self) -> None:
        """The client's connection ends, or the broker session does."""
        self.end()

    abort = close

    def is_closing(self) -> bool:
        return self._phase is _Phase.OVER

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
        if self._phase is _Phase.OVER:
            return
        self._out.append(frame)
        if not self._flushing:
            self._flushing = True
            self.host.call_soon(self.flush)

    def flush(self) -> None:
        """Hand on what there is; not from within `write`."""
        self._flushing = False
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._session.data_received(data)

    # ---- the CONNECT -----------------------------------------------------------------------

    def _begin(self, frame: bytes) -> None:
        self._connect = connect = decode_connect(frame)
        self.level = connect.protocol_level
        self._client_id = connect.client_id
        self._phase = _Phase.FIRST
        if connect.will is not None:
            self._will_broker = self.brokers.of(connect.will.topic.encode())
            if not self._will_broker:
                self.host.call_soon(self._will_is_nobodys)
                return
        self._receive_maximum = connect.properties.receive_maximum or IDENTIFIERS
        names = dict.fromkeys((self.brokers.home, *self.brokers.names))
        standing = [name for name in names if not self.brokers.is_away(name)]
        self._untried = iter(standing or list(names))
        self._try_next("")

    def _will_is_nobodys(self) -> None:
        if self._phase is _Phase.FIRST:
            refusal = ConnAck(False, ReasonCode.TOPIC_NAME_INVALID)
            if self.level == 5:
                self.answer(encode(refusal, 5))
                self.flush()
            self.end()

    def _try_next(self, cause: str) -> None:
        name = next(self._untried, None)
        if name is not None:
            self._open_part(name)
            return
        self._session.failed(cause or "no broker can be reached")
        self.end()

    def _open_part(self, name: str) -> Part:
        part = self._parts[name] = Part(self, name)
        if self._reading_held:
            part.hold_reading()
        part.connect()
        return part

    def connect_for(self, part: Part) -> bytes:
        """The client's CONNECT, as it goes to one of the brokers."""
        connect = self._connect
        properties = connect.properties
        is_first = part is self._first or self._first is None
        clean_start = connect.clean_start
        if self.level == 5:
            share = max(1, self._receive_maximum // len(self.brokers.names))
            properties = replace(properties, receive_maximum=share)
            clean_start = part.name not in self._kept.brokers and (clean_start or self._begins_anew)
            if not is_first:
                properties = replace(
                    properties,
                    topic_alias_maximum=None,
                    authentication_method=None,
                    authentication_data=None,
                )
        return encode(
            replace(
                connect,
                client_id=self._client_id,
                clean_start=clean_start,
                will=connect.will if part.name == self._will_broker else None,
                properties=properties,
            ),
            self.level,
        )

    @property
    def _begins_anew(self) -> bool:
        """The client was told that it has no session: nobody is to have one."""
        return self._phase is _Phase.OPEN and not self._resumes

    # ---- the brokers' answers to it --------------------------------------------------------

    def part_accepted(self, part: Part, connack: ConnAck, frame: bytes) -> None:
        if self._phase is _Phase.FIRST:
            self._first = part
            self._connack = connack, frame
            self._client_id = connack.properties.assigned_client_identifier or self._client_id
            self._take_up(connack)
            self._greet_others()
        elif self._phase is _Phase.OPEN:
            self._kept.brokers[part.name] = None
            self._restore(part)
        self._answered(part)

    def _take_up(self, connack: ConnAck) -> None:
        """Whose session it goes on with, and for how long that is kept."""
        connect = self._connect
        kept = self._sessions.of(self._client_id)
        if kept is not None and not connect.clean_start:
            self._kept = kept
        asked = connect.properties.session_expiry_interval or 0
        granted = connack.properties.session_expiry_interval
        if self.level == 5:
            self._expiry_s = asked if granted is None else granted
        else:
            self._expiry_s = 0 if connect.clean_start else FOR_EVER

    def _greet_others(self) -> None:
        self._phase = _Phase.OTHERS
        first = self._first
        assert first is not None
        known = self._sessions.of(self._client_id)
        wanted = dict.fromkeys([self._will_broker] if self._will_broker else [])
        if known is not None:
            wanted |= known.brokers
        elif not self._connect.clean_start:
            wanted |= dict.fromkeys(self.brokers.names)
        for name in wanted:
            if name not in self._parts:
                self._greeting.add(self._open_part(name))

    def part_refused(self, part: Part, frame: bytes) -> None:
        """`frame`: its CONNACK; empty if it just closes."""
        is_asked = self._first is None or part.name == self._will_broker
        if is_asked and self._phase is not _Phase.OPEN:
            if frame:
                self.answer(frame)
            self.end()
            return
        self.host.log(
            "warning", "broker refuses a client", broker=part.name, client_id=self._client_id
        )
        self._answered(part)

    def part_away(self, part: Part) -> None:
        if self._phase is _Phase.FIRST:
            del self._parts[part.name]
            part.over()
            self._try_next(f"broker {part.name}: {self.brokers.problems()[part.name]}")
        else:
            self._answered(part)

    def part_lost(self, part: Part) -> None:
        """Its connection is over; what becomes of it is seen in a moment."""
        self._held = deque(each for each in self._held if each[0] is not part)

    def _answered(self, part: Part) -> None:
        self._greeting.discard(part)
        if self._phase is _Phase.OTHERS and not self._greeting and self._first is not None:
            self._let_in()

    def _let_in(self) -> None:
        assert self._connack is not None
        connack, frame = self._connack
        there = [part for part in self._parts.values() if part.state is PartState.RESTORING]
        self._resumes = any(part.present for part in there)
        if not self._resumes:
            self._kept = KeptSession()
        if self._resumes != connack.session_present:
            frame = encode(replace(connack, session_present=self._resumes), self.level)
        self._sessions.accepted(self._client_id, self, self._kept, self._expiry_s > 0)
        self._phase = _Phase.OPEN
        for part in there:
            self._kept.brokers[part.name] = None
        self._set_beat(connack)
        self._out.append(frame)
        self.flush()
        for part in there:
            if self.is_open:  # the client may have been an orphan, and said all it had to say
                self._restore(part)
                part.client_let_in()
        self.flush()

    def _restore(self, part: Part) -> None:
        """Give a broker what it does not know; and forget what it has forgotten."""
        lost = not part.present
        if lost:
            for packet_id in self._kept.identifiers.forget(part.name):
                self.answer(acknowledgment(PUBREL, packet_id))
        part.restore(self._kept.wanted.get(part.name, {}), lost=lost)

    def restored(self, part: Part, refused: int) -> None:
        if refused:
            self.brokers.counters["subscriptions_not_restored"] += refused
            self.host.log(
                "warning",
                "broker refuses subscriptions that it had granted",
                broker=part.name,
                client_id=self._client_id,
                filters=refused,
            )

    def part_auth(self, part: Part, frame: bytes) -> None:
        if part is self._first or self._first is None:
            self.answer(frame)
            self.flush()

    # ---- packets of the client -------------------------------------------------------------

    def _packet(self, head: int, frame: bytes) -> None:
        kind = head & 0xF0
        if kind == PUBLISH:
            self._publish(head, frame)
        elif head in _ANSWERS:
            self._delivered(head, frame)
        elif head == PUBREL:
            self._release(frame)
        elif head == _PINGREQ:
            self.answer(_PINGRESP)
        elif kind == _SUBSCRIBE:
            self._subscribe(frame)
        elif kind == _UNSUBSCRIBE:
            self._unsubscribe(frame)
        elif kind == _DISCONNECT:
            self._disconnect(frame)
        elif kind == _AUTH:
            if (first := self._first or next(iter(self._parts.values()), None)) is not None:
                first.pass_on(frame)
        elif self._phase is _Phase.CONNECT:
            self._begin(frame)

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
        if head & QOS == 0x04:
            self._kept.releases[publish_id(frame)] = name
        self._part(name).send(frame)

    def _part(self, name: str) -> Part:
        part = self._parts.get(name)
        return self._open_part(name) if part is None else part

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
            self.refuse_by_closing("publish-not-taken", broker)

    def refuse_by_closing(self, cause: str, broker: str) -> None:
        if self._phase is not _Phase.OVER:
            self.brokers.counters["broker_away_refused"] += 1
            self.relay.counters.refusals[cause] += 1
            self.host.log(
                "warning",
                "client closed: its message has no broker, and MQTT 3.1.1 no other answer",
                client_id=self._client_id,
                broker=broker,
            )
            self.end()

    def _release(self, frame: bytes) -> None:
        packet_id = packet_id_at(frame, body_offset(frame, 0))
        name = self._kept.releases.get(packet_id)
        if name is not None:
            self._part(name).send(frame)
            return
        # Of an earlier life of the node: whoever had a session of the client may have it.
        had = [part for part in self._parts.values() if part.present]
        if len(had) == 1:
            had[0].send(frame)
            return
        for part in had:
            part.pass_on(frame)
        self.answer(acknowledgment(PUBCOMP, packet_id, b"\x92" if self.level == 5 else b""))

    def released(self, packet_id: int) -> None:
        self._kept.releases.pop(packet_id, None)

    def _disconnect(self, frame: bytes) -> None:
        packet = decode(frame, self.level)
        assert isinstance(packet, Disconnect)
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None and self._expiry_s:
            self._expiry_s = expiry_s
        for part in self._parts.values():
            part.pass_on(frame)

    # ---- subscriptions ---------------------------------------------------------------------

    def _subscribe(self, frame: bytes) -> None:
        packet = decode(frame, self.level)
        assert isinstance(packet, Subscribe)
        places = [self.brokers.matching(each.topic_filter) for each in packet.subscriptions]
        self._ask(Request(packet, places), frame)

    def _unsubscribe(self, frame: bytes) -> None:
        packet = decode(frame, self.level)
        assert isinstance(packet, Unsubscribe)
        places = [
            [name for name in self.brokers.matching(each) if name in self._parts]
            for each in packet.topic_filters
        ]
        self._ask(Request(packet, places), frame)

    def _ask(self, request: Request, frame: bytes) -> None:
        packet = request.packet
        self._requests[packet.packet_id] = request
        for name in request.brokers:
            part = frame if request.is_whole else encode(request.part(name), self.level)
            self._part(name).send(part)
        self._answer_if_all(request)

    def part_answered(self, part: Part, packet_id: int, frame: bytes) -> None:
        """A SUBACK or UNSUBACK of a broker."""
        request = self._requests.get(packet_id)
        if request is None:
            return
        packet = decode(frame, self.level)
        assert isinstance(packet, SubAck | UnsubAck)
        if request.undoing.pop(part.name, None) is None:
            request.answered(part.name, packet.reason_codes)
        self._answer_if_all(request, frame if request.is_whole else b"")

    def part_cannot(self, part: Part, packet_id: int) -> None:
        """A broker is away, or does not want this client."""
        request = self._requests.get(packet_id)
        if request is None:
            return
        if (undone := request.undoing.pop(part.name, None)) is not None:
            part.unwanted |= dict.fromkeys(undone.topic_filters)
        elif part.state is PartState.REFUSED:
            code = ReasonCode.NOT_AUTHORIZED if self.level == 5 else ReasonCode.UNSPECIFIED_ERROR
            request.refused(part.name, code)
        else:
            request.is_away(part.name)
        self._answer_if_all(request)

    def _answer_if_all(self, request: Request, whole: bytes = b"") -> None:
        packet_id = request.packet.packet_id
        if request.waits or request.undoing or self._requests.get(packet_id) is not request:
            return
        if not request.settled:
            request.settled = True
            request.undoing = request.undo()
            for name, packet in list(request.undoing.items()):
                self._part(name).send(encode(packet, self.level))
            if request.undoing:
                return
        del self._requests[packet_id]
        self._remember(request)
        self.answer(whole or request.answer(self.level))

    def _remember(self, request: Request) -> None:
        """What the client has subscribed to, now that it is told."""
        packet = request.packet
        for name in request.brokers:
            part = self._parts[name]
            wanted = self._kept.wanted.setdefault(name, {})
            if isinstance(packet, Subscribe):
                identifiers = packet.properties.subscription_identifiers
                for each, untold in request.granted(name):
                    wanted[each.topic_filter] = Wanted(each, identifiers[0] if identifiers else 0)
                    part.unwanted.pop(each.topic_filter, None)
                    if untold:
                        part.untold[each.topic_filter] = None
            else:
                for each_filter in packet.topic_filters:
                    if wanted.pop(each_filter, None) is not None and request.was_away(name):
                        part.unwanted[each_filter] = None
                    part.untold.pop(each_filter, None)
        if self._expiry_s:
            self._sessions.changed()

    # ---- messages to the client ------------------------------------------------------------

    def deliver(self, part: Part, frame: bytes) -> None:
        """A PUBLISH of a broker."""
        if not frame[0] & QOS:
            self._out.append(frame)
        elif len(self._kept.identifiers.open) >= self._receive_maximum or self._held:
            self._held.append((part, frame))
            if len(self._held) > len(self.brokers.names):
                raise RemoteProtocolError(
                    "more messages than the Receive Maximum allows", section="MQTT-3.3.4-9"
                )
        else:
            self._deliver(part, frame)

    def _deliver(self, part: Part, frame: bytes) -> None:
        _, at = topic_bounds(frame)
        theirs = packet_id_at(frame, at)
        packet_id = self._kept.identifiers.give(part.name, theirs, frame[0] >> 1 & 3)
        if not packet_id:
            raise RemoteProtocolError("no packet identifier is free for a broker's message")
        if packet_id != theirs:
            frame = b"%b%b%b" % (frame[:at], packet_id.to_bytes(2), frame[at + 2 :])
        self._out.append(frame)

    def release(self, part: Part, frame: bytes) -> None:
        """A PUBREL of a broker; of an earlier life of the node, if its PUBLISH is not known."""
        theirs = packet_id_at(frame, body_offset(frame, 0))
        packet_id = self._kept.identifiers.give(part.name, theirs, 2)
        if packet_id:
            self._out.append(_with_id(frame, packet_id))

    def _delivered(self, head: int, frame: bytes) -> None:
        """The client answers a broker's message."""
        at = body_offset(frame, 0)
        packet_id = packet_id_at(frame, at)
        identifiers = self._kept.identifiers
        delivery = identifiers.deliveries.get(packet_id)
        if delivery is None:
            return
        refused = len(frame) > at + 2 and frame[at + 2] >= 0x80
        if head != PUBREC or refused:
            identifiers.done(packet_id)
        if delivery.broker:
            part = self._parts.get(delivery.broker)
            if part is not None:
                part.pass_on(_with_id(frame, delivery.theirs))
        elif head == PUBREC and not refused:
            self.answer(acknowledgment(PUBREL, packet_id))
        while self._held and len(identifiers.open) < self._receive_maximum:
            part, held = self._held.popleft()
            if part.state is PartState.OPEN:
                self._deliver(part, held)
                self.answer(b"")  # so that it is handed on

    # ---- time ------------------------------------------------------------------------------

    def _set_beat(self, connack: ConnAck) -> None:
        keep_alive = self._connect.keep_alive
        if connack.properties.server_keep_alive is not None:
            keep_alive = connack.properties.server_keep_alive
        self._beat_s = keep_alive / 2 if keep_alive else IDLE_BEAT_S
        self._keeps_alive = bool(keep_alive)
        self._beating = self.host.call_later(self._beat_s, self._beat)

    def _beat(self) -> None:
        """Brokers hear of the client while it is heard of; after 1.5 intervals it is not."""
        if self._keeps_alive and not self._client_holds:
            self._silent_beats += 1
        if self._silent_beats > 3:
            if self.level == 5:
                self.answer(encode(Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT), 5))
                self.flush()
            self.end()
            return
        self._beating = self.host.call_later(self._beat_s, self._beat)
        for part in list(self._parts.values()):
            part.beat(self._beat_s)

    # ---- ends ------------------------------------------------------------------------------

    def misbehaved(self, part: Part, error: Exception) -> None:
        """A broker sent what is not MQTT."""
        self.host.log(
            "warning",
            "broker sent bad bytes",
            broker=part.name,
            client_id=self._client_id,
            detail=str(error),
        )
        self.relay.counters.refusals["broker-protocol-error"] += 1
        self.end()

    def taken_over(self) -> None:
        """Another connection has this client id now."""
        if self.level == 5:
            self.answer(encode(Disconnect(ReasonCode.SESSION_TAKEN_OVER), 5))
            self.flush()
        self._client_id = ""
        self.end()

    def end(self) -> None:
        """Every part is over, and the broker session hears so."""
        if self._phase is _Phase.OVER:
            return
        if self._writing:
            if not self._ends:
                self._ends = True
                self.host.call_soon(self.end)
            return
        was_open = self._phase is _Phase.OPEN
        if self._out:
            self.flush()
            if self._phase is _Phase.OVER:
                return
        self._phase = _Phase.OVER
        if self._beating is not None:
            self._beating.cancel()
        for part in self._parts.values():
            part.over()
        self._held.clear()
        self._requests.clear()
        if was_open and self._client_id:
            self._sessions.ended(self._client_id, self, self._expiry_s > 0)
        self.host.call_soon(self._ended)

    def _ended(self) -> None:
        self._session.connection_lost(None)


def _without_alias(frame: bytes, topic: bytes) -> bytes:
    """A PUBLISH with its topic in place of the alias, which is the client's and its own node's."""
    packet = decode(frame, 5)
    assert isinstance(packet, Publish)
    properties = replace(packet.properties, topic_alias=None)
    return encode(replace(packet, topic=topic.decode(), properties=properties), 5)


def _with_id(frame: bytes, packet_id: int) -> bytes:
    at = body_offset(frame, 0)
    return b"%b%b%b" % (frame[:at], packet_id.to_bytes(2), frame[at + 2 :])
