"""A paper's statement with our figure beside it, and how far that figure can be trusted.

A verdict is never finer than the measurement: a figure is a range, and a statement is *yes* or *no*
if it is so for the whole range, else *within noise*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Claim", "Holds", "Range", "at_least"]

Holds = Literal["yes", "no", "within noise", "not measured"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper, and ours beside it."""

    source: str
    statement: str
    paper: str
    ours: str
    verdict: Holds


@dataclass(frozen=True, slots=True)
class Range:
    """A figure as measured, and between which values the true one can lie."""

    measured: float
    least: float
    most: float

    def __str__(self) -> str:
        if math.isinf(self.most):
            return f"{self.measured:.2f} (at least {self.least:.2f})"
        return f"{self.measured:.2f} ({self.least:.2f} to {self.most:.2f})"


def at_least(value: Range, bound: float) -> Holds:
    """Whether `value` reaches `bound`."""
    if value.least >= bound:
        return "yes"
    return "no" if value.most < bound else "within noise"
