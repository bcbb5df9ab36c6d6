"""Which of a million filters match this topic.

A `FilterIndex` maps filters to values (sessions, neighbors, ...), several of each if need be, and
answers with the values of all filters that match a topic name.  The rules are those of
`isthmus.mqtt.filters.topics.matches`, the ``$`` rule [MQTT-4.7.2-1] included; as there, filters and
names are trusted to be valid, and ``$share/NAME/`` to have been split off.

Shape, chosen for memory first:

* a filter without wildcards is its own key in one dictionary: a match looks it up once;
* a filter with wildcards is a `_Leaf` in a trie, hung as high as it is alone: a `_Node` exists
  only where two filters share a path.  So an index of *n* such filters has *n* leaves and mostly
  far fewer nodes, however deep the filters are;
* most filters have one value, so a set is made only for the second.

Invariant: every node but the root has at least two filters below it.  The shape thus depends on
the filters held alone, not on the history, and an emptied index is as small as a new one.

A match visits the nodes whose path matches the beginning of the topic, at most two more per node
and level.  With filters made for it that can be most of them, so who cannot wait says how many
steps it may take (`match_within`).  Results come in a fixed order (that of insertion within one
filter), so that whatever is built on them repeats under a seed.  Nothing recurses: a filter may
have 65,536 levels.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from isthmus.mqtt.filters.covering_set import Steps

__all__ = ["FilterIndex"]

V = TypeVar("V", bound=Hashable)


class _Several(dict[V, None]):
    """Two values or more of one filter, in order of insertion; no other class is used for this."""

    __slots__ = ()


class _Leaf(Generic[V]):
    """A filter with wildcards: its text and its value, or `_Several`."""

    __slots__ = ("topic_filter", "values")

    def __init__(self, topic_filter: str, values: V | _Several[V]) -> None:
        self.topic_filter = topic_filter
        self.values = values


class _Node(Generic[V]):
    """A path that several filters share.

    `literals` and `plus` lead one level further; `end` is the filter that is this very path, and
    `rest` the one that is this path and ``/#``.
    """

    __slots__ = ("end", "literals", "plus", "rest")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[V] | _Leaf[V]] | None = None
        self.plus: _Node[V] | _Leaf[V] | None = None
        self.end: _Leaf[V] | None = None
        self.rest: _Leaf[V] | None = None

    def get(self, level: str | None) -> _Node[V] | _Leaf[V] | None:
        """What hangs at a level of a filter; None stands for the end of the filter."""
        if level is None:
            return self.end
        if level == "+":
            return self.plus
        if level == "#":
            return self.rest
        return None if self.literals is None else self.literals.get(level)

    def hang_leaf(self, level: str | None, leaf: _Leaf[V]) -> None:
        if level is None:
            self.end = leaf
        elif level == "#":
            self.rest = leaf
        else:
            self.hang(level, leaf)

    def hang(self, level: str, child: _Node[V] | _Leaf[V]) -> None:
        if level == "+":
            self.plus = child
        elif self.literals is None:
            self.literals = {level: child}
        else:
            self.literals[level] = child

    def take(self, level: str | None) -> None:
        """Remove what hangs there."""
        if level is None:
            self.end = None
        elif level == "+":
            self.plus = None
        elif level == "#":
            self.rest = None
        elif self.literals is not None:
            del self.literals[level]
            if not self.literals:
                self.literals = None

    def parts(self) -> Iterator[_Node[V] | _Leaf[V]]:
        """All that hangs here."""
        yield from (part for part in (self.end, self.rest, self.plus) if part is not None)
        if self.literals is not None:
            yield from self.literals.values()

    def lone_leaf(self) -> _Leaf[V] | None:
        """The leaf, if a single leaf is all that hangs here."""
        parts = self.parts()
        only = next(parts, None)
        if isinstance(only, _Leaf) and next(parts, None) is None:
            return only
        return None


class FilterIndex(Generic[V]):
    """Filters with values; `match` gives the values of those that match a topic name."""

    def __init__(self) -> None:
        self._exact: dict[str, V | _Several[V]] = {}
        self._root: _Node[V] = _Node()
        self._pair_count = 0

    def __len__(self) -> int:
        """The number of pairs of a filter and a value."""
        return self._pair_count

    def values(self, topic_filter: str) -> list[V]:
        """The values of this very filter; none if it is not held."""
        if not _has_wildcard(topic_filter):
            if topic_filter not in self._exact:
                return []
            return _as_list(self._exact[topic_filter])
        leaf = self._leaf(topic_filter)
        return [] if leaf is None else _as_list(leaf.values)

    def add(self, topic_filter: str, value: V) -> bool:
        """Give the filter one more value; whether it did not have it before."""
        if not _has_wildcard(topic_filter):
            if topic_filter not in self._exact:
                self._exact[topic_filter] = value
                added = True
            else:
                held = self._exact[topic_filter]
                self._exact[topic_filter], added = _with_value(held, value)
        else:
            added = self._add_leaf(topic_filter, value)
        self._pair_count += added
        return added

    def discard(self, topic_filter: str, value: V) -> bool:
        """Take a value from the filter, and the filter out with its last; whether it had it."""
        if not _has_wildcard(topic_filter):
            if topic_filter not in self._exact:
                return False
            held = self._exact[topic_filter]
            if not _has_value(held, value):
                return False
            if isinstance(held, _Several):
                self._exact[topic_filter] = _without_value(held, value)
            else:
                del self._exact[topic_filter]
        else:
            leaf = self._leaf(topic_filter)
            if leaf is None or not _has_value(leaf.values, value):
                return False
            if isinstance(leaf.values, _Several):
                leaf.values = _without_value(leaf.values, value)
            else:
                self._remove_leaf(topic_filter)
        self._pair_count -= 1
        return True

    def match(self, topic: str) -> list[V]:
        """The values of all filters that match the topic name, each value once."""
        values = self.match_within(topic, Steps(sys.maxsize))
        assert values is not None
        return values

    def match_within(self, topic: str, steps: Steps) -> list[V] | None:
        """`match`, or None if it takes more than `steps`; these are used up."""
        leaves = self._matching_leaves(topic, steps)
        if leaves is None:
            return None
        found: dict[V, None] = {}
        if topic in self._exact:
            held = self._exact[topic]
            if isinstance(held, _Several):
                found.update(held)
            else:
                found[held] = None
        for leaf in leaves:
            values = leaf.values
            if isinstance(values, _Several):
                found.update(values)
            else:
                found[values] = None
        return list(found)

    def _matching_leaves(self, topic: str, steps: Steps) -> list[_Leaf[V]] | None:
        found: list[_Leaf[V]] = []
        levels = topic.split("/")
        nodes = [self._root_without_wildcards() if topic.startswith("$") else self._root]
        for depth, level in enumerate(levels, start=1):
            onward: list[_Node[V]] = []
            steps.left -= len(nodes)
            if steps.left < 0:
                return None
            for node in nodes:
                if node.rest is not None:
                    found.append(node.rest)
                literal = None if node.literals is None else node.literals.get(level)
                for child in (literal, node.plus):
                    if child is None:
                        continue
                    if isinstance(child, _Node):
                        onward.append(child)
                    elif _leaf_matches(child, levels, depth):
                        found.append(child)
            if not onward:
                return found
            nodes = onward
        for node in nodes:
            if node.rest is not None:
                found.append(node.rest)
            if node.end is not None:
                found.append(node.end)
        return found

    def _root_without_wildcards(self) -> _Node[V]:
        """All that a topic that starts with ``$`` may see of the root [MQTT-4.7.2-1]."""
        root: _Node[V] = _Node()
        root.literals = self._root.literals
        return root

    def _leaf(self, topic_filter: str) -> _Leaf[V] | None:
        part: _Node[V] | _Leaf[V] | None = self._root
        for level in _steps(topic_filter):
            if not isinstance(part, _Node):
                break
            part = part.get(level)
        return part if isinstance(part, _Leaf) and part.topic_filter == topic_filter else None

    def _add_leaf(self, topic_filter: str, value: V) -> bool:
        levels = _steps(topic_filter)
        others: list[str | None] = []
        node = self._root
        depth = 0
        while True:
            level = levels[depth]
            part = node.get(level)
            if part is None:
                node.hang_leaf(level, _Leaf(topic_filter, value))
                return True
            if isinstance(part, _Leaf):
                if part.topic_filter == topic_filter:
                    part.values, added = _with_value(part.values, value)
                    return added
                # Another filter shares the path so far: it moves down by one level.  It is the same
                # one until the paths part, so its levels are found once.
                assert level is not None
                others = others or _steps(part.topic_filter)
                branch: _Node[V] = _Node()
                branch.hang_leaf(others[depth + 1], part)
                node.hang(level, branch)
                part = branch
            node = part
            depth += 1

    def _remove_leaf(self, topic_filter: str) -> None:
        """Remove a leaf that is there, and restore the invariant from there upwards."""
        levels = _steps(topic_filter)
        path = [self._root]
        while isinstance(part := path[-1].get(levels[len(path) - 1]), _Node):
            path.append(part)
        path[-1].take(levels[len(path) - 1])
        while len(path) > 1 and (leaf := path.pop().lone_leaf()) is not None:
            level = levels[len(path) - 1]
            assert level is not None
            path[-1].hang(level, leaf)


def _has_wildcard(topic_filter: str) -> bool:
    return "+" in topic_filter or topic_filter.endswith("#")


def _steps(topic_filter: str) -> list[str | None]:
    """The levels, and None for the end of a filter that does not end in ``#``."""
    levels: list[str | None] = [*topic_filter.split("/")]
    if levels[-1] != "#":
        levels.append(None)
    return levels


def _leaf_matches(leaf: _Leaf[V], levels: list[str], depth: int) -> bool:
    """Whether the leaf matches the topic's levels, of which the first `depth` are known to."""
    patterns = leaf.topic_filter.split("/")
    if patterns[-1] == "#":
        length = len(patterns) - 1
        if len(levels) < length:
            return False
    else:
        length = len(patterns)
        if len(levels) != length:
            return False
    for at in range(depth, length):
        pattern = patterns[at]
        if pattern not in ("+", levels[at]):
            return False
    return True


def _as_list(held: V | _Several[V]) -> list[V]:
    return list(held) if isinstance(held, _Several) else [held]


def _has_value(held: V | _Several[V], value: V) -> bool:
    return value in held if isinstance(held, _Several) else held == value


def _with_value(held: V | _Several[V], value: V) -> tuple[V | _Several[V], bool]:
    if _has_value(held, value):
        return held, False
    if isinstance(held, _Several):
        held[value] = None
        return held, True
    several: _Several[V] = _Several()
    several[held] = None
    several[value] = None
    return several, True


def _without_value(held: _Several[V], value: V) -> V | _Several[V]:
    del held[value]
    return next(iter(held)) if len(held) == 1 else held
