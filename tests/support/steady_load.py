"""A steady load at QoS 1 or 2 that survives what is done to the fabric; every message is counted.

Publishers number their messages, repeat after a reconnect what was not acknowledged, and note when
each was first sent and when acknowledged.  Subscribers have persistent sessions, come back when
they are thrown out, and note every delivery.  All of it in one event loop; times are seconds of
the monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)

__all__ = ["WINDOW", "LoadPublisher", "LoadSubscriber", "Sent", "connected"]

RETRY_S = 0.05
WINDOW = 100
LEVEL = 4


class _Wire:
    """One MQTT 3.1.1 connection on asyncio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._received = b""

    def send(self, packet: Packet) -> None:
        self._writer.write(encode(packet, LEVEL))

    async def receive(self) -> Packet:
        while not (length := frame_length(self._received, 0)) or len(self._received) < length:
            data = await self._reader.read(65_536)
            if not data:
                raise ConnectionError("end of stream")
            self._received += data
        frame, self._received = self._received[:length], self._received[length:]
        return decode(frame, LEVEL)

    def close(self) -> None:
        self._writer.close()


async def connected(
    port: int, client_id: str, *, clean: bool, keep_alive: int = 60
) -> tuple[_Wire, ConnAck]:
    """A connection whose CONNECT was accepted; raises `OSError`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wire = _Wire(reader, writer)
    try:
        wire.send(
            Connect(client_id, clean_start=clean, keep_alive=keep_alive, protocol_level=LEVEL)
        )
        async with asyncio.timeout(10):
            answer = await wire.receive()
        if not isinstance(answer, ConnAck) or answer.reason_code != 0:
            raise ConnectionError(f"not accepted: {answer}")
    except BaseException:
        wire.close()
        raise
    return wire, answer


async def _for_ever(once: Callable[[], Awaitable[None]]) -> None:
    """Again and again, until canceled: a client that does not give up."""
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            await once()
        await asyncio.sleep(RETRY_S)


@dataclass(slots=True)
class Sent:
    """One published message."""

    sent_s: float
    acknowledged_s: float | None = None
    repeated: bool = False
    """The publisher itself sent it again after a reconnect."""


@dataclass(eq=False)
class LoadPublisher:
    """`rate_per_s` messages a second with payload ``name:number``."""

    name: str
    port: int
    topic: str
    rate_per_s: float
    qos: int = 1
    window: int = WINDOW
    """How many may be without an acknowledgment."""
    sent: list[Sent] = field(default_factory=list)
    """By number."""
    stopping: bool = False
    resting: bool = False
    """Sends nothing new."""
    _open: set[int] = field(default_factory=set)

    async def run(self) -> None:
        await _for_ever(self._connection)

    @property
    def awaits(self) -> bool:
        """Whether something is not acknowledged."""
        return bool(self._open)

    @property
    def done(self) -> bool:
        return self.stopping and not self._open

    async def _connection(self) -> None:
        wire, _ = await connected(self.port, f"publisher-{self.name}", clean=True)
        try:
            for number in sorted(self._open):
                self.sent[number].repeated = True
                self._send(wire, number, dup=True)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish(wire))
                group.create_task(self._acknowledgments(wire))
        except* (OSError, TimeoutError) as errors:
            raise ConnectionError("lost") from errors
        finally:
            wire.close()

    def _send(self, wire: _Wire, number: int, *, dup: bool = False) -> None:
        # One packet identifier for each message, so that nothing depends on their reuse.
        assert number < 65_535, "more messages than packet identifiers"
        payload = f"{self.name}:{number}".encode()
        wire.send(Publish(self.topic, payload, self.qos, dup=dup, packet_id=number + 1))

    async def _publish(self, wire: _Wire) -> None:
        due_s = time.monotonic()
        while not self.stopping:
            due_s = max(due_s + 1 / self.rate_per_s, time.monotonic() - 0.1)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if len(self._open) < self.window and not self.resting:
                number = len(self.sent)
                self._open.add(number)
                self.sent.append(Sent(time.monotonic()))
                self._send(wire, number)

    async def _acknowledgments(self, wire: _Wire) -> None:
        while True:
            packet = await wire.receive()
            if isinstance(packet, PubRec):
                wire.send(PubRel(packet.packet_id))
            if isinstance(packet, PubAck | PubRec):
                number = packet.packet_id - 1
                self._open.discard(number)
                if self.sent[number].acknowledged_s is None:
                    self.sent[number].acknowledged_s = time.monotonic()


@dataclass(eq=False)
class LoadSubscriber:
    """A persistent session; `got` has the arrival times of every message."""

    name: str
    port: int
    topic_filter: str
    qos: int = 1
    keep_alive: int = 60
    got: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    sessions: list[bool] = field(default_factory=list)
    """Session present, for each connection."""
    subscribed: asyncio.Event = field(default_factory=asyncio.Event)
    _unreleased: set[int] = field(default_factory=set)
    """Packet identifiers of QoS 2 whose PUBREL has not come: what has one again is no news."""

    async def run(self) -> None:
        await _for_ever(self._connection)

    async def _connection(self) -> None:
        wire, connack = await connected(
            self.port, f"subscriber-{self.name}", clean=False, keep_alive=self.keep_alive
        )
        try:
            self.sessions.append(connack.session_present)
            wire.send(Subscribe(1, (Subscription(self.topic_filter, self.qos),)))
            while True:
                packet = await wire.receive()
                if isinstance(packet, SubAck):
                    self.subscribed.set()
                elif isinstance(packet, Publish):
                    if packet.packet_id not in self._unreleased:
                        self.got[packet.payload.decode()].append(time.monotonic())
                    if packet.qos == 2:
                        self._unreleased.add(packet.packet_id)
                    answer = PubRec if packet.qos == 2 else PubAck
                    wire.send(answer(packet.packet_id))
                elif isinstance(packet, PubRel):
                    self._unreleased.discard(packet.packet_id)
                    wire.send(PubComp(packet.packet_id))
        finally:
            wire.close()
