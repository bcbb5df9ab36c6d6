"""Routing tables: of a virtual node, and of a physical node, which has several (thesis §2.2.5).

A virtual node knows its neighbor on either side in each of its lists: level 0 is the list of all,
level i that of those whose membership vectors begin with the same i digits.  Higher neighbors are
farther away, or the same.  A neighbor may be a virtual node of the same physical node; a message
never goes there, since a physical node looks at all its keys at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from isthmus.cooperation.skipgraph.keys import Key, KeyRange
from isthmus.cooperation.skipgraph.vectors import MembershipVector, digits_of

__all__ = ["Gap", "Neighbor", "NodeTable", "Side", "VirtualNode", "linked"]


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


class Neighbor(NamedTuple):
    """A virtual node of somebody's, as a table has it."""

    key: Key
    node: str


@dataclass(slots=True)
class VirtualNode:
    """One key of a physical node, and its neighbors: at index i the one of level i, if any."""

    key: Key
    left: list[Neighbor | None] = field(default_factory=list)
    right: list[Neighbor | None] = field(default_factory=list)

    def neighbors(self, side: Side) -> list[Neighbor | None]:
        return self.left if side is Side.LEFT else self.right

    def delegate(self, keys: KeyRange, side: Side) -> Neighbor | None:
        """The neighbor inside the range of the highest level: `getDelegateNode` of Fig. 4.2."""
        for neighbor in reversed(self.neighbors(side)):
            if neighbor is not None and neighbor.key in keys:
                return neighbor
        return None

    def set(self, side: Side, level: int, neighbor: Neighbor | None) -> None:
        """None: nobody is there any more."""
        row = self.neighbors(side)
        row += [None] * (level + 1 - len(row))
        row[level] = neighbor
        while row and row[-1] is None:
            row.pop()

    def entries(self) -> Iterator[tuple[Side, int, Neighbor]]:
        for side in Side:
            for level, neighbor in enumerate(self.neighbors(side)):
                if neighbor is not None:
                    yield side, level, neighbor


class Gap(NamedTuple):
    """A part of a range without keys of this node, and the virtual node of its that serves it."""

    virtual: VirtualNode
    side: Side
    keys: KeyRange


class NodeTable:
    """All virtual nodes of a physical node, in the order of their keys."""

    def __init__(self, node: str, vector: MembershipVector, keys: Collection[Key] = ()) -> None:
        self.node = node
        self.vector = vector
        self._keys = sorted(set(keys))
        self._virtual = {key: VirtualNode(key) for key in self._keys}

    def __iter__(self) -> Iterator[VirtualNode]:
        return (self._virtual[key] for key in self._keys)

    def __getitem__(self, key: Key) -> VirtualNode:
        return self._virtual[key]

    def __contains__(self, key: Key) -> bool:
        return key in self._virtual

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(self._keys)

    def add(self, key: Key) -> VirtualNode:
        if key not in self._virtual:
            self._keys.insert(bisect_left(self._keys, key), key)
            self._virtual[key] = VirtualNode(key)
        return self._virtual[key]

    def remove(self, key: Key) -> None:
        del self._virtual[key]
        del self._keys[bisect_left(self._keys, key)]

    def inside(self, keys: KeyRange) -> list[VirtualNode]:
        """Those in a range, from left to right."""
        first = (bisect_left if keys.with_low else bisect_right)(self._keys, keys.low)
        end = (bisect_right if keys.with_high else bisect_left)(self._keys, keys.high)
        return [self._virtual[key] for key in self._keys[first:end]]

    def nearest(self, keys: KeyRange, side: Side) -> VirtualNode | None:
        """The one beside a range, on this side of it, that is nearest to it."""
        if side is Side.LEFT:
            number = (bisect_left if keys.with_low else bisect_right)(self._keys, keys.low)
            return self._virtual[self._keys[number - 1]] if number else None
        number = (bisect_right if keys.with_high else bisect_left)(self._keys, keys.high)
        return self._virtual[self._keys[number]] if number < len(self._keys) else None

    def gaps(self, keys: KeyRange) -> list[Gap]:
        """A range cut at each key of this node: `getSubRanges` of Fig. 4.3 for several keys.

        A gap between two of its keys is served by the lower one.  None if no key is inside.
        """
        inside = self.inside(keys)
        if not inside:
            return []
        found = [Gap(inside[0], Side.LEFT, keys.left_of(inside[0].key))]
        rest = keys
        for virtual, following in zip(inside, [*inside[1:], None], strict=True):
            rest = rest.right_of(virtual.key)
            gap = rest if following is None else rest.left_of(following.key)
            found.append(Gap(virtual, Side.RIGHT, gap))
        return found

    @property
    def others(self) -> list[Neighbor]:
        """Every entry that is another node's: the size of the routing table (§3.4.4)."""
        return [entry for each in self for *_, entry in each.entries() if entry.node != self.node]


def linked(nodes: Mapping[str, tuple[MembershipVector, Collection[Key]]]) -> dict[str, NodeTable]:
    """The tables that a graph of these nodes has at rest, by what the lists are defined as.

    Two virtual nodes with the same key are refused: one of them lies.
    """
    tables = {name: NodeTable(name, vector, keys) for name, (vector, keys) in nodes.items()}
    everybody = sorted((key, name) for name, (_, keys) in nodes.items() for key in set(keys))
    for (key, name), (other, twin) in pairwise(everybody):
        if key == other:
            raise ValueError(f"{name} and {twin} both have the key {key}")
    levels = max((digits_of(vector.base) for vector, _ in nodes.values()), default=0)
    for level in range(levels + 1):
        lists: dict[int, list[Neighbor]] = {}
        for key, name in everybody:
            lists.setdefault(nodes[name][0].prefix(level), []).append(Neighbor(key, name))
        for one in lists.values():
            for left, right in pairwise(one):
                tables[left.node][left.key].set(Side.RIGHT, level, right)
                tables[right.node][right.key].set(Side.LEFT, level, left)
        # Where a list has one node alone nothing more can follow.
        everybody = sorted(
            each for one in lists.values() if len({entry.node for entry in one}) > 1 for each in one
        )
        if not everybody:
            break
    return tables
