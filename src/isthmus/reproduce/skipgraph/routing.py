"""MRF and SFB on ideal vectors (thesis §4.1.3), and client assignment (§4.2): chapter 4's figures.

The first node of the range gets the query; all others are in the range as well.  Nothing is drawn.

Times of client assignment are in nanoseconds here: `formula` by T_i and T_e, `simulated` by brokers
that do it, `approximate` the difference by equations 4.1 to 4.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np

from isthmus.reproduce.skipgraph.points import Point, of_point
from isthmus.sim.bulk.graph import skip_graph
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.vectors import ideal_vectors
from isthmus.simulate.assignment import (
    Place,
    Way,
    approximate_difference,
    extensive_ms,
    intensive_ms,
    simulated_ms,
)
from isthmus.simulate.tallies import Counted, Tally, amount

__all__ = ["assignment", "depths", "sizes"]

COMMUNICATION_MS: Final = 1.0
PROCESSING_MS: Final = 0.01
PER_DECADE: Final = 8
"""Sizes of topics that are looked at, between 1 and S."""


def depths(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """How many nodes are how deep in the multicast tree of `nodes` nodes."""
    for point in points:
        graph = skip_graph(ideal_vectors(0, point.nodes))
        first, end = np.zeros(1, np.int32), np.full(1, point.nodes, np.int32)
        strategy: Literal["mrf", "sfb"] = "sfb" if point.method == "sfb" else "mrf"
        found = spread(graph, first, first, end, strategy)
        for hops, nodes in enumerate(found.at_hops.tolist()):
            if nodes:
                yield of_point(point, part, Tally("hops", None, hops, nodes, hops * nodes))


def sizes(subscribers: int) -> list[int]:
    """Of topics, evenly on a logarithmic axis."""
    decades = len(str(subscribers))
    steps = range(decades * PER_DECADE + 1)
    found = {round(10 ** (step / PER_DECADE)) for step in steps}
    return sorted({size for size in found if size < subscribers} | {subscribers})


def assignment(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """How long a message takes for topics of all sizes; the point's subscribers are S."""
    for point in points:
        place = Place(point.nodes, point.subscribers, COMMUNICATION_MS, PROCESSING_MS)
        for size in sizes(point.subscribers):
            if point.method == "approximate":
                times_ms = {"approximate": approximate_difference(place, size)}
            else:
                way: Way = "extensive" if point.method == "extensive" else "intensive"
                formula = extensive_ms if way == "extensive" else intensive_ms
                times_ms = {
                    "formula": formula(place, size),
                    "simulated": simulated_ms(place, size, way),
                }
            for what, time_ms in times_ms.items():
                yield of_point(point, part, amount(what, 1, round(time_ms * 1e6), given=size))
