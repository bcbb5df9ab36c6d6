"""The figures of the Overlays paper: Fig. 3 and Fig. 5 (a) to (c), table by table.

A ── B ── C     A is the most capable; D hangs at B
     └── D
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from isthmus.cooperation.api import Port
from isthmus.cooperation.tree.messages import (
    Adopt,
    Advertise,
    Echo,
    Explore,
    TreeMessage,
    Want,
)
from isthmus.cooperation.tree.routed import RoutedTree
from isthmus.sim import SimFabric
from isthmus.sim.network import HopRecord
from isthmus.sim.node import SimNode

RTT_MS = {"AB": 10, "AC": 40, "AD": 60, "BC": 12, "BD": 20, "CD": 50}


class Recorded(RoutedTree):
    """Notes what it says of topics, and what it says in waves."""

    said: list[tuple[str, str, TreeMessage]]
    signaled: list[tuple[str, str, Explore | Echo | Adopt]]

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self.said, self.signaled = [], []

    def send(self, neighbor: str, message: TreeMessage) -> None:
        if isinstance(message, Advertise | Want):
            self.said.append((self.port.node_id, neighbor, message))
        elif isinstance(message, Explore | Echo | Adopt):
            self.signaled.append((self.port.node_id, neighbor, message))
        super().send(neighbor, message)


class Overlay:
    """Four brokers, all linked with each other; the costs make the tree above."""

    def __init__(self) -> None:
        self.hops: list[HopRecord] = []
        self.fabric = SimFabric(seed=1, algorithm=Recorded, on_hop=self.hops.append)
        self.nodes: dict[str, SimNode] = {name: self.fabric.node(name) for name in "ABCD"}
        for pair, rtt_ms in RTT_MS.items():
            a, b = (self.nodes[name] for name in pair)
            self.fabric.link(a, b, delay_s=rtt_ms / 2000)
        self.fabric.settle()

    def algorithm(self, name: str) -> Recorded:
        algorithm = self.nodes[name].algorithm
        assert isinstance(algorithm, Recorded)
        return algorithm

    def signaled(self) -> dict[str, list[tuple[str, str, object]]]:
        """The wave of the tree in use: from, to, and the cost in ms, or the nodes."""
        found: dict[str, list[tuple[str, str, object]]] = {"explore": [], "echo": [], "adopt": []}
        for name in self.nodes:
            algorithm = self.algorithm(name)
            for sender, receiver, message in algorithm.signaled:
                if algorithm.tree is None or message.wave != algorithm.tree.wave:
                    continue
                if isinstance(message, Explore):
                    found["explore"].append((sender, receiver, round(message.cost_us / 1000)))
                else:
                    kind = "echo" if isinstance(message, Echo) else "adopt"
                    found[kind].append((sender, receiver, "".join(sorted(message.nodes))))
        return {kind: sorted(each) for kind, each in found.items()}

    def said(self) -> list[tuple[str, str, str, tuple[str, ...], tuple[str, ...]]]:
        """What was said since this was last asked: from, to, what, and topics yes and no."""
        said = []
        for name in self.nodes:
            algorithm = self.algorithm(name)
            for sender, receiver, message in algorithm.said:
                if isinstance(message, Advertise):
                    said.append((sender, receiver, "advertise", message.begun, message.ended))
                elif isinstance(message, Want):
                    said.append((sender, receiver, "want", message.wanted, message.unwanted))
            algorithm.said.clear()
        return sorted(said)

    def srt(self, topic: str) -> dict[str, list[str]]:
        return {name: sorted(self.table(name, topic)[0]) for name in self.nodes}

    def prt(self, topic: str) -> dict[str, list[str]]:
        """Neighbors behind which it is wanted, and ``here``."""
        return {name: self.table(name, topic)[1] for name in self.nodes}

    def table(self, name: str, topic: str) -> tuple[set[str], list[str]]:
        tables = self.algorithm(name).advertising.tables.get(topic)
        if tables is None:
            return set(), []
        wanted = sorted(each for each, answer in tables.prt.items() if answer)
        return tables.srt, wanted + ["here"] * tables.here

    def ways(self) -> list[tuple[str, str]]:
        """The links that messages took since this was last asked."""
        ways = sorted((hop.source, hop.target) for hop in self.hops)
        self.hops.clear()
        return ways


@pytest.fixture
def overlay() -> Overlay:
    return Overlay()


def test_figure_3_the_overlay_routing_tables(overlay: Overlay) -> None:
    """Of the whole way the shortest: C and D reach the root over B, although all are linked."""
    trees = {name: overlay.algorithm(name).tree for name in "ABCD"}
    tables = {
        name: (tree.wave.root, tree.parent, sorted(tree.children), round(tree.cost_us / 1000))
        for name, tree in trees.items()
        if tree is not None
    }
    assert tables == {
        "A": ("A", "", ["B"], 0),
        "B": ("A", "A", ["C", "D"], 10),
        "C": ("A", "B", [], 22),
        "D": ("A", "B", [], 30),
    }
    # Who has chosen its parent asks everybody else; the costs are those from there to the root.
    assert overlay.signaled() == {
        "explore": [
            ("A", "B", 0),
            ("A", "C", 0),
            ("A", "D", 0),
            ("B", "C", 10),
            ("B", "D", 10),
            ("C", "A", 22),
            ("C", "D", 22),
            ("D", "A", 30),
            ("D", "C", 30),
        ],
        "echo": [("B", "A", "BCD"), ("C", "B", "C"), ("D", "B", "D")],
        "adopt": [("A", "B", "ABCD"), ("B", "C", "ABCD"), ("B", "D", "ABCD")],
    }


def test_figure_5_advertisement_subscription_publication(overlay: Overlay) -> None:
    publisher = overlay.nodes["A"].client("p")
    subscriber = overlay.nodes["C"].client("x")
    overlay.fabric.settle()

    # (a) the first message is flooded, and so is the advertisement; all SRTs lead to A
    publisher.publish("topic1", b"first", qos=1)
    overlay.fabric.settle()
    assert overlay.said() == [
        ("A", "B", "advertise", ("topic1",), ()),
        ("B", "A", "want", (), ("topic1",)),
        ("B", "C", "advertise", ("topic1",), ()),
        ("B", "D", "advertise", ("topic1",), ()),
        ("C", "B", "want", (), ("topic1",)),
        ("D", "B", "want", (), ("topic1",)),
    ]
    assert overlay.srt("topic1") == {"A": [], "B": ["A"], "C": ["B"], "D": ["B"]}
    assert overlay.prt("topic1") == {"A": [], "B": [], "C": [], "D": []}
    assert overlay.ways() == [("A", "B"), ("B", "C"), ("B", "D")]

    # (b) the subscription follows the SRTs
    subscriber.subscribe("topic1")
    overlay.fabric.settle()
    assert overlay.said() == [
        ("B", "A", "want", ("topic1",), ()),
        ("C", "B", "want", ("topic1",), ()),
    ]
    assert overlay.prt("topic1") == {"A": ["B"], "B": ["C"], "C": ["here"], "D": []}

    # (c) a publication follows the PRTs
    publisher.publish("topic1", b"second", qos=1)
    overlay.fabric.settle()
    assert overlay.ways() == [("A", "B"), ("B", "C")]
    assert subscriber.payloads() == [b"second"]
    assert overlay.said() == []


@pytest.mark.parametrize("topic_filter", ["topic1", "+", "#"])
def test_a_subscription_may_come_before_the_advertisement(
    overlay: Overlay, topic_filter: str
) -> None:
    subscriber = overlay.nodes["C"].client("x")
    subscriber.subscribe(topic_filter)
    overlay.fabric.settle()
    assert overlay.said() == []  # nobody publishes: it stays where it is
    publisher = overlay.nodes["A"].client("p")
    overlay.fabric.settle()
    for payload in (b"first", b"second"):
        publisher.publish("topic1", payload, qos=1)
        overlay.fabric.settle()
    assert overlay.prt("topic1") == {"A": ["B"], "B": ["C"], "C": ["here"], "D": []}
    assert subscriber.payloads() == [b"first", b"second"]
    first, second = [("A", "B"), ("B", "C"), ("B", "D")], [("A", "B"), ("B", "C")]
    assert overlay.ways() == sorted(first + second)


def test_who_publishes_or_subscribes_last_takes_it_all_with_it(overlay: Overlay) -> None:
    subscriber, publisher = overlay.nodes["C"].client("x"), overlay.nodes["A"].client("p")
    other = overlay.nodes["D"].client("q")
    overlay.fabric.settle()
    subscriber.subscribe("+")
    publisher.publish("topic1", b"1", qos=1)
    overlay.fabric.settle()
    subscriber.unsubscribe("+")
    overlay.fabric.settle()
    assert overlay.prt("topic1") == {"A": [], "B": [], "C": [], "D": []}
    overlay.hops.clear()
    publisher.publish("topic1", b"2", qos=1)
    other.publish("topic1", b"3", qos=1)
    overlay.fabric.settle()
    assert overlay.srt("topic1") == {"A": ["B"], "B": ["A", "D"], "C": ["B"], "D": ["B"]}
    publisher.disconnect()
    overlay.fabric.run(15.0)
    assert overlay.srt("topic1") == {"A": ["B"], "B": ["D"], "C": ["B"], "D": []}
    other.disconnect()
    overlay.fabric.run(15.0)
    assert overlay.srt("topic1") == {"A": [], "B": [], "C": [], "D": []}
    assert all(not overlay.algorithm(name).advertising.tables for name in "ABCD")
