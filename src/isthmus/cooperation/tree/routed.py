"""One tree over all nodes, in which messages go where somebody wants them (Overlays §5.1).

The tree is that of `SpanningTree`, with all that is said there of changing it; which of its links a
message takes is for `Advertising` to say.  A topic that nobody publishes on any more stays
advertised for `LINGER_S`, for clients that come, publish and go.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, cast

from isthmus.cooperation.api import AtRest, Port, SessionInfo, SessionKind
from isthmus.cooperation.tree.advertising import Advertising
from isthmus.cooperation.tree.algorithm import SpanningTree
from isthmus.cooperation.tree.invariants import check_tables
from isthmus.cooperation.tree.messages import Advertise, TreeMessage, Want
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.covering_set import Steps
from isthmus.mqtt.filters.index import FilterIndex

__all__ = ["RoutedTree"]

LINGER_S: Final = 10.0
MAX_EARLY: Final = 1_000
"""Messages of neighbors that use a tree before this node does."""
MAX_STEPS: Final = 250
"""A topic for which it takes longer to find who wants it counts as wanted."""
MAX_SHOWN: Final = 100
"""Topics in `status`."""
NOBODY: Final = SessionInfo(0, SessionKind.NEIGHBOR, "")

_INTEREST, _LINGER = "interest", "linger"


class RoutedTree(SpanningTree):
    """Sends messages along the links of a tree behind which somebody wants them."""

    name = "routed-tree"
    follows_publishers = True

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self._interest: FilterIndex[None] = FilterIndex()
        self._publishers: dict[str, set[int]] = {}
        """Topics, and the sessions of clients that publish on them; nobody for a while."""
        self._early: list[tuple[str, Advertise | Want]] = []
        self._advertising = Advertising(self.send, self._is_wanted_here)

    @property
    def advertising(self) -> Advertising:
        """The Subscription and Publication Routing Tables."""
        return self._advertising

    def _is_wanted_here(self, topic: str) -> bool:
        """By a client, or by who is away, since the node has started or not, and may want it."""
        if self._kept or self.port.awaits_others(NOBODY):
            return True
        matched = self._interest.match_within(topic, Steps(MAX_STEPS))
        return matched is None or bool(matched)

    # ---- local clients -------------------------------------------------------------------

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        for topic_filter in added:
            self._interest.add(topic_filter, None)
        for topic_filter in removed:
            self._interest.discard(topic_filter, None)
        if self._advertising.interest_changed((*added, *removed)):
            self.port.set_timer(0.0, _INTEREST)

    def on_local_publisher(
        self, session: SessionInfo, begun: Sequence[str], ended: Sequence[str]
    ) -> None:
        for topic in begun:
            self._publishers.setdefault(topic, set()).add(session.id)
        for topic in ended:
            if publishers := self._publishers.get(topic):
                publishers.discard(session.id)
                if not publishers:
                    self.port.set_timer(LINGER_S, (_LINGER, topic))
        self._advertising.begun(
            topic
            for topic in begun
            if not topic.startswith("$") and topic not in self._advertising.published
        )

    def on_timer(self, key: Hashable) -> None:
        if key == _INTEREST:
            if self._advertising.work():
                self.port.set_timer(0.0, _INTEREST)
        elif isinstance(key, tuple) and key[0] == _LINGER:
            topic = key[1]
            if not self._publishers.get(topic, True):
                del self._publishers[topic]
                self._changed(self._advertising.ended([topic]))
        else:
            super().on_timer(key)

    # ---- neighbors -----------------------------------------------------------------------

    def on_session_established(self, session: SessionInfo) -> None:
        super().on_session_established(session)
        if session.kind is SessionKind.NEIGHBOR:
            self._changed(self._advertising.renew(session.name))

    def on_session_closed(self, session: SessionInfo) -> None:
        kept = bool(self._kept)
        super().on_session_closed(session)
        if kept and not self._kept:
            self.on_neighbors_back()

    def on_neighbors_back(self) -> None:
        """Or they are given up: what is wanted for them may not be any more."""
        if self._advertising.interest_changed(["#"]):
            self.port.set_timer(0.0, _INTEREST)

    def _tree_message(self, name: str, said: TreeMessage) -> None:
        if not isinstance(said, Advertise | Want):
            super()._tree_message(name, said)
        elif self._used is not None and said.label == self._used.label:
            self._take(name, said)
        elif self._building.edges_of(said.label) is not None:
            if len(self._early) >= MAX_EARLY:
                raise RemoteProtocolError("too many advertisements in a tree that is not used yet")
            self._early.append((name, said))

    def _take(self, name: str, said: Advertise | Want) -> None:
        if isinstance(said, Advertise):
            self._changed(self._advertising.advertised(name, said))
        else:
            self._changed(self._advertising.wanted(name, said))

    def _changed(self, topics: set[str]) -> None:
        if topics:
            self.port.routes_changed(sorted(topics))

    def _use(self) -> None:
        tree = self._building.tree
        assert tree is not None
        super()._use()
        if self._advertising.reset(tree.label, tree.neighbors):
            self.port.set_timer(0.0, _INTEREST)
        early, self._early = self._early, []
        for name, said in early:
            if said.label == tree.label:
                self._take(name, said)

    # ---- data plane ----------------------------------------------------------------------

    def _goes_to(self, topic: str, name: str) -> bool:
        return self._advertising.goes_to(topic, name)

    # ---- what people and tests see -------------------------------------------------------

    def status(self) -> dict[str, object]:
        tables = self._advertising.tables
        return super().status() | {
            "publishing": len(self._advertising.published),
            "advertised": len(tables),
            "tables": {
                topic: {
                    "srt": sorted(each.srt),
                    "prt": sorted(name for name, wanted in each.prt.items() if wanted),
                    "local": each.here,
                }
                for topic, each in sorted(tables.items())[:MAX_SHOWN]
            },
        }

    @classmethod
    def check_at_rest(cls, fabric: AtRest) -> None:
        super().check_at_rest(fabric)
        check_tables(cast("Mapping[str, RoutedTree]", fabric.algorithms), fabric.local_filters)
