"""Nobody lies, and it is hard all the same: long slow lines, and a root that is back at once.

To be put into tests/property/ when F13 and F22 are mended.
"""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from isthmus.sim.fabric import SimFabric


@pytest.mark.parametrize(("count", "delay_s"), [(30, 0.3), (20, 0.5)])
def test_a_long_slow_line_has_a_tree(count: int, delay_s: float) -> None:
    fabric = SimFabric(seed=1, algorithm="tree")
    fabric.engine.max_events = 10**8
    nodes = [fabric.node(f"n{index:02}") for index in range(count)]
    for one, other in pairwise(nodes):
        fabric.link(one, other, delay_s=delay_s)
    subscriber, publisher = nodes[-1].client("s"), nodes[0].client("p")
    subscriber.subscribe("t/#")
    fabric.run(200)
    assert publisher.publish("t/1", b"hello", qos=1)
    fabric.run(60)
    assert subscriber.payloads() == [b"hello"]


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree"])
@pytest.mark.parametrize("delay_s", [0.02, 0.3])
def test_a_root_without_state_that_is_back_at_once_swallows_nothing(
    algorithm: str, delay_s: float
) -> None:
    fabric = SimFabric(seed=55, algorithm=algorithm)
    nodes = {name: fabric.node(name, state_dir=False) for name in "abcde"}
    for one, other in combinations("abcde", 2):
        fabric.link(nodes[one], nodes[other], delay_s=delay_s)
    subscribers = {name: nodes[name].client(f"s{name}") for name in "bcde"}
    for subscriber in subscribers.values():
        subscriber.subscribe("t/#")
    publishers = {name: nodes[name].client(f"p{name}") for name in "bcde"}
    fabric.run(10)
    for name, publisher in publishers.items():
        assert publisher.publish("t/1", name.encode(), qos=1)
    fabric.run(delay_s / 2)
    fabric.crash(nodes["a"])
    fabric.run(0.05)
    fabric.restart(nodes["a"])
    fabric.run(60)
    for name, subscriber in subscribers.items():
        assert sorted(subscriber.payloads()) == [b"b", b"c", b"d", b"e"], name
