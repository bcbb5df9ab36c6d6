"""A broker stand-in of known capacity: a process that speaks just enough MQTT 3.1.1.

It forwards QoS 0 PUBLISHes to the subscribers of their topic, one after the other, and takes
1/`capacity` seconds for each, by the clock and not by the CPU:

    departure = max(arrival, departure of the one before) + 1/capacity

So it sends `capacity` messages per second at most on any machine that is not starved, and exactly
that many while it has a backlog, of which it makes up for its own delays.  At most `queue` messages
wait; what comes then is dropped.  With a long queue it behaves like a broker that keeps what it
cannot send yet, with a short one like a broker that throws it away.

    python tests/support/stand_in_broker.py CAPACITY QUEUE      prints its port
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict, deque
from pathlib import Path
from typing import cast

from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
)
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from isthmus.processes.children import Launch, end, launch

__all__ = ["StandInBroker"]

LEVEL = 4


class StandInBroker:
    """The process, for a test; a context manager."""

    def __init__(self, folder: Path, *, capacity: int, queue: int) -> None:
        self.capacity = capacity
        self._argv = [sys.executable, __file__, str(capacity), str(queue)]
        self._log = folder / "stand-in.log"

    def __enter__(self) -> StandInBroker:
        from support.waiting import wait_for  # which the process itself has no need of

        self._process = launch(Launch(self._argv), self._log)
        self.pid = self._process.pid
        try:
            wait_for(lambda: self._log.read_text().endswith("\n"), 20, "the stand-in's port")
            self.port = int(self._log.read_text())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process, 0)


class _Server:
    """One server with a queue before it."""

    def __init__(self, capacity: int, queue: int) -> None:
        self._service_s = 1 / capacity
        self._bound = queue
        self._waiting: deque[tuple[float, asyncio.Transport, bytes]] = deque()
        self._departure_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.subscribers: dict[str, list[asyncio.Transport]] = defaultdict(list)

    def publish(self, topic: str, frame: bytes) -> None:
        for subscriber in self.subscribers[topic]:
            if len(self._waiting) >= self._bound:
                return
            self._departure_s = max(self._departure_s, self._loop.time()) + self._service_s
            self._waiting.append((self._departure_s, subscriber, frame))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_at(self._waiting[0][0], self._send)

    def _send(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now_s:
            _, subscriber, frame = self._waiting.popleft()
            if not subscriber.is_closing():
                subscriber.write(frame)
        self._set_timer()


class _Connection(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self._server = server
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        for subscribers in self._server.subscribers.values():
            while self._transport in subscribers:
                subscribers.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        start = 0
        while (length := frame_length(self._received, start)) and (
            start + length <= len(self._received)
        ):
            self._arrived(self._received[start : start + length])
            start += length
        self._received = self._received[start:]

    def _arrived(self, frame: bytes) -> None:
        match decode(frame, LEVEL):
            case Publish(topic=topic, qos=0):
                self._server.publish(topic, frame)
            case Connect():
                self._transport.write(encode(ConnAck(False, ConnectReturnCode.ACCEPTED), LEVEL))
            case Subscribe(packet_id=packet_id, subscriptions=subscriptions):
                for subscription in subscriptions:
                    self._server.subscribers[subscription.topic_filter].append(self._transport)
                granted = (ReasonCode.SUCCESS,) * len(subscriptions)
                self._transport.write(encode(SubAck(packet_id, granted), LEVEL))
            case PingReq():
                self._transport.write(encode(PingResp(), LEVEL))
            case Disconnect():
                self._transport.close()
            case other:
                raise NotImplementedError(f"the stand-in does not speak {other}")


async def _serve(capacity: int, queue: int) -> None:
    server = _Server(capacity, queue)
    listener = await asyncio.get_running_loop().create_server(
        lambda: _Connection(server), "127.0.0.1", 0, backlog=1000
    )
    print(listener.sockets[0].getsockname()[1], flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
