"""The steps of a range query on arrays: many queries at once (thesis Fig. 4.2 and 4.3).

A query is on its way as a *visit*: a node, and the range of nodes that it is to take care of,
half-open, by their numbers in the order of keys.  Many visits are one *frontier*.  A step makes the
next frontier by a few array operations for each level: what `cooperation.skipgraph.forwarding`
decides node by node.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from isthmus.sim.bulk.graph import SkipGraph
from isthmus.sim.bulk.levels import Ints

__all__ = ["STEPS", "Counts", "Sent", "StrategyName", "Visits", "approach", "joined", "together"]

StrategyName = Literal["mrf", "sfb"]
Counts = npt.NDArray[np.int64]


class Visits(NamedTuple):
    """A frontier; all arrays are of the same length."""

    node: Ints
    low: Ints
    high: Ints
    weight: Counts
    """How many queries it stands for."""
    hops: Counts | None = None
    """The hops of all of them together, where visits of different hops are joined."""
    query: Ints | None = None
    """Whose it is, where visits are not joined at all."""

    def take(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Visits:
        """Those that are flagged, or have these places."""
        places = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return Visits(
            self.node.take(places),
            self.low.take(places),
            self.high.take(places),
            self.weight.take(places),
            None if self.hops is None else self.hops.take(places),
            None if self.query is None else self.query.take(places),
        )

    def part(self, first: int, end: int) -> Visits:
        """Those in one piece."""
        return Visits(
            self.node[first:end],
            self.low[first:end],
            self.high[first:end],
            self.weight[first:end],
            None if self.hops is None else self.hops[first:end],
            None if self.query is None else self.query[first:end],
        )


Sent = tuple[Ints, Visits]
"""Who sends, and what."""


def together(*parts: Sent) -> Sent:
    if len(parts) == 1:
        return parts[0]
    hops = [visits.hops for _, visits in parts if visits.hops is not None]
    queries = [visits.query for _, visits in parts if visits.query is not None]
    return np.concatenate([source for source, _ in parts]), Visits(
        np.concatenate([visits.node for _, visits in parts]),
        np.concatenate([visits.low for _, visits in parts]),
        np.concatenate([visits.high for _, visits in parts]),
        np.concatenate([visits.weight for _, visits in parts]),
        np.concatenate(hops) if hops else None,
        np.concatenate(queries) if queries else None,
    )


def joined(visits: Visits, size: int) -> Visits:
    """Each node and range once."""
    if len(visits.node) < 2:
        return visits
    reach = int(np.abs(visits.node - visits.low).max()) + 1
    span = int((visits.high - visits.low).max()) + 1
    if size * 2 * reach * span >= 1 << 63:
        return visits  # too large to be told apart by one number; joining is not needed
    number = visits.node.astype(np.int64) * (2 * reach)
    number += visits.node - visits.low + reach
    number *= span
    number += visits.high - visits.low
    sorting = np.argsort(number)
    number = number.take(sorting)
    starts = np.flatnonzero(np.concatenate((np.ones(1, bool), number[1:] != number[:-1])))
    if len(starts) == len(number):
        return visits
    hops = visits.hops
    return visits.take(sorting.take(starts))._replace(
        weight=np.add.reduceat(visits.weight.take(sorting), starts),
        hops=None if hops is None else np.add.reduceat(hops.take(sorting), starts),
    )


def approach(graph: SkipGraph, visits: Visits) -> Sent:
    """One hop nearer to the range: to the farthest neighbor that is not beyond it.

    Where nobody is inside, it ends beside the range: at the rendezvous point, if it is subscribers
    that are missing and publishers that do not know it yet (§3.2.1).
    """
    from_right = visits.take((visits.node >= visits.high) & (visits.node > visits.low))
    from_left = visits.take((visits.node < visits.low) & (visits.node < visits.high - 1))
    left = farthest(graph.left, from_right.node, from_right.low, -1)
    right = farthest(graph.right, from_left.node, from_left.high - 1, 1)
    return together(
        (from_right.node, from_right._replace(node=left)),
        (from_left.node, from_left._replace(node=right)),
    )


def farthest(rows: tuple[Ints, ...], node: Ints, bound: Ints, sign: int) -> Ints:
    """The neighbor of the highest level up to `bound`, itself included; the one beside at least.

    Neighbors of higher levels are farther away, so the first one beyond ends it.
    """
    best = node + np.int32(sign)
    active = np.flatnonzero(best != bound)
    for row in rows:
        if not len(active):
            break
        reached, limit = row.take(node.take(active)), bound.take(active)
        good = np.flatnonzero(reached >= limit if sign < 0 else reached <= limit)
        active = active.take(good)
        best[active] = reached.take(good)
    return best


def mrf(graph: SkipGraph, visits: Visits) -> Sent:
    """Fig. 4.3: the range falls apart at the node itself."""
    below = visits.take(visits.node > visits.low)
    above = visits.take(visits.node < visits.high - 1)
    left = farthest(graph.left, below.node, below.low, -1)
    right = farthest(graph.right, above.node, above.high - 1, 1)
    return together(
        (below.node, below._replace(node=left, high=below.node)),
        (above.node, above._replace(node=right, low=above.node + np.int32(1))),
    )


def sfb(graph: SkipGraph, visits: Visits) -> Sent:
    """Fig. 4.2: the range falls apart at the neighbors.  Here from the nearest to the farthest."""
    parts: list[Sent] = []
    rest = visits.take(visits.node < visits.high - 1)
    near = rest.node + np.int32(1)
    for row in graph.right:
        if not len(near):
            break
        far = row[rest.node]
        ends = np.minimum(far, rest.high)
        split = np.flatnonzero(ends != near)
        some, there = rest.take(split), near.take(split)
        parts.append((some.node, some._replace(node=there, low=there, high=ends.take(split))))
        on = np.flatnonzero(far < rest.high)
        rest, near = rest.take(on), far.take(on)
    parts.append((rest.node, rest._replace(node=near, low=near)))
    rest = visits.take(visits.node > visits.low)
    near = rest.node - np.int32(1)
    for row in graph.left:
        if not len(near):
            break
        far = row[rest.node]
        ends = np.maximum(far, rest.low - np.int32(1))
        split = np.flatnonzero(ends != near)
        some, there = rest.take(split), near.take(split)
        first, end = ends.take(split) + np.int32(1), there + np.int32(1)
        parts.append((some.node, some._replace(node=there, low=first, high=end)))
        on = np.flatnonzero(far >= rest.low)
        rest, near = rest.take(on), far.take(on)
    parts.append((rest.node, rest._replace(node=near, high=near + np.int32(1))))
    return together(*parts)


STEPS: Final = {"mrf": mrf, "sfb": sfb}
"""What becomes of visits inside their ranges."""
