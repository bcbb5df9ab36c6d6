"""Sessions: one end of a byte stream, and the pair that a client's and a broker's make.

Whoever has the stream, the asyncio node or the simulator, calls `connection_made` with its `Wire`,
`data_received` with what comes, `pause_writing` and `resume_writing`, and exactly once
`connection_lost`, also after `close` or `abort` and never from within a call of ours: what an event
loop does for a protocol.

The interworking node keeps, for every local client, one session with that client and one with the
local broker; the two are *paired* (ILDM §2.2.1), and each follows the statuses of ILDM Fig. 5 (a):

    CLOSED ──connection made──▶ ESTABLISHED ──close begins──▶ TERMINATING ──gone──▶ CLOSED

Back-pressure is here: when one session of a pair cannot write any more, the other stops reading.
What a session may hold is therefore bounded by `buffer_bytes`, one read of the event loop and,
towards the broker, one incomplete packet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from isthmus.cooperation.api import SessionStatus
from isthmus.exchange.host import Cancellable

__all__ = ["Session", "SessionHost", "SessionStatus", "Wire", "remote_name"]


class SessionHost(Protocol):
    """What sessions need of their surroundings: the asyncio node, or the simulator."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def clock(self) -> float:
        """The same, as fine as can be: to tell how long something takes."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable: ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """In the next turn."""
        ...

    def connect_broker(
        self, session: Session, failed: Callable[[str], None], broker: str = ""
    ) -> None:
        """Connect `session` with the local broker, or say later, never at once, why not.

        Of several, with the one that is called `broker`.
        """
        ...

    def silent_s(self, wire: Wire) -> float | None:
        """How long ago the machine at the other end was heard last; None if nobody can tell.

        The machine, not who runs there: it answers for one that hangs.
        """
        ...

    def log(self, level: str, event: str, **fields: object) -> None: ...


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


class Session:
    """One end of a pair."""

    __slots__ = (
        "full",
        "host",
        "linger_s",
        "linger_timer",
        "paired",
        "read_holds",
        "status",
        "wire",
    )

    wire: Wire

    def __init__(self, host: SessionHost, linger_s: float) -> None:
        self.host = host
        self.status = SessionStatus.CLOSED
        self.paired: Session | None = None
        self.full = False
        """It cannot write any more."""
        self.read_holds = 0
        self.linger_s = linger_s
        self.linger_timer: Cancellable | None = None

    @abstractmethod
    def connection_made(self, wire: Wire) -> None: ...

    @abstractmethod
    def data_received(self, data: bytes) -> None: ...

    @abstractmethod
    def connection_lost(self, exc: Exception | None) -> None: ...

    def eof_received(self) -> None:
        """The other end says no more: the connection is closed after what is to be written."""

    def established(self, wire: Wire, buffer_bytes: int) -> None:
        """The connection stands; to be called first in `connection_made`."""
        self.wire = wire
        self.status = SessionStatus.ESTABLISHED
        wire.set_write_buffer_limits(buffer_bytes)

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

    def pair_with(self, other: Session) -> None:
        """From now on `other` reads only as long as this session can write."""
        self.paired = other
        if self.full:
            other.hold_reading()

    def pause_writing(self) -> None:
        self.full = True
        if self.paired is not None:
            self.paired.hold_reading()

    def resume_writing(self) -> None:
        if self.full:
            self.full = False
            if self.paired is not None:
                self.paired.release_reading()

    def close(self) -> None:
        """Write out what is buffered, then close; cut it off if the other end does not read."""
        if self.status is not SessionStatus.ESTABLISHED:
            return
        self.status = SessionStatus.TERMINATING
        # One that has stopped reading would keep the rest for ever.
        if self.wire.get_write_buffer_size():
            self.linger_timer = self.host.call_later(self.linger_s, self.wire.abort)
        self.wire.close()

    def gone(self) -> None:
        """The connection is no more; to be called once, from `connection_lost`."""
        self.status = SessionStatus.CLOSED
        if self.linger_timer is not None:
            self.linger_timer.cancel()
            self.linger_timer = None


def remote_name(peername: object) -> str:
    """A socket's other end, for people."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[0], peername[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername)
