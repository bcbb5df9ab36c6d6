"""The cells of shapes, each compared cell by cell with the oracle."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isthmus.cooperation.geo import WORLD, Area, Circle, Polygons, Rectangle
from support.geo_oracle import (
    all_cells,
    by_circle,
    by_polygon,
    by_rectangle,
    sphere_distance,
)

PLANE = Area.plane(0, 0, 8, 8)
ODD = Area.plane(-0.3, 1.7, 7.9, 9.1)
whole = st.integers(0, 8)
numbers = whole | st.floats(0, 8)
precisions = st.integers(1, 4)


# ---- rectangles --------------------------------------------------------------------------------


@given(precisions, numbers, numbers, numbers, numbers)
def test_rectangles(precision: int, x0: float, x1: float, y0: float, y1: float) -> None:
    low, high = (min(x0, x1), min(y0, y1)), (max(x0, x1), max(y0, y1))
    found = Rectangle(low, high).cells(PLANE, precision)
    assert set(found) == by_rectangle(PLANE, precision, low, high)
    assert len(found) == len(set(found))


@given(
    precisions, st.floats(-180, 180), st.floats(-180, 180), st.floats(-90, 90), st.floats(-90, 90)
)
def test_rectangles_of_the_earth_over_the_date_line_too(
    precision: int, west: float, east: float, a: float, b: float
) -> None:
    south, north = sorted((a, b))
    found = Rectangle((south, west), (north, east)).cells(WORLD, precision)
    assert set(found) == by_rectangle(WORLD, precision, (west, south), (east, north))


def test_a_rectangle_of_a_trillion_cells_is_no_work() -> None:
    assert len(Rectangle((-80, -170), (80, 170)).cells(WORLD, 24)) > 10**14


def test_rectangles_that_are_none() -> None:
    with pytest.raises(ValueError, match="its southern latitude 2 is above the other, 1"):
        Rectangle((2, 0), (1, 1)).cells(WORLD, 3)
    with pytest.raises(ValueError, match="its western x 2 is above the other, 1"):
        Rectangle((2, 0), (1, 1)).cells(PLANE, 3)
    with pytest.raises(ValueError, match="north-eastern corner: y 9 is outside the area, 0 to 8"):
        Rectangle((0, 0), (1, 9)).cells(PLANE, 3)
    with pytest.raises(ValueError, match="precision: 25 is not allowed"):
        Rectangle((0, 0), (1, 1)).cells(PLANE, 25)


# ---- circles -----------------------------------------------------------------------------------


@pytest.mark.parametrize("area", [PLANE, ODD])
@given(precision=precisions, x=numbers, y=numbers, radius=numbers)
def test_circles_in_a_plane(area: Area, precision: int, x: float, y: float, radius: float) -> None:
    x, y = max(x, area.west), max(y, area.south)
    assume(x <= area.east)
    found = set(Circle((x, y), radius).cells(area, precision))
    assert found == by_circle(area, precision, x, y, radius)


AREAS = [
    WORLD,
    Area(-170, -80, 175, 89),
    Area(-20, 60, 160, 90),
    Area(139.43, 35.41, 140.09, 35.95),
]


@pytest.mark.parametrize("area", AREAS, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_circles_on_the_sphere(area: Area, seed: int) -> None:
    """Over the date line and the poles, up to the whole Earth."""
    random = Random(f"{area} {seed}")
    for _ in range(12):
        precision = random.randint(1, 4)
        latitude, longitude = (
            random.choice([low, high, (low + high) / 2, random.uniform(low, high)])
            for low, high in ((area.south, area.north), (area.west, area.east))
        )
        width = (area.east - area.west) * 111_000
        radius = random.choice([0, width / 30, width / 5, width, random.uniform(0, 2.1e7)])
        found = set(Circle((latitude, longitude), radius).cells(area, precision))
        for cell in all_cells(precision):
            distance = sphere_distance(area, cell, latitude, longitude)
            if cell == area.cell((latitude, longitude), precision):
                assert cell in found
            elif abs(distance - radius) > 1e-3:
                place = (seed, cell, latitude, longitude, radius, distance)
                assert (cell in found) == (distance < radius), place


def test_a_circle_around_a_pole_has_every_meridian() -> None:
    found = Circle((90, 17), 50_000).cells(WORLD, 6)
    assert set(found) == {cell for cell in all_cells(6) if set(cell) <= set("01/")}


def test_a_circle_at_the_date_line_is_on_both_sides() -> None:
    for longitude in (180, -180):
        found = Circle((0.1, longitude), 1000).cells(WORLD, 8)
        assert WORLD.cell((0.1, 179.999), 8) in found
        assert WORLD.cell((0.1, -179.999), 8) in found


def test_a_circle_of_nothing_is_where_its_center_is() -> None:
    assert set(Circle((4, 4), 0).cells(PLANE, 2)) == {"1/2"}
    assert set(Circle((4, 4), 1e-9).cells(PLANE, 2)) == {"0/3", "1/2", "2/1", "3/0"}


@pytest.mark.parametrize(
    ("circle", "said"),
    [
        (Circle((9, 0), 1), "center of the circle: x 9 is outside the area, 0 to 8"),
        (Circle((0, 0), -1), "radius of the circle: -1 is not a finite number of 0 or more"),
        (Circle((0, 0), math.nan), "radius of the circle: nan"),
        (Circle((0, 0), math.inf), "radius of the circle: inf"),
    ],
)
def test_circles_that_are_none(circle: Circle, said: str) -> None:
    with pytest.raises(ValueError, match="circle: ") as caught:
        circle.cells(PLANE, 3)
    assert said in str(caught.value)


def test_a_circle_that_is_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="precision 24 is too fine for this circle"):
        Circle((90, 0), 100_000).cells(WORLD, 24)


# ---- polygons ----------------------------------------------------------------------------------

Ring = list[list[float]]


def polygon(*rings: Ring) -> Polygons:
    return Polygons.from_geojson({"type": "Polygon", "coordinates": [*rings]})


def star(random: Random, low: float, high: float) -> Ring:
    """Around the middle of the plane, between these distances from it."""
    corners = random.randint(5, 12)
    ring = []
    for corner in range(corners):
        turn = 2 * math.pi * (corner + random.uniform(-0.4, 0.4)) / corners
        away = random.uniform(low, high)
        ring.append([4 + away * math.cos(turn), 4 + away * math.sin(turn)])
    return [*ring, ring[0]]


def stairs(random: Random) -> Ring:
    """Whole numbers only: every edge is on borders of cells."""
    ring: Ring = [[0, 0]]
    for x in range(8):
        height = random.randint(1, 8)
        ring += [[x, height], [x + 1, height]]
    return [*ring, [8, 0], [0, 0]]


@given(st.integers(0, 10**6), precisions)
def test_polygons_with_a_hole(seed: int, precision: int) -> None:
    random = Random(seed)
    rings = [star(random, 1.5, 4), star(random, 0.3, 0.9)][: random.randint(1, 2)]
    found = set(polygon(*rings).cells(PLANE, precision))
    assert found == by_polygon(PLANE, precision, [[(x, y) for x, y in ring] for ring in rings])


@given(st.integers(0, 10**6), precisions)
def test_polygons_along_borders(seed: int, precision: int) -> None:
    ring = stairs(Random(seed))
    found = set(polygon(ring).cells(PLANE, precision))
    assert found == by_polygon(PLANE, precision, [[(x, y) for x, y in ring]])


def test_a_hole_that_touches_the_outer_ring_in_a_point() -> None:
    outer: Ring = [[0, 0], [8, 0], [8, 8], [0, 8], [0, 0]]
    hole: Ring = [[0, 4], [4, 2], [4, 6], [0, 4]]
    found = set(polygon(outer, hole).cells(PLANE, 3))
    assert found == by_polygon(PLANE, 3, [[(x, y) for x, y in ring] for ring in (outer, hole)])


def test_latitude_and_longitude_are_the_other_way_round_in_geojson() -> None:
    ring: Ring = [[139, 35], [140, 35], [140, 36], [139, 35]]
    assert WORLD.cell((35.3, 139.6), 9) in polygon(ring).cells(WORLD, 9)


SQUARE: Ring = [[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]


def geometry(*rings: object) -> dict[str, Any]:
    return {"type": "Polygon", "coordinates": [*rings]}


def test_what_wraps_polygons() -> None:
    other: Ring = [[6, 6], [7, 6], [7, 7], [6, 6]]
    several = {"type": "MultiPolygon", "coordinates": [[SQUARE], [other]]}
    feature = {"type": "Feature", "properties": None, "geometry": several}
    features = {
        "type": "FeatureCollection",
        "features": [{"type": "Feature", "geometry": geometry(each)} for each in (SQUARE, other)],
    }
    expected = set(polygon(SQUARE).cells(PLANE, 3)) | set(polygon(other).cells(PLANE, 3))
    for value in (several, feature, features):
        assert set(Polygons.from_geojson(value).cells(PLANE, 3)) == expected


@pytest.mark.parametrize(
    ("rings", "said"),
    [
        (
            [[[0, 0], [4, 4], [4, 0], [0, 4], [0, 0]]],
            "the polygon crosses itself: coordinates[0][0] to [1] ((0, 0) to (4, 4)) crosses "
            "coordinates[0][2] to [3] ((4, 0) to (0, 4))",
        ),
        (
            [[[0, 0], [4, 0], [2, 0], [2, 4], [0, 0]]],
            "the polygon crosses itself: coordinates[0][0] to [1] ((0, 0) to (4, 0)) ",
        ),
        (
            [[[0, 0], [4, 0], [4, 4], [2, 0], [0, 4], [0, 0]]],
            "coordinates[0][0] to [1] ((0, 0) to (4, 0)) touches coordinates[0][",
        ),
        (
            [SQUARE, [[0, 1], [5, 1], [3, 3], [0, 1]]],
            "coordinates[0][1] to [2] ((4, 0) to (4, 4)) crosses coordinates[1][0] to [1]",
        ),
        (
            [SQUARE, [[0, 1], [1, 1], [0, 2], [0, 1]]],
            "coordinates[0][3] to [4] ((0, 4) to (0, 0)) lies on coordinates[1][2] to [3]",
        ),
        (
            [SQUARE, [[5, 5], [6, 5], [6, 6], [5, 5]]],
            "coordinates[1]: the hole is not within coordinates[0]",
        ),
        (
            [SQUARE, [[2, 2], [4, 4], [6, 2], [4, 0], [2, 2]]],  # crosses at corners only
            "coordinates[1]: the hole is not within coordinates[0]",
        ),
        (
            [SQUARE, [[1, 1], [3, 1], [3, 3], [1, 1]], [[2, 1.5], [2.5, 1.5], [2.5, 2], [2, 1.5]]],
            "coordinates[2]: the hole is within the hole coordinates[1]",
        ),
        ([[[0, 0], [1, 0], [1, 0], [0, 0]]], "coordinates[0]: 2 different edges"),
        ([[[0, 0], [4, 0], [4, 9], [0, 0]]], "coordinates[0][2]: y 9 is outside the area, 0 to 8"),
    ],
)
def test_polygons_that_are_none(rings: list[Ring], said: str) -> None:
    with pytest.raises(ValueError, match="coordinates") as caught:
        polygon(*rings).cells(PLANE, 3)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "not JSON: line 1, column 2"),
        (b"\xff", "not JSON: byte 0 is not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "an object with a type is expected, not an array"),
        ({"type": "Point"}, "type: 'Point' is not one of Polygon"),
        ({"coordinates": []}, "type: null is not one of"),
        ({"type": "Polygon"}, "coordinates: is missing"),
        ({"type": "Polygon", "coordinates": []}, "coordinates: an array is no array with members"),
        (geometry(3), "coordinates[0]: an array of positions is expected, not 3"),
        (geometry([[0, 0], [1, 0], [0, 0]]), "coordinates[0]: 3 positions; a ring has 4 or more"),
        (geometry([[0, 0], [1], [0, 0]]), "coordinates[0][1]: a position [longitude, latitude]"),
        (geometry([[0, 0], [1, "2"]]), "coordinates[0][1][1]: a number is expected, not '2'"),
        (geometry([[0, 0], [True, 2]]), "coordinates[0][1][0]: a number is expected, not true"),
        (
            '{"type": "Polygon", "coordinates": [[[0, NaN]]]}',
            "coordinates[0][0][1]: NaN is not a finite number",
        ),
        (
            geometry([[0, 0], [1, 0], [1, 1], [0, 1]]),
            "coordinates[0][3]: the ring is not closed: it ends at [0, 1] and began at [0, 0]",
        ),
        (
            {"type": "MultiPolygon", "coordinates": [[SQUARE], [[[0]]]]},
            "coordinates[1][0][0]: a position",
        ),
        (
            {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": None}]},
            "features[0].geometry: an object with a type is expected, not null",
        ),
    ],
)
def test_json_that_is_no_polygon(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Polygons.from_geojson(value)
    assert said in str(caught.value)
