"""CAN-MC: the members of a topic are a small CAN of their own, which is flooded (thesis §3.1.1).

A CAN divides a torus of d dimensions into zones, one for each node.  Who joins picks a point; the
zone around it is halved, along one dimension after the other, and the newcomer takes one half.

Flooding (`flood`): a publisher sends to all its neighbors.  Who gets a message along dimension i
sends it on along the dimensions below i, both ways, and along i away from where it came; not where
that would lead more than half way round the torus from the publisher.  Repetitions are dropped.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Can", "Flood", "can_of", "flood"]

SIDE: Final = 1 << 40
"""Of the torus: zones can be halved 40 times along each dimension."""
MAX_MEMBERS: Final = 20_000
"""Neighbors are found by comparing everybody with everybody."""

Way = tuple[int, int]
"""A dimension, and -1 or 1."""


@dataclass(frozen=True, slots=True)
class Can:
    """Zones, and who borders on whom."""

    low: npt.NDArray[np.int64]
    """Corner of each node's zone, one row each."""
    high: npt.NDArray[np.int64]
    neighbors: tuple[dict[Way, list[int]], ...]

    @property
    def dimensions(self) -> int:
        return int(self.low.shape[1])

    @property
    def entries(self) -> int:
        """Of all routing tables: each neighbor once."""
        return sum(
            len({other for beside in ways.values() for other in beside}) for ways in self.neighbors
        )


@dataclass(frozen=True, slots=True)
class Flood:
    """What became of one message."""

    hops: npt.NDArray[np.int32]
    """Of each member until it came first; -1: never."""
    messages: int


def can_of(members: int, dimensions: int, rng: random.Random) -> Can:
    """Of members that join one after the other at random points."""
    if not 1 <= members <= MAX_MEMBERS or not 1 <= dimensions <= 16:
        raise ValueError(f"{members} members in {dimensions} dimensions: not 1 to {MAX_MEMBERS}")
    low = np.zeros((members, dimensions), np.int64)
    high = np.full((members, dimensions), SIDE, np.int64)
    halvings = [0] * members
    for newcomer in range(1, members):
        point = [rng.randrange(SIDE) for _ in range(dimensions)]
        inside = (low[:newcomer] <= point) & (point < high[:newcomer])
        owner = int(inside.all(axis=1).argmax())
        along = halvings[owner] % dimensions
        middle = int(low[owner, along] + high[owner, along]) // 2
        low[newcomer], high[newcomer] = low[owner], high[owner]
        newcomers, owners = (low, high) if point[along] >= middle else (high, low)
        newcomers[newcomer, along] = owners[owner, along] = middle
        halvings[owner] += 1
        halvings[newcomer] = halvings[owner]
    return Can(low, high, tuple(_around(low, high, node) for node in range(members)))


def _around(
    low: npt.NDArray[np.int64], high: npt.NDArray[np.int64], node: int
) -> dict[Way, list[int]]:
    overlaps = (low < high[node]) & (low[node] < high)
    found = {}
    for along in range(low.shape[1]):
        elsewhere = np.delete(overlaps, along, axis=1).all(axis=1)
        after = elsewhere & (low[:, along] == high[node, along] % SIDE)
        before = elsewhere & (high[:, along] % SIDE == low[node, along])
        for sign, beside in ((1, after), (-1, before)):
            found[along, sign] = [int(each) for each in np.flatnonzero(beside) if each != node]
    return found


def flood(can: Can, publisher: int) -> Flood:
    """One message of a publisher; all links take equally long."""
    hops = np.full(len(can.neighbors), -1, np.int32)
    hops[publisher] = 0
    origin = (can.low[publisher] + can.high[publisher]) // 2
    every = [(along, sign) for along in range(can.dimensions) for sign in (-1, 1)]
    waiting = deque([(publisher, every)])
    messages = 0
    while waiting:
        node, ways = waiting.popleft()
        for way in ways:
            if node != publisher and _is_half_way(can, node, way, origin):
                continue
            for other in can.neighbors[node][way]:
                messages += 1
                if hops[other] < 0:
                    hops[other] = hops[node] + 1
                    waiting.append((other, [*(each for each in every if each[0] < way[0]), way]))
    return Flood(hops, messages)


def _is_half_way(can: Can, node: int, way: Way, origin: npt.NDArray[np.int64]) -> bool:
    """Whether the far edge of the node's zone is half way round, or more."""
    along, sign = way
    edge = int(can.high[node, along] if sign > 0 else can.low[node, along])
    gone = (edge - int(origin[along])) * sign % SIDE
    return gone >= SIDE // 2
