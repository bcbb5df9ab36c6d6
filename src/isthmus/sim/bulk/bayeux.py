"""Bayeux on a Skip-Graph DHT: paths forward, from the root to each subscriber (thesis §3.1.1).

A JOIN goes to the root by numeric id and leaves nothing behind.  The root answers with a TREE
message, which goes to the subscriber by *its* numeric id, and every node on that way notes the
subscriber.  Messages take the same ways; like Scribe's they come to the root in one hop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.sim.bulk.levels import Ints
from isthmus.sim.bulk.numeric import Longs, numeric_ways
from isthmus.sim.bulk.vectors import Vectors

__all__ = ["BayeuxPaths", "bayeux_paths"]


@dataclass(frozen=True, slots=True)
class BayeuxPaths:
    depth: Ints
    """Of each subscriber: hops from its root."""
    roots: Ints
    """Of each topic."""
    entries: Longs
    """Of each subscriber: nodes that have noted it, itself left out."""


def bayeux_paths(
    vectors: Vectors, subscribers: Ints, topics: Ints, ids: Vectors, base: int = 2
) -> BayeuxPaths:
    """`topics` are those of `subscribers`, `ids` those of all topics; see `scribe`.

    No two nodes have the same vector, or the way may end at a namesake.
    """
    everybody = np.arange(len(ids), dtype=np.int32)
    nobody = np.zeros(len(ids), np.int32)
    roots = numeric_ways(vectors, nobody, everybody, ids, base).roots
    each = np.arange(len(subscribers), dtype=np.int32)
    ways = numeric_ways(vectors, roots[topics], each, vectors[subscribers], base)
    return BayeuxPaths(ways.hops, roots, ways.hops.astype(np.int64))
