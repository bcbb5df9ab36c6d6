"""Sets of cells as quadtrees of which equal parts are there once.

A node is a number: `EMPTY`, `FULL`, or one that stands for four nodes, of the north-western,
north-eastern, south-western and south-eastern quarter.  A `Forest` gives the same four the same
number, so two sets in it are equal if their numbers are, and what was found out about a part is
known wherever it occurs again.  How deep a tree is, its user knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

__all__ = ["EMPTY", "FULL", "MOST_NODES", "Forest"]

EMPTY: Final = 0
FULL: Final = 1

MOST_NODES: Final = 1_000_000
"""What a forest may have: some hundred megabytes, and seconds."""

Four = tuple[int, int, int, int]


class Forest:
    """Nodes, each there once."""

    __slots__ = ("_both", "_either", "_ids", "_without", "fours", "known")

    def __init__(self) -> None:
        self.fours: list[Four] = [(EMPTY,) * 4, (FULL,) * 4]
        """What each node stands for; of `EMPTY` and `FULL` each quarter is the same again."""
        self._ids: dict[Four, int] = {four: node for node, four in enumerate(self.fours)}
        self.known = self._ids.get
        """The node that stands for these four, if there is one."""
        self._both: dict[tuple[int, int], int] = {}
        self._either: dict[tuple[int, int], int] = {}
        self._without: dict[tuple[int, int], int] = {}

    def node(self, four: Four) -> int:
        """The node that stands for these four."""
        found = self._ids.get(four)
        if found is None:
            found = self._ids[four] = len(self.fours)
            self.fours.append(four)
            if found > MOST_NODES:
                raise ValueError(
                    f"precision is too fine for this shape: its border alone has more than "
                    f"{MOST_NODES} parts; take fewer digits"
                )
        return found

    def both(self, a: int, b: int) -> int:
        """What is in both."""
        if a in (b, EMPTY) or b == FULL:
            return a
        if a == FULL or b == EMPTY:
            return b
        key = (a, b) if a < b else (b, a)
        found = self._both.get(key)
        if found is None:
            both = self.both
            (a0, a1, a2, a3), (b0, b1, b2, b3) = self.fours[a], self.fours[b]
            found = self.node((both(a0, b0), both(a1, b1), both(a2, b2), both(a3, b3)))
            self._both[key] = found
        return found

    def either(self, a: int, b: int) -> int:
        """What is in one of them, or in both."""
        if a in (b, FULL) or b == EMPTY:
            return a
        if a == EMPTY or b == FULL:
            return b
        key = (a, b) if a < b else (b, a)
        found = self._either.get(key)
        if found is None:
            either = self.either
            (a0, a1, a2, a3), (b0, b1, b2, b3) = self.fours[a], self.fours[b]
            found = self.node((either(a0, b0), either(a1, b1), either(a2, b2), either(a3, b3)))
            self._either[key] = found
        return found

    def without(self, a: int, b: int) -> int:
        """What is in `a` and not in `b`."""
        if a in (b, EMPTY) or b == FULL:
            return EMPTY
        if b == EMPTY:
            return a
        found = self._without.get((a, b))
        if found is None:
            without = self.without
            (a0, a1, a2, a3), (b0, b1, b2, b3) = self.fours[a], self.fours[b]
            found = self.node((without(a0, b0), without(a1, b1), without(a2, b2), without(a3, b3)))
            self._without[a, b] = found
        return found

    def rectangle(self, columns: range, rows: range, digits: int) -> int:
        """The cells in those columns and rows."""
        known: dict[tuple[int, int, int, int, int], int] = {}

        def part(west: int, east: int, north: int, south: int, level: int) -> int:
            """Of a square with 2^level columns: columns west to east, rows north to south."""
            side = 1 << level
            west, east, north, south = (
                max(west, 0),
                min(east, side),
                max(north, 0),
                min(south, side),
            )
            if west >= east or north >= south:
                return EMPTY
            if east - west == side and south - north == side:
                return FULL
            key = (west, east, north, south, level)
            found = known.get(key)
            if found is None:
                half, deeper = side >> 1, level - 1
                found = known[key] = self.node(
                    (
                        part(west, east, north, south, deeper),
                        part(west - half, east - half, north, south, deeper),
                        part(west, east, north - half, south - half, deeper),
                        part(west - half, east - half, north - half, south - half, deeper),
                    )
                )
            return found

        return part(columns.start, columns.stop, rows.start, rows.stop, digits)

    def copied(self, other: Forest, node: int) -> int:
        """A tree of another forest, in this one."""
        known = {EMPTY: EMPTY, FULL: FULL}

        def copy(node: int) -> int:
            found = known.get(node)
            if found is None:
                a, b, c, d = other.fours[node]
                found = known[node] = self.node((copy(a), copy(b), copy(c), copy(d)))
            return found

        return node if other is self else copy(node)

    def prefixes(self, node: int) -> Iterator[str]:
        """The fewest cells, of any size, that make up the tree, in order; none if it is `FULL`."""
        waiting = [("", node)]
        while waiting:
            prefix, node = waiting.pop()
            if node == FULL:
                yield prefix[:-1]
            elif node != EMPTY:
                four = self.fours[node]
                waiting += [(f"{prefix}{digit}/", four[digit]) for digit in (3, 2, 1, 0)]
