"""The options of `topic-tree`: those of `tree`, and how the roots of overlays are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isthmus.cooperation.tree.options import TreeOptions

__all__ = ["TopicTreeOptions"]


@dataclass(frozen=True, slots=True)
class TopicTreeOptions(TreeOptions):
    """Overlays §4.2.2: RB = gamma * R + delta * clients."""

    roots: Literal["capacity", "balance"] = "capacity"
    """The node of the highest capability C, or of the lowest root balance RB."""
    gamma: float = 1.0
    """The weight of R: of how many overlays the node is the root already."""
    delta: float = 0.1
    """The weight of the number of its connected clients."""

    def __post_init__(self) -> None:
        if self.roots not in ("capacity", "balance"):
            raise ValueError(f"roots: {self.roots!r} is neither 'capacity' nor 'balance'")
