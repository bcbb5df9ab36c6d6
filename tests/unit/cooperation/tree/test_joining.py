"""Who joins while others publish."""

from __future__ import annotations

import pytest

from isthmus.sim.fabric import SimFabric


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
@pytest.mark.parametrize("delay_s", [0.002, 0.1])
def test_what_is_retained_while_a_node_joins_reaches_it(algorithm: str, delay_s: float) -> None:
    """Also what goes by the tree that it is not in yet, after the stores have been compared."""
    fabric = SimFabric(seed=1, algorithm=algorithm)
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    publisher = a.client("p")
    fabric.settle()
    newcomer = fabric.node("c")
    fabric.link(newcomer, b, delay_s=delay_s)
    for number in range(200):
        publisher.publish(f"r/{number}", b"v", qos=1, retain=True)
        fabric.run(0.005)
    fabric.settle()
    assert set(newcomer.broker.retained) == set(a.broker.retained)
    assert len(a.broker.retained) == 200
