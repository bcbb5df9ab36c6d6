"""A TLS handshake counts as a client from its first moment, and makes room like one."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from isthmus.exchange.client.entrance import Entrance, Newcomer
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.relay import Relay
from isthmus.node.tls_door import ClientTlsDoor
from support.virtual_loop import MemoryTransport, Protocols, VirtualLoop, run_virtually, turns

CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


class House:
    """What of the relay a door sees."""

    def __init__(self) -> None:
        self.limits = ClientLimits(connect_timeout_s=7.0)
        self.entrance = Entrance()
        self.has_room = True

    def knocked(self, guest: Newcomer) -> bool:
        if self.has_room:
            self.entrance.enter(guest, 0.0, handshake=True)
        return self.has_room


class Client(asyncio.Protocol):
    """What comes after the handshake."""

    transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class Desk:
    """A door whose handshake ends when the test says so."""

    def __init__(self, loop: VirtualLoop) -> None:
        loop.dial = self._shake
        self.house = House()
        self.ends = asyncio.Event()
        self.fault: Exception | None = None
        self.wanted: dict[str, Any] = {}
        self.secure = MemoryTransport(loop)
        self.client = Client()
        self.door = ClientTlsDoor(cast(Relay, self.house), CONTEXT, lambda: self.client)
        self.sock, self.other = socket.socketpair()
        self.plain = MemoryTransport(loop, sock=self.sock)

    async def _shake(self, make: Protocols, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        await self.ends.wait()
        if self.fault is not None:
            raise self.fault
        make().connection_made(self.secure)

    @property
    def duplicate(self) -> socket.socket:
        found = self.wanted["sock"]
        assert isinstance(found, socket.socket)
        return found


def with_desk(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        desk = Desk(loop)
        try:
            await test(desk)
        finally:
            for sock in (desk.sock, desk.other, desk.wanted.get("sock")):
                if sock is not None:
                    sock.close()

    run_virtually(main)


def test_the_plain_connection_is_given_up_and_its_duplicate_shakes_hands() -> None:
    async def then(desk: Desk) -> None:
        desk.door.connection_made(desk.plain)
        assert desk.plain.ended == "abort"
        assert desk.house.entrance.handshakes == 1
        await turns()
        assert desk.wanted["ssl"] is CONTEXT
        assert desk.wanted["ssl_handshake_timeout"] == 7.0
        desk.sock.close()
        desk.other.sendall(b"hello")
        assert desk.duplicate.recv(5) == b"hello"

    with_desk(then)


def test_after_the_handshake_the_connection_is_a_clients() -> None:
    async def then(desk: Desk) -> None:
        desk.door.connection_made(desk.plain)
        desk.ends.set()
        await turns()
        assert desk.client.transport is desk.secure
        assert desk.secure.get_protocol() is desk.client
        assert not desk.secure.is_closing()
        assert desk.house.entrance.handshakes == 0

    with_desk(then)


@pytest.mark.parametrize("fault", [ssl.SSLError("no"), ConnectionResetError(), TimeoutError()])
def test_a_handshake_that_fails_leaves_nothing_behind(fault: Exception) -> None:
    async def then(desk: Desk) -> None:
        desk.fault = fault
        desk.door.connection_made(desk.plain)
        desk.ends.set()
        await turns()
        assert desk.client.transport is None
        assert desk.duplicate.fileno() == -1
        assert desk.house.entrance.handshakes == 0

    with_desk(then)


def test_without_room_there_is_no_handshake() -> None:
    async def then(desk: Desk) -> None:
        desk.house.has_room = False
        desk.door.connection_made(desk.plain)
        desk.door.cut_off()
        await turns()
        assert desk.plain.ended == "abort"
        assert desk.wanted == {}

    with_desk(then)


def test_a_handshake_can_be_cut_off_for_somebody_else() -> None:
    async def then(desk: Desk) -> None:
        desk.door.connection_made(desk.plain)
        await turns()
        assert desk.house.entrance.make_room(1_000.0)
        await turns()
        assert desk.duplicate.fileno() == -1
        assert desk.house.entrance.handshakes == 0
        desk.ends.set()
        await turns()
        assert desk.client.transport is None

    with_desk(then)
