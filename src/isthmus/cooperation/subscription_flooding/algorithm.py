"""SF, subscription flooding: messages go only where somebody wants them (ILDM §3.2, §4.3, §4.4).

A node *inter-subscribes* on a neighbor to what is wanted on its own side of that link: by its
local clients, or by its other neighbors.  A message follows inter-subscriptions backwards.

Definition.  With `local` the filters of local clients and `received[Y]` what neighbor Y has
inter-subscribed here, a node holds on each neighbor X exactly

    announced[X]  =  the largest filters of  local and of received[Y] for all Y ≠ X

and a change of either side is told as the difference, first SUBSCRIBE, then UNSUBSCRIBE, so that no
message falls between.  One `CoverTable` per neighbor keeps the right-hand side.  Covered filters
are not sent (§3.2: only the difference is shared) and are restored when the covering one goes.  The
rule of §3.2.1 and the removal procedure of §4.4 are both this definition after a change.

Why concurrent changes are safe, which the paper's procedure is not.  `announced[X]` is a function
of the present sets, never of the history, and links are FIFO; so once X has heard everything,
`received` at X is `announced[X]` here.  In a tree, what crosses a link towards X depends only on
links further away from X, so from the leaves inwards every set is what the definition gives for the
tree as it is, whatever was added, removed or on its way before, a ring that has been cut included.
While there is a ring, two nodes can keep alive an interest that nobody has; the links notice rings.

A link that comes (back) is brought up to date by the whole of `announced`, between the PUBLISHes
``begin`` and ``end`` on ``$isthmus/sf/sync``; what was not repeated by ``end`` is no longer wanted.
Until then the old set stays, so a short outage loses nothing.  Every SUBSCRIBE and UNSUBSCRIBE is
acknowledged; while many are not, changes wait and merge.

Nothing here takes long at a time, whatever comes.  A change goes through three stages: its source
(local clients, or a neighbor's packets, in order), the tables of all neighbors that it concerns,
and the packets to those.  Each stage is work that can be left and taken up again; every hook and a
timer do at most `SLICE` steps of it together in one turn of the event loop, taking turns between
all that have something to do.  The index that `route` asks and the tables always are what some
earlier moment's sets require, or more, and each source's changes keep their order, so whoever
replaces a filter by a covering one is never without.  The largest filters, and a topic's way, are
found exactly unless filters are made to be hard to compare; then more is announced or sent than
needed (see `isthmus.mqtt.filters.cover_table`).

Where not everything may cross a link (`SessionInfo.crossing`), `announced[X]` is what of those
filters may come from X, under X's names, and `received[Y]` in this node's own.

Departures from the paper: what a new link is told follows from the definition, not from what is
inter-subscribed elsewhere (§4.4); QoS is not part of an inter-subscription, a message keeps its own
up to the link's; topics and filters that start with ``$`` belong to one server and stay there.
Retained messages go everywhere (§4.5.2), unless the node is told otherwise
(`Port.routes_retained`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import ClassVar, Final

from isthmus.cooperation.api import (
    MAX_LEVELS,
    AtRest,
    CooperationAlgorithm,
    Port,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
)
from isthmus.cooperation.subscription_flooding.changes import Changes
from isthmus.cooperation.subscription_flooding.invariants import check_inter_subscriptions
from isthmus.cooperation.subscription_flooding.neighbor import (
    BATCH_FILTERS,
    WINDOW,
    Neighbor,
    check_size,
    take_batch,
)
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.cover_table import CoverTable
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.filters.covering_set import Steps
from isthmus.mqtt.filters.index import FilterIndex
from isthmus.mqtt.packets import (
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["SYNC_BEGIN", "SYNC_END", "SYNC_TOPIC", "SubscriptionFlooding"]

SYNC_TOPIC: Final = "$isthmus/sf/sync"
SYNC_BEGIN: Final = b"begin"
SYNC_END: Final = b"end"

SLICE: Final = 3_000
"""How many steps, of about a microsecond, are done in one turn of the event loop."""

_QUANTUM: Final = 1_000  # of these in a row for one that has something to do
_LEAST: Final = 12  # how many steps every topic may take to find its way, ...
_EVERY_TURN: Final = 2_000  # ... all topics of one turn of the event loop together, ...
_MOST: Final = 8_192  # ... and those of one turn, if others took less
_LONGEST: Final = 200  # what one topic may take that is retained, of which some hundred are asked

_NEXT_SLICE: Final = "sf-slice"

_Work = Iterator[int]
"""Does something with every step, and says how much it was."""


class SubscriptionFlooding(CooperationAlgorithm):
    """Inter-subscribe to what is wanted on this side; send what the neighbors want."""

    name = "sf"
    synchronizes = True
    obeys_rules = True
    routes_retained = True
    window: ClassVar[int] = WINDOW
    """How many packets a neighbor may have left unacknowledged."""

    slice_steps: ClassVar[int] = SLICE

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self._neighbors: dict[SessionInfo, Neighbor] = {}
        self._here = Neighbor(SessionInfo(-1, SessionKind.LOCAL_BROKER, "local clients"))
        """Stands for all local clients in the index."""
        self._index: FilterIndex[Neighbor] = FilterIndex()
        self._wanted_here = 0
        """How many filters local clients have in the index."""
        self._local_changes: Changes[Neighbor] = Changes()
        self._work: OrderedDict[Hashable, _Work] = OrderedDict()
        self._left = self.slice_steps
        self._timer_set = False
        self._touched: dict[str, None] = {}
        self._wanted_anew: dict[Neighbor, list[str]] = {}
        """Filters that somebody has come to want: what is retained of them follows."""
        self._synchronized: list[SessionInfo] = []
        self._steps = Steps(_MOST)
        self._sent_everywhere = 0
        self._wanted: CoverTable | None = None
        """What neighbors want, all together, if the node asks for it."""

    # ---- data plane ----

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        if topic.startswith("$"):
            return Route()
        from_neighbor = arrived_on.kind is SessionKind.NEIGHBOR
        everywhere = retain and not self.port.routes_retained
        matched = None if everywhere else self._match(topic)
        if matched is None:
            self._sent_everywhere += not everywhere
            others = tuple(each for each in self._neighbors if each is not arrived_on)
            return Route(others, to_local_broker=from_neighbor)
        wanting = tuple(
            each.session
            for each in matched
            if each.session is not arrived_on and self._neighbors.get(each.session) is each
        )
        return Route(wanting, to_local_broker=from_neighbor and self._here in matched)

    def route_of_all(self, arrived_on: SessionInfo) -> Route | None:
        """Known if everybody wants everything or nothing: bridges and archives want ``#``."""
        everything = set(self._index.values("#"))
        from_neighbor = arrived_on.kind is SessionKind.NEIGHBOR
        if from_neighbor and self._wanted_here and self._here not in everything:
            return None
        wanting = []
        for session, neighbor in self._neighbors.items():
            if session is not arrived_on and neighbor.received:
                if neighbor not in everything:
                    return None
                wanting.append(session)
        return Route(tuple(wanting), to_local_broker=from_neighbor and self._here in everything)

    def wants(self, session: SessionInfo | None, topic: str) -> bool:
        matched = self._index.match_within(topic, Steps(_LONGEST))
        if matched is None:
            return True
        if session is None:
            return self._here in matched
        return any(each.session is session for each in matched)

    def asks(self, session: SessionInfo, topic: str) -> bool:
        matched = self._index.match_within(topic, Steps(_LONGEST))
        return matched is None or any(each.session is not session for each in matched)

    def _match(self, topic: str) -> list[Neighbor] | None:
        """Who wants the topic; None if that takes longer than this turn has time for."""
        steps = self._steps
        steps.left = min(_MOST, max(0, steps.left) + _LEAST)
        matched = self._index.match_within(topic, steps)
        if steps.left < _MOST // 2:
            self._set_timer()
        return matched

    def follow_wanted(self) -> bool:
        self._wanted = CoverTable()
        return True

    # ---- hooks ----

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        if session.kind is SessionKind.NEIGHBOR:
            neighbor = self._neighbor(session)
            neighbor.put(message)
            self._work.setdefault(("inbox", session), self._read_inbox(neighbor))
            self._go_on(session)
        return True

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        for topic_filter in added:
            self._local_changes.add(topic_filter)
        for topic_filter in removed:
            self._local_changes.remove(topic_filter)
        self._work.setdefault("local", self._take_local())
        self._go_on()

    def on_session_established(self, session: SessionInfo) -> None:
        if session.kind is not SessionKind.NEIGHBOR:
            return
        neighbor = self._neighbor(session)
        self._work.pop(("inbox", session), None)
        neighbor.inbox.clear()
        if neighbor.crossing != session.crossing:
            self._cross_otherwise(neighbor)
        neighbor.begin()
        self._send(session, Publish(SYNC_TOPIC, SYNC_BEGIN))
        if not neighbor.filling:
            self._mark(neighbor)
        self._go_on()

    def on_tcp_down(self, session: SessionInfo) -> None:
        neighbor = self._neighbors.get(session)
        if neighbor is not None:
            neighbor.went_down()
            self._work.pop(("inbox", session), None)

    def on_session_closed(self, session: SessionInfo) -> None:
        neighbor = self._neighbors.pop(session, None)
        if neighbor is not None:
            for stage in ("inbox", "fill", "table", "tell"):
                self._work.pop((stage, session), None)
            self._local_changes.unmark(neighbor)
            self._work["retire", neighbor] = self._retire(neighbor)
            self.port.routes_changed()  # of retained messages, on every topic
            self._go_on()

    def on_neighbors_back(self) -> None:
        for neighbor in self._neighbors.values():
            self._tell_soon(neighbor)
        self._go_on()

    def on_timer(self, key: Hashable) -> None:
        if key == _NEXT_SLICE:
            self._timer_set = False
            self._left = self.slice_steps
            self._steps.left = min(_MOST, max(0, self._steps.left) + _EVERY_TURN)
            self._go_on()

    # ---- what people and tests see ----

    def received_from(self, session: SessionInfo) -> tuple[str, ...]:
        """What that neighbor has inter-subscribed here, in this node's names."""
        return tuple(self._neighbors[session].received)

    def announced_to(self, session: SessionInfo) -> tuple[str, ...]:
        """What this node has inter-subscribed there, or will have when the link is up.

        In the names of the wire, if not everything may cross the link.
        """
        return tuple(self._neighbors[session].table.announced)

    @property
    def working(self) -> bool:
        """Whether something is left for the next slice."""
        return bool(self._work)

    def status(self) -> dict[str, object]:
        return {
            "working": self.working,
            "topics_sent_everywhere": self._sent_everywhere,
            "neighbors": {
                session.name: {
                    "established": neighbor.established,
                    "synchronizing": neighbor.ending or neighbor.synchronizing,
                    "received_filters": len(neighbor.received),
                    "announced_filters": len(neighbor.table.announced),
                    "uncompared_filters": neighbor.table.given_up,
                    "waiting_filters": neighbor.waiting(),
                    "unacknowledged_packets": len(neighbor.unacknowledged),
                }
                for session, neighbor in self._neighbors.items()
            },
        }

    @classmethod
    def check_at_rest(cls, fabric: AtRest) -> None:
        check_inter_subscriptions(fabric)

    # ---- slices ----

    def _go_on(self, arrived_on: SessionInfo | None = None) -> None:
        """Do what this turn has time for; `arrived_on` is whose packet the node is asking about."""
        failed: RemoteProtocolError | None = None
        while self._work and self._left > 0:
            key, work = next(iter(self._work.items()))
            try:
                done = self._turn_of(work)
            except RemoteProtocolError as error:
                done = True
                session = self._failed(key)
                if session is arrived_on:
                    failed = error
                else:
                    self.port.refuse(session, error)
            if done:
                if self._work.get(key) is work:
                    del self._work[key]
            elif key in self._work:
                self._work.move_to_end(key)
        if self._left < self.slice_steps:
            self._set_timer()
        if self._touched:
            touched, self._touched = self._touched, {}
            self.port.routes_changed(touched)
        if self._wanted_anew:
            anew, self._wanted_anew = self._wanted_anew, {}
            for source, filters in anew.items():
                self.port.retained_wanted(None if source is self._here else source.session, filters)
        # Only now, when routes are right: what waited for it may go on at once, and come back here.
        synchronized, self._synchronized = self._synchronized, []
        for session in synchronized:
            self.port.synchronized(session)
        if failed is not None:
            raise failed

    def _set_timer(self) -> None:
        if not self._timer_set:
            self._timer_set = True
            self.port.set_timer(0.0, _NEXT_SLICE)

    def _turn_of(self, work: _Work) -> bool:
        """Let one have its share; whether it is through."""
        share = min(self._left, _QUANTUM)
        for steps in work:
            self._left -= steps
            share -= steps
            if share <= 0:
                return False
        return True

    def _failed(self, key: Hashable) -> SessionInfo:
        """A neighbor's packet was wrong: nothing that follows it is looked at."""
        assert isinstance(key, tuple)
        session = key[1]
        assert isinstance(session, SessionInfo)
        self._neighbors[session].inbox.clear()
        return session

    # ---- first stage: sources ----

    def _take_local(self) -> _Work:
        while self._local_changes:
            wanted, changed = self._local_changes.next()
            if isinstance(changed, str):
                yield self._want(self._here, changed, wanted=wanted)
            else:
                changed[0].changes.mark(None)
                self._work_on_table(changed[0])
                yield 1

    def _mark(self, neighbor: Neighbor) -> None:
        """Note what is wanted now; `Neighbor.all_told` when the table has all of it."""
        self._local_changes.unmark(neighbor)  # of a link before this one
        self._local_changes.mark(neighbor)
        self._work.setdefault("local", self._take_local())

    def _want(self, source: Neighbor, topic_filter: str, *, wanted: bool) -> int:
        """`source` wants the filter, or does not: others' tables may be concerned."""
        change = self._index.add if wanted else self._index.discard
        if not change(topic_filter, source):
            return 2
        self._touched[topic_filter] = None
        if source is self._here:
            self._wanted_here += 1 if wanted else -1
        if wanted and self.port.routes_retained:
            self._wanted_anew.setdefault(source, []).append(topic_filter)
        if self._wanted is not None and source is not self._here:
            self._left -= self._note_wanted(self._wanted, topic_filter)
        others = [each for each in self._index.values(topic_filter) if each is not source]
        if len(others) > 1:
            return 4  # for everybody somebody else wants it, before and after
        # If one other wants it, then only that one's table had or has it because of this source.
        for neighbor in others or self._neighbors.values():
            if neighbor is not source and neighbor is not self._here:
                held = topic_filter in neighbor.table
                neighbor.changes.settle(topic_filter, wanted=wanted, held=held)
                self._work_on_table(neighbor)
        return 6 + len(self._neighbors) + topic_filter.count("/")

    def _note_wanted(self, table: CoverTable, topic_filter: str) -> int:
        """A neighbor wants the filter, or does not: whether any does may have changed."""
        wanted = any(each is not self._here for each in self._index.values(topic_filter))
        if wanted == (topic_filter in table):
            return 1
        self._work.setdefault("wanted", self._tell_wanted(table))
        return table.add(topic_filter) if wanted else table.remove(topic_filter)

    def _tell_wanted(self, table: CoverTable) -> _Work:
        while table.pending or table.announce or table.withdraw:
            if table.pending:
                yield table.work(_QUANTUM // 8)
                continue
            added = take_batch(table.announce)
            removed = () if table.announce else take_batch(table.withdraw)
            self.port.wanted_changed(added, removed)
            yield 10 + len(added) + len(removed)

    def _work_on_table(self, neighbor: Neighbor) -> None:
        key = "table", neighbor.session
        if key not in self._work and self._neighbors.get(neighbor.session) is neighbor:
            self._work[key] = self._work_through(neighbor)

    def _neighbor(self, session: SessionInfo) -> Neighbor:
        """The neighbor's record; a new one needs what everybody else wants."""
        neighbor = self._neighbors.get(session)
        if neighbor is None:
            neighbor = self._neighbors[session] = Neighbor(session)
            neighbor.filling = True
            self._work["fill", session] = self._fill(neighbor)
            self.port.routes_changed()  # of retained messages, on every topic
        return neighbor

    def _cross_otherwise(self, neighbor: Neighbor) -> None:
        """What is announced there is all to be thought over; what it wants, it says anew."""
        session = neighbor.session
        for stage in ("table", "tell"):
            self._work.pop((stage, session), None)
        self._local_changes.unmark(neighbor)
        before = neighbor.cross_otherwise()
        self._work["forget", id(before)] = _dismantle(before)
        self._work["fill", session] = self._fill(neighbor)
        self.port.routes_changed()

    def _fill(self, neighbor: Neighbor) -> _Work:
        """Take over what was wanted before `neighbor` came; changes since then come by themselves.

        What is listed here and changes meanwhile is looked up in the index when its turn comes.
        """
        others = [each for each in self._neighbors.values() if each is not neighbor]
        for source in (self.port.local_filters, *(each.received for each in others)):
            for topic_filter in list(source):
                if any(each is not neighbor for each in self._index.values(topic_filter)):
                    held = topic_filter in neighbor.table
                    neighbor.changes.settle(topic_filter, wanted=True, held=held)
                    self._work_on_table(neighbor)
                yield 3
        neighbor.filling = False
        if neighbor.established:
            self._mark(neighbor)
        self._tell_soon(neighbor)

    def _retire(self, neighbor: Neighbor) -> _Work:
        """The neighbor is gone, and all it wanted with it."""
        while neighbor.received:
            # Backwards: a dictionary that is emptied from its front is slow to find what is left.
            topic_filter = neighbor.received.popitem()[0]
            yield self._want(neighbor, topic_filter, wanted=False)
        yield from _dismantle(neighbor.table)

    # ---- second stage: tables ----

    def _work_through(self, neighbor: Neighbor) -> _Work:
        table, changes = neighbor.table, neighbor.changes
        while changes or table.pending:
            if changes:
                wanted, changed = changes.next()
                if not isinstance(changed, str):
                    neighbor.all_told = not neighbor.filling
                elif wanted:
                    yield 2 + table.add(changed)
                else:
                    yield 2 + table.remove(changed)
            if table.pending:
                yield table.work(_QUANTUM // 8)
            if len(table.announce) >= BATCH_FILTERS:
                self._tell_soon(neighbor)
        self._tell_soon(neighbor)

    # ---- third stage: to a neighbor ----

    def _tell_soon(self, neighbor: Neighbor) -> None:
        self._work.setdefault(("tell", neighbor.session), self._tell(neighbor))

    def _tell(self, neighbor: Neighbor) -> _Work:
        """Send what the neighbor has not been told, as far as the window allows."""
        session = neighbor.session
        while neighbor.announcing and len(neighbor.unacknowledged) < self.window:
            if not neighbor.established:
                return  # all of it is told when the link is back
            filters = neighbor.next_announced()
            if filters:
                wanted = tuple(
                    Subscription(each, qos=2, no_local=True, retain_as_published=True)
                    for each in filters
                )
                self._send(session, Subscribe(neighbor.packet_id(len(filters)), wanted))
            yield 100 + 2 * len(filters)
        if neighbor.announcing or not neighbor.established:
            return
        # After a crash the neighbor keeps what it knew of us until all others have told us theirs.
        if neighbor.ending and neighbor.all_told and not self.port.awaits_others(session):
            neighbor.ending = False
            self._send(session, Publish(SYNC_TOPIC, SYNC_END))
        withdraw = neighbor.table.withdraw
        while withdraw and not neighbor.announcing and neighbor.established:
            if len(neighbor.unacknowledged) >= self.window:
                return
            filters = take_batch(withdraw)
            self._send(session, Unsubscribe(neighbor.packet_id(len(filters)), filters))
            yield 100 + 2 * len(filters)

    def _send(
        self, session: SessionInfo, packet: Publish | Subscribe | Unsubscribe | SubAck | UnsubAck
    ) -> None:
        # False means that the link is down: the next synchronization makes up for it.
        self.port.send_message(session, self.port.create_mqtt_message(packet))

    # ---- from a neighbor: a source, too ----

    def _read_inbox(self, neighbor: Neighbor) -> _Work:
        while neighbor.inbox:
            message = neighbor.inbox.popleft()
            match message.type:
                case PacketType.SUBSCRIBE:
                    yield from self._inter_subscribed(neighbor, message)
                case PacketType.UNSUBSCRIBE:
                    yield from self._inter_unsubscribed(neighbor, message)
                case PacketType.SUBACK | PacketType.UNSUBACK:
                    yield self._acknowledged(neighbor, message)
                case PacketType.PUBLISH:
                    yield from self._control(neighbor, message)

    def _inter_subscribed(self, neighbor: Neighbor, message: ReceivedPacket) -> _Work:
        session = neighbor.session
        check_size(session, message.data)
        packet = message.packet
        assert isinstance(packet, Subscribe)
        filters = [normal_form(each.topic_filter) for each in packet.subscriptions]
        _check_filters(session, filters)
        yield 4 * len(filters)
        for wire_filter in filters:
            topic_filter = self._own_filter(session, wire_filter)
            if topic_filter is None:
                yield 2
                continue
            neighbor.received[topic_filter] = neighbor.life
            yield self._want(neighbor, topic_filter, wanted=True)
        codes = tuple(ReasonCode(each.qos) for each in packet.subscriptions)
        self._send(session, SubAck(packet.packet_id, codes))

    def _own_filter(self, session: SessionInfo, wire_filter: str) -> str | None:
        """What a neighbor wants, in this node's names; None if nothing of it may leave over there.

        The neighbor knows the rules and asks for no such thing, so what it says is not believed.
        """
        crossing = session.crossing
        if crossing is None:
            return wire_filter
        own = crossing.asked(wire_filter)
        if own is None:
            self.port.broke_rules(session, wire_filter)
        else:
            self._left -= 2 * len(crossing.out or ())
        return own

    def _inter_unsubscribed(self, neighbor: Neighbor, message: ReceivedPacket) -> _Work:
        session = neighbor.session
        check_size(session, message.data)
        packet = message.packet
        assert isinstance(packet, Unsubscribe)
        filters = [normal_form(topic_filter) for topic_filter in packet.topic_filters]
        _check_filters(session, filters)
        yield 4 * len(filters)
        codes = []
        for wire_filter in filters:
            topic_filter = self._own_filter(session, wire_filter)
            if topic_filter is not None and neighbor.received.pop(topic_filter, None) is not None:
                codes.append(ReasonCode.SUCCESS)
                yield self._want(neighbor, topic_filter, wanted=False)
            else:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
        self._send(session, UnsubAck(packet.packet_id, tuple(codes)))

    def _acknowledged(self, neighbor: Neighbor, message: ReceivedPacket) -> int:
        session = neighbor.session
        check_size(session, message.data)
        packet = message.packet
        assert isinstance(packet, SubAck | UnsubAck)
        if packet.packet_id in neighbor.forgotten:
            return 1  # of a connection before this one
        filters = neighbor.unacknowledged.pop(packet.packet_id, None)
        if filters != len(packet.reason_codes) or max(packet.reason_codes) >= 0x80:
            raise RemoteProtocolError(
                f"neighbor {session.name} answers packet {packet.packet_id} of "
                f"{filters or 'no'} filters with reason codes "
                f"{bytes(packet.reason_codes[:16]).hex(' ')}",
                section="MQTT-3.8.4-6",
            )
        self._tell_soon(neighbor)
        return 10 + len(packet.reason_codes) // 4

    def _control(self, neighbor: Neighbor, message: ReceivedPacket) -> _Work:
        packet = message.packet
        assert isinstance(packet, Publish)
        said = packet.payload if packet.topic == SYNC_TOPIC else b""
        if said == SYNC_BEGIN:
            neighbor.life += 1
            neighbor.synchronizing = True
        elif said == SYNC_END and neighbor.synchronizing:
            neighbor.synchronizing = False
            for topic_filter in reversed(list(neighbor.received)):
                if neighbor.received[topic_filter] == neighbor.life:
                    yield 1
                else:
                    del neighbor.received[topic_filter]
                    yield self._want(neighbor, topic_filter, wanted=False)
            self._synchronized.append(neighbor.session)
        else:
            raise RemoteProtocolError(
                f"neighbor {neighbor.session.name} sends {packet.payload[:16]!r} on "
                f"{packet.topic[:80]!a}, which means nothing here",
                section="4.13",
            )


def _dismantle(table: CoverTable) -> _Work:
    for _ in table.dismantle():
        yield 1


def _check_filters(session: SessionInfo, filters: list[str]) -> None:
    if len(filters) > BATCH_FILTERS:
        raise RemoteProtocolError(
            f"neighbor {session.name} sends {len(filters)} filters in one packet; "
            f"at most {BATCH_FILTERS} are allowed",
            section="4.13",
            reason_code=ReasonCode.QUOTA_EXCEEDED,
        )
    for topic_filter in filters:
        if topic_filter.startswith("$"):
            problem, section = "what starts with $ stays on its own server", "MQTT-4.7.2-1"
        elif topic_filter.count("/") >= MAX_LEVELS:
            problem, section = f"at most {MAX_LEVELS} levels are allowed", "4.7"
        else:
            continue
        raise RemoteProtocolError(
            f"neighbor {session.name} inter-subscribes to {topic_filter[:80]!a}; {problem}",
            section=section,
            reason_code=ReasonCode.TOPIC_FILTER_INVALID,
        )
