"""Nodes of a fabric that builds itself are killed: what survivors send each other arrives, once.

The root, an inner node or a leaf is killed while clients of the others publish at QoS 1 and 2; it
comes back after a while, or another one is killed first.  Two nodes are never killed: all that is
published at a node that lives from then on counts at their subscribers.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest

from isthmus.cooperation.registry import load
from isthmus.cooperation.tree.algorithm import SpanningTree
from isthmus.exchange.link.links import LinkSettings
from isthmus.graph import search
from isthmus.sim import SimFabric
from isthmus.sim.client import SimClient
from isthmus.sim.network import WireSettings
from isthmus.sim.node import SimNode

NODES = 5
KILLS = 4
QUICK = 6
LONG = 150


class Killing:
    """One fabric, and what was published in it."""

    def __init__(self, algorithm: str, seed: int) -> None:
        self.rng = rng = random.Random(f"kills {seed}")
        wire = WireSettings(rng.choice((0.0, 0.002, 0.02)))
        settings = LinkSettings(lanes=rng.choice((1, 2)), qos=rng.choice((1, 2)))
        self.fabric = SimFabric(seed=seed, algorithm=load(algorithm), link=settings, wire=wire)
        self.nodes = [self.fabric.node(f"n{index}") for index in range(NODES)]
        self.pairs = list(combinations(range(NODES), 2))
        if rng.random() < 0.5:  # some links less, and whoever is away the others stay connected
            self.pairs = [(a, b) for a, b in self.pairs if (b - a) % NODES in (1, 2, NODES - 1)]
        for a, b in self.pairs:
            self.fabric.link(self.nodes[a], self.nodes[b])
        self.clients: dict[str, tuple[SimClient, SimClient]] = {}
        for node in self.nodes:
            self._clients(node)
        self.fabric.settle()
        self.ended: dict[str, float] = {}
        """When nodes ended last."""
        self.immortal = [node.name for node in rng.sample(self.nodes, 2)]
        self.sent: list[tuple[float, str, bytes]] = []
        self.killed: Counter[str] = Counter()

    def _clients(self, node: SimNode) -> None:
        subscriber = node.client(f"s-{node.name}-{len(self.fabric.trace.departures)}")
        publisher = node.client(f"p-{node.name}")
        self.clients[node.name] = subscriber, publisher
        self.fabric.run(0.05)
        subscriber.subscribe("t/#", qos=2)

    def run(self) -> None:
        for _ in range(KILLS):
            self._publish(self.rng.uniform(0.05, 0.5))
            victim = self._victim()
            if victim is None:
                continue
            self.ended[victim.name] = self.fabric.now_s
            self.fabric.crash(victim, silent=self.rng.random() < 0.5)
            self._publish(self.rng.choice((0.2, 2.0, 6.0)))
            if self.rng.random() < 0.7:
                self.ended[victim.name] = self.fabric.now_s
                self.fabric.restart(victim)
                self._publish(self.rng.uniform(0.0, 1.0))
        self.fabric.settle()

    def _publish(self, seconds: float) -> None:
        until_s = self.fabric.now_s + seconds
        while self.fabric.now_s < until_s:
            self.fabric.run(self.rng.uniform(0.0, 0.06))
            node = self.rng.choice([each for each in self.nodes if each.running])
            payload = b"m%d" % len(self.sent)
            publisher = self.clients[node.name][1]
            topic = f"t/{self.rng.randrange(3)}"
            if publisher.publish(topic, payload, qos=1 + len(self.sent) % 2):
                self.sent.append((self.fabric.now_s, node.name, payload))

    def _victim(self) -> SimNode | None:
        """One of a role that is drawn, unless too few would be left."""
        living = [node for node in self.nodes if node.running]
        if len(living) < NODES - 1:
            return None
        roles: dict[str, list[SimNode]] = {}
        for node in living:
            if node.name in self.immortal:
                continue
            algorithm = node.algorithm
            assert isinstance(algorithm, SpanningTree)
            tree = algorithm.tree
            if tree is not None:
                role = "inner" if tree.children else "leaf"
                roles.setdefault(role if tree.parent else "root", []).append(node)
        role = self.rng.choice(sorted(roles))
        self.killed[role] += 1
        return self.rng.choice(roles[role])

    def check(self) -> None:
        away = {node.name for node in self.nodes if not node.running}
        pairs = [(f"n{a}", f"n{b}") for a, b in self.pairs]
        left = [pair for pair in pairs if away.isdisjoint(pair)]
        expected = 0
        for at_s, name, payload in self.sent:
            if at_s <= self.ended.get(name, -1.0):
                continue  # its node was killed with it in hand, perhaps
            for other in self.immortal:
                assert other in search(left, name)
                expected += 1
                count = self.clients[other][0].payloads().count(payload)
                assert count == 1, (
                    f"{payload!r} of {name} at {at_s:.3f} s: {count} times at {other}"
                )
        assert expected > 50


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
def test_nothing_is_lost_or_doubled(algorithm: str) -> None:
    killed: Counter[str] = Counter()
    for seed in range(QUICK):
        killing = Killing(algorithm, seed)
        killing.run()
        killing.check()
        killed += killing.killed
    assert set(killed) == {"root", "inner", "leaf"}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
def test_hundreds_of_kills(algorithm: str) -> None:
    killed: Counter[str] = Counter()
    for seed in range(1_000, 1_000 + LONG):
        killing = Killing(algorithm, seed)
        killing.run()
        killing.check()
        killed += killing.killed
    assert min(killed.values()) > 30
