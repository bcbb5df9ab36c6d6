"""Cells: what is one, its place, and what is beside, around and in it.

0 1        0/0 0/1 1/0 1/1
2 3        0/2 0/3 1/2 1/3
           2/0 2/1 3/0 3/1
           2/2 2/3 3/2 3/3
"""

from __future__ import annotations

import pytest

from isthmus.cooperation.geo.zorder import (
    MAX_DIGITS,
    cell_at,
    check_cell,
    check_digits,
    children,
    column_and_row,
    neighbor,
    parent,
)

GRID = """
0/0 0/1 1/0 1/1
0/2 0/3 1/2 1/3
2/0 2/1 3/0 3/1
2/2 2/3 3/2 3/3
"""


def test_cells_stand_as_a_z_is_drawn() -> None:
    for row, line in enumerate(GRID.split("\n")[1:-1]):
        for column, cell in enumerate(line.split()):
            assert cell_at(column, row, 2) == cell
            assert column_and_row(cell) == (column, row, 2)


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("", "cell '': digit 1 is missing; each is 0, 1, 2 or 3"),
        ("1/4/0", "cell '1/4/0': digit 2 is '4'"),
        ("1/0/", "digit 3 is missing"),
        ("/1", "digit 1 is missing"),
        ("1/10", "digit 2 is '10'"),
        ("1/+/0", "digit 2 is '+'"),
        ("1/#/2", "digit 2 is '#'"),
        ("1/\u0661", "digit 2 is '\u0661'"),
        ("/".join("0" * 25), "25 digits; 24 at most"),
    ],
)
def test_what_is_no_cell_is_refused_with_the_place(cell: str, said: str) -> None:
    with pytest.raises(ValueError, match="cell") as caught:
        check_cell(cell)
    assert said in str(caught.value)


def test_the_longest_is_a_cell() -> None:
    longest = "/".join("3" * MAX_DIGITS)
    assert check_cell(longest) == longest
    with pytest.raises(ValueError, match="no cell has more than 24 digits"):
        children(longest)


@pytest.mark.parametrize("number", [0, -1, 25])
def test_so_many_digits_there_are_not(number: int) -> None:
    with pytest.raises(ValueError, match=f"digits: {number} is not allowed; 1 to 24 is"):
        check_digits(number)


def test_around_and_in() -> None:
    assert parent("1/0/3") == "1/0"
    assert parent("2") is None
    assert children("1") == ("1/0", "1/1", "1/2", "1/3")


def test_beside() -> None:
    assert neighbor("0/3", "east") == "1/2"
    assert neighbor("0/3", "south-east") == "3/0"
    assert neighbor("0/0", "north") is None
    assert neighbor("0/0", "west") is None
    assert neighbor("0/0", "west", wraps=True) == "1/1"
    assert neighbor("1/3", "south-east", wraps=True) == "2/0"
    with pytest.raises(ValueError, match="'up' is none of"):
        neighbor("0/0", "up")
