"""Asking the local broker which retained messages it has.

The node subscribes to the very topics, at most `exchange.retained_broker.ASK` at a time, gets what
is retained there, and unsubscribes; the session is opened when there is something to ask and closed
when there was nothing for `IDLE_S`.

    SUBSCRIBE ──SUBACK──▶ retained messages, until each topic has one or `GRACE_S` is over
              ──▶ UNSUBSCRIBE ──UNSUBACK──▶ told

MQTT does not say when the last retained message has come.  One that comes later than that counts
as none: a message that the broker has is then published once more.

With ``source = "broker"`` it also reads all that is retained under filters (`read`): until none has
come for `GRACE_S`.  Live messages come with the flag off, and do not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from isthmus.exchange.broker.own_session import KEEP_ALIVE_S, OwnSession
from isthmus.exchange.host import Cancellable
from isthmus.exchange.session import SessionStatus, Wire
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.filters.topics import matches
from isthmus.mqtt.packet_ids import free_packet_id
from isthmus.mqtt.packets import (
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)

if TYPE_CHECKING:
    from isthmus.exchange.broker.own_sessions import OwnSessions

__all__ = ["READ_KEY", "RetainedReader"]

KEY: Final = ":asks"
READ_KEY: Final = ":reads"
GRACE_S: Final = 0.5
ANSWER_S: Final = 10.0
IDLE_S: Final = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
MAX_TRIES: Final = 3
MAX_AT_ONCE: Final = 20
MAX_BUFFER_BYTES: Final = 1 << 20

Answer = Callable[[Mapping[bytes, bytes | None] | None], None]
Found = Callable[[Publish], None]


class _Question:
    def __init__(self, topics: Sequence[bytes], answer: Answer, found: Found | None = None) -> None:
        self.topics = topics
        """Or filters, if all that is found under them is told."""
        self.answer = answer
        self.told = found
        self.found: dict[bytes, bytes | None] = {}
        self.tries = 0
        self.ending = False
        """It has been unsubscribed from."""
        self.timer: Cancellable | None = None

    @property
    def complete(self) -> bool:
        return len(self.found) == len(self.topics)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class RetainedReader:
    """At most `MAX_AT_ONCE` questions at a time; they wait as long as the broker is away."""

    def __init__(self, own: OwnSessions, key: str = KEY) -> None:
        self._own = own
        self._host = own.host
        self._waiting: deque[_Question] = deque()
        self._asked: dict[int, _Question] = {}
        """By the packet identifier of the SUBSCRIBE, then of the UNSUBSCRIBE."""
        self._by_topic: dict[bytes, tuple[int, _Question]] = {}
        self._session: _ReadSession | None = None
        self._opening = False
        self._timer: Cancellable | None = None
        self._pause_s = FIRST_PAUSE_S
        self._packet_id = 0
        self.key = key
        self.closed = False

    def ask(self, topics: Sequence[bytes], answer: Answer) -> None:
        """The topics are not those of a question that is not answered yet."""
        self._put(_Question(topics, answer))

    def read(self, filters: Sequence[str], found: Found) -> None:
        """Tell all that is retained under filters, each once or several times."""
        self._put(_Question([each.encode() for each in filters], lambda _: None, found))

    def _put(self, question: _Question) -> None:
        self._waiting.append(question)
        if self._session is not None:
            self._ask_more()
        elif not self._opening:
            self._open()

    def close(self) -> None:
        self.closed = True
        self._cancel_timer()
        for question in self._asked.values():
            question.cancel_timer()
        self._close_session()

    def _open(self) -> None:
        if not self.closed:
            self._opening = True
            self._host.connect_broker(_ReadSession(self._own, self), self._not_connected)

    def _not_connected(self, cause: str) -> None:
        self._cancel_timer()
        if not self.closed:
            self._timer = self._host.call_later(self._pause_s, self._open)
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def opened(self, session: _ReadSession) -> None:
        self._session = session
        self._ask_more()

    def _ask_more(self) -> None:
        self._cancel_timer()
        session = self._session
        if session is None:
            return
        while self._waiting and len(self._asked) < MAX_AT_ONCE:
            question = self._waiting.popleft()
            question.found.clear()
            question.ending = False
            packet_id = self._await_answer(question)
            for topic in question.topics:
                self._by_topic[topic] = (packet_id, question)
            wanted = tuple(Subscription(topic.decode(), qos=0) for topic in question.topics)
            session.send(Subscribe(packet_id, wanted))
        if not self._asked:
            self._timer = self._host.call_later(IDLE_S, self._close_session)

    def _await_answer(self, question: _Question) -> int:
        """A packet identifier for what is asked now."""
        self._packet_id = free_packet_id(self._packet_id, self._asked)
        self._asked[self._packet_id] = question
        question.cancel_timer()
        question.timer = self._host.call_later(ANSWER_S, self._not_answered)
        return self._packet_id

    def packet(self, session: _ReadSession, packet: object) -> None:
        if session is not self._session:
            return
        match packet:
            case Publish(topic=topic, payload=payload, retain=True):
                self._tell(packet)
                name = topic.encode()
                if name in self._by_topic:
                    packet_id, question = self._by_topic[name]
                    question.found[name] = payload
                    self._unsubscribe_if_complete(packet_id, question)
            case SubAck(packet_id=packet_id, reason_codes=codes) if packet_id in self._asked:
                question = self._asked[packet_id]
                for asked, code in zip(question.topics, codes, strict=False):
                    if code >= 0x80:
                        question.found.setdefault(asked, None)  # it may not be read
                self._wait_for_more(packet_id, question)
                self._unsubscribe_if_complete(packet_id, question)
            case UnsubAck(packet_id=packet_id) if packet_id in self._asked:
                self._pause_s = FIRST_PAUSE_S
                question = self._asked.pop(packet_id)
                question.cancel_timer()
                self._ask_more()
                question.answer(dict(question.found))

    def _tell(self, publish: Publish) -> None:
        for packet_id, question in list(self._asked.items()):
            if question.told is not None and any(
                matches(each.decode(), publish.topic) for each in question.topics
            ):
                question.told(publish)
                if not question.ending:
                    self._wait_for_more(packet_id, question)
                return

    def _wait_for_more(self, packet_id: int, question: _Question) -> None:
        question.cancel_timer()
        question.timer = self._host.call_later(
            GRACE_S, partial(self._unsubscribe, packet_id, question)
        )

    def _unsubscribe_if_complete(self, packet_id: int, question: _Question) -> None:
        if question.complete:
            self._unsubscribe(packet_id, question)

    def _unsubscribe(self, packet_id: int, question: _Question) -> None:
        if self._session is None or self._asked.pop(packet_id, None) is None:
            return
        for topic in question.topics:
            self._by_topic.pop(topic, None)
        question.ending = True
        filters = tuple(topic.decode() for topic in question.topics)
        self._session.send(Unsubscribe(self._await_answer(question), filters))

    def _not_answered(self) -> None:
        self._host.log(
            "warning", "broker does not answer the node's question about retained messages"
        )
        self._close_session()

    def lost(self, session: _ReadSession) -> None:
        """Ask again, unless the questions themselves seem to be what the broker closes on."""
        if self._session is not session and self._session is not None:
            return
        asked, self._asked = list(self._asked.values()), {}
        self._by_topic.clear()
        self._session = None
        self._opening = False
        self._cancel_timer()
        if self.closed:
            return
        for question in reversed(asked):
            question.cancel_timer()
            question.tries += 1
            if question.tries >= MAX_TRIES:
                self._host.call_soon(partial(question.answer, None))
            else:
                self._waiting.appendleft(question)
        if self._waiting:
            self._opening = True
            self._timer = self._host.call_later(self._pause_s, self._open)
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.send(Disconnect())
            self._session.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _ReadSession(OwnSession):
    """The connection under a :class:`RetainedReader`."""

    __slots__ = ("_reader",)

    def __init__(self, own: OwnSessions, reader: RetainedReader) -> None:
        super().__init__(own)
        self._reader = reader

    def connection_made(self, wire: Wire) -> None:
        if self.begin(wire, self._reader, MAX_BUFFER_BYTES):
            self._timer = self.host.call_later(KEEP_ALIVE_S / 2, self._keep_alive)

    def _keep_alive(self) -> None:
        if self.greeting:
            self.wire.abort()  # a broker that takes connections and does not answer
        elif self.status is SessionStatus.ESTABLISHED:
            self.wire.write(b"\xc0\x00")
            self._timer = self.host.call_later(KEEP_ALIVE_S / 2, self._keep_alive)

    def _frame(self, frame: bytes) -> None:
        if not self.greeting:
            self._reader.packet(self, decode(frame, self.level))
            return
        connack = self._connack(frame)
        if connack is not None and connack.reason_code == 0:
            self.greeting = False
            self._reader.opened(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        self._reader.lost(self)
