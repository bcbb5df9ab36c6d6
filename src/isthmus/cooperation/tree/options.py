"""The options of `tree`: its keys of ``[cooperation]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

__all__ = ["TreeOptions", "options_of"]


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """Times in seconds, weights without a unit."""

    discovery_s: float = 1.0
    """The paper's T_d: how long a node announces itself before it builds a tree."""
    announce_s: float = 0.2
    """How often it does, meanwhile."""
    beacon_s: float = 5.0
    """How often it does afterwards; 0: never, as in the paper."""
    collect_s: float = 0.02
    """How long the ways to a root that several neighbors offer are gathered."""
    merge_s: float = 0.05
    """How long links that come up are gathered before a tree is built with them."""
    repair_s: float = 0.1
    """How long a link of the tree may be away before another tree is built."""
    review_s: float = 30.0
    """How often a node looks whether another tree would be better."""
    alpha: float = 10.0
    """The weight of free cores in the capability C (Overlays eq. 1)."""
    beta: float = 1.0
    """The weight of free memory, in GiB."""
    max_links: int = 64
    """With so many links, others that are heard of are not dialed."""


LEAST = {"announce_s": 0.02, "review_s": 1.0, "max_links": 1}

Options = TypeVar("Options", bound=TreeOptions)


def options_of(options: Mapping[str, object], kind: type[Options], algorithm: str) -> Options:
    """Raises `ValueError` naming the key.

    A key whose default is text has values of its own, which `kind` checks.
    """
    known = {each.name: each for each in fields(kind)}
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"{key}: algorithm {algorithm!r} has no such option")
        if isinstance(known[key].default, str):
            continue
        kinds: tuple[type, ...] = (int,) if key == "max_links" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(f"{key}: {value!r} is not a number")
        if not LEAST.get(key, 0) <= value <= 86_400:  # type: ignore[operator]
            raise ValueError(f"{key}: {value!r} is not from {LEAST.get(key, 0)} to 86400")
    return kind(**options)  # type: ignore[arg-type]
