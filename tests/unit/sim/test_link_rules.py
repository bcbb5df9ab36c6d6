"""Links that not everything may cross, in simulated fabrics.

site ── hub ── office        `site` dials, with a prefix: its names are site-1/… at the hub
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.cooperation.link_rules import LinkRules
from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding
from isthmus.exchange.link.links import LinkSettings
from isthmus.mqtt.packets import Will
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import check_at_rest
from isthmus.sim.node import SimNode

SITE = LinkRules(("plant/#",), ("orders/#",), "site-1/")
ALGORITHMS = ("pf", "sf")


def line(algorithm: str = "sf") -> tuple[SimFabric, SimNode, SimNode, SimNode]:
    fabric = SimFabric(algorithm=algorithm, seed=3)
    site, hub, office = fabric.node("site"), fabric.node("hub"), fabric.node("office")
    fabric.link(site, hub, rules=SITE)
    fabric.link(hub, office)
    fabric.settle()
    return fabric, site, hub, office


def got(client: object) -> list[tuple[str, bytes]]:
    return [(each.topic, each.payload) for each in client.received]  # type: ignore[attr-defined]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_get_the_prefix_and_lose_it(algorithm: str, qos: int) -> None:
    fabric, site, _, office = line(algorithm)
    here, there = site.client("here"), office.client("there")
    here.subscribe("#")
    there.subscribe("#")
    fabric.settle()
    for number in range(3):  # from the second on they are known, and go the short way
        here.publish("plant/line/7", b"up %d" % number, qos=qos)
        here.publish("private", b"mine %d" % number, qos=qos)
        there.publish("site-1/orders/3", b"down %d" % number, qos=qos)
        there.publish("site-1/gossip", b"theirs %d" % number, qos=qos)
        there.publish("orders/3", b"nobody's %d" % number, qos=qos)
        fabric.settle()
    assert [each for each in got(there) if each[1].startswith((b"up", b"mine"))] == [
        ("site-1/plant/line/7", b"up %d" % number) for number in range(3)
    ]
    assert [each for each in got(here) if not each[1].startswith((b"up", b"mine"))] == [
        ("orders/3", b"down %d" % number) for number in range(3)
    ]
    check_at_rest(fabric)
    assert not any(node.exchange.counters["rules_refused"] for node in fabric.nodes.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_retained_messages_and_wills(algorithm: str) -> None:
    fabric, site, hub, office = line(algorithm)
    fabric.partition([site], [hub])
    here, there = site.client("here"), office.client("there")
    dying = site.client("dying", will=Will("plant/alarm", b"gone", qos=1))
    there.subscribe("site-1/plant/alarm")
    fabric.settle()
    here.publish("plant/state", b"running", qos=1, retain=True)
    here.publish("private", b"mine", qos=1, retain=True)
    there.publish("site-1/orders/1", b"stop", qos=1, retain=True)
    there.publish("site-1/plant/state", b"not from there", qos=1, retain=True)
    fabric.settle()
    fabric.heal()
    fabric.settle()
    # The hub's side was later, and what it says of plant/ may not come to the site.
    assert {t: p.payload for t, p in site.broker.retained.items()} == {
        "plant/state": b"running",
        "private": b"mine",
        "orders/1": b"stop",
    }
    assert {t: p.payload for t, p in office.broker.retained.items()} == {
        "site-1/plant/state": b"not from there",
        "site-1/orders/1": b"stop",
    }
    here.publish("plant/state", b"newer", qos=1, retain=True)
    there.publish("site-1/orders/1", b"", qos=1, retain=True)
    dying.vanish()
    fabric.settle()
    for node in (hub, office):
        assert {t: p.payload for t, p in node.broker.retained.items()} == {
            "site-1/plant/state": b"newer"
        }
    assert "orders/1" not in site.broker.retained
    assert got(there) == [("site-1/plant/alarm", b"gone")]
    check_at_rest(fabric)


def test_inter_subscriptions_are_narrowed_and_translated() -> None:
    fabric, site, hub, office = line()
    site.client("all").subscribe("#")
    site.client("own").subscribe("private/x")
    office.client("lines").subscribe("+/plant/+", "elsewhere/#")
    fabric.settle()

    def announced(node: SimNode, to: str) -> set[str]:
        algorithm = node.algorithm
        assert isinstance(algorithm, SubscriptionFlooding)
        return set(algorithm.announced_to(node.exchange.links.links[to].info))

    assert announced(site, "hub") == {"site-1/orders/#"}
    assert announced(hub, "site") == {"site-1/plant/+"}
    assert announced(hub, "office") == {"site-1/orders/#"}
    check_at_rest(fabric)


def test_a_neighbor_that_sends_what_may_not_cross_is_not_believed() -> None:
    fabric, site, hub, office = line("pf")
    there = office.client("there")
    there.subscribe("#")
    here = site.client("here")
    fabric.settle()
    link = site.exchange.links.links["hub"]
    link.cross(None)  # it has forgotten the rules
    site.exchange.traffic.routes.ruled.clear()
    site.exchange.traffic.routes_changed(None)
    for qos in (0, 1, 2):
        here.publish("private", b"leak", qos=qos)
        here.publish("private", b"leak", qos=qos)
    here.publish("plant/kept", b"leak", qos=1, retain=True)  # without the prefix
    fabric.run(2.0)
    assert there.payloads() == []
    assert hub.exchange.counters["rules_refused"] >= 7
    assert hub.exchange.links.links["site"].refused >= 7
    assert link.unacked() == 0, "refused for good, not asked for again"
    assert "plant/kept" not in hub.broker.retained


def test_filters_that_may_not_cross_are_not_believed() -> None:
    fabric, site, hub, office = line()
    link = hub.exchange.links.links["site"]
    link.cross(None)
    algorithm = hub.algorithm
    assert isinstance(algorithm, SubscriptionFlooding)
    algorithm.on_session_established(link.info)
    office.client("spy").subscribe("private/#")
    fabric.run(2.0)
    received = site.algorithm
    assert isinstance(received, SubscriptionFlooding)
    assert received.received_from(site.exchange.links.links["hub"].info) == ()
    assert site.exchange.counters["rules_refused"]


def test_ends_that_contradict_each_other_are_told() -> None:
    fabric = SimFabric(algorithm="sf", trace=True)
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b, rules=LinkRules(("x/#", "y/#"), None, "p/"))
    fabric.link(b, a, rules=LinkRules(None, ("p/y/#", "z/#")))
    b_client = b.client("c")
    b_client.subscribe("#")
    fabric.settle()
    for topic in ("x/1", "y/1", "z/1"):
        a.client(f"of {topic}").publish(topic, b"1", qos=1)
    fabric.settle()
    fabric.settle()
    a_client = a.client("again")
    fabric.settle()
    for topic in ("x/2", "y/2", "z/2"):
        a_client.publish(topic, b"2", qos=1)
    fabric.settle()
    assert {topic for topic, _ in got(b_client)} <= {"p/y/1", "p/y/2"}
    assert ("p/y/2", b"2") in got(b_client)
    for node in (a, b):
        (shown,) = node.exchange.status()["links"]
        assert len(shown["rules"]["differ"]) == 1
        assert any(
            f" {node.name}: warning: " in line and "different rules" in line
            for line in fabric.trace.text().splitlines()
        ), "in its log"


def test_two_prefixes_are_refused_at_both_ends() -> None:
    fabric = SimFabric(algorithm="sf")
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b, rules=LinkRules(prefix="p/"))
    fabric.link(b, a, rules=LinkRules(prefix="q/"))
    fabric.run(20.0)
    assert not any(link.state.session for node in (a, b) for link in node.exchange.links)
    for node in (a, b):
        assert node.exchange.links.refusals["rules"] > 0
        assert "only one of them may" in node.exchange.status()["peers"][0]["problem"]


def test_the_acceptors_rules_hold_too() -> None:
    """Both have each other as peers; the connection of one of them is kept."""
    fabric = SimFabric(algorithm="pf")
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    fabric.link(b, a, rules=LinkRules(None, ("open/#",)))
    client = b.client("c")
    client.subscribe("#")
    fabric.settle()
    publisher = a.client("p")
    fabric.settle()
    publisher.publish("secret", b"1", qos=1)
    publisher.publish("open/x", b"2", qos=1)
    fabric.settle()
    assert client.payloads() == [b"2"]
    assert a.exchange.status()["links"][0]["rules"]["out"] == ["open/#"]


def test_a_peer_that_is_not_known_at_first_is_greeted_anew() -> None:
    """It does not say where it is to be dialed; when it answers there, it is known."""
    fabric = SimFabric(algorithm="sf")
    a, b = fabric.node("a"), fabric.node("b")
    dialing = a.exchange.links.dialing
    dialing._hello = replace(dialing._hello, address="")
    fabric.link(a, b)
    fabric.link(b, a, rules=LinkRules(None, ("open/#",)))
    client = b.client("c")
    client.subscribe("#")
    fabric.settle()
    assert a.exchange.status()["links"][0]["rules"]["out"] == ["open/#"]
    publisher = a.client("p")
    fabric.settle()
    publisher.publish("secret", b"1", qos=1)
    publisher.publish("open/x", b"2", qos=1)
    fabric.settle()
    assert client.payloads() == [b"2"]
    check_at_rest(fabric)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rules_that_change_with_a_restart(algorithm: str) -> None:
    fabric, site, hub, office = line(algorithm)
    there = office.client("there")
    there.subscribe("#")
    here = site.client("here", session_expiry_s=3600, clean_start=False)
    here.subscribe("#")
    fabric.settle()
    here.publish("plant/a", b"1", qos=1)
    fabric.settle()
    fabric.crash(site)
    there.publish("site-1/orders/kept", b"for later", qos=1)
    fabric.run(0.5)
    site.peers.clear()
    fabric.link(site, hub, rules=LinkRules(("news/#",), None, "s/"))
    fabric.restart(site)
    fabric.settle()
    here.publish("plant/b", b"2", qos=1)
    here.publish("news/c", b"3", qos=1)
    there.publish("s/d", b"4", qos=1)
    there.publish("site-1/orders/e", b"5", qos=1)
    fabric.settle()
    assert {topic for topic, _ in got(there) if "/orders" not in topic} == {
        "site-1/plant/a",
        "s/news/c",
        "s/d",
    }
    assert ("d", b"4") in got(here)
    assert not {b"5", b"for later"} & set(here.payloads())
    check_at_rest(fabric, retained=False)


def test_rules_are_part_of_what_is_proved() -> None:
    fabric = SimFabric(link=LinkSettings(secret=b"0123456789abcdef"))
    site, hub = fabric.node("site"), fabric.node("hub")
    fabric.link(site, hub, rules=SITE)
    fabric.link(hub, site, rules=LinkRules(None, ("site-1/plant/é",)))
    fabric.settle()
    assert site.exchange.status()["links"][0]["rules"]["out"] == ["plant/é"]
    assert not site.exchange.links.refusals["authentication"]


def test_a_peer_with_other_rules_has_to_be_removed_first() -> None:
    _, site, hub, _ = line()
    with pytest.raises(ValueError, match="with other rules"):
        site.exchange.add_peer(hub.address, rules=LinkRules(("x",)))


def test_an_algorithm_of_many_ways_has_no_rules() -> None:
    fabric = SimFabric(algorithm="tree")
    a = fabric.node("a")
    with pytest.raises(ValueError, match="knows no rules"):
        a.exchange.add_peer("b:7883", rules=SITE)
