"""A thousand nodes whose links all come up in the same moment agree on one tree.

What that costs is `make bench-guard`'s to say; here it counts what is reached.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from isthmus.exchange.link.links import LinkSettings
from isthmus.sim.fabric import SimFabric
from isthmus.sim.node import SimNode

Pair = tuple[str, str]


def pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def fabric_of(count: int, links: int) -> tuple[SimFabric, list[SimNode]]:
    """A random tree, and random links besides."""
    rng = random.Random(7)
    fabric = SimFabric(seed=7, algorithm="pf", link=LinkSettings(dead_after_s=30.0))
    nodes = [fabric.node(f"n{number}") for number in range(count)]
    ends = {(rng.randrange(number), number) for number in range(1, count)}
    while len(ends) < links:
        a, b = sorted(rng.sample(range(count), 2))
        ends.add((a, b))
    for a, b in sorted(ends, key=lambda _: rng.random()):
        fabric.link(nodes[a], nodes[b])
    fabric.settle()
    return fabric, nodes


def check_one_tree(fabric: SimFabric, nodes: list[SimNode]) -> set[Pair]:
    """The active links, which are the same wherever one looks."""
    names = {node.node_id for node in nodes}
    around = fabric.active_links()
    active = {pair(a, b) for a, others in around.items() for b in others}
    assert len(active) == len(nodes) - 1
    for node in nodes:
        guard = node.exchange.guard
        assert guard.size == len(nodes)
        reach = guard.reach()
        assert reach.keys() == names - {node.node_id}
        assert {pair(*hop) for each in reach.values() for hop in pairwise(each.path)} == active
    return active


def run(count: int, links: int) -> None:
    fabric, nodes = fabric_of(count, links)
    active = check_one_tree(fabric, nodes)
    a, b = min(active)
    ends = fabric.called(a), fabric.called(b)
    assert ends[0] is not None
    assert ends[1] is not None
    fabric.unlink(ends[0], ends[1])
    fabric.settle()
    if links > count - 1:
        after = check_one_tree(fabric, nodes)
        assert len(active - after) == 1
        assert len(after - active) == 1
    else:
        sizes = {node.exchange.guard.size for node in nodes}
        assert sum(sizes) == count
    fabric.link(ends[0], ends[1])
    fabric.settle()
    assert (pair(a, b) in check_one_tree(fabric, nodes)) == (links == count - 1)


@pytest.mark.parametrize("links", [39, 120])
def test_forty_nodes(links: int) -> None:
    run(40, links)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("links", [999, 3000])
def test_a_thousand_nodes(links: int) -> None:
    run(1000, links)
