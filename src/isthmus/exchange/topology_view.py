"""The fabric as one node knows it: a graph, its forest, and the rings that the forest leaves out.

A link is in the graph when both of its ends announce it with the same birth.  The *forest* is the
graph's minimum spanning forest with links ordered by birth and then by their sorted ends (Kruskal,
1956).  No two links compare equal, so the forest is unique: nodes that know the same graph agree on
it without talking.  It has three properties the guard stands on:

- every link outside it is the greatest, that is the youngest, on the one ring it closes with it;
- a link that is added and closes a ring never replaces an older one;
- a link of the forest stays in it, whatever other links go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from isthmus.exchange.topology_messages import Announcement, NodeKey

__all__ = ["Edge", "Ends", "TopologyView", "ends_of", "shortest_paths"]

Ends = tuple[NodeKey, NodeKey]


def ends_of(a: NodeKey, b: NodeKey) -> Ends:
    """The two ends of a link in their canonical order."""
    return (a, b) if a < b else (b, a)


@dataclass(frozen=True, slots=True)
class Edge:
    """A link that both ends announce; `openings` are theirs, in no particular order."""

    ends: Ends
    birth: int
    openings: tuple[int, int]

    @property
    def order(self) -> tuple[int, Ends]:
        return self.birth, self.ends

    @property
    def active(self) -> bool:
        return self.openings[0] == self.openings[1] > 0


def shortest_paths(edges: Iterable[Ends], start: NodeKey) -> dict[NodeKey, tuple[NodeKey, ...]]:
    """A shortest path from `start` to every node it reaches, both included.

    Among paths of one length the neighbour with the lowest id is taken.
    """
    around: dict[NodeKey, list[NodeKey]] = {start: []}
    for a, b in edges:
        around.setdefault(a, []).append(b)
        around.setdefault(b, []).append(a)
    paths: dict[NodeKey, tuple[NodeKey, ...]] = {start: (start,)}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        for following in sorted(around[at]):
            if following not in paths:
                paths[following] = (*paths[at], following)
                queue.append(following)
    return paths


class TopologyView:
    """Built from announcements; what is asked is computed once, when it is asked first."""

    def __init__(self, here: NodeKey, announcements: Mapping[NodeKey, Announcement]) -> None:
        self.here = here
        self.edges: dict[Ends, Edge] = {}
        self.nodes: set[NodeKey] = {here}
        """The nodes connected with this one over links that are up, active or not."""
        entries = {
            node: {entry.peer: entry for entry in announcement.links}
            for node, announcement in announcements.items()
        }
        queue = deque([here])
        while queue:
            node = queue.popleft()
            for peer, entry in entries[node].items():
                other = entries.get(peer, {}).get(node)
                if other is None or other.birth != entry.birth:
                    continue
                ends = ends_of(node, peer)
                openings = (entry.opening, other.opening)
                self.edges[ends] = Edge(ends, entry.birth, openings)
                if peer not in self.nodes:
                    self.nodes.add(peer)
                    queue.append(peer)

    @cached_property
    def forest(self) -> frozenset[Ends]:
        leader = {node: node for node in self.nodes}

        def find(node: NodeKey) -> NodeKey:
            while leader[node] != node:
                leader[node] = node = leader[leader[node]]
            return node

        chosen = []
        for edge in sorted(self.edges.values(), key=lambda edge: edge.order):
            a, b = find(edge.ends[0]), find(edge.ends[1])
            if a != b:
                leader[a] = b
                chosen.append(edge.ends)
        return frozenset(chosen)

    def ring(self, ends: Ends) -> tuple[str, ...]:
        """The ring that a link outside the forest closes, as ids from one end to the other."""
        path = shortest_paths(self.forest, ends[0])[ends[1]]
        return tuple(node.node_id for node in path)

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
