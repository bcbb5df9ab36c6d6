"""Graphs to build trees on, and the parts that nodes have in a tree."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

from isthmus.errors import LoadError

__all__ = ["LINKS_PER_NODE", "Place", "links_of", "victims_of"]

LINKS_PER_NODE: Final = 3


@dataclass(frozen=True, slots=True)
class Place:
    """What one node says of the tree that it uses."""

    tree: tuple[object, ...]
    """By which one is told from another."""
    nodes: frozenset[str]
    parent: str
    children: tuple[str, ...]

    @property
    def neighbors(self) -> tuple[str, ...]:
        return (self.parent, *self.children) if self.parent else self.children


def links_of(shape: str, nodes: int, rng: random.Random) -> list[tuple[int, int]]:
    """A full mesh; or a ring with random links besides, three links for each node.

    Whichever node is lost, the others of a ring are connected.
    """
    every = list(combinations(range(nodes), 2))
    if shape == "mesh" or len(every) <= LINKS_PER_NODE * nodes:
        return every
    around = rng.sample(range(nodes), nodes)
    found = {(min(pair), max(pair)) for pair in pairwise([*around, around[0]])}
    while len(found) < LINKS_PER_NODE * nodes:
        a, b = sorted(rng.sample(range(nodes), 2))
        found.add((a, b))
    pairs = sorted(found)
    rng.shuffle(pairs)
    return pairs


def victims_of(places: Mapping[str, Place]) -> dict[str, str]:
    """Whom to lose: the root, the inner node of the most neighbors, and a leaf.

    There may be no inner node.
    """
    roots = [name for name, place in places.items() if not place.parent]
    if len(roots) != 1:
        raise LoadError(f"{len(roots)} roots among {len(places)} nodes")
    found = {"root": roots[0]}
    inner = [name for name, place in places.items() if place.parent and place.children]
    if inner:
        found["inner node"] = min(inner, key=lambda name: (-len(places[name].children), name))
    leaves = [name for name, place in places.items() if place.parent and not place.children]
    if leaves:
        found["leaf"] = min(leaves)
    return found
