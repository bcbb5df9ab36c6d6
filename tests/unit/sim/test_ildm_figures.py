"""ILDM Fig. 6, 7 and 8: the same topology, the same steps, the same messages on the same links.

I1 ── I2 ── I3 ── I5        C1 at I2, C2 at I3, C3 at I5
      │
      I4
"""

from __future__ import annotations

import pytest

from isthmus.sim import SimFabric
from isthmus.sim.client import SimClient
from isthmus.sim.node import SimNode

Counts = dict[tuple[str, str], int]
"""Packets of one type by (from, to), where there were any."""

TREE = ((1, 2), (2, 3), (2, 4), (3, 5))


def sent(fabric: SimFabric, packet_type: str) -> Counts:
    """What was sent since the last call of `reset_counts`."""
    return {
        pair: counts[packet_type] for pair, counts in fabric.counts.items() if counts[packet_type]
    }


class Figure:
    """The topology of Fig. 6 and 7, at rest; then a step at a time."""

    def __init__(self, algorithm: str) -> None:
        self.fabric = SimFabric(seed=6, algorithm=algorithm)
        self.nodes: dict[int, SimNode] = {n: self.fabric.node(f"I{n}") for n in range(1, 6)}
        for a, b in TREE:
            self.fabric.link(self.nodes[a], self.nodes[b])
        self.clients: dict[int, SimClient] = {
            number: self.nodes[node].client(f"C{number}")
            for number, node in ((1, 2), (2, 3), (3, 5))
        }
        self.rest()

    def rest(self) -> None:
        self.fabric.settle()

    def step(self) -> None:
        self.fabric.reset_counts()


def test_fig_6_pf() -> None:
    figure = Figure("pf")
    figure.step()
    figure.clients[1].subscribe("t")
    figure.rest()
    figure.clients[2].subscribe("t")
    figure.rest()
    assert sent(figure.fabric, "SUBSCRIBE") == {}
    figure.step()
    figure.clients[3].publish("t", b"x")
    figure.rest()
    assert sent(figure.fabric, "PUBLISH") == {
        ("I5", "I3"): 1,
        ("I3", "I2"): 1,
        ("I2", "I1"): 1,
        ("I2", "I4"): 1,
    }
    brokers = {name: node.broker.injected[b"x"] for name, node in figure.fabric.nodes.items()}
    assert brokers == {"I1": 1, "I2": 1, "I3": 1, "I4": 1, "I5": 0}  # I5's has it from C3
    assert figure.clients[1].payloads() == figure.clients[2].payloads() == [b"x"]


def test_fig_7_sf() -> None:
    figure = Figure("sf")
    figure.step()
    figure.clients[1].subscribe("t")
    figure.rest()
    assert sent(figure.fabric, "SUBSCRIBE") == {
        ("I2", "I1"): 1,
        ("I2", "I3"): 1,
        ("I2", "I4"): 1,
        ("I3", "I5"): 1,
    }
    figure.step()
    figure.clients[2].subscribe("t")
    figure.rest()
    assert sent(figure.fabric, "SUBSCRIBE") == {("I3", "I2"): 1}
    figure.step()
    figure.clients[3].publish("t", b"x")
    figure.rest()
    assert sent(figure.fabric, "PUBLISH") == {("I5", "I3"): 1, ("I3", "I2"): 1}
    brokers = {name: node.broker.injected[b"x"] for name, node in figure.fabric.nodes.items()}
    assert brokers == {"I1": 0, "I2": 1, "I3": 1, "I4": 0, "I5": 0}
    assert figure.clients[1].payloads() == figure.clients[2].payloads() == [b"x"]


def test_fig_7_backwards() -> None:
    """§3.2.1: who unsubscribes takes back what it alone wanted."""
    figure = Figure("sf")
    figure.clients[1].subscribe("t")
    figure.clients[2].subscribe("t")
    figure.rest()
    figure.step()
    figure.clients[1].unsubscribe("t")
    figure.rest()
    assert sent(figure.fabric, "UNSUBSCRIBE") == {("I2", "I3"): 1}
    figure.step()
    figure.clients[2].unsubscribe("t")
    figure.rest()
    assert sent(figure.fabric, "UNSUBSCRIBE") == {
        ("I3", "I2"): 1,
        ("I3", "I5"): 1,
        ("I2", "I1"): 1,
        ("I2", "I4"): 1,
    }


@pytest.mark.parametrize("dialer", [2, 4])
def test_fig_8_adding_and_removing(dialer: int) -> None:
    """I1 wants t1 and I3 wants t2, each with I2; I4 wants t3, and is then linked with I2."""
    fabric = SimFabric(seed=8, algorithm="sf")
    nodes = {number: fabric.node(f"I{number}") for number in range(1, 5)}
    fabric.link(nodes[1], nodes[2])
    fabric.link(nodes[2], nodes[3])
    for number, node in ((1, 1), (2, 3), (3, 4)):
        nodes[node].client(f"C{number}").subscribe(f"t{number}")
    fabric.settle()
    fabric.reset_counts()
    other = 6 - dialer
    fabric.link(nodes[dialer], nodes[other])
    fabric.settle()
    assert sent(fabric, "SUBSCRIBE") == {
        ("I2", "I4"): 1,  # t1 and t2 in one packet
        ("I4", "I2"): 1,
        ("I2", "I1"): 1,
        ("I2", "I3"): 1,
    }
    assert filters_received(nodes[4], "I2") == {"t1", "t2"}
    assert filters_received(nodes[2], "I4") == {"t3"}
    assert filters_received(nodes[1], "I2") == {"t2", "t3"}
    assert filters_received(nodes[3], "I2") == {"t1", "t3"}
    fabric.reset_counts()
    fabric.unlink(nodes[dialer], nodes[other])
    fabric.settle()
    assert sent(fabric, "UNSUBSCRIBE") == {("I2", "I1"): 1, ("I2", "I3"): 1}
    assert filters_received(nodes[1], "I2") == {"t2"}
    assert filters_received(nodes[3], "I2") == {"t1"}


def filters_received(node: SimNode, neighbor: str) -> set[str]:
    from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding

    algorithm = node.algorithm
    assert isinstance(algorithm, SubscriptionFlooding)
    return set(algorithm.received_from(node.exchange.links.links[neighbor].info))
