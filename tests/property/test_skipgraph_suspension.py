"""How long it takes until publishers fall silent, and begin again, in whole fabrics under churn.

    n0 ─┬─ n1      Five nodes, all linked with each other.  At each a client publishes on both
        ├─ n2      topics, ten times a second, at QoS 1; subscribers come and go, with the topics'
        ├─ n3      names and with wildcards, and links break, or a node is killed.
        └─ n4

Bounds (docs/explanation/skip-graph.md), with wires of 5 ms:

- a subscriber gets everything that is published from `RESUMED_S` after its SUBACK on, whatever
  happens to links and to nodes other than its own and the publisher's;
- from `SUSPENDED_S` after nobody wants a topic any more, or `hold_s` + `REBUILT_S` after something
  has happened to links or nodes, nothing that is published on it goes to a neighbor.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations

import pytest

from isthmus.cooperation.registry import load
from isthmus.exchange.link.links import LinkSettings
from isthmus.mqtt.filters.topics import matches
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import check_at_rest

RESUMED_S = 1.0
SUSPENDED_S = 2.0
REBUILT_S = 10.0
HOLD_S = 3.0
TOPICS = ("t/a", "u")
FILTERS = ("t/a", "u", "t/+", "#")
PACE_S = 0.1


@dataclass
class _Wish:
    client: SimClient
    topic_filter: str
    since_s: float
    until_s: float = float("inf")


@dataclass
class _Sent:
    at_s: float
    node: str
    topic: str
    payload: bytes
    went: bool
    """To a neighbor, at once."""


class _Churn:
    def __init__(self, seed: int, *, faults: bool) -> None:
        self.rng = random.Random(f"suspension {seed}")
        self.faults = faults
        self.fabric = SimFabric(
            seed=seed, algorithm=load("skipgraph"), link=LinkSettings(hold_s=HOLD_S)
        )
        self.nodes = [self.fabric.node(f"n{number}") for number in range(5)]
        for one, other in combinations(self.nodes, 2):
            self.fabric.link(one, other)
        self.publishers = [node.client(f"p-{node.name}") for node in self.nodes]
        self.subscribers = [node.client(f"s-{node.name}") for node in self.nodes[:4]]
        self.wishes: list[_Wish] = []
        self.sent: list[_Sent] = []
        self.fault_s = -HOLD_S - REBUILT_S
        """When something happened to a link or a node, or still does."""
        self.down_until_s = -1.0
        self.ends_s: list[float] = []
        self.fabric.settle()

    def run(self, seconds: float) -> None:
        end_s = self.fabric.now_s + seconds
        while self.fabric.now_s < end_s:
            self.fabric.run(PACE_S)
            if self.rng.random() < 0.06:
                self._change_wishes()
            if self.faults:
                self._trouble()
            for client in self.publishers:
                self._publish(client)

    def _change_wishes(self) -> None:
        client = self.rng.choice(self.subscribers)
        held = [each for each in self.wishes if each.client is client and each.until_s > 1e9]
        now_s = self.fabric.now_s
        if held and self.rng.random() < 0.7:
            for each in held:
                client.unsubscribe(each.topic_filter)
                each.until_s = now_s
        else:
            topic_filter = self.rng.choice(FILTERS)
            if topic_filter not in [each.topic_filter for each in held]:
                client.subscribe(topic_filter, qos=1)
                self.wishes.append(_Wish(client, topic_filter, now_s))

    def _trouble(self) -> None:
        now_s = self.fabric.now_s
        mortal = self.nodes[4]  # without a subscriber
        if self.down_until_s > 0 and now_s >= self.down_until_s:
            self.fabric.restart(mortal)
            self.down_until_s, self.fault_s = -1.0, now_s
        drawn = self.rng.random()
        if drawn < 0.01:
            self.fabric.break_connections(*self.rng.sample(self.nodes[:4], 2))
            self.fault_s = now_s
        elif drawn < 0.013 and self.down_until_s < 0:
            self.fabric.crash(mortal, silent=self.rng.random() < 0.5)
            self.ends_s.append(now_s)
            self.down_until_s = now_s + self.rng.choice((0.2, 1.0, 6.0))
        if self.down_until_s > 0:
            self.fault_s = now_s

    def _publish(self, client: SimClient) -> None:
        node = client.node
        if not node.running:
            return
        for topic in TOPICS:
            payload = b"%d" % len(self.sent)
            if client.publish(topic, payload, qos=1):
                self.fabric.run(0.003)
                went = node.running and bool(node.exchange.client_routes[topic.encode()].neighbors)
                self.sent.append(_Sent(self.fabric.now_s, node.name, topic, payload, went))
                self._check_silence(self.sent[-1])

    def _check_silence(self, message: _Sent) -> None:
        wanted_s = max(
            (
                min(each.until_s, message.at_s)
                for each in self.wishes
                if matches(each.topic_filter, message.topic)
            ),
            default=0.0,
        )
        quiet_s = message.at_s - max(wanted_s + SUSPENDED_S, self.fault_s + HOLD_S + REBUILT_S)
        assert not (message.went and quiet_s > 0), (
            f"{message} went to a neighbor {quiet_s:.2f} s after publishers must be silent"
        )

    def check_delivered(self) -> int:
        """How many were owed to somebody."""
        owed = 0
        for message in self.sent:
            if message.node == "n4" and any(
                message.at_s - 1.0 <= end_s <= message.at_s + 30 for end_s in self.ends_s
            ):
                continue  # what it had it may have taken with it
            for each in self.wishes:
                if (
                    matches(each.topic_filter, message.topic)
                    and each.since_s + RESUMED_S <= message.at_s < each.until_s - 1.0
                ):
                    owed += 1
                    assert message.payload in each.client.payloads(), (
                        f"{message} never reached {each.client.client_id}, "
                        f"which wants {each.topic_filter} since {each.since_s:.2f}"
                    )
        return owed


def without_faults(seed: int) -> tuple[int, int]:
    """How many messages were owed to somebody, and how many were published in silence."""
    churn = _Churn(seed, faults=False)
    churn.run(60.0)
    churn.fabric.settle()
    check_at_rest(churn.fabric)
    return churn.check_delivered(), sum(not each.went for each in churn.sent)


@pytest.mark.parametrize("seed", range(3))
def test_without_faults(seed: int) -> None:
    owed, silent = without_faults(seed)
    assert owed > 1_000
    assert silent > 100, "publishers were never suspended: nothing was tried"


def with_faults(seed: int) -> int:
    """How many messages were owed to somebody."""
    churn = _Churn(seed, faults=True)
    churn.run(90.0)
    if churn.down_until_s > 0:
        churn.fabric.restart(churn.nodes[4])
    churn.fabric.settle()
    churn.fabric.run(HOLD_S + REBUILT_S)
    churn.fabric.settle()
    check_at_rest(churn.fabric)
    return churn.check_delivered()


@pytest.mark.parametrize("seed", range(3))
def test_with_broken_links_and_killed_nodes(seed: int) -> None:
    assert with_faults(seed) > 1_000


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(100, 200, 10))
def test_both_in_a_hundred_runs(first: int) -> None:
    owed = silent = 0
    for seed in range(first, first + 10):
        some, quiet = without_faults(seed)
        owed, silent = owed + some + with_faults(seed), silent + quiet
    assert owed > 20_000
    assert silent > 1_000
