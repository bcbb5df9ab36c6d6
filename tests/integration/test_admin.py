"""The admin server on a loopback socket: framing, bounds, faults.

http.client / raw sockets ──▶ AdminServer ──▶ a node that says what it is told to say
"""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest

from isthmus.config.addresses import Address
from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.errors import AdminError
from isthmus.fabric.admin_client import add_peer, ask, fetch_peers, fetch_status, remove_peer
from isthmus.node import admin
from isthmus.node.admin import AdminServer

T = TypeVar("T")
DEADLINE_S = 20.0


class SomeNode:
    """A node whose status is what it is, or an error."""

    def __init__(self) -> None:
        self.ready = True
        self.answer: dict[str, Any] | Exception = {"node": {"id": "edge-1"}}
        self.added: list[tuple[str, int | None, int | None]] = []

    def status(self) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def add_peer(
        self,
        address: str,
        lanes: int | None = None,
        qos: int | None = None,
        rules: LinkRules = NO_RULES,
    ) -> None:
        self.added.append((address, lanes, qos))

    def remove_peer(self, name: str) -> bool:
        return name == "[::1]:7"

    def ask_algorithm(self, request: Mapping[str, object]) -> Mapping[str, object]:
        return request


def with_server(
    client: Callable[[Address, SomeNode], T],
    *,
    request_timeout_s: float = DEADLINE_S,
    hosts: Sequence[str] = (),
) -> T:
    """Run a blocking client in a thread while the server serves in this loop."""

    async def serve() -> T:
        node = SomeNode()
        server = AdminServer(
            node, Address("127.0.0.1", 0), hosts=hosts, request_timeout_s=request_timeout_s
        )
        await server.start()
        try:
            call = asyncio.to_thread(client, Address(*server.bound), node)
            return await asyncio.wait_for(call, DEADLINE_S)
        finally:
            await server.stop()

    return asyncio.run(serve())


def raw(address: Address, data: bytes) -> bytes:
    """Send `data` and read to the end."""
    received = b""
    with socket.create_connection((address.host, address.port), timeout=DEADLINE_S) as peer:
        peer.sendall(data)
        while chunk := peer.recv(65536):
            received += chunk
    return received


def read_to_end(peer: socket.socket) -> int:
    """How many bytes come before the end, or before a reset."""
    received = 0
    try:
        while chunk := peer.recv(1 << 20):
            received += len(chunk)
    except ConnectionError:
        pass
    return received


def test_ask_and_fetch_status() -> None:
    def client(address: Address, node: SomeNode) -> None:
        assert ask(address, "/healthz") == (200, b"ok\n")
        assert fetch_status(address) == {"node": {"id": "edge-1"}}
        assert ask(address, "/nope")[0] == 404

    with_server(client)


def test_peers_are_added_and_removed() -> None:
    def client(address: Address, node: SomeNode) -> None:
        add_peer(address, "192.0.2.7:7883", 2, 0)
        assert node.added == [("192.0.2.7:7883", 2, 0)]
        with pytest.raises(AdminError, match="no port to connect to"):
            add_peer(address, "192.0.2.7:0")
        remove_peer(address, "[::1]:7")
        with pytest.raises(AdminError, match=r"'edge-9'; there is none"):
            remove_peer(address, "edge-9")
        assert fetch_peers(address) == {"peers": [], "rings": []}

    with_server(client)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Host: 127.0.0.1\r\nContent-Type: application/json", b"202"),
        (b"Host: 127.0.0.1\r\nContent-Type: text/plain", b"415"),
        (b"Host: 127.0.0.1", b"415"),
        (b"Host: rebound.example\r\nContent-Type: application/json", b"421"),
        (
            b"Host: 127.0.0.1\r\nContent-Type: application/json\r\nOrigin: http://page.example",
            b"403",
        ),
    ],
)
def test_a_web_page_cannot_add_a_peer(headers: bytes, status: bytes) -> None:
    body = b'{"address": "192.0.2.7:7883"}'

    def client(address: Address, node: SomeNode) -> bytes:
        head = b"POST /api/peers HTTP/1.1\r\nConnection: close\r\n" + headers
        length = f"\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        received = raw(address, head + length + body)
        assert bool(node.added) == (status == b"202")
        return received

    assert with_server(client).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/api/status", "/api/peers"])
def test_a_name_that_somebody_made_point_here_is_not_answered(path: str) -> None:
    """DNS rebinding: a page lets its own name point to this machine and reads what is here."""

    def client(address: Address, node: SomeNode) -> None:
        rebound = f"GET {path} HTTP/1.1\r\nConnection: close\r\nHost: rebound.example:9883\r\n\r\n"
        refused = raw(address, rebound.encode())
        assert refused.startswith(b"HTTP/1.1 421")
        assert b"edge-1" not in refused
        assert b"admin_hosts" in refused
        called = rebound.replace("rebound.example", "Node-1.Example")
        assert raw(address, called.encode()).startswith(b"HTTP/1.1 200")

    with_server(client, hosts=["node-1.example"])


def test_who_asks_by_another_name_is_told_what_would_be_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **named: resolve("127.0.0.1", *more, **named)
    )

    def client(address: Address, node: SomeNode) -> None:
        with pytest.raises(AdminError, match=r"add the name to admin_hosts in \[listen\]"):
            fetch_status(Address("node-1.example", address.port))

    with_server(client)


def test_one_connection_serves_many_requests_and_head_has_no_body() -> None:
    def client(address: Address, node: SomeNode) -> None:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=DEADLINE_S)
        connection.connect()
        port = connection.sock.getsockname()[1]
        for method, length in (("GET", 3), ("HEAD", 0), ("POST", 15), ("GET", 3)):
            connection.request(method, "/healthz", body=b"x" * 100 if method == "POST" else None)
            response = connection.getresponse()
            assert len(response.read()) == length
            assert connection.sock.getsockname()[1] == port
        connection.close()

    with_server(client)


@pytest.mark.parametrize(
    ("request_bytes", "status_line"),
    [
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),  # no Host
        (
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
            b"HTTP/1.1 431",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999999\r\n\r\n"
            + b"x" * 90_000,
            b"HTTP/1.1 413",
        ),
    ],
)
def test_bad_requests_are_answered_and_closed(request_bytes: bytes, status_line: bytes) -> None:
    def client(address: Address, node: SomeNode) -> bytes:
        received = raw(address, request_bytes)
        assert ask(address, "/healthz")[0] == 200
        return received

    received = with_server(client)
    assert received.startswith(status_line)
    assert b"Connection: close" in received


def test_a_request_that_never_ends_is_closed() -> None:
    def client(address: Address, node: SomeNode) -> bytes:
        return raw(address, b"GET / HTTP/1.1\r\nHost:")

    assert with_server(client, request_timeout_s=0.05) == b""


def test_a_fault_of_the_node_is_a_500_and_the_next_request_works() -> None:
    def client(address: Address, node: SomeNode) -> None:
        node.answer = RuntimeError("broken")
        assert ask(address, "/api/status")[0] == 500
        assert ask(address, "/metrics")[0] == 500
        with pytest.raises(AdminError, match="answered 500"):
            fetch_status(address)
        node.answer = {}
        assert ask(address, "/api/status") == (200, b"{}\n")

    with_server(client)


@contextmanager
def slow_connections(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have begun a request and do not go on."""
    with ExitStack() as opened:
        slow = [
            opened.enter_context(socket.create_connection(address, timeout=DEADLINE_S))
            for address in [(address.host, address.port)] * count
        ]
        for peer in slow:
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        yield slow


def closed(peer: socket.socket) -> bool:
    """Whether the server has closed it; it sends nothing else."""
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_health_is_answered_whatever_many_slow_connections_stand() -> None:
    def client(address: Address, node: SomeNode) -> None:
        with slow_connections(address, 4 * admin.MAX_CONNECTIONS) as slow:
            for _ in range(3):
                assert ask(address, "/healthz") == (200, b"ok\n")
            assert ask(address, "/metrics")[0] == 200
            standing = [peer for peer in slow if not closed(peer)]
            # The oldest made room, and one address does not take all of it.
            assert standing == slow[-len(standing) :]
            assert 0 < len(standing) <= admin.MAX_PER_ADDRESS

    with_server(client)


def test_other_addresses_keep_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """One address that opens very many closes its own, not those of others."""

    def client(address: Address, node: SomeNode) -> None:
        other = http.client.HTTPConnection(
            address.host, address.port, timeout=DEADLINE_S, source_address=("127.0.0.2", 0)
        )
        other.request("GET", "/healthz")
        assert other.getresponse().read() == b"ok\n"
        port = other.sock.getsockname()[1]
        with slow_connections(address, 2 * admin.MAX_CONNECTIONS):
            assert ask(address, "/healthz")[0] == 200
            other.request("GET", "/healthz")
            assert other.getresponse().read() == b"ok\n"
            assert other.sock.getsockname()[1] == port
        other.close()

    with_server(client)


def test_a_head_has_less_time_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "HEAD_TIMEOUT_S", 0.05)

    def client(address: Address, node: SomeNode) -> bytes:
        return raw(address, b"GET / HTTP/1.1\r\nHost:")

    assert with_server(client) == b""


def test_many_requests_at_once_take_one_turn_each() -> None:
    """Pipelined, on several connections: between two answers the loop does other things."""
    requests, connections = 40, 8

    async def serve() -> tuple[int, int]:
        node = SomeNode()
        server = AdminServer(node, Address("127.0.0.1", 0))
        await server.start()
        assert await asyncio.to_thread(ask, Address(*server.bound), "/healthz") == (200, b"ok\n")
        turn = 0
        turns: list[int] = []

        def answered() -> dict[str, Any]:
            turns.append(turn)
            return {}

        node.status = answered  # type: ignore[method-assign]
        one = b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with ExitStack() as opened:
            for _ in range(connections):
                peer = opened.enter_context(socket.create_connection(server.bound))
                peer.sendall(requests * one)
            async with asyncio.timeout(DEADLINE_S):
                while len(turns) < requests * connections:
                    await asyncio.sleep(0)
                    turn += 1
        await server.stop()
        return len(turns), len(set(turns))

    answers, turns = asyncio.run(serve())
    assert turns == answers


def test_a_large_answer_arrives_whole() -> None:
    def client(address: Address, node: SomeNode) -> int:
        node.answer = {"big": "x" * 8_000_000}
        return len(str(fetch_status(address)["big"]))

    assert with_server(client) == 8_000_000


def test_a_peer_that_does_not_read_is_cut_off() -> None:
    size = 30_000_000

    async def serve() -> int:
        node = SomeNode()
        node.answer = {"big": "x" * size}
        server = AdminServer(node, Address("127.0.0.1", 0), request_timeout_s=0.1)
        await server.start()
        peer = socket.create_connection(server.bound, timeout=DEADLINE_S)
        with peer:
            peer.sendall(b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            async with asyncio.timeout(DEADLINE_S):
                while server.connections == 0:  # noqa: ASYNC110 - it has no event for this
                    await asyncio.sleep(0.001)
                while server.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            received = await asyncio.to_thread(read_to_end, peer)
        await server.stop()
        return received

    assert asyncio.run(serve()) < size


def test_a_taken_address_names_the_key() -> None:
    async def start() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = Address(*taken.getsockname())
            with pytest.raises(OSError, match=rf"\[listen\] admin = {address}"):
                await AdminServer(SomeNode(), address).start()

    asyncio.run(start())


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address(*free.getsockname())
    with pytest.raises(AdminError, match="no node answers"):
        fetch_status(address)
