"""Publishers and subscribers side by side in a Skip Graph: `skipgraph` (thesis §3.2).

It stands on `tree`: nodes find each other, link with everybody and build one tree over all of them.
When all are linked with all, an epoch begins (`standing`), in which the graph is built and kept
(`graph`: its lists, and which publishers are suspended).  A client's message goes

    while there is no graph, or it is not     by the tree over all nodes, as with `tree`
    settled; if it is retained
    otherwise, in each of its groups          (`groups`: the topic, and the families around it)
        this node is a subscriber             to the others, from its own place among them
        publishers are suspended              nowhere
        they are resumed                      towards the subscribers of the group
    its keys are not in the lists yet         it waits until they are (`Route.pending`); after
                                              `WAIT_S` it goes by the tree

The label of a message in the graph is the epoch and the range of keys that the receiver is to see
to (`keys`): it passes the range on by SFB or MRF (`forwarding`).  Only publishers and subscribers
of the group ever get it: the strong relay-free property.  Who gets one and has no key there any
more does nothing: who sent it has sent it elsewhere since.  Who is in another epoch waits until it
comes again by the tree over all nodes.

Why nothing is lost: a range is acknowledged when all of it is, along the whole way.  While an epoch
lasts nobody in the lists is skipped (`lists`); when it is over everybody sends what is not
acknowledged again by the tree, which loses nothing, and keeps who is away.  And until all that was
wanted when it began is in the lists, nobody sends by the graph.  Why nothing is overtaken: when the
tables of a group change, what is not acknowledged goes again where it goes now, before what comes
after it; `label_now` tells the ways of before and after apart.  So on each link, whatever is older
and may not have come to somebody in a message's range has gone before that message; but who got a
range has not got what is older and was for others, so it sends nothing on by the tree that its
neighbor will (`_sends_again`), and gives its broker nothing that only passes (`Ways`).

Departures: the thesis has no wildcards (`groups`); its graph repairs itself bit by bit, this one is
built anew when somebody comes or goes (`standing`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from itertools import islice
from typing import Final, cast

from isthmus.cooperation.api import (
    AnnouncedNode,
    AtRest,
    Hop,
    Port,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
)
from isthmus.cooperation.skipgraph.graph import Graph
from isthmus.cooperation.skipgraph.invariants import check_graphs
from isthmus.cooperation.skipgraph.keys import MAX_LABEL_BYTES
from isthmus.cooperation.skipgraph.messages import (
    EPOCH_BYTES,
    MAX_NEIGHBORS,
    MAX_NONCE,
    TOPIC,
    Acquaintances,
    Fit,
    GraphMessage,
    InEpoch,
    Ready,
    encode,
    parse,
)
from isthmus.cooperation.skipgraph.options import SkipGraphOptions
from isthmus.cooperation.skipgraph.roles import LINGER_S, Roles
from isthmus.cooperation.skipgraph.standing import Phase, Standing
from isthmus.cooperation.tree.algorithm import SpanningTree
from isthmus.cooperation.tree.messages import LABEL_BYTES, MAX_NODES
from isthmus.cooperation.tree.wave import Tree
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.index import FilterIndex
from isthmus.mqtt.packets import Publish

__all__ = ["SkipGraph"]

SWAP_S: Final = 1.0
"""How long a key stays after another one has taken its place and all publishers have said that
they know (`Graph.retire`): what has gone by the old place at QoS 0 is there by then."""
MUTE_S: Final = 10.0
"""How often it is looked who owes an answer since it was looked before."""
APART_S: Final = 60.0
"""How long there is no graph after somebody did not answer."""
WAIT_S: Final = 0.5
"""How long a message waits for its topic's keys to be in the lists; then it goes by the tree."""
CONFIRM_S: Final = 5.0
"""How long after a change who is suspended asks its neighbor; then after twice that, and so on."""
MOST_DOUBLINGS: Final = 10
MAX_DEPARTED: Final = 1_000
"""Nodes that are remembered though nothing waits for them here."""
MAX_SHOWN: Final = 1_000
"""Groups in `status`."""

_LINGER, _SWAP, _CONFIRM, _RENEW, _BEGIN, _WAITED, _SILENT = (
    f"graph {name}" for name in ("linger", "swap", "confirm", "renew", "begin", "waited", "silent")
)
_MUTE, _TOGETHER = "graph mute", "graph together"


class SkipGraph(SpanningTree):
    """Sends messages to the subscribers of their topic, over its publishers and subscribers."""

    name = "skipgraph"
    max_label_bytes = EPOCH_BYTES + MAX_LABEL_BYTES
    mostly_full_mesh = True
    follows_publishers = True
    holds_qos0 = True
    options_kind = SkipGraphOptions

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        assert isinstance(self._options, SkipGraphOptions)
        self._own: SkipGraphOptions = self._options
        self._standing = Standing(port.node_id, self._own.base)
        self._roles = Roles(port.node_id)
        self._interest: FilterIndex[None] = FilterIndex()
        self._graph: Graph | None = None
        self._departed: set[str] = set()
        """Nodes that were in a tree over all nodes, and are not in the present one."""
        self._ended: dict[str, None] = {}
        """Topics whose last publisher has gone since `LINGER_S` was begun to be waited for."""
        self._begins: dict[str, None] = {}
        """Topics that a message waits on, and nobody is known to publish on: a will, for one."""
        self._waiting: list[str] = []
        """Topics that a message waits on since `WAIT_S` was begun to be waited for."""
        self._by_tree: dict[str, None] = {}
        """Topics with retained messages: all of their messages go by the tree, so in order."""
        self._silent: dict[tuple[str, str], None] = {}
        """Groups that are suspended, and neighbors from which messages came all the same."""
        self._said_ready = False
        self._swapping = False
        """Whether it is looked soon if keys can go whose place others take."""
        self._apart_until_s = 0.0
        """Somebody did not answer: until then this node wants no graph."""
        self._confirmed = 0

    # ---- how this node stands ------------------------------------------------------------

    def _use(self) -> None:
        before, now = self._used, self._building.tree
        assert now is not None
        self._departed |= before.nodes if before is not None else set()
        self._departed -= now.nodes
        if len(self._departed) > MAX_DEPARTED:
            self._departed &= self._sessions.keys()
        super()._use()
        self._stand()

    def on_session_established(self, session: SessionInfo) -> None:
        super().on_session_established(session)
        if session.kind is SessionKind.NEIGHBOR:
            if self._standing.gone(session.name):
                self._epoch_changed()
            self._say(session.name, self._standing.mine)
            self._acquaint(session.name)
            # Something that was said may have been lost with the connection before.
            self._stand(renew=self._used is not None and session.name in self._used.nodes)

    def _acquaint(self, neighbor: str) -> None:
        """Tell who is new whom else there is to link with."""
        known = [
            (name, session.advertised)
            for name, session in self._sessions.items()
            if name != neighbor and name in self._labels and session.advertised
        ]
        if known and self._own.links == "all":
            self._say(neighbor, Acquaintances(tuple(known[:MAX_NEIGHBORS])))

    def _meet(self, said: Acquaintances) -> None:
        for name, address in said.nodes if self._own.links == "all" else ():
            if name != self.port.node_id and name not in self._sessions:
                self._meeting.heard(AnnouncedNode(name, address))

    def _down(self, name: str) -> None:
        was_up = name in self._building.up
        super()._down(name)
        if was_up:
            if self._standing.gone(name):
                self._epoch_changed()
            self._stand()

    def on_session_closed(self, session: SessionInfo) -> None:
        super().on_session_closed(session)
        if session.kind is SessionKind.NEIGHBOR:
            self._stand()
            self.port.routes_changed(resend=self._resends)

    def on_neighbors_back(self) -> None:
        self._stand()

    def _is_fit(self) -> bool:
        """Linked with everybody in the tree; and nothing waits here for anybody else."""
        tree = self._used
        if tree is None or self._departed & self._sessions.keys():
            return False
        if len(tree.nodes) >= MAX_NODES:
            return False  # there may be more of them
        if self.port.now() < self._apart_until_s:
            return False
        others = tree.nodes - {self.port.node_id}
        return others <= self._labels.keys() and not any(
            self.port.awaits_others(self._sessions[each]) for each in others
        )

    def _stand(self, *, renew: bool = False) -> None:
        """Tell everybody if it is another standing than before."""
        tree, before = self._used, self._standing.mine
        label = tree.label if tree is not None else b""
        nonce = before.nonce if label == before.label and not renew else 0
        if not self._is_fit():
            nonce = 0
        elif not nonce:
            nonce = self.port.random.randint(1, MAX_NONCE)
        fit = Fit(label, nonce)
        if fit != before:
            for name in self._labels:
                self._say(name, fit)
        if self._standing.stand(fit, tree.nodes if tree is not None else frozenset()):
            self._epoch_changed()

    def _epoch_changed(self) -> None:
        self._graph, self._said_ready = None, False
        self._silent.clear()
        self._waiting.clear()
        epoch = self._standing.epoch
        if epoch:
            assert self._used is not None
            self._graph = Graph(
                self.port.node_id,
                self._used.nodes,
                self._own,
                epoch,
                send=self._say,
                refuse=self._refuse,
            )
            self.port.set_timer(MUTE_S, _MUTE)
            self._fit_keys(anew=True)
            for name, said in self._standing.take_early():
                self._take(name, said)
        self._finish()
        self.port.routes_changed(resend=self._resends)

    def _settled(self) -> None:
        """Everybody is ready: publishers take their places."""
        assert self._graph is not None
        self._graph.late_topics.update(self._roles.topics)
        self._fit_keys(anew=True)
        self.port.routes_changed(resend=self._resends)

    # ---- what nodes say ------------------------------------------------------------------

    def _say(self, neighbor: str, message: GraphMessage) -> None:
        session = self._sessions.get(neighbor)
        if session is None:
            return
        packet = Publish(TOPIC, encode(message))
        sent = self.port.send_message(session, self.port.create_mqtt_message(packet))
        if not sent and isinstance(message, InEpoch):
            self.port.set_timer(0.0, _RENEW)  # it will be missed

    def _refuse(self, name: str, error: RemoteProtocolError) -> None:
        """A neighbor has lied; or this node has believed somebody who has."""
        session = self._sessions.get(name)
        if session is not None:
            self.port.refuse(session, error)
        else:
            self.port.set_timer(0.0, _RENEW)

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        if session.kind is not SessionKind.NEIGHBOR:
            return True
        packet = message.packet
        if not isinstance(packet, Publish) or packet.topic != TOPIC:
            return super().mqtt_message_arrived(session, message)
        name = session.name
        said = parse(packet.payload, name, self.port.node_id)
        if name not in self._labels:
            return True  # of a connection that is gone
        if isinstance(said, Fit):
            if self._standing.heard(name, said):
                self._epoch_changed()
            if self._used is not None and said.label == self._used.label:
                self._synchronize()  # its link may be newer than the tree that both use
        elif isinstance(said, Acquaintances):
            self._meet(said)
        elif said.epoch == self._standing.epoch:
            self._take(name, said)
            self._finish()
        elif not self._standing.is_early(name, said, len(packet.payload)):
            self.port.set_timer(0.0, _RENEW)  # it will be missed
        return True

    def _take(self, name: str, said: InEpoch) -> None:
        """In the epoch that is now."""
        assert self._graph is not None
        if isinstance(said.message, Ready):
            if self._standing.is_ready(name):
                self._settled()
        else:
            self._graph.arrived(name, said.message)

    def _finish(self) -> None:
        """After something has happened to the graph."""
        graph = self._graph
        if graph is None:
            return
        if not self._said_ready and graph.has_joined:
            self._said_ready = True
            assert self._used is not None
            for name in sorted(self._used.nodes - {self.port.node_id}):
                self._say(name, InEpoch(graph.epoch, Ready()))
            if self._standing.is_ready(self.port.node_id):
                self._settled()
        if graph.suspension_changed:
            graph.suspension_changed = False
            self._confirmed = 0
            self.port.set_timer(CONFIRM_S, _CONFIRM)
        if groups := graph.take_changed():
            self.port.routes_changed(sorted(groups), resend=self._resends)

    # ---- which keys ----------------------------------------------------------------------

    def _fit_keys(self, *, anew: bool = False) -> None:
        """What this node is, it is in the graph; soon, if one key takes the place of another.

        What has changed, or with `anew` all that is to be there.
        """
        if self._graph is None:
            self._roles.drop_changes()  # the next one begins anew
            return
        publishing = self._standing.phase is Phase.SETTLED
        wanted, unwanted = self._roles.take_changes(publishing=publishing)
        if anew:
            wanted |= self._roles.keys(publishing=publishing)
        if self._graph.want(wanted, unwanted) and not self._swapping:
            self._swapping = True
            self.port.set_timer(SWAP_S / 4, _SWAP)
        self._finish()

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        for topic_filter in added:
            self._interest.add(topic_filter, None)
        for topic_filter in removed:
            self._interest.discard(topic_filter, None)
        self._roles.interest(added, removed)
        self._fit_keys()
        self.port.routes_changed([*added, *removed])

    def on_local_publisher(
        self, session: SessionInfo, begun: Sequence[str], ended: Sequence[str]
    ) -> None:
        for topic in begun:
            self._ended.pop(topic, None)
        self._begin(begun, clients=1)
        for topic in ended:
            if self._roles.ended(topic):
                self._linger_on(topic)

    def _begin(self, topics: Sequence[str], *, clients: int) -> None:
        new = [topic for topic in topics if self._roles.begun(topic, clients)]
        if new:
            self._fit_keys()
        if not clients:
            for topic in topics:
                self._linger_on(topic)

    def _linger_on(self, topic: str) -> None:
        if not self._ended:
            self.port.set_timer(LINGER_S, _LINGER)
        self._ended[topic] = None

    def _linger(self) -> None:
        """Those topics have ended; what has since the timer was set lingers a bit less."""
        ended, self._ended = self._ended, {}
        for topic in ended:
            self._roles.forget(topic)
            if topic not in self._roles.topics:
                self._by_tree.pop(topic, None)
                if self._graph is not None:
                    self._graph.late_topics.discard(topic)
        self._fit_keys()
        self.port.routes_changed(list(ended), resend=self._resends)

    # ---- timers --------------------------------------------------------------------------

    def on_timer(self, key: Hashable) -> None:
        if key == _LINGER:
            self._linger()
        elif key == _SWAP:
            self._swapping = self._graph is not None and self._graph.retire(self.port.now(), SWAP_S)
            if self._swapping:
                self.port.set_timer(SWAP_S / 4, _SWAP)
            self._finish()
        elif key == _CONFIRM:
            self._confirm()
        elif key == _RENEW:
            self._stand(renew=True)
        elif key == _BEGIN:
            begins, self._begins = self._begins, {}
            self._begin([topic for topic in begins if topic not in self._roles.topics], clients=0)
            self.port.routes_changed(list(begins), resend=self._resends)
        elif key == _WAITED:
            self._waited()
        elif key == _MUTE:
            self._look_for_mute()
        elif key == _TOGETHER:
            self._stand()
        elif key == _SILENT:
            silent, self._silent = self._silent, {}
            for group, source in silent:
                if self._graph is not None:
                    self._graph.is_silent(group, source)
        else:
            super().on_timer(key)

    def _look_for_mute(self) -> None:
        """Who waits beside somebody that does not answer is in no list: all go by the tree."""
        if self._graph is None:
            return
        if self._graph.lists.look():
            self._apart_until_s = self.port.now() + APART_S
            self.port.set_timer(APART_S, _TOGETHER)
            self._stand()
        else:
            self.port.set_timer(MUTE_S, _MUTE)

    def _confirm(self) -> None:
        """Inconsistency 2 of the thesis: less often, the longer nothing has changed."""
        if self._graph is not None and self._graph.confirm():
            self._confirmed = min(self._confirmed + 1, MOST_DOUBLINGS)
            self.port.set_timer(CONFIRM_S * 2**self._confirmed, _CONFIRM)

    # ---- data plane ----------------------------------------------------------------------

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        if arrived_on.kind is not SessionKind.NEIGHBOR:
            return self._route_of_client(topic, arrived_on, retain=retain)
        graph = self._graph
        if graph is not None and not retain and graph.is_of_epoch(label):
            ways = graph.ways_of_label(label, topic)
            if not ways.hops and ways.suspended:
                self._silent[ways.suspended, arrived_on.name] = None
                self.port.set_timer(0.0, _SILENT)
            here = not ways.only_passes and bool(self._interest.match(topic))
            return Route.labeled(self._hops(ways.hops), to_local_broker=here)
        return super().route(topic, arrived_on, label, retain=retain)

    def _hops(self, hops: Sequence[tuple[str, bytes]]) -> list[Hop]:
        return [(self._sessions[name], label) for name, label in hops]

    def _route_of_client(self, topic: str, arrived_on: SessionInfo, *, retain: bool) -> Route:
        graph = self._graph
        if retain and topic not in self._by_tree and self._goes_by_graph(topic):
            self._by_tree[topic] = None
            self._wait_for(topic)
            return Route(pending=True)
        if graph is None or not self._goes_by_graph(topic):
            return super().route(topic, arrived_on, retain=retain)
        hops = graph.ways(topic) if topic in self._roles.topics else None
        if hops is not None:
            graph.late_topics.discard(topic)
            return Route.labeled(self._hops(hops))
        if topic in graph.late_topics:
            return super().route(topic, arrived_on, retain=retain)
        if topic not in self._roles.topics:
            self._wait_for(topic)
        if not self._waiting:
            self.port.set_timer(WAIT_S, _WAITED)
        self._waiting.append(topic)
        return Route(pending=True)

    def _wait_for(self, topic: str) -> None:
        self._begins[topic] = None
        self.port.set_timer(0.0, _BEGIN)

    def _waited(self) -> None:
        """Long enough; what came since the timer was set has waited a bit less."""
        waiting, self._waiting = dict.fromkeys(self._waiting), []
        if self._graph is not None:
            self._graph.late_topics.update(waiting)
            self.port.routes_changed(list(waiting), resend=self._resends)

    def _goes_by_graph(self, topic: str) -> bool:
        return (
            self._standing.phase is Phase.SETTLED
            and topic not in self._by_tree
            and (topic in self._roles.topics or self._roles.has_room(topic))
        )

    def _sends_again(self, source: SessionInfo, tree: Tree, labels: Set[bytes]) -> bool:
        """Of another epoch: who is before has heard of its end, or will, and sends it by the tree.

        In this epoch ways that have changed here are this node's affair.
        """
        by_graph = [label for label in labels if len(label) != LABEL_BYTES]
        if not by_graph:
            return super()._sends_again(source, tree, labels)
        return self._knows(source, tree) and not any(map(self._is_of_epoch, by_graph))

    def comes_again(self, session: SessionInfo, label: bytes) -> bool:
        """By a tree that has been followed by another one, or in an epoch that is not now."""
        tree = self._building.tree
        if len(label) == LABEL_BYTES or tree is None:
            return super().comes_again(session, label)
        return self._knows(session, tree) and not self._is_of_epoch(label)

    def is_given_at_once(self, label: bytes) -> bool:
        """Not in an epoch that is not now: it may have come here only to be passed on."""
        return len(label) == LABEL_BYTES

    def _knows(self, session: SessionInfo, tree: Tree) -> bool:
        """Whether it is in the tree and has forgotten nothing; its link here need not be up.

        Who gets a range in the graph has not got what is older and was for others: so if it sent
        that range on by the tree, which leads to everybody, it could overtake that.
        """
        return session.name in tree.nodes and self._sessions.get(session.name) is session

    def _is_of_epoch(self, label: bytes) -> bool:
        return self._graph is not None and self._graph.is_of_epoch(label)

    def label_now(self, label: bytes, topic: bytes) -> bytes:
        graph, name = self._graph, topic.decode()
        if graph is not None:
            if label:
                by_graph = graph.is_of_epoch(label)
            else:
                by_graph = self._goes_by_graph(name) and graph.ways(name) is not None
            if by_graph:
                return label + graph.generation(name)
        return super().label_now(label, topic)

    # ---- what people and tests see -------------------------------------------------------

    @property
    def graph(self) -> Graph | None:
        return self._graph

    @property
    def standing(self) -> Standing:
        return self._standing

    @property
    def roles(self) -> Roles:
        return self._roles

    @property
    def is_fit(self) -> bool:
        """Whether this node does its part for there to be a graph."""
        return self._is_fit()

    @property
    def base(self) -> int:
        return self._own.base

    def status(self) -> dict[str, object]:
        graph = self._graph
        found = super().status() | {
            "graph": self._standing.phase.name,
            "epoch": self._standing.epoch.hex(),
            "subscribed": sorted(islice(self._roles.subscribed, MAX_SHOWN)),
            "publishing": len(self._roles.topics),
            "by_tree": len(self._by_tree),
            "apart_s": max(round(self._apart_until_s - self.port.now(), 3), 0.0),
        }
        if graph is not None:
            found |= graph.status(MAX_SHOWN)
        return found

    @classmethod
    def check_at_rest(cls, fabric: AtRest) -> None:
        super().check_at_rest(fabric)
        check_graphs(cast("Mapping[str, SkipGraph]", fabric.algorithms), fabric)
