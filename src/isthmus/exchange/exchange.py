"""The exchange: a node's clients, links, broker and algorithm, joined without I/O.

It is the algorithm's port, decides with the algorithm's help where each message goes, and keeps
what MQTT promises across brokers: acknowledgement along the whole way, retained messages, wills.

    client ──client_publish──▶ ┐              ┌──▶ links (acknowledged by the neighbours)
                               ├── exchange ──┤
    neighbour ──frame_arrived─▶┘              └──▶ local broker (host.inject)

Acknowledgement: a message from a neighbour is acknowledged when everybody it was passed on to has
acknowledged it.  Loops: a message is taken only from the neighbour through which its origin is
reached (`TopologyGuard.is_primary`), so that it is neither duplicated nor circulated even while
the topology is changing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isthmus.cooperation.api import (
    CooperationAlgorithm,
    NodeStatus,
    Route,
    SessionInfo,
    SessionKind,
    SessionStatus,
)
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.clients import Client, Clients
from isthmus.exchange.hello import Hello
from isthmus.exchange.host import Host
from isthmus.exchange.lane import Incoming
from isthmus.exchange.link import Link, LinkStatus
from isthmus.exchange.links import STREAM_TOPIC, Links, LinkSettings
from isthmus.exchange.message import (
    MAX_HOPS,
    Message,
    from_link,
    from_publish,
    plain_to_link,
)
from isthmus.exchange.plain import PlainMessage, PlainMessages
from isthmus.exchange.recovery import RECOVERY_S, Recovery
from isthmus.exchange.retention import RETAINED_TOPIC, Retention
from isthmus.exchange.routes import RouteTable
from isthmus.exchange.seen import SeenMessages
from isthmus.exchange.timers import Timers
from isthmus.exchange.topology import LinkState, TopologyGuard
from isthmus.exchange.wills import DueWill
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import body_offset
from isthmus.mqtt.packets import Packet, Publish
from isthmus.mqtt.primitives import PacketType

__all__ = ["CONTROL_PREFIX", "Client", "Exchange", "ExchangeSettings"]

CONTROL_PREFIX = b"$isthmus/"
TOPOLOGY_TOPIC = "$isthmus/topology"

_ACKS = frozenset((0x40, 0x50, 0x70))
_PUBREL = 0x62
_ALGORITHMS_OWN = frozenset((0x82, 0x90, 0xA2, 0xB0))  # SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Who this node is, and how it cooperates."""

    node_id: str
    algorithm: str = "sf"
    options: Mapping[str, object] = field(default_factory=dict)
    link: LinkSettings = field(default_factory=LinkSettings)


class Exchange:
    """One node's exchange; also the `Port` of its algorithm."""

    def __init__(
        self,
        host: Host,
        settings: ExchangeSettings,
        algorithm: Callable[[Exchange, Mapping[str, object]], CooperationAlgorithm],
    ) -> None:
        self.host = host
        self.settings = settings
        self.node_id = settings.node_id
        self.status_name = NodeStatus.STOPPED
        self.counters: Counter[str] = Counter()
        self.incarnation = f"{host.wall_ms():x}"
        self._session_ids = 0
        self._by_session: dict[SessionInfo, Link] = {}
        hello = Hello(self.node_id, self.incarnation, settings.algorithm)
        self.links = Links(host, settings.link, hello, self)
        self.guard = TopologyGuard(self.node_id, self.incarnation, self)
        self.algorithm = algorithm(self, settings.options)
        self._timers = Timers(host, self.algorithm.on_timer)
        self.clients = Clients(host, self.algorithm, self._session, self._will_due)
        self.retention = Retention(host, self.node_id, self._retained_news)
        self._any_client = self._session(SessionKind.LOCAL_CLIENT, "")
        self.client_routes = RouteTable(lambda topic: self._route(topic, self._any_client))
        self._link_routes: dict[SessionInfo, RouteTable] = {}
        self.plain = PlainMessages(self.node_id)
        self.seen = SeenMessages()
        self.recovery = Recovery(host, self.algorithm.on_neighbors_back, self._recovered)
        self._deferred: list[Callable[[], None]] = []
        self._in_hand: dict[tuple[str, str], _InHand] = {}
        self._numbers = 0

    # ---- life ----------------------------------------------------------------------------

    def start(self) -> None:
        self.status_name = NodeStatus.RUNNING
        self.retention.start()
        self.recovery.start()
        self.algorithm.on_node_start()
        self.clients.start()
        self.links.start()

    def stop_clients(self) -> None:
        """Every local client is about to lose its connection: their wills are due."""
        self.clients.stop()

    def unacknowledged(self) -> int:
        """Messages that neighbours have not acknowledged yet."""
        return sum(len(lane.unacked) for link in self.links for lane in link.outgoing)

    def stop(self) -> None:
        """Tell the algorithm and the neighbours."""
        if self.status_name is NodeStatus.STOPPED:
            return
        self.algorithm.on_node_stop()
        self.status_name = NodeStatus.STOPPED
        self.links.stop()
        self.recovery.stop()
        self.retention.stop()
        self._timers.cancel_all()

    def add_peer(self, address: str, sessions: int | None = None, qos: int | None = None) -> None:
        """Add a neighbour (ILDM §4.4)."""
        self._peer_options = (sessions, qos)
        self.status_name = NodeStatus.ILDM_ADDING
        self.algorithm.on_node_add(address)
        self.status_name = NodeStatus.RUNNING

    def remove_peer(self, name: str) -> bool:
        """Remove a neighbour by its id or address; False if there is none of that name."""
        peer = self.links.peers.get(name)
        link = peer.link if peer is not None else self.links.links.get(name)
        if link is None:
            return self.links.remove(name)
        self.status_name = NodeStatus.ILDM_REMOVING
        self.algorithm.on_node_remove(link.info)
        self.status_name = NodeStatus.RUNNING
        return True

    # ---- the algorithm's port ------------------------------------------------------------

    _peer_options: tuple[int | None, int | None] = (None, None)

    def create_session(self, address: str) -> SessionInfo:
        sessions, qos = self._peer_options
        self._peer_options = (None, None)
        defaults = self.settings.link
        return self.links.dial(
            address,
            defaults.sessions if sessions is None else sessions,
            defaults.qos if qos is None else qos,
        ).info

    def close_session(self, session: SessionInfo) -> None:
        self.links.remove(session.peer or session.address)

    def send_message(self, session: SessionInfo, message: bytes) -> bool:
        link = self._by_session.get(session)
        if link is None or not link.active:
            return False
        self.counters["control_sent"] += 1
        return link.send_control(message)

    def get_paired_session(self, session: SessionInfo) -> SessionInfo | None:
        return self.clients.paired(session)

    def create_mqtt_message(self, packet: Packet) -> bytes:
        return encode(packet, 5)

    def synchronised(self, session: SessionInfo) -> None:
        self.recovery.ready(session.peer)

    def awaits_others(self, session: SessionInfo) -> bool:
        return self.recovery.awaits_others(session.peer)

    def routes_changed(self, filters: Iterable[str] | None = None) -> None:
        self.plain.forget()
        touched = None if filters is None else list(filters)
        self.client_routes.drop(touched)
        for table in self._link_routes.values():
            table.drop(touched)

    def set_timer(self, delay_s: float, key: Hashable) -> None:
        self._timers.set_timer(delay_s, key)

    def cancel_timer(self, key: Hashable) -> None:
        self._timers.cancel_timer(key)

    def now(self) -> float:
        return self.host.now()

    @property
    def random(self) -> random.Random:
        return self.host.random

    def load_state(self) -> bytes | None:
        return self.host.load_state("algorithm")

    def save_state(self, state: bytes) -> None:
        self.host.save_state("algorithm", state)

    def _session(self, kind: SessionKind, peer: str) -> SessionInfo:
        self._session_ids += 1
        return SessionInfo(self._session_ids, kind, peer)

    def new_session(self, address: str) -> SessionInfo:
        session = self._session(SessionKind.NEIGHBOR, "")
        session.address = address
        return session

    # ---- local clients -------------------------------------------------------------------

    def client_opened(self, client_id: str) -> Client:
        """A client's CONNECT came and its broker session stands."""
        return self.clients.opened(client_id)

    def client_packet(self, client: Client, packet_type: PacketType, frame: bytes) -> bool:
        """A packet from the client, before it is relayed; False to keep it back."""
        return self.clients.packet(client, packet_type, frame)

    def broker_packet(self, client: Client, packet_type: PacketType, frame: bytes) -> None:
        """A packet from the broker's side of the pair, after it was relayed."""
        self.clients.broker_packet(client, packet_type, frame)

    def client_closed(self, client: Client, *, unexpected: bool) -> None:
        """The pair is gone."""
        self.clients.closed(client, unexpected=unexpected)

    def _will_due(self, due: DueWill) -> None:
        """The local broker publishes a will by itself; the neighbours have it from here."""
        publish = due.publish()
        frame = encode(replace(publish, packet_id=1) if publish.qos else publish, 5)
        topic = publish.topic.encode()
        message = from_publish(frame, 5, topic, self.node_id, self.host.now())
        self.counters["wills_sent"] += 1
        self.client_publish(message, _nobody_to_hold)

    def client_publish(self, message: Message, hold: Callable[[], Callable[[], None]]) -> None:
        """A local client published; its own broker has it already.

        If a link is congested, `hold` is called: it stops reading from the client, and what it
        returns lets it go on.
        """
        if message.topic.startswith(b"$"):
            return
        if message.qos:
            self._numbers += 1
            message.number = f"{self.incarnation}.{self._numbers:x}"
            self.seen.is_new(self.node_id, message.number)
        if message.retain:
            self.retention.published(message)
        if message.qos and self.recovery.active:
            release = hold()
            self._deferred.append(lambda: self._publish(message, hold))
            self._deferred.append(release)
        else:
            self._publish(message, hold)

    def _publish(self, message: Message, hold: Callable[[], Callable[[], None]]) -> None:
        route = self._route_of(message, self._any_client, self.client_routes)
        if route.neighbors:
            self.counters["published_to_links"] += 1
            self._pass_on(message, route, None, "")
            if message.qos:
                for session in route.neighbors:
                    link = self._by_session.get(session)
                    if link is not None and link.congested():
                        self._hold_back(link, hold)

    def publish_plain(self, topic: bytes, payload: bytes, route: Route) -> None:
        """A local client published at QoS 0, not retained, without properties: the hot path."""
        self.counters["published_to_links"] += 1
        frame = self.plain.to_link(topic, payload)
        for session in route.neighbors:
            link = self._by_session.get(session)
            if link is not None:
                link.send_plain(topic, frame)

    def _hold_back(self, link: Link, hold: Callable[[], Callable[[], None]]) -> None:
        if link.status is LinkStatus.UP:
            self.counters["publishers_held"] += 1
            link.waiters.append(hold())
        else:
            self.links.let_go(link, "its queue is full and it does not come back")

    # ---- routing -------------------------------------------------------------------------

    def _route(self, topic: str, arrived_on: SessionInfo) -> Route:
        if topic.startswith("$"):
            return Route()  # about the broker itself, and never anybody else's
        return self.algorithm.route(topic, arrived_on, retain=False)

    def _route_of(self, message: Message, arrived_on: SessionInfo, table: RouteTable) -> Route:
        if message.retain:
            return self.algorithm.route(message.topic.decode(), arrived_on, retain=True)
        return table[message.topic]

    def _pass_on(
        self, message: Message, route: Route, done: Callable[[], None] | None, key: str
    ) -> None:
        """Send `message` along `route`; `done` is called when everybody has made it safe."""
        now_s = self.host.now()
        if message.expired(now_s):
            self.counters["expired"] += 1
            if done is not None:
                done()
            return
        part = _Join(len(route.neighbors) + route.to_local_broker, done) if done else None
        for session in route.neighbors:
            link = self._by_session.get(session)
            if link is not None:
                link.send(message, now_s, part)
            elif part is not None:
                part()
        if route.to_local_broker and not self.host.inject(message, key, part):
            self.counters["inject_dropped"] += 1

    # ---- links ---------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        self.plain.forget()
        self.recovery.came(link.info.peer)
        self._by_session[link.info] = link
        self.guard.link_up(link.info.peer)

    def link_down(self, link: Link) -> None:
        self.plain.forget()
        self.guard.link_down(link.info.peer)
        if link.active:
            self.algorithm.on_tcp_down(link.info)

    def link_gone(self, link: Link) -> None:
        self._close_for_algorithm(link)
        self._by_session.pop(link.info, None)

    def _close_for_algorithm(self, link: Link) -> None:
        if not link.active:
            return
        link.active = False
        link.info.status = SessionStatus.CLOSED
        self.recovery.left(link.info.peer)
        self._link_routes.pop(link.info, None)
        self.retention.neighbor_left(link)
        self.algorithm.on_session_closed(link.info)
        self._give_up(link)

    def _give_up(self, link: Link) -> None:
        """What the neighbour has not acknowledged goes another way, if there is one."""
        lost = 0
        for message in link.give_up():
            route = self._route_of(message, self._any_client, self.client_routes)
            if route.neighbors:
                self._pass_on(message, Route(route.neighbors), None, "")
                self.counters["rerouted"] += 1
            else:
                lost += 1
        if lost:
            self.counters["given_up"] += lost
            self.host.log("warning", "messages given up", neighbor=link.info.peer, messages=lost)

    def frame_arrived(self, link: Link, lane: int, frame: bytes) -> None:
        """A packet came on a lane of an established link."""
        head = frame[0]
        if head & 0xF0 == 0x30:
            if found := self.plain.find(link.info, frame):
                self._plain_arrived(found, link.info.peer)
            elif frame.startswith(CONTROL_PREFIX, body_offset(frame, 0) + 2):
                self._control_arrived(link, lane, frame)
            else:
                self._message_arrived(link, lane, frame)
        elif head in _ACKS and len(frame) == 4:
            link.acknowledged(lane, head, frame[2] << 8 | frame[3], self.host.now())
        elif head == _PUBREL and len(frame) == 4:
            self._send(link, lane, Incoming.released(frame[2] << 8 | frame[3]))
        elif head not in _ALGORITHMS_OWN:
            raise RemoteProtocolError(f"a packet that begins with 0x{head:02x} on a link")
        elif link.active:
            self.counters["control_received"] += 1
            self._tell_algorithm(link, PacketType(head >> 4), frame)
        else:
            # It was sent before the other end knew that this one has blocked the link.
            self.counters["control_ignored"] += 1

    def _plain_arrived(self, found: PlainMessage, key: str) -> None:
        """Pass on a message like one that came before: the hot path."""
        known, payload = found
        self.counters["received_from_links"] += 1
        if known.route.neighbors:
            frame = plain_to_link(known.prefix, payload)
            for session in known.route.neighbors:
                link = self._by_session.get(session)
                if link is not None:
                    link.send_plain(known.topic, frame)
        if known.route.to_local_broker and not self.host.inject_plain(known.topic, payload, key):
            self.counters["inject_dropped"] += 1

    def _tell_algorithm(self, link: Link, packet_type: PacketType, frame: bytes) -> None:
        try:
            self.algorithm.mqtt_message_arrived(link.info, packet_type, frame)
        except RemoteProtocolError as error:
            self.algorithm.on_recv_failure(link.info, error)
            raise

    def _control_arrived(self, link: Link, lane: int, frame: bytes) -> None:
        packet = decode(frame, 5)
        assert isinstance(packet, Publish)
        self.counters["control_received"] += 1
        if packet.topic == STREAM_TOPIC:
            self.links.stream_arrived(link, lane, packet.payload)
        elif packet.topic == TOPOLOGY_TOPIC:
            self.plain.forget()
            self.guard.message_arrived(link.info.peer, packet.payload)
        elif packet.topic == RETAINED_TOPIC:
            self.retention.sync_arrived(link, packet.payload)
        elif link.active:
            self._tell_algorithm(link, PacketType.PUBLISH, frame)

    def _retained_news(self, message: Message, link: Link) -> None:
        """A neighbour that joined had a retained message that was not known here."""
        route = self.algorithm.route(message.topic.decode(), link.info, retain=True)
        self.counters["retained_synchronised"] += 1
        self._pass_on(message, route, None, link.info.peer)

    def _message_arrived(self, link: Link, lane: int, frame: bytes) -> None:
        now_s = self.host.now()
        message, packet_id = from_link(frame, now_s)
        qos = frame[0] >> 1 & 3
        done: Callable[[], None] | None = None
        if qos:
            incoming = link.incoming[lane]
            if incoming is None:
                raise RemoteProtocolError("a numbered message before its stream was named")
            number = incoming.accept(packet_id, qos)
            if isinstance(number, bytes):
                self.counters["repeated"] += 1
                self._send(link, lane, number)
                return
            done = _Acknowledge(self, link, lane, incoming, number, qos)
        self.counters["received_from_links"] += 1
        if not self._wanted(message, link):
            self._repeated(message, link.info, done)
            return
        if done is not None and message.number:
            done = self._take_in_hand(message, done)
        if qos and self.recovery.active:
            self._deferred.append(lambda: self._route_on(link, frame, message, done))
        else:
            self._route_on(link, frame, message, done)

    def _recovered(self) -> None:
        """All neighbours are back, or given up: what waited can be decided."""
        self.host.log("info", "recovered", messages=len(self._deferred))
        deferred, self._deferred = self._deferred, []
        for go_on in deferred:
            go_on()

    def _route_on(
        self, link: Link, frame: bytes, message: Message, done: Callable[[], None] | None
    ) -> None:
        route = self._route_of(message, link.info, self._routes_from(link.info))
        if in_hand := self._in_hand.get((message.origin, message.number)):
            in_hand.passed_to = route.neighbors
        if message.retain and message.version:
            self._retained_arrived(message, route, done, link.info.peer)
        else:
            self.plain.remember(link.info, frame, message, route)
            self._pass_on(message, route, done, link.info.peer)

    def _retained_arrived(
        self, message: Message, route: Route, done: Callable[[], None] | None, key: str
    ) -> None:
        """The newest retained message of a topic wins, at every broker."""
        local = self.retention.arrived(message)
        if local is None:
            self.counters["retained_known"] += 1
            if done is not None:
                done()
        elif local is message:
            self._pass_on(message, route, done, key)
        else:
            join = _Join(2, done) if done is not None else None
            self._pass_on(message, Route(route.neighbors), join, key)
            self._pass_on(local, Route((), route.to_local_broker), join, key)

    def _take_in_hand(self, message: Message, done: Callable[[], None]) -> Callable[[], None]:
        """Note that `message` is on its way, for who sends it again meanwhile."""
        key = (message.origin, message.number)
        self._in_hand[key] = _InHand(done)

        def safe() -> None:
            if in_hand := self._in_hand.pop(key, None):
                in_hand.safe()

        return safe

    def _repeated(
        self, message: Message, neighbor: SessionInfo, done: Callable[[], None] | None
    ) -> None:
        """It was here before: acknowledged when that copy is safe, which it may be already."""
        if done is None:
            return
        in_hand = self._in_hand.get((message.origin, message.number))
        if in_hand is None or neighbor in in_hand.passed_to:
            # A neighbour that has it from here too must not wait for us to wait for it.
            done()
            return
        in_hand.waiting.append(done)
        # In a ring that is being cut, three or more may wait for each other.
        self.host.call_later(RECOVERY_S, lambda: in_hand.give_in(done))

    def _wanted(self, message: Message, link: Link) -> bool:
        """Whether this is not a message that goes round, or that was here already."""
        if message.number:
            # Its number tells more than the way it came.
            if message.hops <= MAX_HOPS and self.seen.is_new(message.origin, message.number):
                return True
            self.counters["repeated"] += 1
            return False
        if message.hops > MAX_HOPS or not self.guard.is_primary(message.origin, link.info.peer):
            self.counters["loop_dropped"] += 1
            return False
        return True

    def _routes_from(self, session: SessionInfo) -> RouteTable:
        table = self._link_routes.get(session)
        if table is None:
            table = RouteTable(lambda topic: self._route(topic, session))
            self._link_routes[session] = table
        return table

    def _send(self, link: Link, lane: int, data: bytes) -> None:
        connection = link.connections[lane] if lane < link.lanes else None
        if data and connection is not None:
            connection.send(data)

    # ---- what the topology guard does ----------------------------------------------------

    def send(self, neighbor: str, payload: bytes) -> None:
        link = self.links.links.get(neighbor)
        if link is not None:
            link.send_control(encode(Publish(TOPOLOGY_TOPIC, payload), 5))

    def activate(self, neighbor: str) -> None:
        """The link closes no loop: it is the algorithm's from now on, or again."""
        self.plain.forget()
        link = self.links.links[neighbor]
        link.active = True
        link.info.status = SessionStatus.ESTABLISHED
        self.recovery.joined(neighbor)
        self.algorithm.on_session_established(link.info)
        if not self.algorithm.synchronises:
            self.recovery.ready(neighbor)
        self.retention.neighbor_joined(link)
        for lane in range(link.lanes):
            link.transmit(lane, self.host.now())

    def block(self, neighbor: str, ring: tuple[str, ...]) -> None:
        """The link closes a loop: it stands by until the loop is gone."""
        self.counters["links_blocked"] += 1
        self.host.log(
            "warning",
            "link closes a loop and is blocked; cut it or another one of the ring",
            neighbor=neighbor,
            ring=" - ".join(ring),
        )
        self.recovery.left(neighbor)
        if link := self.links.links.get(neighbor):
            self._close_for_algorithm(link)

    # ---- every turn; what people see -----------------------------------------------------

    def flush(self) -> None:
        self.links.flush()

    def status(self) -> dict[str, Any]:
        """Links, routes and counters, JSON-able."""
        return {
            "algorithm": {"name": self.settings.algorithm, **self.algorithm.status()},
            "links": [self._describe(link) for link in self.links],
            "peers": [
                {"address": peer.address, "neighbor": peer.info.peer, "problem": peer.problem}
                for peer in self.links.peers.values()
            ],
            "topology": self.guard.status(),
            "retained": self.retention.store.status(),
            "wills": self.clients.wills.status(),
            "counters": dict(self.counters),
            "refusals": dict(self.links.refusals),
        }

    def _describe(self, link: Link) -> dict[str, Any]:
        state = self.guard.state(link.info.peer) if link.status is LinkStatus.UP else None
        return {
            "neighbor": link.info.peer,
            "status": "down" if state is None else state.name.lower(),
            "blocked": state is LinkState.BLOCKED,
            "lanes": link.lanes,
            "qos": link.qos,
            "initiator": link.initiator,
            "sent": link.sent,
            "dropped": link.dropped,
            "unacknowledged": sum(len(lane.unacked) for lane in link.outgoing),
            "unacknowledged_bytes": link.unacked_bytes(),
        }


def _nobody_to_hold() -> Callable[[], None]:
    return lambda: None


class _Join:
    """Calls `done` when it has been called `count` times."""

    __slots__ = ("_count", "_done")

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._count = count
        self._done = done
        if count == 0:
            done()

    def __call__(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._done()


class _InHand:
    """A message that is not safe yet, and who waits for it to be."""

    __slots__ = ("passed_to", "waiting")

    def __init__(self, done: Callable[[], None]) -> None:
        self.waiting = [done]
        self.passed_to: tuple[SessionInfo, ...] = ()

    def safe(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()

    def give_in(self, done: Callable[[], None]) -> None:
        if done in self.waiting:
            self.waiting.remove(done)
            done()


class _Acknowledge:
    """Acknowledges one message to the neighbour it came from."""

    __slots__ = ("_exchange", "_incoming", "_lane", "_link", "_number", "_qos")

    def __init__(  # noqa: PLR0917 - made once per message, so by position
        self, exchange: Exchange, link: Link, lane: int, incoming: Incoming, number: int, qos: int
    ) -> None:
        self._exchange = exchange
        self._link = link
        self._lane = lane
        self._incoming = incoming
        self._number = number
        self._qos = qos

    def __call__(self) -> None:
        answer = self._incoming.safe(self._number, self._qos)
        # If another stream runs there now, nobody waits for this; if the same one was taken up by
        # a new link, the sender repeats the message and is answered then.
        lane = self._lane
        if lane < self._link.lanes and self._link.incoming[lane] is self._incoming:
            self._exchange._send(self._link, lane, answer)
