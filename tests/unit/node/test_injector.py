"""The node's own session with a broker that hangs: connections stand, and nothing is answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isthmus.config.files import NodeConfig
from isthmus.exchange.broker.aversions import Aversions
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import ConnAck, Connect, PingReq, PubAck, Publish
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.node import injector as module
from isthmus.node.injector import Injector
from support.waiting import wait_for


class HangingBroker(asyncio.Protocol):
    """Answers everything, or nothing."""

    answers = True
    connects: list[int]
    published: list[Publish]

    def __init__(self) -> None:
        self.connects = []
        self.published = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        while data:
            stop = frame_length(data, 0)
            packet, data = decode(data[:stop], 5), data[stop:]
            if isinstance(packet, Connect):
                self.connects.append(packet.protocol_level)
            if not self.answers:
                continue
            match packet:
                case Connect():
                    self.transport.write(encode(ConnAck(False, ReasonCode.SUCCESS), 5))
                case PingReq():
                    self.transport.write(b"\xd0\x00")
                case Publish(packet_id=packet_id):
                    assert packet_id is not None
                    self.published.append(packet)
                    self.transport.write(encode(PubAck(packet_id), 5))


class FakeNode:
    """What an injector needs of a node."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.loop = asyncio.get_running_loop()
        self.broker_level = 5
        self.config = NodeConfig.model_validate(
            {"node": {"id": "b"}, "broker": {"url": f"mqtt://127.0.0.1:{port}"}}
        )
        self.limits = self.config.limits
        self.upstream = self
        self.aversions = Aversions()
        self.exchange = SimpleNamespace(
            counters=Counter[str](),
            retention=SimpleNamespace(broker=SimpleNamespace(session_lost=lambda key: None)),
        )

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> None:
        await self.loop.create_connection(factory, "127.0.0.1", self._port)

    def own_session_refused(self, cause: str) -> None:
        assert not cause


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_for, condition, 20, "what is to come")


async def hang_and_wake(broker: HangingBroker) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: broker, "127.0.0.1", 0)
    own = Injector(cast(Any, FakeNode(server.sockets[0].getsockname()[1])), "a")
    await until(lambda: own.connected)
    broker.answers = False
    done = asyncio.Event()
    own.inject(Message(b"t", b"x", qos=1), done.set)
    await until(lambda: own.silent)
    await until(lambda: len(broker.connects) >= 3)
    assert own.silent
    assert not own.connected
    broker.answers = True
    await until(lambda: own.connected)
    assert not own.silent
    await until(done.is_set)
    assert set(broker.connects) == {5}  # not taken for a broker that knows only MQTT 3.1.1
    assert [each.payload for each in broker.published] == [b"x"]
    own.close()
    server.close()


def test_a_broker_that_hangs_is_noticed_and_nothing_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("PING", 0.05), ("ANSWER", 0.1), ("GREETING", 0.2), ("SILENT", 0.3)):
        monkeypatch.setattr(module, f"{name}_S", seconds)

    async def main() -> None:
        await hang_and_wake(HangingBroker())

    asyncio.run(main())
