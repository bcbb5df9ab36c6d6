"""What a node has to announce of the filters it holds, and how that changes.

A node that floods subscriptions tells its neighbors a filter only if none of those it holds covers
it; when a covering filter goes away, the filters that were hidden beneath it are restored.
`CoverTable` does this book-keeping for one neighbor.

Every filter held is either announced or *hidden* by one other filter that covers it, its cover.  So
the filters form trees, with the announced ones as roots.  Who is hidden by whom depends on history;
which are the roots does not.

A single change may concern a million filters (``#`` comes, or goes), so a change does at once what
costs little and leaves the rest to `work`, which goes on with it for as many steps as it is given:

* a filter that nothing announced covers is announced, and then its *sweep* looks for announced
  filters that it covers, hides and withdraws them;
* a filter that is dropped is *drained*: each filter it hid is placed anew, under another announced
  one or as one.  Only after that, and after every drain that began before it was over, it is
  withdrawn.  So nothing that is held is ever without an announced filter that covers it.

Filters full of ``+`` can make a search visit a large part of all filters (see
`isthmus.mqtt.filters.covering_set`).  Searches therefore live on credit: every change earns
`EARNED` steps, up to `MAX_CREDIT`.  A search that uses the credit up gives up, and the filter it
was for is announced although another may cover it: more than needed, never less.  Ordinary filters
take a few steps each and never come near it; a set made to be hard costs no more per filter than
others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from typing import Final

from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.filters.covering_set import CoveringSet, Steps

__all__ = ["EARNED", "MAX_CREDIT", "CoverTable"]

EARNED: Final = 128
"""How many steps of searching every change, and every filter placed anew, pays for."""

MAX_CREDIT: Final = 16_384

_PLACING: Final = 4
"""What a change costs beside its search, in steps."""

_Task = tuple[str, object]


class CoverTable:
    """A set of filters, and the few of them that have to be announced.

    Invariants.  What is announced covers every filter held.  When no work is pending, and no search
    was given up, what is announced are the largest filters held: each that no other one covers.
    That does not depend on the order of the changes.  `announce` and `withdraw` are the difference
    between what is announced and what whoever empties them has been told; nothing gets into
    `withdraw` before all that it takes the place of has been in `announce`.

    Filters are kept in their `normal_form`.  Covering by several filters together does not hide a
    filter: what is announced would then depend on the order of events, for a gain in rare cases.
    """

    def __init__(self) -> None:
        self.announce: OrderedDict[str, None] = OrderedDict()
        self.withdraw: OrderedDict[str, None] = OrderedDict()
        self.given_up = 0
        """How many searches were given up."""
        self._cover: dict[str, str] = {}  # of each filter held; "" if it is announced
        self._hidden: dict[str, dict[str, None]] = {}  # by each filter that is the cover of others
        self._announced: dict[str, None] = {}  # those being drained included
        self._roots = CoveringSet()  # those being drained not included
        self._sweeps: dict[str, Iterator[str | None]] = {}
        self._drains: dict[str, object] = {}
        self._tasks: deque[_Task] = deque()  # in order, which the second rule above rests on
        self._credit = Steps(MAX_CREDIT)

    def __len__(self) -> int:
        """The number of filters held."""
        return len(self._cover)

    def __contains__(self, topic_filter: str) -> bool:
        return normal_form(topic_filter) in self._cover

    @property
    def announced(self) -> Collection[str]:
        """The filters announced at present."""
        return self._announced.keys()

    def is_announced(self, topic_filter: str) -> bool:
        return normal_form(topic_filter) in self._announced

    @property
    def pending(self) -> bool:
        """Whether there is anything left for `work`."""
        return bool(self._tasks)

    def add(self, topic_filter: str) -> int:
        """Hold the filter; does nothing if it is held.  How many steps it took."""
        topic_filter = normal_form(topic_filter)
        if topic_filter in self._cover:
            return 1
        self._drains.pop(topic_filter, None)
        return self._place(topic_filter)

    def remove(self, topic_filter: str) -> int:
        """Hold the filter no longer; does nothing if it is not held.  How many steps it took."""
        topic_filter = normal_form(topic_filter)
        cover = self._cover.pop(topic_filter, None)
        if cover is None:
            return 1
        if cover:
            self._uncover(topic_filter, cover)
        else:
            self._roots.discard(topic_filter)
            self._sweeps.pop(topic_filter, None)
        if topic_filter in self._hidden or topic_filter in self._announced:
            token = self._drains[topic_filter] = object()
            self._tasks.append((topic_filter, token))
        return _PLACING

    def work(self, steps: int) -> int:
        """Go on with what is left to do, for about so many steps; how many it took."""
        taken = 0
        while self._tasks and taken < steps:
            topic_filter, token = self._tasks[0]
            if self._sweeps.get(topic_filter) is token:
                taken += self._sweep(topic_filter)
            elif self._drains.get(topic_filter) is token:
                taken += self._drain(topic_filter)
            else:
                self._tasks.popleft()  # what it was for has changed meanwhile
                taken += 1
        return taken

    def settle(self) -> None:
        """Do all that is left to do."""
        while self._tasks:
            self.work(1_000)

    def dismantle(self) -> Iterator[None]:
        """Forget everything, bit by bit; the table is of no use afterwards."""
        self._tasks.clear()
        yield from self._roots.dismantle()
        for mapping in (self._announced, self._cover, self.announce, self.withdraw):
            while mapping:
                mapping.popitem()
                yield
        while self._hidden:
            hidden = self._hidden.popitem()[1]
            while hidden:
                hidden.popitem()
                yield

    # ---- placing ----

    def _place(self, topic_filter: str) -> int:
        """Find a cover for a filter that is held, or announce it."""
        credit = self._credit
        credit.left = before = min(MAX_CREDIT, credit.left + EARNED)
        cover = self._roots.cover_of(topic_filter, credit)
        if cover is not None:
            self._cover[topic_filter] = cover
            self._hidden.setdefault(cover, {})[topic_filter] = None
            if topic_filter in self._announced:
                self._tell_withdrawn(topic_filter)
        else:
            self.given_up += credit.left <= 0
            self._cover[topic_filter] = ""
            self._roots.add(topic_filter)
            if topic_filter not in self._announced:
                self._announced[topic_filter] = None
                if topic_filter in self.withdraw:
                    del self.withdraw[topic_filter]
                else:
                    self.announce[topic_filter] = None
            if "+" in topic_filter or topic_filter.endswith("#"):
                sweep = self._sweeps[topic_filter] = self._roots.within(topic_filter)
                self._tasks.append((topic_filter, sweep))
        return before - credit.left + _PLACING

    def _uncover(self, topic_filter: str, cover: str) -> None:
        hidden = self._hidden[cover]
        del hidden[topic_filter]
        if not hidden:
            del self._hidden[cover]

    def _tell_withdrawn(self, topic_filter: str) -> None:
        del self._announced[topic_filter]
        if topic_filter in self.announce:
            del self.announce[topic_filter]
        else:
            self.withdraw[topic_filter] = None

    # ---- what is done later ----

    def _sweep(self, topic_filter: str) -> int:
        """One step of looking for what an announced filter covers."""
        self._credit.left -= 1
        found: str | None
        try:
            found = next(self._sweeps[topic_filter])
        except StopIteration:
            del self._sweeps[topic_filter]
            return 1
        if found is not None and found != topic_filter and self._cover.get(found) == "":
            self._credit.left = min(MAX_CREDIT, self._credit.left + EARNED)
            self._roots.discard(found)
            self._sweeps.pop(found, None)
            self._cover[found] = topic_filter
            self._hidden.setdefault(topic_filter, {})[found] = None
            self._tell_withdrawn(found)
            return _PLACING
        if self._credit.left <= 0:
            del self._sweeps[topic_filter]
            self.given_up += 1
        return 1

    def _drain(self, topic_filter: str) -> int:
        """Place one of the filters that a dropped one hid; when there are none, withdraw it."""
        hidden = self._hidden.get(topic_filter)
        if hidden is not None:
            restored = hidden.popitem()[0]
            if not hidden:
                del self._hidden[topic_filter]
            return self._place(restored)
        # After every drain that began before now: it may have hidden what those are about to place.
        token = self._drains.pop(topic_filter)
        self._tasks.popleft()
        if topic_filter in self._announced:
            if isinstance(token, _Drained) or not self._tasks:
                self._tell_withdrawn(topic_filter)
            else:
                drained = self._drains[topic_filter] = _Drained()
                self._tasks.append((topic_filter, drained))
        return 1


class _Drained:
    """Stands for the last part of a drain, in which the filter is withdrawn."""
