"""The filters of cells: exactly their topics, each once, and no fewer would do."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cooperation.geo import (
    WORLD,
    Area,
    CellSet,
    Circle,
    Polygons,
    Rectangle,
    number_of_filters,
    smallest_filters,
)
from isthmus.cooperation.geo.covering import _MANY
from isthmus.cooperation.geo.quadtree import Forest
from support.geo_oracle import TooMuch, all_cells, check_filters, fewest, filter_masks

PLANE = Area.plane(0, 0, 8, 8)
RESTS = ["#", "temperature", "+/temperature", "+", "temperature/#"]


def mask_of(cells: CellSet) -> int:
    index = {cell: 1 << place for place, cell in enumerate(all_cells(cells.precision))}
    return sum(index[cell] for cell in cells)


def test_one_level_of_all_is_one_filter() -> None:
    cells = CellSet.of(["0/1", "1/1", "2/1", "3/1"], 2)
    assert smallest_filters(cells) == ("+/1/#",)
    assert smallest_filters(cells, 4, "temperature") == ("+/1/+/+/temperature",)


def test_the_ends_of_the_scale() -> None:
    assert smallest_filters(CellSet.of([], 3)) == ()
    assert smallest_filters(CellSet.of("0123", 3)) == ("#",)
    assert smallest_filters(CellSet.of("0123", 2), 3, "t") == ("+/+/+/t",)
    assert smallest_filters(CellSet.of(["0/1/2"], 3), 3, "t") == ("0/1/2/t",)


@given(st.sets(st.sampled_from(all_cells(3))), st.sampled_from(RESTS))
def test_they_match_these_cells_and_no_others(cells: set[str], rest: str) -> None:
    made = CellSet.of(cells, 3)
    assert set(made) == cells
    filters = smallest_filters(made, 3, rest)
    assert len(filters) == number_of_filters(made)
    topic = rest.replace("+", "x").replace("#", "x")
    check_filters(filters, cells, 3, topic)


@given(st.sets(st.sampled_from(all_cells(2))), st.sampled_from(RESTS))
def test_topics_may_have_more_digits_than_the_cells(cells: set[str], rest: str) -> None:
    filters = smallest_filters(CellSet.of(cells, 2), 4, rest)
    deeper = {f"{cell}/{a}/{b}" for cell in cells for a, b in product("0123", repeat=2)}
    check_filters(filters, deeper, 4, rest.replace("+", "x").replace("#", "x"))


@pytest.mark.parametrize("seed", range(3))
def test_so_many_that_little_is_looked_at(seed: int) -> None:
    random = Random(seed)
    cells = {cell for cell in all_cells(5) if random.random() < 0.5}
    made = CellSet.of(cells, 5)
    assert sum(1 for _ in made.prefixes()) > _MANY
    check_filters(smallest_filters(made), cells, 5)


def test_every_set_of_cells_with_one_or_two_digits() -> None:
    """All 16 and all 65,536: no set of filters is smaller."""
    for digits in (1, 2):
        names, masks = all_cells(digits), filter_masks(digits)
        number = len(names)
        starting: list[list[int]] = [[] for _ in range(number)]
        for mask in masks:
            for cell in range(number):
                if mask >> cell & 1:
                    starting[cell].append(mask)
        best = [0] * (1 << number)
        for cells in range(1, 1 << number):
            lowest = (cells & -cells).bit_length() - 1
            best[cells] = 1 + min(best[cells ^ m] for m in starting[lowest] if not m & ~cells)
        forest = Forest()
        quarters = [forest.node((a, b, c, d)) for d, c, b, a in product((0, 1), repeat=4)]
        for cells in range(1 << number):
            four = (cells, cells >> 4, cells >> 8, cells >> 12)
            a, b, c, d = (quarters[part & 15] for part in four)
            root = quarters[cells] if digits == 1 else forest.node((a, b, c, d))
            made = CellSet(digits, forest, root)
            assert number_of_filters(made) == best[cells], list(made)


def shape(random: Random, kind: str) -> CellSet:
    """With three digits."""

    def some() -> float:
        return random.choice([random.uniform(0, 8), float(random.randint(0, 8))])

    if kind == "circle":
        return Circle((some(), some()), random.uniform(0, 7)).cells(PLANE, 3)
    if kind == "polygon":
        ring: list[list[float]] = [[0, 0]]
        for x in range(8):
            height = random.uniform(0.2, 8)
            ring += [[x + 0.1, height], [x + 0.8, height]]
        ring += [[8, 0], [0, 0]]
        return Polygons.from_geojson({"type": "Polygon", "coordinates": [ring]}).cells(PLANE, 3)
    if kind == "any":
        share = random.choice([0.1, 0.3, 0.5, 0.7, 0.9])
        return CellSet.of([cell for cell in all_cells(3) if random.random() < share], 3)
    (x0, x1), (y0, y1) = sorted((some(), some())), sorted((some(), some()))
    cells = Rectangle((x0, y0), (x1, y1)).cells(PLANE, 3)
    return cells | shape(random, "rectangle") if kind == "rectangles" else cells


@pytest.mark.parametrize("kind", ["rectangle", "rectangles", "circle", "polygon", "any"])
def test_no_fewer_would_do_with_three_digits(kind: str) -> None:
    masks = filter_masks(3)
    undecided = 0
    for seed in range(60):
        cells = shape(Random(seed), kind)
        number = number_of_filters(cells)
        try:
            assert fewest(mask_of(cells), masks, number) == number, (seed, list(cells))
        except TooMuch:
            undecided += 1
    assert undecided <= 3


def test_the_search_knows_when_there_are_fewer() -> None:
    masks = filter_masks(2)
    cells = mask_of(CellSet.of(["0/1", "1/1", "2/1", "3/1", "0/0"], 2))
    assert fewest(cells, masks, 5) == 2
    assert fewest(cells, masks, 2) == 2


@pytest.mark.parametrize(
    ("digits", "rest", "said"),
    [
        (2, "#", "precision: 3 digits are more than the 2 of the topics"),
        (25, "#", "digits: 25 is not allowed; 1 to 24 is"),
        (3, "a/#/b", "rest 'a/#/b': topic filter 'a/#/b' has a #"),
        (3, "", "rest ''"),
    ],
)
def test_what_cannot_be_asked(digits: int, rest: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"precision|digits|rest") as caught:
        smallest_filters(CellSet.of(["0/1/2"], 3), digits, rest)
    assert said in str(caught.value)


# ---- sets of cells -----------------------------------------------------------------------------

sets = st.sets(st.sampled_from(all_cells(2)))


@given(sets, sets)
def test_sets_are_sets(a: set[str], b: set[str]) -> None:
    one, other = CellSet.of(a, 2), CellSet.of(b, 2)
    assert set(one | other) == a | b
    assert set(one & other) == a & b
    assert set(one - other) == a - b
    assert (one == other) == (a == b)
    assert len(one) == len(a)
    assert all((cell in one) == (cell in a) for cell in all_cells(2))


def test_a_cell_may_have_fewer_digits_or_more() -> None:
    cells = CellSet.of(["0", "1/2"], 3)
    assert len(cells) == 20
    assert "0/3" in cells
    assert "1/2/0" in cells
    assert "1" not in cells
    assert "0/0/0/0/0" in cells
    assert repr(cells) == "<20 cells with 3 digits>"
    with pytest.raises(ValueError, match="cell '0/0/0/0': 4 digits; the set's have 3"):
        CellSet.of(["0/0/0/0"], 3)
    with pytest.raises(ValueError, match="cells with 3 and 2 digits"):
        cells | CellSet.of([], 2)


def test_a_city_takes_few_filters() -> None:
    cells = Circle((35.68, 139.76), 10_000).cells(WORLD, 12)
    assert (len(cells), number_of_filters(cells)) == (16, 10)
