"""A node that starts: nobody is let in before its algorithm runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import uvloop

from isthmus.config.files import load_node_config
from isthmus.exchange.exchange import Exchange
from isthmus.node.runtime import Node
from isthmus.processes.ports import free_port
from support.nodes import to_toml


def test_nobody_is_let_in_before_the_algorithm_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    tables = {
        "node": {"id": "starting"},
        "listen": {"mqtt": "127.0.0.1:0", "link": "127.0.0.1:0"},
        "broker": {"url": f"mqtt://127.0.0.1:{free_port()}"},
    }
    file.write_text(to_toml(tables))
    node = Node(load_node_config(file))
    start = Exchange.start
    refused: list[str] = []

    def start_alone(self: Exchange) -> None:
        for name in ("mqtt", "link"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(node.addresses[name], 5)
            refused.append(name)
        start(self)

    monkeypatch.setattr(Exchange, "start", start_alone)

    async def run() -> None:
        await node.start()
        for name in ("mqtt", "link"):
            socket.create_connection(node.addresses[name], 5).close()
        await node.stop(0.1)

    uvloop.run(run())
    assert refused == ["mqtt", "link"]


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "node.toml"
        tables = {
            "node": {"id": "starting"},
            "listen": {"mqtt": f"127.0.0.1:{port}"},
            "broker": {"url": f"mqtt://127.0.0.1:{free_port()}"},
        }
        file.write_text(to_toml(tables))
        node = Node(load_node_config(file))
        with pytest.raises(OSError, match=rf"\[listen\] mqtt = 127.0.0.1:{port}: "):
            uvloop.run(node.start())
