"""Messages on end, while what clients want changes just when an epoch does."""

from __future__ import annotations

from itertools import combinations
from typing import cast

import pytest

from isthmus.cooperation.skipgraph.algorithm import SkipGraph
from isthmus.cooperation.skipgraph.standing import Phase
from isthmus.sim.fabric import SimFabric


@pytest.mark.parametrize(
    ("before", "after"), [(("t/a", "#"), ("t/a",)), (("t/a",), ("t/a", "t/#"))]
)
@pytest.mark.parametrize("delay_s", [0.005, 0.05])
def test_who_takes_the_place_of_another_while_an_epoch_begins_misses_nothing(
    before: tuple[str, ...], after: tuple[str, ...], delay_s: float
) -> None:
    """A client wants `t/a` all the time; of another one at its node `#` ends, or `t/#` begins."""
    fabric = SimFabric(seed=1, algorithm="skipgraph")
    nodes = [fabric.node(name) for name in "abcd"]
    for one, other in combinations(nodes, 2):
        fabric.link(one, other, delay_s=delay_s)
    clients = [nodes[0].client("t/a"), nodes[0].client("other")]
    publishers = [node.client(f"p-{node.name}") for node in nodes[1:3]]
    fabric.run(1)
    for client, topic_filter in zip(clients, before, strict=False):
        client.subscribe(topic_filter, qos=1)
    fabric.run(8)
    for publisher in publishers:
        assert publisher.publish("t/a", b"first", qos=1)
    fabric.run(2)
    clients[0].received.clear()
    fabric.break_connections(nodes[1], nodes[3])
    standing = cast("SkipGraph", nodes[0].algorithm).standing
    for phase in (Phase.OPEN, Phase.JOINING):
        while standing.phase is not phase:
            fabric.run(0.001)
    for topic_filter in set(before) - set(after):
        clients[1].unsubscribe(topic_filter)
    for topic_filter in set(after) - set(before):
        clients[1].subscribe(topic_filter, qos=1)
    sent: list[list[bytes]] = [[], []]
    for number in range(120):
        payload = b"%d" % number
        assert publishers[number % 2].publish("t/a", payload, qos=1)
        sent[number % 2].append(payload)
        fabric.run(0.01)
    fabric.run(3)
    came = clients[0].payloads()
    assert len(came) == 120
    for of_publisher in sent:
        assert [payload for payload in came if payload in of_publisher] == of_publisher
