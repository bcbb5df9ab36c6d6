"""The lists of a Skip Graph, level by level, as one sorted array each (thesis §2.2.4).

Nodes are counted in the order of their keys.  Sorting them by the first i digits of their vectors,
stably, puts every list of level i in one piece, in the order of keys.  And level i + 1 follows from
level i by one stable partition by the next digit: no sorting at all.

Only one level is in memory at a time, and whoever is alone in its list is left out from the next
level on, so after log(N) levels there is little left.  That makes it O(N log N) time, and some tens
of bytes for each node (`memory`).

With `blocks`, nodes of different blocks (topics) are in different lists.  Inside a block everybody
has the neighbors that it has in the whole graph, as blocks lie in one piece in the order of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from isthmus.cooperation.skipgraph.vectors import digits_of
from isthmus.sim.bulk.vectors import Vectors

__all__ = ["Ints", "Level", "distinct_neighbors", "level_lists", "table_sizes"]

MAX_WAITING: Final = 1 << 25
"""Pairs of neighbors that are kept before repetitions are taken out."""

Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Level:
    """All lists of one level, one after the other."""

    number: int
    order: Ints
    """Nodes."""
    vectors: Vectors
    """Of these nodes."""
    follows: Flags
    """Whether the next one stands in the same list: is the neighbor to the right."""

    def pairs(self) -> tuple[Ints, Ints]:
        """Neighbors: those on the left, those on the right."""
        follows = self.follows[:-1]
        return self.order[:-1][follows], self.order[1:][follows]


def level_lists(
    vectors: Vectors,
    base: int = 2,
    *,
    blocks: Ints | None = None,
    owners: Ints | None = None,
) -> Iterator[Level]:
    """From level 0 up, until everybody is alone; who is, comes for the last time.

    `owners` are the physical nodes of virtual nodes: a list of one owner's alone counts as one
    node.
    """
    if len(vectors) >= 1 << 31:
        raise ValueError(f"{len(vectors):,} nodes; there can be {(1 << 31) - 1:,}")
    if not len(vectors):
        return
    order = np.arange(len(vectors), dtype=np.int32)
    place: int = 1
    for number in range(digits_of(base) + 1):
        if number:
            order, vectors = _partitioned(order, vectors, place // base, base)
        follows = _followed(order, vectors, place, blocks)
        yield Level(number, order, vectors, follows)
        kept = _accompanied(order, follows, owners)
        if not kept.all():
            order, vectors = order[kept], vectors[kept]
            if not len(order):
                return
        place *= base


def _partitioned(order: Ints, vectors: Vectors, place: int, base: int) -> tuple[Ints, Vectors]:
    """By the digit at `place`, stably."""
    if base == 2:
        high = (vectors & np.uint64(place)) != 0
        low = ~high
        return (
            np.concatenate((order[low], order[high])),
            np.concatenate((vectors[low], vectors[high])),
        )
    digits = (vectors // np.uint64(place) % np.uint64(base)).astype(np.uint8)
    sorting = np.argsort(digits, kind="stable")
    return order[sorting], vectors[sorting]


def _followed(order: Ints, vectors: Vectors, place: int, blocks: Ints | None) -> Flags:
    found = np.zeros(len(order), bool)
    if place >= 1 << 64:
        found[:-1] = vectors[1:] == vectors[:-1]
    elif place & (place - 1) == 0:
        differing = vectors[1:] ^ vectors[:-1]
        differing &= np.uint64(place - 1)
        np.equal(differing, 0, out=found[:-1])
    else:
        prefixes = vectors % np.uint64(place)
        np.equal(prefixes[1:], prefixes[:-1], out=found[:-1])
    if blocks is not None:
        of_order = blocks[order]
        found[:-1] &= of_order[1:] == of_order[:-1]
    return found


def _accompanied(order: Ints, follows: Flags, owners: Ints | None) -> Flags:
    """Who has somebody else in its list."""
    if owners is None:
        kept = follows.copy()
        kept[1:] |= follows[:-1]
        return kept
    of_order = owners[order]
    others = np.zeros(len(order), bool)
    others[:-1] = follows[:-1] & (of_order[1:] != of_order[:-1])
    starts = np.flatnonzero(~np.concatenate((np.zeros(1, bool), follows[:-1])))
    lengths = np.diff(np.append(starts, len(order)))
    return np.repeat(np.logical_or.reduceat(others, starts), lengths)


def table_sizes(
    vectors: Vectors, base: int = 2, *, owners: Ints | None = None
) -> npt.NDArray[np.uint8]:
    """How many entries the routing table of each virtual node has (§3.4.4), own nodes left out."""
    found = np.zeros(len(vectors), np.uint8)
    for level in level_lists(vectors, base, owners=owners):
        left, right = level.pairs()
        if owners is not None:
            foreign = owners[left] != owners[right]
            left, right = left[foreign], right[foreign]
        found[left] += np.uint8(1)
        found[right] += np.uint8(1)
    return found


def distinct_neighbors(vectors: Vectors, owners: Ints, base: int = 2) -> npt.NDArray[np.int64]:
    """How many different nodes the tables of each physical node have (§3.4.4, Fig. 3.14)."""
    count = int(owners.max(initial=-1)) + 1
    pairs: list[npt.NDArray[np.int64]] = []
    waiting = 0
    for level in level_lists(vectors, base, owners=owners):
        left, right = (owners[side].astype(np.int64) for side in level.pairs())
        foreign = left != right
        left, right = left[foreign], right[foreign]
        pairs.append(np.minimum(left, right) * count + np.maximum(left, right))
        waiting += len(left)
        if waiting > MAX_WAITING:
            pairs, waiting = [_each_once(np.concatenate(pairs))], 0
    all_ = _each_once(np.concatenate(pairs)) if pairs else np.zeros(0, np.int64)
    low, high = np.divmod(all_, max(count, 1))
    return np.bincount(low, minlength=count) + np.bincount(high, minlength=count)


def _each_once(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sorted; by sorting alone, which is several times as fast as NumPy's `unique`."""
    numbers.sort()
    first = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers[first]
