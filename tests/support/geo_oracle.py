"""Which cells belong to a shape, and how few filters they take, found the slow and plain way.

Every cell is looked at by itself, with fractions; on the sphere with vectors.  The fewest filters
are those of an exact cover by all filters there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, product
from math import asin, atan2, cos, radians, sin, sqrt

from isthmus.cooperation.geo import Area
from isthmus.mqtt.filters.partition import intersection
from isthmus.mqtt.filters.topics import matches

__all__ = [
    "TooMuch",
    "all_cells",
    "box",
    "by_circle",
    "by_polygon",
    "by_rectangle",
    "check_filters",
    "fewest",
    "filter_masks",
    "sphere_distance",
]

Box = tuple[Fraction, Fraction, Fraction, Fraction]
Point = tuple[float, float]
RADIUS_M = 6_371_008.8


def all_cells(digits: int) -> list[str]:
    return ["/".join(cell) for cell in product("0123", repeat=digits)]


def box(area: Area, cell: str) -> Box:
    """West, south, east, north, by halving."""
    west, south, east, north = map(Fraction, (area.west, area.south, area.east, area.north))
    for digit in cell.split("/"):
        x, y = (west + east) / 2, (south + north) / 2
        west, east = (x, east) if digit in "13" else (west, x)
        south, north = (south, y) if digit in "23" else (y, north)
    return west, south, east, north


def _has(low: Fraction, high: Fraction, last: float, first: float, end: float) -> bool:
    """Whether [low, high), or [low, high] at the area's end, has a number from first to end."""
    return end >= low and (first < high or (high == last and first == high))


def by_rectangle(area: Area, digits: int, low: Point, high: Point) -> set[str]:
    """Corners as x and y; the western may be east of the other."""
    found = set()
    (west, south), (east, north) = low, high
    spans = [(west, east)] if west <= east else [(west, area.east), (area.west, east)]
    for cell in all_cells(digits):
        w, s, e, n = box(area, cell)
        if _has(s, n, area.north, south, north) and any(
            _has(w, e, area.east, *span) for span in spans
        ):
            found.add(cell)
    return found


def by_circle(area: Area, digits: int, x: float, y: float, radius: float) -> set[str]:
    """In a plane."""
    found = set()
    for cell in all_cells(digits):
        west, south, east, north = box(area, cell)
        dx = max(west - Fraction(x), Fraction(x) - east, Fraction(0))
        dy = max(south - Fraction(y), Fraction(y) - north, Fraction(0))
        own = _has(west, east, area.east, x, x) and _has(south, north, area.north, y, y)
        if own or dx * dx + dy * dy < Fraction(radius) ** 2:
            found.add(cell)
    return found


def _vector(latitude: float, longitude: float) -> tuple[float, float, float]:
    a, b = radians(latitude), radians(longitude)
    return cos(a) * cos(b), cos(a) * sin(b), sin(a)


def sphere_distance(area: Area, cell: str, latitude: float, longitude: float) -> float:
    """In meters, from the position to the nearest point of the cell."""
    west, south, east, north = map(float, box(area, cell))
    here = _vector(latitude, longitude)
    if any(west <= longitude + turn <= east for turn in (-360, 0, 360)):
        points = [_vector(min(max(latitude, south), north), longitude)]
    else:
        points = []
        for border in (west, east):
            across = _vector(0, border)
            along = sum(a * b for a, b in zip(here, across, strict=True))
            top = atan2(here[2], along)
            points += [_vector(south, border), _vector(north, border)]
            if radians(south) <= top <= radians(north):
                a, b, c = (cos(top) * part for part in across)
                points.append((a, b, c + sin(top)))
    chord = min(
        sqrt(sum((a - b) ** 2 for a, b in zip(here, point, strict=True))) for point in points
    )
    return 2 * asin(min(chord / 2, 1.0)) * RADIUS_M


def _clipped(ring: Sequence[tuple[Fraction, Fraction]], cell: Box) -> Fraction:
    """The area of what is left of a ring within the cell (Sutherland and Hodgman)."""
    points = list(ring)
    west, south, east, north = cell
    for axis, border, sign in ((0, west, 1), (0, east, -1), (1, south, 1), (1, north, -1)):
        kept: list[tuple[Fraction, Fraction]] = []
        for a, b in pairwise([*points, *points[:1]]):
            inside_a, inside_b = sign * (a[axis] - border) >= 0, sign * (b[axis] - border) >= 0
            if inside_a:
                kept.append(a)
            if inside_a != inside_b:
                part = (border - a[axis]) / (b[axis] - a[axis])
                kept.append((a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])))
        points = kept
    double = sum(
        (a[0] * b[1] - b[0] * a[1] for a, b in pairwise([*points, *points[:1]])), Fraction(0)
    )
    return abs(double) / 2


def by_polygon(area: Area, digits: int, rings: Sequence[Sequence[Point]]) -> set[str]:
    """The cells of which the outer ring takes more area than its holes."""
    exact = [[(Fraction(x), Fraction(y)) for x, y in ring[:-1]] for ring in rings]
    found = set()
    for cell in all_cells(digits):
        outer, *holes = (_clipped(ring, box(area, cell)) for ring in exact)
        if outer > sum(holes):
            found.add(cell)
    return found


def check_filters(filters: Sequence[str], cells: set[str], digits: int, rest: str = "t") -> None:
    """They match the topics of these cells and of no others, and no two match the same."""
    for cell in all_cells(digits):
        hits = sum(matches(each, f"{cell}/{rest}") for each in filters)
        assert hits == (cell in cells), (cell, hits, filters)
    for a, b in combinations(filters, 2):
        assert intersection(a, b) is None, (a, b)


# ---- the fewest filters ------------------------------------------------------------------------


def filter_masks(digits: int) -> list[int]:
    """Every filter of digits and ``+`` as the set of its cells, large ones first."""
    index = {cell: 1 << place for place, cell in enumerate(product("0123", repeat=digits))}
    masks = [
        sum(index[cell] for cell in product(*("0123" if x == "+" else x for x in each)))
        for each in product("0123+", repeat=digits)
    ]
    return sorted(masks, key=lambda mask: -mask.bit_count())


class TooMuch(Exception):
    """The search takes too long."""


def fewest(cells: int, masks: Sequence[int], bound: int, effort: int = 50_000) -> int:
    """The size of the smallest exact cover of `cells`, or `bound` if none is smaller."""
    known: dict[int, tuple[int, int]] = {}
    steps = 0

    def search(left: int, usable: Sequence[int], limit: int) -> int:
        """The fewest, or `limit` + 1 if it is more than `limit`."""
        nonlocal steps
        if not left:
            return 0
        if limit <= 0:
            return limit + 1
        value, proven = known.get(left, (0, -1))
        if value <= proven or proven >= limit:
            return min(value, limit + 1)
        steps += 1
        if steps > effort:
            raise TooMuch
        usable = [mask for mask in usable if not mask & ~left]
        best = limit + 1
        for mask in min(_choices(left, usable), key=len):
            best = min(best, 1 + search(left ^ mask, usable, best - 2))
        known[left] = (best, limit)
        return best

    return search(cells, masks, bound - 1)


def _choices(left: int, usable: Sequence[int]) -> Iterator[list[int]]:
    """For each cell, the filters that it can be covered by; up to the first with only one."""
    while left:
        cell = left & -left
        left ^= cell
        choices = [mask for mask in usable if mask & cell]
        yield choices
        if len(choices) == 1:
            return
