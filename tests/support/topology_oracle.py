"""The fabric as one node knows it, computed from all announcements at once.

What `isthmus.exchange.topology.view` keeps up to date announcement by announcement; this is how it
was found before, and what it is compared with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from isthmus.exchange.topology.messages import QUIET, Announcement, LinkEntry, NodeKey
from isthmus.graph import path_to, search

__all__ = ["Edge", "Ends", "TopologyView", "ends_of"]

Ends = tuple[NodeKey, NodeKey]


def ends_of(a: NodeKey, b: NodeKey) -> Ends:
    """The two ends of a link in their canonical order."""
    return (a, b) if a < b else (b, a)


class Edge(NamedTuple):
    """A link that both ends announce; `openings` are theirs, in no particular order."""

    ends: Ends
    birth: int
    openings: tuple[int, int]

    @property
    def active(self) -> bool:
        """If it is in the forest: what a quiet end does is what the other one says."""
        told = set(self.openings) - {QUIET}
        return len(told) <= 1 and 0 not in told

    def open(self, in_forest: bool) -> bool:
        """Whether an end has it open."""
        return max(self.openings) > 0 or (QUIET in self.openings and in_forest)


class TopologyView:
    """Built from announcements; what is asked is computed once, when it is asked first."""

    def __init__(self, here: NodeKey, announcements: Mapping[NodeKey, Announcement]) -> None:
        self.here = here
        self.edges: dict[Ends, Edge] = {}
        self.nodes: set[NodeKey] = {here}
        """The nodes connected with this one over links that are up, active or not."""
        entries: dict[NodeKey, dict[NodeKey, LinkEntry]] = {}
        queue = deque([here])
        while queue:
            node = queue.popleft()
            mine = entries.get(node)
            if mine is None:
                mine = entries[node] = {entry[0]: entry for entry in announcements[node].links}
            for far_end, entry in mine.items():
                theirs = entries.get(far_end)
                if theirs is None:
                    if far_end not in announcements:
                        continue
                    links = announcements[far_end].links
                    theirs = entries[far_end] = {entry[0]: entry for entry in links}
                other = theirs.get(node)
                if other is None or other.birth != entry.birth:
                    continue
                ends = (node, far_end) if node < far_end else (far_end, node)
                if ends not in self.edges:
                    self.edges[ends] = Edge(ends, entry.birth, (entry.opening, other.opening))
                if far_end not in self.nodes:
                    self.nodes.add(far_end)
                    queue.append(far_end)

    @cached_property
    def forest(self) -> frozenset[Ends]:
        leader = {node: node for node in self.nodes}

        def find(node: NodeKey) -> NodeKey:
            while leader[node] != node:
                leader[node] = node = leader[leader[node]]
            return node

        chosen = []
        for _, ends in sorted((edge.birth, ends) for ends, edge in self.edges.items()):
            a, b = find(ends[0]), find(ends[1])
            if a != b:
                leader[a] = b
                chosen.append(ends)
        return frozenset(chosen)

    def ring(self, ends: Ends) -> tuple[str, ...]:
        """The ring that a link outside the forest closes, as ids from one end to the other."""
        up, down = (list(reversed(path_to(self._before, end))) for end in ends)
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up.pop()
            down.pop()
        return tuple(node.node_id for node in (*up, *reversed(down[:-1])))

    @cached_property
    def _before(self) -> dict[NodeKey, NodeKey]:
        """The forest, of which all is connected with this node, hung up at it."""
        return search(self.forest, self.here)

    @cached_property
    def left_out(self) -> tuple[Ends, ...]:
        """The links that close rings, in order."""
        return tuple(sorted(set(self.edges) - self.forest))

    @cached_property
    def lives(self) -> dict[str, tuple[str, ...]]:
        """The incarnations of every node id that is connected; more than one is a fault."""
        lives: dict[str, tuple[str, ...]] = {}
        for node_id, incarnation in sorted(self.nodes):
            lives[node_id] = (*lives.get(node_id, ()), incarnation)
        return lives
