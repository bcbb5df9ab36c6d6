"""Positions and cells: each position in one cell, and nothing outside the area."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cooperation.geo import WORLD, Area
from support.geo_oracle import all_cells, box

TOWN = Area.plane(0, 0, 60_000, 60_000)
ODD = Area(139.43, 35.41, 140.09, 35.95)


def test_quarters_of_the_earth() -> None:
    assert WORLD.cell((45, -90), 1) == "0"
    assert WORLD.cell((45, 90), 1) == "1"
    assert WORLD.cell((-45, -90), 1) == "2"
    assert WORLD.cell((-45, 90), 1) == "3"


def test_borders_belong_to_one_cell() -> None:
    assert WORLD.cell((0, 0), 1) == "1"  # the southern and the western border are its own
    assert WORLD.cell((90, 180), 2) == "1/1"
    assert WORLD.cell((-90, -180), 2) == "2/2"
    assert TOWN.cell((60_000, 60_000), 3) == "1/1/1"
    assert TOWN.cell((30_000, 29_999.99), 1) == "3"


@pytest.mark.parametrize("area", [WORLD, TOWN, ODD])
@given(data=st.data())
def test_a_position_is_in_the_cell_that_has_it(area: Area, data: st.DataObject) -> None:
    x = data.draw(st.floats(area.west, area.east))
    y = data.draw(st.floats(area.south, area.north))
    cell = area.cell((x, y) if area.is_plane else (y, x), 4)
    west, south, east, north = box(area, cell)
    assert west <= x
    assert x < east or x == east == area.east
    assert south <= y
    assert y < north or y == north == area.north


@pytest.mark.parametrize("area", [WORLD, TOWN, ODD])
def test_the_center_of_a_cell_is_in_it(area: Area) -> None:
    for cell in all_cells(3):
        assert area.cell(area.center(cell), 3) == cell
        assert area.bounds(cell) == tuple(map(float, box(area, cell)))
        for other in area.neighbors(cell).values():
            assert cell in area.neighbors(other).values()


def test_neighbors_go_around_the_earth_and_not_over_the_poles() -> None:
    assert WORLD.neighbors("1/1") == {
        "east": "0/0",
        "south-east": "0/2",
        "south": "1/3",
        "south-west": "1/2",
        "west": "1/0",
    }
    assert set(TOWN.neighbors("1/1")) == {"south", "south-west", "west"}


def test_sizes() -> None:
    assert TOWN.size("0/0") == (15_000, 15_000)
    width, height = WORLD.size("0/2/2")
    assert height == pytest.approx(math.pi * 6_371_008.8 / 8)
    assert width == pytest.approx(2 * math.pi * 6_371_008.8 / 8 * math.cos(math.radians(11.25)))


@pytest.mark.parametrize(
    ("area", "position", "said"),
    [
        (WORLD, (90.5, 0), "latitude 90.5 is outside the area, -90.0 to 90.0"),
        (WORLD, (0, -181), "longitude -181 is outside the area, -180.0 to 180.0"),
        (TOWN, (-1, 0), "x -1 is outside the area, 0 to 60000"),
        (TOWN, (0, 60_001), "y 60001 is outside the area"),
        (WORLD, (math.nan, 0), "latitude nan is not a finite number"),
        (WORLD, (0, math.inf), "longitude inf is not a finite number"),
        (TOWN, (10**400, 0), "is not a finite number"),
        (WORLD, ("1", 0), "latitude '1' is not a finite number"),
        (WORLD, (True, 0), "latitude True is not a finite number"),
    ],
)
def test_what_is_outside_is_refused(area: Area, position: tuple[float, float], said: str) -> None:
    with pytest.raises(ValueError, match=r"outside|finite") as caught:
        area.cell(position, 3)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((-181, 0, 1, 1), "area: west = -181 is not within -180 and 180 degrees"),
        ((0, 0, 1, 91), "area: north = 91 is not within -90 and 90 degrees"),
        ((1, 0, 1, 1), "area: west = 1 is not less than east = 1"),
        ((0, 2, 1, 1), "area: south = 2 is not less than north = 1"),
        ((0, math.nan, 1, 1), "area: south = nan is not a finite number"),
    ],
)
def test_areas_that_are_none(numbers: tuple[float, float, float, float], said: str) -> None:
    with pytest.raises(ValueError, match="area: ") as caught:
        Area(*numbers)
    assert str(caught.value) == said
