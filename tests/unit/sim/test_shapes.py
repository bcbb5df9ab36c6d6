"""Shapes of any size are connected, have the links they say, and repeat."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from isthmus.graph import search
from isthmus.sim.shapes import SHAPES, links_of

COUNTS: dict[str, Callable[[int], int]] = {
    "tree": lambda nodes: nodes - 1,
    "graph": lambda nodes: min(2 * nodes, nodes * (nodes - 1) // 2),
    "line": lambda nodes: nodes - 1,
    "ring": lambda nodes: nodes if nodes > 2 else nodes - 1,
    "star": lambda nodes: nodes - 1,
    "mesh": lambda nodes: nodes * (nodes - 1) // 2,
    "none": lambda nodes: 0,
}


@pytest.mark.parametrize("nodes", [1, 2, 3, 30])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_joins_all_nodes_by_distinct_links(shape: str, nodes: int) -> None:
    count = COUNTS[shape](nodes)
    links = links_of(shape, nodes, random.Random(7), count)
    pairs = {frozenset(link) for link in links}
    assert len(links) == len(pairs) == count
    assert all(len(pair) == 2 and pair <= set(range(nodes)) for pair in pairs)
    assert len(search(links, 0)) == (nodes if shape != "none" else 1)
    assert links == links_of(shape, nodes, random.Random(7), count)


def test_what_cannot_be_is_refused() -> None:
    for links in (3, 11):
        with pytest.raises(ValueError, match="5 nodes cannot have"):
            links_of("graph", 5, random.Random(1), links)
    with pytest.raises(ValueError, match="'cube' is no shape"):
        links_of("cube", 5, random.Random(1))
