"""Which topics to assign intensively, which extensively (thesis §4.2).

Brokers stand in one place; subscribers of a topic can be put on as few of them as possible
(*intensive*: short ways between brokers, much to do at each) or on as many as possible
(*extensive*).  How long a message takes until all subscribers have it:

    T_i = t_c · ⌈log₂(⌈s / (S/m)⌉ + 1)⌉ + t_p · S/m    if s ≥ S/m,  else  t_c + t_p · s
    T_e = t_c · ⌈log₂ m⌉ + t_p · s/m                   if s ≥ m,    else  t_c · ⌈log₂ s⌉ + t_p

with m brokers, S subscribers in all, s of the topic, t_c between two brokers, t_p at a broker for
each subscriber.  T_d = T_i - T_e; the thesis's equations 4.1 to 4.4 are T_d without the rounding
(`approximate_difference`).  Where T_d > 0 the extensive assignment is faster; elsewhere the
intensive one is taken, which needs less of everything.

The difference has one peak where s ≥ S/m and s ≥ m: `peak`.

`simulated` does without any of these formulas: brokers in a Skip Graph with ideal vectors, MRF
from the publisher's broker, each broker serving its subscribers one after the other.  The formulas
count the publisher's broker apart from those of the subscribers for T_i, and among them for T_e;
so does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Advice",
    "Place",
    "Way",
    "advice",
    "approximate_difference",
    "extensive_ms",
    "intensive_ms",
    "peak",
    "simulated_ms",
]

Way = Literal["intensive", "extensive"]


@dataclass(frozen=True, slots=True)
class Place:
    """Table 4.1, but for the size of a topic."""

    brokers: int
    """m"""
    subscribers: int
    """S"""
    communication_ms: float
    """t_c"""
    processing_ms: float
    """t_p"""

    def __post_init__(self) -> None:
        if self.brokers < 1 or self.subscribers < 1:
            raise ValueError(f"{self.brokers} brokers and {self.subscribers} subscribers: 1 each")
        for name in ("communication_ms", "processing_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: {value} is no time above 0")

    @property
    def share(self) -> float:
        """S/m: what each broker has."""
        return self.subscribers / self.brokers


def intensive_ms(place: Place, size: int) -> float:
    """T_i of a topic with `size` subscribers."""
    _check(place, size)
    if size * place.brokers < place.subscribers:
        return place.communication_ms + place.processing_ms * size
    brokers = -(-size * place.brokers // place.subscribers)
    return place.communication_ms * brokers.bit_length() + place.processing_ms * place.share


def extensive_ms(place: Place, size: int) -> float:
    """T_e."""
    _check(place, size)
    if size >= place.brokers:
        hops, each = (place.brokers - 1).bit_length(), size / place.brokers
    else:
        hops, each = (size - 1).bit_length(), 1.0
    return place.communication_ms * hops + place.processing_ms * each


def approximate_difference(place: Place, size: float) -> float:
    """T_d by equations 4.1 to 4.4, which leave out the rounding."""
    m, total = place.brokers, place.subscribers
    t_c, t_p = place.communication_ms, place.processing_ms
    if size < total / m:
        if size < m:  # 4.1
            return t_c * (1 - math.log2(size)) + t_p * (size - 1)
        return t_c * (1 - math.log2(m)) + t_p * size * ((m - 1) / m)  # 4.2
    if size < m:  # 4.3
        return t_c * math.log2((m * size + total) / (size * total)) + t_p * (total / m - 1)
    return t_c * math.log2(size / total + 1 / m) + t_p * ((total - size) / m)  # 4.4


def peak(place: Place) -> float | None:
    """Where equation 4.4 is largest; None if that is not where it holds."""
    size = place.brokers * place.communication_ms / (place.processing_ms * math.log(2))
    size -= place.share
    return size if max(place.share, place.brokers) <= size <= place.subscribers else None


def _check(place: Place, size: int) -> None:
    if not 1 <= size <= place.subscribers:
        raise ValueError(f"a topic of {size:,} subscribers; there are 1 to {place.subscribers:,}")


@dataclass(frozen=True, slots=True)
class Advice:
    """For one topic."""

    topic: str
    subscribers: int
    intensive_ms: float
    extensive_ms: float
    approximate_ms: float
    """T_d by equations 4.1 to 4.4."""

    @property
    def difference_ms(self) -> float:
        """T_d."""
        return self.intensive_ms - self.extensive_ms

    @property
    def way(self) -> Way:
        return "extensive" if self.difference_ms > 0 else "intensive"


def advice(place: Place, topics: Mapping[str, int]) -> list[Advice]:
    """For each topic, in their order."""
    return [
        Advice(
            topic,
            size,
            intensive_ms(place, size),
            extensive_ms(place, size),
            approximate_difference(place, size),
        )
        for topic, size in topics.items()
    ]


# ---- the simulation ----------------------------------------------------------------------


def simulated_ms(place: Place, size: int, way: Way) -> float:
    """How long it takes in brokers that do it; needs NumPy.

    Equal to T_i or T_e where nothing has to be rounded, and never longer by more than the part of a
    subscriber that a broker cannot have.
    """
    import numpy as np

    from isthmus.sim.bulk.graph import skip_graph
    from isthmus.sim.bulk.traversal import spread
    from isthmus.sim.bulk.vectors import ideal_vectors

    _check(place, size)
    at_brokers = np.array(_assigned(place, size, way), np.int64)
    graph = skip_graph(ideal_vectors(0, len(at_brokers)))
    first, end = np.zeros(1, np.int32), np.full(1, len(at_brokers), np.int32)
    found = spread(graph, first, first, end, "mrf", trace=True)
    assert found.trace is not None
    arrived_ms = found.trace.hops * place.communication_ms
    served_ms = at_brokers[found.trace.node] * place.processing_ms
    return float((arrived_ms + served_ms)[at_brokers[found.trace.node] > 0].max())


def _assigned(place: Place, size: int, way: Way) -> list[int]:
    """The topic's subscribers at each broker that takes part; the publisher's comes first."""
    if way == "extensive":
        brokers = min(size, place.brokers)
        each, more = divmod(size, brokers)
        return [each + (number < more) for number in range(brokers)]
    brokers = max(1, -(-size * place.brokers // place.subscribers))
    each, more = divmod(size, brokers)
    return [0, *(each + (number < more) for number in range(brokers))]
