"""What a node has to announce of the filters it holds, and how that changes.

A node that floods subscriptions tells its neighbours a filter only if none of those it holds
covers it; when a covering filter goes away, the filters that were hidden beneath it are restored.
`CoverTable` does this book-keeping for one neighbour, or for all if all are told the same.

An addition or removal of a filter without ``+`` costs little more than its own depth and what it
reports.  One with ``+`` costs at worst a walk over all that agrees with its rarest literal; see
`isthmus.mqtt.covering_set.CoveringSet.maximal_within`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from isthmus.mqtt.covering import normal_form
from isthmus.mqtt.covering_set import CoveringSet

__all__ = ["CoverChange", "CoverTable"]


@dataclass(frozen=True, slots=True)
class CoverChange:
    """What to tell the neighbours, `announce` before `withdraw` so that no message is missed."""

    announce: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.announce or self.withdraw)


_NO_CHANGE: Final = CoverChange()


class CoverTable:
    """A multiset of filters, and the few of them that have to be announced.

    Invariant: what is announced is `minimal_cover` of the filters held, so it matches the same
    names as all of them do, and no announced filter covers another.  It does not depend on the
    order of the additions and removals.  Filters are announced in their `normal_form`.

    Covering by several filters together does not hide a filter here: which filters would be
    announced would then depend on the order of events, for a gain in rare cases only.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._held = CoveringSet()
        self._announced: dict[str, None] = {}  # in order of announcement, so that runs repeat

    def __len__(self) -> int:
        """The number of different filters held."""
        return len(self._counts)

    def __contains__(self, topic_filter: str) -> bool:
        return normal_form(topic_filter) in self._counts

    def count(self, topic_filter: str) -> int:
        """How many times the filter has been added and not removed."""
        return self._counts.get(normal_form(topic_filter), 0)

    @property
    def announced(self) -> tuple[str, ...]:
        """The filters announced at present."""
        return tuple(self._announced)

    def is_announced(self, topic_filter: str) -> bool:
        return normal_form(topic_filter) in self._announced

    def covers(self, topic_filter: str) -> bool:
        """Whether a filter held, possibly the same one, covers `topic_filter`."""
        return self._held.covers(topic_filter)

    def add(self, topic_filter: str) -> CoverChange:
        """Hold the filter once more."""
        topic_filter = normal_form(topic_filter)
        count = self._counts.get(topic_filter, 0)
        self._counts[topic_filter] = count + 1
        if count:
            return _NO_CHANGE
        if self._held.covers(topic_filter):
            self._held.add(topic_filter)
            return _NO_CHANGE
        withdraw = self._held.maximal_within(topic_filter)
        self._held.add(topic_filter)
        return self._change([topic_filter], withdraw)

    def remove(self, topic_filter: str) -> CoverChange:
        """Hold the filter once less; `KeyError` if it is not held."""
        topic_filter = normal_form(topic_filter)
        count = self._counts[topic_filter]
        if count > 1:
            self._counts[topic_filter] = count - 1
            return _NO_CHANGE
        del self._counts[topic_filter]
        self._held.discard(topic_filter)
        if topic_filter not in self._announced:
            return _NO_CHANGE
        return self._change(self._held.maximal_within(topic_filter), [topic_filter])

    def _change(self, announce: list[str], withdraw: list[str]) -> CoverChange:
        for topic_filter in withdraw:
            del self._announced[topic_filter]
        self._announced.update(dict.fromkeys(announce))
        return CoverChange(tuple(announce), tuple(withdraw))
