"""A small network without time or chance: algorithms behind ports that pass messages in order.

A link has two directions, each a queue; the test says which direction delivers its next message,
or lets all of them settle.  Clients and the broker are played packet by packet, and followed as
a node does.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from isthmus.cooperation.api import (
    AS_CONFIGURED,
    CooperationAlgorithm,
    LinkOptions,
    LinkTraffic,
    Moving,
    Port,
    ReceivedPacket,
    Resend,
    Resources,
    Route,
    SessionInfo,
    SessionKind,
    SessionStatus,
    TopicMove,
)
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.client import Pair
from isthmus.exchange.client.clients import Clients
from isthmus.exchange.client.wills import DueWill
from isthmus.exchange.host import Host
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode

Factory = Callable[[Port, Mapping[str, object]], CooperationAlgorithm]


class FakePort:
    """One node's port: a clock that is moved by hand, timers, kept state, links of a network.

    It is also the host of the node's local clients, whose sessions `clients` follows.
    """

    keeps_state = True
    waiting_bytes = 0
    """On its way to the disk."""

    def __init__(self, node_id: str = "node", network: FakeNetwork | None = None) -> None:
        self._node_id = node_id
        self.network = network
        self.clock_s = 1000.0
        self.timers: dict[Hashable, float] = {}
        self.changed_routes: list[list[str] | None] = []
        self.resends = 0
        self.wanted: dict[str, None] = {}
        self.synchronized_with: list[SessionInfo] = []
        self.compared: list[str] = []
        self.refused: list[tuple[SessionInfo, RemoteProtocolError]] = []
        self.broken: list[str] = []
        self.retained_for: list[tuple[str, list[str]]] = []
        self.awaited: set[str] = set()
        self.files: dict[str, bytes] = {}
        self.saved: Counter[str] = Counter()
        self.logged: list[str] = []
        self.wills: list[DueWill] = []
        self._random = random.Random(7)
        self._sessions = 0
        self.clients = Clients(
            cast("Host", self), self.session, self.wills.append, filters_per_client=10_000
        )

    address = ""
    resources = Resources(1.0, 1 << 30)

    def announce(self, data: bytes) -> bool:
        return False

    def traffic_of(self, session: SessionInfo) -> LinkTraffic | None:
        return None

    @property
    def node_id(self) -> str:
        return self._node_id

    @property
    def random(self) -> random.Random:
        return self._random

    def session(self, kind: SessionKind, peer: str = "") -> SessionInfo:
        self._sessions += 1
        return SessionInfo(self._sessions, kind, peer, SessionStatus.ESTABLISHED)

    def create_session(self, address: str, options: LinkOptions = AS_CONFIGURED) -> SessionInfo:
        assert self.network is not None
        return self.network.connect(self._node_id, address)

    def close_session(self, session: SessionInfo) -> None:
        assert self.network is not None
        self.network.remove(self._node_id, session.name)

    def send_message(self, session: SessionInfo, message: bytes) -> bool:
        assert self.network is not None
        return self.network.send(self._node_id, session, message)

    def get_paired_session(self, session: SessionInfo) -> SessionInfo | None:
        return self.clients.paired(session)

    def create_mqtt_message(self, packet: Packet, level: int = 5) -> bytes:
        return encode(packet, level)

    def refuse(self, session: SessionInfo, error: RemoteProtocolError) -> None:
        self.refused.append((session, error))

    def broke_rules(self, session: SessionInfo, name: str) -> None:
        self.broken.append(name)

    def compare_retained(self, session: SessionInfo) -> None:
        self.compared.append(session.name)

    def wanted_changed(self, added: Sequence[str], removed: Sequence[str]) -> None:
        assert not set(added) & self.wanted.keys()
        self.wanted |= dict.fromkeys(added)
        for each in removed:
            del self.wanted[each]

    def synchronized(self, session: SessionInfo) -> None:
        self.synchronized_with.append(session)

    routes_retained = False

    def retained_wanted(self, session: SessionInfo | None, filters: Iterable[str]) -> None:
        self.retained_for.append((session.name if session is not None else "", list(filters)))

    def awaits_others(self, session: SessionInfo) -> bool:
        return bool(self.awaited - {session.name})

    def routes_changed(
        self, filters: Iterable[str] | None = None, *, resend: bool | Resend = False
    ) -> None:
        self.resends += bool(resend)
        self.changed_routes.append(None if filters is None else list(filters))

    def set_timer(self, delay_s: float, key: Hashable) -> None:
        self.timers[key] = self.clock_s + delay_s

    def cancel_timer(self, key: Hashable) -> None:
        self.timers.pop(key, None)

    def now(self) -> float:
        return self.clock_s

    @property
    def local_filters(self) -> Collection[str]:
        return self.clients.interest.filters

    def move_topics(self, move: TopicMove) -> Moving:
        raise ValueError("the node has one broker")

    @property
    def broker_names(self) -> tuple[str, ...]:
        return ()

    # ---- kept state: of the algorithm by name, of the host with the version of the file ----

    def load_state(self, name: str, version: int = 1) -> Any:
        return self.files.get(name)

    def save_state(self, name: str, state: Any, version: int = 1) -> None:
        self.saved[name] += 1
        self.files[name] = state

    def append_state(self, name: str, more: Any) -> None:
        self.files[name] += more

    def rewrite_state(self, name: str) -> FakeRewrite:
        return FakeRewrite(self, name)

    # ---- the host's ----

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self, callback)
        self.set_timer(delay_s, timer)
        return timer

    def token_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def log(self, level: str, event: str, **fields: object) -> None:
        self.logged.append(f"{level}: {event} {fields}")

    def advance(self, seconds: float, on_timer: Callable[[Hashable], object] = print) -> None:
        """Move the clock, and run what runs out on the way, in order."""
        end = self.clock_s + seconds
        while due := [(at, key) for key, at in self.timers.items() if at <= end]:
            at, key = min(due, key=lambda item: item[0])
            self.clock_s = max(self.clock_s, at)
            self.fire(key, on_timer)
        self.clock_s = end

    def fire(self, key: Hashable, on_timer: Callable[[Hashable], object]) -> None:
        del self.timers[key]
        if isinstance(key, FakeTimer):
            key.callback()
        else:
            on_timer(key)


@dataclass(eq=False, slots=True)
class FakeTimer:
    port: FakePort
    callback: Callable[[], None]

    def cancel(self) -> None:
        self.port.timers.pop(self, None)


@dataclass(eq=False, slots=True)
class FakeRewrite:
    """What is written anew; nothing of it is kept before it is whole."""

    port: FakePort
    name: str
    written: bytes = b""

    @property
    def waiting_bytes(self) -> int:
        return self.port.waiting_bytes

    def write(self, piece: bytes) -> None:
        self.written += piece

    def commit(self) -> None:
        self.port.save_state(self.name, self.written)


class FakeEnd:
    """A client's connection that only notes what is done with it."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bool]] = []
        self.codes: list[ReasonCode] = []

    def send(self, data: bytes, *, to_broker: bool) -> bool:
        self.sent.append((data, to_broker))
        return True

    def shut_down(self, code: ReasonCode) -> None:
        self.codes.append(code)


class FakeClient:
    """A client and its session with the broker, played packet by packet."""

    def __init__(self, port: FakePort, level: int = 5) -> None:
        self.port = port
        self.level = level
        self.end = FakeEnd()
        self.routes: dict[bytes, Route] = {}
        self.pair: Pair
        self._connect: Connect
        self._packet_id = 0

    def _received(self, packet: Packet) -> ReceivedPacket:
        return ReceivedPacket(encode(packet, self.level), self.level)

    def says(self, packet: Packet) -> object:
        """A CONNECT is known to the node from its CONNACK on."""
        if isinstance(packet, Connect):
            self._connect = packet
            return True
        return self.port.clients.packet(self.pair, self._received(packet))

    def hears(self, packet: Packet) -> None:
        if isinstance(packet, ConnAck):
            connect = self._received(self._connect)
            self.pair = self.port.clients.accepted(
                self.end, connect, self._received(packet), self.routes
            )
        else:
            self.port.clients.broker_packet(self.pair, self._received(packet))

    def connect(
        self,
        client_id: str = "client",
        *,
        clean_start: bool = True,
        expiry_s: int | None = None,
        session_present: bool = False,
        ack: Properties = NO_PROPERTIES,
        will: Will | None = None,
    ) -> FakeClient:
        properties = Properties(session_expiry_interval=expiry_s)
        self.says(
            Connect(
                client_id=client_id,
                clean_start=clean_start,
                properties=properties,
                protocol_level=self.level,
                will=will,
            )
        )
        code = ReasonCode.SUCCESS if self.level == 5 else ConnectReturnCode(0)
        self.hears(ConnAck(session_present, code, ack))
        return self

    def next_packet_id(self) -> int:
        self._packet_id += 1
        return self._packet_id

    def subscribe(self, *filters: str, codes: tuple[int, ...] = ()) -> FakeClient:
        packet_id = self.next_packet_id()
        self.says(Subscribe(packet_id, tuple(Subscription(each) for each in filters)))
        granted = codes or (0,) * len(filters)
        self.hears(SubAck(packet_id, tuple(ReasonCode(code) for code in granted)))
        return self

    def unsubscribe(self, *filters: str, codes: tuple[int, ...] = ()) -> FakeClient:
        packet_id = self.next_packet_id()
        self.says(Unsubscribe(packet_id, filters))
        given = codes or (0,) * len(filters)
        answer = tuple(ReasonCode(code) for code in given) if self.level == 5 else ()
        self.hears(UnsubAck(packet_id, answer))
        return self

    def disconnect(
        self, expiry_s: int | None = None, code: ReasonCode = ReasonCode.SUCCESS
    ) -> None:
        self.says(Disconnect(code, Properties(session_expiry_interval=expiry_s)))
        self.drop(unexpected=False)

    def drop(self, *, unexpected: bool = True) -> None:
        self.port.clients.closed(self.pair, unexpected=unexpected)


@dataclass(slots=True)
class _End:
    """One node's end of a link, and what is on its way from there."""

    session: SessionInfo
    queue: deque[bytes] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where one message went: brokers that got it from a neighbor, links that carried it."""

    brokers: Counter[str]
    links: Counter[tuple[str, str]]


class FakeNetwork:
    """Nodes and the links between them."""

    def __init__(self, factory: Factory, nodes: Iterable[str] = ()) -> None:
        self.factory = factory
        self.ports: dict[str, FakePort] = {}
        self.algorithms: dict[str, CooperationAlgorithm] = {}
        self.sent: list[tuple[str, str, Packet]] = []
        self.up: set[frozenset[str]] = set()
        self._ends: dict[tuple[str, str], _End] = {}
        for node in nodes:
            self.add_node(node)

    def add_node(self, node: str) -> None:
        port = FakePort(node, self)
        self.ports[node] = port
        self.algorithms[node] = port.clients.algorithm = self.factory(port, {})
        self.algorithms[node].on_node_start()

    # ---- links ----

    def connect(self, a: str, b: str) -> SessionInfo:
        """A new link, or one that was down; both ends are told."""
        for own, other in ((a, b), (b, a)):
            if (own, other) not in self._ends:
                session = self.ports[own].session(SessionKind.NEIGHBOR, other)
                self._ends[own, other] = _End(session)
            self._ends[own, other].queue.clear()
        self.up.add(frozenset((a, b)))
        for own, other in ((a, b), (b, a)):
            self.algorithms[own].on_session_established(self._ends[own, other].session)
        return self._ends[a, b].session

    def cut(self, a: str, b: str, *, noticed_by: Iterable[str] | None = None) -> None:
        """The link is down, and what was on its way is lost; it is kept at both ends."""
        self.up.discard(frozenset((a, b)))
        noticing = (a, b) if noticed_by is None else tuple(noticed_by)
        for own, other in ((a, b), (b, a)):
            self._ends[own, other].queue.clear()
            if own in noticing:
                self.algorithms[own].on_tcp_down(self._ends[own, other].session)

    def give_up(self, a: str, b: str) -> None:
        """Node `a` does not wait for `b` any longer; `b` still keeps its end."""
        self.up.discard(frozenset((a, b)))
        end = self._ends.pop((a, b))
        self._ends[b, a].queue.clear()
        self.algorithms[a].on_session_closed(end.session)

    def remove(self, a: str, b: str) -> None:
        """The link is closed for good at both ends, one after the other."""
        self.up.discard(frozenset((a, b)))
        for own, other in ((a, b), (b, a)):
            end = self._ends.pop((own, other), None)
            if end is not None:
                self.algorithms[own].on_session_closed(end.session)

    def session(self, node: str, neighbor: str) -> SessionInfo:
        return self._ends[node, neighbor].session

    # ---- control messages ----

    def send(self, node: str, session: SessionInfo, message: bytes) -> bool:
        if frozenset((node, session.name)) not in self.up:
            return False
        assert self._ends[node, session.name].session is session
        self._ends[node, session.name].queue.append(message)
        self.sent.append((node, session.name, decode(message, 5)))
        return True

    def pending(self) -> list[tuple[str, str]]:
        """The directions in which something is on its way."""
        return [direction for direction, end in self._ends.items() if end.queue]

    def deliver(self, sender: str, receiver: str) -> None:
        """The next message from `sender` arrives."""
        message = self._ends[sender, receiver].queue.popleft()
        self.algorithms[receiver].mqtt_message_arrived(
            self._ends[receiver, sender].session, ReceivedPacket(message)
        )

    def settle(self) -> None:
        """Everything on its way arrives, and what follows from it."""
        for _ in range(100_000):
            pending = self.pending()
            if pending:
                self.deliver(*pending[0])
            elif not self.turn():
                return
        raise AssertionError("messages go on for ever")

    def turn(self) -> bool:
        """The next turn of every node's event loop; whether there was anything to do in it."""
        due = [
            (node, key)
            for node, port in self.ports.items()
            for key, at in port.timers.items()
            if at <= port.clock_s
        ]
        for node, key in due:
            self.ports[node].fire(key, self.algorithms[node].on_timer)
        return bool(due)

    def told(self, kind: type[Subscribe | Unsubscribe]) -> dict[tuple[str, str], list[str]]:
        """The filters of all SUBSCRIBEs or UNSUBSCRIBEs sent so far, per direction."""
        found: dict[tuple[str, str], list[str]] = {}
        for sender, receiver, packet in self.sent:
            if isinstance(packet, kind):
                filters = (
                    [each.topic_filter for each in packet.subscriptions]
                    if isinstance(packet, Subscribe)
                    else list(packet.topic_filters)
                )
                found.setdefault((sender, receiver), []).extend(filters)
        return found

    # ---- clients ----

    def new_client(self, node: str, level: int = 5) -> FakeClient:
        """A client of the node that has not said anything yet."""
        return FakeClient(self.ports[node], level)

    def client(self, node: str, client_id: str = "client") -> FakeClient:
        """A connected client of the node."""
        return self.new_client(node).connect(client_id)

    def publish(self, node: str, topic: str, *, retain: bool = False) -> Delivery:
        """Follow a local client's message through the routes as they are now."""
        brokers: Counter[str] = Counter()
        links: Counter[tuple[str, str]] = Counter()
        arrivals = deque([(node, self.ports[node].session(SessionKind.LOCAL_CLIENT))])
        while arrivals:
            at, arrived_on = arrivals.popleft()
            route = self.algorithms[at].route(topic, arrived_on, retain=retain)
            brokers[at] += route.to_local_broker
            for neighbor in route.neighbors:
                links[at, neighbor.name] += 1
                assert links[at, neighbor.name] < 10, "the message circulates"
                if frozenset((at, neighbor.name)) in self.up:
                    arrivals.append((neighbor.name, self.session(neighbor.name, at)))
        return Delivery(+brokers, links)
