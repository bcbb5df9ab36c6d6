"""Range queries on arrays, hop by hop: who gets them, after how many hops, who forwards them.

All visits of one hop are one frontier (`visits`).  A test compares it, hop by hop, with nodes that
have nothing but their tables.

Where nothing but numbers of hops is asked for, two things save nine visits of ten.  Queries of
several publishers that have come to the same node with the same range after equally many hops go on
in the same way: they are one visit from then on, which counts for several.  And how many hops a
range of three nodes or fewer still takes (MRF; of two, SFB) is known from where in it the query
comes in: such visits are counted and not made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from isthmus.sim.bulk.graph import SkipGraph
from isthmus.sim.bulk.levels import Ints
from isthmus.sim.bulk.visits import (
    STEPS,
    Counts,
    StrategyName,
    Visits,
    approach,
    joined,
    together,
)

__all__ = ["Spread", "Trace", "spread"]

MAX_HOPS: Final = 100_000
"""More than any graph takes: each hop of an approach and of a gap makes it smaller."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Who got which query after how many hops, one row each."""

    query: Ints
    node: Ints
    hops: Ints


@dataclass(slots=True)
class Spread:
    """What all queries did together."""

    at_hops: Counts
    """At index h: how many deliveries were h hops away."""
    messages: int = 0
    forwards: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of each node: messages it sent."""
    trace: Trace | None = None

    @property
    def deliveries(self) -> int:
        return int(self.at_hops.sum())

    @property
    def hops(self) -> int:
        """Of all deliveries together."""
        return int((self.at_hops * np.arange(len(self.at_hops))).sum())

    @property
    def mean_hops(self) -> float:
        return self.hops / self.deliveries if self.deliveries else float("nan")


def spread(
    graph: SkipGraph,
    starts: Ints,
    low: Ints,
    high: Ints,
    strategy: StrategyName,
    *,
    weight: Counts | None = None,
    forwards: bool = False,
    trace: bool = False,
) -> Spread:
    """One query from each of `starts`, for the nodes from `low` to before `high`.

    `weight` is how often each is sent.  `trace` keeps every delivery, and joins nothing.
    """
    ones = np.ones(len(starts), np.int64) if weight is None else weight
    query = np.arange(len(starts), dtype=np.int32) if trace else None
    visits = Visits(starts, low, high, ones, query=query)
    step = STEPS[strategy]
    counting = not (trace or forwards)
    tally = _Tally(strategy)
    found = Spread(np.zeros(0, np.int64))
    sent = np.zeros(graph.size if forwards else 0, np.int64)
    rows: list[tuple[Ints, Ints]] = []
    hops = 0
    while len(visits.node):
        if hops > MAX_HOPS:
            raise RuntimeError(f"a query is still on its way after {MAX_HOPS:,} hops")
        if not trace:
            visits = joined(visits, graph.size)
        inside = (visits.node >= visits.low) & (visits.node < visits.high)
        if inside.all():
            delivered, (source, following) = visits, step(graph, visits)
        else:
            delivered = visits.take(inside)
            source, following = together(
                step(graph, delivered), approach(graph, visits.take(~inside))
            )
        tally.add(hops, int(delivered.weight.sum()))
        if delivered.query is not None:
            rows.append((delivered.query, delivered.node))
        found.messages += int(following.weight.sum())
        if forwards:
            np.add.at(sent, source, following.weight)
        hops += 1
        visits = following
        if counting:
            visits, more = tally.without_small(hops, following)
            found.messages += more
    found.at_hops = np.array(tally.at_hops, np.int64)
    found.forwards = sent
    if trace:
        found.trace = Trace(
            np.concatenate([query for query, _ in rows]),
            np.concatenate([node for _, node in rows]),
            np.repeat(np.arange(len(rows), dtype=np.int32), [len(node) for _, node in rows]),
        )
    return found


class _Tally:
    """Deliveries by hops."""

    def __init__(self, strategy: StrategyName) -> None:
        self.at_hops: list[int] = []
        self._closed = 3 if strategy == "mrf" else 2

    def add(self, hops: int, deliveries: int) -> None:
        if deliveries:
            self.at_hops += [0] * (hops + 1 - len(self.at_hops))
            self.at_hops[hops] += deliveries

    def without_small(self, hops: int, visits: Visits) -> tuple[Visits, int]:
        """Count the ranges that are as good as done, with the messages they still take."""
        size = visits.high - visits.low
        small = (size <= self._closed) & (visits.node >= visits.low) & (visits.node < visits.high)
        if not small.any():
            return visits, 0
        some, of_size = visits.take(small), size[small]
        one, two, three = (int(some.weight[of_size == count].sum()) for count in (1, 2, 3))
        in_the_middle = (of_size == 3) & (some.node == some.low + 1)
        middle = int(some.weight[in_the_middle].sum())
        self.add(hops, one + two + three)
        self.add(hops + 1, two + three + middle)
        self.add(hops + 2, three - middle)
        return visits.take(~small), two + 2 * three
