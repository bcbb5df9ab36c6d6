"""Sessions without sockets: a host that is driven by hand, and wires in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from isthmus.exchange.session import Session, Wire
from isthmus.sim.engine import Engine, Timer

__all__ = ["HandHost", "MemoryWire"]


class HandHost:
    """A `SessionHost` on a virtual clock; whoever has it says what becomes of connections."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = Engine(0) if engine is None else engine
        self.clock: Callable[[], float] = lambda: self.engine.now_s
        self.opening: deque[tuple[Session, Callable[[str], None]]] = deque()
        """Connections to the broker that are to be made, and whom to tell if they are not."""
        self.machine_silent_s: float | None = None
        """How long the broker's machine is silent, if that is known."""
        self.logged: list[tuple[str, str]] = []
        self.log_fields: list[dict[str, object]] = []
        """Of each line what else it says."""

    def now(self) -> float:
        return self.engine.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self.engine.call_later(delay_s, callback)

    def call_soon(self, callback: Callable[[], None]) -> Timer:
        return self.engine.call_later(0.0, callback)

    def connect_broker(
        self, session: Session, failed: Callable[[str], None], broker: str = ""
    ) -> None:
        self.opening.append((session, failed))

    def silent_s(self, wire: Wire) -> float | None:
        return self.machine_silent_s

    def log(self, level: str, event: str, **fields: object) -> None:
        self.logged.append((level, event))
        self.log_fields.append(fields)

    def run(self, seconds: float = 0.0) -> None:
        """Everything that is due until then."""
        self.engine.run_until(self.engine.now_s + seconds)


class MemoryWire:
    """What a session has for a transport; the other end is the test."""

    def __init__(self, host: HandHost, session: Session, number: int = 1) -> None:
        self._host = host
        self._session = session
        self._number = number
        self._paused = False
        self._waiting: deque[bytes] = deque()
        self.written = bytearray()
        self.closing = False

    def write(self, data: bytes) -> None:
        if not self.closing:
            self.written += data

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._host.call_soon(lambda: self._session.connection_lost(None))

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._host.call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", self._number) if name == "peername" else default

    def feed(self, data: bytes) -> None:
        """The other end sends `data`; nothing is the end of the stream."""
        self._waiting.append(data)
        self._read()

    def _read(self) -> None:
        while self._waiting and not self._paused and not self.closing:
            if data := self._waiting.popleft():
                self._session.data_received(data)
            else:
                self.close()

    def taken(self) -> bytes:
        """What was written since it was asked for last."""
        data, self.written = bytes(self.written), bytearray()
        return data
