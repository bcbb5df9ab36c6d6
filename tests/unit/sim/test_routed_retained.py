"""Retained messages that go only where they are wanted.

a ── b ── c ── d        a publishes; who wants it comes, goes, and comes late
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from isthmus.cooperation.link_rules import LinkRules
from isthmus.exchange.retained import service
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import check_at_rest
from isthmus.sim.node import SimNode


def line(*, state_dir: bool = True) -> tuple[SimFabric, list[SimNode]]:
    fabric = SimFabric(seed=5, routes_retained=True)
    nodes = [fabric.node(name, state_dir=state_dir) for name in "abcd"]
    for one, other in pairwise(nodes):
        fabric.link(one, other)
    fabric.settle()
    return fabric, nodes


def subscriber(node: SimNode, name: str, *filters: str) -> SimClient:
    client = node.client(name)
    client.subscribe(*filters)
    return client


def held(node: SimNode) -> dict[str, bytes]:
    return {topic: publish.payload for topic, publish in node.broker.retained.items()}


def kept(node: SimNode) -> set[str]:
    return {topic.decode() for topic in node.exchange.retention.store.topics()}


@pytest.mark.parametrize("wanted", ["r/1", "r/+", "#"])
def test_a_late_subscriber_gets_it_over_two_hops(wanted: str) -> None:
    fabric, (a, b, c, d) = line()
    publisher = a.client("p")
    fabric.settle()
    publisher.publish("r/1", b"old", qos=1, retain=True)
    publisher.publish("r/1", b"new", qos=1, retain=True)
    publisher.publish("r/2", b"deleted", qos=1, retain=True)
    publisher.publish("r/2", b"", qos=1, retain=True)
    fabric.settle()
    assert [held(node) for node in (b, c, d)] == [{}, {}, {}]
    assert [kept(node) for node in (b, c, d)] == [set(), set(), set()]
    late = subscriber(c, "late", wanted)
    fabric.settle()
    assert late.payloads() == [b"new"]
    assert held(c) == {"r/1": b"new"}
    assert held(b) == {}, "it passed there, and nobody wants it"
    assert held(d) == {}
    assert kept(d) == set()
    # And somebody else, to whom it has come half of the way already.
    later = subscriber(d, "later", wanted)
    local = subscriber(b, "local", wanted)
    fabric.settle()
    assert later.payloads() == local.payloads() == [b"new"]
    assert late.payloads() == [b"new"]
    assert held(b) == held(d) == {"r/1": b"new"}
    check_at_rest(fabric)


def test_what_changed_while_nobody_wanted_it() -> None:
    fabric, (a, _, c, _) = line()
    publisher, reader = a.client("p"), subscriber(c, "s", "r/#")
    fabric.settle()
    publisher.publish("r/1", b"1", qos=1, retain=True)
    publisher.publish("r/2", b"1", qos=1, retain=True)
    fabric.settle()
    assert held(c) == {"r/1": b"1", "r/2": b"1"}
    reader.unsubscribe("r/#")
    fabric.settle()
    publisher.publish("r/1", b"2", qos=1, retain=True)
    publisher.publish("r/2", b"", qos=1, retain=True)
    fabric.settle()
    assert held(c) == {"r/1": b"1", "r/2": b"1"}, "it is not told"
    again = subscriber(c, "again", "r/#")
    fabric.settle()
    assert held(c) == {"r/1": b"2"}
    assert again.payloads("r/1")[-1] == b"2"
    assert again.payloads("r/2")[-1:] != [b"1"] or len(again.payloads("r/2")) == 1
    check_at_rest(fabric)


def test_over_a_partition_both_ways() -> None:
    fabric, (a, b, c, d) = line()
    clients = [a.client("pa"), d.client("pd")]
    readers = [subscriber(a, "sa", "r/+"), subscriber(d, "sd", "r/#", "x/1")]
    fabric.settle()
    fabric.partition([a, b], [c, d])
    fabric.run(5.0)
    clients[0].publish("r/1", b"a", qos=1, retain=True)
    clients[1].publish("r/1", b"d", qos=1, retain=True)
    clients[0].publish("x/1", b"a", qos=0, retain=True)
    clients[0].publish("y/1", b"a", qos=0, retain=True)
    fabric.run(1.0)
    fabric.heal()
    fabric.settle()
    assert held(a)["r/1"] == held(d)["r/1"]
    assert held(d)["x/1"] == b"a"
    assert "y/1" not in held(d)
    assert kept(d) == {"r/1", "x/1"}
    assert readers[0].payloads() or readers[1].payloads()
    check_at_rest(fabric)


@pytest.mark.parametrize("state_dir", [True, False])
def test_a_transit_node_that_crashes(state_dir: bool) -> None:
    fabric, (a, b, c, d) = line(state_dir=state_dir)
    publisher = a.client("p")
    reader = subscriber(d, "s", "r/#")
    fabric.settle()
    publisher.publish("r/1", b"1", qos=1, retain=True)
    fabric.settle()
    fabric.crash(b)
    publisher.publish("r/2", b"2", qos=0, retain=True)
    publisher.publish("r/1", b"", qos=1, retain=True)
    fabric.run(2.0)
    fabric.restart(b)
    fabric.settle()
    assert held(d) == {"r/2": b"2"}
    assert reader.payloads("r/2") == [b"2"]
    subscriber(c, "late", "r/#")
    fabric.settle()
    assert held(c) == {"r/2": b"2"}
    check_at_rest(fabric)


def test_nobody_keeps_what_nobody_wants() -> None:
    fabric, (a, b, c, _) = line()
    publisher, reader = a.client("p"), subscriber(c, "s", "r/#")
    fabric.settle()
    for number in range(250):
        publisher.publish(f"r/{number}", b"1", qos=1, retain=True)
    fabric.settle()
    assert len(kept(b)) == len(kept(c)) == 250
    reader.unsubscribe("r/#")
    fabric.run(service.RESYNC_S + 1.0)
    assert len(kept(a)) == 250
    assert kept(b) == kept(c) == set()
    subscriber(c, "again", "r/7")
    fabric.settle()
    assert kept(b) == kept(c) == {"r/7"}


def test_with_rules() -> None:
    fabric = SimFabric(seed=5, routes_retained=True)
    site, hub = fabric.node("site"), fabric.node("hub")
    fabric.link(site, hub, rules=LinkRules(("plant/#",), None, "site-1/"))
    publisher, other = site.client("p"), hub.client("o")
    fabric.settle()
    publisher.publish("plant/1", b"1", qos=1, retain=True)
    publisher.publish("private", b"1", qos=1, retain=True)
    other.publish("site-1/orders", b"2", qos=1, retain=True)
    fabric.settle()
    assert held(hub) == {"site-1/orders": b"2"}
    reader = subscriber(hub, "s", "+/#")
    subscriber(site, "t", "orders")
    fabric.settle()
    assert held(hub) == {"site-1/plant/1": b"1", "site-1/orders": b"2"}
    assert held(site) == {"plant/1": b"1", "private": b"1", "orders": b"2"}
    assert set(reader.payloads()) == {b"1", b"2"}
    check_at_rest(fabric)


def test_nodes_of_both_kinds_do_not_link() -> None:
    fabric = SimFabric(routes_retained=True)
    a = fabric.node("a")
    fabric.routes_retained = False
    b = fabric.node("b")
    fabric.link(a, b)
    fabric.run(5.0)
    assert not list(a.exchange.links)
    assert b.exchange.links.refusals["retained"]
    assert "retained the same" in a.exchange.status()["peers"][0]["problem"]


@pytest.mark.parametrize("algorithm", ["pf", "tree", "skipgraph"])
def test_other_algorithms_cannot(algorithm: str) -> None:
    fabric = SimFabric(algorithm=algorithm, routes_retained=True)
    with pytest.raises(ValueError, match="cannot route retained messages"):
        fabric.node("a")
