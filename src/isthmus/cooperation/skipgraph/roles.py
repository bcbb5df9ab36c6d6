"""What a node is in the graph: a subscriber and a publisher of which groups (thesis §3.2.1).

From what its clients want and publish on follow the keys that it is to have: one of a subscriber
for each group that it wants, outermost groups only, and one of a publisher for each group of each
topic that it publishes on.  **Who is both** needs the subscriber's key alone: as long as it is
there, there is a subscriber, so it is never suspended, and it publishes from among the subscribers.

A topic counts as published on until nobody has published on it for `LINGER_S`: many come back soon.

Bounds: with more than `MAX_GROUPS` groups of subscribers the node wants everything, which is one;
with more than `MAX_GROUPS` of publishers further topics have no keys, and their messages go by the
tree over all nodes.  Both cost messages and lose nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from typing import Final

from isthmus.cooperation.skipgraph.groups import (
    MAX_TOPIC_LEVELS,
    Groups,
    around,
    group_of,
    groups_of,
    is_family,
)
from isthmus.cooperation.skipgraph.keys import Key, Kind, key_of

__all__ = ["LINGER_S", "MAX_GROUPS", "Roles"]

MAX_GROUPS: Final = 10_000
LINGER_S: Final = 10.0

_EVERYTHING: Final = frozenset({"#"})


class Roles:
    """Of one node."""

    def __init__(self, here: str) -> None:
        self._here = here
        self._wanted: Counter[str] = Counter()
        """Groups, and how many filters each is for."""
        self._in_order = Groups()
        """The same groups."""
        self._outermost: set[str] = set()
        self._publishers: dict[str, int] = {}
        """Topics that have keys, and by how many clients; 0: lately."""
        self._published: Counter[str] = Counter()
        """Groups, and how many topics each is for."""
        self._changed: set[str] = set()
        """Groups that the node has had another role in since `take_changes`."""

    @property
    def topics(self) -> Set[str]:
        """That this node publishes on."""
        return self._publishers.keys()

    @property
    def subscribed(self) -> Set[str]:
        """Groups that it is a subscriber of."""
        return self._outermost if len(self._outermost) <= MAX_GROUPS else _EVERYTHING

    # ---- subscriber ----------------------------------------------------------------------

    def interest(self, added: Iterable[str], removed: Iterable[str]) -> None:
        before = self.subscribed is _EVERYTHING
        for topic_filter in added:
            group = group_of(topic_filter)
            self._wanted[group] += 1
            if self._wanted[group] == 1:
                self._in_order.add(group)
                self._begin(group)
        for topic_filter in removed:
            group = group_of(topic_filter)
            self._wanted[group] -= 1
            if not self._wanted[group]:
                del self._wanted[group]
                self._in_order.discard(group)
                self._end(group)
        if before != (self.subscribed is _EVERYTHING):
            self._changed |= self._outermost | _EVERYTHING

    def _begin(self, group: str) -> None:
        """It is wanted; perhaps it is inside another one already, or others are inside of it."""
        if not self._outermost.isdisjoint(around(group)):
            return
        if is_family(group):
            inside = self._outermost.intersection(self._in_order.inside(group))
            self._outermost -= inside
            self._changed |= inside
        self._outermost.add(group)
        self._changed.add(group)

    def _end(self, group: str) -> None:
        if group not in self._outermost:
            return
        self._outermost.discard(group)
        self._changed.add(group)
        if is_family(group):
            for each in self._in_order.inside(group):
                if self._wanted.keys().isdisjoint(around(each)):
                    self._outermost.add(each)
                    self._changed.add(each)

    # ---- publisher -----------------------------------------------------------------------

    def has_room(self, topic: str) -> bool:
        """Whether a topic can have keys."""
        levels = topic.count("/") + 1
        return levels <= MAX_TOPIC_LEVELS and len(self._published) + levels < MAX_GROUPS

    def begun(self, topic: str, clients: int) -> bool:
        """So many more clients publish on it; whether nobody did before."""
        is_new = topic not in self._publishers
        if is_new:
            if not self.has_room(topic):
                return False
            self._count(topic, 1)
        self._publishers[topic] = self._publishers.get(topic, 0) + clients
        return is_new

    def ended(self, topic: str) -> bool:
        """One client less does; whether none is left."""
        if topic not in self._publishers:
            return False
        self._publishers[topic] = max(self._publishers[topic] - 1, 0)
        return not self._publishers[topic]

    def forget(self, topic: str) -> None:
        """Nobody has published on it for a while, unless somebody does again."""
        if self._publishers.get(topic) == 0:
            del self._publishers[topic]
            self._count(topic, -1)

    def _count(self, topic: str, topics: int) -> None:
        for group in groups_of(topic):
            self._published[group] += topics
            if self._published[group] == max(topics, 0):
                self._changed.add(group)
            if not self._published[group]:
                del self._published[group]

    # ---- keys ----------------------------------------------------------------------------

    def keys(self, *, publishing: bool) -> set[Key]:
        """All that the node is to have; those of publishers only if it is `publishing`."""
        self.drop_changes()
        groups = self.subscribed | self._published.keys() if publishing else self.subscribed
        return {key for group in groups if (key := self._key(group, publishing)) is not None}

    def take_changes(self, *, publishing: bool) -> tuple[set[Key], set[Key]]:
        """Keys that it is to have, and not to have, in groups of which that may be news."""
        wanted, unwanted = set[Key](), set[Key]()
        for group in self._changed:
            kinds = (Kind.SUBSCRIBER, Kind.PUBLISHER)
            unwanted.update(key_of(group, kind, self._here) for kind in kinds)
            if (key := self._key(group, publishing)) is not None:
                wanted.add(key)
        self.drop_changes()
        return wanted, unwanted - wanted

    def drop_changes(self) -> None:
        """Nobody wants to know."""
        self._changed.clear()

    def _key(self, group: str, publishing: bool) -> Key | None:
        """Who is both needs the subscriber's alone."""
        if group in self.subscribed:
            return key_of(group, Kind.SUBSCRIBER, self._here)
        if publishing and group in self._published:
            return key_of(group, Kind.PUBLISHER, self._here)
        return None
