"""Links of any delay and bandwidth: a TCP proxy in front of each node's link listener.

    node a ──▶ proxy of c ═══ the line a ─▶ c, and back ═══▶ node c's listener
    node b ──▶     "      ═══ the line b ─▶ c, and back ═══▶      "

For machines whose kernel has no netem, or that must not be touched.  The proxy's address is the
one that the node advertises, so whoever dials it comes this way: because it is configured to, found
the node, or has an algorithm that wants the link.  Who calls is told by the link's greeting, a
CONNECT with the node's id (``docs/reference/link-wire-format.md``); it is believed, since all this
is one machine.  A process of its own runs it, :mod:`isthmus.bench.rig.shaping_main`.

Invariants:

* each connection is on the lines of its two nodes (:mod:`isthmus.bench.rig.lines`);
* nothing is let through before it is known who calls.  It is, with the default shape, nobody of the
  rig: if what comes first is no greeting or longer than `GREETING_BYTES`, if the node that was
  called speaks first, or after `GREETING_S`;
* on a line that is cut nothing passes, ends of file neither: who closes, or is killed, is not heard
  of until it is whole again;
* each direction can end by itself, and what was sent before a connection ended still arrives;
* at most :attr:`Shape.queue_bytes` wait in each direction of a connection (and one read of at most
  256 KiB more); then the proxy stops reading, and TCP holds the sender back.  So it does when all
  connections of a narrow line together have more there than passes in 0.1 s.

Departures from a real line: connecting itself takes no time and is possible where a line is cut,
what a cut kept back comes at once when it is over, and bytes come up to about a
millisecond late, which is the event loop's resolution.  TLS hides who calls: such a link has the
default shape, and each of its connections a line to itself.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from typing import cast

from isthmus.bench.rig.lines import DelayLine, Line, Lines
from isthmus.config.addresses import Address
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.decoding import decode_connect
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.primitives import PacketType, ReadLimits

__all__ = ["caller", "listen"]

NARROW_SOCKET_BYTES = 64 * 1024  # else the kernel would queue megabytes before a narrow line
GREETING_BYTES = 8_192  # as the nodes themselves
GREETING_S = 5.0
NODE_CLIENT_ID = "$isthmus/"
NOBODY = ""
"""Who calls, if it is no node."""


def caller(said: bytes) -> str | None:
    """The id of the node that begins a connection with `said`; None while it cannot be known."""
    if said[:1] != bytes([PacketType.CONNECT << 4]):
        return NOBODY if said else None
    try:
        length = frame_length(said, 0)
        if length > GREETING_BYTES:
            return NOBODY
        if length == 0 or length > len(said):
            return None
        connect = decode_connect(said[:length], ReadLimits(property_bytes=GREETING_BYTES))
    except RemoteProtocolError:
        return NOBODY
    if not connect.client_id.startswith(NODE_CLIENT_ID):
        return NOBODY
    return connect.client_id.removeprefix(NODE_CLIENT_ID)


class _Direction:
    """What `source` receives goes to `sink`, by way of `line`."""

    def __init__(self, line: Line, source: _End, sink: _End) -> None:
        self._loop = asyncio.get_running_loop()
        self._line = line
        self._under_way = DelayLine(line)
        self._source = source
        self._sink = sink
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._holding = False
        self._ending = False  # the end of file is in the line
        self.narrow = line.shape.bytes_per_s is not None
        self.ended = False  # and has come out of it

    def arrived(self, data: bytes) -> None:
        """Bytes from the source; none of them are its end of file."""
        if self._ending or self._sink.lost:
            return
        self._ending = not data
        now_ns = time.monotonic_ns()
        self._under_way.push(now_ns, data)
        if self._timer is None:
            self.pump()
        else:
            self._hold_source(now_ns)
            self._come_back(now_ns)

    def source_lost(self) -> None:
        """Nothing more will come; what has come still goes out."""
        if self.ended:
            self._close()
        self.arrived(b"")

    def sink_lost(self) -> None:
        """Nothing more can go out."""
        self._cancel()
        self._line.waiting.discard(self.pump)

    def pump(self) -> None:
        """Let out what is due, as far as the sink takes it, and come back for the rest."""
        if self._line.cuts:
            self._line.waiting.add(self.pump)
            self._hold_source(time.monotonic_ns())
            return
        now_ns = time.monotonic_ns()
        while not self._sink.full and (data := self._under_way.take(now_ns)) is not None:
            self._sink.write(data)
        if self._under_way.ended and not self.ended:
            self.ended = True
            self._close()
            return
        self._hold_source(now_ns)
        self._come_back(now_ns)

    def _come_back(self, now_ns: int) -> None:
        """Be woken when there is something to do, unless the sink must take something first."""
        due_ns = self._under_way.next_ns()
        if due_ns is None or self._sink.full:
            return
        if self._holding and now_ns < self._line.room_ns < due_ns:
            due_ns = self._line.room_ns
        if self._timer is not None:
            if self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        # In whole milliseconds, as uvloop's timers are: one that came early is set again.
        delay_ms = max(1, math.ceil((due_ns - now_ns) / 1_000_000))
        self._timer = self._loop.call_later(delay_ms / 1000, self._due)
        self._timer_ns = due_ns

    def _due(self) -> None:
        self._timer = None
        self.pump()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        """This direction is over; if the other is too, so is the connection."""
        if self._source.lost or self._sink.outgoing.ended:
            self._sink.close()
            self._source.close()
        else:
            self._sink.write_eof()

    def _hold_source(self, now_ns: int) -> None:
        hold = not self._under_way.has_room(now_ns)
        if hold != self._holding:
            self._holding = hold
            self._source.hold(hold)


class _Call:
    """A connection to the proxy and the one that it became, until it is known who calls."""

    def __init__(self, lines: Lines, node: str) -> None:
        self.near, self.far = _End(self), _End(self)
        self._lines = lines
        self._node = node
        self._said = b""
        self._timer = asyncio.get_running_loop().call_later(GREETING_S, self.by, NOBODY)

    def heard(self, end: _End, data: bytes) -> None:
        """The first that comes, from either end; none: it is over."""
        if end is self.near and data:
            self._said += data
            name = caller(self._said)
            if name is not None:
                self.by(name)
            return
        self.by(NOBODY)
        end.outgoing.arrived(data)

    def by(self, name: str) -> None:
        """It is `name` who calls; what was said until now goes its way."""
        self._timer.cancel()
        there, back = self._lines.between(name, self._node)
        near, far = self.near, self.far
        near.outgoing = far.incoming = _Direction(there, near, far)
        far.outgoing = near.incoming = _Direction(back, far, near)
        for end in (near, far):
            end.call = None
            end.narrow()
        if self._said:
            near.outgoing.arrived(self._said)


class _End(asyncio.Protocol):
    """One of the two ends of a connection through the proxy."""

    outgoing: _Direction
    """From this end to the other."""
    incoming: _Direction

    def __init__(self, call: _Call) -> None:
        self.call: _Call | None = call
        """Until it is known who calls: there are no directions yet."""
        self.full = True  # until it is connected
        self.lost = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.narrow()
        self.resume_writing()

    def narrow(self) -> None:
        """Let the kernel keep little before a narrow line."""
        if self.call is None and self._transport is not None and self.outgoing.narrow:
            sock: socket.socket = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_SOCKET_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.call is not None:
            self.call.heard(self, data)
        else:
            self.outgoing.arrived(data)

    def eof_received(self) -> bool:
        self.data_received(b"")
        return True  # it may still be written to

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self.call is None:
            self.incoming.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.give_up()

    def give_up(self) -> None:
        """It is gone, or could not be reached."""
        self.lost = self.full = True
        if self.call is not None:
            self.call.by(NOBODY)
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


async def listen(
    lines: Lines, node: str, connect: Address, door: socket.socket | None = None
) -> asyncio.Server:
    """The proxy of `node`, at `door` or on a free port; connections become ones to `connect`."""
    loop = asyncio.get_running_loop()
    dialing: set[asyncio.Task[None]] = set()

    async def dial(far: _End) -> None:
        try:
            await loop.create_connection(lambda: far, connect.host, connect.port)
        except OSError:  # nobody there: the node that connected to us sees it close and tries again
            far.give_up()

    def accept() -> _End:
        call = _Call(lines, node)
        task = loop.create_task(dial(call.far))
        dialing.add(task)
        task.add_done_callback(dialing.discard)
        return call.near

    if door is not None:
        return await loop.create_server(accept, sock=door)
    return await loop.create_server(accept, "127.0.0.1", 0)
