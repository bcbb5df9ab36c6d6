"""The forest that is kept up to date is the one that Kruskal's algorithm makes from scratch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.exchange.topology.forest import MinimumForest

Edges = dict[tuple[int, int], tuple[int, int, int]]


def kruskal(edges: Edges) -> tuple[set[tuple[int, int]], dict[int, frozenset[int]]]:
    parts: dict[int, frozenset[int]] = {}
    chosen = set()
    for ends in sorted(edges, key=edges.__getitem__):
        a, b = (parts.get(end, frozenset((end,))) for end in ends)
        if a != b:
            chosen.add(ends)
            for node in a | b:
                parts[node] = a | b
    return chosen, parts


def check(forest: MinimumForest[int, tuple[int, int, int]], edges: Edges, nodes: int) -> None:
    chosen, parts = kruskal(edges)
    assert {ends for ends in forest.edges() if ends[0] < ends[1]} == chosen
    for node in range(nodes):
        assert forest.members(node) == parts.get(node, {node})
    for ends in edges:
        assert (ends in forest) == (ends in chosen)
        assert forest.connected(*ends)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 12), st.integers(0, 2**32), st.booleans())
def test_any_order_of_changes(nodes: int, seed: int, growing: bool) -> None:
    rng = random.Random(seed)
    forest: MinimumForest[int, tuple[int, int, int]] = MinimumForest(0)
    edges: Edges = {}
    for number in range(60):
        a, b = sorted(rng.sample(range(nodes), 2))
        if (a, b) in edges:
            forest.remove(*rng.choice([(a, b), (b, a)]))
            del edges[a, b]
        else:
            edges[a, b] = (number if growing else rng.randrange(5), a, b)
            forest.add(*rng.choice([(a, b), (b, a)]), edges[a, b])
        check(forest, edges, nodes)
    for a, b in list(edges):
        forest.remove(a, b)
        del edges[a, b]
        check(forest, edges, nodes)
    assert not forest._label
    assert not forest._above
    assert not forest._members
    assert not forest._heaviest
    assert not forest._tree
    assert not forest._rest


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 12), st.integers(0, 2**32))
def test_edges_that_come_together(nodes: int, seed: int) -> None:
    rng = random.Random(seed)
    forest: MinimumForest[int, tuple[int, int, int]] = MinimumForest(0)
    edges: Edges = {}
    for _ in range(20):
        chosen, connected = set(kruskal(edges)[0]), set(forest.members(0))
        forest.changed, forest.moved = {}, set()
        new: Edges = {}
        for _ in range(rng.randint(0, nodes)):
            a, b = sorted(rng.sample(range(nodes), 2))
            if (a, b) not in edges:
                new[a, b] = (rng.randrange(9), a, b)
        forest.add_all({weight: ends for ends, weight in new.items()})
        edges |= new
        for ends in rng.sample(sorted(edges), rng.randint(0, len(edges) // 2)):
            forest.remove(*ends)
            del edges[ends]
        check(forest, edges, nodes)
        assert chosen ^ kruskal(edges)[0] <= {tuple(sorted(e)) for e in forest.changed.values()}
        assert connected ^ forest.members(0) <= forest.moved


@pytest.mark.parametrize("extra", [0, 2_000])
def test_a_large_one(extra: int) -> None:
    rng = random.Random(1)
    nodes = 1_000
    forest: MinimumForest[int, tuple[int, int, int]] = MinimumForest(0)
    edges: Edges = {}
    wanted = {(rng.randrange(i), i) for i in range(1, nodes)}
    while len(wanted) < nodes - 1 + extra:
        a, b = sorted(rng.sample(range(nodes), 2))
        wanted.add((a, b))
    for number, (a, b) in enumerate(sorted(wanted, key=lambda _: rng.random())):
        edges[a, b] = (number, a, b)
        forest.add(a, b, edges[a, b])
    check(forest, edges, nodes)
    for a, b in rng.sample(sorted(edges), 200):
        forest.remove(a, b)
        del edges[a, b]
    check(forest, edges, nodes)
