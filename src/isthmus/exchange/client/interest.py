"""Which topic filters local clients want: how many each, and what has changed since it was told.

What a client leaves behind, many filters maybe, and many clients at once, is not released in one
turn: sets that have ended are kept apart from all clients, `SLICE` filters of them are released in
a turn, and until then what was wanted merely counts a little longer.  Who comes back meanwhile
begins with a set of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, KeysView
from itertools import islice
from typing import Final

from isthmus.exchange.host import Host

__all__ = ["SLICE", "LocalInterest"]

SLICE: Final = 1_000
"""Filters that are released in one turn."""


class LocalInterest:
    """Counts filters; `changed(added, removed)`: none of them in both, never both empty."""

    def __init__(
        self, host: Host, changed: Callable[[tuple[str, ...], tuple[str, ...]], None]
    ) -> None:
        self._host = host
        self._changed = changed
        self._ended_sets: deque[Iterator[str]] = deque()
        self._counts: dict[str, int] = {}
        self._added: dict[str, None] = {}  # since the last report
        self._removed: dict[str, None] = {}

    @property
    def filters(self) -> KeysView[str]:
        """Every filter that is wanted, once, in normal form."""
        return self._counts.keys()

    def hold(self, topic_filter: str) -> None:
        count = self._counts.get(topic_filter, 0)
        self._counts[topic_filter] = count + 1
        if count == 0:
            if topic_filter in self._removed:
                del self._removed[topic_filter]
            else:
                self._added[topic_filter] = None

    def release(self, topic_filter: str) -> None:
        count = self._counts[topic_filter]
        if count > 1:
            self._counts[topic_filter] = count - 1
            return
        del self._counts[topic_filter]
        if topic_filter in self._added:
            del self._added[topic_filter]
        else:
            self._removed[topic_filter] = None

    def report(self) -> None:
        """Tell what has changed."""
        if self._added or self._removed:
            added, removed = tuple(self._added), tuple(self._removed)
            self._added.clear()
            self._removed.clear()
            self._changed(added, removed)

    def release_soon(self, filters: Iterable[str]) -> None:
        """Nobody wants `filters` any more on their client's account."""
        if not self._ended_sets:
            self._host.call_later(0.0, self._release_more)
        self._ended_sets.append(iter(filters))

    def _release_more(self) -> None:
        left = SLICE
        while left and self._ended_sets:
            before = left
            for topic_filter in islice(self._ended_sets[0], before):
                self.release(topic_filter)
                left -= 1
            if left:
                self._ended_sets.popleft()
        if self._ended_sets:
            self._host.call_later(0.0, self._release_more)
        self.report()
