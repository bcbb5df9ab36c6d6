"""The options of `skipgraph`: those of `tree`, and how its lists and ways are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isthmus.cooperation.skipgraph.vectors import MAX_BASE
from isthmus.cooperation.tree.options import TreeOptions

__all__ = ["SkipGraphOptions"]


@dataclass(frozen=True, slots=True)
class SkipGraphOptions(TreeOptions):
    """All nodes need the same base; how each forwards is its own affair."""

    base: int = 2
    """Of membership vectors."""
    forwarding: Literal["sfb", "mrf"] = "sfb"
    """How a range is divided on its way to subscribers (thesis §4.1.2, §2.2.5)."""

    links: Literal["configured", "all"] = "configured"
    """Whether to link with the neighbors of neighbors, too."""

    def __post_init__(self) -> None:
        if not isinstance(self.base, int) or not 2 <= self.base <= MAX_BASE:
            raise ValueError(f"base: {self.base!r} is not a whole number from 2 to {MAX_BASE}")
        if self.forwarding not in ("sfb", "mrf"):
            raise ValueError(f"forwarding: {self.forwarding!r} is neither 'sfb' nor 'mrf'")
        if self.links not in ("configured", "all"):
            raise ValueError(f"links: {self.links!r} is neither 'configured' nor 'all'")
