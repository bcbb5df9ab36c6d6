"""A Skip Graph in a dictionary: tables, and messages passed until nobody sends.

It knows nothing that the tables do not say; what the bulk simulator does on arrays must equal it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from isthmus.cooperation.skipgraph.forwarding import (
    Strategy,
    broadcast_with_memory,
    broadcast_without_memory,
    delivers,
    forward,
    messages,
)
from isthmus.cooperation.skipgraph.keys import Key, KeyRange, Kind
from isthmus.cooperation.skipgraph.tables import NodeTable, linked
from isthmus.cooperation.skipgraph.vectors import MembershipVector, digits_of

Tables = Mapping[str, NodeTable]


@dataclass
class Passed:
    """What one query did."""

    hops: dict[str, int] = field(default_factory=dict)
    """Of each node that delivers: how many links the query had passed."""
    delivered: dict[str, int] = field(default_factory=dict)
    """How often."""
    received: dict[str, int] = field(default_factory=dict)
    """Messages that came to each node."""
    forwards: dict[str, int] = field(default_factory=dict)
    """Messages that each node sent."""
    covered: dict[Key, int] = field(default_factory=dict)
    """How many of the ranges that came to its node each key was in."""

    @property
    def messages(self) -> int:
        return sum(self.forwards.values())


def passed(tables: Tables, start: str, target: KeyRange, strategy: Strategy) -> Passed:
    """A query for `target` that begins at `start`."""
    found = Passed()
    waiting = deque([(start, [target], 0)])
    while waiting:
        name, ranges, hops = waiting.popleft()
        table = tables[name]
        for keys in ranges:
            for virtual in table.inside(keys):
                found.covered[virtual.key] = found.covered.get(virtual.key, 0) + 1
            if delivers(table, keys, target):
                found.hops[name] = hops
                found.delivered[name] = found.delivered.get(name, 0) + 1
        sent = messages(hop for keys in ranges for hop in forward(table, keys, strategy))
        for node, parts in sent.items():
            found.forwards[name] = found.forwards.get(name, 0) + 1
            found.received[node] = found.received.get(node, 0) + 1
            waiting.append((node, [hop.keys for hop in parts], hops + 1))
    return found


def broadcast(tables: Tables, start: str, target: KeyRange, *, memory: bool) -> Passed:
    """From a node inside; who gets it again drops it."""
    found = Passed({start: 0}, {start: 1})
    waiting = deque([(start, frozenset([start]), 0)])
    while waiting:
        name, visited, hops = waiting.popleft()
        if memory:
            sent, visited = broadcast_with_memory(tables[name], target, visited)
        else:
            sent = broadcast_without_memory(tables[name], target)
        for node in sent:
            found.forwards[name] = found.forwards.get(name, 0) + 1
            found.received[node] = found.received.get(node, 0) + 1
            if node not in found.hops:
                found.hops[node] = hops + 1
                found.delivered[node] = 1
                waiting.append((node, visited, hops + 1))
    return found


def numbered(number: int) -> Key:
    """A key of which only the order counts."""
    return Key("t", Kind.SUBSCRIBER, number.to_bytes(2, "big"))


def between(low: int, high: int) -> KeyRange:
    return KeyRange(numbered(low), numbered(high))


def graph(nodes: Mapping[str, tuple[str, list[int]]]) -> dict[str, NodeTable]:
    """From vectors as the thesis writes them, first digit first, and numbers as keys."""
    return linked(
        {
            name: (written_vector(text), [numbered(key) for key in keys])
            for name, (text, keys) in nodes.items()
        }
    )


def written_vector(text: str, base: int = 2) -> MembershipVector:
    value = sum(int(digit) * base**place for place, digit in enumerate(text))
    return MembershipVector(value, base)


def drawn_vector(rng: random.Random, base: int, digits: int) -> MembershipVector:
    """With `digits` that differ from zero at most: with few of them, lists stay together."""
    return MembershipVector(rng.randrange(base ** min(digits, digits_of(base))), base)
