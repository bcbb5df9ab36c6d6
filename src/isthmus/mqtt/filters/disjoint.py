"""Filters that do not overlap, for who must get each message once.

A broker may deliver a message once for every subscription of a session that matches it
[MQTT-3.3.4-4]; Mosquitto, ActiveMQ, ejabberd and amqtt do.  So what is wanted is subscribed to by
filters of which no two match the same topic name:

    a/+  and  +/b   match a/b both   ──joined──▶  +/+

The *join* of two filters covers both, and more: what nobody wants is for the receiver to drop.
Joined filters are one *group*, and a group that overlaps another one is joined with it in turn.
When a filter is dropped, its group is made anew of those that are left.

More than `MAX_FILTERS` are ``#`` together, until there are less than half as many: every change
looks at all groups, and a broker has something better to do than to keep so many.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from isthmus.mqtt.filters.covering import normal_form, split_open

__all__ = ["MAX_FILTERS", "DisjointFilters", "join", "overlap"]

MAX_FILTERS: Final = 1_000
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
        if not self._too_many and len(self._held) > self._max:
            self._too_many = True
            for each in list(self._groups):
                self._end(each)
            self._begin(_ALL, {})
        if not self._too_many:
            self._place(topic_filter)

    def remove(self, topic_filter: str) -> None:
        """Hold the filter no longer; does nothing if it is not held."""
        if topic_filter not in self._held:
            return
        del self._held[topic_filter]
        if self._too_many:
            if len(self._held) > self._max // 2:
                return
            self._too_many = False
            self._end(_ALL)
            left = dict(self._held)
        else:
            cover = next(each for each, group in self._groups.items() if topic_filter in group)
            left = self._end(cover)
            left.pop(topic_filter)
        for each in left:
            self._place(each)

    def _place(self, topic_filter: str) -> None:
        cover, group = topic_filter, {topic_filter: None}
        while met := [each for each in self._groups if overlap(each, cover)]:
            for each in met:
                cover = join(cover, each)
                group |= self._end(each)
        self._begin(cover, group)

    def _begin(self, cover: str, group: dict[str, None]) -> None:
        self._groups[cover] = group
        if cover in self.removed:
            del self.removed[cover]
        else:
            self.added[cover] = None

    def _end(self, cover: str) -> dict[str, None]:
        if cover in self.added:
            del self.added[cover]
        else:
            self.removed[cover] = None
        return self._groups.pop(cover)
