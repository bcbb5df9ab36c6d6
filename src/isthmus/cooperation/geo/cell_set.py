"""Sets of cells of one size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from isthmus.cooperation.geo.quadtree import EMPTY, FULL, Forest
from isthmus.cooperation.geo.zorder import DIGITS, check_cell, check_digits

__all__ = ["CellSet"]


class CellSet:
    """Cells with `precision` digits each; unchangeable.

    Kept as a quadtree, so a million cells in one piece cost no more than its border.
    """

    __slots__ = ("forest", "precision", "root")

    def __init__(self, precision: int, forest: Forest, root: int) -> None:
        self.precision = precision
        self.forest = forest
        self.root = root

    @classmethod
    def of(cls, cells: Iterable[str], precision: int) -> CellSet:
        """These; a shorter one stands for all cells in it."""
        check_digits(precision, "precision")
        forest = Forest()
        paths: list[str] = []
        for cell in cells:
            path = check_cell(cell).replace("/", "")
            if len(path) > precision:
                raise ValueError(f"cell {cell!r}: {len(path)} digits; the set's have {precision}")
            paths.append(path)

        def build(paths: list[str], depth: int) -> int:
            if not paths:
                return EMPTY
            if any(len(path) == depth for path in paths):
                return FULL
            a, b, c, d = (build([p for p in paths if p[depth] == x], depth + 1) for x in DIGITS)
            return forest.node((a, b, c, d))

        return cls(precision, forest, build(paths, 0))

    def prefixes(self) -> Iterator[str]:
        """The fewest cells of any size that make it up; the empty string is the whole area."""
        return self.forest.prefixes(self.root)

    def __iter__(self) -> Iterator[str]:
        for prefix in self.prefixes():
            levels = prefix.split("/") if prefix else []
            for more in product(DIGITS, repeat=self.precision - len(levels)):
                yield "/".join((*levels, *more))

    def __len__(self) -> int:
        known: dict[tuple[int, int], int] = {}

        def count(node: int, level: int) -> int:
            if node in (EMPTY, FULL):
                return node << 2 * level
            found = known.get((node, level))
            if found is None:
                found = sum(count(part, level - 1) for part in self.forest.fours[node])
                known[node, level] = found
            return found

        return count(self.root, self.precision)

    def __contains__(self, cell: object) -> bool:
        """Whether all of the cell is in it; it may have fewer digits, or more."""
        if not isinstance(cell, str):
            return False
        node = self.root
        for level in check_cell(cell).split("/"):
            node = self.forest.fours[node][int(level)]
        return node == FULL

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CellSet):
            return NotImplemented
        return self.precision == other.precision and self.root == self._taken(other)

    __hash__ = None  # type: ignore[assignment]  # equal ones may be numbered differently

    def __or__(self, other: CellSet) -> CellSet:
        root = self.forest.either(self.root, self._taken(other))
        return CellSet(self.precision, self.forest, root)

    def __and__(self, other: CellSet) -> CellSet:
        root = self.forest.both(self.root, self._taken(other))
        return CellSet(self.precision, self.forest, root)

    def __sub__(self, other: CellSet) -> CellSet:
        root = self.forest.without(self.root, self._taken(other))
        return CellSet(self.precision, self.forest, root)

    def __repr__(self) -> str:
        return f"<{len(self)} cells with {self.precision} digits>"

    def _taken(self, other: CellSet) -> int:
        if other.precision != self.precision:
            raise ValueError(f"cells with {self.precision} and {other.precision} digits")
        return self.forest.copied(other.forest, other.root)
