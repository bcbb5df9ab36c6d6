"""What is announced over a link that not everything may cross.

`CrossingTable` stands in the place of a neighbor's `CoverTable`.  It is given the filters that are
wanted here; what it announces is what of them may come over the link, under the names there
(`Crossing.asks`).  Of several filters the same can be left, so each of these counts for how many it
stands: it is held from the first to the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.cooperation.link_rules import Crossing
from isthmus.mqtt.filters.cover_table import CoverTable
from isthmus.mqtt.filters.covering import normal_form

__all__ = ["CrossingTable"]

_COMPARING = 2
"""What it takes to compare a filter with one of the rules, in steps."""


class CrossingTable(CoverTable):
    """A set of filters in this node's names; announced are those of the wire."""

    def __init__(self, crossing: Crossing) -> None:
        super().__init__()
        self._crossing = crossing
        self._wanted: dict[str, tuple[str, ...]] = {}
        """What is left of each on the wire."""
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, topic_filter: str) -> bool:
        return normal_form(topic_filter) in self._wanted

    def add(self, topic_filter: str) -> int:
        topic_filter = normal_form(topic_filter)
        if topic_filter in self._wanted:
            return 1
        crossing = self._crossing
        steps = _COMPARING * (len(crossing.into) if crossing.into is not None else 1)
        left = self._wanted[topic_filter] = crossing.asks(topic_filter)
        for each in left:
            count = self._counts[each] = self._counts.get(each, 0) + 1
            if count == 1:
                steps += super().add(each)
        return steps

    def remove(self, topic_filter: str) -> int:
        left = self._wanted.pop(normal_form(topic_filter), None)
        steps = 1
        for each in left or ():
            self._counts[each] -= 1
            if not self._counts[each]:
                del self._counts[each]
                steps += super().remove(each)
        return steps

    def dismantle(self) -> Iterator[None]:
        for mapping in (self._wanted, self._counts):
            while mapping:
                mapping.popitem()
                yield
        yield from super().dismantle()
