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

from collections.abc import Iterable, Set
from typing import Final

__all__ = [
    "MAX_TOPIC_LEVELS",
    "around",
    "group_of",
    "groups_of",
    "is_family",
    "is_inside",
    "outermost",
    "overlaps",
]

MAX_TOPIC_LEVELS: Final = 32
"""A topic with more has too many groups: its messages go by the tree over all nodes."""


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


def overlaps(group: str, others: Set[str]) -> bool:
    """Whether some topic may be in it and in one of the others."""
    if group in others or not others.isdisjoint(around(group)):
        return True
    return is_family(group) and any(is_inside(other, group) for other in others)
