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

__all__ = ["Ints", "Level", "distinct_neighbors", "each_once", "level_lists", "table_sizes"]

MAX_WAITING: Final = 1 << 25
"""Pairs of neighbors that are kept before repetitions are taken out."""

Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


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
    count: Bytes
    """Of these nodes: to be added to; see `level_lists`."""

    def pairs(self) -> tuple[Ints, Ints]:
        """Neighbors: those on the left, those on the right."""
        left = np.flatnonzero(self.follows[:-1])
        return self.order.take(left), self.order.take(left + 1)


def level_lists(
    vectors: Vectors,
    base: int = 2,
    *,
    blocks: Ints | None = None,
    owners: Ints | None = None,
    counts: Bytes | None = None,
) -> Iterator[Level]:
    """From level 0 up, until everybody is alone; who is, comes for the last time.

    `owners` are the physical nodes of virtual nodes: a list of one owner's alone counts as one
    node.  Into `counts`, in the order of keys, goes what has been added to `Level.count` of each
    node: numbers that go along with the nodes cost much less than looking up where they stand.
    """
    if len(vectors) >= 1 << 31:
        raise ValueError(f"{len(vectors):,} nodes; there can be {(1 << 31) - 1:,}")
    if not len(vectors):
        return
    order = np.arange(len(vectors), dtype=np.int32)
    count = np.zeros(0 if counts is None else len(vectors), np.uint8)
    place: int = 1
    for number in range(digits_of(base) + 1):
        if number:
            order, vectors, count = _partitioned(order, vectors, count, place // base, base)
        follows = _followed(order, vectors, place, blocks)
        yield Level(number, order, vectors, follows, count)
        kept = _accompanied(order, follows, owners)
        if not kept.all():
            if counts is not None:
                alone = np.flatnonzero(~kept)
                counts[order.take(alone)] = count.take(alone)
            chosen = np.flatnonzero(kept)
            order, vectors, count = order.take(chosen), vectors.take(chosen), _taken(count, chosen)
            if not len(order):
                return
        place *= base
    if counts is not None:
        counts[order] = count


def _partitioned(
    order: Ints, vectors: Vectors, count: Bytes, place: int, base: int
) -> tuple[Ints, Vectors, Bytes]:
    """By the digit at `place`, stably.

    With numbers of places; flags as an index take four times as long, as nobody can guess them.
    """
    if base == 2:
        high = (vectors & np.uint64(place)) != 0
        sorting = np.concatenate((np.flatnonzero(~high), np.flatnonzero(high)))
    else:
        digits = (vectors // np.uint64(place) % np.uint64(base)).astype(np.uint8)
        sorting = np.argsort(digits, kind="stable")
    return order.take(sorting), vectors.take(sorting), _taken(count, sorting)


def _taken(count: Bytes, chosen: npt.NDArray[np.int64]) -> Bytes:
    """Empty if nothing is counted."""
    return count.take(chosen) if len(count) else count


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


def table_sizes(vectors: Vectors, base: int = 2, *, owners: Ints | None = None) -> Bytes:
    """How many entries the routing table of each virtual node has (§3.4.4), own nodes left out."""
    found = np.zeros(len(vectors), np.uint8)
    for level in level_lists(vectors, base, owners=owners, counts=found):
        foreign = level.follows[:-1]
        if owners is not None:
            of_order = owners[level.order]
            foreign = foreign & (of_order[1:] != of_order[:-1])
        level.count[:-1] += foreign
        level.count[1:] += foreign
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
            pairs, waiting = [each_once(np.concatenate(pairs))], 0
    all_ = each_once(np.concatenate(pairs)) if pairs else np.zeros(0, np.int64)
    low, high = np.divmod(all_, max(count, 1))
    return np.bincount(low, minlength=count) + np.bincount(high, minlength=count)


def each_once(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sorted; by sorting alone, which is several times as fast as NumPy's `unique`."""
    numbers.sort()
    first = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers[first]
