"""The routing tables of all nodes as arrays: one row for each level and side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.sim.bulk.levels import Ints, level_lists
from isthmus.sim.bulk.vectors import Vectors

__all__ = ["SkipGraph", "skip_graph"]


@dataclass(frozen=True, slots=True)
class SkipGraph:
    """Nodes are counted in the order of keys; neighbors of level 0 are the numbers beside."""

    size: int
    left: tuple[Ints, ...]
    """At index i the left neighbor of every node in level i + 1; -1: none."""
    right: tuple[Ints, ...]
    """Likewise; `size`: none."""


def skip_graph(vectors: Vectors, base: int = 2, *, blocks: Ints | None = None) -> SkipGraph:
    """With `blocks`, those neighbors only that are of the same block."""
    size = len(vectors)
    lefts, rights = [], []
    for level in level_lists(vectors, base, blocks=blocks):
        if not level.number or not level.follows.any():
            continue
        on_left, on_right = level.pairs()
        left = np.full(size, -1, np.int32)
        left[on_right] = on_left
        lefts.append(left)
        right = np.full(size, size, np.int32)
        right[on_left] = on_right
        rights.append(right)
    return SkipGraph(size, tuple(lefts), tuple(rights))
