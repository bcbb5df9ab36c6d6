"""How many hops queries take together: what a mean needs, and a sixth of the visits.

`traversal` joins visits that are equal after equally many hops; here all equal ones are joined,
which only have the sum of their hops in common then.  So no visit may go on before all that it is
to be joined with have come.  A range only becomes smaller on its way: visits wait in bins by the
size of their ranges, and the bin of the largest goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from isthmus.sim.bulk.graph import SkipGraph
from isthmus.sim.bulk.levels import Ints
from isthmus.sim.bulk.visits import (
    STEPS,
    StrategyName,
    Visits,
    approach,
    joined,
    together,
)

__all__ = ["Totals", "total_hops"]

BIN: Final = 1.35
"""Sizes of one bin differ by this factor at most; the small ones have a bin each."""
CLOSED: Final = {"mrf": 3, "sfb": 2}
"""Ranges of so many nodes are counted and not visited."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all queries together."""

    deliveries: int
    hops: int
    """From the start of its query to each delivery."""
    messages: int

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.deliveries + other.deliveries,
            self.hops + other.hops,
            self.messages + other.messages,
        )

    @property
    def mean_hops(self) -> float:
        return self.hops / self.deliveries if self.deliveries else float("nan")


def total_hops(
    graph: SkipGraph, starts: Ints, low: Ints, high: Ints, strategy: StrategyName
) -> Totals:
    """One query from each of `starts`, for the nodes from `low` to before `high`."""
    ones = np.ones(len(starts), np.int64)
    visits = Visits(starts, low, high, ones, hops=np.zeros(len(starts), np.int64))
    bins = _Bins(int((high - low).max(initial=0)), CLOSED[strategy])
    messages = 0
    while len(visits.node):  # from outside
        visits = joined(visits, graph.size)
        inside = (visits.node >= visits.low) & (visits.node < visits.high)
        bins.add(visits.take(inside))
        _, visits = approach(graph, visits.take(~inside))
        messages += int(visits.weight.sum())
        visits = _one_hop_more(visits)
    step = STEPS[strategy]
    while (waiting := bins.largest()) is not None:
        visits = joined(waiting, graph.size)
        bins.count(visits)
        _, following = step(graph, visits)
        messages += int(following.weight.sum())
        bins.add(_one_hop_more(following))
    return Totals(bins.deliveries, bins.hops, messages + bins.messages)


def _one_hop_more(visits: Visits) -> Visits:
    assert visits.hops is not None
    return visits._replace(hops=visits.hops + visits.weight)


class _Bins:
    """Visits that wait, by the size of their ranges."""

    def __init__(self, largest: int, closed: int) -> None:
        self._closed = closed
        edges = [closed + 1]
        while edges[-1] <= largest:
            edges.append(max(edges[-1] + 1, int(edges[-1] * BIN)))
        largest = max(largest, closed)
        self._bin = np.searchsorted(edges, np.arange(largest + 1), side="right").astype(np.int16)
        self._waiting: list[list[Visits]] = [[] for _ in range(len(edges) + 1)]
        self.deliveries = 0
        self.hops = 0
        self.messages = 0
        """Of ranges that are counted and not visited."""

    def count(self, visits: Visits) -> None:
        """The deliveries of the visits themselves."""
        assert visits.hops is not None
        self.deliveries += int(visits.weight.sum())
        self.hops += int(visits.hops.sum())

    def add(self, visits: Visits) -> None:
        if not len(visits.node):
            return
        of_visit = self._bin[visits.high - visits.low]
        sorting = np.argsort(of_visit, kind="stable")
        bounds = np.searchsorted(of_visit[sorting], np.arange(len(self._waiting) + 1))
        visits = visits.take(sorting)
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            some = visits.part(int(bounds[number]), int(bounds[number + 1]))
            if number:
                self._waiting[number].append(some)
            else:
                self._close(some)

    def _close(self, visits: Visits) -> None:
        """Ranges of three nodes at most: where the visit is, tells the rest."""
        assert visits.hops is not None
        size = visits.high - visits.low
        weight, hops = visits.weight, visits.hops
        two, three = size == 2, size == 3
        middle = three & (visits.node == visits.low + 1)
        w2, w3 = int(weight[two].sum()), int(weight[three].sum())
        self.deliveries += int((weight * size).sum())
        self.hops += int((hops * size).sum()) + w2 + 3 * w3 - int(weight[middle].sum())
        self.messages += w2 + 2 * w3

    def largest(self) -> Visits | None:
        """All visits of the bin with the largest ranges; None if nothing waits."""
        while self._waiting and not self._waiting[-1]:
            self._waiting.pop()
        if len(self._waiting) <= 1:
            return None
        parts = self._waiting[-1]
        self._waiting[-1] = []
        return together(*((visits.node, visits) for visits in parts))[1]
