"""What arrays say equals what production nodes do in the exact simulator, link by link.

All nodes are linked with each other.  On each topic a node has a client that subscribes, or one
that publishes, or none:

    t0    n0 S   n1 P   n2 P   n3 -      When the graph is settled each publisher sends one message;
    t1    n0 P   n1 -   n2 P   n3 P      what is compared is who got it over the links, after how
                                         many of them, how many links carried it, who is suspended.

`test_traversal` and `test_live` compare with parts of a node.  These are whole ones: brokers,
clients, sessions, links, the tree below the graph (`SimFabric`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations
from typing import cast

import numpy as np
import pytest

from isthmus.cooperation.registry import load
from isthmus.cooperation.skipgraph.algorithm import SkipGraph
from isthmus.cooperation.skipgraph.keys import Key, Kind, key_of
from isthmus.cooperation.skipgraph.standing import Phase
from isthmus.cooperation.skipgraph.vectors import vector_of
from isthmus.sim import SimFabric
from isthmus.sim.bulk.graph import skip_graph
from isthmus.sim.bulk.topics import Topics
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.visits import StrategyName
from isthmus.sim.network import HopRecord

TOPICS = ("t0", "t1")
KINDS = {"S": Kind.SUBSCRIBER, "P": Kind.PUBLISHER}
AT_ONCE = 10
"""Networks in one test."""


@dataclass
class Compared:
    """How much there was to compare."""

    carried: int = 0
    """Messages, by links."""
    longest: int = 0
    suspended: int = 0
    resumed: int = 0

    def network(self, seed: int) -> None:
        rng = random.Random(f"bulk and exact {seed}")
        base = rng.choice((2, 2, 3))
        forwarding: StrategyName = rng.choice(("sfb", "mrf"))
        records: list[HopRecord] = []
        fabric = SimFabric(
            seed=seed,
            algorithm=load("skipgraph"),
            options={"base": base, "forwarding": forwarding},
            on_hop=records.append,
        )
        nodes = [fabric.node(f"n{number}") for number in range(rng.randint(3, 9))]
        for one, other in combinations(nodes, 2):
            fabric.link(one, other)
        fabric.settle()
        clients = {node.name: node.client(f"c-{node.name}") for node in nodes}
        roles = {(topic, name): rng.choice("SPP-") for topic in TOPICS for name in clients}
        for wanted in "SP":
            for (topic, name), role in roles.items():
                if role == wanted == "S":
                    clients[name].subscribe(topic)
                elif role == wanted:
                    clients[name].publish(topic, b"to be a publisher", qos=1)
            fabric.settle()

        standing = sorted(
            (key_of(topic, KINDS[role], name), name)
            for (topic, name), role in roles.items()
            if role in KINDS
        )
        topics = Topics.of(
            *([_count(standing, t, kind) for t in TOPICS] for kind in KINDS.values())
        )
        publishers, of_topic = topics.publishers()
        silent = topics.silent()
        for place in publishers:
            key, name = standing[place]
            algorithm = cast("SkipGraph", fabric.nodes[name].algorithm)
            assert algorithm.standing.phase is Phase.SETTLED
            assert algorithm.graph is not None
            assert algorithm.graph.suspension.is_resumed(key) is not bool(silent[place])
        self.suspended += int(silent[publishers].sum())
        self.resumed += int((~silent[publishers]).sum())

        records.clear()
        for place in publishers:
            key, name = standing[place]
            clients[name].publish(key.topic, b"%d" % place, qos=1)
        fabric.settle()
        exact: dict[int, dict[str, int]] = {int(place): {} for place in publishers}
        for each in records:
            found = exact[int(each.payload)]
            assert each.target not in found, f"{each} came there before"
            found[each.target] = each.hops

        awake = publishers[~silent[publishers]]
        topic_of = of_topic[~silent[publishers]]
        if not len(awake):
            assert not records
            return
        vectors = np.array([vector_of(name, base).value for _, name in standing], np.uint64)
        bulk = spread(
            skip_graph(vectors, base, blocks=topics.blocks),
            awake,
            topics.starts[topic_of],
            topics.ends[topic_of],
            forwarding,
            trace=True,
        )
        assert bulk.trace is not None
        arrays: dict[int, dict[str, int]] = {int(place): {} for place in publishers}
        rows = zip(bulk.trace.query, bulk.trace.node, bulk.trace.hops, strict=True)
        for query, node, hops in rows:
            arrays[int(awake[query])][standing[node][1]] = int(hops)
        for place, found in exact.items():
            topic = standing[place][0].topic
            subscribers = {to: hops for to, hops in found.items() if roles[topic, to] == "S"}
            assert subscribers == arrays[place], (seed, standing[place])
            self.longest = max(self.longest, *found.values(), 0)
        assert bulk.messages == len(records)
        self.carried += len(records)


def _count(standing: list[tuple[Key, str]], topic: str, kind: Kind) -> int:
    return sum(key.topic == topic and key.kind is kind for key, _ in standing)


def compare(first: int, networks: int) -> None:
    compared = Compared()
    for seed in range(first, first + networks):
        try:
            compared.network(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    assert compared.carried > 5 * networks
    assert compared.longest >= 3
    assert compared.suspended
    assert compared.resumed > networks


@pytest.mark.parametrize("first", range(0, 60, AT_ONCE))
def test_hop_for_hop(first: int) -> None:
    compare(first, AT_ONCE)


@pytest.mark.slow
def test_hop_for_hop_on_hundreds_of_networks() -> None:
    compare(1_000, 300)
