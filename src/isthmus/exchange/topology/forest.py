"""The minimum spanning forest of a graph whose edges come and go, kept up to date edge by edge.

Edges have weights of which no two are equal, so the forest is unique whatever the order in which
the edges came.  What one change costs:

    an edge between two trees                the nodes of the smaller one
    an edge within a tree, the heaviest yet  nothing
    an edge within a tree, another           the way to where the tree hangs, short in most trees:
                                             the heaviest on the ring goes
    an edge goes that is not in the forest   nothing
    an edge of the forest goes               the nodes of the smaller part, and their edges
    many edges at once                       a look at each of them and at each of the forest

Links that come into being are younger, and so heavier, than those that are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["MinimumForest"]


class _Weight(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


MANY = 4
"""Edges that come at once are many if that many times of them are more than the forest has."""

N = TypeVar("N")
W = TypeVar("W", bound=_Weight)


class MinimumForest(Generic[N, W]):
    """Of all edges that were added and not removed."""

    def __init__(self, home: N) -> None:
        self.moved: set[N] = set()
        """Nodes that were connected with `home`, or no longer are, since somebody looked."""
        self.changed: dict[W, tuple[N, N]] = {}
        """Edges that came into the forest or left it, since somebody looked."""
        self._home = home
        self._tree: dict[N, dict[N, W]] = {}
        """The forest's edges: node → neighbor → weight."""
        self._rest: dict[N, dict[N, W]] = {}
        """The others."""
        self._above: dict[N, tuple[N, W]] = {}
        """Every tree hangs at one of its nodes; the next one towards it, and the edge there."""
        self._label: dict[N, int] = {}
        self._members: dict[int, set[N]] = {}
        """Trees by label; nodes without an edge are in none."""
        self._heaviest: dict[int, W] = {}
        """At least as heavy as every edge of the tree."""
        self._labels = 0

    def __contains__(self, ends: tuple[N, N]) -> bool:
        """Whether the edge is there and in the forest."""
        return ends[1] in self._tree.get(ends[0], ())

    def connected(self, a: N, b: N) -> bool:
        return a == b or (a in self._label and self._label[a] == self._label.get(b))

    def members(self, node: N) -> set[N]:
        """All that `node` is connected with, itself included; not to be changed."""
        label = self._label.get(node)
        return {node} if label is None else self._members[label]

    def edges(self) -> Iterator[tuple[N, N]]:
        """Of the forest, each in both directions."""
        for a, around in self._tree.items():
            for b in around:
                yield a, b

    # ---- changes -------------------------------------------------------------------------

    def add(self, a: N, b: N, weight: W) -> None:
        """The edge must not be there; another one may leave the forest for it."""
        label = self._label.get(a)
        if label is None or label != self._label.get(b):
            self._join(a, b, weight)
            return
        if not weight < self._heaviest[label]:
            _put(self._rest, a, b, weight)
            return
        node, from_a = self._heaviest_between(a, b)
        above, heaviest = self._above[node]
        if not weight < heaviest:
            _put(self._rest, a, b, weight)
            return
        self.changed[heaviest] = node, above
        self.changed[weight] = a, b
        _take(self._tree, node, above)
        _put(self._rest, node, above, heaviest)
        _put(self._tree, a, b, weight)
        del self._above[node]
        if from_a:
            self._hang(a, b, weight)
        else:
            self._hang(b, a, weight)

    def add_all(self, edges: Mapping[W, tuple[N, N]]) -> None:
        """As if each were added."""
        if MANY * len(edges) > len(self._above):
            self._add_many(edges)
        else:
            for weight in sorted(edges):
                self.add(*edges[weight], weight)

    def _add_many(self, edges: Mapping[W, tuple[N, N]]) -> None:
        """By Kruskal's algorithm: what was left out before is not needed now, either."""
        before = {weight: (node, above) for node, (above, weight) in self._above.items()}
        connected = set(self.members(self._home))
        everything = {**before, **edges}
        label: dict[N, int] = {}
        members: dict[int, set[N]] = {}
        heaviest: dict[int, W] = {}
        for weight in sorted(everything):
            a, b = everything[weight]
            one, other = label.get(a), label.get(b)
            if one is not None and one == other:
                if weight in before:
                    _take(self._tree, a, b)
                    self.changed[weight] = a, b
                _put(self._rest, a, b, weight)
                continue
            if weight not in before:
                _put(self._tree, a, b, weight)
                self.changed[weight] = a, b
            if one is None or other is None:
                if one is None and other is None:
                    self._labels += 1
                    one = self._labels
                    members[one] = {a, b}
                    label[a] = label[b] = one
                elif one is None:
                    one = label[a] = label[b]
                    members[one].add(a)
                else:
                    label[b] = one
                    members[one].add(b)
            else:
                if len(members[one]) < len(members[other]):
                    one, other = other, one
                moved = members.pop(other)
                for node in moved:
                    label[node] = one
                members[one] |= moved
                del heaviest[other]
            heaviest[one] = weight
        self._label, self._members, self._heaviest = label, members, heaviest
        self._above = {}
        for each in members.values():
            self._hang_all(next(iter(each)))
        self.moved |= self.members(self._home) - connected

    def _hang_all(self, root: N) -> None:
        """The whole tree, at `root`."""
        tree, above = self._tree, self._above
        queue = [(root, root)]
        for node, came_from in queue:
            for following, weight in tree[node].items():
                if following != came_from:
                    above[following] = node, weight
                    queue.append((following, node))

    def remove(self, a: N, b: N) -> None:
        """The edge must be there; another one may come into the forest for it."""
        if b in self._rest.get(a, ()):
            _take(self._rest, a, b)
            return
        self.changed[self._tree[a][b]] = a, b
        _take(self._tree, a, b)
        part = self._smaller_part(a, b)
        lightest = None
        for node in part:
            for other, weight in self._rest.get(node, {}).items():
                if other not in part and (lightest is None or weight < lightest[2]):
                    lightest = node, other, weight
        below = a if a in self._above and self._above[a][0] == b else b
        del self._above[below]
        if lightest is None:
            self._part(part)
            return
        node, other, weight = lightest
        self.changed[weight] = node, other
        _take(self._rest, node, other)
        _put(self._tree, node, other, weight)
        if below in part:
            self._hang(node, other, weight)
        else:
            self._hang(other, node, weight)
        self._note(self._label[a], weight)

    def _hang(self, node: N, following: N, weight: W) -> None:
        """All that hangs together with `node` hangs at `following` now, by `node`."""
        while True:
            above = self._above.get(node)
            self._above[node] = following, weight
            if above is None:
                return
            node, following, weight = above[0], node, above[1]

    def _join(self, a: N, b: N, weight: W) -> None:
        _put(self._tree, a, b, weight)
        self.changed[weight] = a, b
        one, other = self._label_of(a), self._label_of(b)
        if len(self._members[one]) < len(self._members[other]):
            one, other = other, one
            self._hang(a, b, weight)
        else:
            self._hang(b, a, weight)
        moved = self._members.pop(other)
        if self._home in moved:
            self.moved |= self._members[one]
        elif self._label.get(self._home) == one:
            self.moved |= moved
        for node in moved:
            self._label[node] = one
        self._members[one] |= moved
        if other in self._heaviest:
            self._note(one, self._heaviest.pop(other))
        self._note(one, weight)

    def _label_of(self, node: N) -> int:
        label = self._label.get(node)
        if label is None:
            self._labels += 1
            label = self._label[node] = self._labels
            self._members[label] = {node}
        return label

    def _note(self, label: int, weight: W) -> None:
        if label not in self._heaviest or self._heaviest[label] < weight:
            self._heaviest[label] = weight

    def _part(self, part: set[N]) -> None:
        """`part` is a tree of its own now."""
        node = next(iter(part))
        before = self._label[node]
        self._members[before] -= part
        if self._home in part:
            self.moved |= self._members[before]
        elif self._label.get(self._home) == before:
            self.moved |= part
        if len(part) == 1:
            del self._label[node]
        else:
            self._labels += 1
            self._members[self._labels] = part
            self._heaviest[self._labels] = self._heaviest[before]
            for each in part:
                self._label[each] = self._labels
        if len(self._members[before]) == 1:
            (alone,) = self._members.pop(before)
            del self._label[alone], self._heaviest[before]

    # ---- searches ------------------------------------------------------------------------

    def _smaller_part(self, a: N, b: N) -> set[N]:
        """Of what hangs together with `a` and with `b`, the one that is found sooner."""
        seen = ({a}, {b})
        queues = (deque((a,)), deque((b,)))
        while True:
            for part, queue in zip(seen, queues, strict=True):
                if not queue:
                    return part
                for following in self._tree.get(queue.popleft(), ()):
                    if following not in part:
                        part.add(following)
                        queue.append(following)

    def path(self, a: N, b: N) -> list[N]:
        """The nodes on the way from `a` to `b`, which are connected."""
        up = {a: None, **dict.fromkeys(self._way_up(a))}
        down = [b]
        while down[-1] not in up:
            down.append(self._above[down[-1]][0])
        path = list(up)
        del path[path.index(down[-1]) :]
        path += reversed(down)
        return path

    def _way_up(self, node: N) -> Iterator[N]:
        while (above := self._above.get(node)) is not None:
            node = above[0]
            yield node

    def _heaviest_between(self, a: N, b: N) -> tuple[N, bool]:
        """Below which node the heaviest edge on the way is, and whether that is on `a`'s side."""
        get = self._above.get
        up: dict[N, N] = {}
        """Of the nodes above `a`, and of itself, below which the heaviest edge on the way is."""
        node, worst = a, a
        heaviest: W | None = None
        while (above := get(node)) is not None:
            up[node] = worst
            if heaviest is None or heaviest < above[1]:
                worst, heaviest = node, above[1]
            node = above[0]
        up[node] = worst
        node, worst = b, b
        heaviest = None
        while node not in up:
            following, weight = self._above[node]
            if heaviest is None or heaviest < weight:
                worst, heaviest = node, weight
            node = following
        if node == a:
            return worst, False
        other = up[node]
        if heaviest is None or heaviest < self._above[other][1]:
            return other, True
        return worst, False


def _put(edges: dict[N, dict[N, W]], a: N, b: N, weight: W) -> None:
    edges.setdefault(a, {})[b] = weight
    edges.setdefault(b, {})[a] = weight


def _take(edges: dict[N, dict[N, W]], a: N, b: N) -> None:
    for one, other in ((a, b), (b, a)):
        del edges[one][other]
        if not edges[one]:
            del edges[one]
