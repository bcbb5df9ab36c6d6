"""A node's relay without sockets: real sessions and a real exchange on wires in memory.

`Rig` has the production `Node`, `ClientSession`, `BrokerSession` and `Exchange`.  In memory are the
wires to clients and broker, the event loop (the simulator's virtual clock, driven by hand) and the
far neighbor, which wants everything and notes what it is sent.  An *operation* is one thing that
the outside does: ``(kind, client, bytes)``, see `KINDS`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from isthmus.config.files import NodeConfig
from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding
from isthmus.exchange.link.link import Link, LinkStatus
from isthmus.exchange.traffic.message import Message, from_link
from isthmus.node import client_input, relay, turns
from isthmus.node.pacing import Pacer
from isthmus.node.relay import ClientSession
from isthmus.node.runtime import Node
from isthmus.node.session import Session
from isthmus.node.turns import SLICE_S, Turns
from isthmus.node.upstream import Upstream
from isthmus.sim.engine import Engine, Timer
from isthmus.sim.fabric import SimFabric

__all__ = ["KINDS", "LIMITS", "Operation", "Rig", "Sent"]

Operation = tuple[str, int, bytes]
KINDS: Final = {
    "open": "a client connects",
    "data": "it sends these bytes",
    "lost": "it hangs up",
    "broker-up": "the node's connection to the broker for it stands",
    "broker-fails": "it cannot be made",
    "broker-data": "the broker sends these bytes",
    "broker-close": "the broker hangs up",
    "congest": "the far neighbor does not acknowledge",
    "relieve": "it has caught up, and time is not short",
    "slow": "every slice of time is over at once",
    "quick": "none is",
}
LIMITS: Final = {"packet_bytes": 4096, "connect_bytes": 2048, "rest_s": 0.0}
SETTLED_S: Final = 12.0
"""Longer than anybody waits for a client or a broker."""

Sent = tuple[int, bool, bytes, bytes, bytes]
"""QoS, RETAIN, topic, payload and properties of a message on its way to the far neighbor."""


class Wire:
    """What a session has for a transport."""

    def __init__(self, rig: Rig, protocol: Session, number: int) -> None:
        self._rig = rig
        self._protocol = protocol
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
            self._rig.loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._rig.loop.call_soon(self._read)

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
                self._protocol.data_received(data)
            else:
                self.close()


class Loop:
    """As much of an event loop as the node's sessions use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tasks: list[Task] = []

    def time(self) -> float:
        return self._engine.now_s

    def call_soon(self, callback: Callable[..., object], *args: object) -> Timer:
        return self.call_later(0.0, callback, *args)

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> Timer:
        def call() -> None:
            callback(*args)

        return self._engine.call_later(delay_s, call)

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        task = Task(coroutine)
        task.step()
        return task


class Task:
    """A coroutine that waits for `Upstreams.connect` only."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._done: list[Callable[[Task], object]] = []

    def add_done_callback(self, callback: Callable[[Task], object]) -> None:
        self._done.append(callback)

    def step(self, error: OSError | None = None) -> None:
        try:
            if error is None:
                waits_for = self._coroutine.send(None)
            else:
                waits_for = self._coroutine.throw(error)
        except StopIteration:
            for callback in self._done:
                callback(self)
        else:
            cast(Opening, waits_for).task = self


class Opening:
    """A connection to the broker that is being made."""

    def __init__(self, factory: Callable[[], Session]) -> None:
        self.factory = factory
        self.task: Task | None = None

    def __await__(self) -> Generator[Opening, None, None]:
        yield self


class Upstreams:
    """The way to the broker; the rig says when it is open."""

    def __init__(self) -> None:
        self.opening: Opening | None = None

    async def connect(self, factory: Callable[[], Session]) -> None:
        self.opening = Opening(factory)
        await self.opening


class FarNeighbor:
    """A link whose other end wants everything."""

    def __init__(self, link: Link) -> None:
        self.info = link.info
        self.status = LinkStatus.UP
        self.active = True
        self.full = False
        self.waiters: list[Callable[[], None]] = []
        self.sent: list[Sent] = []

    def send(self, message: Message, now_s: float, done: Callable[[], None] | None) -> None:
        self.sent.append(
            (message.qos, message.retain, message.topic, message.payload, message.properties)
        )
        if done is not None:
            done()

    def send_plain(self, topic: bytes, frame: bytes) -> None:
        message, _ = from_link(frame, 0.0)
        assert message.topic == topic
        self.sent.append((0, False, topic, message.payload, b""))

    def congested(self, part: float = 1.0) -> bool:
        return self.full

    def far_ahead(self) -> bool:
        return False

    def unacked_bytes(self) -> int:
        return 0


class SliceClock:
    """The clock by which input is cut into slices: stands still, or runs out at every look."""

    def __init__(self) -> None:
        self.slow = False
        self._now_s = 0.0

    def __call__(self) -> float:
        if self.slow:
            self._now_s += SLICE_S * 2
        return self._now_s

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Put it in the place of the real one, and keep the node from logging."""
        modules: tuple[Any, ...] = (client_input, relay, turns)
        logging.disable(logging.CRITICAL)
        for module in modules:
            module.perf_counter = self
        try:
            yield
        finally:
            for module in modules:
                module.perf_counter = time.perf_counter
            logging.disable(logging.NOTSET)


class Rig:
    """One node, its clients by number, the broker and the far neighbor."""

    def __init__(self) -> None:
        self.clock = SliceClock()
        fabric = SimFabric(algorithm="sf")
        near, far = fabric.node("near", state_dir=False), fabric.node("far")
        fabric.link(near, far)
        far.client("everything").subscribe("#")
        fabric.settle()
        self.engine = fabric.engine
        self.loop = Loop(self.engine)
        self.exchange = near.exchange
        link = self.exchange.links.links["far"]
        self.far = FarNeighbor(link)
        self.exchange.traffic.by_session[link.info] = cast(Link, self.far)
        self.node = self._node()
        self.sessions: dict[int, ClientSession] = {}
        self.clients: dict[int, Wire] = {}
        self.brokers: dict[int, Wire] = {}
        self._opening: dict[int, Opening] = {}
        self._numbers = 0

    def _node(self) -> Node:
        config = NodeConfig.model_validate(
            {
                "node": {"id": "near"},
                "broker": {"url": "mqtt://127.0.0.1:1"},
                "limits": LIMITS,
            }
        )
        node = Node(config)
        node.loop = cast(asyncio.AbstractEventLoop, self.loop)
        node.pacer = Pacer(node.loop, node.counters, 0.0)
        node.turns = Turns(node.loop)
        node.upstream = cast(Upstream, Upstreams())
        node.exchange = self.exchange
        node.exchange.client_routes.max_levels = node.limits.topic_levels
        node.status_name = "running"
        return node

    # ---- what happens to it --------------------------------------------------------------

    def do(self, operation: Operation) -> None:
        """One operation, and all that follows from it."""
        kind, client, data = operation
        match kind:
            case "open":
                self._open(client)
            case "data" if client in self.clients:
                self.clients[client].feed(data)
            case "lost" if client in self.clients:
                self.clients[client].feed(b"")
            case "broker-up" if client in self._opening:
                self._broker_up(client)
            case "broker-fails" if client in self._opening:
                task = self._opening.pop(client).task
                assert task is not None
                task.step(OSError("refused by the rig"))
            case "broker-data" if client in self.brokers:
                self.brokers[client].feed(data)
            case "broker-close" if client in self.brokers:
                self.brokers[client].feed(b"")
            case "slow" | "quick":
                self.clock.slow = kind == "slow"
            case "congest":
                self.far.full = True
            case "relieve":
                self.far.full = self.clock.slow = False  # else clients would take turns
                waiters, self.far.waiters = self.far.waiters, []
                for release in waiters:
                    release()
        self.drain()
        upstreams = cast(Upstreams, self.node.upstream)
        if upstreams.opening is not None:
            self._opening[client] = upstreams.opening
            upstreams.opening = None

    def _open(self, client: int) -> None:
        session = ClientSession(self.node, "mqtt")
        self._numbers += 1
        wire = Wire(self, session, self._numbers)
        self.sessions[client], self.clients[client] = session, wire
        session.connection_made(cast(asyncio.BaseTransport, wire))

    def _broker_up(self, client: int) -> None:
        opening = self._opening.pop(client)
        protocol = opening.factory()
        self._numbers += 1
        self.brokers[client] = wire = Wire(self, protocol, self._numbers)
        protocol.connection_made(cast(asyncio.BaseTransport, wire))
        assert opening.task is not None
        opening.task.step()

    def drain(self) -> None:
        """Everything that is due now."""
        self.engine.events = 0
        self.engine.run_until(self.engine.now_s)

    # ---- the end -------------------------------------------------------------------------

    def settle(self) -> None:
        """Let what waits for a time-out have it; connections that nobody made fail."""
        for client in list(self._opening):
            self.do(("broker-fails", client, b""))
        self.engine.events = 0
        self.engine.run_until(self.engine.now_s + SETTLED_S)

    def reset(self) -> None:
        """Forget the clients, which are gone, and what was sent."""
        for known in (self.sessions, self.clients, self.brokers, self._opening):
            known.clear()
        self.far.sent.clear()
        self.far.full = self.clock.slow = False

    def left_over(self) -> dict[str, object]:
        """What is held although every client has left for good."""
        exchange = self.exchange
        assert isinstance(exchange.algorithm, SubscriptionFlooding)
        wills = exchange.clients.wills.status()
        held = {
            "sessions": len(self.node._clients),
            "pending bytes": self.node.pending.total,
            "opening": len(self.node._opening),
            "waiting for a turn": len(self.node.turns),
            "clients of the exchange": len(exchange.clients),
            "interest": list(exchange.algorithm.local_filters),
            "unreleased": len(exchange.clients._unreleased),
            "wills": (wills["armed"], wills["waiting"], wills["bytes"]),
        }
        empty: tuple[object, ...] = (0, [], (0, 0, 0))
        return {name: value for name, value in held.items() if value not in empty}
