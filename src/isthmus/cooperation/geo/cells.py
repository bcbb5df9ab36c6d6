"""Which broker is in charge of which cell of the map: a tiling (Geo §II-B).

A topic of the notation is ``d1/…/dk/rest``: `k` digits from 0 to 3, each a quarter of the square
that those before it name, then anything or nothing.  A broker is in charge of cells, which are the
first l digits of topics, 1 ≤ l ≤ k; l need not be the same everywhere (the *broker level*).  The
cells of all brokers tile the square: every topic of the notation begins with exactly one of them.
So a topic has one broker, and brokers share nothing.

    ""  ─┬─ 0     tokyo          0/3/temperature   is tokyo's
         ├─ 1     seoul          2/1/temperature   is oregon's
         ├─ 2 ─┬─ 2/0  sydney    +/1/temperature   tokyo, seoul, oregon, and who has 3
         │     ├─ 2/1  oregon
         …     …

Topics that are not of the notation (too few digits, other levels, ``$``-topics) are the broker's
`other`, or nobody's.  So a filter that also matches such a topic, as ``#`` does, concerns `other`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from isthmus.cooperation.geo.zorder import DIGITS, MAX_DIGITS, check_cell

__all__ = ["Cells", "digits_of"]

MAX_STEPS: Final = 4_096
"""How far a filter is followed through the tiling; then all that may be below counts as matched."""


def digits_of(k: object) -> int:
    """`k` if topics can have so many digits."""
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAX_DIGITS:
        raise ValueError(f"{k!r} is not a number of digits from 1 to {MAX_DIGITS}")
    return k


def _checked(cell: object, k: int) -> str:
    if not isinstance(cell, str):
        raise ValueError(f'{cell!r} is no cell; a cell is like "1/0/3"')
    if check_cell(cell).count("/") >= k:
        raise ValueError(f"cell {cell!r} has {cell.count('/') + 1} digits; topics have {k}")
    return cell


class Cells:
    """Who is in charge of which cells.  It does not change; `split` and `merge` make another."""

    __slots__ = ("_below", "_lengths", "_notation", "_of", "brokers", "k", "other")

    def __init__(self, k: int, of: Mapping[str, str], other: str = "") -> None:
        """`of`: the broker of each cell.  Raises `ValueError` naming the gap or the overlap."""
        self.k = digits_of(k)
        self.other = other
        self._of = {_checked(cell, k): broker for cell, broker in of.items()}
        self._lengths = tuple(sorted({len(cell) for cell in self._of}))
        self._notation = re.compile(rb"(?:[0-3]/){%d}[0-3](?:/|\Z)" % (k - 1)).match
        self._below = _brokers_below(self._of)
        found = dict.fromkeys(self._of.values())
        self.brokers = tuple(dict.fromkeys((*found, *([other] if other else ()))))

    @classmethod
    def of_brokers(cls, k: int, cells: Mapping[str, Iterable[str]], other: str = "") -> Cells:
        """From the cells of each broker, as the configuration has them."""
        of: dict[str, str] = {}
        for broker, theirs in cells.items():
            for cell in theirs:
                _checked(cell, k)
                if of.setdefault(cell, broker) != broker:
                    raise ValueError(f'"{cell}" is of two brokers, {of[cell]} and {broker}')
        return cls(k, of, other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cells):
            return NotImplemented
        return (self.k, self.other, self._of) == (other.k, other.other, other._of)

    def __hash__(self) -> int:
        return hash((self.k, self.other, len(self._of)))

    def __len__(self) -> int:
        return len(self._of)

    def items(self) -> Iterator[tuple[str, str]]:
        """Cells and their brokers, along the Z."""
        return iter(sorted(self._of.items()))

    def by_broker(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for cell, broker in self.items():
            found.setdefault(broker, []).append(cell)
        return found

    # ---- which broker ------------------------------------------------------------------------

    def broker_of(self, topic: str) -> str:
        """Whose `topic` is; empty if it is nobody's."""
        if self._notation(topic.encode()) is None:
            return self.other
        of = self._of
        for length in self._lengths:
            broker = of.get(topic[:length])
            if broker is not None:
                return broker
        raise AssertionError(f"no cell of {topic!r}: the cells do not tile")  # pragma: no cover

    def brokers_of(self, topic_filter: str) -> tuple[str, ...]:
        """Whose topics `topic_filter` matches some of; of a filter made to be hard, or more."""
        levels = topic_filter.split("/")
        found: dict[str, None] = {}
        self._follow("", levels, found)
        if self.other and self._leaves_notation(levels):
            found[self.other] = None
        return tuple(broker for broker in self.brokers if broker in found)

    def _follow(self, cell: str, levels: Sequence[str], found: dict[str, None]) -> None:
        """Down the tiling, only where a broker can be that was not found yet."""
        if levels[-1] != "#" and len(levels) < self.k:
            return
        head = levels[: self.k]
        if any(each not in ("+", "#", *DIGITS) for each in head):
            return
        open_from = len(head)  # from here on anything fits
        while open_from and head[open_from - 1] in ("+", "#"):
            open_from -= 1
        steps, waiting = 0, [cell]
        while waiting:
            cell = waiting.pop()
            steps += 1
            depth = (len(cell) + 1) // 2
            broker = self._of.get(cell)
            if broker is not None:
                found[broker] = None
                continue
            below = self._below[cell]
            if below.keys() <= found.keys():
                continue
            if depth >= open_from or steps > MAX_STEPS:
                found.update(below)
                continue
            digit = head[depth]
            for each in reversed(DIGITS) if digit == "+" else (digit,):
                waiting.append(f"{cell}/{each}" if cell else each)

    def _leaves_notation(self, levels: Sequence[str]) -> bool:
        """Whether a filter matches a topic that is not of the notation."""
        for at in range(self.k):
            if at == len(levels):
                return True  # too few digits
            level = levels[at]
            if level == "#":
                # At the last place it stands for one digit or more, and for other levels, too.
                return True
            if level == "+" or level not in DIGITS or len(level) != 1:
                return True
        return False

    # ---- other tilings -----------------------------------------------------------------------

    def split(self, cell: str, brokers: Sequence[str]) -> Cells:
        """`cell` in four, for `brokers` in the order of the digits."""
        _checked(cell, self.k)
        if cell not in self._of:
            raise ValueError(f'"{cell}" is no broker\'s cell{self._hint(cell)}')
        if len(cell) >= 2 * self.k - 1:
            raise ValueError(f'"{cell}" has all {self.k} digits of a topic; it cannot be split')
        if len(brokers) != len(DIGITS):
            raise ValueError(f"{len(brokers)} brokers for the four quarters of a cell")
        of = dict(self._of)
        del of[cell]
        of.update(
            (f"{cell}/{digit}", broker) for digit, broker in zip(DIGITS, brokers, strict=True)
        )
        return Cells(self.k, of, self.other)

    def merge(self, cell: str, broker: str) -> Cells:
        """All cells within `cell` become one, of `broker`; or `cell` itself changes hands."""
        _checked(cell, self.k)
        of = {each: its for each, its in self._of.items() if not _within(each, cell)}
        if len(of) == len(self._of):
            raise ValueError(f'"{cell}" has no cells within it{self._hint(cell)}')
        of[cell] = broker
        return Cells(self.k, of, self.other)

    def within(self, cell: str) -> dict[str, str]:
        """The cells that `cell` consists of, and their brokers."""
        return {each: broker for each, broker in self.items() if _within(each, cell)}

    def _hint(self, cell: str) -> str:
        for each, broker in self._of.items():
            if _within(cell, each):
                return f'; it lies in "{each}", of {broker}'
        if below := self.within(cell):
            return f"; it is {len(below)} cells"
        return ""


def _within(cell: str, other: str) -> bool:
    return cell == other or cell.startswith(f"{other}/")


def _brokers_below(of: Mapping[str, str]) -> dict[str, dict[str, None]]:
    """Of each square that is divided: the brokers in it.  Raises where cells do not tile it."""
    if not of:
        raise ValueError("there are no cells; they must tile the square, as 0, 1, 2 and 3 do")
    below: dict[str, dict[str, None]] = {"": {}}
    for cell, broker in of.items():
        inner = cell[:-2]
        while True:
            if inner in of:
                raise ValueError(
                    f'"{inner}", of {of[inner]}, and "{cell}", of {broker}, overlap: the second '
                    "lies in the first"
                )
            brokers = below.setdefault(inner, {})
            brokers[broker] = None
            if not inner:
                break
            inner = inner[:-2]
    for inner in below:
        for digit in DIGITS:
            child = f"{inner}/{digit}" if inner else digit
            if child not in of and child not in below:
                raise ValueError(f'a gap: nobody has "{child}"; the cells must tile the square')
    return below
