"""Clients that come and go leave no cyclic garbage: what `isthmus.node.collector` rests on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from pathlib import Path

import uvloop

from isthmus.brokers import create
from isthmus.config.files import load_node_config
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect, Publish, Subscribe, Subscription
from isthmus.node.runtime import Node
from isthmus.processes.ports import free_port
from support.nodes import to_toml


async def come_and_go(port: int, number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for packet in (
        Connect(client_id=f"c{number}", clean_start=True),
        Subscribe(1, (Subscription(f"a/{number}"),)),
        Publish(f"a/{number}", b"x"),
    ):
        writer.write(encode(packet, 5))
        assert await reader.read(1000)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def rings_left(file: Path, port: int) -> Counter[str]:
    node = Node(load_node_config(file))
    await node.start()
    try:
        for number in range(10):
            await come_and_go(port, number)
        gc.collect()
        gc.disable()
        for number in range(50):
            await come_and_go(port, number)
        async with asyncio.timeout(10):
            while node.status()["sessions"]["open"]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return Counter(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        await node.stop(0.1)


def test_clients_that_come_and_go_leave_no_rings(tmp_path: Path) -> None:
    port = free_port()
    with create("mosquitto") as broker:
        file = tmp_path / "node.toml"
        tables = {
            "node": {"id": "no-rings"},
            "listen": {"mqtt": f"127.0.0.1:{port}"},
            "broker": {"url": f"mqtt://127.0.0.1:{broker.port}"},
        }
        file.write_text(to_toml(tables))
        left = uvloop.run(rings_left(file, port))
    assert left.total() < 50, left.most_common(10)  # less than one for each client
