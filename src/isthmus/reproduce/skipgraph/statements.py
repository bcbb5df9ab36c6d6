"""How a statement about figures becomes a verdict: ranges, fits, and words with numbers.

A figure that was simulated several times is a range, from the least to the most; a statement is
*yes* or *no* if it is so for all of it, else *within noise* (`reproduce.claims`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from isthmus.reproduce.claims import Claim, Holds, Range

__all__ = [
    "SAME",
    "Fit",
    "fitted",
    "holds",
    "not_measured",
    "over",
    "plain",
    "same",
    "within",
]

SAME: Final = 1.05
"""*The same*, *independent of*: the largest is at most so many times the least."""


@dataclass(frozen=True, slots=True)
class Fit:
    """y = start + slope · x, and how much of y's variance that explains."""

    start: float
    slope: float
    explained: float


def fitted(xs: Sequence[float], ys: Sequence[float]) -> Fit:
    """The line of least squares."""
    x_mean, y_mean = mean(xs), mean(ys)
    xx = sum((x - x_mean) ** 2 for x in xs)
    xy = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    slope = xy / xx if xx else 0.0
    start = y_mean - slope * x_mean
    rest = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    whole = sum((y - y_mean) ** 2 for y in ys)
    return Fit(start, slope, 1 - rest / whole if whole else 0.0)


def over(values: Iterable[float]) -> Range:
    """From the least to the most."""
    known = list(values)
    return Range(mean(known), min(known), max(known))


def within(value: Range, least: float = -math.inf, most: float = math.inf) -> Holds:
    """Whether all of the range lies between the two, both included."""
    if least <= value.least and value.most <= most:
        return "yes"
    return "no" if value.most < least or value.least > most else "within noise"


def holds(so: bool) -> Holds:
    return "yes" if so else "no"


def same(values: Sequence[float], most: float = SAME) -> bool:
    """Whether the largest is at most `most` times the least."""
    return min(values) > 0 and max(values) <= most * min(values)


def plain(value: Range, digits: int = 3) -> str:
    """Mean, and both ends if they differ."""
    ends = [f"{each:.{digits}f}" for each in (value.measured, value.least, value.most)]
    return ends[0] if ends[1] == ends[2] else f"{ends[0]} ({ends[1]} to {ends[2]})"


def not_measured(source: str, statement: str, paper: str) -> Claim:
    return Claim(source, statement, paper, "", "not measured")
