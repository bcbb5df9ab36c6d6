"""A virtual broker: what of MQTT's server matters to a fabric.

Subscriptions, retained messages, wills with their delay, sessions that outlive their connection,
takeover by client id, and QoS as far as it decides what is kept for whom.  A message is delivered
once to a client, however many of its filters match.  A message at QoS 2 whose packet identifier has
not been released is the one that came before ([MQTT-4.3.3-10]).  Not modeled: flow control, shared
subscriptions, limits.

A broker may be slow (`delay_s`, to be changed at any time: nothing overtakes), may refuse clients
(`refuses`), and may close a session on certain topics (`poison`).  The node's own session is opened
again, and a message that has closed it `TRIES` times is set aside.

A broker that **crashes** loses every connection.  If it is `persistent`, sessions and retained
messages come back with it, as with a broker that writes to disk; the messages that a node had
published and that were not acknowledged are published again, as a client at QoS 1 does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from isthmus.exchange.link.lane import IN_HAND_BYTES
from isthmus.exchange.traffic.message import Message, to_broker
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.filters.topics import matches
from isthmus.mqtt.packets import ConnAck, Connect, Publish, Subscription, Will
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from isthmus.sim.engine import Engine, Timer
from isthmus.sim.trace import Trace

if TYPE_CHECKING:
    from isthmus.sim.host import SimHost

__all__ = ["Attached", "BrokerSession", "Delivery", "SimBroker"]

FOR_EVER = 0xFFFF_FFFF
TRIES = 3
REOPEN_S = 0.1


class Attached(Protocol):
    """A client's connection, as its broker sees it."""

    client_id: str

    def deliver(self, delivery: Delivery) -> None: ...
    def taken_over(self) -> None: ...
    def closed_by_broker(self) -> None: ...
    def broker_lost(self) -> None: ...


@dataclass(eq=False, slots=True)
class Delivery:
    """A message on its way to a client."""

    publish: Publish
    session: BrokerSession
    void: bool = False
    """The connection ended first; it is in the session's queue again."""

    def arrived(self) -> None:
        self.session.flight.pop(self, None)


@dataclass(eq=False, slots=True)
class BrokerSession:
    """What is kept for a client id."""

    client_id: str
    expiry_s: int = 0
    filters: dict[str, Subscription] = field(default_factory=dict)
    connection: Attached | None = None
    will: Will | None = None
    queue: deque[Publish] = field(default_factory=deque)
    flight: dict[Delivery, None] = field(default_factory=dict)
    """What its connection is bringing to the client, in order."""
    unreleased: set[int] = field(default_factory=set)
    """Packet identifiers of messages at QoS 2 from the client."""
    expiry: Timer | None = None
    will_timer: Timer | None = None


@dataclass(eq=False, slots=True)
class _Injected:
    host: SimHost
    message: Message
    key: str
    done: Callable[[], None] | None
    tries: int = 0
    taken: bool = False
    """The broker has it; its acknowledgment is under way."""


@dataclass(eq=False, slots=True)
class _Question:
    host: SimHost
    topics: tuple[bytes, ...]
    answer: Callable[[Mapping[bytes, bytes | None] | None], None]


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
        self.published: Counter[bytes] = Counter()
        """How often each payload was published here, by whomever."""
        self.refuses: set[str] = set()
        """Clients that may not connect."""
        self.poison: set[str] = set()
        """Topics on which it closes the session."""
        self.set_aside: list[bytes] = []
        self._to_s = self._from_s = 0.0
        self._session = 0
        """Which session of the node's it is."""
        self._reopening = False
        self._engine = engine
        self._trace = trace
        self._life = 0
        self._unacknowledged: deque[_Injected] = deque()
        self._questions: list[_Question] = []

    # ---- time ----------------------------------------------------------------------------

    def arrives(self, callback: Callable[[], None]) -> None:
        """What is sent to the broker now is there then, after what was sent before."""
        self._to_s = max(self._to_s, self._engine.now_s + self.delay_s)
        self._engine.call_at(self._to_s, callback)

    def answers(self, callback: Callable[[], None]) -> None:
        """The same for what the broker sends."""
        self._from_s = max(self._from_s, self._engine.now_s + self.delay_s)
        self._engine.call_at(self._from_s, callback)

    @property
    def busy_until_s(self) -> float:
        """When everything under way to it or from it is there."""
        return max(self._to_s, self._from_s)

    # ---- from the fabric -----------------------------------------------------------------

    def inject(
        self, host: SimHost, message: Message, key: str, done: Callable[[], None] | None
    ) -> bool:
        if message.qos == 0:
            if not self.up:
                if done is not None:
                    done()
                return False
            life = self._life
            self.arrives(lambda: self._inject_plain(message) if life == self._life else None)
            if done is not None:
                done()
            return True
        entry = _Injected(host, message, key, done)
        self._unacknowledged.append(entry)
        if self.up and not self._reopening:
            self._send(entry)
        return True

    def give_up(self, host: SimHost, key: str, size: int) -> int:
        """See `Host.give_up_injected`; while it is up everything has been sent."""
        if self.up:
            return 0
        own = [e for e in self._unacknowledged if e.host is host and e.key == key]
        newest = {each.message.topic: each for each in own if each.message.retain}
        given_up = []
        for entry in own:
            if size > 0 and newest.get(entry.message.topic) is not entry:
                size -= entry.message.cost + IN_HAND_BYTES
                given_up.append(entry)
        gone = set(given_up)
        self._unacknowledged = deque(e for e in self._unacknowledged if e not in gone)
        for entry in given_up:
            if entry.done is not None:
                entry.done()
        return len(given_up)

    def _inject_plain(self, message: Message) -> None:
        if message.topic.decode() in self.poison:
            self._close_session()
        else:
            self._injected(message)

    def _send(self, entry: _Injected) -> None:
        life, session = self._life, self._session

        def arrives() -> None:
            if (life, session) != (self._life, self._session) or not self.up:
                return  # it will be sent again
            if not entry.host.alive:
                return
            if entry.message.topic.decode() in self.poison:
                self._close_on(entry)
                return
            entry.taken = True
            self._injected(entry.message)
            self.answers(acknowledged)

        def acknowledged() -> None:
            if life == self._life and self.up and entry in self._unacknowledged:
                self._unacknowledged.remove(entry)
                if entry.done is not None and entry.host.alive:
                    self._engine.activity()
                    entry.done()

        self.arrives(arrives)

    def _close_on(self, entry: _Injected) -> None:
        entry.tries += 1
        if entry.tries >= TRIES:
            self._unacknowledged.remove(entry)
            self.set_aside.append(entry.message.payload)
            if entry.done is not None:
                self.answers(lambda: entry.done() if entry.done and entry.host.alive else None)
        self._close_session()

    def _close_session(self) -> None:
        """The node's session is closed; it is opened again, and what was not taken sent again."""
        self._session += 1
        self._reopening = True
        session, life = self._session, self._life

        def again() -> None:
            self._engine.activity()
            if (session, life) == (self._session, self._life) and self.up:
                self._reopening = False
                for entry in self._unacknowledged:
                    if not entry.taken:
                        self._send(entry)

        self._engine.activity()
        self.answers(lambda: None)
        self._engine.call_at(self._from_s + REOPEN_S, again)

    def _injected(self, message: Message) -> None:
        self._engine.activity()
        qos = message.qos
        frame = to_broker(message, self.level, qos, 1 if qos else 0, self._engine.now_s)
        publish = decode(frame, self.level)
        assert isinstance(publish, Publish)
        self.injected[publish.payload] += 1
        self.publish(publish)

    def ask_retained(
        self,
        host: SimHost,
        topics: Sequence[bytes],
        answer: Callable[[Mapping[bytes, bytes | None] | None], None],
    ) -> None:
        """Tell a node what is retained on these topics; a broker that is down tells it later."""
        question = _Question(host, tuple(topics), answer)
        self._questions.append(question)
        if self.up:
            self._tell(question)

    def _tell(self, question: _Question) -> None:
        life = self._life

        def told() -> None:
            if life != self._life or question not in self._questions:
                return
            self._questions.remove(question)
            if question.host.alive:
                self._engine.activity()
                names = {topic: topic.decode() for topic in question.topics}
                question.answer(
                    {
                        topic: self.retained[name].payload
                        for topic, name in names.items()
                        if name in self.retained
                    }
                )

        self._engine.call_later(2 * self.delay_s, told)

    def node_gone(self, host: SimHost) -> None:
        """What a node that is gone had not heard of is nobody's any more."""
        self._unacknowledged = deque(e for e in self._unacknowledged if e.host is not host)
        self._questions = [each for each in self._questions if each.host is not host]

    # ---- publishing ----------------------------------------------------------------------

    def client_published(self, connection: Attached, publish: Publish) -> bool:
        """A client's PUBLISH came; False if that ends its connection."""
        session = self.sessions.get(connection.client_id)
        if publish.topic in self.poison:
            self.ended(connection, clean=False)
            connection.closed_by_broker()
            return False
        if publish.qos == 2 and session is not None and publish.packet_id:
            if publish.packet_id in session.unreleased:
                return True
            session.unreleased.add(publish.packet_id)
        self.publish(publish)
        return True

    def released(self, connection: Attached, packet_id: int) -> None:
        """A client's PUBREL came."""
        if (session := self.sessions.get(connection.client_id)) is not None:
            session.unreleased.discard(packet_id)

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
        self.published[publish.payload] += 1
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
            delivery = Delivery(publish, session)
            session.flight[delivery] = None
            session.connection.deliver(delivery)
        elif publish.qos and session.expiry_s:
            session.queue.append(publish)

    @staticmethod
    def _connection_gone(session: BrokerSession) -> None:
        """What the client has not got is its first when it is back, in order."""
        session.connection = None
        again = []
        for delivery in session.flight:
            delivery.void = True
            if delivery.publish.qos and session.expiry_s:
                again.append(delivery.publish)
        session.flight.clear()
        session.queue.extendleft(reversed(again))

    # ---- clients -------------------------------------------------------------------------

    def connect(self, connection: Attached, connect: Connect) -> ConnAck:
        level5 = connect.protocol_level == 5
        if connect.client_id in self.refuses:
            return ConnAck(
                False,
                ReasonCode.NOT_AUTHORIZED if level5 else ConnectReturnCode.NOT_AUTHORIZED,
            )
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
            self._connection_gone(session)
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
        self._connection_gone(session)
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
        self.up = self._reopening = False
        self._life += 1
        attached = [s.connection for s in self.sessions.values() if s.connection is not None]
        for session in list(self.sessions.values()):
            self._connection_gone(session)
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
            entry.taken = False
            self._send(entry)
        for question in self._questions:
            self._tell(question)
