"""Who is linked with whom, for any number of nodes.

Nodes are counted from 0; a link is (who dials, who is dialed), each pair once.  A random shape is a
function of the generator that it is given.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Final

__all__ = ["SHAPES", "links_of"]

Links = list[tuple[int, int]]


def _tree(nodes: int, rng: random.Random) -> Links:
    """Each node is linked with one of those before it, any of them: a random recursive tree."""
    return [(node, rng.randrange(node)) for node in range(1, nodes)]


_FIXED: Final[Mapping[str, Callable[[int], Links]]] = {
    "line": lambda nodes: [(node, node - 1) for node in range(1, nodes)],
    "ring": lambda nodes: [(node, (node + 1) % nodes) for node in range(nodes - (nodes < 3))],
    "star": lambda nodes: [(node, 0) for node in range(1, nodes)],
    "mesh": lambda nodes: [(b, a) for a, b in combinations(range(nodes), 2)],
    "none": lambda nodes: [],
}

SHAPES: Final = ("tree", "graph", *_FIXED)
"""``tree`` and ``graph`` are random; a graph is such a tree and more links between any two."""


def links_of(shape: str, nodes: int, rng: random.Random, links: int = 0) -> Links:
    """The links of one of `SHAPES`; `links` is how many a graph has."""
    if shape in _FIXED:
        return _FIXED[shape](nodes)
    if shape not in SHAPES:
        raise ValueError(f"{shape!r} is no shape; there are {', '.join(SHAPES)}")
    found = dict.fromkeys(_tree(nodes, rng))
    if shape == "graph":
        if not nodes - 1 <= links <= nodes * (nodes - 1) // 2:
            raise ValueError(f"a graph of {nodes} nodes cannot have {links} links and be one")
        while len(found) < links:
            b, a = sorted(rng.sample(range(nodes), 2))
            found[a, b] = None
    return list(found)
