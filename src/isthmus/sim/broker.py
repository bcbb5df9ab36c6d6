"""A virtual broker: what of MQTT's server matters to a fabric.

It speaks MQTT with whoever connects: the node for its clients, and the node's own sessions.
Subscriptions, retained messages, wills with their delay, sessions that outlive their connection,
takeover by client id, QoS 1 and 2 in both directions.  A message is delivered once to a client,
however many of its filters match; or, if it `doubles`, for each of them.  MQTT 5's No Local, Retain
As Published and Retain Handling are kept, No Local unless it `echoes` all the same.  What
exceeds its Receive Maximum is counted, at QoS 2 (at QoS 1 it answers at once).  Not modeled: its
own keeping to the Receive Maximum of clients, shared subscriptions, limits.

A broker may be slow (`delay_s`, to be changed at any time: nothing overtakes), may refuse clients
(`refuses`), may speak nothing newer than 3.1.1 with the node's own sessions (`level`), and may
close a session on certain topics (`poison`).

A broker that **crashes** loses every connection.  If it is `persistent`, sessions and retained
messages come back with it, as with a broker that writes to disk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import pairwise

from isthmus.exchange.session import Wire
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.filters.topics import matches
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packet_ids import IDENTIFIERS, free_packet_id
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from isthmus.sim.engine import Engine, Timer
from isthmus.sim.stream import StreamEnd
from isthmus.sim.trace import Trace

__all__ = ["BrokerConnection", "KeptSession", "SimBroker"]

FOR_EVER = 0xFFFF_FFFF
OWN_CLIENT_IDS = "isthmus-"
_UNACCEPTABLE_LEVEL = b"\x20\x02\x00\x01"


@dataclass(slots=True)
class _InFlight:
    publish: Publish
    received: bool = False
    """A PUBREC came."""


@dataclass(eq=False, slots=True)
class KeptSession:
    """What is kept for a client id."""

    client_id: str
    expiry_s: int = 0
    filters: dict[str, Subscription] = field(default_factory=dict)
    connection: BrokerConnection | None = None
    will: Will | None = None
    queue: deque[Publish] = field(default_factory=deque)
    flight: dict[int, _InFlight] = field(default_factory=dict)
    """What was sent to the client at QoS 1 and 2 and is not acknowledged, in order."""
    packet_id: int = 0
    unreleased: dict[int, Publish | None] = field(default_factory=dict)
    """By packet identifier, messages at QoS 2 from the client; those that are still to go out."""
    expiry: Timer | None = None
    will_timer: Timer | None = None


class BrokerConnection:
    """The broker's end of a connection."""

    def __init__(self, broker: SimBroker, end: StreamEnd) -> None:
        self._broker = broker
        self._end = end
        self._buffer = FrameBuffer()
        self._level = 0
        self.session: KeptSession | None = None
        self._greeting: list[bytes] | None = None
        """What goes in one piece with the CONNACK."""

    @property
    def own(self) -> bool:
        """Whether it is the node's own."""
        return self.session is not None and self.session.client_id.startswith(OWN_CLIENT_IDS)

    def connection_made(self, wire: Wire) -> None:
        self._broker.connections[self] = None

    def data_received(self, data: bytes) -> None:
        data = self._buffer.push(data)
        offsets = scan(data)
        for start, stop in pairwise(offsets):
            packet = decode(data[start:stop], self._level or 5)
            if isinstance(packet, Connect):
                self._connect(packet)
            elif self.session is not None:
                self._packet(self.session, packet)
            if self._end.closing:
                return
        self._buffer.keep(data[offsets[-1] :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.connections.pop(self, None)
        if self.session is not None:
            self._broker.ended(self.session, clean=False)
            self.session = None

    def send(self, packet: Packet) -> None:
        frame = encode(packet, self._level)
        if self._greeting is None:
            self._end.write(frame)
        else:
            self._greeting.append(frame)

    def close(self) -> None:
        """Its session has been told already."""
        self.session = None
        self._end.close()

    def kill(self) -> None:
        self.session = None
        self._end.kill()

    # ---- packets -------------------------------------------------------------------------

    def _connect(self, packet: Connect) -> None:
        self._level = packet.protocol_level
        broker = self._broker
        if packet.client_id in broker.refuses:
            code = ReasonCode.NOT_AUTHORIZED, ConnectReturnCode.NOT_AUTHORIZED
            self.send(ConnAck(False, code[self._level != 5]))
            self.close()
        elif packet.client_id.startswith(OWN_CLIENT_IDS) and self._level > broker.level:
            self._end.write(_UNACCEPTABLE_LEVEL)
            self.close()
        else:
            self.session, present = broker.connect(self, packet)
            if broker.greets_at_once:
                self._greeting = []
            self.send(ConnAck(present, ReasonCode.SUCCESS, broker.terms(self._level)))
            broker.resume(self.session)
            if self._greeting is not None:
                greeting, self._greeting = self._greeting, None
                self._end.write(b"".join(greeting))

    def _packet(self, session: KeptSession, packet: Packet) -> None:
        broker = self._broker
        match packet:
            case Publish(topic=topic) if topic in broker.poison:
                self.session = None
                broker.ended(session, clean=False)
                self._end.close()
            case Publish(qos=2, packet_id=packet_id):
                if packet_id not in session.unreleased:
                    if len(session.unreleased) >= broker.receive_maximum:
                        broker.overrun += 1
                    session.unreleased[packet_id] = packet if broker.waits_for_pubrel else None
                    if not broker.waits_for_pubrel:
                        self._published(packet)
                self.send(PubRec(packet_id))
            case Publish(qos=qos, packet_id=packet_id):
                self._published(packet)
                if qos:
                    self.send(PubAck(packet_id))
            case PubRel(packet_id=packet_id):
                if (held := session.unreleased.pop(packet_id, None)) is not None:
                    self._published(held)
                self.send(PubComp(packet_id))
            case PubAck(packet_id=packet_id) | PubComp(packet_id=packet_id):
                session.flight.pop(packet_id, None)
            case PubRec(packet_id=packet_id):
                if packet_id in session.flight:
                    session.flight[packet_id].received = True
                self.send(PubRel(packet_id))
            case Subscribe(subscriptions=asked) if any(
                each.topic_filter in broker.closes_on for each in asked
            ):
                self.session = None
                broker.ended(session, clean=False)
                self._end.close()
            case Subscribe(packet_id=packet_id, subscriptions=asked):
                new = [each for each in asked if each.topic_filter not in session.filters]
                refused = {each for each in asked if each.topic_filter in broker.refuses_filters}
                granted = tuple(each for each in asked if each not in refused)
                for each in granted:
                    session.filters[each.topic_filter] = each
                no = ReasonCode.NOT_AUTHORIZED if self._level == 5 else ReasonCode.UNSPECIFIED_ERROR
                codes = tuple(no if each in refused else ReasonCode(each.qos) for each in asked)
                self.send(SubAck(packet_id, codes))
                sent = (0, 1) if new else (0,)
                broker.send_retained(
                    session, tuple(each for each in granted if each.retain_handling in sent)
                )
            case Unsubscribe(packet_id=packet_id, topic_filters=filters):
                codes = tuple(
                    ReasonCode.NO_SUBSCRIPTION_EXISTED
                    if session.filters.pop(each, None) is None
                    else ReasonCode.SUCCESS
                    for each in filters
                )
                self.send(UnsubAck(packet_id, codes if self._level == 5 else ()))
            case PingReq():
                self.send(PingResp())
            case Disconnect():
                self.session = None
                broker.ended(session, clean=True)
                self._end.close()

    def _published(self, publish: Publish) -> None:
        if self.own and self._broker.remembers:
            self._broker.injected[publish.payload] += 1
        self._broker.publish(publish, by=self.session)


@dataclass(eq=False, repr=False)
class SimBroker:
    """One broker, beside one node."""

    name: str
    _engine: Engine
    _trace: Trace
    _: KW_ONLY
    level: int
    delay_s: float
    persistent: bool
    remembers: bool = True
    """Whether it counts every payload."""

    def __post_init__(self) -> None:
        self.up = True
        self.ended_s: list[float] = []
        """When it crashed."""
        self.sessions: dict[str, KeptSession] = {}
        self.connections: dict[BrokerConnection, None] = {}
        self.retained: dict[str, Publish] = {}
        self.injected: Counter[bytes] = Counter()
        """How often each payload came from the fabric."""
        self.published: Counter[bytes] = Counter()
        """How often each payload was published here, by whomever."""
        self.refuses: set[str] = set()
        """Clients that may not connect."""
        self.poison: set[str] = set()
        """Topics on which it closes the session."""
        self.closes_on: set[str] = set()
        """Filters on which it closes the session."""
        self.refuses_filters: set[str] = set()
        """What nobody may subscribe to."""
        self.doubles = False
        """A message comes once for each subscription of a session."""
        self.waits_for_pubrel = False
        """A message at QoS 2 goes to subscribers when it is released, as with Mosquitto."""
        self.receive_maximum = IDENTIFIERS
        self.overrun = 0
        """How often a session had more than that unreleased."""
        self.greets_at_once = False
        """What a resumed session is owed comes in one piece with its CONNACK."""
        self.echoes = False
        """No Local is not kept to."""
        self._to_s = self._from_s = 0.0

    # ---- time ----------------------------------------------------------------------------

    def arrival_s(self) -> float:
        """When what is sent to the broker now is there: after what was sent before."""
        self._to_s = max(self._to_s, self._engine.now_s + self.delay_s)
        return self._to_s

    def answer_s(self) -> float:
        """The same for what the broker sends."""
        self._from_s = max(self._from_s, self._engine.now_s + self.delay_s)
        return self._from_s

    def hang(self, seconds: float) -> None:
        """It reads and says nothing for so long; its machine lives on."""
        self._to_s = self._from_s = max(self.busy_until_s, self._engine.now_s + seconds)

    @property
    def busy_until_s(self) -> float:
        """When everything under way to it or from it is there."""
        return max(self._to_s, self._from_s)

    # ---- publishing ----------------------------------------------------------------------

    def publish(self, publish: Publish, by: KeptSession | None = None) -> None:
        self._trace.publish(f"broker {self.name}", "publish", publish)
        if self.remembers:
            self.published[publish.payload] += 1
        if publish.retain:
            if publish.payload:
                self.retained[publish.topic] = publish
            else:
                self.retained.pop(publish.topic, None)
        for session in self.sessions.values():
            asked: Iterable[Subscription] = session.filters.values()
            if session is by and not self.echoes:
                asked = [each for each in asked if not each.no_local]
            self._give_if_asked(session, asked, publish, live=True)

    def send_retained(self, session: KeptSession, asked: tuple[Subscription, ...]) -> None:
        for publish in list(self.retained.values()):
            self._give_if_asked(session, asked, publish, live=False)

    def _give_if_asked(
        self, session: KeptSession, asked: Iterable[Subscription], publish: Publish, *, live: bool
    ) -> None:
        found = [each for each in asked if matches(each.topic_filter, publish.topic)]
        if found and not self.doubles:
            found = [max(found, key=lambda each: each.qos)]
        for each in found:
            qos = min(publish.qos, each.qos)
            retain = (publish.retain and each.retain_as_published) or not live
            self._give(session, Publish(publish.topic, publish.payload, qos=qos, retain=retain))

    @staticmethod
    def _give(session: KeptSession, publish: Publish) -> None:
        if session.connection is None:
            if publish.qos and session.expiry_s:
                session.queue.append(publish)
            return
        if publish.qos:
            session.packet_id = free_packet_id(session.packet_id, session.flight)
            publish = replace(publish, packet_id=session.packet_id)
            session.flight[session.packet_id] = _InFlight(publish)
        session.connection.send(publish)

    # ---- sessions ------------------------------------------------------------------------

    def terms(self, level: int) -> Properties:
        """What its CONNACK says."""
        if level != 5 or self.receive_maximum == IDENTIFIERS:
            return NO_PROPERTIES
        return Properties(receive_maximum=self.receive_maximum)

    def accept(self, end: StreamEnd) -> BrokerConnection | None:
        return BrokerConnection(self, end) if self.up else None

    def connect(self, connection: BrokerConnection, connect: Connect) -> tuple[KeptSession, bool]:
        """The session of a client that is accepted, and whether there was one."""
        expiry_s = connect.properties.session_expiry_interval or 0
        if connect.protocol_level != 5:
            expiry_s = 0 if connect.clean_start else FOR_EVER
        session = self.sessions.get(connect.client_id)
        present = False
        if session is not None:
            self._end_earlier(session, clean_start=connect.clean_start)
            present = not connect.clean_start and self.sessions.get(connect.client_id) is session
        if not present or session is None:
            session = self.sessions[connect.client_id] = KeptSession(connect.client_id)
        _cancel(session.expiry)
        session.expiry_s = expiry_s
        session.connection = connection
        session.will = connect.will
        return session, present

    def resume(self, session: KeptSession) -> None:
        """The CONNACK is sent: what was not acknowledged follows, then what waited."""
        assert session.connection is not None
        for packet_id, each in session.flight.items():
            again = PubRel(packet_id) if each.received else replace(each.publish, dup=True)
            session.connection.send(again)
        waiting, session.queue = session.queue, deque()
        for publish in waiting:
            self._give(session, publish)

    def _end_earlier(self, session: KeptSession, *, clean_start: bool) -> None:
        if (older := session.connection) is not None:
            self._connection_gone(session)
            older.close()
            self._will_due(session, delayed=not clean_start)
            if session.expiry_s == 0:
                self.sessions.pop(session.client_id, None)
        if session.will_timer is not None:
            session.will_timer.cancel()
            session.will_timer = None
            if clean_start and session.will is not None:
                self._publish_will(session)  # the session ends, so the delay does too
        session.will = None
        if clean_start:
            self.sessions.pop(session.client_id, None)

    def ended(self, session: KeptSession, *, clean: bool) -> None:
        """Its connection is over; `clean` if the client said DISCONNECT."""
        self._connection_gone(session)
        if clean:
            session.will = None
        else:
            self._will_due(session, delayed=True)
        if session.expiry_s == 0:
            self._expire(session)
        else:
            self._expire_later(session)

    def _expire_later(self, session: KeptSession) -> None:
        if session.expiry_s != FOR_EVER:
            expire = partial(self._expire, session)
            session.expiry = self._engine.call_later(session.expiry_s, expire)

    @staticmethod
    def _connection_gone(session: KeptSession) -> None:
        session.connection = None
        if not session.expiry_s:
            session.flight.clear()

    def _will_due(self, session: KeptSession, *, delayed: bool) -> None:
        if session.will is None:
            return
        delay_s = min(session.will.properties.will_delay_interval or 0, session.expiry_s)
        if delayed and delay_s:
            session.will_timer = self._engine.call_later(
                delay_s, partial(self._publish_will, session)
            )
        else:
            self._publish_will(session)

    def _publish_will(self, session: KeptSession) -> None:
        will, session.will, session.will_timer = session.will, None, None
        if will is not None and self.up:
            self._engine.activity()
            self.publish(
                Publish(will.topic, will.payload, qos=min(will.qos, 2), retain=will.retain)
            )

    def _expire(self, session: KeptSession) -> None:
        if self.sessions.get(session.client_id) is session and session.connection is None:
            self._engine.activity()
            if session.will_timer is not None:
                session.will_timer.cancel()
                self._publish_will(session)
            del self.sessions[session.client_id]

    # ---- life ----------------------------------------------------------------------------

    def crash(self) -> None:
        self.up = False
        self.ended_s.append(self._engine.now_s)
        for session in list(self.sessions.values()):
            self._connection_gone(session)
            session.will = None
            _cancel(session.will_timer)
            session.will_timer = None
            _cancel(session.expiry)
            if session.expiry_s == 0:
                del self.sessions[session.client_id]
        if not self.persistent:
            self.sessions.clear()
            self.retained.clear()
        connections, self.connections = list(self.connections), {}
        for connection in connections:
            connection.kill()

    def restart(self) -> None:
        self.up = True
        for session in list(self.sessions.values()):
            self._expire_later(session)


def _cancel(timer: Timer | None) -> None:
    if timer is not None:
        timer.cancel()
