"""Publishing at the local broker what comes from other nodes (ILDM §4.1).

For each neighbour the node keeps one session of its own with the broker, so that messages of one
neighbour stay in order.  It speaks MQTT 5 if the broker does, else 3.1.1, which has no place for
properties.  A message counts as delivered when the broker has acknowledged it; only then is it
acknowledged to the neighbour.

    waiting ──window has room──▶ in flight ──PUBACK / PUBREC, PUBCOMP──▶ done
                                     └──session lost──▶ waiting again, first

Messages at QoS 1 and 2 wait as long as it takes; their number is bounded by what neighbours may
have unacknowledged.  At QoS 0 they are dropped, and counted, when `MAX_WAITING_BYTES` wait to be
written, or `MAX_WAITING` messages for the session to come up.

RabbitMQ 3.10 answers QoS 2 with PUBACK, which is taken for what it is: an acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.errors import ProtocolError
from isthmus.exchange.message import Message, plain_to_broker, to_broker
from isthmus.logs import get_logger
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packets import ConnAck, Connect, Disconnect, PubAck, PubRec
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.node.session import Session, SessionStatus

if TYPE_CHECKING:
    from isthmus.node.runtime import Node

__all__ = ["Injector"]

WINDOW = 1_000
KEEP_ALIVE_S = 30
MAX_WAITING_BYTES = 8 << 20
MAX_WAITING = 1_000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0

_PUBACK, _PUBREC, _PUBCOMP = 0x40, 0x50, 0x70

log = get_logger(__name__)

Entry = tuple[Message, Callable[[], None] | None]


class Injector:
    """The node's session with the broker for one neighbour; reconnects for ever."""

    def __init__(self, node: Node, key: str) -> None:
        self._node = node
        self._key = key
        self._session: InjectSession | None = None
        self._pause_s = FIRST_PAUSE_S
        self._waiting: deque[Entry] = deque()
        self._in_flight: dict[int, Entry] = {}
        self._window = WINDOW
        self._next_id = 0
        self._out: list[bytes] = []
        self._unreleased: Counter[bytes] = Counter()
        """Topics with messages at QoS 2 in flight."""
        self._closed = False
        self._was_open = False
        self._task = node.loop.create_task(self._connect())

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    @property
    def connected(self) -> bool:
        return self._session is not None

    def inject(self, message: Message, done: Callable[[], None] | None) -> bool:
        """Publish `message`; False if it had to be dropped."""
        if message.qos == 0:
            session = self._session
            if session is not None and not self._waiting and message.topic not in self._unreleased:
                if self._has_room(session):
                    level = self._node.broker_level
                    self._write(to_broker(message, level, 0, 0, self._now()))
                    self._finish(done)
                    return True
                return False
            if len(self._waiting) >= MAX_WAITING:
                return False
        self._waiting.append((message, done))
        self._advance()
        return True

    def inject_plain(self, topic: bytes, payload: bytes) -> bool:
        """Publish a message at QoS 0, not retained, without properties: the hot path."""
        session = self._session
        if session is None or self._waiting or topic in self._unreleased:
            return self.inject(Message(topic, payload), None)
        if not self._has_room(session):
            return False
        self._write(plain_to_broker(topic, payload, self._node.broker_level))
        return True

    def _has_room(self, session: InjectSession) -> bool:
        # What is gathered in this turn came in few reads of the event loop and needs no look.
        return bool(self._out) or session.wire.get_write_buffer_size() <= MAX_WAITING_BYTES

    def close(self) -> None:
        self._closed = True
        self._task.cancel()
        if self._session is not None:
            self._session.wire.write(encode(Disconnect(), self._node.broker_level))
            self._session.close()

    def _now(self) -> float:
        return self._node.loop.time()

    def _write(self, data: bytes) -> None:
        """Write at the end of this turn, so that a write carries many messages."""
        if not self._out:
            self._node.loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        session = self._session
        if session is not None and session.status is SessionStatus.ESTABLISHED:
            session.wire.write(data)

    def _advance(self) -> None:
        session = self._session
        while session is not None and self._waiting and len(self._in_flight) < self._window:
            message, done = self._waiting[0]
            if message.qos < 2 and message.topic in self._unreleased:
                return  # a broker may apply a QoS 2 message at its PUBREL, after this one
            self._waiting.popleft()
            if message.expired(self._now()):
                self._finish(done)
                continue
            packet_id = self._free_id()
            self._in_flight[packet_id] = (message, done)
            level, qos = self._node.broker_level, min(message.qos, session.maximum_qos)
            if qos == 2:
                self._unreleased[message.topic] += 1
            self._write(to_broker(message, level, qos, packet_id, self._now()))
            if qos == 0:
                self._finish(self._in_flight.pop(packet_id)[1])

    def _free_id(self) -> int:
        while True:
            self._next_id = self._next_id % 65_535 + 1
            if self._next_id not in self._in_flight:
                return self._next_id

    @staticmethod
    def _finish(done: Callable[[], None] | None) -> None:
        if done is not None:
            done()

    # ---- the session ---------------------------------------------------------------------

    async def _connect(self) -> None:
        while not self._closed:
            session = InjectSession(self._node, self)
            try:
                await self._node.upstream.connect(lambda s=session: s)  # type: ignore[misc]
            except OSError:
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
                continue
            session.begin()
            return

    def connect_packet(self, level: int) -> bytes:
        broker = self._node.config.broker
        connect = Connect(
            client_id=f"isthmus-{self._node.config.node.id}-{self._key}",
            clean_start=True,
            keep_alive=KEEP_ALIVE_S,
            username=broker.username,
            password=broker.password_bytes(),
            protocol_level=level,
        )
        return encode(connect, level)

    def opened(self, session: InjectSession, connack: ConnAck) -> None:
        self._session = session
        self._node.own_session_refused("")
        self._pause_s = FIRST_PAUSE_S
        self._was_open = True
        self._window = min(WINDOW, connack.properties.receive_maximum or WINDOW)
        self._advance()

    def lost(self, session: InjectSession, cause: str) -> None:
        """What was in flight goes first when the session is back."""
        if self._session is session:
            self._session = None
            self._out.clear()  # what it was is in flight, or at QoS 0 and lost with the session
            self._waiting.extendleft(reversed(self._in_flight.values()))
            self._in_flight.clear()
            self._unreleased.clear()
        if self._closed:
            return
        if self._was_open:
            log.info("own broker session lost", neighbor=self._key, cause=cause)
        self._was_open = False
        self._node.loop.call_later(self._pause_s, self._reconnect)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    def _reconnect(self) -> None:
        if not self._closed:
            self._task = self._node.loop.create_task(self._connect())

    def acknowledged(self, session: InjectSession, frame: bytes) -> None:
        packet_id = frame[2] << 8 | frame[3]
        head = frame[0]
        refused = _refusal(frame)
        if head == _PUBREC and refused is None:
            self._write(bytes((0x62, 2)) + packet_id.to_bytes(2))
            return
        entry = self._in_flight.pop(packet_id, None)
        if entry is None:
            return  # a broker that acknowledges twice
        topic = entry[0].topic
        if entry[0].qos == 2 and topic in self._unreleased:
            self._unreleased[topic] -= 1
            if self._unreleased[topic] == 0:
                del self._unreleased[topic]
        if refused is not None:
            self._node.exchange.counters["inject_refused"] += 1
            log.warning(
                "broker refused a message from another node",
                neighbor=self._key,
                topic=entry[0].topic.decode(errors="replace"),
                cause=f"0x{refused:02x}",
            )
        self._finish(entry[1])
        self._advance()


def _refusal(frame: bytes) -> int | None:
    """The reason code of a v5 acknowledgement that refuses the message."""
    if len(frame) <= 4:
        return None
    packet = decode(frame, 5)
    if isinstance(packet, PubAck | PubRec) and packet.reason_code >= 0x80:
        return int(packet.reason_code)
    return None


class InjectSession(Session):
    """The connection under an :class:`Injector`."""

    __slots__ = (
        "_buffer",
        "_greeting",
        "_injector",
        "_level",
        "_node",
        "_ping",
        "_refused",
        "maximum_qos",
    )

    def __init__(self, node: Node, injector: Injector) -> None:
        super().__init__(node.limits.drain_s)
        self._node = node
        self._injector = injector
        self._buffer = FrameBuffer()
        self._greeting = True
        self._refused = False
        self._level = node.broker_level
        self._ping: asyncio.TimerHandle | None = None
        self.maximum_qos = 2

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.established(transport, MAX_WAITING_BYTES)

    def begin(self) -> None:
        self._level = self._node.broker_level
        self.wire.write(self._injector.connect_packet(self._level))
        self._keep_alive()

    def _keep_alive(self) -> None:
        if self.status is SessionStatus.ESTABLISHED:
            if not self._greeting:
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
        if self._greeting:
            self._greeted(frame)
        elif frame[0] in (_PUBACK, _PUBREC, _PUBCOMP):
            self._injector.acknowledged(self, frame)

    def _greeted(self, frame: bytes) -> None:
        level = self._level
        connack = _read_connack(frame, level)
        if connack is not None and connack.reason_code == 0:
            self._greeting = False
            if connack.properties.maximum_qos is not None:
                self.maximum_qos = connack.properties.maximum_qos
            self._injector.opened(self, connack)
            return
        if level == 4 or not (
            connack is None or connack.reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
        ):
            self._refused = True
            self._node.own_session_refused(
                connack.reason_code.name.lower().replace("_", " ") if connack else "no CONNACK"
            )
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        if self._ping is not None:
            self._ping.cancel()
        if self._greeting and not self._refused:
            # Brokers that know no MQTT 5 say so, or just close.  If it was something else that
            # ended the greeting at 3.1.1, begin anew.
            self._node.broker_level = 4 if self._level == 5 else 5
        self._injector.lost(self, str(exc or "end of stream"))


def _read_connack(frame: bytes, level: int) -> ConnAck | None:
    try:
        packet = decode(frame, level)
    except ProtocolError:
        return None  # a 3.1.1 broker's answer to MQTT 5
    return packet if isinstance(packet, ConnAck) else None
