"""States and events: what follows, and what is to be done then."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from isthmus.errors import LocalProtocolError

__all__ = ["A", "E", "S", "Table", "step", "table_of"]

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)

Table = Mapping[S, Mapping[E, tuple[S, tuple[A, ...]]]]


def step(table: Table[S, E, A], state: S, event: E) -> tuple[S, tuple[A, ...]]:
    """The state after `event`, and what is to be done then, in this order."""
    found = table[state].get(event)
    if found is None:
        raise LocalProtocolError(f"{event.value!r} cannot happen to what is {state.value!r}")
    return found


def table_of(names: tuple[type[S], type[E], type[A]], rows: str) -> Table[S, E, A]:
    """Rows of state, event, state after it and what is then to be done."""
    states, events, actions = names
    table: dict[S, dict[E, tuple[S, tuple[A, ...]]]] = {state: {} for state in states}
    for row in rows.strip().splitlines():
        state, event, after, *todo = row.split()
        table[states[state]][events[event]] = (states[after], tuple(actions[do] for do in todo))
    return table
