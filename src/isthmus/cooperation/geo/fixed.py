"""Numbers of an area as integers, so that nothing is rounded.

Every float is a whole number of some power of 1/2.  `Grid` takes a unit in which the area's
borders, those of all its cells of one size, and the numbers of a shape are whole.  Its x goes from
the west and its y from the north, so a cell lies between multiples of `width` and of `height`.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.cooperation.geo.area import Area

__all__ = ["Grid"]


class Grid:
    """Integers for one area, one size of cells and one shape."""

    __slots__ = ("_bits", "_north", "_west", "height", "width")

    def __init__(self, area: Area, precision: int, numbers: Iterable[float]) -> None:
        numbers = (area.west, area.south, area.east, area.north, *numbers)
        bits = max(float(number).as_integer_ratio()[1].bit_length() - 1 for number in numbers)
        self._bits = bits + precision + 1  # one more, so that what is half way is whole too
        self._west = self.length(area.west)
        self._north = self.length(area.north)
        self.width = (self.length(area.east) - self._west) >> precision
        self.height = (self._north - self.length(area.south)) >> precision

    def length(self, number: float) -> int:
        """In this grid's unit."""
        numerator, denominator = float(number).as_integer_ratio()
        return numerator * ((1 << self._bits) // denominator)

    def x(self, number: float) -> int:
        """How far it is from the western border."""
        return self.length(number) - self._west

    def y(self, number: float) -> int:
        """How far it is from the northern border."""
        return self._north - self.length(number)
