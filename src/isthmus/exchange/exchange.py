"""The exchange: a node's clients, links, broker and algorithm, joined without I/O.

It is the algorithm's port and puts the parts together: `Clients` (sessions and wills), `Links`
(connections and neighbors), `TopologyGuard` (which links close no ring) and `Traffic` (where each
message goes, and when it is safe).  Its surroundings are a `Host`: the asyncio node, or the exact
simulator.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, get_args

from isthmus.cooperation.api import (
    AS_CONFIGURED,
    MAX_LABEL_BYTES,
    AnnouncedNode,
    CooperationAlgorithm,
    LinkOptions,
    LinkTraffic,
    Moving,
    ReceivedPacket,
    Resend,
    Resources,
    Route,
    SessionInfo,
    SessionKind,
    SessionStatus,
    TopicMove,
    Topology,
)
from isthmus.cooperation.link_rules import NO_RULES, LinkRules, check_rules, no_rules
from isthmus.cooperation.registry import not_routed
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.algorithm_state import AlgorithmState
from isthmus.exchange.apart.spool import Spools
from isthmus.exchange.broker.set_apart import BROKER_SPOOL
from isthmus.exchange.client.client import ClientEnd, Pair
from isthmus.exchange.client.clients import Clients
from isthmus.exchange.client.confirming import LOCAL, ConfirmSettings
from isthmus.exchange.client.wills import NAME as WILLS_NAME
from isthmus.exchange.client.wills import DueWill
from isthmus.exchange.discovery.datagrams import discovery_key
from isthmus.exchange.discovery.discovery import Discovery, DiscoverySettings
from isthmus.exchange.host import Host
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.hello import CONTROL_LIMITS, Hello, link_key
from isthmus.exchange.link.life import LinkAction, LinkEvent, LinkState
from isthmus.exchange.link.link import SETTLED_TOPIC, Link
from isthmus.exchange.link.links import Links, LinkSettings
from isthmus.exchange.link.same_id import SAME_ID_TOPIC
from isthmus.exchange.link.set_apart import LINK_SPOOL, LinkApart
from isthmus.exchange.link.streams import STREAM_TOPIC
from isthmus.exchange.retained.broker import OWN_KEY
from isthmus.exchange.retained.journal import JOURNAL_NAME as RETAINED_NAME
from isthmus.exchange.retained.service import RETAINED_TOPIC
from isthmus.exchange.split.brokers import Brokers, BrokersSettings
from isthmus.exchange.split.kept import STATE_NAME as KEPT_NAME
from isthmus.exchange.split.kept import KeptSessions
from isthmus.exchange.timers import Timers
from isthmus.exchange.topology.guard import TopologyGuard
from isthmus.exchange.topology.open import OpenTopology
from isthmus.exchange.traffic.message import from_publish
from isthmus.exchange.traffic.plain import ClientRun
from isthmus.exchange.traffic.routes import RouteTable
from isthmus.exchange.traffic.traffic import Traffic
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Packet, Publish
from isthmus.mqtt.publish_layout import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    packet_id_at,
    topic_start,
)

__all__ = ["CONTROL_PREFIX", "Exchange", "ExchangeSettings"]

CONTROL_PREFIX = b"$isthmus/"
TOPOLOGY_TOPIC = "$isthmus/topology"
MAX_ALGORITHM_BYTES = 131_072
"""Of a SUBSCRIBE, UNSUBSCRIBE, SUBACK or UNSUBACK on a link."""
TELL_AGAIN_S = 60.0
NOT_YET_S = 0.05
"""How often is looked whether the node runs, for a timer that has run out before."""
TOPOLOGY_TURN_S = 0.005
TOPOLOGY_MESSAGE_S, TOPOLOGY_ITEM_S = 50e-6, 2e-6
"""What a topology message takes, and how much longer for every node and link in it."""

_ACKS = frozenset((PUBACK, PUBREC, PUBCOMP))
_ALGORITHMS_OWN = frozenset((0x82, 0x90, 0xA2, 0xB0))  # SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Who this node is, and how it cooperates."""

    node_id: str
    algorithm: str = "sf"
    options: Mapping[str, object] = field(default_factory=dict)
    link: LinkSettings = field(default_factory=LinkSettings)
    filters_per_client: int = 10_000
    address: str = ""
    """Where other nodes can dial this one, if that is known."""
    discovery: DiscoverySettings | None = None
    confirm: ConfirmSettings = LOCAL
    """Which messages of clients are confirmed by the whole fabric."""
    routes_retained: bool = False
    """Retained messages go only where they are wanted."""
    from_broker: bool = False
    """Messages are taken from the broker, and not from the clients."""
    interest: tuple[str, ...] = ()
    """Filters of subscribers that the node cannot see."""
    brokers: BrokersSettings | None = None
    """If there are several."""


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
        self.counters: Counter[str] = Counter()
        self.incarnation = f"{host.wall_ms():x}{host.token_bytes(4).hex()}"
        self._session_ids = 0
        self._told_too_large_s: dict[str, float] = {}
        self._topology_turn_s = self._topology_spent_s = 0.0
        topology: Topology = getattr(algorithm, "topology", CooperationAlgorithm.topology)
        max_label_bytes: int = getattr(algorithm, "max_label_bytes", 0)
        hello = Hello(
            self.node_id,
            self.incarnation,
            getattr(algorithm, "speaks", "") or settings.algorithm,
            topology=topology,
            address=settings.address,
            keeps_state=host.keeps_state,
            max_label_bytes=max_label_bytes,
            retained="routed" if settings.routes_retained else "everywhere",
        )
        self.links = Links(host, settings.link, hello, self)
        self.spools = Spools(host, settings.link.apart_bytes)
        key = discovery_key(link_key(settings.link.secret))
        self.discovery = Discovery(host, self.links.hello, key, self, settings.discovery)
        self.guard: TopologyGuard | OpenTopology
        if topology == "any":
            self.guard = OpenTopology(
                self.node_id, self.incarnation, self, lambda: self.algorithm.fabric_size
            )
        else:
            self.guard = TopologyGuard(self.node_id, self.incarnation, self)
        self._forgot = settings.confirm.is_on and not host.keeps_state
        """Nothing is known of a last life, and nothing is to be confirmed without it."""
        self._running = False
        self._early: list[Callable[[], None]] = []
        """What was asked for before the node runs."""
        self._timers = Timers(host, self._timer_fired)
        self.clients = Clients(
            host,
            self.new_local_session,
            self._will_due,
            filters_per_client=settings.filters_per_client,
            back_s=settings.confirm.back_s if self._forgot else 0.0,
            from_broker=settings.from_broker,
        )
        self.brokers: Brokers | None = None
        self.kept_sessions: KeptSessions | None = None
        if settings.brokers is not None:
            self.brokers = Brokers(host, settings.brokers, self.counters)
            self.kept_sessions = KeptSessions(host)
        self._state = AlgorithmState(host, settings.algorithm)
        self.traffic = traffic = Traffic(
            host,
            links=self.links,
            guard=self.guard,
            counters=self.counters,
            any_client=self.new_local_session(SessionKind.LOCAL_CLIENT, ""),
            max_label_bytes=max_label_bytes,
            holds_qos0=getattr(algorithm, "holds_qos0", False),
            sets_apart=self.spools.on,
        )
        if self.brokers is not None:
            brokers = self.brokers
            brokers.on_away = traffic.retention.has_several_brokers(
                brokers.names, brokers.of, brokers.is_away
            )
        self.algorithm = algorithm(self, settings.options)
        _check_said(self.algorithm, topology, max_label_bytes)
        self.links.admission.obeys_rules = self.algorithm.obeys_rules
        if settings.routes_retained:
            if not self.algorithm.routes_retained:
                raise ValueError(f"retained: {not_routed(settings.algorithm)}")
            traffic.retention.route_by(self.algorithm)
            traffic.detours.retained_follows = True
        self.clients.algorithm = traffic.routes.algorithm = self.algorithm
        self._link_actions = {
            LinkAction.JOIN: self._join,
            LinkAction.PART: lambda link: self.guard.link_down(link.info.name),
            LinkAction.ESTABLISH: self._establish,
            LinkAction.PAUSE: lambda link: self.algorithm.on_tcp_down(link.info),
            LinkAction.CLOSE: self._end_session,
            LinkAction.FORGET: self._forget,
        }
        self.retention = traffic.retention
        self.recovery = traffic.recovery
        self.client_routes = traffic.client_routes
        if settings.from_broker:
            # What clients publish goes to the broker alone, and comes from there.
            self.client_routes = RouteTable(lambda _topic: Route())
        self.client_publish = traffic.client_publish
        self.client_run = ClientRun(
            traffic.publish_plain, traffic.publish_batch, traffic.may_be_batch
        )
        # What came before is dealt with when a hook is called.
        traffic.routes.before_asking = self.clients.before_telling = self.client_run.end

    # ---- life ----------------------------------------------------------------------------

    def start(self) -> None:
        self._running = True
        if self.brokers is not None and self.kept_sessions is not None:
            self.brokers.algorithm = self.algorithm
            self.kept_sessions.load(self.brokers.names)
        self.retention.start()
        self.recovery.start(forgot=self._forgot)
        self._take_up_spools()
        if self.settings.from_broker:
            self.host.take_from_broker()
            if not self.algorithm.follow_wanted():
                self.host.want(("#",), ())
        self.algorithm.on_node_start()
        self.clients.start(self.settings.interest)
        self.links.start()
        self.discovery.start(by_itself=not self.algorithm.discovers)
        for do in self._early:
            do()

    def _take_up_spools(self) -> None:
        """What an earlier life has left on disk: the broker gets it now, neighbors when linked."""
        if not self.spools.on:
            return
        self.spools.start()
        for name in self.spools.left():
            kind, _, key = name.partition("-")
            if kind == BROKER_SPOOL:
                self.host.publish_left(key)
            elif kind == LINK_SPOOL:
                self.host.call_later(self.settings.link.apart_s, partial(self._left_alone, key))

    def _left_alone(self, neighbor: str) -> None:
        """Give up what waits on disk for a neighbor of an earlier life that has not come back."""
        name = f"{LINK_SPOOL}-{neighbor}"
        if not self._running or name not in self.spools.left():
            return
        spool = self.spools.open(name)
        assert spool is not None
        lost = spool.messages
        self.counters["given_up"] += lost
        self.host.log("warning", "messages given up", neighbor=neighbor, messages=lost)
        spool.discard()
        self.spools.leaves(spool)

    def new_link(self, link: Link) -> None:
        """What waits for the neighbor can be on disk, if its way is not the algorithm's affair."""
        name = link.info.name
        if self.guard.knows_ways and (spool := self.spools.open(f"{LINK_SPOOL}-{name}")):
            link.apart = LinkApart(self.host, link, spool, self._neighbor)

    def _neighbor(self, name: str) -> SessionInfo | None:
        link = self.links.links.get(name)
        return None if link is None else link.info

    def is_kept_apart(self, link: Link) -> bool:
        reached = link.info.name in self.guard.ways()
        return link.apart is not None and link.state is LinkState.HELD and not reached

    def state_lost(self, name: str) -> None:
        """The host could not write all that was appended under `name`: write it anew."""
        if name == RETAINED_NAME:
            self.retention.journal.lost()
        elif (own := self._state.name_of(name)) is not None:
            self.algorithm.on_state_lost(own)
        elif name == WILLS_NAME:
            self.clients.wills.state_lost()
        elif name == KEPT_NAME and self.kept_sessions is not None:
            self.kept_sessions.state_lost()

    def begin_stop(self) -> None:
        """Take nothing more from neighbors; every local client is about to go: wills are due."""
        self.traffic.in_hand.stopping = True
        self.host.stop_taking()
        self.clients.wills.stop()

    def unacknowledged(self) -> int:
        """Messages that are not safe yet: at neighbors, or on their way to the local broker."""
        at_neighbors = sum(link.only_in_memory() for link in self.links)
        waiting = self.recovery.only_here() + self.traffic.pending.only_here()
        return at_neighbors + len(self.traffic.in_hand) + waiting

    def stop(self) -> None:
        """Tell the algorithm and the neighbors."""
        if not self._running:
            return
        self.algorithm.on_node_stop()
        self._running = False
        if self.brokers is not None and self.kept_sessions is not None:
            self.brokers.stop()
            self.kept_sessions.stop()
        self.discovery.stop()
        self.clients.stop()
        self.links.stop()
        self.traffic.stop()
        self.spools.stop()
        self.recovery.stop()
        self.retention.stop()
        self._timers.cancel_all()

    def add_peer(
        self,
        address: str,
        lanes: int | None = None,
        qos: int | None = None,
        rules: LinkRules = NO_RULES,
    ) -> None:
        """Add a neighbor (ILDM §4.4), or do so when the node runs.

        Raises `ValueError` if it cannot have `rules`.
        """
        check_rules(rules)
        if rules and not self.algorithm.obeys_rules:
            raise ValueError(no_rules(self.settings.algorithm))
        known = self.links.peers.get(address)
        if known is not None and known.rules != rules:
            raise ValueError(
                f"{address} is a peer already, with other rules for its link; remove it first"
            )
        options = LinkOptions(lanes, qos, rules)
        self.discovery.is_wanted(address)
        if self._running:
            self.algorithm.on_node_add(address, options)
        else:
            self._early.append(lambda: self.algorithm.on_node_add(address, options))

    def remove_peer(self, name: str) -> bool:
        """Remove a neighbor by its id or address; False if there is none of that name."""
        removed = self.links.remove(name)
        if isinstance(removed, Link):
            self.algorithm.on_node_remove(removed.info)
        return removed is not None

    # ---- the algorithm's port ------------------------------------------------------------

    @property
    def address(self) -> str:
        return self.settings.address

    @property
    def resources(self) -> Resources:
        return self.host.resources()

    def traffic_of(self, session: SessionInfo) -> LinkTraffic | None:
        link = self.traffic.by_session.get(session)
        return None if link is None else link.traffic()

    def announce(self, data: bytes) -> bool:
        if not self._running:
            self.discovery.check(data)
            self._early.append(lambda: _do(self.discovery.announce, data))
            return self.discovery.is_on
        return self.discovery.announce(data)

    def create_session(self, address: str, options: LinkOptions = AS_CONFIGURED) -> SessionInfo:
        defaults = self.settings.link
        return self.links.dialing.dial(
            address,
            defaults.lanes if options.lanes is None else options.lanes,
            defaults.qos if options.qos is None else options.qos,
            options.rules,
        ).info

    def close_session(self, session: SessionInfo) -> None:
        if session.kind is not SessionKind.NEIGHBOR:
            self.clients.close(session)
        elif session.status is not SessionStatus.TERMINATING and self.links.knows(session):
            session.status = SessionStatus.TERMINATING
            self.links.dialing.forget_session(session)
            self._soon(lambda: self._close(session))

    def _close(self, session: SessionInfo) -> None:
        for link in [link for link in self.links if link.info is session]:
            self.links.close(link)
        if session.status is SessionStatus.TERMINATING:
            session.status = SessionStatus.CLOSED
            self.algorithm.on_session_closed(session)

    def send_message(self, session: SessionInfo, message: bytes) -> bool:
        if session.kind is not SessionKind.NEIGHBOR:
            return self.clients.send(session, message)
        link = self.traffic.by_session.get(session)
        if link is None or session.status is not SessionStatus.ESTABLISHED:
            return False
        self.counters["control_sent"] += 1
        return link.send_control(message)

    def get_paired_session(self, session: SessionInfo) -> SessionInfo | None:
        return self.clients.paired(session)

    def create_mqtt_message(self, packet: Packet, level: int = 5) -> bytes:
        return encode(packet, level)

    def refuse(self, session: SessionInfo, error: RemoteProtocolError) -> None:
        link = self.traffic.by_session.get(session)
        if link is not None:
            connection = link.connections[0] if link.lanes else None
            self._soon(lambda: self._refuse(link, connection, error))

    def _refuse(
        self, link: Link, connection: Connection | None, error: RemoteProtocolError
    ) -> None:
        if connection is not None and connection in link.connections:
            self.links.misbehaved(connection, error)

    def broke_rules(self, session: SessionInfo, name: str) -> None:
        link = self.traffic.by_session.get(session)
        if link is not None:
            self.traffic.broke_rules(link, name)

    def synchronized(self, session: SessionInfo) -> None:
        self._soon(lambda: self.recovery.ready(session.name))
        if self.routes_retained:
            self.compare_retained(session)

    @property
    def routes_retained(self) -> bool:
        return self.settings.routes_retained

    def retained_wanted(self, session: SessionInfo | None, filters: Iterable[str]) -> None:
        if self.routes_retained:
            wanted = list(filters)
            self._soon(lambda: self.retention.wanted(session, wanted))

    def compare_retained(self, session: SessionInfo) -> None:
        link = self.traffic.by_session.get(session)
        if link is not None:
            self._soon(lambda: self.retention.compare(link))

    def _soon(self, do: Callable[[], None]) -> None:
        """Not from within a call of the port, and only while the node runs: hooks follow."""
        if self._running:
            self.host.call_later(0.0, lambda: do() if self._running else None)
        else:
            self._early.append(do)

    def awaits_others(self, session: SessionInfo) -> bool:
        return self.recovery.awaits_others(session.name)

    def routes_changed(
        self, filters: Iterable[str] | None = None, *, resend: bool | Resend = False
    ) -> None:
        changed = None if filters is None else list(filters)
        if self.brokers is not None:
            self.brokers.changed(changed)
        if resend is not False:
            self.traffic.resend(changed, None if resend is True else resend)
        self.traffic.routes_changed(changed)

    def wanted_changed(self, added: Sequence[str], removed: Sequence[str]) -> None:
        self.host.want(added, removed)

    def set_timer(self, delay_s: float, key: Hashable) -> None:
        self._timers.set_timer(delay_s, key)

    def cancel_timer(self, key: Hashable) -> None:
        self._timers.cancel_timer(key)

    def _timer_fired(self, key: Hashable) -> None:
        if self._running:
            self.algorithm.on_timer(key)
        else:
            self._timers.set_timer(NOT_YET_S, key)

    def now(self) -> float:
        return self.host.now()

    @property
    def random(self) -> random.Random:
        return self.host.random

    def load_state(self, name: str, version: int = 1) -> list[bytes]:
        return self._state.load(name, version)

    def save_state(self, name: str, records: Iterable[bytes], version: int = 1) -> None:
        self._state.save(name, records, version)

    def append_state(self, name: str, records: Iterable[bytes]) -> None:
        self._state.append(name, records)

    def move_topics(self, move: TopicMove) -> Moving:
        if self.brokers is None or self.kept_sessions is None:
            raise ValueError("the node has one broker")

        def over(problem: str) -> None:
            self.host.log(
                "warning" if problem else "info",
                "topics could not move" if problem else "topics have moved",
                move=move.name,
                cause=problem,
            )
            self.algorithm.on_topics_moved(move, problem)
            self.routes_changed()

        return self.brokers.begin_move(move, self.kept_sessions, over)

    @property
    def broker_names(self) -> tuple[str, ...]:
        return () if self.brokers is None else self.brokers.names

    @property
    def local_filters(self) -> Collection[str]:
        return self.clients.interest.filters

    def new_local_session(self, kind: SessionKind, name: str) -> SessionInfo:
        self._session_ids += 1
        return SessionInfo(self._session_ids, kind, name)

    def new_session(self, address: str) -> SessionInfo:
        session = self.new_local_session(SessionKind.NEIGHBOR, "")
        session.address = address
        return session

    # ---- other nodes that announce themselves --------------------------------------------

    def heard(self, node: AnnouncedNode, data: bytes) -> None:
        if self._running:
            self.algorithm.on_announcement(node, data)

    def same_id_announced(self, problem: str) -> None:
        self.links.conflict.told(problem)

    def is_in_fabric(self, node_id: str) -> bool:
        """Whether there is a link to it, over others perhaps, or nobody wants one."""
        return (
            node_id == self.node_id
            or node_id in self.guard.ways()
            or node_id in self.links.links
            or node_id in self.links.removed
        )

    def is_reached(self, node_id: str) -> bool:
        """Whether what is published here may come to that node, as far as is known."""
        return (
            node_id in self.links.links
            or node_id in self.guard.ways()
            or bool(self.algorithm.reaches(node_id))
        )

    def found(self, address: str) -> bool:
        if not self._running or address in self.links.peers:
            return False
        self.host.log("info", "node found", address=address)
        self.algorithm.on_node_add(address, AS_CONFIGURED)
        return True

    def lose(self, address: str) -> bool:
        peer = self.links.peers.get(address)
        if peer is not None and peer.link is not None:
            return False  # it is linked, or kept
        if peer is not None:
            self.close_session(peer.info)
        return True

    # ---- local clients -------------------------------------------------------------------

    def client_accepted(
        self, end: ClientEnd, connect: ReceivedPacket, connack: ReceivedPacket
    ) -> Pair:
        """The broker's CONNACK takes a client in: from now on the node follows it."""
        return self.clients.accepted(end, connect, connack, self.client_routes)

    def _will_due(self, due: DueWill) -> None:
        """The local broker publishes a will by itself; the neighbors have it from here."""
        publish = due.publish()
        frame = encode(replace(publish, packet_id=1) if publish.qos else publish, 5)
        topic = publish.topic.encode()
        message = from_publish(frame, 5, topic, self.node_id, self.host.now())
        if self.traffic.must_wait(message, _nobody_to_hold):
            # Who died can be held no more; clients that come and die could fill any memory.
            self.counters["given_up"] += 1
            if message.retain:
                self.retention.published(message)
            return
        self.counters["wills_sent"] += 1
        self.client_publish(message, _nobody_to_hold)
        if self.brokers is not None and due.client_id in self.brokers.moved_wills:
            del self.brokers.moved_wills[due.client_id]
            self.host.inject(message, OWN_KEY, None)

    # ---- links ---------------------------------------------------------------------------

    def carry_out(self, link: Link, action: LinkAction) -> None:
        self._link_actions[action](link)

    def _join(self, link: Link) -> None:
        link.counters = self.counters
        link.found_too_large = lambda topic, size: self._found_too_large(link, topic, size)
        self.recovery.came(link.info.name)
        self.traffic.by_session[link.info] = link
        self.host.neighbor_joined(link.info.name)
        self.guard.link_up(link.info.name)

    def _establish(self, link: Link) -> None:
        """It is the algorithm's from now on, or again."""
        self.traffic.neighbor_joined(link)
        self.algorithm.on_session_established(link.info)
        if not self.algorithm.synchronizes:
            self.recovery.ready(link.info.name)
        self.retention.neighbor_joined(link)
        link.transmit_all(self.host.now())

    def _end_session(self, link: Link) -> None:
        self.traffic.neighbor_left(link)
        self.algorithm.on_session_closed(link.info)
        self.traffic.detours.give_up(link)
        if link.apart is not None:
            self.spools.leaves(link.apart.spool)
            link.apart = None
        if link.state is not LinkState.GONE:
            self.new_link(link)

    def _forget(self, link: Link) -> None:
        if link.apart is not None:
            self.spools.close(link.apart.spool)  # it was never the algorithm's
        self._told_too_large_s.pop(link.info.name, None)
        self.traffic.by_session.pop(link.info, None)
        self.traffic.detours.forget(link.info.name)
        self.host.neighbor_left(link.info.name)

    def _found_too_large(self, link: Link, topic: bytes, size: int) -> None:
        self.counters["too_large"] += 1
        now_s = self.host.now()
        if now_s >= self._told_too_large_s.get(link.info.name, 0.0):
            self._told_too_large_s[link.info.name] = now_s + TELL_AGAIN_S
            self.host.log(
                "warning",
                "message too large for a neighbor; it is not sent there",
                neighbor=link.info.name,
                topic=topic[:200].decode(errors="replace"),
                bytes=size,
                limit=link.packet_bytes,
            )

    def link_failed(self, link: Link, error: RemoteProtocolError) -> None:
        if link.state.session:
            self.algorithm.on_recv_failure(link.info, error)

    def linked_before(self, session: SessionInfo, link: Link) -> None:
        """The node that was to become `session` is linked already: it had dialed."""
        session.name = link.info.name
        if link.joined_s < 0:
            self.traffic.by_session.pop(link.info, None)
            self.traffic.by_session[session] = link
            session.crossing = link.crossing
            link.info = session
        else:
            self.algorithm.on_session_closed(session)

    def own_other_lives(self) -> tuple[str, ...]:
        return self.guard.other_lives()

    def plain_arrived(self, link: Link, frames: Sequence[bytes], at: int) -> int:
        """Messages came on a lane of an established link; up to where they were plain and known."""
        return self.traffic.plain_arrived(link, frames, at)

    def numbered_arrived(self, link: Link, lane: int, frames: Sequence[bytes], at: int) -> int:
        """The same with messages at QoS 1 for the local broker."""
        return self.traffic.numbered_arrived(link, lane, frames, at)

    def frame_arrived(self, link: Link, lane: int, frame: bytes) -> float | None:
        """A packet came on a lane of an established link; how long to rest from it, if at all."""
        head = frame[0]
        if head & 0xF0 == PUBLISH:
            if self.traffic.in_hand.stopping:
                return None  # not acknowledged, so the neighbor keeps it
            if frame.startswith(CONTROL_PREFIX, topic_start(frame)):
                return self._control_arrived(link, lane, frame)
            else:
                link.received += 1
                self.traffic.message_arrived(link, lane, frame)
        elif head in _ACKS and len(frame) in (4, 5):
            reason = frame[4] if len(frame) == 5 else 0
            link.acknowledged(lane, head, packet_id_at(frame), self.host.now(), reason)
        elif head == PUBREL and len(frame) == 4:
            link.released(lane, packet_id_at(frame))
        elif head not in _ALGORITHMS_OWN:
            raise RemoteProtocolError(f"a packet that begins with 0x{head:02x} on a link")
        elif len(frame) > MAX_ALGORITHM_BYTES:
            raise RemoteProtocolError(f"a control packet of {len(frame)} bytes")
        elif link.state.session:
            self.counters["control_received"] += 1
            link.control_came(frame)
            self.algorithm.mqtt_message_arrived(link.info, ReceivedPacket(frame))
        else:
            # It was sent before the other end knew that this one has blocked the link.
            self.counters["control_ignored"] += 1
        return None

    def _control_arrived(self, link: Link, lane: int, frame: bytes) -> float | None:
        packet = decode(frame, 5, CONTROL_LIMITS)
        assert isinstance(packet, Publish)
        self.counters["control_received"] += 1
        link.control_came(frame)
        if packet.topic == STREAM_TOPIC:
            self.links.streams.arrived(link, lane, packet.payload)
        elif packet.topic == TOPOLOGY_TOPIC:
            self.guard.message_arrived(link.info.name, packet.payload)
            return self._rest_from_topology()
        elif packet.topic == SETTLED_TOPIC:
            link.settled(packet.payload)
        elif packet.topic == SAME_ID_TOPIC:
            self.links.same_id_told(link, packet.payload)
        elif packet.topic == RETAINED_TOPIC:
            self.retention.sync_arrived(link, packet.payload)
        elif link.state.session:
            self.algorithm.mqtt_message_arrived(link.info, ReceivedPacket(frame, packet=packet))
        return None

    def _rest_from_topology(self) -> float | None:
        """Topology messages take a time that goes with what they say, and many may come at once.

        They are taken for `TOPOLOGY_TURN_S` in a turn, and then not for three times as long from
        the neighbor that sent the last one.
        """
        now_s = self.host.now()
        if now_s != self._topology_turn_s:
            self._topology_turn_s, self._topology_spent_s = now_s, 0.0
        weight, self.guard.weight = self.guard.weight, 0
        self._topology_spent_s += TOPOLOGY_MESSAGE_S + TOPOLOGY_ITEM_S * weight
        return 3 * self._topology_spent_s if self._topology_spent_s > TOPOLOGY_TURN_S else None

    # ---- what the topology guard does ----------------------------------------------------

    def send(self, neighbor: str, payload: bytes) -> None:
        link = self.links.links.get(neighbor)
        if link is not None:
            link.send_control(encode(Publish(TOPOLOGY_TOPIC, payload), 5))

    def activate(self, neighbor: str) -> None:
        self.links.happens(self.links.links[neighbor], LinkEvent.AGREED)

    def block(self, neighbor: str, ring: tuple[str, ...]) -> None:
        """The link closes a ring: it stands by until the ring is gone."""
        self.counters["links_blocked"] += 1
        self.host.log(
            "warning",
            "link closes a ring and is blocked; cut it or another one of the ring",
            neighbor=neighbor,
            ring=" - ".join(ring),
        )
        self.recovery.left(neighbor)
        self.links.happens(self.links.links[neighbor], LinkEvent.RING)

    def pause(self, pause_s: float) -> None:
        def over() -> None:
            if self._running and isinstance(self.guard, TopologyGuard):
                self.guard.pause_over()

        self.host.call_later(pause_s, over)

    def topology_changed(self) -> None:
        self.traffic.topology_changed()

    # ---- every turn; what people see -----------------------------------------------------

    @property
    def problem(self) -> str:
        """Why clients should go to another node; empty if all is well."""
        if self.links.conflict.reason:
            return self.links.conflict.reason
        problem = self.spools.problem
        return problem and f"no room on disk for what waits, {problem}"

    def flush(self) -> None:
        self.links.flush()

    def status(self) -> dict[str, Any]:
        """Links, routes and counters, JSON-able."""
        return {
            "algorithm": {"name": self.settings.algorithm, **self.algorithm.status()},
            "links": [self._describe(link) for link in self.links],
            "peers": [
                {
                    "address": peer.address,
                    "neighbor": peer.info.name,
                    "problem": peer.problem,
                    "rules": peer.rules.shown(),
                }
                for peer in self.links.peers.values()
            ],
            "apart": self.spools.status(),
            "in_hand": self.traffic.in_hand.status(),
            "pending": {"messages": len(self.traffic.pending), "bytes": self.traffic.pending.bytes},
            "topology": {
                "wanted": self.algorithm.topology,
                **self.guard.status(),
                "neighbors": self._up(),
            },
            "discovery": self.discovery.status(),
            "retained": {
                "goes": self.links.hello.retained,
                **self.retention.store.status(),
            },
            "interest": self.clients.status(),
            "wills": self.clients.wills.status(),
            "counters": dict(self.counters),
            "refusals": dict(self.links.refusals),
        }

    def _up(self) -> dict[str, str]:
        return {name: each.state.shown for name, each in self.links.links.items() if each.state.up}

    def _describe(self, link: Link) -> dict[str, Any]:
        return {
            "neighbor": link.info.name,
            "status": link.state.shown,
            "blocked": link.state is LinkState.BLOCKED,
            "lanes": link.lanes,
            "qos": link.qos,
            "initiator": link.initiator,
            "address": link.info.advertised or link.info.address,
            "rtt_ms": round(link.info.rtt_s * 1000, 3),
            **asdict(link.traffic()),
            "sent": link.sent,
            "dropped": link.dropped,
            "rules": None if link.crossing is None else link.crossing.shown(),
            "rules_refused": link.refused,
            "unacknowledged": link.unacked(),
            "unacknowledged_bytes": link.unacked_bytes(),
        }


def _check_said(algorithm: CooperationAlgorithm, topology: Topology, max_label_bytes: int) -> None:
    """What the node was built for must be what the algorithm says."""
    name = type(algorithm).__name__
    if algorithm.topology not in get_args(Topology):
        raise ValueError(f"{name}.topology is {algorithm.topology!r}: neither 'tree' nor 'any'")
    if not 0 <= algorithm.max_label_bytes <= MAX_LABEL_BYTES:
        raise ValueError(f"{name}.max_label_bytes is not from 0 to {MAX_LABEL_BYTES}")
    if "label" not in algorithm.route.__code__.co_varnames:
        raise ValueError(
            f"{name}.route takes no `label`: route(topic, arrived_on, label, *, retain)"
        )
    if (algorithm.topology, algorithm.max_label_bytes) != (topology, max_label_bytes):
        raise ValueError(f"what makes {name} must have its `topology` and `max_label_bytes`")


def _do(action: Callable[[bytes], object], data: bytes) -> None:
    action(data)


def _nobody_to_hold() -> Callable[[], None]:
    return lambda: None
