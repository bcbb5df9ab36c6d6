"""Routing by numeric id on a Skip Graph: a DHT (SkipNet; thesis §3.4).

The membership vector of a node is its numeric id.  A message for an id goes along the list of level
0 until it comes to a node whose first digit is that of the id, from there along that node's list of
level 1 until two digits are right, and so on.  Where nobody in the list has one digit more, the
node of that list whose id is nearest, as a number with the first digit in front, is the *root*; a
first message finds that out by going round once, and later ones stop there.

As in SkipNet the lists are rings, and the way is always to the right.  Where a message goes from a
node follows from that node and the id alone: along the list of as many digits as the node has
right.  So all ways to an id are one tree, and a way is as long as its node is deep in it.

All ways go up together, level by level, with the lists as `levels` makes them; two levels are in
memory.  Ways of one group (to the same id) that have met are one from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from isthmus.sim.bulk.levels import Ints, Level, level_lists
from isthmus.sim.bulk.vectors import Vectors, read_backwards

__all__ = ["Ways", "numeric_ways"]

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ways:
    """Of starts to the ids of their groups."""

    hops: Ints
    """Of each start."""
    roots: Ints
    """Of each group; -1 where it has no start."""
    edges: Longs
    """Of each group: how many links all its ways have together."""
    children: Longs
    """Of each node: from how many nodes the ways come, over all groups, each as often as the weight
    of its group says; empty where that was not asked for."""


class _Rings:
    """The lists of one level, by number; empty in a level that is never reached."""

    def __init__(self, level: Level, base: int, size: int) -> None:
        self.order = level.order
        starts = np.flatnonzero(~np.concatenate((np.zeros(1, bool), level.follows[:-1])))
        self.starts = starts
        self.lengths = np.diff(np.append(starts, len(level.order)))
        self._place = base**level.number
        self._prefixes = self._first_digits(level.vectors[starts])
        self._size = size
        self._sorted = np.repeat(np.arange(len(starts), dtype=np.int64) * size, self.lengths)
        self._sorted += level.order
        self.vectors = level.vectors

    def _first_digits(self, vectors: Vectors) -> Vectors:
        return vectors if self._place >= 1 << 64 else vectors % np.uint64(self._place)

    def of(self, ids: Vectors) -> Longs:
        """The list of everybody whose first digits are right; -1: nobody."""
        wanted = self._first_digits(ids)
        found = np.searchsorted(self._prefixes, wanted)
        found[found == len(self._prefixes)] = 0
        return np.where(self._prefixes[found] == wanted, found, -1)

    def index(self, ring: Longs, node: Ints) -> Longs:
        """Where the first of a list stands that is `node` or to the right of it."""
        found = np.searchsorted(self._sorted, ring * self._size + node)
        return np.where(found == self.starts[ring] + self.lengths[ring], self.starts[ring], found)


def numeric_ways(
    vectors: Vectors,
    starts: Ints,
    groups: Ints,
    ids: Vectors,
    base: int = 2,
    *,
    weight: Longs | None = None,
) -> Ways:
    """From each of `starts` to the id of its group; `weight` of the groups, to count children."""
    size = len(vectors)
    hops = np.zeros(len(starts), np.int32)
    roots = np.full(len(ids), -1, np.int32)
    edges = np.zeros(len(ids), np.int64)
    children = np.zeros(size if weight is not None else 0, np.int64)
    # Ways that have met are one: `of_start` says which.
    group, node, of_start = _met(groups, starts, size)
    going = np.arange(len(starts))  # those whose ways have not come to an end

    def walk(rings: _Rings, which: Longs, ring: Longs, to: Ints) -> None:
        """`which` of the ways go along their rings to nodes of the same rings."""
        if not len(which):
            return
        at, end = rings.index(ring, node[which]), rings.index(ring, to)
        steps = np.zeros(len(node), np.int64)
        steps[which] = (end - at) % rings.lengths[ring]
        hops[going] += steps[of_start].astype(np.int32)
        # Those that go to the same node come from the same side: the longest one has all links.
        number = group[which].astype(np.int64) * size + to
        sorting = np.lexsort((steps[which], number))
        last = np.append(number[sorting][1:] != number[sorting][:-1], True)
        longest = sorting[last]
        length = steps[which][longest]
        np.add.at(edges, group[which][longest], length)
        if weight is not None:
            within = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
            first, around = rings.starts[ring[longest]], rings.lengths[ring[longest]]
            index = np.repeat(end[longest] - first, length) - within
            index = np.repeat(first, length) + index % np.repeat(around, length)
            heavy = np.repeat(weight[group[which][longest]], length)
            np.add.at(children, rings.order[index], heavy)

    def finish(rings: _Rings, which: Longs, ring: Longs) -> None:
        """Nobody has one digit more: to the node whose id is nearest."""
        if not len(which):
            return
        some, first = np.unique(group[which], return_index=True)
        roots[some] = _nearest(rings, ring[first], ids[some], base)
        walk(rings, which, ring, roots[group[which]])

    rings_of_levels = (_Rings(level, base, size) for level in level_lists(vectors, base))
    for rings, following in pairwise(chain(rings_of_levels, (None,))):
        if not len(node):
            break
        assert rings is not None
        ring = rings.of(ids[group])
        above = np.full(len(node), -1, np.int64) if following is None else following.of(ids[group])
        alone = rings.lengths[ring] == 1
        ending = np.flatnonzero((above < 0) | alone)
        finish(rings, ending, ring[ending])
        on = np.flatnonzero((above >= 0) & ~alone)
        if following is None or not len(on):
            break
        to = following.order[following.index(above[on], node[on])]
        walk(rings, on, ring[on], to)
        # What has come to its end is left out, what has met goes on as one.
        renumbered = np.full(len(node), -1, np.int64)
        renumbered[on] = np.arange(len(on))
        still = renumbered[of_start] >= 0
        going, of_start = going[still], renumbered[of_start[still]]
        group, node, merged = _met(group[on], to, size)
        of_start = merged[of_start]
    return Ways(hops, roots, edges, children)


def _nearest(rings: _Rings, ring: Longs, ids: Vectors, base: int) -> Ints:
    """In each of the rings the node whose id is nearest to one, the leftmost of equals."""
    lengths = rings.lengths[ring]
    begin = lengths.cumsum() - lengths
    of_ring = np.repeat(np.arange(len(ring)), lengths)
    member = np.arange(len(of_ring)) - begin[of_ring] + rings.starts[ring][of_ring]
    number = read_backwards(rings.vectors[member], base)
    own = read_backwards(ids, base)[of_ring]
    distance = np.where(number > own, number - own, own - number)
    least = np.flatnonzero(distance == np.minimum.reduceat(distance, begin)[of_ring])
    _, leftmost = np.unique(of_ring[least], return_index=True)
    found: Ints = rings.order[member[least[leftmost]]]
    return found


def _met(group: Ints, node: Ints, size: int) -> tuple[Ints, Ints, Longs]:
    """Each node of a group once; and which of them each was."""
    number, inverse = np.unique(group.astype(np.int64) * size + node, return_inverse=True)
    return (number // size).astype(np.int32), (number % size).astype(np.int32), inverse
