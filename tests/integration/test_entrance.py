"""Connections that never say who they are: each counts as a client, and makes room for one."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator

import pytest

from conftest import require_broker
from isthmus.brokers import create
from isthmus.exchange.client.entrance import SILENT_S
from isthmus.exchange.client.relay import WAITING_ROOM
from isthmus.mqtt.packets import ConnAck, Connect
from isthmus.mqtt.reason_codes import ReasonCode
from support.certificates import Authority
from support.nodes import NodeProcess, free_port
from support.raw import RawClient
from support.waiting import wait_for

CLIENTS = 20
UNFINISHED = {
    "mqtt": b"\x10\x20",
    "mqtts": b"\x16\x03\x01\x01\x00\x01",
    "ws": b"GET / HTTP/1.1\r\n",
    "wss": b"",
}
"""What is said on each listener by who does not go on."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[NodeProcess]:
    require_broker("mosquitto")
    pair = authority.issue("server")
    with (
        create("mosquitto") as broker,
        NodeProcess(
            tmp_path_factory.mktemp("entrance"),
            f"mqtt://127.0.0.1:{broker.port}",
            limits={"clients": CLIENTS, "connect_timeout_s": 60.0},
            listen={name: f"127.0.0.1:{free_port()}" for name in ("mqtts", "ws", "wss")},
            tls={"cert": pair.cert, "key": pair.key},
        ) as process,
    ):
        yield process


def files(node: NodeProcess) -> int:
    return len(os.listdir(f"/proc/{node.pid}/fd"))


def refused(node: NodeProcess) -> int:
    count: int = node.status()["refusals"].get("clients-limit", 0)
    return count


def port_of(node: NodeProcess, listener: str) -> int:
    return int(node.status()["listeners"][listener].rpartition(":")[2])


@pytest.mark.parametrize("listener", UNFINISHED)
def test_connections_that_never_say_who_they_are_keep_nobody_out(
    node: NodeProcess, listener: str
) -> None:
    before, had = files(node), refused(node)
    port = port_of(node, listener)
    strangers = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(200)]
    try:
        for stranger in strangers:
            try:
                stranger.sendall(UNFINISHED[listener])
            except OSError:
                pass  # there was no room for it
        places = CLIENTS + WAITING_ROOM
        wait_for(
            lambda: refused(node) >= had + 200 - places and files(node) <= before + places + 2,
            5,
            "those without room to be closed",
        )

        def taken() -> bool:
            with RawClient(node.port) as client:
                try:
                    client.send(Connect("honest"))
                    answer = client.receive()
                except OSError:
                    return False
                return isinstance(answer, ConnAck) and answer.reason_code == 0

        wait_for(taken, 4 * SILENT_S, "a client to be taken in")
    finally:
        for stranger in strangers:
            stranger.close()
    wait_for(lambda: files(node) <= before + 1, 5, "the strangers to be gone")


def test_who_has_just_come_is_not_cut_off_for_others(node: NodeProcess) -> None:
    """As long as nobody was silent for long, the last to come is told that there is no room."""
    inside = [RawClient(node.port) for _ in range(CLIENTS)]
    try:
        with RawClient(node.port) as late:
            late.send(Connect("late"))
            assert late.receive() == ConnAck(False, ReasonCode.QUOTA_EXCEEDED)
        for number, client in enumerate(inside):
            assert client.connect(f"inside-{number}").reason_code == 0
    finally:
        for client in inside:
            client.close()


def test_tls_clients_over_the_limit_are_told_so(node: NodeProcess, authority: Authority) -> None:
    wait_for(lambda: node.status()["sessions"]["open"] == 0, 5, "the others to be gone")
    context = ssl.create_default_context(cafile=authority.cert)
    clients = []
    try:
        for number in range(CLIENTS + 1):
            client = RawClient(port_of(node, "mqtts"))
            clients.append(client)
            client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
            code = client.connect(f"c{number}").reason_code
            assert code == (0 if number < CLIENTS else ReasonCode.QUOTA_EXCEEDED)
    finally:
        for client in clients:
            client.close()
