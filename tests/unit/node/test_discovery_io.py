"""Where announcements go: seeds that cannot be found, or reached, keep nobody else from hearing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from isthmus.config.files import DiscoveryTable
from isthmus.node import discovery_io
from isthmus.node.discovery_io import DiscoveryIo

Found = list[tuple[int, int, int, str, tuple[str, int]]]


def known(host: str, port: int = 7885) -> Found:
    return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, port))]


class Stage:
    """The seeds of one node, and who answers for their names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seeds: str) -> None:
        self.io = DiscoveryIo(DiscoveryTable(seeds=seeds), lambda _data, _remote: None)  # type: ignore[arg-type]
        self.names: dict[str, Callable[[], Awaitable[Found]]] = {}
        self.told: list[str] = []
        self.sent: list[object] = []
        monkeypatch.setattr(discovery_io, "log", self)
        monkeypatch.setattr(discovery_io, "RESOLVE_S", 0.001)
        monkeypatch.setattr(discovery_io, "_udp", self._udp)
        self.failing: dict[str, OSError] = {}

    def warning(self, event: str, cause: str) -> None:
        self.told.append(cause)

    def _udp(self, family: int) -> Any:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return self

    def sendto(self, datagram: bytes, address: tuple[str, int]) -> None:
        if error := self.failing.get(address[0]):
            raise error
        self.sent.append(address[0])

    def close(self) -> None:
        """As a socket."""

    async def resolve(self, host: str, port: int, *, type: int) -> Found:
        return await self.names[host]()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5.0):
            while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0)

    def to(self) -> list[object]:
        self.sent.clear()
        self.io.send(b"x")
        return sorted(self.sent, key=str)

    def run(self, scene: Callable[[], Awaitable[None]]) -> None:
        async def play() -> None:
            asyncio.get_running_loop().getaddrinfo = self.resolve  # type: ignore[assignment, method-assign]
            await self.io.start()
            try:
                await scene()
            finally:
                self.io.close()

        asyncio.run(play())


def answering(found: Found | Exception) -> Callable[[], Awaitable[Found]]:
    async def answer() -> Found:
        if isinstance(found, Exception):
            raise found
        return found

    return answer


async def never() -> Found:
    await asyncio.Event().wait()
    return []


def test_a_name_that_nobody_answers_for_delays_no_other_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, "slow.example:1", "192.0.2.1:1", "slow-too.example:1", "good:1")
    stage.names = {
        "slow.example": never,
        "slow-too.example": never,
        "192.0.2.1": answering(known("192.0.2.1")),
        "good": answering(known("192.0.2.2")),
    }

    async def scene() -> None:
        await stage.until(lambda: stage.to() == ["192.0.2.1", "192.0.2.2"])

    stage.run(scene)


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(-2, "Name or service not known"),
        UnicodeError("label empty or too long"),
    ],
)
def test_a_name_that_is_known_no_longer_keeps_its_last_addresses(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A name server that is away must not silence who was heard before."""
    stage = Stage(monkeypatch, "good:1", "..bad:1")
    stage.names = {"good": answering(known("192.0.2.2")), "..bad": answering(error)}

    async def scene() -> None:
        await stage.until(lambda: stage.to() == ["192.0.2.2"])
        stage.names["good"] = answering(error)
        await stage.until(lambda: len(stage.told) == 2)
        assert stage.to() == ["192.0.2.2"]
        stage.names["good"] = answering(known("192.0.2.3"))
        await stage.until(lambda: stage.to() == ["192.0.2.3"])
        assert len(stage.told) == 2, "told once"

    stage.run(scene)


def test_addresses_that_cannot_be_reached_are_told_once_and_stop_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    six = [(socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("2001:db8::1", 1))]
    stage = Stage(monkeypatch, "a:1", "b:1", "six:1", "good:1")
    stage.names = {
        "a": answering(known("192.0.2.1")),
        "b": answering(known("192.0.2.2")),
        "six": answering(six),  # type: ignore[arg-type]
        "good": answering(known("192.0.2.3")),
    }
    for host in ("192.0.2.1", "192.0.2.2"):
        stage.failing[host] = OSError(101, "Network is unreachable")

    async def scene() -> None:
        await stage.until(lambda: len(stage.io._seeds) == 4)
        for _ in range(20):
            assert stage.to() == ["192.0.2.3"]
        assert sorted(stage.told) == [
            "192.0.2.1:7885: Network is unreachable",
            "192.0.2.2:7885: Network is unreachable",
            "[2001:db8::1]:1: Address family not supported by protocol",
        ]

    stage.run(scene)
