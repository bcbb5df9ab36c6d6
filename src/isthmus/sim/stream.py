"""Byte streams between clients, nodes and brokers, which stand close to each other.

Both ends are sessions as an event loop would drive them: what is written arrives in order, cut
anywhere, and the end of the stream after it.  An end that is killed says no more; what it had
written still arrives.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from isthmus.exchange.session import Wire
from isthmus.sim.engine import Engine

__all__ = ["StreamEnd", "StreamProtocol", "open_stream"]

RECHUNK = 0.1
"""How often a chunk is cut in two on its way."""

_PING_BYTES = frozenset((0xC0, 0xD0, 0x00))
_FIN = b""


class StreamProtocol(Protocol):
    """Who is at an end: see `isthmus.exchange.session.Session`."""

    def connection_made(self, wire: Wire) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


@dataclass(eq=False, repr=False, slots=True)
class StreamEnd:
    """One end; a `Wire`."""

    _engine: Engine
    _random: random.Random
    _arrival: Callable[[], float]
    """When what is written now is there; never earlier than what was before."""
    name: str
    """Of who is at the other end."""
    other: StreamEnd = field(init=False)
    protocol: StreamProtocol | None = None
    closing: bool = False
    _unread: deque[bytes] = field(default_factory=deque)
    _paused: bool = False
    _lost: bool = False

    def attach(self, protocol: StreamProtocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)

    # ---- a Wire --------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if data and not self.closing:
            self._send(data)

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._send(_FIN)
            self._engine.call_later(0.0, self._lose)

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._engine.call_later(0.0, self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What is written is taken by the network at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self.name, 0) if name == "peername" else default

    # ---- what happens to it --------------------------------------------------------------

    def kill(self) -> None:
        """Who was here is gone, and is told nothing."""
        self.protocol = None
        self._lost = True
        if not self.closing:
            self.closing = True
            self._send(_FIN)

    def _send(self, data: bytes) -> None:
        self._engine.call_at(self._arrival(), partial(self.other._take, data))

    def _take(self, data: bytes) -> None:
        if not _PING_BYTES.issuperset(data) or data == _FIN:
            self._engine.activity()
        if not self.closing:
            self._unread.append(data)
            self._read()

    def _read(self) -> None:
        while self._unread and not self._paused and not self.closing:
            data = self._unread.popleft()
            if data == _FIN:
                self.closing = True
                self._lose()
                return
            if len(data) > 1 and self._random.random() < RECHUNK:
                cut = self._random.randrange(1, len(data))
                self._unread.appendleft(data[cut:])
                data = data[:cut]
            if self.protocol is not None:
                self.protocol.data_received(data)

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._engine.activity()
            if self.protocol is not None:
                self.protocol.connection_lost(None)


def open_stream(
    engine: Engine,
    ends: tuple[StreamEnd, StreamEnd],
    delay_s: float,
    *,
    accept: Callable[[StreamEnd], StreamProtocol | None],
    opened: Callable[[StreamEnd], None],
    refused: Callable[[], None],
) -> None:
    """Connect two ends; one of `opened` and `refused` is called at the first one, later."""
    here, there = ends
    here.other, there.other = there, here

    def arrives() -> None:
        protocol = accept(there)
        if protocol is None:
            engine.call_later(delay_s, refused)
        else:
            engine.activity()
            there.attach(protocol)
            engine.call_later(delay_s, partial(opened, here))

    engine.call_later(delay_s, arrives)
