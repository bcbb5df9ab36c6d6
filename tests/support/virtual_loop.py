"""asyncio without waiting and without a network: a loop whose time is virtual, and transports."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

__all__ = [
    "Dial",
    "MemoryListener",
    "MemoryTransport",
    "Protocols",
    "VirtualLoop",
    "run_virtually",
    "turns",
]

T = TypeVar("T")
Protocols = Callable[[], asyncio.BaseProtocol]
Dial = Callable[[Protocols, dict[str, Any]], Awaitable[None]]


class _Selector(selectors.SelectSelector):
    """Waits for nothing; time goes on instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout:
            self.loop.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """When nothing is left to be done, time goes on to the next timer.

    Whoever connects is dealt with by `dial`, which is given what makes the protocol and all other
    arguments by name.  What listens is in `listening`.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.dial: Dial | None = None
        self.listening: list[MemoryListener] = []
        self.faults: list[dict[str, Any]] = []
        """What nobody has caught."""
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self.set_exception_handler(lambda _, context: self.faults.append(context))

    def time(self) -> float:
        return self.now_s

    @property
    def timers(self) -> int:
        """How many have not run out, and were not canceled."""
        return sum(not timer.cancelled() for timer in self._scheduled)  # type: ignore[attr-defined]

    async def create_connection(self, protocol_factory: Any, *address: Any, **more: Any) -> Any:
        assert self.dial is not None
        host, port = address
        await self.dial(protocol_factory, {"host": host, "port": port, **more})
        return MemoryTransport(self), None

    async def create_server(self, protocol_factory: Any, *address: Any, **more: Any) -> Any:
        self.listening.append(MemoryListener(self, protocol_factory, address))
        return self.listening[-1]

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **more: Any) -> Any:
        assert self.dial is not None
        await self.dial(protocol_factory, {"sock": sock, **more})
        return MemoryTransport(self), None


class MemoryListener:
    """What listens on an address that is none."""

    def __init__(self, loop: VirtualLoop, make: Protocols, address: tuple[Any, ...]) -> None:
        self._loop = loop
        self._make = make
        self.address = address
        self.sockets = [self]
        self.closed = False

    def getsockname(self) -> tuple[Any, ...]:
        return self.address

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        assert self.closed

    def accept(self, host: str = "127.0.0.1") -> MemoryTransport:
        """Somebody connects from `host`."""
        protocol = self._make()
        transport = MemoryTransport(self._loop, protocol, peername=(host, 4711))
        protocol.connection_made(transport)
        return transport


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main` with a loop of its own, in which no error may go uncaught."""

    async def inside() -> T:
        return await main(cast(VirtualLoop, asyncio.get_running_loop()))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(inside())
        assert cast(VirtualLoop, runner.get_loop()).faults == []
    return found


async def turns(count: int = 5) -> None:
    """Let everything happen that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


class MemoryTransport(asyncio.Transport):
    """What a protocol writes to; the other end is the test."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol | None = None,
        *,
        peername: tuple[str, int] = ("127.0.0.1", 4711),
        sock: object = None,
    ) -> None:
        super().__init__({"peername": peername, "socket": sock})
        self._loop = loop
        self._protocol = protocol
        self.written = bytearray()
        self.reading = True
        self.ended = ""
        """How the protocol ended it: ``close`` or ``abort``."""
        self.eof = False
        self.half_closes = True
        """TLS does not."""
        self.waiting_bytes = 0
        """What the network has not taken."""
        self.high: int | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def write(self, data: Any) -> None:
        assert not self.eof
        if not self.ended:
            self.written += data

    def can_write_eof(self) -> bool:
        return self.half_closes

    def write_eof(self) -> None:
        assert self.half_closes
        self.eof = True

    def close(self) -> None:
        self._end("close")

    def abort(self) -> None:
        self._end("abort")

    def _end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            if isinstance(self._protocol, asyncio.Protocol):
                self._loop.call_soon(self._protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return bool(self.ended)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def receive(self, data: bytes) -> None:
        """The other end has sent `data`."""
        cast(asyncio.Protocol, self.get_protocol()).data_received(data)

    def end_of_stream(self) -> None:
        """The other end says no more: what an event loop does then."""
        protocol = cast(asyncio.Protocol, self.get_protocol())
        if not protocol.eof_received():
            self.close()

    def taken(self) -> bytes:
        """What was written since it was asked for last."""
        data, self.written = bytes(self.written), bytearray()
        return data
