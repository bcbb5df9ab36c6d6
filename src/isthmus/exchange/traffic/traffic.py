"""Messages on their way through a node: where they come from, where they go, when they are safe.

    local client ──client_publish──▶ ┐            ┌──▶ links (acknowledged by the neighbors)
                                     ├── route ───┼──▶ neighbors that are awaited (`recovery`)
    neighbor ──────message_arrived──▶┘            └──▶ local broker (host.inject)

A message from a neighbor is acknowledged to it when everybody it was passed on to has acknowledged
it, or when too many after it wait for that (`relief`).  A message is taken once: at QoS 1 and 2 by
its number (`seen`), at QoS 0 only from the neighbor through which its origin is reached, so that it
is neither duplicated nor circulated, even while the topology is changing.  At QoS 1 and 2 a message
that comes from elsewhere waits, unacknowledged, for the topology to say that it may; after
`DOUBT_S` it is dropped.

What a neighbor that is given up has not acknowledged goes to those neighbors of its present route
that have not had it.  Unless the neighbor is reached over one of them it is counted as given up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from isthmus.cooperation.api import CooperationAlgorithm, Route, SessionInfo
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.link.lane import Incoming, Outgoing
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.links import Links
from isthmus.exchange.retained.service import Retention
from isthmus.exchange.topology.guard import TopologyGuard
from isthmus.exchange.traffic.message import Message, from_link, plain_to_link
from isthmus.exchange.traffic.plain import PlainMessage, PlainMessages
from isthmus.exchange.traffic.recovery import Awaited, Recovery
from isthmus.exchange.traffic.relief import LOOK_AGAIN_S, MAX_UNSAFE, UNSAFE_PART, BrokerQueue
from isthmus.exchange.traffic.routes import MAX_TOPICS, RouteTable
from isthmus.exchange.traffic.seen import SeenMessages, Verdict

__all__ = ["Traffic"]

LEAST_HOPS = 64
"""A message may go this far in any fabric; in a large one, twice as far as it has nodes."""
DOUBT_S = 10.0
RECENT_S = 120.0
"""How long, at least, a neighbor counts that was on the way to an origin: a message that was held
for somebody, once or twice, may come again on another way."""
LET_GO_S = 10.0
"""When those that wait for each other in a ring that is being cut stop doing so."""
LOOK_S = 0.05
STEP = 100
STEPS = 10
"""What is done for many messages is done for so many times `STEP` of them in a turn."""
MAX_DOUBTFUL = 2_000
MAX_DOUBTED = 256

Hold = Callable[[], Callable[[], None]]
"""Stops reading from a client; what it returns lets it go on."""


_OVER = object()
_Arrived = tuple[Link, bytes, Message, "_Acknowledge | None", float]
"""A numbered message from a neighbor, its packet, its acknowledgment, and how long to doubt it."""


class Traffic:
    """The data plane of one node."""

    def __init__(
        self,
        host: Host,
        *,
        links: Links,
        guard: TopologyGuard,
        counters: Counter[str],
        any_client: SessionInfo,
    ) -> None:
        self.host = host
        self.algorithm: CooperationAlgorithm
        self.links = links
        self.guard = guard
        self.counters = counters
        self.node_id = links.hello.node_id
        self.by_session: dict[SessionInfo, Link] = {}
        self.retention = Retention(host, self.node_id, self, counters)
        hold_s = links.settings.hold_s
        self.recovery = Recovery(host, self, hold_s=hold_s)
        self.plain = PlainMessages(self.node_id)
        self.seen = SeenMessages(
            self.node_id,
            links.hello.incarnation,
            guard,
            now=host.now,
            recent_s=max(RECENT_S, 2 * hold_s),
        )
        self.any_client = any_client
        """Stands for every local client: a route does not depend on which."""
        self.client_routes = RouteTable(lambda topic: self._route(topic, any_client))
        self._link_routes: dict[SessionInfo, RouteTable] = {}
        self._doubtful: list[_Arrived] = []
        self._doubt_timer: Cancellable | None = None
        self._doubted: set[tuple[str, str]] = set()
        """Neighbors and origins of which it was told."""
        self._looking = False
        self._tasks: deque[Iterator[None]] = deque()
        self._ways_round: dict[str, tuple[str | None, float]] = {}
        """Of neighbors whose own link does not carry messages: how they are reached, since when."""
        self._in_hand: dict[tuple[str, str], _InHand] = {}
        self.only_here = 0
        """Messages that were let go and still wait: nobody before this node has them."""
        self._max_unsafe_bytes = links.settings.queue_bytes // UNSAFE_PART
        self._at_broker: dict[str, BrokerQueue] = {}
        self._numbers = 0
        self.stopping = False

    @property
    def in_hand(self) -> int:
        """Messages of neighbors that are not safe yet."""
        return len(self._in_hand)

    def routes_changed(self, filters: list[str] | None) -> None:
        self.plain.forget()
        self.client_routes.drop(filters)
        for table in self._link_routes.values():
            table.drop(filters)
        if self.recovery.active and not self._looking:
            self._looking = True
            self.host.call_later(LOOK_S, self._look_through)

    def topology_changed(self) -> None:
        """Nothing that was found out about who is reached over whom holds any longer."""
        self.plain.forget()
        self.seen.look()
        for link in self.links:
            if link.state.carries:
                self._ways_round.pop(link.info.peer, None)
            else:
                self._way_round(link.info.peer)
        if self._doubtful:
            self._judge_again()

    def neighbor_joined(self, link: Link) -> None:
        link.joined_s = self.host.now()
        self.seen.joined(link.info.peer)
        self.recovery.joined(link.info.peer)

    def neighbor_left(self, link: Link) -> None:
        """The algorithm has no such session any more."""
        self._link_routes.pop(link.info, None)
        self.seen.left(link.info.peer)
        self.retention.neighbor_left(link)
        self.recovery.left(link.info.peer)
        at_broker = self._at_broker.get(link.info.peer)
        if at_broker is not None and at_broker.bytes == 0:
            del self._at_broker[link.info.peer]

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
        if message.retain:
            self.retention.published(message)
        route = self._route_of(message, self.any_client, self.client_routes)
        if route.neighbors or self.recovery.active:
            self.counters["published_to_links"] += bool(route.neighbors)
            self._pass_on(message, route, None, "")
            if message.qos or message.retain:
                for session in route.neighbors:
                    link = self.by_session.get(session)
                    if link is None or not link.state.up:
                        continue
                    if message.qos and link.congested():
                        self._hold_back(link, hold)
                    elif message.retain and not message.qos and link.far_ahead():
                        self.counters["publishers_held"] += 1
                        link.waiters.append(hold())

    def publish_plain(self, topic: bytes, payload: bytes, route: Route) -> None:
        """A local client published at QoS 0, not retained, without properties: the hot path."""
        self.counters["published_to_links"] += 1
        frame = self.plain.to_link(topic, payload)
        for session in route.neighbors:
            link = self.by_session.get(session)
            if link is not None:
                link.send_plain(topic, frame)

    def _hold_back(self, link: Link, hold: Hold) -> None:
        self.counters["publishers_held"] += 1
        if not link.waiters:
            self.host.log(
                "warning",
                "publishers held: the neighbor does not acknowledge",
                neighbor=link.info.peer,
                unacknowledged_bytes=link.unacked_bytes(),
            )
        link.waiters.append(hold())

    def _is_full(self, link: Link) -> bool:
        """Whether `link` is up and takes no more; one that is down is given up instead."""
        if not link.congested():
            return False
        if link.state.up:
            return True
        self.links.let_go(link, "its queue is full and it does not come back")
        return False

    # ---- from neighbors -----------------------------------------------------------------

    def message_arrived(self, link: Link, lane: int, frame: bytes) -> None:
        now_s = self.host.now()
        message, packet_id = from_link(frame, now_s)
        qos = frame[0] >> 1 & 3
        done: _Acknowledge | None = None
        if qos:
            incoming = link.incoming[lane]
            if incoming is None:
                raise RemoteProtocolError("a numbered message before its stream was named")
            number = incoming.accept(packet_id, qos)
            if isinstance(number, bytes):
                self.counters["repeated"] += 1
                self.send(link, lane, number)
                return
            done = _Acknowledge(incoming, number, qos)
        self.counters["received_from_links"] += 1
        message.came_from = link.info
        if message.hops > max(LEAST_HOPS, 2 * self.guard.size):
            self.counters["hops_dropped"] += 1
            if done is not None:
                done()
        elif message.number:
            self._judge(link, frame, message, done, now_s + DOUBT_S)
        elif self.guard.is_primary(message.origin, link.info.peer):
            self._route_on(link, frame, message, done)
        else:
            self.counters["doubtful_dropped"] += 1
            if done is not None:
                done()

    def _judge(
        self,
        link: Link,
        frame: bytes,
        message: Message,
        done: _Acknowledge | None,
        until_s: float,
    ) -> None:
        """Whether a numbered message is taken, was here already, or is not believed yet."""
        content = (message.topic, message.payload)
        verdict = self.seen.take(message.origin, message.number, link.info.peer, content)
        if verdict is Verdict.NEW:
            if done is None:
                self._route_on(link, frame, message, None)
            else:
                self._route_on(link, frame, message, self._take_in_hand(message, done))
                if self._leaves_too_much(done.incoming, link):
                    self._relieve(done.incoming, link)
        elif verdict is Verdict.REPEATED:
            self.counters["repeated"] += 1
            self._repeated(message, link.info, done)
        elif self.host.now() < until_s and len(self._doubtful) < MAX_DOUBTFUL:
            self._doubtful.append((link, frame, message, done, until_s))
            if self._doubt_timer is None:
                self._doubt_timer = self.host.call_later(
                    until_s - self.host.now(), self._end_doubts
                )
        else:
            self._drop_doubtful(link, message, done)

    def _end_doubts(self) -> None:
        """Those that came after the first get their time as well."""
        self._doubt_timer = None
        self._judge_again()

    def _judge_again(self) -> None:
        doubtful, self._doubtful = self._doubtful, []
        for each in doubtful:
            self._judge(*each)

    def _drop_doubtful(self, link: Link, message: Message, done: Callable[[], None] | None) -> None:
        self.counters["doubtful_dropped"] += 1
        case = (link.info.peer, message.origin)
        if case not in self._doubted and len(self._doubted) < MAX_DOUBTED:
            self._doubted.add(case)
            self.host.log(
                "warning",
                "messages dropped: their origin is not reached over the neighbor they come from",
                neighbor=link.info.peer,
                origin=message.origin,
            )
        if done is not None:
            done()

    def _route_on(
        self, link: Link, frame: bytes, message: Message, done: Callable[[], None] | None
    ) -> None:
        route = self._route_of(message, link.info, self._routes_from(link.info))
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

    def _take_in_hand(self, message: Message, done: _Acknowledge) -> Callable[[], None]:
        """Note that `message` is on its way, for who sends it again meanwhile."""
        in_hand = _InHand(self, message, done)
        self._in_hand[message.origin, message.number] = in_hand
        done.incoming.hold(done.number, in_hand)
        return in_hand

    def forget_in_hand(self, in_hand: _InHand) -> None:
        key = (in_hand.message.origin, in_hand.message.number)
        if self._in_hand.get(key) is in_hand:
            del self._in_hand[key]

    def _leaves_too_much(self, incoming: Incoming, link: Link) -> bool:
        """Whether more of a lane of `link` is unacknowledged than may be, the last one apart."""
        count = len(incoming.unsafe)
        return count > MAX_UNSAFE or (
            incoming.unsafe_bytes * link.lanes > self._max_unsafe_bytes and count > 1
        )

    def _relieve(self, incoming: Incoming, link: Link) -> None:
        """Let go what has waited longest of a lane of `link`, if there is room."""
        while self._leaves_too_much(incoming, link):
            oldest = next(iter(incoming.unsafe.values()))
            if self._has_room(oldest.message, link.info.peer):
                oldest.let_go()
                continue
            if not incoming.relieving:
                incoming.relieving = True
                self.host.call_later(LOOK_AGAIN_S, lambda: self._relieve_again(incoming, link))
            return

    def _relieve_again(self, incoming: Incoming, link: Link) -> None:
        incoming.relieving = False
        if not self.stopping:
            self._relieve(incoming, link)

    def _has_room(self, message: Message, key: str) -> bool:
        """Whether more may wait where `message` does."""
        at_broker = self._at_broker.get(key)
        if at_broker is not None and not at_broker.has_room():
            return False
        links = [self.by_session.get(session) for session in message.passed_to]
        return not any(link is not None and self._is_full(link) for link in links)

    def _repeated(
        self, message: Message, neighbor: SessionInfo, done: Callable[[], None] | None
    ) -> None:
        """It was here before: acknowledged when that copy is safe, which it may be already."""
        if done is None:
            return
        in_hand = self._in_hand.get((message.origin, message.number))
        if in_hand is None or neighbor in in_hand.message.passed_to:
            # A neighbor that has it from here too must not wait for us to wait for it.
            done()
            return
        in_hand.wait(done)
        # In a ring that is being cut, three or more may wait for each other.
        self.host.call_later(LET_GO_S, lambda: in_hand.give_in(done))

    def _retained_arrived(
        self, message: Message, route: Route, done: Callable[[], None] | None, key: str
    ) -> None:
        """The newest retained message of a topic wins, at every broker."""
        local = self.retention.arrived(message)
        if local is None:
            # A comparison brought it first, and the broker has it from there.  Further on somebody
            # may have a newer one, and this one is still to be delivered to who is there now.
            self.counters["retained_known"] += 1
            if message.number:
                self._pass_on(message, Route(route.neighbors), done, key)
            elif done is not None:
                done()
        elif local is not message:
            join = _Join(2, done) if done is not None else None
            self._pass_on(message, Route(route.neighbors), join, key)
            if route.to_local_broker:
                self._inject(local, key, join)
            elif join is not None:
                join()
        elif route.to_local_broker:
            join = _Join(2, done) if done is not None else None
            self._pass_on(message, Route(route.neighbors), join, key)
            self.retention.broker.deliver(message, key, self._counted(message, key, join))
        else:
            self._pass_on(message, route, done, key)

    def retained_route(self, topic: bytes, link: Link) -> tuple[list[Link], bool]:
        """Where a retained message goes that a comparison with the neighbor brought."""
        route = self.algorithm.route(topic.decode(), link.info, retain=True)
        links = (self.by_session.get(session) for session in route.neighbors)
        return [link for link in links if link is not None], route.to_local_broker

    def retained_trouble(self, link: Link, error: RemoteProtocolError) -> None:
        connection = link.connections[0]
        if connection is not None:
            self.links.misbehaved(connection, error)

    # ---- neighbors that are awaited ------------------------------------------------------

    def neighbor_back(self, awaited: Awaited) -> None:
        """It has told all that it wants: the rest was not for it."""
        self._begin(self._send_rest(awaited))

    def _send_rest(self, awaited: Awaited) -> Iterator[None]:
        for topic in awaited.topics():
            while entries := awaited.take(topic, STEP):
                for entry in entries:
                    self._send_if_wanted(awaited.name, entry)
                yield
        self.recovery.settled(awaited)

    def neighbor_missed(self, neighbor: str, waited: list[Outgoing]) -> None:
        self._begin(self._send_elsewhere(neighbor, waited))

    def awaits_changed(self) -> None:
        self.host.call_later(0.0, self.algorithm.on_neighbors_back)
        if not self.recovery.active:
            self.host.log("info", "recovered")

    def _awaiting(self, message: Message, route: Route) -> list[Awaited]:
        """For whom `message` waits: who may want it and is not back, or gets others before it."""
        wanting = {session.peer for session in route.neighbors}
        came_from = message.came_from.peer if message.came_from is not None else ""
        recovery = self.recovery
        found = [
            each
            for each in recovery.awaited.values()
            if (each.waits_on(message.topic) if each.name in wanting else each.name != came_from)
        ]
        found += [each for each in recovery.back.values() if each.waits_on(message.topic)]
        return found

    def _wait_for(self, awaited: Awaited, entry: Outgoing) -> None:
        awaited.wait(entry)
        if awaited.bytes > self.links.settings.queue_bytes:
            self.host.log(
                "warning",
                "neighbor given up: too much waits for it and it is not back",
                neighbor=awaited.name,
                bytes=awaited.bytes,
            )
            self.recovery.miss(awaited.name)

    def _look_through(self) -> None:
        """Routes have changed: some of those that are not all back may want what waits."""
        self._looking = False
        self._begin(self._send_wanted())

    def _send_wanted(self) -> Iterator[None]:
        for awaited in list(self.recovery.awaited.values()):
            link = self.links.links.get(awaited.name)
            if link is None or not link.state.session:
                continue
            for topic in awaited.topics():
                while (
                    link.info in self.client_routes[topic].neighbors
                    and self.recovery.awaited.get(awaited.name) is awaited
                    and (entries := awaited.take(topic, STEP))
                ):
                    for entry in entries:
                        self._send_if_wanted(awaited.name, entry)
                    yield
                yield

    def _send_if_wanted(self, neighbor: str, entry: Outgoing) -> None:
        message = entry.message
        for session in self._present_route(message).neighbors:
            link = self.by_session.get(session)
            if link is None or session.peer != neighbor or session in message.passed_to:
                continue
            message.passed_to = (*message.passed_to, session)
            link.send(message, self.host.now(), entry.done)
            return
        entry.finish()

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

    def _present_route(self, message: Message) -> Route:
        """Where `message` would go if it came now."""
        source = message.came_from
        if source is None or source not in self.by_session:
            return self._route_of(message, self.any_client, self.client_routes)
        return self._route_of(message, source, self._routes_from(source))

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
        awaiting: list[Awaited] = []
        if message.number and self.recovery.active:
            awaiting = self._awaiting(message, route)
        neighbors = route.neighbors
        if awaiting:
            names = {each.name for each in awaiting}
            neighbors = tuple(each for each in neighbors if each.peer not in names)
        count = len(neighbors) + len(awaiting) + route.to_local_broker
        part = _Join(count, done) if done else None
        message.passed_to = neighbors
        down: list[Link] = []
        for session in neighbors:
            link = self.by_session.get(session)
            if link is not None:
                link.send(message, now_s, part)
                if message.qos and not link.state.up:
                    down.append(link)
            elif part is not None:
                part()
        for awaited in awaiting:
            self._wait_for(awaited, Outgoing(message, message.qos, part))
        if route.to_local_broker:
            self._inject(message, key, part)
        for link in down:
            self._is_full(link)

    def _inject(self, message: Message, key: str, done: Callable[[], None] | None) -> None:
        if not self.host.inject(message, key, self._counted(message, key, done)):
            self.counters["inject_dropped"] += 1

    def _counted(
        self, message: Message, key: str, done: Callable[[], None] | None
    ) -> Callable[[], None] | None:
        """`done`, for a message that counts as waiting for the broker until it is called."""
        if done is None or not message.qos:
            return done
        at_broker = self._at_broker.get(key)
        if at_broker is None:
            settings = self.links.settings
            at_broker = self._at_broker[key] = BrokerQueue(
                self.host,
                key,
                self.counters,
                queue_bytes=settings.queue_bytes,
                hold_s=settings.hold_s,
            )
        return at_broker.put(message, done)

    def give_up(self, link: Link) -> None:
        """What the neighbor has not acknowledged goes another way, if there is one."""
        self._begin(self._send_elsewhere(link.info.peer, link.give_up()))

    def _send_elsewhere(self, neighbor: str, entries: list[Outgoing]) -> Iterator[None]:
        """`neighbor` is given up, and `entries` with it, but for those that go another way."""
        lost = 0
        for begin in range(0, len(entries), STEP):
            way, since_s = self._way_round(neighbor)
            some = entries[begin : begin + STEP]
            missed = sum(self._goes_elsewhere(entry, way, since_s) for entry in some)
            self.counters["given_up"] += missed
            lost += missed
            yield
        if neighbor not in self.links.links:
            self._ways_round.pop(neighbor, None)
        if lost:
            self.host.log("warning", "messages given up", neighbor=neighbor, messages=lost)

    def _way_round(self, neighbor: str) -> tuple[str | None, float]:
        """Over whom `neighbor` is reached, and since when it is."""
        reach = self.guard.reach().get(neighbor)
        way = None if reach is None else reach.next_neighbor
        known = self._ways_round.get(neighbor)
        if known is None or known[0] != way:
            known = self._ways_round[neighbor] = way, self.host.now()
        return known

    def _goes_elsewhere(self, entry: Outgoing, way: str | None, since_s: float) -> bool:
        """Whether the neighbor may miss it: it is not sent where that one is reached over.

        Who had it already has led there since `since_s`, perhaps not when it was sent.
        """
        message = entry.message
        had = (*message.passed_to, message.came_from)
        links = [
            link
            for session in self._present_route(message).neighbors
            if session not in had
            and (link := self.by_session.get(session)) is not None
            # What was retained when it joined, it knows.
            and not (message.version and message.arrived_s < link.joined_s)
        ]
        if links:
            message.passed_to = (*message.passed_to, *(link.info for link in links))
            self.counters["rerouted"] += 1
        part = _Join(len(links), entry.done) if entry.done is not None else None
        for link in links:
            link.send(message, self.host.now(), part)
        sent = message.passed_to
        if message.arrived_s < since_s:
            sent = tuple(link.info for link in links)
        return way is None or all(way != each.peer for each in sent)

    # ---- slices --------------------------------------------------------------------------

    def _begin(self, task: Iterator[None]) -> None:
        """Do `task` in slices, the first of them at once."""
        self._tasks.append(task)
        if len(self._tasks) == 1:
            self._work()

    def _work(self) -> None:
        try:
            for _ in range(STEPS):
                if next(self._tasks[0], _OVER) is _OVER:
                    self._tasks.popleft()
                    if not self._tasks:
                        return
        finally:
            if self._tasks:
                self.host.call_later(0.0, self._work)

    def stop(self) -> None:
        """What waits here, and nobody before this node has, is lost."""
        while self._tasks:
            for _ in self._tasks.popleft():
                pass
        if lost := self.recovery.only_here() + self.only_here:
            self.counters["given_up"] += lost
            self.host.log("warning", "messages given up", cause="stopped", messages=lost)

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
    """A message that is not safe yet, and who waits for it to be; called when it is.

    Another copy of it can be in hand too: one that was believed only later.  Each acknowledges its
    own; who sends it again waits for the latest.
    """

    __slots__ = ("_done", "_traffic", "_waiting", "message", "size")

    def __init__(self, traffic: Traffic, message: Message, done: Callable[[], None]) -> None:
        self._traffic = traffic
        self._done: Callable[[], None] | None = done
        self._waiting: list[Callable[[], None]] | None = None
        self.message = message
        self.size = message.cost

    def __call__(self) -> None:
        if self._done is None:
            self._traffic.only_here -= 1
        else:
            self._acknowledge(self._done)

    def let_go(self) -> None:
        """Acknowledge it although it is not safe."""
        if self._done is not None:
            self._traffic.only_here += 1
            self._acknowledge(self._done)

    def _acknowledge(self, done: Callable[[], None]) -> None:
        self._done = None
        waiting, self._waiting = self._waiting, None
        self._traffic.forget_in_hand(self)
        done()
        for each in waiting or ():
            each()

    def wait(self, done: Callable[[], None]) -> None:
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(done)

    def give_in(self, done: Callable[[], None]) -> None:
        if self._waiting and done in self._waiting:
            self._waiting.remove(done)
            done()


class _Acknowledge:
    """Acknowledges one message to the neighbor it came from.

    If another stream runs there now, nobody waits for this.
    """

    __slots__ = ("_qos", "incoming", "number")

    def __init__(self, incoming: Incoming, number: int, qos: int) -> None:
        self.incoming = incoming
        self.number = number
        self._qos = qos

    def __call__(self) -> None:
        answer = self.incoming.safe(self.number, self._qos)
        if self.incoming.answer is not None:
            self.incoming.answer(answer)
