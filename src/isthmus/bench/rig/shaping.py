"""Links of any delay and bandwidth: a TCP proxy that holds bytes back.

    node ──▶ proxy ═══ delay, bandwidth, each direction by itself ═══▶ the other node's listener

For machines whose kernel has no netem, or that must not be touched.  :class:`DelayLine` is one
direction without any I/O; :func:`listen` is the proxy around it, run as a process of its own by
:mod:`isthmus.bench.rig.shaping_main`.

Invariants:

* a byte leaves no earlier than `delay_s` after it came, and no byte later than the one behind it;
* n bytes take at least n / `bytes_per_s`;
* an end of file travels like a byte, so each direction can end by itself, and what was sent before
  a connection ended still arrives;
* at most :attr:`Shape.queue_bytes` wait in each direction of a connection (and one read of at most
  256 KiB more); then the proxy stops reading, and TCP holds the sender back.

Departures from a real line: connecting itself takes no time, and bytes come up to about a
millisecond late, which is the event loop's resolution.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import cast

from isthmus.config.addresses import Address

__all__ = ["DelayLine", "Shape", "listen"]

NS = 1_000_000_000
QUEUED_S = 0.1  # what a narrow line keeps besides what is under way
LEAST_QUEUE_BYTES = 64 * 1024
MOST_QUEUE_BYTES = 16 * 1024 * 1024
NARROW_SOCKET_BYTES = 64 * 1024  # else the kernel would queue megabytes before a narrow line
PIECE_NS = 1_000_000  # of a narrow line's bytes, as many as pass in this time leave at once


@dataclass(frozen=True, slots=True)
class Shape:
    """What a line does to each direction."""

    delay_s: float = 0.0
    bytes_per_s: int | None = None

    @property
    def queue_bytes(self) -> int:
        """How much may be under way or wait, in one direction of one connection."""
        if self.bytes_per_s is None:
            return MOST_QUEUE_BYTES
        under_way = int(self.bytes_per_s * (self.delay_s + QUEUED_S))
        return min(max(under_way, LEAST_QUEUE_BYTES), MOST_QUEUE_BYTES)


@dataclass(slots=True)
class _Stretch:
    """Bytes that came together; none: the end of file."""

    begin_ns: int
    """When the first of them gets onto the line."""
    data: memoryview
    gone: int = 0


class DelayLine:
    """Bytes under way in one direction: `push` puts them in, `take` lets out those that are due."""

    def __init__(self, shape: Shape) -> None:
        self.queued_bytes = 0
        self.ended = False
        """Whether the end of file has come out."""
        self._delay_ns = round(shape.delay_s * NS)
        self._bytes_per_s = shape.bytes_per_s
        self._stretches: deque[_Stretch] = deque()
        self._free_ns = 0  # when the line has taken in all that came

    def push(self, now_ns: int, data: bytes) -> None:
        """Bytes come in; none of them are the end of file."""
        begin_ns = max(now_ns, self._free_ns)
        self._stretches.append(_Stretch(begin_ns, memoryview(data)))
        self.queued_bytes += len(data)
        self._free_ns = begin_ns + self._passing_ns(len(data))

    def take(self, now_ns: int) -> memoryview | None:
        """The next bytes that are due; None if there are none now."""
        if not self._stretches:
            return None
        head = self._stretches[0]
        since_ns = now_ns - self._delay_ns - head.begin_ns
        if since_ns < 0:
            return None
        due = len(head.data)
        if self._bytes_per_s is not None:
            due = min(due, since_ns * self._bytes_per_s // NS)
        if due == len(head.data):
            self._stretches.popleft()
            self.ended = due == 0
        data = head.data[head.gone : due]
        head.gone = due
        self.queued_bytes -= len(data)
        return data or None

    def next_ns(self) -> int | None:
        """When it is worth asking again; None: when something has come in."""
        if not self._stretches:
            return None
        head = self._stretches[0]
        wanted = len(head.data)
        if self._bytes_per_s is not None:
            piece = max(1, self._bytes_per_s * PIECE_NS // NS)
            wanted = min(wanted, head.gone + piece)
        return head.begin_ns + self._delay_ns + self._passing_ns(wanted)

    def _passing_ns(self, count: int) -> int:
        if self._bytes_per_s is None:
            return 0
        return -(-count * NS // self._bytes_per_s)


class _Direction:
    """What `source` receives goes to `sink`, by way of a line."""

    def __init__(self, shape: Shape, source: _End, sink: _End) -> None:
        self._loop = asyncio.get_running_loop()
        self._line = DelayLine(shape)
        self._limit_bytes = shape.queue_bytes
        self._source = source
        self._sink = sink
        self._timer: asyncio.TimerHandle | None = None
        self._holding = False
        self._ending = False  # the end of file is in the line
        self.ended = False  # and has come out of it

    def arrived(self, data: bytes) -> None:
        """Bytes from the source; none of them are its end of file."""
        if self._ending or self._sink.lost:
            return
        self._ending = not data
        self._line.push(time.monotonic_ns(), data)
        if self._timer is None:
            self.pump()
        else:
            self._hold_source()

    def source_lost(self) -> None:
        """Nothing more will come; what has come still goes out."""
        if self.ended:
            self._close()
        self.arrived(b"")

    def sink_lost(self) -> None:
        """Nothing more can go out."""
        if self._timer is not None:
            self._timer.cancel()

    def pump(self) -> None:
        """Let out what is due, as far as the sink takes it, and come back for the rest."""
        now_ns = time.monotonic_ns()
        while not self._sink.full and (data := self._line.take(now_ns)) is not None:
            self._sink.write(data)
        if self._line.ended and not self.ended:
            self.ended = True
            self._close()
            return
        self._hold_source()
        due_ns = self._line.next_ns()
        if due_ns is not None and not self._sink.full and self._timer is None:
            # In whole milliseconds, as uvloop's timers are: one that came early is set again.
            delay_ms = max(1, math.ceil((due_ns - now_ns) / 1_000_000))
            self._timer = self._loop.call_later(delay_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        self.pump()

    def _close(self) -> None:
        """This direction is over; if the other is too, so is the connection."""
        if self._source.lost or self._sink.outgoing.ended:
            self._sink.close()
            self._source.close()
        else:
            self._sink.write_eof()

    def _hold_source(self) -> None:
        hold = self._line.queued_bytes > self._limit_bytes
        if hold != self._holding:
            self._holding = hold
            self._source.hold(hold)


class _End(asyncio.Protocol):
    """One of the two ends of a connection through the proxy."""

    outgoing: _Direction
    """From this end to the other."""
    incoming: _Direction

    def __init__(self, shape: Shape) -> None:
        self.full = True  # until it is connected
        self.lost = False
        self._shape = shape
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._shape.bytes_per_s is not None:
            sock: socket.socket = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_SOCKET_BYTES)
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        self.outgoing.arrived(data)

    def eof_received(self) -> bool:
        self.outgoing.arrived(b"")
        return True  # it may still be written to

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.incoming.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.give_up()

    def give_up(self) -> None:
        """It is gone, or could not be reached."""
        self.lost = self.full = True
        self.incoming.sink_lost()
        self.outgoing.source_lost()

    def hold(self, hold: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if hold:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def write(self, data: memoryview) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def listen(shape: Shape, connect: Address, host: str = "127.0.0.1") -> asyncio.Server:
    """A proxy on a free port of `host`; each connection to it becomes one to `connect`."""
    loop = asyncio.get_running_loop()
    dialing: set[asyncio.Task[None]] = set()

    async def dial(far: _End) -> None:
        try:
            await loop.create_connection(lambda: far, connect.host, connect.port)
        except OSError:  # nobody there: the node that connected to us sees it close and tries again
            far.give_up()

    def accept() -> _End:
        near, far = _End(shape), _End(shape)
        near.outgoing = far.incoming = _Direction(shape, near, far)
        far.outgoing = near.incoming = _Direction(shape, far, near)
        task = loop.create_task(dial(far))
        dialing.add(task)
        task.add_done_callback(dialing.discard)
        return near

    return await loop.create_server(accept, host, 0)
