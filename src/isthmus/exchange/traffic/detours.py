"""Messages for a neighbor that is not there: they wait for it, or go another way.

Those at QoS 1 and 2 for a neighbor of the last life wait until it has told what it wants
(`recovery`).  What a neighbor that is given up has not acknowledged goes to those neighbors of its
present route that have not had it; unless the neighbor is reached over one of them it is counted as
given up.  There may be very many of either, so both are done in slices.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from isthmus.cooperation.api import Route, SessionInfo
from isthmus.exchange.host import Host
from isthmus.exchange.link.lane import Held, Outgoing
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.links import Links
from isthmus.exchange.link.set_apart import LinkApart
from isthmus.exchange.topology.guard import TopologyGuard
from isthmus.exchange.topology.open import OpenTopology
from isthmus.exchange.traffic.message import Message
from isthmus.exchange.traffic.recovery import UNKNOWN, Awaited, Recovery
from isthmus.exchange.traffic.routes import Routes

__all__ = ["Detours"]

LOOK_S = 0.05
STEP = 100
STEPS = 10
"""What is done for many messages is done for so many times `STEP` of them in a turn."""

_OVER = object()


class Detours:
    """What waits for neighbors, and what is sent elsewhere; the owner of `Recovery`."""

    def __init__(
        self,
        host: Host,
        *,
        links: Links,
        guard: TopologyGuard | OpenTopology,
        counters: Counter[str],
        routes: Routes,
        by_session: dict[SessionInfo, Link],
        sets_apart: bool = False,
    ) -> None:
        """If it `sets_apart`, who sends waits when too much waits for a neighbor that is awaited.

        Others have much on disk for a node that was away: more than it may keep in memory for who
        is not back yet.
        """
        self._host = host
        self._links = links
        self._guard = guard
        self._counters = counters
        self._routes = routes
        self._by_session = by_session
        self.recovery = Recovery(
            host, self, hold_s=links.settings.hold_s, peers_are_back=self._peers_are_back
        )
        self._sets_apart = sets_apart
        self.retained_follows = False
        """Retained messages follow who comes to want them (``retained = "routed"``)."""
        self._held: list[Callable[[], None]] = []
        """Lets clients go on that are held for neighbors that are awaited."""
        self._looking = False
        self._tasks: deque[Iterator[None]] = deque()
        self._ways_round: dict[str, tuple[str | None, float]] = {}
        """Of neighbors whose own link does not carry messages: how they are reached, since when."""
        self.wait_for_path: Callable[[Message, Held | None, str], None]
        """Holds a message until the algorithm knows where it goes; and who is given up with it."""
        self.has_old_label: Callable[[Message, Held | None], bool]
        """Whether it came by a way that is not in use any more: then it is held, too."""

    def routes_changed(self) -> None:
        if self.recovery.active and not self._looking:
            self._looking = True
            self._host.call_later(LOOK_S, self._look_through)

    def topology_changed(self) -> None:
        if not self._guard.knows_ways:
            return  # and there may be hundreds of links, which come and go together
        for link in self._links:
            if link.state.carries:
                self._ways_round.pop(link.info.name, None)
            else:
                self._way_round(link.info.name)

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
        self._release()

    def _peers_are_back(self) -> bool:
        linked = (peer.link for peer in self._links.peers.values())
        return all(link is not None and link.state.up for link in linked)

    def unknown_are_back(self, awaited: Awaited) -> None:
        self._begin(self._finish(awaited))

    def _finish(self, awaited: Awaited) -> Iterator[None]:
        for topic in awaited.topics():
            while entries := awaited.take(topic, STEP):
                for entry in entries:
                    entry.finish(awaited.name)
                yield

    def neighbor_missed(self, neighbor: str, waited: list[Outgoing]) -> None:
        self._begin(self._send_elsewhere(neighbor, waited))

    def awaits_changed(self) -> None:
        self._routes.algorithm.on_neighbors_back()
        self._release()
        if not self.recovery.active:
            self._host.log("info", "recovered")

    def awaiting(self, message: Message, route: Route) -> list[Awaited]:
        """For whom `message` waits: who may want it and is not back, or gets others before it."""
        wanting = {session.name for session in route.neighbors}
        came_from = message.came_from.name if message.came_from is not None else ""
        recovery = self.recovery
        found = [
            each
            for each in recovery.awaited.values()
            if (each.waits_on(message.topic) if each.name in wanting else each.name != came_from)
            and (message.confirm or each.name != UNKNOWN)
        ]
        found += [each for each in recovery.back.values() if each.waits_on(message.topic)]
        return found

    def wait_for(self, awaited: Awaited, entry: Outgoing) -> None:
        queue_bytes = self._links.settings.queue_bytes
        if entry.message.confirm and awaited.bytes > queue_bytes - entry.cost:
            entry.message.misses()  # who is away is given up for nobody who can send again
            return
        awaited.wait(entry)
        if awaited.bytes > queue_bytes and not self._sets_apart:
            self._host.log(
                "warning",
                "neighbor given up: too much waits for it and it is not back",
                neighbor=awaited.name,
                bytes=awaited.bytes,
            )
            self.recovery.miss(awaited.name)

    def has_room(self) -> bool:
        """Whether more may wait for neighbors that are awaited."""
        if not self.recovery.active or not self._sets_apart:
            return True
        bound = self._links.settings.queue_bytes
        waiting = (*self.recovery.awaited.values(), *self.recovery.back.values())
        return all(each.bytes <= bound for each in waiting)

    def when_room(self, go_on: Callable[[], None]) -> None:
        self._held.append(go_on)

    def _release(self) -> None:
        if self._held and self.has_room():
            held, self._held = self._held, []
            for go_on in held:
                go_on()

    def _look_through(self) -> None:
        """Routes have changed: some of those that are not all back may want what waits."""
        self._looking = False
        self._begin(self._send_wanted())

    def _send_wanted(self) -> Iterator[None]:
        for awaited in list(self.recovery.awaited.values()):
            link = self._links.links.get(awaited.name)
            if link is None or not link.state.session:
                continue
            for topic in awaited.topics():
                while (
                    link.info in self._routes.of_clients[topic].neighbors
                    and self.recovery.awaited.get(awaited.name) is awaited
                    and (entries := awaited.take(topic, STEP))
                ):
                    for entry in entries:
                        self._send_if_wanted(awaited.name, entry)
                    yield
                yield

    def _send_if_wanted(self, neighbor: str, entry: Outgoing) -> None:
        message = entry.message
        present = self._routes.of(message, self._source(message))
        if present.pending or self.has_old_label(message, entry.in_hand):
            self.wait_for_path(message, entry.in_hand, "")
            entry.finish(neighbor)
            return
        for hop in present.hops:
            session, label = hop
            link = self._by_session.get(session)
            if link is None or session.name != neighbor or hop in message.passed_to:
                continue
            message.passed_to = (*message.passed_to, hop)
            link.send(message, self._host.now(), entry.in_hand, label)
        entry.finish(neighbor)

    def give_up(self, link: Link) -> None:
        """What the neighbor has not acknowledged goes another way, if there is one."""
        name, apart = link.info.name, link.apart
        self._begin(self._send_elsewhere(name, link.give_up()))
        if apart is not None:
            apart.leave(lambda entries: self._begin(self._send_left(name, apart, entries)))

    def _send_left(
        self, neighbor: str, apart: LinkApart, entries: list[Outgoing]
    ) -> Iterator[None]:
        """What was on disk for a neighbor that is given up; then the next of it."""
        yield from self._send_elsewhere(neighbor, entries)
        apart.refill()

    def _send_elsewhere(self, neighbor: str, entries: list[Outgoing]) -> Iterator[None]:
        """`neighbor` is given up, and `entries` with it, but for those that go another way."""
        lost = 0
        for begin in range(0, len(entries), STEP):
            way, since_s = self._way_round(neighbor)
            some = entries[begin : begin + STEP]
            missed = sum(self._goes_elsewhere(neighbor, entry, way, since_s) for entry in some)
            self._counters["given_up"] += missed
            lost += missed
            yield
        yield from self._forgotten(neighbor)
        if lost:
            self._host.log("warning", "messages given up", neighbor=neighbor, messages=lost)

    def forget(self, neighbor: str) -> None:
        """`neighbor` is none any more; first what is being given up with it is sent elsewhere."""
        self._begin(self._forgotten(neighbor))

    def _forgotten(self, neighbor: str) -> Iterator[None]:
        if neighbor not in self._links.links:
            self._ways_round.pop(neighbor, None)
        yield from ()

    def _way_round(self, neighbor: str) -> tuple[str | None, float]:
        """Over whom `neighbor` is reached, and since when it is."""
        way = min(self._guard.ways().get(neighbor, ()), default=None)
        known = self._ways_round.get(neighbor)
        if known is None or known[0] != way:
            known = self._ways_round[neighbor] = way, self._host.now()
        return known

    def _goes_elsewhere(
        self, neighbor: str, entry: Outgoing, way: str | None, since_s: float
    ) -> bool:
        """Whether the neighbor may miss it: it is not sent where that one is reached over.

        Who had it already has led there since `since_s`, perhaps not when it was sent.
        """
        message = entry.message
        present = self._routes.of(message, self._source(message))
        if present.pending or self.has_old_label(message, entry.in_hand):
            self.wait_for_path(message, entry.in_hand, neighbor)
            entry.finish(neighbor)
            return False
        hops = [
            (link, label)
            for session, label in present.hops
            if (session, label) not in message.passed_to
            and session is not message.came_from
            and (link := self._by_session.get(session)) is not None
            # What was retained when it joined, or came to want it, it knows.
            and not (
                message.version and (self.retained_follows or message.arrived_s < link.joined_s)
            )
        ]
        new = tuple((link.info, label) for link, label in hops)
        if new:
            message.passed_to = (*message.passed_to, *new)
            self._counters["rerouted"] += 1
        for link, label in hops:
            link.send(message, self._host.now(), entry.in_hand, label)
        sent = new if message.arrived_s < since_s else message.passed_to
        missed = way is None or all(way != session.name for session, _ in sent)
        if not self._guard.knows_ways:
            reached = self._routes.reaches(neighbor)
            if reached is None:
                reached = any(hop in message.passed_to for hop in present.hops)
            missed = not reached
        if missed:
            message.misses()
        entry.finish(neighbor)
        return missed

    def present(self, message: Message) -> Route:
        """Where `message` goes now, whatever was remembered of its topic."""
        return self._routes.present(message, self._source(message))

    def _source(self, message: Message) -> SessionInfo | None:
        """From where `message` would come now: as if from a client, if its neighbor has gone."""
        source = message.came_from
        return source if message.label or source in self._by_session else None

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
                self._host.call_later(0.0, self._work)

    def stop(self) -> None:
        while self._tasks:
            for _ in self._tasks.popleft():
                pass
