"""Sessions: one end of a connection, and the pair that a client's and a broker's make.

The interworking node keeps, for every local client, one session with that client and one with the
local broker; the two are *paired* (ILDM §2.2.1), and each follows the statuses of ILDM Fig. 5 (a):

    CLOSED ──connection made──▶ ESTABLISHED ──close begins──▶ TERMINATING ──gone──▶ CLOSED

Back-pressure is here: when one session of a pair cannot write any more, the other stops reading.
What a session may hold is therefore bounded by `buffer_bytes`, one read of the event loop and,
towards the broker, one incomplete packet.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from isthmus.cooperation.api import SessionStatus

__all__ = ["Session", "SessionStatus", "Wire", "peer_name"]

KEEPALIVE_IDLE_S = 60
KEEPALIVE_INTERVAL_S = 15
KEEPALIVE_PROBES = 4


class Wire(Protocol):
    """What a session needs of a transport: TCP's and TLS's have it, WebSocket's adapter too."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def get_extra_info(self, name: str, default: object = None) -> object: ...


class Session(asyncio.Protocol):
    """One end of a pair."""

    __slots__ = ("linger_s", "linger_timer", "paired", "read_holds", "status", "wire")

    wire: Wire

    def __init__(self, linger_s: float) -> None:
        self.status = SessionStatus.CLOSED
        self.paired: Session | None = None
        self.read_holds = 0
        self.linger_s = linger_s
        self.linger_timer: asyncio.TimerHandle | None = None

    def established(self, transport: asyncio.BaseTransport, buffer_bytes: int) -> None:
        """The connection stands; to be called first in `connection_made`."""
        self.wire = transport  # type: ignore[assignment]
        self.status = SessionStatus.ESTABLISHED
        self.wire.set_write_buffer_limits(buffer_bytes)
        _probe_when_idle(self.wire.get_extra_info("socket"))

    def hold_reading(self) -> None:
        """Stop reading until `release_reading` was called as often as this."""
        self.read_holds += 1
        if self.read_holds == 1 and self._readable():
            self.wire.pause_reading()

    def release_reading(self) -> None:
        self.read_holds -= 1
        if self.read_holds == 0 and self._readable():
            self.wire.resume_reading()

    def _readable(self) -> bool:
        # A wire that saw the end of the stream is closing before `connection_lost` tells us.
        return self.status is SessionStatus.ESTABLISHED and not self.wire.is_closing()

    def pause_writing(self) -> None:
        if self.paired is not None:
            self.paired.hold_reading()

    def resume_writing(self) -> None:
        if self.paired is not None:
            self.paired.release_reading()

    def close(self) -> None:
        """Write out what is buffered, then close; cut it off if the peer does not read."""
        if self.status is not SessionStatus.ESTABLISHED:
            return
        self.status = SessionStatus.TERMINATING
        # A peer that has stopped reading would keep the rest for ever.
        if self.wire.get_write_buffer_size():
            self.linger_timer = asyncio.get_running_loop().call_later(
                self.linger_s, self.wire.abort
            )
        self.wire.close()

    def gone(self) -> None:
        """The connection is no more; to be called once, from `connection_lost`."""
        self.status = SessionStatus.CLOSED
        if self.linger_timer is not None:
            self.linger_timer.cancel()
            self.linger_timer = None


def _probe_when_idle(sock: object) -> None:
    """Let the kernel find peers that vanished without a FIN; MQTT's keep-alive may be off."""
    fileno = getattr(sock, "fileno", None)
    if fileno is None:
        return
    # The event loop's own socket object does not let options be set.
    view = socket.socket(fileno=fileno())
    try:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        view.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        view.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        view.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    finally:
        view.detach()


def peer_name(peername: object) -> str:
    """A socket's peer for people."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[0], peername[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername)
