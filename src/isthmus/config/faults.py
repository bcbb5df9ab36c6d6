"""Faults that a file asks for: ``[[cut]]`` and ``[[crash]]``, in scenarios and simulations alike.

Times count from the first message on, and every fault is over before the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from isthmus.config.fields import Seconds, Section
from isthmus.config.mistakes import Mistakes, Table, raw_tables

__all__ = ["Crash", "Cut", "ends_late", "fault_contradictions"]


class Fault(Section):
    """What happens for a while."""

    at_s: Seconds = Field(ge=0, examples=[2.0])
    for_s: Seconds = Field(gt=0, examples=[1.0])

    @property
    def end_s(self) -> float:
        return self.at_s + self.for_s


class Cut(Fault):
    """``[[cut]]``: for a while, nothing that one side sends arrives at the other."""

    source: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = Field(examples=[["n1"]])
    target: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = Field(examples=[["n2"]])
    one_way: bool = Field(default=False, examples=[True])
    """What the target sends arrives."""

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """Who cannot send to whom."""
        there = [(one, other) for one in self.source for other in self.target]
        back = () if self.one_way else [(other, one) for one, other in there]
        return tuple(dict.fromkeys([*there, *back]))


class Crash(Fault):
    """``[[crash]]``: a node is killed, and comes back with what it had stored."""

    node: str = Field(examples=["n3"])


def fault_contradictions(
    data: Table, no_node: Callable[[str], str], duration_s: object
) -> Mistakes:
    """What is wrong in the faults of a file; `no_node` says why a name is none of its nodes."""
    for index, cut in raw_tables(data, "cut"):
        sides = {side: _names(cut.get(side)) for side in ("source", "target")}
        for side, names in sides.items():
            for name in names:
                if problem := no_node(name):
                    yield ("cut", index, side), problem
                    break  # one line of the file, one mistake at a time
        for name in sides["target"]:
            if name in sides["source"]:
                problem = f'"{name}" is on both sides, and nobody is cut off from itself'
                yield ("cut", index, "target"), f"{problem}; remove it on one"
                break
    for index, crash in raw_tables(data, "crash"):
        for name in _names([crash.get("node")]):
            if problem := no_node(name):
                yield ("crash", index, "node"), problem
    for key in ("cut", "crash"):
        for index, fault in raw_tables(data, key):
            end_s, most_s = _end_s(fault), _number(duration_s)
            if end_s is not None and most_s is not None and end_s > most_s:
                yield (key, index, "for_s"), ends_late(most_s)
    yield from _crashed_twice(raw_tables(data, "crash"))


def ends_late(duration_s: float) -> str:
    """What is wrong with a fault that is not over when the run is."""
    return f"ends after the run, which takes {duration_s:g} s"


def _crashed_twice(crashes: list[tuple[int, Table]]) -> Mistakes:
    """Crashes of a node that has not come back from another one."""
    down: dict[str, list[tuple[float, float, int]]] = {}
    for index, crash in crashes:
        name, at_s, up_s = crash.get("node"), _number(crash.get("at_s")), _end_s(crash)
        if isinstance(name, str) and at_s is not None and up_s is not None:
            down.setdefault(name, []).append((at_s, up_s, index))
    for name, times in down.items():
        for (_, up_s, first), (at_s, _, index) in pairwise(sorted(times)):
            if at_s <= up_s:
                problem = f"{name} is down until {up_s:g} s by crash[{first}]; begin after that"
                yield ("crash", index, "at_s"), problem


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _end_s(fault: Table) -> float | None:
    at_s, for_s = _number(fault.get("at_s")), _number(fault.get("for_s"))
    return None if at_s is None or for_s is None else at_s + for_s


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
