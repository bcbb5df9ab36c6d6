"""The fabric as one node knows it: a graph, its forest, and the rings that the forest leaves out.

A link is in the graph when both of its ends announce it with the same birth.  The *forest* is the
graph's minimum spanning forest with links ordered by birth and then by their sorted ends.  No two
links compare equal, so the forest is unique: nodes that know the same graph agree on it without
talking.  It has three properties the guard stands on:

- every link outside it is the greatest, that is the youngest, on the one ring it closes with it;
- a link that is added and closes a ring never replaces an older one;
- a link of the forest stays in it, whatever other links go.

Everything here is kept up to date announcement by announcement: what one costs goes with what it
changes, not with the size of the fabric.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from isthmus.exchange.topology.forest import MinimumForest
from isthmus.exchange.topology.messages import (
    Announcement,
    Ends,
    LinkEntry,
    NodeKey,
    Weight,
)
from isthmus.graph import path_to, search

__all__ = ["ActiveTree", "Edge", "Ends", "TopologyView", "ends_of"]

_NO_ENTRIES: Mapping[NodeKey, LinkEntry] = {}


def ends_of(a: NodeKey, b: NodeKey) -> Ends:
    """The two ends of a link in their canonical order."""
    return (a, b) if a < b else (b, a)


def _agree(one: int, other: int) -> bool:
    """Whether both ends have a link of the forest open: what a quiet one says is as the other."""
    return one == other != 0 or one < 0 < other or other < 0 < one


class Edge(NamedTuple):
    """A link that both ends announce; `openings` are theirs, in no particular order."""

    ends: Ends
    birth: int
    openings: tuple[int, int]

    @property
    def active(self) -> bool:
        """If it is in the forest."""
        return _agree(*self.openings)


class TopologyView:
    """Of the node `here`; `put` and `drop` change it."""

    def __init__(self, here: NodeKey, announcements: Iterable[Announcement] = ()) -> None:
        self.here = here
        self._reopened: dict[Weight, Ends] = {}
        """Edges that both ends have open, or had, since somebody looked."""
        self._forest: MinimumForest[NodeKey, Weight] = MinimumForest(here)
        self._new: dict[Weight, Ends] = {}
        """Edges that are to be added to it."""
        self._said: dict[NodeKey, Announcement] = {}
        self._lives: dict[str, set[NodeKey]] = {}
        self.put(*announcements)

    # ---- what is announced ---------------------------------------------------------------

    def put(self, *announcements: Announcement) -> None:
        """What nodes say now, in place of what they said before.

        What many say is best put at once: the forest then takes the new edges together.
        """
        for announcement in announcements:
            self._put(announcement)
        if self._new:
            self._forest.add_all(self._new)
            self._new = {}

    def _put(self, announcement: Announcement) -> None:
        node, said = announcement.node, self._said
        earlier = said.get(node)
        said[node] = announcement
        before = _NO_ENTRIES
        if earlier is None:
            self._lives.setdefault(node.node_id, set()).add(node)
        else:
            before = earlier.entries
            if not before.keys() <= announcement.entries.keys():
                self._withdraws(earlier, before.keys() - announcement.entries.keys())
        for entry in announcement.links:
            far_end, birth, opening = entry
            was = before.get(far_end)
            if was is entry or (far := said.get(far_end)) is None:
                continue
            theirs = far.entries.get(node)
            if theirs is None:
                continue
            if birth != theirs[1]:
                if was is not None and was[1] == theirs[1]:
                    self._remove(*far.edges[node])
                continue
            weight, ends = far.edges[node]
            if was is None or was[1] != birth:
                self._new[weight] = ends
            elif opening != was[2]:
                self._reopened[weight] = ends

    def drop(self, node: NodeKey) -> None:
        """Nobody says anything of it any more."""
        earlier = self._said.pop(node, None)
        if earlier is not None:
            self._lives[node.node_id].discard(node)
            if not self._lives[node.node_id]:
                del self._lives[node.node_id]
            self._withdraws(earlier, earlier.entries)

    def _withdraws(self, earlier: Announcement, far_ends: Iterable[NodeKey]) -> None:
        """A node no longer says anything of its links to these."""
        for far_end in far_ends:
            theirs = self._entry(far_end, earlier.node)
            if theirs is not None and theirs.birth == earlier.entries[far_end].birth:
                self._remove(*earlier.edges[far_end])

    def _remove(self, weight: Weight, ends: Ends) -> None:
        if self._new.pop(weight, None) is None:
            self._forest.remove(*ends)

    def _entry(self, node: NodeKey, far_end: NodeKey) -> LinkEntry | None:
        """What `node` says of its link to `far_end`."""
        said = self._said.get(node)
        return None if said is None else said.entries.get(far_end)

    def edge(self, ends: Ends) -> Edge | None:
        """The link between two nodes, if both announce it."""
        a, b = ends
        one, other = self._entry(a, b), self._entry(b, a)
        if one is None or other is None or one.birth != other.birth:
            return None
        return Edge(ends, one.birth, (one.opening, other.opening))

    # ---- what follows from it ------------------------------------------------------------

    def moved(self) -> set[NodeKey]:
        """Nodes that were connected with this one, or no longer are, since this was last asked."""
        moved, self._forest.moved = self._forest.moved, set()
        return moved

    def changed(self) -> dict[Weight, Ends]:
        """Edges of which `carries` may say something else since this was last asked."""
        changed = self._forest.changed | self._reopened
        self._forest.changed, self._reopened = {}, {}
        return changed

    @property
    def nodes(self) -> set[NodeKey]:
        """The nodes connected with this one over links that are up; not to be changed."""
        return self._forest.members(self.here)

    def in_forest(self, ends: Ends | None) -> bool:
        return ends is not None and ends in self._forest

    def carries(self, ends: Ends) -> bool:
        """Whether it is in the forest, and both ends have it open as far as they tell."""
        if ends not in self._forest:
            return False
        a, b = ends
        return _agree(self._said[a].entries[b].opening, self._said[b].entries[a].opening)

    def connected_edges(self) -> dict[Ends, Edge]:
        """Those of the fabric that this node is in, in order; takes a look at all of them."""
        found: dict[Ends, Edge] = {}
        for node in sorted(self.nodes):
            for far_end in sorted(self._said[node].entries):
                if node < far_end and (edge := self.edge((node, far_end))) is not None:
                    found[edge.ends] = edge
        return found

    def left_out(self) -> tuple[Ends, ...]:
        """The links that close rings, in order."""
        return tuple(ends for ends in self.connected_edges() if ends not in self._forest)

    def ring(self, ends: Ends) -> tuple[str, ...]:
        """The ring that a link outside the forest closes, as ids from one end to the other."""
        return tuple(node.node_id for node in self._forest.path(*ends))

    def lives(self, node_id: str) -> tuple[str, ...]:
        """The incarnations of a node id that are connected; more than one is a fault."""
        nodes = self.nodes
        known = self._lives.get(node_id, ())
        return tuple(sorted(node.incarnation for node in known if node in nodes))

    def leads_to(self, target: NodeKey, own: Iterable[NodeKey]) -> bool:
        """Whether open edges lead from here to `target`; of this node's own, those to `own`.

        Looked for from both ends: who comes with few others is found to be alone with few looks.
        """
        here = self.here
        first = [far_end for far_end in own if self.edge((here, far_end))]
        first += [far_end for far_end in self._open(here) if far_end != target]
        ours, theirs = {here, *first}, {target}
        if target in ours:
            return True
        queues = (deque(ours - {here}), deque(theirs))
        while True:
            for side, other, queue in zip((ours, theirs), (theirs, ours), queues, strict=True):
                if not queue:
                    return False
                node = queue.popleft()
                for following in self._open(node):
                    if following in side or following == here:
                        continue
                    if following in other:
                        return True
                    side.add(following)
                    queue.append(following)

    def _open(self, node: NodeKey) -> list[NodeKey]:
        """To whom edges lead from `node` that at least one end has open."""
        said, found = self._said, []
        for far_end, birth, opening in said[node].links if node in said else ():
            theirs = self._entry(far_end, node)
            if theirs is not None and theirs.birth == birth and (opening or theirs.opening):
                told = opening > 0 or theirs.opening > 0
                if told or (node, far_end) in self._forest:
                    found.append(far_end)
        return found


class ActiveTree:
    """How other nodes are reached over active links of the forest: parent by parent."""

    def __init__(self, here: NodeKey) -> None:
        self.here = here
        self._around: dict[NodeKey, set[NodeKey]] = {}
        self._before: dict[NodeKey, NodeKey] = {here: here}
        self._first: dict[NodeKey, str] = {}
        """Over which neighbor each is reached."""
        self._lives: dict[tuple[str, str], int] = {}
        """How many lives of an id are reached over a neighbor."""
        self.ways: dict[str, frozenset[str]] = {}
        """The same by ids; a second life of an id may be reached over another one."""
        self._only: dict[str, frozenset[str]] = {}
        """A neighbor alone, one object for all that are reached over it."""
        self.gone: dict[str, set[str]] = {}
        """Of an id, over whom it is no longer reached, since somebody looked."""

    def __contains__(self, ends: Ends) -> bool:
        return ends[1] in self._around.get(ends[0], ())

    def connect(self, a: NodeKey, b: NodeKey) -> None:
        self._around.setdefault(a, set()).add(b)
        self._around.setdefault(b, set()).add(a)
        if (a in self._before) != (b in self._before):
            self._spread(*((a, b) if a in self._before else (b, a)))

    def disconnect(self, a: NodeKey, b: NodeKey) -> None:
        for one, other in ((a, b), (b, a)):
            self._around[one].discard(other)
            if not self._around[one]:
                del self._around[one]
        if self.here in {a, b}:
            self._only.pop((b if a == self.here else a).node_id, None)
        if self._before.get(b) == a:
            self._lose(b)
        elif self._before.get(a) == b:
            self._lose(a)

    def _spread(self, known: NodeKey, new: NodeKey) -> None:
        first = new.node_id if known == self.here else self._first[known]
        self._before[new] = known
        queue = deque((new,))
        while queue:
            node = queue.popleft()
            self._first[node] = first
            self._reached(node.node_id, first)
            for following in self._around[node]:
                if following not in self._before:
                    self._before[following] = node
                    queue.append(following)

    def _reached(self, node_id: str, first: str) -> None:
        if node_id == self.here.node_id:
            return
        way = node_id, first
        self._lives[way] = self._lives.get(way, 0) + 1
        if self._lives[way] == 1:
            only = self._only.setdefault(first, frozenset((first,)))
            others = self.ways.get(node_id)
            self.ways[node_id] = only if others is None else others | only

    def _lose(self, root: NodeKey) -> None:
        queue = deque((root,))
        while queue:
            node = queue.popleft()
            del self._before[node]
            self._lost(node.node_id, self._first.pop(node))
            for following in self._around.get(node, ()):
                if self._before.get(following) == node:
                    queue.append(following)

    def _lost(self, node_id: str, first: str) -> None:
        if node_id == self.here.node_id:
            return
        way = node_id, first
        self._lives[way] -= 1
        if self._lives[way]:
            return
        del self._lives[way]
        left = self.ways.pop(node_id)
        if len(left) > 1:
            self.ways[node_id] = left - {first}
        self.gone.setdefault(node_id, set()).add(first)

    def neighbors(self) -> Iterable[NodeKey]:
        return self._around.get(self.here, ())

    def paths(self) -> dict[NodeKey, tuple[NodeKey, ...]]:
        """To every node that is reached, this one left out."""
        edges = ((a, b) for a, around in self._around.items() for b in around if a < b)
        before = search(edges, self.here)
        return {node: path_to(before, node) for node in before if node != self.here}

    def first_steps(self) -> Mapping[NodeKey, str]:
        return self._first
