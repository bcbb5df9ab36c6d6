"""Messages on end from several publishers, while epochs begin and end.

    n0 ─┬─ n1      All nodes are linked with each other, by wires as different as may be.  At n0 to
        ├─ n2      n3 a client publishes on two topics at QoS 1 and 2 without a pause; at n0 to n2
        ├─ n3      another one subscribes to both all the time.  Links break, and are cut for a
        └─ n4      while, in one direction or both; n4 is killed; at n3 and n4 filters come and go.

What is asked, and nothing excuses it: whoever wants a topic all the time gets everything that is
published on it once, and what one client publishes at one QoS in order.
"""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from isthmus.exchange.link.links import LinkSettings
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import check_at_rest

TOPICS = ("t/a", "u")
STEADY_FILTERS = (("t/a", "u"), ("t/+", "u"), ("#",))
OTHER_FILTERS = ("t/a", "u", "t/+", "#", "+")
PACE_S = 0.01
HOLD_S = 20.0


class _Load:
    def __init__(self, seed: int, count: int = 5) -> None:
        self.rng = rng = random.Random(f"order {seed}")
        self.fabric = SimFabric(
            seed=seed,
            algorithm="skipgraph",
            options={"forwarding": rng.choice(("sfb", "mrf"))},
            link=LinkSettings(hold_s=HOLD_S, lanes=rng.choice((1, 1, 2))),
        )
        self.fabric.engine.max_events = 10**8
        self.nodes = [self.fabric.node(f"n{number}") for number in range(count)]
        for one, other in combinations(self.nodes, 2):
            self.fabric.link(one, other, delay_s=rng.choice((0.001, 0.005, 0.02, 0.06)))
        self.steady, self.mortal = self.nodes[:-1], self.nodes[-1]
        self.publishers = [node.client(f"p-{node.name}") for node in self.steady]
        self.subscribers = [node.client(f"s-{node.name}") for node in self.nodes[:3]]
        self.fickle = [node.client(f"f-{node.name}") for node in self.nodes[3:]]
        self.sent: dict[tuple[str, str, int], list[bytes]] = {}
        """By publisher, topic and QoS."""
        self.cuts: list[tuple[float, tuple[str, str]]] = []
        self.back_s = -1.0
        self.fabric.run(1)
        for client, filters in zip(self.subscribers, STEADY_FILTERS, strict=True):
            client.subscribe(*filters)
        self.fabric.run(10)

    def run(self, seconds: float) -> None:
        end_s = self.fabric.now_s + seconds
        while self.fabric.now_s < end_s:
            self.fabric.run(PACE_S)
            self._trouble()
            for client in self.publishers:
                self._publish(client)

    def _publish(self, client: SimClient) -> None:
        topic, qos = self.rng.choice(TOPICS), self.rng.choice((1, 2))
        sent = self.sent.setdefault((client.client_id, topic, qos), [])
        payload = f"{client.client_id} {topic} {qos} {len(sent)}".encode()
        assert client.publish(topic, payload, qos=qos)
        sent.append(payload)

    def _trouble(self) -> None:
        rng, now_s = self.rng, self.fabric.now_s
        for cut in [each for each in self.cuts if each[0] <= now_s]:
            self.cuts.remove(cut)
            self.fabric.heal([cut[1], cut[1][::-1]])
        if 0 < self.back_s <= now_s:
            self.fabric.restart(self.mortal)
            self.back_s = -1.0
        drawn = rng.random()
        if drawn < 0.006:
            self.fabric.break_connections(*rng.sample(self.nodes, 2))
        elif drawn < 0.008 and not self.cuts:
            one, other = rng.sample(self.nodes, 2)
            self.fabric.partition([one], [other], one_way=rng.random() < 0.3)
            self.cuts.append((now_s + rng.choice((0.1, 1.0, 6.0)), (one.name, other.name)))
        elif drawn < 0.009 and self.back_s < 0:
            self.fabric.crash(self.mortal, silent=rng.random() < 0.3)
            self.back_s = now_s + rng.choice((0.1, 1.0, 5.0))
        elif drawn < 0.015:
            client = rng.choice(self.fickle)
            if client.node.running:
                change = rng.choice((client.subscribe, client.unsubscribe))
                change(rng.choice(OTHER_FILTERS))

    def heal(self) -> None:
        self.fabric.heal()
        self.cuts.clear()
        if self.back_s > 0:
            self.fabric.restart(self.mortal)
        self.fabric.settle()
        self.fabric.run(HOLD_S + 10)
        self.fabric.settle()

    def check(self) -> None:
        for client in self.subscribers:
            by_stream: dict[bytes, list[bytes]] = {}
            for payload in client.payloads():
                by_stream.setdefault(payload.rpartition(b" ")[0], []).append(payload)
            for (publisher, topic, qos), sent in self.sent.items():
                came = by_stream.get(f"{publisher} {topic} {qos}".encode(), [])
                assert len(set(came)) == len(came), f"twice at {client.client_id}"
                missing = set(sent) - set(came)
                assert not missing, f"{client.client_id} never got {sorted(missing)[:5]}"
                late = next((b for a, b in zip(sent, came, strict=True) if a != b), None)
                assert late is None, f"{client.client_id} got {late!r} too early"


def _run(seed: int, seconds: float) -> None:
    load = _Load(seed)
    load.run(seconds)
    load.heal()
    load.check()
    check_at_rest(load.fabric)


@pytest.mark.parametrize("seed", [0, 6, 11, 12])
def test_all_comes_once_and_in_order(seed: int) -> None:
    _run(seed, 6.0)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(100, 200))
def test_all_comes_once_and_in_order_in_many_runs(seed: int) -> None:
    _run(seed, 10.0)
