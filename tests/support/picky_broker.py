"""A broker stand-in that closes on what a test says, and tells who connected and what came.

It runs in a thread of the test, speaks MQTT 5 and 3.1.1 as far as a node's own sessions and plain
clients need it, keeps no subscriptions and can crash and come back on the same port.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, cast

from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
)
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["PickyBroker"]


def never(publish: Publish) -> bool:
    return False


@dataclass(eq=False)
class PickyBroker:
    """A context manager; `port` is free to be connected to within."""

    closes_on: Callable[[Publish], bool] = never
    crashes_on: Callable[[Publish], bool] = never
    """It goes away as a whole, like a process that is killed, and is back after `away_s`."""
    away_s: float = 0.2
    grants: Properties = NO_PROPERTIES
    connack_delay_s: float = 0.0
    published: list[Publish] = field(default_factory=list)
    connected: list[tuple[float, str]] = field(default_factory=list)
    """When, and with which client id."""
    crashes: int = 0
    port: int = 0

    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._go_down)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def crash(self) -> None:
        """Lose every connection and listen no more."""
        self._call(self._go_down)

    def back(self) -> None:
        self._call(self._listen)

    def payloads(self) -> list[bytes]:
        return [publish.payload for publish in self.published]

    def sessions_since(self, moment_s: float) -> int:
        return sum(at_s >= moment_s for at_s, _ in self.connected)

    def _call(self, work: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self.loop).result(10)

    async def _listen(self) -> None:
        self._server = await self.loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _go_down(self) -> None:
        self._vanish()

    def _vanish(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._open):
            connection.transport.abort()

    def fall_over(self) -> None:
        """From within: crash, and be back after a while."""
        self.crashes += 1
        self._vanish()
        self.loop.call_later(self.away_s, lambda: self.loop.create_task(self._listen()))


class _Connection(asyncio.Protocol):
    def __init__(self, broker: PickyBroker) -> None:
        self._broker = broker
        self._received = b""
        self._level = 5

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._broker._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker._open.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (length := frame_length(self._received, 0)) and length <= len(self._received):
            frame, self._received = self._received[:length], self._received[length:]
            self._arrived(frame)
            if self.transport.is_closing():
                return

    def _write(self, packet: Any) -> None:
        self.transport.write(encode(packet, self._level))

    def _arrived(self, frame: bytes) -> None:
        broker = self._broker
        match decode(frame, self._level):
            case Connect() as connect:
                self._level = connect.protocol_level
                broker.connected.append((time.monotonic(), connect.client_id))
                grants = broker.grants if self._level == 5 else NO_PROPERTIES
                connack = ConnAck(False, ReasonCode.SUCCESS, grants)
                broker.loop.call_later(broker.connack_delay_s, self._write, connack)
            case Publish() as publish:
                if broker.crashes_on(publish):
                    broker.fall_over()
                elif broker.closes_on(publish):
                    self.transport.abort()
                else:
                    broker.published.append(publish)
                    if publish.qos:
                        self._write((PubAck if publish.qos == 1 else PubRec)(publish.packet_id))
            case PubRel(packet_id=packet_id):
                self._write(PubComp(packet_id))
            case Subscribe(packet_id=packet_id, subscriptions=subscriptions):
                self._write(SubAck(packet_id, (ReasonCode.SUCCESS,) * len(subscriptions)))
            case PingReq():
                self._write(PingResp())
            case Disconnect():
                self.transport.close()
            case other:
                raise NotImplementedError(f"the stand-in does not speak {other}")
