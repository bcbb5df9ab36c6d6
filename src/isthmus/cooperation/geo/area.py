"""The area that cells divide: a rectangle of latitudes and longitudes, or of x and y.

A *position* is a pair: latitude and longitude in degrees, or, in a plane, x and y.  North is where
latitudes and y are larger.

Every position in the area is in exactly one cell of each size.  A cell has its western and
southern border and not the other two; but what is on the area's own eastern or northern border is
in the last cell there.  So longitude 180 is in the last column of the whole Earth, and -180 in the
first, although they are the same; circles know that they are.

Which cell a position is in is calculated without rounding: numbers are taken for exactly what they
are.  The bounds of a cell are rounded to the nearest float (those of the whole Earth are exact).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import cos, isfinite, radians
from typing import Final, NamedTuple

from isthmus.cooperation.geo.zorder import cell_at, check_digits, column_and_row, neighbor

__all__ = ["EARTH_RADIUS_M", "WORLD", "Area", "Bounds", "Position", "is_number"]

EARTH_RADIUS_M: Final = 6_371_008.8
"""The mean radius; the Earth is a sphere here."""

Position = tuple[float, float]
"""Latitude and longitude in degrees; in a plane, x and y."""

_DIRECTIONS: Final = (
    "north",
    "north-east",
    "east",
    "south-east",
    "south",
    "south-west",
    "west",
    "north-west",
)


class Bounds(NamedTuple):
    """Where a cell lies."""

    west: float
    south: float
    east: float
    north: float


@dataclass(frozen=True, slots=True)
class Area:
    """In degrees, unless it is made by `plane`; the whole Earth if nothing is said."""

    west: float = -180.0
    south: float = -90.0
    east: float = 180.0
    north: float = 90.0
    is_plane: bool = False

    def __post_init__(self) -> None:
        for key in ("west", "south", "east", "north"):
            value = getattr(self, key)
            if not is_number(value):
                raise ValueError(f"area: {key} = {value!r} is not a finite number")
            most = 180 if key in ("west", "east") else 90
            if not self.is_plane and not -most <= value <= most:
                raise ValueError(f"area: {key} = {value} is not within -{most} and {most} degrees")
        for low, high in (("west", "east"), ("south", "north")):
            if getattr(self, low) >= getattr(self, high):
                raise ValueError(
                    f"area: {low} = {getattr(self, low)} is not less than "
                    f"{high} = {getattr(self, high)}"
                )

    @classmethod
    def plane(cls, west: float, south: float, east: float, north: float) -> Area:
        """A rectangle of x and y, in any unit."""
        return cls(west, south, east, north, is_plane=True)

    @property
    def wraps(self) -> bool:
        """Whether its eastern border is its western."""
        return not self.is_plane and self.east - self.west == 360

    def check(self, position: Position, where: str = "") -> tuple[float, float]:
        """The position as x (longitude) and y (latitude), if it is in the area.

        `where` begins the error's message.
        """
        x, y = position if self.is_plane else (position[1], position[0])
        names = ("x", "y") if self.is_plane else ("longitude", "latitude")
        for name, value, low, high in zip(
            names, (x, y), (self.west, self.south), (self.east, self.north), strict=True
        ):
            at = f"{where}: {name}" if where else name
            if not is_number(value):
                raise ValueError(f"{at} {value!r} is not a finite number")
            if not low <= value <= high:
                raise ValueError(f"{at} {value} is outside the area, {low} to {high}")
        return x, y

    def column(self, x: float, digits: int) -> int:
        """Of cells with so many digits, the column that has x or that longitude."""
        return _index(x, self.west, self.east, digits)

    def row(self, y: float, digits: int) -> int:
        """The row, counted from the north, that has y or that latitude."""
        return (1 << digits) - 1 - _index(y, self.south, self.north, digits)

    def cell(self, position: Position, digits: int) -> str:
        """The cell that has the position."""
        check_digits(digits)
        x, y = self.check(position)
        return cell_at(self.column(x, digits), self.row(y, digits), digits)

    def bounds(self, cell: str) -> Bounds:
        """Where the cell lies."""
        column, row, digits = column_and_row(cell)
        up = (1 << digits) - 1 - row
        return Bounds(
            _border(column, self.west, self.east, digits),
            _border(up, self.south, self.north, digits),
            _border(column + 1, self.west, self.east, digits),
            _border(up + 1, self.south, self.north, digits),
        )

    def center(self, cell: str) -> Position:
        """The position in its middle."""
        column, row, digits = column_and_row(cell)
        up = (1 << digits) - 1 - row
        x = _border(2 * column + 1, self.west, self.east, digits + 1)
        y = _border(2 * up + 1, self.south, self.north, digits + 1)
        return (x, y) if self.is_plane else (y, x)

    def size(self, cell: str) -> tuple[float, float]:
        """Its width and height: in meters, the width in its middle; in a plane in its unit."""
        west, south, east, north = self.bounds(cell)
        if self.is_plane:
            return east - west, north - south
        middle = cos(radians((south + north) / 2))
        return (
            radians(east - west) * EARTH_RADIUS_M * middle,
            radians(north - south) * EARTH_RADIUS_M,
        )

    def neighbors(self, cell: str) -> dict[str, str]:
        """The cells around it by direction, ``north`` to ``north-west``; fewer at the border.

        East of the last column of the whole Earth is the first.
        """
        beside = ((each, neighbor(cell, each, wraps=self.wraps)) for each in _DIRECTIONS)
        return {direction: other for direction, other in beside if other is not None}


def is_number(value: object) -> bool:
    """Whether it is one, and finite."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _index(value: float, low: float, high: float, digits: int) -> int:
    start = Fraction(low)
    part = (Fraction(value) - start) / (Fraction(high) - start)
    return min(int(part * (1 << digits)), (1 << digits) - 1)


def _border(index: int, low: float, high: float, digits: int) -> float:
    start = Fraction(low)
    return float(start + (Fraction(high) - start) * index / (1 << digits))


WORLD: Final = Area()
