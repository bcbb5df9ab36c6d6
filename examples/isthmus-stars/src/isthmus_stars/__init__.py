"""A star for every topic, over a full mesh: each message takes two hops, over another node's links.

The center of a topic's star is drawn among the nodes by rendezvous hashing, so that all that know
the same nodes agree on it, and no node is the center of everything.  Needs a link between any two
nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from isthmus.cooperation.api import CooperationAlgorithm, Port, Route, SessionInfo, SessionKind

__all__ = ["StarPerTopic"]

TO_CENTER = b"c"
"""The label of what is for the center: it is the center then, even if it would not say so."""


class StarPerTopic(CooperationAlgorithm):
    """To the center, and from there to everybody."""

    name = "stars"
    topology = "any"
    full_mesh = True
    max_label_bytes = 1

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self._neighbors: dict[str, SessionInfo] = {}

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        here = arrived_on.kind is SessionKind.NEIGHBOR
        if here and label != TO_CENTER:
            return Route(to_local_broker=True)
        center = self._neighbors.get(self._center(topic))
        if center is not None and not here:
            return Route.labeled([(center, TO_CENTER)])
        others = tuple(each for each in self._neighbors.values() if each is not arrived_on)
        return Route(others, to_local_broker=here)

    def _center(self, topic: str) -> str:
        nodes = {self.port.node_id, *self._neighbors}
        return max(nodes, key=lambda node: (crc32(f"{node} {topic}".encode()), node))

    def on_session_established(self, session: SessionInfo) -> None:
        if session.kind is SessionKind.NEIGHBOR:
            self._neighbors[session.name] = session
            self.port.routes_changed()

    def on_session_closed(self, session: SessionInfo) -> None:
        if self._neighbors.get(session.name) is session:
            del self._neighbors[session.name]
            self.port.routes_changed()
