"""Asking the local broker which retained messages it has.

The node subscribes to the very topics, at most `exchange.retained_broker.ASK` at a time, gets what
is retained there, and unsubscribes; the session is opened when there is something to ask and closed
when there was nothing for `IDLE_S`.

    SUBSCRIBE ──SUBACK──▶ retained messages, until each topic has one or `GRACE_S` is over
              ──▶ UNSUBSCRIBE ──UNSUBACK──▶ told

MQTT does not say when the last retained message has come.  One that comes later than that counts
as none: a message that the broker has is then published once more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from isthmus.errors import ProtocolError
from isthmus.logs import get_logger
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.node.injector import own_client_id
from isthmus.node.session import Session, SessionStatus

if TYPE_CHECKING:
    from isthmus.node.runtime import Node

__all__ = ["RetainedReader"]

KEY: Final = ":asks"
GRACE_S: Final = 0.5
ANSWER_S: Final = 10.0
IDLE_S: Final = 5.0
KEEP_ALIVE_S: Final = 30
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
MAX_TRIES: Final = 3
MAX_BUFFER_BYTES: Final = 1 << 20

log = get_logger(__name__)

Answer = Callable[[Mapping[bytes, bytes | None] | None], None]


class _Question:
    def __init__(self, topics: Sequence[bytes], answer: Answer) -> None:
        self.topics = topics
        self.answer = answer
        self.found: dict[bytes, bytes | None] = {}
        self.tries = 0

    @property
    def complete(self) -> bool:
        return len(self.found) == len(self.topics)


class RetainedReader:
    """One question at a time; they wait as long as the broker is away."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._questions: deque[_Question] = deque()
        self._session: _ReadSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_PAUSE_S
        self._packet_id = 0
        self._closed = False

    def ask(self, topics: Sequence[bytes], answer: Answer) -> None:
        self._questions.append(_Question(topics, answer))
        if self._session is not None:
            if len(self._questions) == 1:
                self._ask_next()
        elif self._task is None:
            self._open()

    def close(self) -> None:
        self._closed = True
        self._cancel_timer()
        if self._task is not None:
            self._task.cancel()
        self._close_session()

    def _open(self) -> None:
        if not self._closed:
            self._task = self._node.loop.create_task(self._connect())

    async def _connect(self) -> None:
        while not self._closed:
            session = _ReadSession(self._node, self)
            try:
                await self._node.upstream.connect(lambda s=session: s)  # type: ignore[misc]
            except OSError:
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
                continue
            session.begin()
            return

    def opened(self, session: _ReadSession) -> None:
        self._session = session
        self._ask_next()

    def _ask_next(self) -> None:
        self._cancel_timer()
        session = self._session
        if session is None:
            return
        if not self._questions:
            self._timer = self._node.loop.call_later(IDLE_S, self._close_session)
            return
        question = self._questions[0]
        question.found.clear()
        wanted = tuple(Subscription(topic.decode(), qos=0) for topic in question.topics)
        session.send(Subscribe(self._next_id(), wanted))
        self._timer = self._node.loop.call_later(ANSWER_S, self._not_answered)

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def packet(self, session: _ReadSession, packet: object) -> None:
        question = self._questions[0] if self._questions else None
        if question is None or session is not self._session:
            return
        match packet:
            case Publish(topic=topic, payload=payload, retain=True):
                if (name := topic.encode()) in question.topics:
                    question.found[name] = payload
                    if question.complete:
                        self._unsubscribe(question)
            case SubAck(reason_codes=codes):
                for asked, code in zip(question.topics, codes, strict=False):
                    if code >= 0x80:
                        question.found.setdefault(asked, None)  # it may not be read
                self._cancel_timer()
                if question.complete:
                    self._unsubscribe(question)
                else:
                    self._timer = self._node.loop.call_later(GRACE_S, self._unsubscribe, question)
            case UnsubAck():
                self._pause_s = FIRST_PAUSE_S
                self._done(dict(question.found))

    def _unsubscribe(self, question: _Question) -> None:
        self._cancel_timer()
        if self._session is not None:
            filters = tuple(topic.decode() for topic in question.topics)
            self._session.send(Unsubscribe(self._next_id(), filters))
            self._timer = self._node.loop.call_later(ANSWER_S, self._not_answered)

    def _done(self, found: dict[bytes, bytes | None] | None) -> None:
        question = self._questions.popleft()
        self._ask_next()
        question.answer(found)

    def _not_answered(self) -> None:
        log.warning("broker does not answer the node's question about retained messages")
        self._close_session()

    def lost(self, session: _ReadSession) -> None:
        """Ask again, unless the question itself seems to be what the broker closes on."""
        if self._session is not session and self._session is not None:
            return
        asked, self._session, self._task = self._session is not None, None, None
        self._cancel_timer()
        if self._closed or not self._questions:
            return
        question = self._questions[0]
        question.tries += asked
        if question.tries >= MAX_TRIES:
            self._questions.popleft()
            self._node.loop.call_soon(question.answer, None)
        if self._questions:
            self._timer = self._node.loop.call_later(self._pause_s, self._open)
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.send(Disconnect())
            self._session.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _ReadSession(Session):
    """The connection under a :class:`RetainedReader`."""

    __slots__ = ("_buffer", "_greeting", "_level", "_node", "_ping", "_reader")

    def __init__(self, node: Node, reader: RetainedReader) -> None:
        super().__init__(node.limits.drain_s)
        self._node = node
        self._reader = reader
        self._buffer = FrameBuffer()
        self._greeting = True
        self._level = node.broker_level
        self._ping: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.established(transport, MAX_BUFFER_BYTES)

    def begin(self) -> None:
        broker = self._node.config.broker
        self._level = self._node.broker_level
        self.send(
            Connect(
                client_id=own_client_id(self._node.config.node.id, KEY),
                clean_start=True,
                keep_alive=KEEP_ALIVE_S,
                username=broker.username,
                password=broker.password_bytes(),
                protocol_level=self._level,
            )
        )
        self._ping = self._node.loop.call_later(KEEP_ALIVE_S / 2, self._keep_alive)

    def send(self, packet: Connect | Subscribe | Unsubscribe | Disconnect) -> None:
        if self.status is SessionStatus.ESTABLISHED:
            self.wire.write(encode(packet, self._level))

    def _keep_alive(self) -> None:
        if self._greeting:
            self.wire.abort()  # a broker that takes connections and does not answer
        elif self.status is SessionStatus.ESTABLISHED:
            self.wire.write(b"\xc0\x00")
            self._ping = self._node.loop.call_later(KEEP_ALIVE_S / 2, self._keep_alive)

    def data_received(self, data: bytes) -> None:
        if not (data := self._buffer.push(data)):
            return
        try:
            offsets = scan(data)
            for start, stop in pairwise(offsets):
                self._frame(data[start:stop])
            self._buffer.keep(data[offsets[-1] :])
        except ProtocolError as error:
            log.warning("broker sent bad bytes", session="own", detail=str(error))
            self.close()

    def _frame(self, frame: bytes) -> None:
        packet = decode(frame, self._level)
        if not self._greeting:
            self._reader.packet(self, packet)
        elif isinstance(packet, ConnAck) and packet.reason_code == 0:
            self._greeting = False
            self._reader.opened(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        if self._ping is not None:
            self._ping.cancel()
        self._reader.lost(self)
