"""The cells of polygons: those that share area with one.  Nothing is rounded.

A polygon is a ring of positions and the rings of its holes; between positions it goes straight in
latitude and longitude.  All is done with integers (`Grid`).  What makes the answer simple is that a
polygon must not cross itself, which is checked first:

* edges of one ring meet at their common end and nowhere else;
* edges of two rings may touch in single points, and neither cross nor lie on each other;
* each hole is within the outer ring, and no hole is within another.

Then there is inside and outside on the two sides of each edge, so a cell shares area with the
polygon if an edge goes through its interior; and if none does, if its center is inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from isthmus.cooperation.geo.area import Area
from isthmus.cooperation.geo.cell_set import CellSet
from isthmus.cooperation.geo.fixed import Grid
from isthmus.cooperation.geo.quadtree import EMPTY, FULL, Forest

__all__ = ["Ring", "polygon"]

Point = tuple[int, int]


class Ring(NamedTuple):
    """Positions, the last the same as the first; and what errors call it."""

    points: Sequence[tuple[float, float]]
    """Longitude and latitude, or x and y."""
    where: str


class _Edge(NamedTuple):
    a: Point
    b: Point
    ring: int
    place: int
    next: int
    """The place of the edge that begins where it ends."""

    @property
    def low(self) -> Point:
        return min(self.a[0], self.b[0]), min(self.a[1], self.b[1])

    @property
    def high(self) -> Point:
        return max(self.a[0], self.b[0]), max(self.a[1], self.b[1])


def polygon(area: Area, rings: Sequence[Ring], precision: int) -> CellSet:
    """The cells of the polygon with this outer ring and these holes."""
    points = [
        [
            area.check((x, y) if area.is_plane else (y, x), f"{ring.where}[{place}]")
            for place, (x, y) in enumerate(ring.points)
        ]
        for ring in rings
    ]
    grid = Grid(area, precision, (number for ring in points for point in ring for number in point))
    edges = [
        _edges([(grid.x(x), grid.y(y)) for x, y in ring], number, rings[number].where)
        for number, ring in enumerate(points)
    ]
    touches = _check_crossings(edges, rings)
    _check_holes(edges, touches, rings)
    every = [edge for ring in edges for edge in ring]
    forest = Forest()
    side = 1 << precision
    box = (0, 0, side * grid.width, side * grid.height)
    boxed = [edge for edge in every if _goes_through(edge, *box)]
    return CellSet(precision, forest, _part(forest, boxed, every, box, precision))


def _part(
    forest: Forest,
    through: list[_Edge],
    beside: list[_Edge],
    box: tuple[int, int, int, int],
    level: int,
) -> int:
    """Of a square with 2^level columns: edges that go through it, and all in its rows."""
    west, north, east, south = box
    if not through:
        return FULL if _is_inside(((west + east) // 2, (north + south) // 2), beside) else EMPTY
    if level == 0:
        return FULL
    x, y = (west + east) // 2, (north + south) // 2
    upper = [edge for edge in beside if edge.a[1] < y or edge.b[1] < y]
    lower = [edge for edge in beside if edge.a[1] > y or edge.b[1] > y]
    quarters = [
        _part(
            forest, [edge for edge in through if _goes_through(edge, *part)], rows, part, level - 1
        )
        for rows, part in (
            (upper, (west, north, x, y)),
            (upper, (x, north, east, y)),
            (lower, (west, y, x, south)),
            (lower, (x, y, east, south)),
        )
    ]
    a, b, c, d = quarters
    return forest.node((a, b, c, d))


def _goes_through(edge: _Edge, west: int, north: int, east: int, south: int) -> bool:
    """Whether it has a point within the rectangle, not only on its border."""
    (ax, ay), (bx, by) = edge.a, edge.b
    if (
        (ax <= west and bx <= west)
        or (ax >= east and bx >= east)
        or (ay <= north and by <= north)
        or (ay >= south and by >= south)
    ):
        return False
    dx, dy = bx - ax, by - ay
    sides = [
        dx * (y - ay) - dy * (x - ax)
        for x, y in ((west, north), (east, north), (west, south), (east, south))
    ]
    return min(sides) < 0 < max(sides)


def _is_inside(point: Point, edges: Sequence[_Edge]) -> bool:
    """Whether a point that is on no edge has an odd number of edges east of it."""
    x, y = point
    inside = False
    for (ax, ay), (bx, by), *_ in edges:
        if (ay > y) != (by > y):
            side = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
            inside ^= (side > 0) == (by > ay)
    return inside


def _edges(points: list[Point], ring: int, where: str) -> list[_Edge]:
    """Of a ring, without positions that are the same as the one before."""
    kept = [(place, a, b) for place, (a, b) in enumerate(pairwise(points)) if a != b]
    if len(kept) < 3:
        raise ValueError(f"{where}: {len(kept)} different edges; a ring has 3 or more")
    return [
        _Edge(a, b, ring, place, kept[(number + 1) % len(kept)][0])
        for number, (place, a, b) in enumerate(kept)
    ]


def _check_crossings(
    edges: Sequence[Sequence[_Edge]], rings: Sequence[Ring]
) -> dict[tuple[int, int], list[Point]]:
    """Where edges of different rings touch, by an edge's ring and place; raises if any cross."""
    touches: dict[tuple[int, int], list[Point]] = {}
    for one, other in _near(sorted((e for ring in edges for e in ring), key=lambda e: e.low)):
        if one.ring == other.ring and (one.next == other.place or other.next == one.place):
            first, second = (one, other) if one.next == other.place else (other, one)
            straight = _side(first.a, first.b, second.b) == 0
            if straight and _between(first.b, first.a, second.b) is False:
                raise _crossing("goes back on", first, second, rings)
            continue
        meeting = _meeting(one, other)
        if meeting is None:
            continue
        if isinstance(meeting, str) or one.ring == other.ring:
            how = meeting if isinstance(meeting, str) else "touches"
            raise _crossing(how, one, other, rings)
        for edge in (one, other):
            touches.setdefault((edge.ring, edge.place), []).extend(meeting)
    return touches


def _crossing(how: str, one: _Edge, other: _Edge, rings: Sequence[Ring]) -> ValueError:
    one, other = sorted((one, other), key=lambda edge: (edge.ring, edge.place))

    def named(edge: _Edge) -> str:
        where, points = rings[edge.ring].where, rings[edge.ring].points
        a, b = points[edge.place], points[edge.place + 1]
        return f"{where}[{edge.place}] to [{edge.place + 1}] ({a} to {b})"

    return ValueError(f"the polygon crosses itself: {named(one)} {how} {named(other)}")


def _near(edges: Sequence[_Edge]) -> Iterator[tuple[_Edge, _Edge]]:
    """Pairs of edges whose rectangles meet, of edges that are sorted from the west."""
    active: list[tuple[_Edge, Point, Point]] = []
    for edge in edges:
        low, high = edge.low, edge.high
        active = [entry for entry in active if entry[2][0] >= low[0]]
        for other, other_low, other_high in active:
            if other_low[1] <= high[1] and low[1] <= other_high[1]:
                yield other, edge
        active.append((edge, low, high))


def _side(a: Point, b: Point, c: Point) -> int:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _between(b: Point, a: Point, c: Point) -> bool:
    """Of three points on one line, whether b lies between the others."""
    return (a[0] - b[0]) * (c[0] - b[0]) + (a[1] - b[1]) * (c[1] - b[1]) < 0


def _meeting(one: _Edge, other: _Edge) -> list[Point] | str | None:
    """Where two edges touch; in words, how they cross; None if they do not meet."""
    ours = _side(one.a, one.b, other.a), _side(one.a, one.b, other.b)
    theirs = _side(other.a, other.b, one.a), _side(other.a, other.b, one.b)
    if min(ours) > 0 or max(ours) < 0 or min(theirs) > 0 or max(theirs) < 0:
        return None
    if 0 not in ours and 0 not in theirs:
        return "crosses"
    on = {p for p in (other.a, other.b) if _is_on(p, one)}
    on |= {p for p in (one.a, one.b) if _is_on(p, other)}
    if len(on) > 1:
        return "lies on"
    return list(on) or None


def _is_on(point: Point, edge: _Edge) -> bool:
    (low_x, low_y), (high_x, high_y) = edge.low, edge.high
    return (
        low_x <= point[0] <= high_x
        and low_y <= point[1] <= high_y
        and _side(edge.a, edge.b, point) == 0
    )


def _check_holes(
    edges: Sequence[Sequence[_Edge]],
    touches: dict[tuple[int, int], list[Point]],
    rings: Sequence[Ring],
) -> None:
    """That each hole is within the outer ring and outside the other holes.

    Rings that do not cross have each piece between two touching points on one side of the other.
    """
    for number, hole in enumerate(edges[1:], 1):
        middles = list(_middles(hole, touches))
        if not all(_is_inside(middle, edges[0]) for middle in middles):
            raise ValueError(f"{rings[number].where}: the hole is not within {rings[0].where}")
        for other in range(1, len(edges)):
            if other != number and any(_is_inside(middle, edges[other]) for middle in middles):
                raise ValueError(
                    f"{rings[number].where}: the hole is within the hole {rings[other].where}"
                )


def _middles(ring: Sequence[_Edge], touches: dict[tuple[int, int], list[Point]]) -> Iterator[Point]:
    """A point of each piece of the ring between points where it touches others; one at least."""
    touched = [edge for edge in ring if (edge.ring, edge.place) in touches]
    for edge in touched or ring[:1]:
        stops = {edge.a, edge.b, *touches.get((edge.ring, edge.place), ())}
        along = sorted(stops, reverse=edge.a > edge.b)
        for a, b in pairwise(along):
            yield (a[0] + b[0]) // 2, (a[1] + b[1]) // 2  # whole, by the grid's last bit
