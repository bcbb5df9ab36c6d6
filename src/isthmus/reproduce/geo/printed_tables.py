"""Tables I and II of the Geo paper, digit by digit, and what its text makes of them.

The paper rounds in some places and cuts off in others (66.6 and 399.7 of 66.667 and 399.74), so a
value is the formula's if they differ by no more than `ROUNDING`.

§IV-D adds the values of case C up and calls it *Case 2*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from isthmus.reproduce.geo.model import CASES, SYSTEMS, Rates, System, printed

__all__ = ["PRINTED", "REDUCTION", "ROUNDING", "TOTALS", "Value", "values"]

ROUNDING: Final = 0.5

PRINTED: Final[Mapping[str, Mapping[System, Rates]]] = MappingProxyType(
    {
        "A": {
            "system-1": Rates(256_000, 33.3, 255_100, 0),
            "system-2": Rates(1_020, 40.0, 99.9, 6.6),
            "proposed": Rates(1_000, 33.3, 99.9, 0),
        },
        "B": {
            "system-1": Rates(256_000, 333.3, 256_000, 0),
            "system-2": Rates(1_200, 399.7, 999.2, 66.6),
            "proposed": Rates(1_000, 333.1, 999.2, 0),
        },
        "C": {
            "system-1": Rates(25_600, 333, 26_500, 0),
            "system-2": Rates(300, 399.7, 999.2, 66.6),
            "proposed": Rates(100, 333.1, 999.2, 0),
        },
    }
)
"""By case and system."""

TOTALS: Final[Mapping[System, float]] = MappingProxyType({"system-2": 1765.5, "proposed": 1432.3})
"""Of case C."""
REDUCTION: Final = 0.189


class Value(NamedTuple):
    """One of the 36."""

    table: str
    case: str
    system: System
    name: str
    """Of `Rates`."""
    paper: float
    formula: float

    @property
    def agrees(self) -> bool:
        return abs(self.paper - self.formula) <= ROUNDING

    def __str__(self) -> str:
        return f"Table {self.table}, case {self.case}, {SYSTEMS[self.system]}, {self.name}"


def values() -> Iterator[Value]:
    """All of them with the formula's, in the order of the tables."""
    for table, names in (("I", Rates._fields[:2]), ("II", Rates._fields[2:])):
        for case, of_systems in PRINTED.items():
            for system, rates in of_systems.items():
                formula = printed(system, CASES[case])
                for name in names:
                    paper, ours = getattr(rates, name), getattr(formula, name)
                    yield Value(table, case, system, name, paper, ours)
