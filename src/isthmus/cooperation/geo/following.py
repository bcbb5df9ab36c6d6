"""Filters for somebody who moves: only what changes is told."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.cooperation.geo.area import Area, Position, is_number
from isthmus.cooperation.geo.cell_set import CellSet
from isthmus.cooperation.geo.covering import smallest_filters
from isthmus.cooperation.geo.quadtree import EMPTY, FULL, Forest
from isthmus.cooperation.geo.shapes import Circle
from isthmus.cooperation.geo.zorder import check_digits

__all__ = ["Change", "Following"]


@dataclass(frozen=True, slots=True)
class Change:
    """What to subscribe to, and then what to unsubscribe from.

    In this order nothing is missed; between the two, filters may overlap.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.added or self.removed)


class Following:
    """The filters of what is around a position, as it moves.

    With `slack`, cells that were followed stay so until they are further away than
    ``radius * (1 + slack)``: who stands at the border of a cell does not change filters each time.
    """

    def __init__(
        self, area: Area, digits: int, precision: int, rest: str = "#", *, slack: float = 0.0
    ) -> None:
        """Topics have `digits` digits, and cells with `precision` of them are followed."""
        check_digits(digits)
        check_digits(precision, "precision", digits)
        if not (is_number(slack) and slack >= 0):
            raise ValueError(f"slack: {slack!r} is not a finite number of 0 or more")
        self._area, self._digits, self._rest, self._slack = area, digits, rest, slack
        self._cells = CellSet(precision, Forest(), EMPTY)
        self._filters: tuple[str, ...] = ()
        smallest_filters(self._cells, digits, rest)  # refuses a wrong rest now

    @property
    def filters(self) -> tuple[str, ...]:
        """Those of now; no two match the same topic."""
        return self._filters

    @property
    def cells(self) -> CellSet:
        """Those that are followed now."""
        return self._cells

    def follow(self, position: Position, radius: float) -> Change:
        """Follow the cells of this circle from now on; if it is refused, all stays as it was."""
        precision = self._cells.precision
        cells = Circle(position, radius).cells(self._area, precision)
        if self._slack and self._cells.root != EMPTY:
            near = Circle(position, radius * (1 + self._slack)).cells(self._area, precision)
            cells = cells | (near & self._cells)
        return self._become(cells)

    def everything(self) -> Change:
        """Follow the whole area."""
        return self._become(CellSet(self._cells.precision, Forest(), FULL))

    def stop(self) -> Change:
        """Follow nothing."""
        return self._become(CellSet(self._cells.precision, Forest(), EMPTY))

    def _become(self, cells: CellSet) -> Change:
        if cells == self._cells:
            return Change()
        filters = smallest_filters(cells, self._digits, self._rest)
        before, now = set(self._filters), set(filters)
        change = Change(
            tuple(each for each in filters if each not in before),
            tuple(each for each in self._filters if each not in now),
        )
        self._cells, self._filters = cells, filters
        return change
