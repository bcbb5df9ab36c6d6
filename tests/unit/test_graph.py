"""The one search, beside a naive one."""

from __future__ import annotations

import random
from itertools import combinations

from isthmus.graph import first_steps, path_to, search

#   b - d       f - g
#   |   |
#   a - c - e
EDGES = [("b", "d"), ("a", "b"), ("c", "a"), ("c", "d"), ("e", "c"), ("f", "g")]


def test_the_nearest_come_first_and_the_lowest_neighbor_leads() -> None:
    before = search(EDGES, "a")
    assert before == {"a": "a", "b": "a", "c": "a", "d": "b", "e": "c"}
    assert list(before) == ["a", "b", "c", "d", "e"]
    assert path_to(before, "d") == ("a", "b", "d")
    assert path_to(before, "a") == ("a",)
    assert first_steps(before) == {"b": "b", "c": "c", "d": "b", "e": "c"}


def test_who_has_no_link_reaches_itself() -> None:
    assert search(EDGES, "z") == {"z": "z"}
    assert first_steps(search([], "z")) == {}


def test_paths_are_as_short_as_those_of_a_naive_search() -> None:
    rng = random.Random(5)
    for _ in range(50):
        edges = [pair for pair in combinations(range(8), 2) if rng.random() < 0.25]
        reached, distance = {0}, {0: 0}
        for steps in range(1, 9):
            reached |= {b for a, b in (*edges, *((b, a) for a, b in edges)) if a in reached}
            distance |= {node: steps for node in reached if node not in distance}
        before = search(edges, 0)
        assert {node: len(path_to(before, node)) - 1 for node in before} == distance
        for node, step in first_steps(before).items():
            assert path_to(before, node)[1] == step
