"""One overlay for each set of nodes that have topics in common (Overlays §4.1.2, §4.2.2, §5.2).

It stands on `tree`: nodes find each other, link with everybody and build one tree over all of them.
Besides, each tells its neighbors what its clients want and what they publish on (`membership`).
The *members* of a topic are the nodes with a client that wants it, by whatever filter, or that
publishes on it; topics with the same members share a tree of their own, of members only
(`overlays`).  So a message goes, from the node of its publisher:

    nobody else wants it                        nowhere
    one other node does, or there is no tree    directly to each that does, label `DIRECT`:
                                                for your broker, to nobody else
    the members have a tree                     along that, with its label
    it is not known of all nodes what they      by the tree over all nodes, as with `tree`
    want, or one of these is not linked

and who gets it with the label of a tree passes it on in that one, whatever it knows of the topic;
only where nobody beyond a link wants it is the link left out.  What comes with the label of a tree
that is not known, or has lost a link, goes on by the tree over all nodes.  So nothing waits for
signalling, and the tree over all nodes, which loses nothing, is always there.

Why nothing is lost and nothing overtaken when members or trees change is as with `tree`: every way
has its label, a tree never changes, and who takes another way sends what is not acknowledged again
on that one, before what comes after it.  A neighbor that is away, and in no tree now, is sent
directly what it wants until its session is closed: it waits there.

Retained messages are every broker's: to those who want the topic they go as others do, in order,
and directly to everybody else.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, cast

from isthmus.cooperation.api import (
    AtRest,
    Hop,
    Port,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
)
from isthmus.cooperation.topic_tree.invariants import check_overlays
from isthmus.cooperation.topic_tree.membership import MAX_BYTES, MAX_FILTERS, Membership
from isthmus.cooperation.topic_tree.messages import (
    TOPIC,
    Begin,
    End,
    Keeps,
    News,
    OfOverlay,
    TopicMessage,
    encode,
    in_chunks,
    parse,
)
from isthmus.cooperation.topic_tree.options import TopicTreeOptions
from isthmus.cooperation.topic_tree.overlay import OVERLAY_LABEL_BYTES, Overlay
from isthmus.cooperation.topic_tree.overlays import Overlays
from isthmus.cooperation.tree.algorithm import CAPABILITY_UNITS, SpanningTree
from isthmus.cooperation.tree.messages import LABEL_BYTES, MAX_CAPABILITY, Wave
from isthmus.mqtt.packets import Publish

__all__ = ["DIRECT", "TopicTree"]

DIRECT: Final = b"d"
"""The label of what is for the neighbor's own broker."""
LINGER_S: Final = 10.0
"""How long a topic counts as published on after its last publisher: many come back soon."""
MAX_SHOWN: Final = 1_000
"""Topics in `status`."""

_UNTOLD: Final = Keeps(b"", (), awaits=False, linked=False)
_EVERYTHING: Final = ("#",)
_LINGER: Final = "linger"


class _Way(NamedTuple):
    """How a client's message goes."""

    label: bytes
    hops: list[Hop]


class TopicTree(SpanningTree):
    """Sends messages along a tree of those that their topic concerns."""

    name = "topic-tree"
    max_label_bytes = OVERLAY_LABEL_BYTES
    follows_publishers = True
    options_kind = TopicTreeOptions

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        assert isinstance(self._options, TopicTreeOptions)
        self._roots: TopicTreeOptions = self._options
        self._membership = Membership(port.node_id)
        self._overlays = Overlays(
            port,
            self._membership,
            self,
            up=self._building.up,
            merge_s=self._options.merge_s,
            changed=self._ways_changed,
        )
        self._everything = False
        """Local clients want more than can be told."""
        self._publishers: dict[str, int] = {}
        """How many local clients publish on a topic; 0: lately."""
        self._ended: dict[str, None] = {}
        """Topics whose last publisher has gone since `LINGER_S` was begun to be waited for."""
        self._clients = 0
        self._departed: set[str] = set()
        """Nodes that were in a tree over all nodes, are not in the present one, and for whom
        something may wait somewhere."""
        self._keeps: dict[str, Keeps] = {}
        """What neighbors have told of such nodes."""
        self._told_linked = False

    # ---- what local clients want and publish ---------------------------------------------

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        here = self._membership.member(self.port.node_id)
        assert here is not None
        if self._everything:
            wanted = self.port.local_filters
            if (
                len(wanted) <= MAX_FILTERS // 2
                and sum(len(each.encode()) for each in wanted) <= MAX_BYTES // 2
            ):
                self._everything = False
                self._tell_instead(wanted)
            return
        for topic_filter in added:
            if not here.has_room(topic_filter, publish=False):
                self._everything = True
                self._tell_instead(_EVERYTHING)
                return
            self._membership.change(here, topic_filter, publish=False, begins=True)
        for topic_filter in removed:
            self._membership.change(here, topic_filter, publish=False, begins=False)
        self._tell_news(added, publish=False, begins=True)
        self._tell_news(removed, publish=False, begins=False)
        self._overlays.look_at(self._concerned((*added, *removed)))

    def _tell_instead(self, filters: Iterable[str]) -> None:
        """All that was told is replaced."""
        name = self.port.node_id
        before = self._membership.member(name)
        assert before is not None
        topics = list(before.topics)
        self._membership.begin(name)
        for publish, names in ((False, filters), (True, topics)):
            for news in in_chunks(list(names), publish=publish, begins=True):
                self._membership.heard(name, news)
        self._membership.end(name)
        for neighbor in self._labels:
            self._tell_all(neighbor)
        self._overlays.look_at(None)

    def on_local_publisher(
        self, session: SessionInfo, begun: Sequence[str], ended: Sequence[str]
    ) -> None:
        here = self._membership.member(self.port.node_id)
        assert here is not None
        new = []
        for topic in begun:
            self._publishers[topic] = self._publishers.get(topic, 0) + 1
            self._ended.pop(topic, None)
            if topic not in here.topics and here.has_room(topic, publish=True):
                self._membership.change(here, topic, publish=True, begins=True)
                new.append(topic)
        for topic in ended:
            self._publishers[topic] -= 1
            if not self._publishers[topic]:
                if not self._ended:
                    self.port.set_timer(LINGER_S, _LINGER)
                self._ended[topic] = None
        if new:
            self._tell_news(new, publish=True, begins=True)
            self._overlays.look_at(new)

    def _linger(self) -> None:
        """Those topics have ended; what has since the timer was set lingers a bit less."""
        ended, self._ended = self._ended, {}
        here = self._membership.member(self.port.node_id)
        assert here is not None
        told = [topic for topic in ended if topic in here.topics]
        for topic in ended:
            del self._publishers[topic]
        for topic in told:
            self._membership.change(here, topic, publish=True, begins=False)
        self._tell_news(told, publish=True, begins=False)
        self._overlays.look_at(ended)

    def _tell_news(self, names: Iterable[str], *, publish: bool, begins: bool) -> None:
        chunks = list(in_chunks(names, publish=publish, begins=begins))
        for neighbor in self._labels:
            for news in chunks:
                self._say(neighbor, news)

    def _tell_all(self, neighbor: str) -> None:
        here = self._membership.member(self.port.node_id)
        assert here is not None
        self._say(neighbor, Begin())
        for publish in (False, True):
            for news in in_chunks(here.names(publish), publish=publish, begins=True):
                self._say(neighbor, news)
        self._say(neighbor, End())
        self._say(neighbor, self._kept_here(neighbor))

    def _say(self, neighbor: str, message: TopicMessage) -> None:
        session = self._sessions.get(neighbor)
        if session is not None:  # else it has gone, and the overlay with it
            packet = Publish(TOPIC, encode(message))
            self.port.send_message(session, self.port.create_mqtt_message(packet))

    # ---- links ---------------------------------------------------------------------------

    def on_session_established(self, session: SessionInfo) -> None:
        super().on_session_established(session)
        if session.kind is SessionKind.NEIGHBOR:
            self._keeps[session.name] = _UNTOLD
            self._tell_all(session.name)
            if session.name in self._departed:
                self._tell_kept()
            self._overlays.link_up(session.name)
            self.port.routes_changed(resend=self._resends)
        elif session.kind is SessionKind.LOCAL_CLIENT:
            self._clients += 1

    def on_session_closed(self, session: SessionInfo) -> None:
        name = session.name
        is_neighbor = session.kind is SessionKind.NEIGHBOR and self._sessions.get(name) is session
        if is_neighbor:
            self._membership.gone(name)
        super().on_session_closed(session)
        if is_neighbor:
            del self._keeps[name]
            if name in self._departed or self._told_linked != self._is_linked_with_all():
                self._tell_kept()
            self._overlays.look_at(None)
            self.port.routes_changed(resend=self._resends)
        elif session.kind is SessionKind.LOCAL_CLIENT:
            self._clients -= 1

    def _down(self, name: str) -> None:
        was_up = name in self._building.up
        super()._down(name)
        if was_up:
            self._overlays.link_down(name)
            self.port.routes_changed(resend=self._resends)

    def on_timer(self, key: Hashable) -> None:
        if key == _LINGER:
            self._linger()
        elif not self._overlays.timer(key):
            super().on_timer(key)

    # ---- what neighbors say --------------------------------------------------------------

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        if session.kind is not SessionKind.NEIGHBOR:
            return True
        packet = message.packet
        if not isinstance(packet, Publish) or packet.topic != TOPIC:
            return super().mqtt_message_arrived(session, message)
        said, name = parse(packet.payload), session.name
        if name not in self._labels:
            return True  # of a connection that is gone
        if isinstance(said, OfOverlay):
            self._overlays.arrived(name, said)
        elif isinstance(said, News):
            if self._membership.heard(name, said):
                self._overlays.look_at(said.names if said.publish else self._concerned(said.names))
                self.port.routes_changed(said.names, resend=self._resends)
        elif isinstance(said, Keeps):
            self._kept_there(name, said)
        elif isinstance(said, Begin):
            self._membership.begin(name)
            self._overlays.work_soon()
        else:
            self._membership.end(name)
            if self._told_linked != self._is_linked_with_all():
                self._tell_kept()
            self._overlays.look_at(None)
            self.port.routes_changed(resend=self._resends)
            self._synchronize()
        return True

    def _kept_there(self, name: str, said: Keeps) -> None:
        """Routes change only if it is known of all nodes what they want, and was not, or will."""
        before = self._knows_all(), set(self._departed)
        self._keeps[name] = said
        self._settle()
        if before != (self._knows_all(), self._departed):
            self.port.routes_changed(resend=self._resends)

    def _concerned(self, filters: Sequence[str]) -> Iterable[str] | None:
        """Topics whose members may have changed with these filters; None: all."""
        if any("+" in each or each.endswith("#") for each in filters):
            return None
        return filters

    def _has_told(self, name: str) -> bool:
        return name in self._membership.told

    # ---- nodes that are away -------------------------------------------------------------

    def _use(self) -> None:
        before, now = self._used, self._building.tree
        assert now is not None
        self._departed |= before.nodes if before is not None else set()
        self._departed -= now.nodes
        super()._use()
        self._tell_kept()

    def _kept_here(self, neighbor: str) -> Keeps:
        label = self._used.label if self._used is not None else b""
        nodes = tuple(sorted(self._departed & self._sessions.keys()))
        awaits = self.port.awaits_others(self._sessions[neighbor])
        return Keeps(label, nodes, awaits, self._is_linked_with_all())

    def on_neighbors_back(self) -> None:
        self._tell_kept()

    def _is_linked_with_all(self) -> bool:
        return self._used is not None and self._used.nodes <= self._membership.told

    def _tell_kept(self) -> None:
        self._told_linked = self._is_linked_with_all()
        for neighbor in self._labels:
            self._say(neighbor, self._kept_here(neighbor))
        self._settle()

    def _settle(self) -> None:
        """If nobody keeps anything for those that have departed, they are forgotten.

        If all are linked with all, there are overlays.
        """
        kept, tree = self._kept_elsewhere(), self._used
        if kept is None or tree is None:
            if not self._is_linked_with_all():
                self._overlays.nodes_are(frozenset())
            return
        if not kept and not self._departed & self._sessions.keys():
            self._departed.clear()
        others = tree.nodes - {self.port.node_id}
        linked = self._is_linked_with_all() and all(self._keeps[each].linked for each in others)
        self._overlays.nodes_are(tree.nodes if linked else frozenset())

    def _kept_elsewhere(self) -> set[str] | None:
        """Whom others of the tree over all nodes keep; None if not all know that."""
        tree, kept = self._used, set[str]()
        for name in tree.nodes if tree is not None else ():
            if name != self.port.node_id:
                said = self._keeps.get(name)
                if said is None or tree is None or said.label != tree.label or said.awaits:
                    return None
                kept.update(said.nodes)
        return kept

    def _knows_all(self) -> bool:
        """Whether it is known of all nodes what they want, also of those that are away."""
        kept = self._kept_elsewhere() if self._is_linked_with_all() else None
        return kept is not None and kept | self._departed <= self._sessions.keys()

    # ---- overlays ------------------------------------------------------------------------

    def send_in(self, neighbor: str, message: OfOverlay) -> None:
        self._say(neighbor, message)

    def collect_in(self, overlay: Overlay) -> None:
        self.port.set_timer(self._options.collect_s, ("choose", overlay.number))

    def adopted_in(self, overlay: Overlay) -> None:
        self._overlays.adopted(overlay)

    def candidate_in(self, overlay: Overlay, number: int) -> Wave:
        worth = self._capable(overlay.building.tree)
        if self._roots.roots == "balance":
            worth = max(0, MAX_CAPABILITY // 2 - round(CAPABILITY_UNITS * self._balance(overlay)))
        nonce = self.port.random.getrandbits(32)
        return Wave(number, worth, self.port.address, self.port.node_id, nonce)

    def _balance(self, overlay: Overlay) -> float:
        """Overlays §4.2.2: the lowest RB is the root's; R counts the other overlays."""
        roots, options = self._overlays.roots(overlay), self._roots
        return options.gamma * roots + options.delta * self._clients

    def _ways_changed(self, topics: Iterable[str]) -> None:
        self.port.routes_changed(list(topics), resend=self._resends)

    # ---- data plane ----------------------------------------------------------------------

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        if arrived_on.kind is not SessionKind.NEIGHBOR:
            return self._route_of_client(topic, arrived_on, retain=retain)
        if label == DIRECT:
            return Route(to_local_broker=True)
        if (edges := self._edges(label)) is not None:
            wanted = None if retain else self._membership.wanting(topic)
            edges = self._pruned(label, edges, wanted)
            hops = [(self._sessions[each], label) for each in edges if each != arrived_on.name]
            return Route.labeled(hops, to_local_broker=True)
        return super().route(topic, arrived_on, label, retain=retain)

    def _route_of_client(self, topic: str, arrived_on: SessionInfo, *, retain: bool) -> Route:
        way = self._way(topic, retain=retain)
        if way is not None:
            return Route.labeled(way.hops)
        route = super().route(topic, arrived_on, retain=retain)
        if route.pending:
            return route
        return Route.labeled((*route.hops, *self._to_away(topic, route.neighbors, retain=retain)))

    def _way(self, topic: str, *, retain: bool) -> _Way | None:
        """How a client's message on `topic` goes; None: by the tree over all nodes."""
        tree, here = self._building.tree, self.port.node_id
        if tree is None or self._is_to_join(tree) or not self._knows_all():
            return None
        wanting = self._membership.wanting(topic)
        if wanting is None:
            return None
        wanting.discard(here)
        inside, away = wanting & tree.nodes, wanting & self._departed
        label, hops, reached = DIRECT, [], {here}
        if len(inside) > 1:
            publishing = self._membership.publishing(topic) & tree.nodes
            overlay = self._overlays.of(tuple(sorted({here, *inside, *publishing})))
            if overlay is not None and (edges := self._edges(overlay.label)) is not None:
                label, reached = overlay.label, set(overlay.members)
                edges = self._pruned(label, edges, None if retain else wanting)
                hops = [(self._sessions[each], label) for each in edges]
        if label == DIRECT and any(each not in self._building.up for each in inside):
            return None
        # A retained message is for everybody; who is not linked just now has it when it is.
        others = self._sessions.keys() if retain else inside | away
        return _Way(label, hops + self._direct(others - reached))

    def _direct(self, names: Iterable[str]) -> list[Hop]:
        return [(self._sessions[each], DIRECT) for each in sorted(names) if each in self._sessions]

    def _to_away(self, topic: str, besides: Collection[SessionInfo], *, retain: bool) -> list[Hop]:
        """Neighbors that are in no tree, and want it: it waits for them."""
        tree, wanting = self._building.tree, self._membership.wanting(topic)
        assert tree is not None
        away = self._sessions.keys() - tree.nodes if retain else self._departed
        return self._direct(
            name
            for name in away - {each.name for each in besides}
            if retain or wanting is None or name in wanting
        )

    def _edges(self, label: bytes) -> tuple[str, ...] | None:
        """The neighbors in the tree of that label, if their links are up."""
        overlay = self._overlays.of_label(label)
        edges = overlay.edges_of(label) if overlay is not None else None
        if edges is None or any(each not in self._building.up for each in edges):
            return None
        return edges

    def _pruned(
        self, label: bytes, edges: tuple[str, ...], wanting: Collection[str] | None
    ) -> tuple[str, ...]:
        """Those of `edges` beyond which somebody wants it, or has not told what it wants."""
        overlay = self._overlays.of_label(label)
        if overlay is None or overlay.label != label or wanting is None:
            return edges
        told = self._membership.told
        return tuple(
            edge
            for edge in edges
            if any(name in wanting or name not in told for name in overlay.beyond(edge))
        )

    def comes_again(self, session: SessionInfo, label: bytes) -> bool:
        """By a tree that has been followed by another one, which its neighbor is in, too.

        What comes by an overlay that is broken may be sent so for long.
        """
        overlay = self._overlays.of_label(label)
        followed = overlay is not None and overlay.tree is not None
        return (followed or len(label) == LABEL_BYTES) and super().comes_again(session, label)

    def label_now(self, label: bytes, topic: bytes) -> bytes:
        if not label and (way := self._way(topic.decode(), retain=False)) is not None:
            return way.label
        if label == DIRECT or self._edges(label) is not None:
            return label
        return super().label_now(label, topic)

    # ---- what people and tests see -------------------------------------------------------

    @property
    def overlays(self) -> Overlays:
        return self._overlays

    @property
    def membership(self) -> Membership:
        return self._membership

    def t_ort(self, topic: str) -> tuple[str, ...]:
        """The topic-specific Overlay Routing Table (Overlays §4.3): who its messages go to or
        come from next."""
        here, overlay = self.port.node_id, self._overlays.of_topic(topic)
        if overlay is not None and (tree := overlay.tree) is not None:
            return tree.neighbors
        wanting = self._membership.wanting(topic) or set()
        publishing = self._membership.publishing(topic)
        met = wanting if here in publishing else set()
        met |= publishing if here in wanting else set()
        return tuple(sorted(met - {here}))

    def status(self) -> dict[str, object]:
        topics = islice(self._membership.topics, MAX_SHOWN)
        return {
            **super().status(),
            "roots": self._roots.roots,
            "told": sorted(self._membership.told),
            "t_ort": {topic: table for topic in topics if (table := self.t_ort(topic))},
            "overlays": [
                {
                    "members": overlay.members,
                    "topics": len(self._overlays.topics_of(overlay)),
                    "root": tree and tree.wave.root,
                    "parent": tree and tree.parent,
                    "children": tree and sorted(tree.children),
                }
                for overlay in self._overlays
                for tree in (overlay.tree,)
            ],
        }

    @classmethod
    def check_at_rest(cls, fabric: AtRest) -> None:
        super().check_at_rest(fabric)
        check_overlays(cast("Mapping[str, TopicTree]", fabric.algorithms), fabric)
