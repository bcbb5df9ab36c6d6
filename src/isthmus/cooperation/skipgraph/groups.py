"""Wildcards, which the thesis does not have: what is a *topic* of the Skip Graph, in MQTT.

A group of subscribers and publishers in the graph, which the thesis calls a topic, is either a
topic name, or a *family*: all topics under some levels, written as MQTT writes it, ``a/b/#``.

- Who wants a filter without wildcards subscribes to the group of that name.
- Who wants a filter with wildcards subscribes to the family of the levels before the first one:
  ``a/+/c`` and ``a/#`` to ``a/#``, ``+/c`` and ``#`` to ``#``.
- Who publishes on a topic publishes in the group of its name and in every family around it: on
  ``a/b`` in ``a/b``, ``a/b/#``, ``a/#`` and ``#``.  Each group has its own rendezvous point and is
  suspended by itself; so who publishes falls silent if nobody wants the name and no family has a
  subscriber.

A filter matches a topic only if its group is one of the topic's groups, so whoever wants a message
is a subscriber of a group that it is sent to, and no publisher is suspended while there is one.
The reverse does not hold: who wants ``a/+/c`` gets ``a/b/d`` as well, and its node drops it.

A group inside another one of the same node is left out: who has ``#`` needs nothing else.  So of
one message a node gets what one group brings, and no more.

Topics that begin with ``$`` stay on their server and have no groups.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

__all__ = [
    "MAX_TOPIC_LEVELS",
    "Groups",
    "around",
    "group_of",
    "groups_of",
    "is_family",
    "is_inside",
    "outermost",
]

MAX_TOPIC_LEVELS: Final = 32
"""A topic with more has too many groups: its messages go by the tree over all nodes."""

_AFTER_SLASH: Final = chr(ord("/") + 1)


def group_of(topic_filter: str) -> str:
    """The group that who wants a filter is a subscriber of."""
    levels = topic_filter.split("/")
    for number, level in enumerate(levels):
        if level in ("+", "#"):
            return "/".join([*levels[:number], "#"])
    return topic_filter


def groups_of(topic: str) -> list[str]:
    """The groups that a message on a topic is for: its name, and the families around it."""
    return [topic, *_families(topic.split("/"))]


def _families(levels: list[str]) -> list[str]:
    return ["/".join([*levels[:count], "#"]) for count in range(len(levels), -1, -1)]


def around(group: str) -> list[str]:
    """The families that a group is inside of, the innermost first."""
    levels = group.split("/")
    if levels[-1] == "#":
        return _families(levels[:-1])[1:]
    return _families(levels)


def is_family(group: str) -> bool:
    return group == "#" or group.endswith("/#")


def outermost(groups: Iterable[str]) -> set[str]:
    """Those that are not inside another one."""
    known = set(groups)
    return {each for each in known if known.isdisjoint(around(each))}


def is_inside(group: str, family: str) -> bool:
    """Whether all topics of a group are in another one, or it is the same."""
    return group == family or family in around(group)


class Groups:
    """A set of groups that knows which are inside a family, without looking at all of them."""

    def __init__(self, groups: Iterable[str] = ()) -> None:
        self._set = set(groups)
        self._sorted = sorted(self._set)

    def __contains__(self, group: object) -> bool:
        return group in self._set

    def add(self, group: str) -> None:
        if group not in self._set:
            self._set.add(group)
            insort(self._sorted, group)

    def discard(self, group: str) -> None:
        if group in self._set:
            self._set.discard(group)
            del self._sorted[bisect_left(self._sorted, group)]

    def inside(self, family: str) -> list[str]:
        """Those inside a family, itself among them."""
        if family == "#":
            return list(self._sorted)
        name = family.removesuffix("/#")
        found = [name] if name in self._set else []
        first, end = self._under(name)
        return found + self._sorted[first:end]

    def overlaps(self, group: str) -> bool:
        """Whether some topic may be in it and in one of these."""
        if group in self._set or not self._set.isdisjoint(around(group)):
            return True
        if group == "#":
            return bool(self._set)
        if not is_family(group):
            return False
        name = group.removesuffix("/#")
        first, end = self._under(name)
        return name in self._set or first < end

    def _under(self, name: str) -> tuple[int, int]:
        """Where those stand that have more levels than that."""
        first = bisect_left(self._sorted, f"{name}/")
        return first, bisect_left(self._sorted, f"{name}{_AFTER_SLASH}", first)
