"""The exchange's surroundings in the simulator: one object per life of a node.

When the life ends, by a stop or a crash, its timers never fire and nothing it asked for is
answered; the next life is another `SimHost` with the same disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from isthmus.exchange.exchange import Exchange
from isthmus.exchange.host import Cancellable, Channel
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.traffic.message import Message
from isthmus.sim.broker import SimBroker
from isthmus.sim.disk import Disk
from isthmus.sim.engine import Engine
from isthmus.sim.network import Network
from isthmus.sim.trace import Trace

__all__ = ["SimHost"]

EPOCH_MS = 1_700_000_000_000
"""Where the virtual wall clock begins."""


class SimRewrite:
    """`isthmus.exchange.host.StateRewrite`: nothing of it is kept before it is whole."""

    def __init__(self, save: Callable[[bytes], None]) -> None:
        self._save = save
        self._written = bytearray()

    def write(self, piece: bytes) -> None:
        self._written += piece

    @property
    def waiting_bytes(self) -> int:
        return 0

    def commit(self) -> None:
        self._save(bytes(self._written))


class SimHost:
    """`isthmus.exchange.host.Host` and `isthmus.sim.network.Endpoint` for one life of a node."""

    exchange: Exchange

    def __init__(
        self,
        name: str,
        life: int,
        *,
        engine: Engine,
        network: Network,
        broker: SimBroker,
        trace: Trace,
        disk: Disk | None,
        clock_ahead_ms: Callable[[], int],
    ) -> None:
        self.name = name
        """Of its machine; what the node calls itself is its exchange's."""
        self.alive = True
        self.random: random.Random = engine.random_for(f"{name}/{life}")
        self._engine = engine
        self._network = network
        self._broker = broker
        self._trace = trace
        self._disk = disk
        self._clock_ahead_ms = clock_ahead_ms
        self._woken = False

    # ---- clock, timers -------------------------------------------------------------------

    def now(self) -> float:
        return self._engine.now_s

    def wall_ms(self) -> int:
        return EPOCH_MS + self._clock_ahead_ms() + int(self._engine.now_s * 1000)

    def token_bytes(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        return self._engine.call_later(delay_s, lambda: callback() if self.alive else None)

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._engine.call_later(0.0, self._flush)

    def _flush(self) -> None:
        self._woken = False
        if self.alive:
            self.exchange.flush()

    # ---- connections ---------------------------------------------------------------------

    def dial(
        self, address: str, opened: Callable[[Channel], Connection], failed: Callable[[str], None]
    ) -> None:
        self._network.dial(self, address, opened, failed)

    def accepted(self, channel: Channel) -> Connection:
        return self.exchange.links.accepted(channel)

    def received(self, connection: Connection, data: bytes) -> None:
        self.exchange.links.received(connection, data)

    def lost(self, connection: Connection, cause: str) -> None:
        self.exchange.links.lost(connection, cause)

    # ---- the broker, storage, the log ----------------------------------------------------

    def neighbor_joined(self, key: str) -> None:
        """The broker's side has no session of its own to open here."""

    def neighbor_left(self, key: str) -> None:
        """Nor to close."""

    def inject(self, message: Message, key: str, done: Callable[[], None] | None) -> bool:
        return self._broker.inject(self, message, key, done)

    def give_up_injected(self, key: str, size: int) -> int:
        return self._broker.give_up(self, key, size)

    def inject_plain(self, topic: bytes, payload: bytes, key: str) -> bool:
        return self.inject(Message(topic, payload), key, None)

    def ask_retained(
        self, topics: Sequence[bytes], answer: Callable[[Mapping[bytes, bytes | None] | None], None]
    ) -> None:
        self._broker.ask_retained(self, topics, answer)

    @property
    def keeps_state(self) -> bool:
        return self._disk is not None

    def load_state(self, name: str) -> bytes | None:
        return None if self._disk is None else self._disk.load(name)

    def save_state(self, name: str, state: bytes) -> None:
        if self._disk is not None:
            self._disk.save(name, state, self._engine.now_s)

    def append_state(self, name: str, more: bytes) -> None:
        if self._disk is not None:
            self._disk.append(name, more, self._engine.now_s)

    def rewrite_state(self, name: str) -> SimRewrite:
        return SimRewrite(lambda state: self.save_state(name, state))

    def log(self, level: str, event: str, **fields: object) -> None:
        if event.endswith("let go"):
            self._trace.let_go(self.name, str(fields["neighbor"]))
        if event == "link up":
            self._trace.linked(self.name, str(fields["neighbor"]))
        if event == "bad bytes on a link":
            self._trace.accuse(self.name, fields)
        self._trace.note(self.name, f"{level}: {event}", **fields)
