"""A node's relay without sockets: real sessions and a real exchange on wires in memory.

`Rig` has the production `Relay`, `ClientSession`, `BrokerSession` and `Exchange`.  In memory are
the wires to clients and broker, the host (the simulator's virtual clock, driven by hand) and the
far neighbor, which wants everything and notes what it is sent.  An *operation* is one thing that
the outside does: ``(kind, client, bytes)``, see `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.counters import Counters
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.relay import Relay, Unpaced
from isthmus.exchange.link.life import LinkState
from isthmus.exchange.link.link import Link, Room
from isthmus.exchange.link.runs import Batch
from isthmus.exchange.session import Session
from isthmus.exchange.traffic.message import Message, from_link
from isthmus.exchange.turns import SLICE_S, Turns
from isthmus.sim.fabric import SimFabric
from support.hosts import HandHost, MemoryWire

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
LIMITS: Final = ClientLimits(packet_bytes=4096, connect_bytes=2048)
SETTLED_S: Final = 12.0
"""Longer than anybody waits for a client or a broker."""

Sent = tuple[int, bool, bytes, bytes, bytes]
"""QoS, RETAIN, topic, payload and properties of a message on its way to the far neighbor."""


class FarNeighbor:
    """A link whose other end wants everything."""

    def __init__(self, link: Link) -> None:
        self.info = link.info
        self.state = LinkState.ACTIVE
        self.is_waited_for = self.takes_batches = True
        self.full = False
        self.waiters: list[Callable[[], None]] = []
        self.sent: list[Sent] = []

    def send(
        self,
        message: Message,
        now_s: float,
        in_hand: object,
        label: bytes = b"",
        *,
        again: bool = False,
    ) -> None:
        self.sent.append(
            (message.qos, message.retain, message.topic, message.payload, message.properties)
        )
        assert in_hand is None, "clients wait for their own broker"
        assert not again, "no link has parted"

    def send_plain(self, topics: Sequence[bytes], frames: Sequence[bytes]) -> None:
        for topic, frame in zip(topics, frames, strict=True):
            message, _ = from_link(frame, 0.0)
            assert message.topic == topic
            self.sent.append((0, False, topic, message.payload, b""))

    def send_batch(self, batch: Batch, label: bytes, now_s: float) -> None:
        for at in range(len(batch.topics)):
            self.send(batch.message(at), now_s, None, label)

    def has_room(self, room: Room, part: float = 1.0) -> bool:
        """Full at times, but never beyond what makes messages wait before they are sent."""
        return room is not Room.UNACKNOWLEDGED or not self.full or part > 1.0

    def waits_for_room(self, room: Room) -> bool:
        return bool(self.waiters)

    def when_room(self, room: Room, go_on: Callable[[], None]) -> None:
        self.waiters.append(go_on)

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
        self.host = HandHost(self.engine)
        self.host.clock = self.clock
        self.exchange = near.exchange
        link = self.exchange.links.links["far"]
        self.far = FarNeighbor(link)
        self.exchange.traffic.by_session[link.info] = cast(Link, self.far)
        self.relay = Relay(
            self.host,
            self.exchange,
            LIMITS,
            counters=Counters(),
            pacer=Unpaced(),
            turns=Turns(self.host),
            own_client_ids="isthmus-near-",
        )
        self.sessions: dict[int, ClientSession] = {}
        self.clients: dict[int, MemoryWire] = {}
        self.brokers: dict[int, MemoryWire] = {}
        self._opening: dict[int, tuple[Session, Callable[[str], None]]] = {}
        self._numbers = 0

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
                _, failed = self._opening.pop(client)
                failed("refused by the rig")
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
        if self.host.opening:
            self._opening[client] = self.host.opening.popleft()
        self.host.logged.clear()

    def _open(self, client: int) -> None:
        session = ClientSession(self.relay, "mqtt")
        self._numbers += 1
        wire = MemoryWire(self.host, session, self._numbers)
        self.sessions[client], self.clients[client] = session, wire
        session.connection_made(wire)

    def _broker_up(self, client: int) -> None:
        session, _ = self._opening.pop(client)
        self._numbers += 1
        self.brokers[client] = wire = MemoryWire(self.host, session, self._numbers)
        session.connection_made(wire)

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
        wills = exchange.clients.wills.status()
        held = {
            "sessions": len(self.relay.clients),
            "pending bytes": self.relay.pending.total,
            "opening": len(self._opening),
            "waiting for a turn": len(self.relay.turns),
            "clients of the exchange": len(exchange.clients),
            "interest": list(exchange.local_filters),
            "unreleased": len(exchange.clients._away),
            "wills": (wills["armed"], wills["waiting"], wills["bytes"]),
        }
        empty: tuple[object, ...] = (0, [], (0, 0, 0))
        return {name: value for name, value in held.items() if value not in empty}
