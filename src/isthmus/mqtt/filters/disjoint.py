"""Filters that do not overlap, for who must get each message once.

A broker may deliver a message once for every subscription of a session that matches it
[MQTT-3.3.4-4]; Mosquitto, ActiveMQ, ejabberd and amqtt do.  So what is wanted is subscribed to by
filters of which no two match the same topic name:

    a/+  and  +/b   match a/b both   ──joined──▶  +/+

The *join* of two filters covers both, and more: what nobody wants is for the receiver to drop.
Joined filters are one *group*, and a group that overlaps another one is joined with it in turn.
When a filter is dropped, its group is made anew of those that are left.

More than `MAX_FILTERS` are ``#`` together, until there are less than half as many: a broker has
something better to do than to keep so many.

Where one that covers is *refused*, those that it was made of are covered without it, the eldest
first; what then would need it, as it overlaps another, is held and put aside.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

from isthmus.mqtt.filters.covering import normal_form, split_open

__all__ = ["MAX_FILTERS", "DisjointFilters", "join", "overlap"]

MAX_FILTERS: Final = 1_000
RETRIED: Final = 100
"""Of those put aside, at a time."""
_ALL: Final = "#"


def overlap(one: str, other: str) -> bool:
    """Whether a topic name that does not start with ``$`` can match both."""
    (ours, open_), (theirs, also_open) = split_open(one), split_open(other)
    if not (open_ or len(ours) >= len(theirs)) or not (also_open or len(theirs) >= len(ours)):
        return False  # the closed one is too short
    return all(mine == its or "+" in (mine, its) for mine, its in zip(ours, theirs, strict=False))


def join(one: str, other: str) -> str:
    """The least filter that is made level by level and covers both."""
    ours, theirs = one.split("/"), other.split("/")
    levels: list[str] = []
    for mine, its in zip(ours, theirs, strict=False):
        if "#" in (mine, its):
            return normal_form("/".join((*levels, "#")))
        levels.append(mine if mine == its else "+")
    if len(ours) != len(theirs):
        levels.append("#")
    return normal_form("/".join(levels))


class _Node:
    """Filters with the same beginning."""

    __slots__ = ("children", "closed", "open")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        """By the next level, ``+`` among them."""
        self.closed = self.open = ""
        """The filter that ends here, and the one that goes on with ``#``."""


class _Tree:
    """Filters, by their levels: to find those that overlap one without looking at all."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, topic_filter: str) -> None:
        levels, is_open = split_open(topic_filter)
        node = self._root
        for level in levels:
            node = node.children.setdefault(level, _Node())
        if is_open:
            node.open = topic_filter
        else:
            node.closed = topic_filter

    def remove(self, topic_filter: str) -> None:
        levels, is_open = split_open(topic_filter)
        path = [self._root]
        for level in levels:
            path.append(path[-1].children[level])
        if is_open:
            path[-1].open = ""
        else:
            path[-1].closed = ""
        for level in reversed(levels):
            node = path.pop()
            if node.closed or node.open or node.children:
                break
            del path[-1].children[level]

    def overlapping(self, topic_filter: str) -> list[str]:
        levels, is_open = split_open(topic_filter)
        found: list[str] = []
        nodes = [self._root]
        at = 0
        while nodes:
            found += [node.open for node in nodes if node.open]
            if at >= len(levels):
                found += [node.closed for node in nodes if node.closed]
                if not is_open:
                    break
            level = levels[at] if at < len(levels) else "+"
            if level == "+":
                nodes = [child for node in nodes for child in node.children.values()]
            else:
                each = (node.children.get(name) for node in nodes for name in (level, "+"))
                nodes = [child for child in each if child is not None]
            at += 1
        return found


class DisjointFilters:
    """Filters that are held, and those without overlap that cover them.

    `added` and `removed` are the difference between `covers` and what whoever empties them has
    been told; none is in both.
    """

    def __init__(self, max_filters: int = MAX_FILTERS) -> None:
        self._max = max_filters
        self._held: dict[str, None] = {}
        self._groups: dict[str, dict[str, None]] = {}
        """Of each that covers: those that are held for it."""
        self._tree = _Tree()
        """Those that cover."""
        self._aside: dict[str, None] = {}
        """Held, and not covered: it would take one that is refused."""
        self.refused: set[str] = set()
        """What must not cover."""
        self._too_many = False
        self.added: dict[str, None] = {}
        self.removed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._held

    @property
    def covers(self) -> Collection[str]:
        """The filters without overlap."""
        return self._groups.keys()

    def add(self, topic_filter: str) -> None:
        """Hold the filter; does nothing if it is held."""
        if topic_filter in self._held:
            return
        self._held[topic_filter] = None
        self._join_if_too_many()
        if not self._too_many:
            self._place(topic_filter)

    def _join_if_too_many(self) -> None:
        if not self._too_many and len(self._held) > self._max and _ALL not in self.refused:
            self._too_many = True
            self._aside.clear()
            for each in list(self._groups):
                self._end(each)
            self._begin(_ALL, {})

    def remove(self, topic_filter: str) -> None:
        """Hold the filter no longer; does nothing if it is not held."""
        if topic_filter not in self._held:
            return
        del self._held[topic_filter]
        self.refused.discard(topic_filter)
        if self._too_many:
            if len(self._held) > self._max // 2:
                return
            self._too_many = False
            self._end(_ALL)
            left = dict(self._held)
        elif topic_filter in self._aside:
            del self._aside[topic_filter]
            left = {}
        else:
            (cover,) = self._tree.overlapping(topic_filter)
            left = self._end(cover)
            left.pop(topic_filter)
        for each in left:
            self._place(each)
        for each in list(islice(self._aside, RETRIED)):
            self._place(each)
        if not self._aside:
            self.refused.clear()

    def refuse(self, cover: str) -> None:
        """Do without this one: of what was held for it as much as can be has others."""
        if cover not in self._groups:
            return
        self.refused.add(cover)
        group = self._end(cover)
        if self._too_many:
            self._too_many = False
            group = self._held
        for each in [each for each in self._held if each in group]:
            self._place(each)

    def forgive(self, but: Collection[str] = ()) -> None:
        """What was refused may be tried again."""
        self.refused.intersection_update(but)
        self._join_if_too_many()
        for each in list(self._aside):
            self._place(each)

    def _place(self, topic_filter: str) -> None:
        self._aside.pop(topic_filter, None)
        cover = topic_filter
        met: dict[str, None] = {}
        while new := [each for each in self._tree.overlapping(cover) if each not in met]:
            for each in new:
                cover = join(cover, each)
                met[each] = None
        if cover in self.refused or len(self._groups) - len(met) >= self._max:
            self._aside[topic_filter] = None
            return
        group = {topic_filter: None}
        for each in met:
            group |= self._end(each)
        self._begin(cover, group)

    def _begin(self, cover: str, group: dict[str, None]) -> None:
        self._groups[cover] = group
        self._tree.add(cover)
        if cover in self.removed:
            del self.removed[cover]
        else:
            self.added[cover] = None

    def _end(self, cover: str) -> dict[str, None]:
        if cover in self.added:
            del self.added[cover]
        else:
            self.removed[cover] = None
        self._tree.remove(cover)
        return self._groups.pop(cover)
