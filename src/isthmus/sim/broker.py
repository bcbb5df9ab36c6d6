"""A virtual broker: what of MQTT's server matters to a fabric.

Subscriptions, retained messages, wills with their delay, sessions that outlive their connection,
takeover by client id, and QoS as far as it decides what is kept for whom.  A message is delivered
once to a client, however many of its filters match.  Not modelled: flow control, shared
subscriptions, packet identifiers, limits.

A broker that **crashes** loses every connection.  If it is `persistent`, sessions and retained
messages come back with it, as with a broker that writes to disk; the messages that a node had
published and that were not acknowledged are published again, as a client at QoS 1 does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from isthmus.exchange.message import Message, to_broker
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.packets import ConnAck, Connect, Publish, Subscription, Will
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.mqtt.topics import matches
from isthmus.sim.engine import Engine, Timer
from isthmus.sim.trace import Trace

if TYPE_CHECKING:
    from isthmus.sim.host import SimHost

__all__ = ["Attached", "BrokerSession", "SimBroker"]

FOR_EVER = 0xFFFF_FFFF


class Attached(Protocol):
    """A client's connection, as its broker sees it."""

    client_id: str

    def deliver(self, publish: Publish, session: BrokerSession) -> None: ...
    def taken_over(self) -> None: ...
    def broker_lost(self) -> None: ...


@dataclass(eq=False, slots=True)
class BrokerSession:
    """What is kept for a client id."""

    client_id: str
    expiry_s: int = 0
    filters: dict[str, Subscription] = field(default_factory=dict)
    connection: Attached | None = None
    will: Will | None = None
    queue: deque[Publish] = field(default_factory=deque)
    expiry: Timer | None = None
    will_timer: Timer | None = None


@dataclass(eq=False, slots=True)
class _Injected:
    host: SimHost
    message: Message
    done: Callable[[], None] | None


class SimBroker:
    """One broker, beside one node."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        trace: Trace,
        *,
        level: int,
        delay_s: float,
        persistent: bool,
    ) -> None:
        self.name = name
        self.level = level
        self.delay_s = delay_s
        self.persistent = persistent
        self.up = True
        self.sessions: dict[str, BrokerSession] = {}
        self.retained: dict[str, Publish] = {}
        self.injected: Counter[bytes] = Counter()
        """How often each payload came from the fabric."""
        self._engine = engine
        self._trace = trace
        self._life = 0
        self._unacknowledged: deque[_Injected] = deque()

    # ---- from the fabric -----------------------------------------------------------------

    def inject(self, host: SimHost, message: Message, done: Callable[[], None] | None) -> bool:
        if message.qos == 0:
            if not self.up:
                if done is not None:
                    done()
                return False
            life = self._life
            self._engine.call_later(
                self.delay_s, lambda: self._injected(message) if life == self._life else None
            )
            if done is not None:
                done()
            return True
        entry = _Injected(host, message, done)
        self._unacknowledged.append(entry)
        if self.up:
            self._send(entry)
        return True

    def _send(self, entry: _Injected) -> None:
        life = self._life

        def arrives() -> None:
            if life == self._life and self.up and entry.host.alive:
                self._injected(entry.message)
                self._engine.call_later(self.delay_s, acknowledged)

        def acknowledged() -> None:
            if life == self._life and self.up and entry in self._unacknowledged:
                self._unacknowledged.remove(entry)
                if entry.done is not None and entry.host.alive:
                    self._engine.activity()
                    entry.done()

        self._engine.call_later(self.delay_s, arrives)

    def _injected(self, message: Message) -> None:
        self._engine.activity()
        qos = message.qos
        frame = to_broker(message, self.level, qos, 1 if qos else 0, self._engine.now_s)
        publish = decode(frame, self.level)
        assert isinstance(publish, Publish)
        self.injected[publish.payload] += 1
        self.publish(publish)

    def node_gone(self, host: SimHost) -> None:
        """What a node that is gone had not heard of is nobody's any more."""
        self._unacknowledged = deque(e for e in self._unacknowledged if e.host is not host)

    # ---- publishing ----------------------------------------------------------------------

    def publish(self, publish: Publish) -> None:
        if self._trace.on:
            self._trace.note(
                f"broker {self.name}",
                "publish",
                topic=publish.topic,
                payload=publish.payload,
                qos=publish.qos,
                retain=publish.retain,
            )
        if publish.retain:
            if publish.payload:
                self.retained[publish.topic] = publish
            else:
                self.retained.pop(publish.topic, None)
        for session in self.sessions.values():
            granted = [
                s.qos for s in session.filters.values() if matches(s.topic_filter, publish.topic)
            ]
            if granted:
                qos = min(publish.qos, max(granted))
                self._give(session, Publish(publish.topic, publish.payload, qos=qos))

    def _give(self, session: BrokerSession, publish: Publish) -> None:
        if session.connection is not None:
            session.connection.deliver(publish, session)
        elif publish.qos and session.expiry_s:
            session.queue.append(publish)

    def undelivered(self, session: BrokerSession, publish: Publish) -> None:
        """The connection was gone before the client had it."""
        if self.sessions.get(session.client_id) is session and publish.qos and session.expiry_s:
            self._give(session, publish)

    # ---- clients -------------------------------------------------------------------------

    def connect(self, connection: Attached, connect: Connect) -> ConnAck:
        level5 = connect.protocol_level == 5
        expiry_s = connect.properties.session_expiry_interval or 0
        if not level5:
            expiry_s = 0 if connect.clean_start else FOR_EVER
        session = self.sessions.get(connect.client_id)
        present = False
        if session is not None:
            self._end_earlier(session, clean_start=connect.clean_start)
            present = not connect.clean_start and self.sessions.get(connect.client_id) is session
        if not present or session is None:
            session = self.sessions[connect.client_id] = BrokerSession(connect.client_id)
        if session.expiry is not None:
            session.expiry.cancel()
            session.expiry = None
        session.expiry_s = expiry_s
        session.connection = connection
        session.will = connect.will
        return ConnAck(session_present=present, reason_code=ReasonCode.SUCCESS)

    def connected(self, client_id: str) -> None:
        """The CONNACK is sent: what waited for the client follows."""
        session = self.sessions[client_id]
        waiting, session.queue = session.queue, deque()
        for publish in waiting:
            self._give(session, publish)

    def _end_earlier(self, session: BrokerSession, *, clean_start: bool) -> None:
        if (older := session.connection) is not None:
            session.connection = None
            older.taken_over()
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

    def ended(self, connection: Attached, *, clean: bool) -> None:
        """A connection is over; `clean` if the client said DISCONNECT."""
        session = self.sessions.get(connection.client_id)
        if session is None or session.connection is not connection:
            return
        session.connection = None
        if clean:
            session.will = None
        else:
            self._will_due(session, delayed=True)
        if session.expiry_s == 0:
            self._expire(session)
        elif session.expiry_s != FOR_EVER:
            session.expiry = self._engine.call_later(
                session.expiry_s, lambda: self._expire(session)
            )

    def _will_due(self, session: BrokerSession, *, delayed: bool) -> None:
        if session.will is None:
            return
        delay_s = min(session.will.properties.will_delay_interval or 0, session.expiry_s)
        if delayed and delay_s:
            session.will_timer = self._engine.call_later(
                delay_s, lambda: self._publish_will(session)
            )
        else:
            self._publish_will(session)

    def _publish_will(self, session: BrokerSession) -> None:
        will, session.will, session.will_timer = session.will, None, None
        if will is not None and self.up:
            self._engine.activity()
            self.publish(
                Publish(will.topic, will.payload, qos=min(will.qos, 2), retain=will.retain)
            )

    def _expire(self, session: BrokerSession) -> None:
        if self.sessions.get(session.client_id) is session and session.connection is None:
            self._engine.activity()
            if session.will_timer is not None:
                session.will_timer.cancel()
                self._publish_will(session)
            del self.sessions[session.client_id]

    def subscribe(self, client_id: str, asked: tuple[Subscription, ...]) -> tuple[ReasonCode, ...]:
        session = self.sessions[client_id]
        for subscription in asked:
            session.filters[subscription.topic_filter] = subscription
        return tuple(ReasonCode(subscription.qos) for subscription in asked)

    def send_retained(self, client_id: str, asked: tuple[Subscription, ...]) -> None:
        session = self.sessions.get(client_id)
        if session is None:
            return
        for publish in list(self.retained.values()):
            granted = [s.qos for s in asked if matches(s.topic_filter, publish.topic)]
            if granted:
                qos = min(publish.qos, max(granted))
                self._give(session, Publish(publish.topic, publish.payload, qos=qos, retain=True))

    def unsubscribe(self, client_id: str, filters: tuple[str, ...]) -> tuple[ReasonCode, ...]:
        session = self.sessions[client_id]
        return tuple(
            ReasonCode.NO_SUBSCRIPTION_EXISTED
            if session.filters.pop(each, None) is None
            else ReasonCode.SUCCESS
            for each in filters
        )

    # ---- life ----------------------------------------------------------------------------

    def crash(self) -> None:
        self.up = False
        self._life += 1
        attached = [s.connection for s in self.sessions.values() if s.connection is not None]
        for session in list(self.sessions.values()):
            session.connection = None
            session.will = None
            if session.will_timer is not None:
                session.will_timer.cancel()
                session.will_timer = None
            if session.expiry is not None:
                session.expiry.cancel()
                session.expiry = None
            if session.expiry_s == 0:
                del self.sessions[session.client_id]
        if not self.persistent:
            self.sessions.clear()
            self.retained.clear()
        for connection in attached:
            connection.broker_lost()

    def restart(self) -> None:
        self.up = True
        for session in list(self.sessions.values()):
            if session.expiry_s != FOR_EVER:
                session.expiry = self._engine.call_later(
                    session.expiry_s, partial(self._expire, session)
                )
        for entry in self._unacknowledged:
            self._send(entry)
