"""The fewest topic filters that match the topics of some cells, each topic by one filter only.

A topic is ``d1/…/dk/rest``, with k digits.  A filter for all topics in a cell is ``d1/…/dm/#``, or
``d1/…/dm/+/…/+/rest`` with k-m plus signs where only some topics in a cell are wanted.  No two
filters match the same topic, since a broker may deliver a message once for each [MQTT-3.3.5-1].

Without ``+`` among the digits the fewest are the cells' largest: `CellSet.prefixes`.  With it there
may be fewer: ``+/1/#`` is ``0/1/#`` to ``3/1/#``.  Of a set S let S0 to S3 be what is below its
four first digits.  The filters of S that begin with ``+`` make up some V in all of S0 to S3, and
those that begin with a digit the rest:

    cost(S) = min over V of  cost(V) + cost(S0 - V) + … + cost(S3 - V).

Not every V is looked at.  With I for the intersection of S0 to S3: none; I; what has in each of its
quarters the best of these for that quarter alone; and, where what is left has two digits at most,
those parts of I that some first digits and some second ones give.  Where more is left and one of S0
to S3 is everything, none.

**Whether fewer would do.**  With one and two digits never: all 65,552 sets were compared with the
smallest exact cover by any filters.  With three, in thousands of random sets (rectangles, circles,
polygons, cells alone and filters put together) none was found for which fewer would do; without
the last sort of V there were some, 13 % of dense random sets and 1.5 % of rectangles.  With four,
191 of 222 random rectangles, pairs of them and circles were proven to be smallest; for the others
the search was given up.  For more digits nothing is proven, and as V is not looked at in as many
parts there, sets are to be expected for which fewer would do.

**Where it surely is not the fewest**: if there are more than 250 without ``+``, only none and I are
looked at.  Four random sets of half of all cells with five digits take 1,847 filters without
``+``, 1,520 so, and 1,511 with every V above; with nine tenths of all cells 1,540, 1,354 and 1,216.
Shapes in one piece hardly gain by ``+`` when they take so many: a circle of 1.5 million cells
takes 5,509 filters with it and without it.

Filters that begin with ``+``, and ``#``, also match topics that are not in the notation at all, as
``plant/1/x``.  An application that has such topics too tells them apart by `rest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from operator import mul
from typing import Final

from isthmus.cooperation.geo.cell_set import CellSet
from isthmus.cooperation.geo.quadtree import EMPTY, FULL, Four
from isthmus.cooperation.geo.zorder import DIGITS, check_digits
from isthmus.errors import ProtocolError
from isthmus.mqtt.filters.topics import check_topic_filter

__all__ = ["check_rest", "number_of_filters", "smallest_filters"]

_STEPS: Final = tuple(f"{digit}/" for digit in DIGITS)
_SUBSETS: Final[tuple[Four, ...]] = tuple(product((0, 1), repeat=4))  # type: ignore[arg-type]
_LOOKED_AT: Final = 2
"""Deeper intersections are not taken apart by digits: it takes long and gains little."""
_MANY: Final = 250
"""Of more filters than that without ``+``, only none or the whole intersection is looked at."""


def smallest_filters(cells: CellSet, digits: int | None = None, rest: str = "#") -> tuple[str, ...]:
    """The filters of the topics of these cells, in order of their digits, ``+`` first.

    `digits` is how many the topics have, as many as the cells if nothing is said; `rest` is a
    filter of what stands after them.
    """
    digits = _checked(cells, digits, rest)
    found: list[str] = []
    for head, tails in _Smallest(cells).prefixes(cells.root, cells.precision * 3 // 4):
        if rest == "#":
            found += [f"{head}{tail}#" for tail in tails]
        else:
            left = digits - len(head) // 2
            found += [f"{head}{tail}{'+/' * (left - len(tail) // 2)}{rest}" for tail in tails]
    return tuple(found)


def number_of_filters(cells: CellSet) -> int:
    """How many `smallest_filters` would give, without making them."""
    return _Smallest(cells).cost(cells.root)


def _checked(cells: CellSet, digits: int | None, rest: str) -> int:
    digits = check_digits(cells.precision if digits is None else digits)
    if cells.precision > digits:
        raise ValueError(
            f"precision: {cells.precision} digits are more than the {digits} of the topics"
        )
    check_rest(rest)
    return digits


def check_rest(rest: str) -> str:
    """`rest` if it can stand after the digits of a filter."""
    try:
        check_topic_filter(rest, shared_subscriptions=False)
    except ProtocolError as error:
        raise ValueError(f"rest {rest!r}: {error}") from None
    return rest


class _Smallest:
    """The recursion above, each part of the forest once."""

    __slots__ = ("_chosen", "_costs", "_depths", "_forest", "_shared", "_thorough")

    def __init__(self, cells: CellSet) -> None:
        forest = cells.forest
        self._forest = forest
        self._thorough = len(list(islice(cells.prefixes(), _MANY + 1))) <= _MANY
        self._costs = {EMPTY: 0, FULL: 1}
        self._depths = {EMPTY: 0, FULL: 0}
        self._chosen: dict[int, int] = {}
        """By node, what its filters that begin with ``+`` make up; nothing if it is not here."""
        self._shared: dict[Four, int] = {}

    def cost(self, node: int) -> int:
        """How many filters it takes."""
        found = self._costs.get(node)
        if found is None:
            four = self._forest.fours[node]
            # What is not in one of them is not in all: most have only digits.
            shared = EMPTY if EMPTY in four else self._best(four)
            found = self._costs[node] = self._value(four, shared)
            if shared != EMPTY:
                self._chosen[node] = shared
        return found

    def _value(self, four: Four, shared: int) -> int:
        cost = self.cost
        if shared == EMPTY:
            costs, total = self._costs, 0
            for part in four:
                found = costs.get(part)
                total += cost(part) if found is None else found
            return total
        without = self._forest.without
        return cost(shared) + sum(cost(without(part, shared)) for part in four)

    def _best(self, four: Four) -> int:
        """What is best taken with ``+`` of these four."""
        a, b, c, d = four
        if FULL in four and not (self._thorough and max(map(self._depth, four)) <= _LOOKED_AT):
            return EMPTY
        both = self._forest.both
        every = both(both(a, b), both(c, d))
        if every == EMPTY or a == b == c == d:
            return every
        key: Four = tuple(sorted(four))  # type: ignore[assignment]
        found = self._shared.get(key)
        if found is None:
            candidates = dict.fromkeys((EMPTY, every, *self._parts(key, every)))
            found = min(candidates, key=lambda shared: self._value(key, shared))
            self._shared[key] = found
        return found

    def _parts(self, four: Four, every: int) -> Iterator[int]:
        """Parts of the intersection that are looked at besides it."""
        if not self._thorough:
            return
        node, fours = self._forest.node, self._forest.fours
        below = fours[every]
        a, b, c, d = map(self._best, zip(*(fours[part] for part in four), strict=True))
        yield node((a, b, c, d))
        depth = max(map(self._depth, four))
        if depth > _LOOKED_AT:
            return
        for some in _SUBSETS:  # of the first digits
            a, b, c, d = map(mul, below, some)
            yield node((a, b, c, d))
            if depth == 2:
                for more in _SUBSETS:  # and of the second
                    only = self._only
                    yield node((only(a, more), only(b, more), only(c, more), only(d, more)))

    def _only(self, node: int, some: Four) -> int:
        a, b, c, d = map(mul, self._forest.fours[node], some)
        return self._forest.node((a, b, c, d))

    def _depth(self, node: int) -> int:
        """How many digits its cells have at most."""
        found = self._depths.get(node)
        if found is None:
            found = self._depths[node] = 1 + max(map(self._depth, self._forest.fours[node]))
        return found

    def prefixes(self, node: int, digits: int) -> Iterator[tuple[str, list[str]]]:
        """The filters' digits with a "/" after each, without plus signs at their ends.

        In two pieces, since many have the same second one: so many digits, and what follows.
        """
        known: dict[int, list[str]] = {EMPTY: [], FULL: [""]}

        def below(node: int) -> list[str]:
            found = known.get(node)
            if found is None:
                found = known[node] = []
                for step, part in self._steps(node):
                    if part == FULL:
                        found.append(step)
                    else:
                        found += [step + more for more in below(part)]
            return found

        waiting = [("", node, digits)]
        while waiting:
            head, node, digits = waiting.pop()
            if not digits or node in known:
                yield head, below(node)
            else:
                steps = self._steps(node)
                waiting += [(head + step, part, digits - 1) for step, part in reversed(steps)]

    def _steps(self, node: int) -> list[tuple[str, int]]:
        """What the next digit, or ``+``, leads to."""
        self.cost(node)
        shared = self._chosen.get(node, EMPTY)
        steps = [each for each in zip(_STEPS, self._forest.fours[node], strict=True) if each[1]]
        if shared == EMPTY:
            return steps
        without = self._forest.without
        return [("+/", shared), *((digit, without(part, shared)) for digit, part in steps)]
