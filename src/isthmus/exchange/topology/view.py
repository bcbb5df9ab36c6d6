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
from isthmus.exchange.topology.messages import Announcement, LinkEntry, NodeKey
from isthmus.graph import path_to, search

__all__ = ["ActiveTree", "Edge", "Ends", "TopologyView", "ends_of"]

Ends = tuple[NodeKey, NodeKey]
_NO_ENTRIES: Mapping[NodeKey, LinkEntry] = {}


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
        return self.openings[0] == self.openings[1] > 0


class TopologyView:
    """Of the node `here`; `put` and `drop` change it."""

    def __init__(self, here: NodeKey, announcements: Iterable[Announcement] = ()) -> None:
        self.here = here
        self.open: dict[NodeKey, set[NodeKey]] = {}
        """Edges that at least one end has open: node → neighbors."""
        self.changed: set[Ends] = set()
        """Edges that are new, gone, or other than before, also by what became of the forest."""
        self._forest: MinimumForest[NodeKey, tuple[int, Ends]] = MinimumForest(here)
        self._entries: dict[NodeKey, Mapping[NodeKey, LinkEntry]] = {}
        self._lives: dict[str, set[NodeKey]] = {}
        for announcement in announcements:
            self.put(announcement)

    # ---- what is announced ---------------------------------------------------------------

    def put(self, announcement: Announcement) -> None:
        """What a node says now, in place of what it said before."""
        node, now, known = announcement.node, announcement.entries, self._entries
        before = known.get(node)
        if before is None:
            before = _NO_ENTRIES
            self._lives.setdefault(node.node_id, set()).add(node)
        known[node] = now
        if not before.keys() <= now.keys():
            for far_end, entry in before.items():
                if far_end not in now and (theirs := known.get(far_end)):
                    self._says(node, far_end, entry, None, theirs.get(node))
        for far_end, entry in now.items():
            was = before.get(far_end)
            if was is not entry and was != entry and (theirs := known.get(far_end)):
                self._says(node, far_end, was, entry, theirs.get(node))

    def drop(self, node: NodeKey) -> None:
        """Nobody says anything of it any more."""
        before = self._entries.pop(node, None)
        if before is None:
            return
        self._lives[node.node_id].discard(node)
        if not self._lives[node.node_id]:
            del self._lives[node.node_id]
        for far_end, entry in before.items():
            if theirs := self._entries.get(far_end):
                self._says(node, far_end, entry, None, theirs.get(node))

    def _says(
        self,
        node: NodeKey,
        far_end: NodeKey,
        was: LinkEntry | None,
        entry: LinkEntry | None,
        theirs: LinkEntry | None,
    ) -> None:
        """`node` says something else of the link to `far_end`, which says `theirs` of it."""
        if theirs is None:
            return
        birth = theirs.birth
        before = was is not None and was.birth == birth
        now = entry is not None and entry.birth == birth
        if not before and not now:
            return
        ends = (node, far_end) if node < far_end else (far_end, node)
        self.changed.add(ends)
        other = None
        if not now:
            other = self._forest.remove(*ends)
        elif not before:
            other = self._forest.add(*ends, (birth, ends))
        if other is not None:
            self.changed.add(ends_of(*other))
        was_open = before and bool((was and was.opening) or theirs.opening)
        is_open = now and bool((entry and entry.opening) or theirs.opening)
        if is_open and not was_open:
            self.open.setdefault(node, set()).add(far_end)
            self.open.setdefault(far_end, set()).add(node)
        elif was_open and not is_open:
            self._close(node, far_end)
            self._close(far_end, node)

    def _close(self, one: NodeKey, other: NodeKey) -> None:
        around = self.open[one]
        around.remove(other)
        if not around:
            del self.open[one]

    def edge(self, ends: Ends) -> Edge | None:
        """The link between two nodes, if both announce it."""
        a, b = ends
        one = self._entries.get(a, _NO_ENTRIES).get(b)
        other = self._entries.get(b, _NO_ENTRIES).get(a)
        if one is None or other is None or one.birth != other.birth:
            return None
        return Edge(ends, one.birth, (one.opening, other.opening))

    # ---- what follows from it ------------------------------------------------------------

    def moved(self) -> set[NodeKey]:
        """Nodes that were connected with this one, or no longer are, since this was last asked."""
        moved, self._forest.moved = self._forest.moved, set()
        return moved

    @property
    def nodes(self) -> set[NodeKey]:
        """The nodes connected with this one over links that are up; not to be changed."""
        return self._forest.members(self.here)

    def in_forest(self, ends: Ends | None) -> bool:
        return ends is not None and ends in self._forest

    def connected_edges(self) -> dict[Ends, Edge]:
        """Those of the fabric that this node is in, in order; takes a look at all of them."""
        found: dict[Ends, Edge] = {}
        for node in sorted(self.nodes):
            for far_end in sorted(self._entries[node]):
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
        first += [far_end for far_end in self.open.get(here, ()) if far_end != target]
        ours, theirs = {here, *first}, {target}
        if target in ours:
            return True
        queues = (deque(ours - {here}), deque(theirs))
        while True:
            for side, other, queue in zip((ours, theirs), (theirs, ours), queues, strict=True):
                if not queue:
                    return False
                node = queue.popleft()
                for following in self.open.get(node, ()):
                    if following in side or following == here:
                        continue
                    if following in other:
                        return True
                    side.add(following)
                    queue.append(following)


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

    def paths(self) -> dict[NodeKey, tuple[NodeKey, ...]]:
        """To every node that is reached, this one left out."""
        edges = ((a, b) for a, around in self._around.items() for b in around if a < b)
        before = search(edges, self.here)
        return {node: path_to(before, node) for node in before if node != self.here}

    def first_steps(self) -> Mapping[NodeKey, str]:
        return self._first
