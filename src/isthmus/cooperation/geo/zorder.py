"""Cells in Z-order: a square is divided into four, again and again (Geo paper, section II.A).

A *cell* is a string of digits with "/" between them, as in ``1/0/3``.  Each digit says which
quarter of the cell before it: 0 north-west, 1 north-east, 2 south-west, 3 south-east, in the order
in which the letter Z is drawn.  So a cell is the beginning of a topic, its first digits are the
cell around it, and at k digits there are 2^k columns, counted from the west, and 2^k rows, counted
from the north.  Where they lie in the world is the area's matter (`isthmus.cooperation.geo.area`).
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DIGITS",
    "MAX_DIGITS",
    "cell_at",
    "check_cell",
    "check_digits",
    "children",
    "column_and_row",
    "neighbor",
    "parent",
]

MAX_DIGITS: Final = 24
"""So many divide the Earth into cells of 2.4 m by 1.2 m."""

DIGITS: Final = "0123"

_DIRECTIONS: Final = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}


def check_digits(number: int, what: str = "digits", most: int = MAX_DIGITS) -> int:
    """`number` if that many digits are allowed."""
    if not 1 <= number <= most:
        raise ValueError(f"{what}: {number} is not allowed; 1 to {most} is")
    return number


def check_cell(text: str) -> str:
    """`text` if it is a cell; the error says which digit is wrong."""
    levels = text.split("/")
    for place, level in enumerate(levels, 1):
        if level not in DIGITS or len(level) != 1:
            what = f"is {level!r}" if level else "is missing"
            raise ValueError(f"cell {text!r}: digit {place} {what}; each is 0, 1, 2 or 3")
    if len(levels) > MAX_DIGITS:
        raise ValueError(f"cell {text!r}: {len(levels)} digits; {MAX_DIGITS} at most")
    return text


def cell_at(column: int, row: int, digits: int) -> str:
    """The cell in that column from the west and that row from the north."""
    return "/".join(
        [DIGITS[(row >> bit & 1) << 1 | column >> bit & 1] for bit in range(digits - 1, -1, -1)]
    )


def column_and_row(cell: str) -> tuple[int, int, int]:
    """The cell's column from the west, its row from the north, and how many digits it has."""
    column = row = digits = 0
    for level in check_cell(cell).split("/"):
        digit = int(level)
        column, row, digits = column << 1 | digit & 1, row << 1 | digit >> 1, digits + 1
    return column, row, digits


def parent(cell: str) -> str | None:
    """The cell around it; None if that is the whole area."""
    return check_cell(cell).rpartition("/")[0] or None


def children(cell: str) -> tuple[str, str, str, str]:
    """The four cells in it."""
    if check_cell(cell).count("/") + 1 == MAX_DIGITS:
        raise ValueError(f"cell {cell!r}: no cell has more than {MAX_DIGITS} digits")
    return (f"{cell}/0", f"{cell}/1", f"{cell}/2", f"{cell}/3")


def neighbor(cell: str, direction: str, *, wraps: bool = False) -> str | None:
    """The cell beside it, ``north`` or ``south-west`` of it; None if the area ends there.

    Where the area `wraps`, its first column is east of its last.
    """
    column, row, digits = column_and_row(cell)
    for part in direction.split("-"):
        if part not in _DIRECTIONS:
            raise ValueError(f"direction {direction!r}: {part!r} is none of {[*_DIRECTIONS]}")
        column, row = column + _DIRECTIONS[part][0], row + _DIRECTIONS[part][1]
    if wraps:
        column %= 1 << digits
    if not (0 <= column < 1 << digits and 0 <= row < 1 << digits):
        return None
    return cell_at(column, row, digits)
