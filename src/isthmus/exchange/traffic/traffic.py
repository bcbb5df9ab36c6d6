"""Messages on their way through a node: where they come from, where they go, when they are safe.

    local client ──client_publish──▶ ┐            ┌──▶ links (acknowledged by the neighbors)
                                     ├── route ───┼──▶ neighbors that are awaited (`recovery`)
    neighbor ──────message_arrived──▶┘            └──▶ local broker (host.inject)

A message from a neighbor is acknowledged to it when everybody it was passed on to has acknowledged
it, or when too many after it wait for that (`in_hand`).  In a tree a message is taken once: at
QoS 1 and 2 by its number (`seen`), at QoS 0 only from the neighbor through which its origin is
reached, so that it is neither duplicated nor circulated, even while the topology is changing.  At
QoS 1 and 2 a message that comes from elsewhere waits, unacknowledged, for the topology to say that
it may; after `DOUBT_S` it is dropped.  Where the topology is the algorithm's affair, every message
has a number, and each is taken once (`seen_anywhere`).

With labels a message is another one for each label, but the broker gets it once.

What is for a neighbor that is not there takes a detour (`detours`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from isthmus.cooperation.api import Resend, Route, SessionInfo
from isthmus.cooperation.link_rules import Crossing
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.link.lane import Held, Outgoing
from isthmus.exchange.link.link import Link, Room
from isthmus.exchange.link.links import Links
from isthmus.exchange.link.runs import Batch
from isthmus.exchange.retained.service import Retention
from isthmus.exchange.topology.guard import TopologyGuard
from isthmus.exchange.topology.open import OpenTopology
from isthmus.exchange.traffic.detours import Detours
from isthmus.exchange.traffic.in_hand import BROKER, HERE, Confirmation, InHand, MessagesInHand
from isthmus.exchange.traffic.message import (
    COUNT_BYTES,
    Fate,
    Message,
    from_link,
    number_of,
)
from isthmus.exchange.traffic.numbered import NumberedMessages
from isthmus.exchange.traffic.pending_routes import PendingRoutes
from isthmus.exchange.traffic.plain import Hold, Known, PassedRun, PlainMessages
from isthmus.exchange.traffic.provisional import COPY_S, ProvisionalMessages
from isthmus.exchange.traffic.recovery import Awaited
from isthmus.exchange.traffic.resending import Resending
from isthmus.exchange.traffic.routes import Routes
from isthmus.exchange.traffic.seen import Novelty, SeenMessages
from isthmus.exchange.traffic.seen_anywhere import SeenAnywhere

__all__ = ["Traffic"]

LEAST_HOPS = 64
"""A message may go this far in any fabric; in a large one, twice as far as it has nodes."""
DOUBT_S = 10.0
RECENT_S = 120.0
"""How long, at least, a neighbor counts that was on the way to an origin: a message that was held
for somebody, once or twice, may come again on another way."""
MAX_DOUBTFUL = 2_000
MAX_DOUBTED = 256
TELL_AGAIN_S = 60.0

OVERFULL: Final = 2.0
"""Of `queue_bytes`: beyond it clients' messages wait before they are sent, and not only after."""

_Arrived = tuple[Link, bytes, Message, InHand | None, float]
"""A numbered message from a neighbor, its packet, what acknowledges it, how long to doubt it."""


class Traffic:
    """The data plane of one node."""

    def __init__(
        self,
        host: Host,
        *,
        links: Links,
        guard: TopologyGuard | OpenTopology,
        counters: Counter[str],
        any_client: SessionInfo,
        max_label_bytes: int,
        holds_qos0: bool = False,
        sets_apart: bool = False,
    ) -> None:
        """If it `sets_apart`, what waits for long is on disk."""
        self.host = host
        self.links = links
        self.guard = guard
        self.counters = counters
        self.node_id = links.hello.node_id
        self.by_session: dict[SessionInfo, Link] = {}
        self.retention = Retention(host, self.node_id, self, counters)
        hold_s = links.settings.hold_s
        self.routes = Routes(any_client)
        self.client_routes = self.routes.of_clients
        self.detours = Detours(
            host,
            links=links,
            guard=guard,
            counters=counters,
            routes=self.routes,
            by_session=self.by_session,
            sets_apart=sets_apart,
        )
        self.recovery = self.detours.recovery
        self._max_label_bytes = max_label_bytes
        self._numbers_all = max_label_bytes > 0 or not guard.knows_ways
        """At QoS 0, too."""
        self._life = life = (self.node_id, links.hello.incarnation)
        self.plain = PlainMessages(self.node_id, life[1] if self._numbers_all else "")
        self.numbered = NumberedMessages()
        self.seen: SeenMessages | SeenAnywhere = SeenAnywhere(*life)
        if isinstance(guard, TopologyGuard):
            recent_s = max(RECENT_S, 2 * hold_s)
            self.seen = SeenMessages(*life, guard, now=host.now, recent_s=recent_s)
        self._given = SeenAnywhere(*life)
        """With labels: what the local broker has got."""
        self._doubtful: list[_Arrived] = []
        self._doubt_timer: Cancellable | None = None
        self._doubted: set[tuple[str, str]] = set()
        """Neighbors and origins of which it was told."""
        self.in_hand = MessagesInHand(
            host,
            counters,
            self.has_room_for,
            node_id=self.node_id,
            queue_bytes=links.settings.queue_bytes,
            hold_s=max(hold_s, links.settings.apart_s) if sets_apart else hold_s,
            set_apart=self._set_apart if sets_apart else None,
            labeled=max_label_bytes > 0,
        )
        self.pending = PendingRoutes(
            host,
            counters,
            present=self.detours.present,
            send=self._pass_on_at_last,
            settled=lambda topic: self._forget_routes([topic.decode()]),
            reaches=self.routes.reaches,
            queue_bytes=links.settings.queue_bytes,
            hold_s=hold_s,
            holds_qos0=holds_qos0 or links.settings.holds_pending_qos0,
        )
        self.provisional = ProvisionalMessages(
            host,
            waits_for=self._waits_for_copy_s,
            again=self._send_again_soon,
            give=self._give_waiting,
            queue_bytes=links.settings.queue_bytes,
        )
        self.resending = Resending(
            host, links, self.recovery, again=self._send_again, done=self._resent
        )
        self.pending.is_blocked = self.resending.has
        self.pending.begins = self._ask_each
        self.routes.any_pending = lambda: bool(self.pending or self.resending)
        self.routes.is_pending = lambda topic: self.pending.has(topic) or self.resending.has(topic)
        self.detours.wait_for_path = self._wait_for_path
        self.detours.has_old_label = self._has_old_label
        self._told_rules_s: dict[str, float] = {}
        self._told_held_s: dict[str, float] = {}
        self._numbers = 0
        self._overfull: dict[Link, None] = {}
        """Links that are up, for which more than `OVERFULL` of what may wait does."""

    def routes_changed(self, filters: list[str] | None) -> None:
        self._forget_routes(filters)
        self.detours.routes_changed()
        self.pending.routes_changed(filters)

    def resend(self, filters: list[str] | None, needed: Resend | None) -> None:
        """What neighbors have not acknowledged is to go where routes say now, too, if `needed`."""
        self.resending.begin(filters, needed)
        self.provisional.routes_changed()

    def _resent(self, topic: bytes) -> None:
        """What waits behind it can go on."""
        if self.pending.has(topic):
            self.pending.routes_changed([topic.decode()])
        else:
            self._forget_routes([topic.decode()])

    def _wait_for_path(self, message: Message, in_hand: Held | None, missed: str) -> None:
        self.pending.put(message, in_hand, missed=missed)
        if self._has_old_label(message, in_hand):
            self.pending.routes_changed([message.topic.decode()])

    def _has_old_label(self, message: Message, in_hand: Held | None) -> bool:
        """Whether it came with another label than the one with which it would go on now."""
        if in_hand is None or not message.label:
            return False
        return self.routes.algorithm.label_now(message.label, message.topic) != message.taken_as

    def _send_again_soon(self, message: Message, in_hand: InHand) -> None:
        self._send_again(message, in_hand)
        self.pending.routes_changed([message.topic.decode()])

    def _give_waiting(self, message: Message, in_hand: InHand) -> bool:
        """The broker gets what waited for its copy, unless it still comes again."""
        source = message.came_from
        if source is None or self.routes.algorithm.comes_again(source, message.label):
            return False
        gives = not message.retain and self.detours.present(message).to_local_broker
        if gives and self._max_label_bytes and self._is_for_broker(message, in_hand):
            self._inject(message, source.name, in_hand)
        return True

    def _waits_for_copy_s(self, message: Message, in_hand: InHand) -> float:
        """How long a message that is not sent on for good waits to come again."""
        source = message.came_from
        if source is None or source not in self.by_session or in_hand.let_go:
            return 0.0
        hold_s = self.links.settings.hold_s
        if self.routes.algorithm.comes_again(source, message.label):
            return 0.0 if self._has_come(message) else min(COPY_S, hold_s)
        return hold_s if self.detours.present(message).provisional else 0.0

    def _has_come(self, message: Message) -> bool:
        """Whether it was here with the label that it would have now."""
        label = self.routes.algorithm.label_now(message.label, message.topic)
        assert isinstance(self.seen, SeenAnywhere)
        return self.seen.has(message.origin, message.number, message.content, label)

    def _send_again(self, message: Message, in_hand: InHand | None) -> None:
        label = self.routes.algorithm.label_now(message.label, message.topic)
        verdict = self.seen.take(message.origin, message.number, "", message.content, label)
        if verdict is Novelty.NEW:
            if in_hand is not None and message.came_from is not None:
                self.in_hand.retaken(in_hand, label)
            # Unless the broker has it, which is known of what has labels (`_is_for_broker`).
            self.pending.put(message, in_hand, given=message.retain or not self._max_label_bytes)
        elif in_hand is not None and message.taken_as != label:
            self.in_hand.waits_with(in_hand, label)
        elif in_hand is not None and not message.passed_to:
            in_hand.waited = True  # for its coming again, in vain
            self.pending.put(message, in_hand)

    def _forget_routes(self, filters: list[str] | None) -> None:
        self.plain.forget()
        self.numbered.forget()
        self.routes.drop(filters)

    def _ask_each(self) -> None:
        """Messages begin to wait, so not all topics are alike any more."""
        self.plain.ask_each()
        self.routes.ask_each()

    def topology_changed(self) -> None:
        """Nothing that was found out about who is reached over whom holds any longer."""
        self.plain.forget()
        self.numbered.forget()
        self.seen.look()
        self.detours.topology_changed()
        if self._doubtful:
            self._judge_again()

    def neighbor_joined(self, link: Link) -> None:
        link.joined_s = self.host.now()
        if link.crossing != self.routes.ruled.get(link.info):
            self.routes.rule(link.info, link.crossing)
            self._forget_routes(None)
        self.seen.joined(link.info.name)
        self.recovery.joined(link.info.name)

    def neighbor_left(self, link: Link) -> None:
        """The algorithm has no such session any more."""
        self.routes.forget(link.info)
        self.plain.forget(link.info)
        self.numbered.forget(link.info)
        self.seen.left(link.info.name)
        self._given.left(link.info.name)
        self.retention.neighbor_left(link)
        self.recovery.left(link.info.name)
        self.provisional.neighbor_left(link.info)
        self.in_hand.neighbor_left(link.info.name)
        self._overfull.pop(link, None)
        self._told_rules_s.pop(link.info.name, None)
        self._told_held_s.pop(link.info.name, None)

    # ---- from local clients --------------------------------------------------------------

    def client_publish(
        self, message: Message, hold: Hold, confirmed: Callable[[Fate], None] | None = None
    ) -> None:
        """A local client published; its own broker has it already.

        If a link is congested, `hold` is called: it stops reading from the client, and what it
        returns lets it go on.  `confirmed` is told when all that want the message have it, or that
        somebody does without it; perhaps at once.
        """
        if confirmed is None:
            self._publish(message, hold, None)
            return
        message.confirm = True
        confirmation = Confirmation(message, confirmed)
        self._publish(message, hold, confirmation)
        confirmation.acknowledged_by(HERE)

    def _publish(self, message: Message, hold: Hold, confirmation: Confirmation | None) -> None:
        if message.topic.startswith(b"$"):
            return
        self.number(message, always=message.qos > 0)
        if message.retain:
            self.retention.published(message)
        route = self.routes.of(message, None)
        if route.pending:
            self._pass_on(message, route, confirmation, "")
            if not self.pending.has_room():
                self.counters["publishers_held"] += 1
                self.pending.when_room(hold())
        elif route.neighbors or self.recovery.active:
            self.counters["published_to_links"] += bool(route.neighbors)
            self._pass_on(message, route, confirmation, "")
            if message.qos and not self.detours.has_room():
                self.counters["publishers_held"] += 1
                self.detours.when_room(hold())
            if message.qos or message.retain:
                room = Room.UNACKNOWLEDGED if message.qos else Room.UNTAKEN
                self._hold_if_full(route, room, hold)

    def _hold_if_full(self, route: Route, room: Room, hold: Hold) -> None:
        """Stop reading from a client if a link that it has sent to has too much."""
        for session in route.neighbors:
            link = self.by_session.get(session)
            if link is not None and link.is_waited_for and not link.has_room(room):
                self._hold_back(link, room, hold)
                if not link.has_room(room, OVERFULL):
                    self._overfull[link] = None

    def may_be_batch(self, route: Route) -> bool:
        """Whether messages at QoS 1 that are plain otherwise may go along `route` together."""
        if route.pending or self._overfull or self.pending.overfull or self.recovery.active:
            return False
        links = map(self.by_session.get, route.neighbors)
        return all(
            link is not None and link.takes_batches and link.has_room(Room.UNACKNOWLEDGED)
            for link in links
        )

    def publish_batch(
        self, topics: Sequence[bytes], payloads: list[bytes], route: Route, hold: Hold
    ) -> None:
        """A local client published what may go together: the hot path of QoS 1."""
        now_s = self.host.now()
        batch = Batch(
            topics,
            payloads,
            route.hops,
            origin=self.node_id,
            incarnation=self.links.hello.incarnation,
            first=self._numbers + 1,
            arrived_s=now_s,
        )
        self._numbers += len(topics)
        self.counters["published_to_links"] += len(topics)
        for session, label in route.hops:
            self.by_session[session].send_batch(batch, label, now_s)
        self._hold_if_full(route, Room.UNACKNOWLEDGED, hold)

    def broker_publish(self, message: Message, taken: Confirmation | None) -> None:
        """The local broker has delivered it to the node itself (``source = "broker"``).

        Who sent it cannot be held: the broker is, by what it has not been acknowledged (`taken`).
        """
        if not message.topic.startswith(b"$"):
            self.number(message, always=message.qos > 0)
            if message.retain:
                self.retention.published(message)
            route = self.routes.of(message, None)
            if route.pending or route.neighbors or self.recovery.active:
                self.counters["published_to_links"] += bool(route.neighbors)
                self._pass_on(message, route, taken, "")
        _done_with(taken)

    def must_wait(self, message: Message, hold: Hold) -> bool:
        """Whether so much waits for a link already that not even one more of a client may.

        Who is held for a link has sent it one message too many, or many if he hangs up then: in
        the long run that bounds nothing, if only enough of them come.
        """
        if not message.qos:
            return False
        if self.pending.overfull and self.routes.of(message, None).pending:
            self.counters["publishers_held"] += 1
            self.pending.when_room(hold())
            return True
        if not self._overfull:
            return False
        for link in list(self._overfull):
            if not link.is_waited_for or link.has_room(Room.UNACKNOWLEDGED, OVERFULL):
                del self._overfull[link]
            elif link.info in self.routes.of(message, None).neighbors:
                self._hold_back(link, Room.UNACKNOWLEDGED, hold)
                return True
        return False

    def number(self, message: Message, *, always: bool = False) -> None:
        if always or self._numbers_all:
            self._numbers += 1
            message.number = number_of(self.links.hello.incarnation, self._numbers)

    def publish_plain(
        self, topics: Sequence[bytes], payloads: Sequence[bytes], route: Route
    ) -> None:
        """A local client published at QoS 0, not retained, without properties: the hot path."""
        if route.special or self._numbers_all:
            for topic, payload in zip(topics, payloads, strict=True):
                self._publish_special(topic, payload, route)
            return
        self.counters["published_to_links"] += len(topics)
        frames = self.plain.to_link(topics, payloads)
        for session in route.neighbors:
            link = self.by_session.get(session)
            if link is not None:
                link.send_plain(topics, frames)

    def _publish_special(self, topic: bytes, payload: bytes, route: Route) -> None:
        """The same with a number, with labels, or with a path that is being set up."""
        if route.pending:
            message = Message(topic, payload, origin=self.node_id, arrived_s=self.host.now())
            self.number(message)
            self._pass_on(message, route, None, "")
            return
        self.counters["published_to_links"] += 1
        if self._numbers_all:
            self._numbers += 1
            payload = b"%012x%b" % (self._numbers, payload)
        self._publish_labeled(topic, payload, route)

    def _publish_labeled(self, topic: bytes, rest: bytes, route: Route) -> None:
        for session, label in route.hops:
            link = self.by_session.get(session)
            if link is not None:
                link.send_plain([topic], [self.plain.to_link_labeled(topic, rest, label)])

    def _hold_back(self, link: Link, room: Room, hold: Hold) -> None:
        self.counters["publishers_held"] += 1
        now_s = self.host.now()
        if room is Room.UNACKNOWLEDGED and now_s >= self._told_held_s.get(link.info.name, 0.0):
            self._told_held_s[link.info.name] = now_s + TELL_AGAIN_S
            self.host.log(
                "warning",
                "publishers held: the neighbor does not acknowledge",
                neighbor=link.info.name,
                unacknowledged_bytes=link.unacked_bytes(),
            )
        link.when_room(room, hold())

    def _is_full(self, link: Link) -> bool:
        """Whether `link` is up and takes no more; one that is down is given up instead.

        Unless it is set apart: then there is no room on disk, which others wait for.
        """
        if link.has_room(Room.UNACKNOWLEDGED):
            return False
        if link.is_waited_for:
            return True
        self.links.let_go(link, "its queue is full and it does not come back")
        return False

    # ---- from neighbors -----------------------------------------------------------------

    def message_arrived(self, link: Link, lane: int, frame: bytes) -> None:
        now_s = self.host.now()
        message, packet_id = from_link(frame, now_s)
        if len(message.label) > self._max_label_bytes:
            raise RemoteProtocolError(
                f"a message with a label of {len(message.label)} bytes; the algorithm's have at "
                f"most {self._max_label_bytes}"
            )
        if self._numbers_all and not message.number:
            raise RemoteProtocolError("a message without a number")
        qos = frame[0] >> 1 & 3
        in_hand: InHand | None = None
        if qos:
            incoming = link.incoming[lane]
            if incoming is None:
                raise RemoteProtocolError("a numbered message before its stream was named")
            number = incoming.accept(packet_id, qos, self.in_hand.fate_of(message))
            if isinstance(number, bytes):
                self.counters["repeated"] += 1
                link.answer(lane, incoming, number)
                return
            in_hand = InHand(self.in_hand, message, incoming, number, qos)
        self.counters["received_from_links"] += 1
        message.came_from = link.info
        if link.crossing is not None and not self._may_come(link, link.crossing, message):
            message.misses()
            _done_with(in_hand)
        elif message.hops > max(LEAST_HOPS, 2 * self.guard.size):
            self.counters["hops_dropped"] += 1
            message.misses()
            _done_with(in_hand)
        elif message.expired(now_s):
            # Its number is not taken: one that is as true and lasts may come from elsewhere.
            self.counters["expired"] += 1
            _done_with(in_hand)
        elif message.number:
            self._judge(link, frame, message, in_hand, now_s + DOUBT_S)
        elif self.guard.is_primary(message.origin, link.info.name):
            self._route_on(link, frame, message, in_hand)
        else:
            self.counters["doubtful_dropped"] += 1
            _done_with(in_hand)

    def _may_come(self, link: Link, crossing: Crossing, message: Message) -> bool:
        """Call `message` as it is called here; not if it should not have come over this link."""
        name = crossing.comes(message.topic)
        if name is None:
            self.broke_rules(link, message.topic.decode(errors="replace"))
            return False
        message.topic = name
        return True

    def broke_rules(self, link: Link, name: str) -> None:
        """A neighbor has sent, or asked for, what may not cross the link: it is ignored."""
        link.refused += 1
        self.counters["rules_refused"] += 1
        now_s = self.host.now()
        if now_s >= self._told_rules_s.get(link.info.name, 0.0):
            self._told_rules_s[link.info.name] = now_s + TELL_AGAIN_S
            self.host.log(
                "warning",
                "a neighbor sends what may not cross its link; it is dropped",
                neighbor=link.info.name,
                topic=name[:200],
            )

    def _judge(
        self,
        link: Link,
        frame: bytes,
        message: Message,
        in_hand: InHand | None,
        until_s: float,
    ) -> None:
        """Whether a numbered message is taken, was here already, or is not believed yet."""
        if message.label:
            message.taken_as = self.routes.algorithm.label_now(message.label, message.topic)
            if message.taken_as != message.label and self._comes_again(message, link.info):
                self._await_copy(link, message, in_hand)
                return
        verdict = self.seen.take(
            message.origin, message.number, link.info.name, message.content, message.taken_as
        )
        self._judged(verdict, link, frame, message, in_hand, until_s)

    def _judged(  # noqa: PLR0917 - they are of one message
        self,
        verdict: Novelty,
        link: Link,
        frame: bytes,
        message: Message,
        in_hand: InHand | None,
        until_s: float,
    ) -> None:
        if verdict is Novelty.NEW:
            if in_hand is not None:
                self.in_hand.take(in_hand)
                for waiting in self.provisional.copies(message):
                    self.in_hand.waits_with(waiting, message.taken_as)
            self._route_on(link, frame, message, in_hand)
            if in_hand is not None:
                self.in_hand.relieve(in_hand.incoming, link)
        elif verdict is Novelty.REPEATED:
            self.counters["repeated"] += 1
            if in_hand is not None:
                self.in_hand.repeated(in_hand)
                self.in_hand.relieve(in_hand.incoming, link)
        elif message.qos and self.host.now() < until_s and len(self._doubtful) < MAX_DOUBTFUL:
            self._doubtful.append((link, frame, message, in_hand, until_s))
            if self._doubt_timer is None:
                self._doubt_timer = self.host.call_later(
                    until_s - self.host.now(), self._end_doubts
                )
        else:
            self._drop_doubtful(link, message, in_hand)

    def _comes_again(self, message: Message, source: SessionInfo) -> bool:
        return (
            message.qos > 0
            and self.routes.algorithm.comes_again(source, message.label)
            and not self._has_come(message)
        )

    def _await_copy(self, link: Link, message: Message, in_hand: InHand | None) -> None:
        """The local broker may get it; all others when it comes with the label that it has now."""
        if in_hand is not None:
            self.in_hand.take(in_hand)
        here = self.routes.algorithm.is_given_at_once(message.label)
        gives = here and self._is_for_broker(message, in_hand)
        route = Route(to_local_broker=gives, provisional=True)
        if message.retain and message.version:
            self._retained_arrived(message, route, in_hand, link.info.name)
        else:
            self._pass_on(message, route, in_hand, link.info.name)
        _done_with(in_hand)
        if in_hand is not None:
            self.in_hand.relieve(in_hand.incoming, link)

    def _end_doubts(self) -> None:
        """Those that came after the first get their time as well."""
        self._doubt_timer = None
        self._judge_again()

    def _judge_again(self) -> None:
        doubtful, self._doubtful = self._doubtful, []
        for each in doubtful:
            self._judge(*each)

    def _drop_doubtful(self, link: Link, message: Message, in_hand: InHand | None) -> None:
        self.counters["doubtful_dropped"] += 1
        message.misses()
        case = (link.info.name, message.origin)
        if case not in self._doubted and len(self._doubted) < MAX_DOUBTED:
            self._doubted.add(case)
            self.host.log(
                "warning",
                "messages dropped: their origin is not reached over the neighbor they come from",
                neighbor=link.info.name,
                origin=message.origin,
            )
        _done_with(in_hand)

    def _route_on(self, link: Link, frame: bytes, message: Message, in_hand: InHand | None) -> None:
        route = self.routes.of(message, link.info)
        alike = (
            not message.label and link.crossing is None and self.routes.is_alike(link.info, route)
        )
        self.plain.remember(link.info, frame, message, route, alike=alike)
        if not self._max_label_bytes:
            self.numbered.remember(link.info, frame, message, route)
        retained = message.retain and bool(message.version)
        if retained and route.pending:  # whatever the path, all brokers are to have it
            route = replace(route, to_local_broker=True)
        if (
            route.to_local_broker
            and self._max_label_bytes
            and not self._is_for_broker(message, in_hand)
        ):
            route = replace(route, to_local_broker=False)
        if retained:
            self._retained_arrived(message, route, in_hand, link.info.name)
        else:
            self._pass_on(message, route, in_hand, link.info.name)
        _done_with(in_hand)

    def _is_for_broker(self, message: Message, in_hand: InHand | None) -> bool:
        """Whether the broker was not given it yet, with another label or by a client of its own.

        If it was, `in_hand` waits until the broker has that.
        """
        neighbor = message.came_from.name if message.came_from is not None else ""
        given = self._given.take(message.origin, message.number, neighbor, message.content)
        if given is not Novelty.NEW and in_hand is not None:
            self.in_hand.waits_for_broker(in_hand)
        return given is Novelty.NEW

    def _take_plain(self, known: Known, topic: bytes, rest: bytes, neighbor: str) -> bool | None:
        """Whether a message with a number is for the broker; None if it is for nobody any more."""
        message = known.origin, known.incarnation, int(rest[:COUNT_BYTES], 16)
        content = (topic, rest[COUNT_BYTES:])
        verdict = self.seen.take_count(*message, neighbor, content, known.label)
        if verdict is not Novelty.NEW:
            self.counters["repeated" if verdict is Novelty.REPEATED else "doubtful_dropped"] += 1
            return None
        if not known.to_broker or not self._max_label_bytes:
            return known.to_broker
        return self._given.take_count(*message, neighbor, content) is Novelty.NEW

    def plain_arrived(self, link: Link, frames: Sequence[bytes], at: int) -> int:
        """Pass on a run of messages like some that came before; where it ends.  The hot path."""
        if self.in_hand.stopping:
            return at
        run = self.plain.run(link.info, frames, at)
        if not run:
            return at
        link.received += len(run)
        self.counters["received_from_links"] += len(run)
        key = link.info.name
        passed = PassedRun()
        for known, topic, rest in run:
            payload, to_broker = rest, known.to_broker
            if self._numbers_all:
                for_broker = self._take_plain(known, topic, rest, key)
                if for_broker is None:
                    continue
                payload, to_broker = rest[COUNT_BYTES:], for_broker
            if known.tails:
                passed.to_links(known, topic, rest)
            if to_broker:
                passed.topics.append(topic)
                passed.payloads.append(payload)
        for session, (topics, packets) in passed.links.items():
            if (other := self.by_session.get(session)) is not None:
                other.send_plain(topics, packets)
        if passed.topics:
            dropped = self.host.inject_plain(passed.topics, passed.payloads, key)
            if dropped:
                self.counters["inject_dropped"] += dropped
        return at + len(run)

    def numbered_arrived(self, link: Link, lane: int, frames: Sequence[bytes], at: int) -> int:
        """Give the broker a run of messages at QoS 1 like some before; where it ends.

        What `message_arrived` does, without what is known already.
        """
        incoming = link.incoming[lane]
        if self.in_hand.stopping or self.recovery.active or incoming is None:
            return at
        now_s, info, hand = self.host.now(), link.info, self.in_hand
        key, began = info.name, at
        for known, packet_id, digits, payload in self.numbered.run(info, frames, at):
            number = incoming.accept_next(packet_id)
            if number is None:
                break
            at += 1
            message = Message(
                known.topic,
                payload,
                qos=1,
                origin=known.origin,
                hops=known.hops,
                number=f"{known.incarnation}.{digits.decode()}",
                arrived_s=now_s,
                confirm=known.confirm,
            )
            message.came_from = info
            in_hand = InHand(hand, message, incoming, number, 1)
            verdict = self.seen.take_count(
                known.origin, known.incarnation, int(digits, 16), key, message.content
            )
            if verdict is not Novelty.NEW:
                self._judged(verdict, link, frames[at - 1], message, in_hand, now_s + DOUBT_S)
                break  # what is known may hold no longer
            hand.take(in_hand)
            self._inject(message, key, in_hand)
            in_hand.acknowledged_by(HERE)
        if passed := at - began:
            link.received += passed
            self.counters["received_from_links"] += passed
            hand.relieve(incoming, link)
        return at

    def has_room_for(self, message: Message) -> bool:
        """Whether more may wait where `message` waits."""
        if self.pending.has(message.topic) and not self.pending.has_room():
            return False
        if not self.provisional.has_room() or not self.detours.has_room():
            return False
        links = [self.by_session.get(session) for session, _ in message.passed_to]
        return not any(link is not None and self._is_full(link) for link in links)

    def _set_apart(self, branch: str, neighbor: str) -> bool:
        """Have what waits for `branch` put on disk; of the broker, what `neighbor` has sent.

        False if it cannot be, or is there already.
        """
        if branch == BROKER:
            return self.host.set_broker_apart(neighbor)
        link = self.links.links.get(branch)
        if link is None or link.apart is None:
            return False
        link.apart.begin()
        return not link.apart.spool.all_written

    def _retained_arrived(
        self, message: Message, route: Route, in_hand: InHand | None, key: str
    ) -> None:
        """The newest retained message of a topic wins, at every broker."""
        local = self.retention.arrived(message)
        further = replace(route, to_local_broker=False)
        if local is None:
            # A comparison brought it first, and the broker has it from there, or will.  Further on
            # somebody may have a newer one, and this one is still to be delivered to who is there.
            self.counters["retained_known"] += 1
            if message.number:
                self._pass_on(message, further, in_hand, key)
            if route.to_local_broker and in_hand is not None:
                self.retention.broker.known(message, key, in_hand.wait_for_broker(), in_hand.kept)
            return
        self._pass_on(message, further, in_hand, key)
        if not route.to_local_broker:
            if local is message:
                self.retention.passed_by(message.topic)
            return
        if local is message:
            done = in_hand.wait_for_broker() if in_hand is not None else None
            kept = in_hand.kept if in_hand is not None else None
            self.retention.broker.deliver(message, key, done, kept)
        else:
            self._inject(local, key, in_hand)

    def other_links(self, link: Link) -> list[Link]:
        return [other for other in self.links if other is not link and other.state.session]

    def retained_trouble(self, link: Link, error: RemoteProtocolError) -> None:
        connection = link.connections[0]
        if connection is not None:
            self.links.misbehaved(connection, error)

    # ---- where to ------------------------------------------------------------------------

    def _pass_on(self, message: Message, route: Route, in_hand: InHand | None, key: str) -> None:
        """Send `message` along `route`; `in_hand` waits for everybody that is to make it safe."""
        now_s = self.host.now()
        if message.expired(now_s):
            self.counters["expired"] += 1
            return
        if route.pending:
            if route.to_local_broker and message.came_from is not None:
                self._inject(message, key, in_hand)
            # What is retained is the broker's already, if it is news (`_retained_arrived`).
            given = route.to_local_broker or message.retain
            self.pending.put(message, in_hand, given=given)
            return
        awaiting: list[Awaited] = []
        hops = route.hops
        if route.provisional and in_hand is not None and not in_hand.waited:
            self.provisional.put(message, in_hand, self._waits_for_copy_s(message, in_hand))
            hops = ()  # whoever is before sends it again, and what is older before it
        elif message.qos and self.recovery.active:
            awaiting = self.detours.awaiting(message, route)
        if awaiting:
            names = {each.name for each in awaiting}
            hops = tuple(hop for hop in hops if hop[0].name not in names)
        before = {session for session, _ in message.passed_to} if message.passed_to else ()
        message.passed_to = (*message.passed_to, *hops)
        down: list[Link] = []
        for session, label in hops:
            link = self.by_session.get(session)
            if link is not None:
                link.send(message, now_s, in_hand, label, again=session in before)
                if message.qos and not link.state.up:
                    down.append(link)
        for awaited in awaiting:
            self.detours.wait_for(awaited, Outgoing(message, message.qos, in_hand))
        if route.to_local_broker and message.came_from is not None:
            self._inject(message, key, in_hand)
        for link in down:
            self._is_full(link)

    def _pass_on_at_last(self, message: Message, route: Route, in_hand: Held | None) -> None:
        """The path of `message` is there."""
        assert in_hand is None or isinstance(in_hand, InHand)
        if (
            route.to_local_broker
            and self._max_label_bytes
            and not self._is_for_broker(message, in_hand)
        ):
            route = replace(route, to_local_broker=False)
        self.counters["published_to_links"] += message.came_from is None and bool(route.neighbors)
        key = message.came_from.name if message.came_from is not None else ""
        if in_hand is not None and message.label:
            route = self._as_labeled_now(message, route, in_hand)
        self._pass_on(message, route, in_hand, key)

    def _as_labeled_now(self, message: Message, route: Route, in_hand: InHand) -> Route:
        """`route`, if it is for this node to send it on with the label that is in use by now."""
        label = self.routes.algorithm.label_now(message.label, message.topic)
        source = message.came_from
        if label == message.taken_as:
            return route
        if source is not None and source in self.by_session and self._comes_again(message, source):
            return Route(to_local_broker=route.to_local_broker, provisional=True)
        verdict = self.seen.take(message.origin, message.number, "", message.content, label)
        if verdict is Novelty.NEW:
            self.in_hand.retaken(in_hand, label)
            return route
        self.in_hand.waits_with(in_hand, label)
        return Route(to_local_broker=route.to_local_broker)

    def _inject(self, message: Message, key: str, in_hand: InHand | None) -> None:
        done = in_hand.wait_for_broker() if in_hand is not None else None
        kept = in_hand.kept if in_hand is not None else None
        if in_hand is not None and done is not None and message is not in_hand.message:
            done = partial(_done_as, in_hand.message, message, done)  # a copy without the flag
        if not self.host.inject(message, key, done, kept):
            self.counters["inject_dropped"] += 1
            if done is not None:
                done()

    def stop(self) -> None:
        """What waits here, and nobody before this node has, is lost."""
        self.detours.stop()
        self.pending.stop()
        self.provisional.stop()
        waiting = self.recovery.only_here() + self.pending.only_here()
        if lost := waiting + self.in_hand.only_here:
            self.counters["given_up"] += lost
            self.host.log("warning", "messages given up", cause="stopped", messages=lost)


def _done_as(message: Message, given: Message, done: Callable[[], None]) -> None:
    """The broker has `given` in the place of `message`, or does without it."""
    if given.fate is not Fate.SAFE:
        message.misses(given.fate)
    done()


def _done_with(in_hand: InHand | None) -> None:
    """This node has passed it on, or will not."""
    if in_hand is not None:
        in_hand.acknowledged_by(HERE)
