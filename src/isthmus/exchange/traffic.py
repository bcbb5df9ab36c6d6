"""Messages on their way through a node: where they come from, where they go, when they are safe.

    local client ──client_publish──▶ ┐            ┌──▶ links (acknowledged by the neighbours)
                                     ├── route ───┤
    neighbour ─────message_arrived──▶┘            └──▶ local broker (host.inject)

A message from a neighbour is acknowledged to it when everybody it was passed on to has acknowledged
it.  A message is taken once: at QoS 1 and 2 by its number, at QoS 0 only from the neighbour through
which its origin is reached, so that it is neither duplicated nor circulated, even while the
topology is changing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from isthmus.cooperation.api import CooperationAlgorithm, Route, SessionInfo
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.host import Host
from isthmus.exchange.lane import Incoming
from isthmus.exchange.link import Link, LinkStatus
from isthmus.exchange.links import Links
from isthmus.exchange.message import MAX_HOPS, Message, from_link, plain_to_link
from isthmus.exchange.plain import PlainMessage, PlainMessages
from isthmus.exchange.recovery import RECOVERY_S, Recovery
from isthmus.exchange.retention import Retention
from isthmus.exchange.routes import MAX_TOPICS, RouteTable
from isthmus.exchange.seen import SeenMessages
from isthmus.exchange.topology import TopologyGuard

__all__ = ["Traffic"]

Hold = Callable[[], Callable[[], None]]
"""Stops reading from a client; what it returns lets it go on."""


class Traffic:
    """The data plane of one node."""

    def __init__(
        self,
        host: Host,
        algorithm: CooperationAlgorithm,
        *,
        links: Links,
        guard: TopologyGuard,
        counters: Counter[str],
        any_client: SessionInfo,
    ) -> None:
        self.host = host
        self.algorithm = algorithm
        self.links = links
        self.guard = guard
        self.counters = counters
        self.node_id = links.hello.node_id
        self.by_session: dict[SessionInfo, Link] = {}
        self.retention = Retention(host, self.node_id, self._retained_news)
        self.recovery = Recovery(host, algorithm.on_neighbors_back, self._recovered)
        self.plain = PlainMessages(self.node_id)
        self.seen = SeenMessages()
        self.any_client = any_client
        """Stands for every local client: a route does not depend on which."""
        self.client_routes = RouteTable(lambda topic: self._route(topic, any_client))
        self._link_routes: dict[SessionInfo, RouteTable] = {}
        self._deferred: list[Callable[[], None]] = []
        self._in_hand: dict[tuple[str, str], _InHand] = {}
        self._numbers = 0
        self.stopping = False

    @property
    def in_hand(self) -> int:
        """Messages of neighbours that are not safe yet."""
        return len(self._in_hand)

    def routes_changed(self, filters: list[str] | None) -> None:
        self.plain.forget()
        self.client_routes.drop(filters)
        for table in self._link_routes.values():
            table.drop(filters)

    def neighbor_left(self, link: Link) -> None:
        """The algorithm has no such session any more."""
        self._link_routes.pop(link.info, None)
        self.retention.neighbor_left(link)
        self.recovery.left(link.info.peer)

    # ---- from local clients --------------------------------------------------------------

    def client_publish(self, message: Message, hold: Hold) -> None:
        """A local client published; its own broker has it already.

        If a link is congested, `hold` is called: it stops reading from the client, and what it
        returns lets it go on.
        """
        if message.topic.startswith(b"$"):
            return
        if message.qos:
            self._numbers += 1
            message.number = f"{self.links.hello.incarnation}.{self._numbers:x}"
            self.seen.is_new(self.node_id, message.number)
        if message.retain:
            self.retention.published(message)
        if message.qos and self.recovery.active:
            release = hold()
            self._deferred.append(lambda: self._publish(message, hold))
            self._deferred.append(release)
        else:
            self._publish(message, hold)

    def _publish(self, message: Message, hold: Hold) -> None:
        route = self._route_of(message, self.any_client, self.client_routes)
        if route.neighbors:
            self.counters["published_to_links"] += 1
            self._pass_on(message, route, None, "")
            if message.qos:
                for session in route.neighbors:
                    link = self.by_session.get(session)
                    if link is not None and link.congested():
                        self._hold_back(link, hold)

    def publish_plain(self, topic: bytes, payload: bytes, route: Route) -> None:
        """A local client published at QoS 0, not retained, without properties: the hot path."""
        self.counters["published_to_links"] += 1
        frame = self.plain.to_link(topic, payload)
        for session in route.neighbors:
            link = self.by_session.get(session)
            if link is not None:
                link.send_plain(topic, frame)

    def _hold_back(self, link: Link, hold: Hold) -> None:
        if link.status is LinkStatus.UP:
            self.counters["publishers_held"] += 1
            if not link.waiters:
                self.host.log(
                    "warning",
                    "publishers held: the neighbour does not acknowledge",
                    neighbor=link.info.peer,
                    unacknowledged_bytes=link.unacked_bytes(),
                )
            link.waiters.append(hold())
        else:
            self.links.let_go(link, "its queue is full and it does not come back")

    # ---- from neighbours -----------------------------------------------------------------

    def message_arrived(self, link: Link, lane: int, frame: bytes) -> None:
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
                self.send(link, lane, number)
                return
            done = _Acknowledge(link, lane, incoming, number, qos)
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

    def plain_arrived(self, found: PlainMessage, key: str) -> None:
        """Pass on a message like one that came before: the hot path."""
        known, payload = found
        self.counters["received_from_links"] += 1
        if known.route.neighbors:
            frame = plain_to_link(known.prefix, payload)
            for session in known.route.neighbors:
                link = self.by_session.get(session)
                if link is not None:
                    link.send_plain(known.topic, frame)
        if known.route.to_local_broker and not self.host.inject_plain(known.topic, payload, key):
            self.counters["inject_dropped"] += 1

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

    def _retained_news(self, message: Message, link: Link) -> None:
        """A neighbour that joined had a retained message that was not known here."""
        route = self.algorithm.route(message.topic.decode(), link.info, retain=True)
        self.counters["retained_synchronised"] += 1
        self._pass_on(message, route, None, link.info.peer)

    def _recovered(self) -> None:
        """All neighbours are back, or given up: what waited can be decided."""
        self.host.log("info", "recovered", messages=len(self._deferred))
        deferred, self._deferred = self._deferred, []
        for go_on in deferred:
            go_on()

    # ---- where to ------------------------------------------------------------------------

    def _route(self, topic: str, arrived_on: SessionInfo) -> Route:
        if topic.startswith("$"):
            return Route()  # about the broker itself, and never anybody else's
        return self.algorithm.route(topic, arrived_on, retain=False)

    def _routes_from(self, session: SessionInfo) -> RouteTable:
        table = self._link_routes.get(session)
        if table is None:
            table = RouteTable(lambda topic: self._route(topic, session))
            self._link_routes[session] = table
            for each in self._link_routes.values():
                each.most = MAX_TOPICS // len(self._link_routes)
        return table

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
            link = self.by_session.get(session)
            if link is not None:
                link.send(message, now_s, part)
            elif part is not None:
                part()
        if route.to_local_broker and not self.host.inject(message, key, part):
            self.counters["inject_dropped"] += 1

    def give_up(self, link: Link) -> None:
        """What the neighbour has not acknowledged goes another way, if there is one."""
        lost = 0
        for message in link.give_up():
            route = self._route_of(message, self.any_client, self.client_routes)
            if route.neighbors:
                self._pass_on(message, Route(route.neighbors), None, "")
                self.counters["rerouted"] += 1
            else:
                lost += 1
        if lost:
            self.counters["given_up"] += lost
            self.host.log("warning", "messages given up", neighbor=link.info.peer, messages=lost)

    @staticmethod
    def send(link: Link, lane: int, data: bytes) -> None:
        connection = link.connections[lane] if lane < link.lanes else None
        if data and connection is not None:
            connection.send(data)


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

    __slots__ = ("_incoming", "_lane", "_link", "_number", "_qos")

    def __init__(self, link: Link, lane: int, incoming: Incoming, number: int, qos: int) -> None:
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
            Traffic.send(self._link, lane, answer)
