"""Filters that come to be wanted and cease to be, kept until there is time for them.

Changes of one filter merge.  That alone would be unsafe: who replaces ``#`` by ``a/#``, and then
``a/#`` by ``+/+``, would be without if the end of ``#`` were carried out, ``a/#`` left out because
it has ended meanwhile, and ``+/+`` not yet come to.  So changes are carried out in *rounds*.  A
round takes all that has gathered, at one instant; it carries out every addition, also of what has
ended since, and then every removal.  What gathers meanwhile is the next round's.  So during a round
all is in effect that was wanted when it began, and before its removals begin nothing is missing
that was wanted when the round before it began.  A round is finite, and what waits is bounded by
what there is, so nobody can keep others waiting for ever by changing filters.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Changes"]

M = TypeVar("M")


class Changes(Generic[M]):
    """Additions and removals in rounds; marks tell when a round's additions are carried out."""

    __slots__ = ("_adding", "_adds", "_removes", "_removing")

    def __init__(self) -> None:
        self._adds: OrderedDict[str, None] = OrderedDict()
        self._removes: OrderedDict[str | tuple[M], None] = OrderedDict()
        self._adding: OrderedDict[str, None] = OrderedDict()  # of this round
        self._removing: OrderedDict[str | tuple[M], None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._adding or self._removing or self._adds or self._removes)

    def add(self, topic_filter: str) -> None:
        """The filter has come to be wanted; it was not before."""
        if topic_filter in self._removes:
            del self._removes[topic_filter]
        else:
            self._adds[topic_filter] = None

    def remove(self, topic_filter: str) -> None:
        """The filter has ceased to be wanted; it was before."""
        if topic_filter in self._adds:
            del self._adds[topic_filter]
        else:
            self._removes[topic_filter] = None

    def settle(self, topic_filter: str, *, wanted: bool, held: bool) -> None:
        """Whether the filter is wanted, whatever it was before; `held` is what is in effect."""
        self._adds.pop(topic_filter, None)
        self._removes.pop(topic_filter, None)
        after_round = topic_filter in self._adding or (held and topic_filter not in self._removing)
        if wanted and not after_round:
            self._adds[topic_filter] = None
        elif after_round and not wanted:
            self._removes[topic_filter] = None

    def mark(self, mark: M) -> None:
        """Come to `mark` when all that is wanted now has been added."""
        self._removes[(mark,)] = None

    def unmark(self, mark: M) -> None:
        self._removes.pop((mark,), None)
        self._removing.pop((mark,), None)

    def next(self) -> tuple[bool, str | tuple[M]]:
        """Whether to add or to remove, and what; a mark in a tuple."""
        if not self._adding and not self._removing:
            self._adding, self._adds = self._adds, self._adding
            self._removing, self._removes = self._removes, self._removing
        if self._adding:
            return True, self._adding.popitem(last=False)[0]
        return False, self._removing.popitem(last=False)[0]
