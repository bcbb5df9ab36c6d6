"""What the fabric's nodes know of retained messages, their brokers have: under every fault.

    a ── b        and        a ── b ── c

The comparison of the stores is not the end of it: the brokers have to have been given the result.
"""

from __future__ import annotations

import pytest

from isthmus.exchange.link.links import LinkSettings
from isthmus.sim import SimFabric
from isthmus.sim.invariants import check_retained
from isthmus.sim.node import SimNode

YEAR_MS = 365 * 24 * 3_600_000


def pair(**options: object) -> tuple[SimFabric, SimNode, SimNode]:
    fabric = SimFabric(seed=1, algorithm="sf")
    a, b = fabric.node("a", **options), fabric.node("b", **options)  # type: ignore[arg-type]
    fabric.link(a, b)
    fabric.settle()
    return fabric, a, b


def retained(node: SimNode) -> dict[str, bytes]:
    return {topic: publish.payload for topic, publish in node.broker.retained.items()}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_deletions_of_a_partition_reach_a_broker_that_is_down_at_that_moment(qos: int) -> None:
    fabric, a, b = pair()
    publisher = a.client("p")
    fabric.settle()
    topics = [f"r/{number}" for number in range(1500)]
    for topic in topics:
        publisher.publish(topic, b"x", qos=qos, retain=True)
    fabric.settle()
    assert len(retained(b)) == 1500
    fabric.partition([a], [b])
    fabric.run(10.0)
    for topic in topics:
        publisher.publish(topic, b"", qos=qos, retain=True)
    fabric.run(1.0)
    fabric.crash_broker(b)
    fabric.heal()
    fabric.settle()  # the stores agree now
    assert len(retained(b)) == 1500
    fabric.restart_broker(b)
    fabric.settle()
    assert retained(a) == retained(b) == {}
    assert len(b.exchange.retention.broker) == 0


@pytest.mark.parametrize("crash", [False, True])
def test_what_a_broker_was_owed_is_given_after_a_restart_of_the_node(crash: bool) -> None:
    fabric, a, b = pair()
    publisher = a.client("p")
    publisher.publish("r/1", b"old", qos=1, retain=True)
    fabric.settle()
    fabric.crash_broker(b)
    for number in range(50):
        publisher.publish(f"r/{number}", b"new", qos=1, retain=True)
    fabric.run(2.0)  # in the journal, and not at the broker
    (fabric.crash if crash else fabric.stop)(b)
    fabric.restart_broker(b)
    fabric.partition([a], [b])
    fabric.restart(b)
    fabric.run(5.0)
    assert retained(b) == retained(a)


def test_both_sides_of_a_partition_change_the_same_topics() -> None:
    fabric, a, b = pair()
    at_a, at_b = a.client("pa"), b.client("pb")
    for number in range(400):
        at_a.publish(f"r/{number}", b"before", qos=1, retain=True)
    fabric.settle()
    fabric.partition([a], [b])
    fabric.run(10.0)
    for number in range(400):
        payload = b"" if number % 3 == 0 else b"a%d" % number
        at_a.publish(f"r/{number}", payload, qos=1, retain=True)
        payload = b"" if number % 5 == 0 else b"b%d" % number
        at_b.publish(f"r/{number}", payload, qos=1, retain=True)
    fabric.heal()
    for number in range(0, 400, 7):  # and go on while the stores are compared
        at_a.publish(f"r/{number}", b"late a", qos=0, retain=True)
        at_b.publish(f"r/{number}", b"late b", qos=0, retain=True)
        fabric.run(0.01)
    fabric.settle()
    fabric.run(5.0)
    check_retained(fabric)
    assert {*a.exchange.retention.store.owed, *b.exchange.retention.store.owed} == set()


def test_a_live_message_at_qos_0_that_the_broker_lost_is_given_again() -> None:
    fabric, a, b = pair(broker_delay_s=0.2)
    publisher = a.client("p")
    fabric.settle()
    for number in range(20):
        publisher.publish(f"r/{number}", b"x", qos=0, retain=True)
    fabric.run(0.35)  # written to b's broker, which has not read it
    fabric.crash_broker(b)
    fabric.run(1.0)
    fabric.restart_broker(b)
    fabric.settle()
    fabric.run(5.0)
    assert len(retained(a)) == 20
    assert retained(b) == retained(a)


def test_a_newer_one_by_comparison_while_an_older_one_is_in_flight() -> None:
    """The acknowledgment of the older one does not settle the newer one."""
    fabric, a, b = pair(broker_delay_s=0.3)
    publisher = a.client("p")
    fabric.run(3.0)
    publisher.publish("r/t", b"older", qos=1, retain=True)
    fabric.run(0.45)
    assert b.exchange.retention.store.version(b"r/t") is not None
    news = a.exchange.retention.store.record_local(
        b"r/t", b"newer", now_ms=a.exchange.host.wall_ms()
    )
    assert b.exchange.retention.store.offer(news, b.exchange.host.wall_ms())
    b.exchange.retention.broker.owe(news, ask=False)
    fabric.run(10.0)
    assert retained(b)["r/t"] == b"newer"
    assert len(b.exchange.retention.broker) == 0


def test_two_publishers_of_one_topic_at_two_brokers_at_once() -> None:
    """Each broker has its own clients' messages by one connection and the others' by another."""
    fabric, a, b = pair()
    at_a, at_b = a.client("pa"), b.client("pb")
    fabric.settle()
    for number in range(60):
        at_a.publish("r/t", b"a%d" % number, qos=number % 3, retain=True)
        at_b.publish("r/t", b"b%d" % number, qos=(number + 1) % 3, retain=True)
        fabric.run(0.003)
    fabric.settle()
    fabric.run(5.0)
    check_retained(fabric)


def test_a_node_without_memory_repeats_nothing_as_live() -> None:
    """It was stopped in order, has no state_dir, and its broker has all of it."""
    fabric, a, b = pair(state_dir=False)
    publisher, subscriber = a.client("p"), b.client("s")
    subscriber.subscribe("r/#", qos=1)
    fabric.settle()
    for number in range(300):
        publisher.publish(f"r/{number}", b"%d" % number, qos=1, retain=True)
    publisher.publish("r/0", b"", qos=1, retain=True)
    fabric.settle()
    injected = sum(b.broker.injected.values())
    assert injected == 301
    fabric.stop(b)
    fabric.restart(b)
    fabric.settle()
    assert sum(b.broker.injected.values()) == injected
    assert retained(b) == retained(a)
    assert len(b.exchange.retention.store) == 299
    # What changed while it was away comes, once.
    fabric.stop(b)
    publisher.publish("r/1", b"changed", qos=1, retain=True)
    publisher.publish("r/2", b"", qos=1, retain=True)
    fabric.run(2.0)
    fabric.restart(b)
    fabric.settle()
    assert sum(b.broker.injected.values()) == injected + 2
    assert retained(b) == retained(a)


def test_what_a_full_link_dropped_is_made_up_for() -> None:
    """A retained message at QoS 0 that did not fit is not left to the next outage."""
    fabric = SimFabric(seed=5, algorithm="sf", link=LinkSettings(queue_bytes=20_000))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b, bytes_per_s=200_000)
    publisher = a.client("p")
    fabric.settle()
    for number in range(300):
        publisher.publish(f"r/{number}", bytes(500), qos=0, retain=True)
    fabric.run(20.0)
    assert sum(link.dropped for link in a.exchange.links) > 0
    check_retained(fabric)
    assert len(retained(b)) == 300


def test_what_a_comparison_brings_goes_on_to_the_neighbors_behind() -> None:
    fabric = SimFabric(seed=3, algorithm="sf")
    a, b, c = (fabric.node(name) for name in "abc")
    fabric.link(a, b)
    fabric.link(b, c)
    fabric.settle()
    fabric.partition([a], [b])
    fabric.run(10.0)
    publisher = a.client("p")
    fabric.run(1.0)
    for number in range(700):
        publisher.publish(f"r/{number}", b"x" * 50, qos=number % 3, retain=True)
    fabric.heal()
    fabric.settle()
    assert len(retained(c)) == 700
    check_retained(fabric)


# ---- clocks ----


def around_a_wrong_clock(ahead_ms: int) -> tuple[SimFabric, SimNode, SimNode, SimNode]:
    fabric = SimFabric(seed=4, algorithm="sf")
    a, wrong, c = fabric.node("a"), fabric.node("b", clock_ahead_ms=ahead_ms), fabric.node("c")
    fabric.link(a, wrong)
    fabric.link(wrong, c)
    fabric.settle()
    return fabric, a, wrong, c


def publish_in_turn(fabric: SimFabric, nodes: list[SimNode], topic: str) -> None:
    for turn, node in enumerate(nodes):
        publisher = node.client(f"{node.name}-{fabric.now_s}")
        fabric.settle()
        publisher.publish(topic, b"%s-%d" % (node.name.encode(), turn), qos=1, retain=True)
        fabric.settle()


@pytest.mark.parametrize("ahead_ms", [-600_000, 600_000])
def test_a_clock_that_is_wrong_by_minutes_does_not_matter(ahead_ms: int) -> None:
    """Whoever publishes last wins everywhere: versions run ahead of all that was seen."""
    fabric, a, wrong, c = around_a_wrong_clock(ahead_ms)
    publish_in_turn(fabric, [a, wrong, c, wrong, a, c], "r/t")
    assert [retained(each)["r/t"] for each in (a, wrong, c)] == [b"c-5"] * 3


@pytest.mark.parametrize("ahead_ms", [-20 * YEAR_MS, -2 * 3_600_000, 2 * 3_600_000, 20 * YEAR_MS])
def test_a_clock_that_is_wrong_by_years_harms_only_its_own_node(ahead_ms: int) -> None:
    """And only as long as it is wrong."""
    fabric, a, wrong, c = around_a_wrong_clock(ahead_ms)
    watchers = [node.client(f"watcher-{node.name}") for node in (a, wrong, c)]
    for watcher in watchers:
        watcher.subscribe("r/#", qos=1)
    fabric.settle()
    publish_in_turn(fabric, [wrong, a, c, wrong, a, c], "r/t")
    # The others agree although the wrong one stands between them, and live everybody gets all.
    assert retained(a)["r/t"] == retained(c)["r/t"] == b"c-5"
    for watcher in watchers:
        assert len(watcher.payloads()) == 6
    # Nobody's clock was dragged along.
    for node in (a, c):
        stamp = node.exchange.retention.store.stamp(node.exchange.host.wall_ms())
        assert abs(stamp.wall_ms - node.exchange.host.wall_ms()) <= 3_600_000
    refused = sum(n.exchange.counters["retained_from_future"] for n in (a, wrong, c))
    assert refused > 0
    wrong.clock_ahead_ms = 0
    fabric.run(20.0)
    fabric.settle()
    check_retained(fabric)
    publish_in_turn(fabric, [a, wrong, c, wrong], "r/t")
    assert [retained(each)["r/t"] for each in (a, wrong, c)] == [b"b-3"] * 3
