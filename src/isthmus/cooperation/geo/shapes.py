"""Shapes, and which cells are theirs; of polygons see `isthmus.cooperation.geo.geojson`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from isthmus.cooperation.geo.area import Area, Position
from isthmus.cooperation.geo.cell_set import CellSet
from isthmus.cooperation.geo.circles import circle
from isthmus.cooperation.geo.quadtree import Forest
from isthmus.cooperation.geo.zorder import check_digits

__all__ = ["Circle", "Rectangle", "Shape"]


class Shape(Protocol):
    """A part of an area."""

    def cells(self, area: Area, precision: int) -> CellSet:
        """Those of its cells with so many digits that belong to it."""
        ...


@dataclass(frozen=True, slots=True)
class Rectangle:
    """The cells that have a point of it, its border included.

    If its south-western corner is east of the other, it goes over the date line.
    """

    south_west: Position
    north_east: Position

    def cells(self, area: Area, precision: int) -> CellSet:
        """Those that have one of its points."""
        check_digits(precision, "precision")
        west, south = area.check(self.south_west, "south-western corner")
        east, north = area.check(self.north_east, "north-eastern corner")
        names = ("x", "y") if area.is_plane else ("longitude", "latitude")
        if south > north:
            raise ValueError(
                f"rectangle: its southern {names[1]} {south} is above the other, {north}"
            )
        if west > east and not area.wraps:
            raise ValueError(f"rectangle: its western {names[0]} {west} is above the other, {east}")
        rows = range(area.row(north, precision), area.row(south, precision) + 1)
        first, last = area.column(west, precision), area.column(east, precision)
        forest = Forest()
        if west <= east:
            root = forest.rectangle(range(first, last + 1), rows, precision)
        else:
            root = forest.either(
                forest.rectangle(range(first, 1 << precision), rows, precision),
                forest.rectangle(range(last + 1), rows, precision),
            )
        return CellSet(precision, forest, root)


@dataclass(frozen=True, slots=True)
class Circle:
    """The cells with a point closer to its center than its radius, and the one that has that."""

    center: Position
    radius: float
    """In meters; in a plane, in its unit."""

    def cells(self, area: Area, precision: int) -> CellSet:
        """Those that are so close; the center must be in the area."""
        check_digits(precision, "precision")
        return circle(area, self.center, self.radius, precision)
