"""The scenarios by name: which levels and libraries each is for, and what runs every time.

A scenario module registers its functions with :func:`scenario`; a function takes the stage and
the case's own arguments and returns what it saw and what the standard allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from conformance.observation import Observation
from conformance.stage import Stage

__all__ = ["RAW", "SCENARIOS", "Scenario", "scenario"]

RAW = "raw"
"""In place of a library's name: bytes, with nothing in between."""

Run = Callable[..., Observation]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table."""

    name: str
    group: str
    run: Callable[[Stage], Observation]
    levels: tuple[int, ...]
    libraries: tuple[str, ...]
    quick: frozenset[str]
    """The libraries with which it belongs to the part that runs every time."""
    only_without_5: bool = False
    """For brokers that do not speak MQTT 5."""
    early: bool = False
    """It sends packets before it has its CONNACK, which a node keeps back until then: a broker
    that cannot take them (moquette closes) is not asked to, and the standard is kept."""


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    group: str,
    *,
    levels: tuple[int, ...] = (4, 5),
    libraries: tuple[str, ...] = ("paho", "gmqtt"),
    quick: tuple[str, ...] = ("paho", RAW),
    cases: Mapping[str, Mapping[str, Any]] | None = None,
    quick_cases: Mapping[str, tuple[str, ...]] | None = None,
    only_without_5: bool = False,
    early: bool = False,
) -> Callable[[Run], Run]:
    """Register a function once, or once for each of `cases`: suffix of the name → arguments.

    `quick_cases` says for single cases which libraries run them every time.
    """

    def register(run: Run) -> Run:
        base = run.__name__.replace("_", "-")
        for suffix, arguments in (cases or {"": {}}).items():
            name = f"{base}-{suffix}" if suffix else base
            if name in SCENARIOS:
                raise ValueError(f"two scenarios are called {name}")
            every_time = (quick_cases or {}).get(suffix, quick)
            SCENARIOS[name] = Scenario(
                name=name,
                group=group,
                run=partial(run, **arguments),
                levels=levels,
                libraries=libraries,
                quick=frozenset(every_time) & frozenset(libraries),
                only_without_5=only_without_5,
                early=early,
            )
        return run

    return register
