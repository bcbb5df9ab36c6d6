"""Nobody lies, and it is hard all the same.

Long slow lines, a root that is back at once, messages that are there before the tree they are in.
"""

from __future__ import annotations

import zlib
from itertools import combinations, pairwise

import pytest

from isthmus.cooperation.api import Resources
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.in_hand import MAX_UNSAFE
from isthmus.sim.fabric import SimFabric
from isthmus.sim.network import WireSettings


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


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
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


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
def test_what_comes_before_the_tree_it_is_in_waits_for_who_is_away(algorithm: str) -> None:
    """p ── q, r is cut off: q has not adopted the tree without r, and gets messages in it."""
    wire = WireSettings(0.01, control_delay_s=0.02)
    fabric = SimFabric(seed=1, algorithm=algorithm, link=LinkSettings(lanes=2), wire=wire)
    p, q, r = (fabric.node(name) for name in "pqr")
    p.resources = Resources(8.0, 8 << 30)
    fabric.link(p, q)
    fabric.link(q, r)
    publisher, subscriber = p.client("p"), r.client("s")
    subscriber.subscribe("t/#", qos=1)
    fabric.settle()
    # Control packets go by the first lane, this by the second one, which is faster.
    topic = next(name for name in ("t/1", "t/2", "t/3") if zlib.crc32(name.encode()) % 2)
    sent = [b"%d" % number for number in range(1_000)]
    fabric.partition([r], [q])
    for payload in sent:
        assert publisher.publish(topic, payload, qos=1)
        fabric.run(0.005)
    fabric.heal()
    fabric.settle()
    assert subscriber.payloads() == sent


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
def test_what_is_retained_at_qos_0_and_lost_with_a_link_comes_by_the_next_tree(
    algorithm: str,
) -> None:
    """n0 ── n1 ── n2 is there when n0 ── n2, which was in the tree, is removed."""
    fabric = SimFabric(seed=1, algorithm=algorithm)
    n0, n1, n2 = (fabric.node(f"n{index}") for index in range(3))
    fabric.link(n0, n1, delay_s=0.02)
    fabric.link(n2, n0, delay_s=0.02)
    publisher = n0.client("p")
    fabric.settle()
    fabric.link(n2, n1, delay_s=0.02)
    fabric.run(0.2)
    fabric.unlink(n2, n0)
    assert publisher.publish("r", b"retained", qos=0, retain=True)
    fabric.settle()
    for node in (n0, n1, n2):
        assert [each.payload for each in node.broker.retained.values()] == [b"retained"], node


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
def test_what_a_node_that_joins_publishes_reaches_the_others(algorithm: str) -> None:
    """From when its link is up, and long before there is a tree with it."""
    fabric = SimFabric(seed=2, algorithm=algorithm)
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b, delay_s=0.3)
    subscriber = a.client("s")
    subscriber.subscribe("t", qos=1)
    fabric.run(10)
    c = fabric.node("c")
    publisher = c.client("p")
    fabric.run(1)
    fabric.link(c, b, delay_s=0.3)
    while not any(link.state.up for link in c.exchange.links):
        fabric.run(0.01)
    sent = [b"%d" % number for number in range(100)]
    for payload in sent:
        assert publisher.publish("t", payload, qos=1)
        fabric.run(0.02)
    fabric.settle()
    assert subscriber.payloads() == sent


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
def test_what_waits_for_a_neighbor_of_the_last_life_goes_over_another(algorithm: str) -> None:
    """h is back and in a tree with x, whom it had not known; n, whom it had, comes over x."""
    fabric = SimFabric(seed=3, algorithm=algorithm)
    h, n = fabric.node("h", state_dir=True), fabric.node("n")
    fabric.link(h, n, delay_s=0.5)
    subscriber = n.client("s", clean_start=False, session_expiry_s=1_000)
    subscriber.subscribe("t", qos=1)
    fabric.settle()
    fabric.crash(h)
    x = fabric.node("x")
    x.resources = Resources(8.0, 8 << 30)
    fabric.link(h, x)
    fabric.partition([n], [h, x])
    fabric.restart(h)
    fabric.run(5)
    publisher = h.client("p")
    fabric.run(1)
    sent = [b"%d" % number for number in range(20)]
    for payload in sent[:10]:
        assert publisher.publish("t", payload, qos=1)
    fabric.run(1)
    fabric.link(x, n)
    fabric.heal()
    for payload in sent[10:]:
        assert publisher.publish("t", payload, qos=1)
        fabric.run(0.3)
    fabric.settle()
    assert subscriber.payloads() == sent


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree"])
@pytest.mark.parametrize("comes_back", [False, True])
def test_what_was_let_go_comes_once_from_who_has_it(algorithm: str, comes_back: bool) -> None:
    """p ── t ── x is cut beyond t, and p ── y ── x is there, or comes back."""
    count = MAX_UNSAFE + 400
    fabric = SimFabric(seed=1, algorithm=algorithm)
    p, t, x, y = (fabric.node(name) for name in "ptxy")
    p.resources = Resources(32.0, 8 << 30)
    for one, other, delay_s in ((p, t, 0.002), (t, x, 0.002), (p, y, 0.05), (y, x, 0.05)):
        fabric.link(one, other, delay_s=delay_s)
    publisher, subscriber = p.client("p"), x.client("s")
    subscriber.subscribe("t", qos=1)
    fabric.run(10)
    if comes_back:
        fabric.partition([x], [y])
        fabric.run(5)
    fabric.partition([x], [t])
    for number in range(count):
        assert publisher.publish("t", b"%d" % number, qos=1)
        fabric.run((8.0 if comes_back else 1.5) / count)
    fabric.heal([("x", "y"), ("y", "x")])
    fabric.run(60)
    came = [int(payload) for payload in subscriber.payloads()]
    assert sorted(came) == list(range(count))
    for part in (range(count - MAX_UNSAFE), range(count - MAX_UNSAFE, count)):
        assert [number for number in came if number in part] == list(part)


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree"])
@pytest.mark.parametrize("lane_delay_s", [0.1, 0.15, 0.5])
def test_what_comes_by_the_tree_before_does_not_overtake_what_comes_again(
    algorithm: str, lane_delay_s: float
) -> None:
    """s is cut off from the root h, and reached over v: who hears of that tree before messages."""
    wire = WireSettings(0.002, lane_delay_s=lane_delay_s)
    fabric = SimFabric(seed=1, algorithm=algorithm, link=LinkSettings(lanes=2), wire=wire)
    nodes = {name: fabric.node(name) for name in "hpsv"}
    nodes["h"].resources = Resources(32.0, 8 << 30)
    for one, other in combinations("hpsv", 2):
        fabric.link(nodes[one], nodes[other])
    topic = next(name for name in ("t/1", "t/2", "t/3") if zlib.crc32(name.encode()) % 2)
    subscribers = [nodes[name].client(f"c{name}") for name in "hsv"]
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos=1)
    publisher = nodes["p"].client("p")
    fabric.run(5)
    assert publisher.publish(topic, b"first", qos=1)
    fabric.run(5)
    fabric.partition([nodes["s"]], [nodes["h"], nodes["p"]])
    sent = [b"%d" % number for number in range(400)]
    for payload in sent:
        assert publisher.publish(topic, payload, qos=1)
        fabric.run(0.01)
    fabric.run(30)
    for subscriber in subscribers:
        assert subscriber.payloads() == [b"first", *sent]
