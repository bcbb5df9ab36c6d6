"""The cells of a circle: those with a point closer to its center than its radius.

Also the cell that has the center, should the radius be 0.  Each column of cells is looked at once.
In a plane, the part of a column that is closer than the radius is found with integers, without
rounding.

On the sphere a column lies between two meridians.  At each latitude its point nearest to the
center is on the one that is nearer in longitude, or at the center's own longitude if the column
has that.  With the center at latitude c and such a meridian d away, a point at latitude p is at
the distance t with

    cos t = sin c sin p + cos c cos d cos p = r cos(p - m),

where m = atan2(sin c, cos c cos d) and r^2 = 1 - (cos c sin d)^2.  So the points closer than t are
the latitudes within w of m, with cos w = cos t / r; as w is small for small circles, it is taken
from its half's sine instead, which loses no digits:

    sin^2(w/2) = (sin t - cos c sin d)(sin t + cos c sin d) / (2 r (r + cos t)).

This holds beyond the poles too, and needs no exception at the date line.  What is nearer in
longitude is closer at every latitude, so the columns are gone through from the center to the east
and to the west until one has nothing.  Sines are floats: whether a cell that a circle touches
within a billionth of its radius belongs to it is not certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import (
    asin,
    atan2,
    ceil,
    cos,
    degrees,
    floor,
    hypot,
    isqrt,
    pi,
    radians,
    sin,
    sqrt,
)
from typing import Final

from isthmus.cooperation.geo.area import EARTH_RADIUS_M, Area, Position, is_number
from isthmus.cooperation.geo.cell_set import CellSet
from isthmus.cooperation.geo.fixed import Grid
from isthmus.cooperation.geo.quadtree import FULL, MOST_NODES, Forest

__all__ = ["circle"]

_MOST_COLUMNS: Final = MOST_NODES // 4

Runs = dict[int, tuple[int, int]]
"""By column, its first row and the one after its last."""


def circle(area: Area, center: Position, radius: float, precision: int) -> CellSet:
    """The cells of a circle, its radius in meters, or in the plane's unit.

    The center must be in the area; what of the circle is not does not count.
    """
    x, y = area.check(center, "center of the circle")
    if not (is_number(radius) and radius >= 0):
        raise ValueError(f"radius of the circle: {radius!r} is not a finite number of 0 or more")
    columns = _in_plane if area.is_plane else _on_sphere
    own = area.column(x, precision), area.row(y, precision)
    first: Runs = {}
    second: Runs = {}
    for column, north, south in columns(area, x, y, radius, precision):
        if column not in first:
            first[column] = (north, south)
        elif first[column] != (north, south):
            _add(first, second, column, north, south)
        if len(first) > _MOST_COLUMNS:
            raise ValueError(
                f"precision {precision} is too fine for this circle: it has more than "
                f"{_MOST_COLUMNS} columns of cells; take fewer digits"
            )
    forest = Forest()
    root = forest.either(_tree(forest, first, precision), _tree(forest, second, precision))
    root = forest.either(
        root,
        forest.rectangle(range(own[0], own[0] + 1), range(own[1], own[1] + 1), precision),
    )
    return CellSet(precision, forest, root)


def _add(first: Runs, second: Runs, column: int, north: int, south: int) -> None:
    """A further run of rows in that column: joined with one that it touches, else beside it."""
    for runs in (first, second):
        if column not in runs:
            runs[column] = (north, south)
            return
        if runs[column][0] <= south and north <= runs[column][1]:
            runs[column] = (min(north, runs[column][0]), max(south, runs[column][1]))
            return
    raise AssertionError("a meridian meets a circle in two pieces at most")


def _in_plane(
    area: Area, x: float, y: float, radius: float, precision: int
) -> Iterator[tuple[int, int, int]]:
    grid = Grid(area, precision, (x, y, radius))
    center_x, center_y = grid.x(x), grid.y(y)
    square = grid.length(radius) ** 2
    if not square:
        return
    own, side = area.column(x, precision), 1 << precision
    for step in (1, -1):
        column = own if step == 1 else own - 1
        while 0 <= column < side:
            border = (column if step == 1 else column + 1) * grid.width
            away = max((border - center_x) * step, 0)
            if (left := square - away * away) <= 0:
                break
            reach = isqrt(left - 1)  # the largest whole number whose square is less than `left`
            north = max(-((reach - center_y) // grid.height) - 1, 0)
            south = min((center_y + reach) // grid.height + 1, side)
            yield column, north, south
            column += step


def _on_sphere(
    area: Area, x: float, y: float, radius: float, precision: int
) -> Iterator[tuple[int, int, int]]:
    angle = radius / EARTH_RADIUS_M
    own, side = area.column(x, precision), 1 << precision
    if angle > pi:  # all there is
        yield from ((column, 0, side) for column in range(side))
        return
    if not angle:
        return
    west, bottom = area.west, area.south
    width = (area.east - west) / side
    height = (area.north - bottom) / side
    up, out, sine, cosine = sin(radians(y)), cos(radians(y)), sin(angle), cos(angle)
    for step in (1, -1):
        column, turn = (own, 0.0) if step == 1 else (own - 1, 0.0)
        for _ in range(side):
            if not 0 <= column < side:
                column %= side
                turn = 360.0
            away = (west + (column if step == 1 else column + 1) * width - x) * step + turn
            if away > 180:
                break
            meridian = radians(away) if away > 0 else 0.0
            across, along = out * sin(meridian), out * cos(meridian)
            from_axis = hypot(up, along)
            if from_axis <= cosine:
                break
            if from_axis <= -cosine:
                parts = [(-pi, pi)]
            else:
                part = (sine - across) * (sine + across) / (2 * from_axis * (from_axis + cosine))
                if part <= 0 and angle <= pi / 2:
                    break
                half = 2 * asin(sqrt(min(max(part, 0.0), 1.0)))
                middle = atan2(up, along)
                parts = _on_earth(middle - half, middle + half)
            if not parts:
                break
            for low, high in parts:
                north = max(side - ceil((degrees(high) - bottom) / height), 0)
                south = min(side - floor((degrees(low) - bottom) / height), side)
                if north < south:
                    yield column, north, south
            column += step


def _on_earth(low: float, high: float) -> list[tuple[float, float]]:
    """The same latitudes, of which those beyond a pole are on the other side of the Earth."""
    if -pi / 2 <= low and high <= pi / 2:
        return [(low, high)]
    return [
        (low + turn, high + turn)
        for turn in (0, -2 * pi, 2 * pi)
        if low + turn < pi / 2 and high + turn > -pi / 2
    ]


def _tree(forest: Forest, runs: Runs, precision: int) -> int:
    """The tree of the runs, from its leaves on: at each step of half as many columns and rows."""
    none: dict[int, int] = {}
    level: dict[int, Column] = {
        column: (north, north, south, south, none) for column, (north, south) in runs.items()
    }
    for _ in range(precision):
        level = _coarser(forest, level)
    if not level:
        return 0
    _, north, south, _, parts = level[0]
    return FULL if north < south else parts.get(0, 0)


Column = tuple[int, int, int, int, dict[int, int]]
"""Of a column: its first row, the first of those that are full, the ones after the last of these
and after its last row; and the nodes of those that are not full."""
_NOTHING: Final[Column] = (0, 0, 0, 0, {})


def _coarser(forest: Forest, level: dict[int, Column]) -> dict[int, Column]:
    node, known = forest.node, forest.known
    coarser: dict[int, Column] = {}
    for column in {column >> 1 for column in level}:
        first0, north0, south0, last0, parts0 = level.get(column << 1, _NOTHING)
        first1, north1, south1, last1, parts1 = level.get(column << 1 | 1, _NOTHING)
        if not last1:
            first, last = first0 >> 1, (last0 + 1) >> 1
        elif not last0:
            first, last = first1 >> 1, (last1 + 1) >> 1
        else:
            first = (first0 if first0 < first1 else first1) >> 1
            last = ((last0 if last0 > last1 else last1) + 1) >> 1
        # rows that are full: those of which all four are
        north = ((north0 if north0 > north1 else north1) + 1) >> 1
        south = (south0 if south0 < south1 else south1) >> 1
        if north >= south:
            north = south = last
        parts: dict[int, int] = {}
        for rows in (range(first, north), range(south, last)):
            for row in rows:
                upper = row << 1
                lower = upper | 1
                four = (
                    FULL if north0 <= upper < south0 else parts0.get(upper, 0),
                    FULL if north1 <= upper < south1 else parts1.get(upper, 0),
                    FULL if north0 <= lower < south0 else parts0.get(lower, 0),
                    FULL if north1 <= lower < south1 else parts1.get(lower, 0),
                )
                found = known(four)
                parts[row] = node(four) if found is None else found
        coarser[column] = (first, north, south, last, parts)
    return coarser
