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
    group_of,
    groups_of,
    outermost,
)
from isthmus.cooperation.skipgraph.keys import Key, Kind, key_of

__all__ = ["LINGER_S", "MAX_GROUPS", "Roles"]

MAX_GROUPS: Final = 10_000
LINGER_S: Final = 10.0


class Roles:
    """Of one node."""

    def __init__(self, here: str) -> None:
        self._here = here
        self._wanted: Counter[str] = Counter()
        """Groups, and how many filters each is for."""
        self._publishers: dict[str, int] = {}
        """Topics that have keys, and by how many clients; 0: lately."""
        self._published: Counter[str] = Counter()
        """Groups, and how many topics each is for."""
        self._subscribed: frozenset[str] = frozenset()

    @property
    def topics(self) -> Set[str]:
        """That this node publishes on."""
        return self._publishers.keys()

    @property
    def subscribed(self) -> frozenset[str]:
        """Groups that it is a subscriber of."""
        return self._subscribed

    def interest(self, added: Iterable[str], removed: Iterable[str]) -> None:
        self._wanted.update(map(group_of, added))
        self._wanted.subtract(map(group_of, removed))
        self._wanted = +self._wanted
        groups = outermost(self._wanted)
        self._subscribed = frozenset(groups if len(groups) <= MAX_GROUPS else ("#",))

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
            self._published.update(groups_of(topic))
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
            self._published.subtract(groups_of(topic))
            self._published = +self._published

    def keys(self, *, publishing: bool) -> set[Key]:
        """All that the node is to have; those of publishers only if it is `publishing`."""
        found = {key_of(group, Kind.SUBSCRIBER, self._here) for group in self._subscribed}
        if publishing:
            found |= {
                key_of(group, Kind.PUBLISHER, self._here)
                for group in self._published
                if group not in self._subscribed
            }
        return found
