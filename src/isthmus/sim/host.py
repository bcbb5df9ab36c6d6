"""The exchange's surroundings in the simulator: one object per life of a node.

When the life ends, by a stop or a crash, its timers never fire and nothing it asked for is
answered; the next life is another `SimHost` with the same disk.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.cooperation.api import Resources
from isthmus.exchange.broker.of_several import AtBroker, OwnSessionsOfSeveral
from isthmus.exchange.broker.own_sessions import OwnSessions, own_client_id
from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.counters import Counters
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.relay import Relay, Unpaced
from isthmus.exchange.exchange import Exchange
from isthmus.exchange.host import Cancellable, Channel
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.session import Session, SessionHost, Wire
from isthmus.exchange.split.brokers import Brokers
from isthmus.exchange.traffic.message import Message
from isthmus.exchange.turns import SLICE_S, Turns
from isthmus.sim.broker import SimBroker
from isthmus.sim.disk import Disk
from isthmus.sim.stream import StreamEnd, open_stream

if TYPE_CHECKING:
    from isthmus.sim.node import SimNode

__all__ = ["SimHost"]

EPOCH_MS = 1_700_000_000_000
"""Where the virtual wall clock begins."""

DISK_S = (0.0, 0.0005, 0.02)
"""How long it takes to write or read something."""
BROKER_CONNECT_S = 0.001
"""A connection with the broker is made by its machine, however slow the broker is."""
LONG_SLICE = 0.01
"""How often a look at the clock finds that more than a slice has passed."""
LIMITS = ClientLimits(connect_timeout_s=60.0, broker_timeout_s=60.0)
"""Brokers here are slow at times, and clients are never silent."""


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
    """One life of a node, as the exchange, its sessions and the network see it.

    `isthmus.exchange.host.Host`, `isthmus.exchange.session.SessionHost` and
    `isthmus.sim.network.Endpoint`.
    """

    exchange: Exchange
    relay: Relay

    def __init__(self, node: SimNode, life: int) -> None:
        self.name = name = node.name
        """Of its machine; what the node calls itself is its exchange's."""
        self.alive = True
        self._node = node
        self._engine = engine = node.engine
        self._trace = node.fabric.trace
        self.random: random.Random = engine.random_for(f"{name}/{life}")
        self._disk = node.disk if node.state_dir else None
        self._woken = False
        self._ends: dict[StreamEnd, None] = {}
        """Its ends of the streams with clients and broker."""
        self._clock_random = engine.random_for(f"{name}/{life}/clock")
        self._worked_s = 0.0
        self._disk_s = 0.0
        self._disk_work: deque[Callable[[], object]] = deque()
        self._spool_random = engine.random_for(f"{name}/{life}/spool")
        self.own: OwnSessions | OwnSessionsOfSeveral
        if node.broker_settings is None:
            self.own = self._own_sessions(self)
        else:
            of = {
                each: self._own_sessions(AtBroker(self, self._brokers, each), each)
                for each in node.broker_settings.names
            }
            self.own = OwnSessionsOfSeveral(self, of, self._brokers)
        own = self.own
        self.take_from_broker, self.want = own.start, own.want
        self.stop_taking = own.stop_taking
        self.inject, self.inject_plain = own.inject, own.inject_plain
        self.give_up_injected, self.ask_retained = own.give_up_injected, own.ask_retained
        self.neighbor_joined, self.neighbor_left = own.neighbor_joined, own.neighbor_left
        self.set_broker_apart, self.publish_left = own.set_apart, own.publish_left

    def _own_sessions(self, host: SessionHost, broker: str = "") -> OwnSessions:
        return OwnSessions(
            host,
            self._node.node_id,
            broker=broker,
            exchange=lambda: self.exchange,
            login=lambda: (None, None),
            linger_s=1.0,
            set_aside=self._set_aside,
            shares=lambda: self.exchange.algorithm.topology == "any",
            takes=self._node.from_broker,
            keeps=self._node.state_dir,
        )

    def _brokers(self) -> Brokers:
        assert self.exchange.brokers is not None
        return self.exchange.brokers

    def join(self, exchange: Exchange) -> None:
        """The exchange of this life, and the clients' way to it."""
        self.exchange = exchange
        if isinstance(self.own, OwnSessionsOfSeveral):
            self._brokers().join(self, self.own.greeting, self.own.of)
        self.relay = Relay(
            self,
            exchange,
            LIMITS,
            counters=Counters(),
            pacer=Unpaced(),
            turns=Turns(self),
            own_client_ids=own_client_id(self._node.node_id, ""),
            retained_published=self.own.retained_published,
        )

    def end(self) -> None:
        """The life is over; whoever was connected is told so by the machine."""
        self.alive = False
        for end in self._ends:
            end.kill()

    # ---- clock, timers -------------------------------------------------------------------

    def now(self) -> float:
        return self._engine.now_s

    def wall_ms(self) -> int:
        return EPOCH_MS + self._node.clock_ahead_ms + int(self._engine.now_s * 1000)

    def token_bytes(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        return self._engine.call_later(delay_s, lambda: callback() if self.alive else None)

    def call_soon(self, callback: Callable[[], None]) -> Cancellable:
        return self.call_later(0.0, callback)

    def clock(self) -> float:
        """Work takes no time here, but for a slice now and then."""
        if self._clock_random.random() < LONG_SLICE:
            self._worked_s += 2 * SLICE_S
        return self._engine.now_s + self._worked_s

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._engine.call_later(0.0, self._flush)

    def _flush(self) -> None:
        self._woken = False
        if self.alive:
            self.exchange.flush()

    # ---- connections ---------------------------------------------------------------------

    def resources(self) -> Resources:
        return self._node.resources

    def announce(self, datagram: bytes) -> None:
        self._node.fabric.network.announce(self, datagram)

    def announced(self, datagram: bytes, remote: str) -> None:
        if self.alive:
            self.exchange.discovery.arrived(datagram, remote)

    def dial(
        self, address: str, opened: Callable[[Channel], Connection], failed: Callable[[str], None]
    ) -> None:
        self._node.fabric.network.dial(self, address, opened, failed)

    def accepted(self, channel: Channel) -> Connection:
        return self.exchange.links.accepted(channel)

    def received(self, connection: Connection, data: bytes) -> None:
        self.exchange.links.received(connection, data)

    def lost(self, connection: Connection, cause: str) -> None:
        self.exchange.links.lost(connection, cause)

    # ---- clients and the broker ----------------------------------------------------------

    def accept_client(self, end: StreamEnd) -> Session:
        self._ends[end] = None
        return ClientSession(self.relay, "mqtt")

    def connect_broker(
        self, session: Session, failed: Callable[[str], None], broker: str = ""
    ) -> None:
        self._connect(self._node.brokers[broker], session, failed)

    def _connect(self, broker: SimBroker, session: Session, failed: Callable[[str], None]) -> None:
        engine, streams = self._engine, self._node.fabric.streams
        here = StreamEnd(engine, streams, broker.arrival_s, "broker")

        def opened(end: StreamEnd) -> None:
            if self.alive:
                self._ends[end] = None
                end.attach(session)
            else:
                end.kill()

        open_stream(
            engine,
            (here, StreamEnd(engine, streams, broker.answer_s, self.name)),
            BROKER_CONNECT_S,
            accept=broker.accept,
            opened=opened,
            refused=lambda: failed("connection refused") if self.alive else None,
        )

    def silent_s(self, wire: Wire) -> float | None:
        """Machines of brokers live on."""
        return 0.0

    def _set_aside(self, message: Message, key: str, cause: str) -> None:
        self._trace.note(self.name, "set aside", topic=message.topic, neighbor=key, cause=cause)

    # ---- storage, the log ----------------------------------------------------------------

    @property
    def keeps_state(self) -> bool:
        return self._disk is not None

    def load_state(self, name: str, version: int) -> bytes | None:
        return None if self._disk is None else self._disk.load(name, version)

    def save_state(self, name: str, state: bytes) -> None:
        if self._disk is not None:
            self._disk.save(name, state, self._engine.now_s)

    def append_state(self, name: str, more: bytes) -> None:
        if self._disk is not None:
            self._disk.append(name, more, self._engine.now_s)

    def rewrite_state(self, name: str) -> SimRewrite:
        return SimRewrite(lambda state: self.save_state(name, state))

    def spools(self) -> dict[str, int]:
        spools = {} if self._disk is None else self._disk.spools
        return {file: len(content) for file, content in spools.items() if content}

    def load_spool(self, file: str, size: int) -> bytes:
        return bytes(self._the_disk.spools.get(file, b"")[:size])

    @property
    def _the_disk(self) -> Disk:
        assert self._disk is not None
        return self._disk

    def write_spool(self, file: str, offset: int, data: bytes, done: Callable[[str], None]) -> None:
        disk = self._the_disk
        disk.writing.append((file, offset, data))
        self._after_disk(lambda: done(disk.write_spool(self._spool_random)))

    def read_spool(
        self, file: str, offset: int, size: int, done: Callable[[bytes | None], None]
    ) -> None:
        disk = self._the_disk
        self._after_disk(lambda: done(bytes(disk.spools[file][offset : offset + size])))

    def drop_spool(self, file: str) -> None:
        disk = self._the_disk
        self._after_disk(lambda: disk.spools.pop(file, None))

    def _after_disk(self, work: Callable[[], object]) -> None:
        """One after the other."""
        now_s = self._engine.now_s
        self._disk_s = max(self._disk_s, now_s) + self._spool_random.choice(DISK_S)
        self._engine.activity()
        self._disk_work.append(work)
        self.call_later(self._disk_s - now_s, self._disk_turn)

    def _disk_turn(self) -> None:
        self._disk_work.popleft()()

    def log(self, level: str, event: str, **fields: object) -> None:
        if event.endswith("let go"):
            self._trace.let_go(self.name, str(fields["neighbor"]))
        if event == "link up":
            self._trace.linked(self.name, str(fields["neighbor"]))
        if event == "bad bytes on a link":
            self._trace.accuse(self.name, fields)
        self._trace.note(self.name, f"{level}: {event}", **fields)
