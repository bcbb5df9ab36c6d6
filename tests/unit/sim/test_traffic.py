"""What becomes of messages when neighbors are given up, expire, or crash together: the data plane.

Each of these lost or repeated messages once, in a live fabric under attack.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.message import Message, number_of
from isthmus.sim import SimFabric
from isthmus.sim.client import SimClient
from isthmus.sim.node import SimNode

ALGORITHMS = ["pf", "sf"]


def star(
    algorithm: str, hub: str, *others: str, link: LinkSettings | None = None
) -> tuple[SimFabric, list[SimNode]]:
    fabric = SimFabric(seed=1, algorithm=algorithm, link=link, trace=True)
    nodes = [fabric.node(name) for name in (hub, *others)]
    for other in nodes[1:]:
        fabric.link(nodes[0], other)
    return fabric, nodes


def line(
    algorithm: str, *names: str, link: LinkSettings | None = None
) -> tuple[SimFabric, list[SimNode]]:
    fabric = SimFabric(seed=1, algorithm=algorithm, link=link, trace=True)
    nodes = [fabric.node(name) for name in names]
    for a, b in pairwise(nodes):
        fabric.link(a, b)
    return fabric, nodes


def persistent(node: SimNode, topic_filter: str) -> SimClient:
    """A subscriber whose session outlives its connection."""
    client = node.client(f"at-{node.name}", clean_start=False, session_expiry_s=10_000)
    client.subscribe(topic_filter)
    return client


def counters(node: SimNode) -> Counter[str]:
    return node.exchange.counters


# ---- giving a neighbor up ----------------------------------------------------------------


#     b x h ── c        the link to b is down for longer than hold_s


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("qos", [1, 2])
def test_giving_a_neighbor_up_repeats_nothing_to_the_others(algorithm: str, qos: int) -> None:
    settings = LinkSettings(qos=qos, hold_s=5.0)
    fabric, (h, b, c) = star(algorithm, "h", "b", "c", link=settings)
    persistent(b, "t/#")
    healthy = persistent(c, "t/#")
    publisher = h.client("p")
    fabric.settle()
    fabric.partition([b], [h, c])
    for number in range(500):
        publisher.publish("t/1", b"%d" % number, qos=qos)
        fabric.run(0.01)
    fabric.run(20.0)
    assert [int(payload) for payload in healthy.payloads()] == list(range(500))
    assert counters(c)["repeated"] == 0, "nor is anything sent there in vain"
    assert counters(h)["given_up"] == 500
    assert counters(h)["rerouted"] == 0
    assert "messages given up neighbor=b messages=500" in fabric.trace.text()


#     s ── h x b        h passes on what it has from s, and s does not get it back
#          └── c


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_given_up_does_not_go_back_where_it_came_from(algorithm: str) -> None:
    fabric, (h, s, b, c) = star(algorithm, "h", "s", "b", "c", link=LinkSettings(qos=2, hold_s=5.0))
    clients = [persistent(node, "t/#") for node in (s, b, c)]
    publisher = s.client("p")
    fabric.settle()
    fabric.partition([b], [h, s, c])
    for number in range(100):
        publisher.publish("t/1", b"%d" % number, qos=2)
    fabric.run(30.0)
    for client in (clients[0], clients[2]):
        assert [int(payload) for payload in client.payloads()] == list(range(100))
    assert counters(s)["repeated"] == counters(c)["repeated"] == 0
    assert counters(h)["given_up"] == 100


#     a ── b
#     └ c ┘             one of the three stands by; a-b breaks and its messages go round by c


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("hold_s", [1.0, 6.0])
def test_a_ring_reroutes_what_waited(algorithm: str, hold_s: float) -> None:
    settings = LinkSettings(qos=2, hold_s=hold_s)
    fabric, (a, b, c) = line(algorithm, "a", "b", "c", link=settings)
    fabric.settle()
    fabric.link(a, c)
    subscribers = [persistent(node, "t/#") for node in (b, c)]
    publisher = a.client("p")
    fabric.settle()
    fabric.partition([a], [b])
    for number in range(300):
        publisher.publish("t/1", b"%d" % number, qos=2)
        fabric.run(0.02)
    fabric.run(20.0)
    for client in subscribers:
        assert sorted(int(payload) for payload in client.payloads()) == list(range(300))
    assert counters(a)["rerouted"] > 0
    assert counters(a)["given_up"] == 0, "b is reached, and has all of it"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_what_a_node_of_a_ring_misses_is_counted(algorithm: str, victim: str) -> None:
    """It may come back by another link than it left by; what waited at the old one is lost."""
    fabric, nodes = line(algorithm, "a", "b", "c", link=LinkSettings(qos=1))
    fabric.settle()
    fabric.link(nodes[0], nodes[2])
    subscriber = persistent(fabric.nodes[victim], "t/#")
    publishers = [node.client("p") for node in nodes if node.name != victim]
    fabric.settle()
    fabric.crash(fabric.nodes[victim])
    for number in range(100):
        for publisher in publishers:
            publisher.publish(f"t/{publisher.node.name}", b"%d" % number, qos=1)
        fabric.run(0.02)
    fabric.restart(fabric.nodes[victim])
    fabric.run(30.0)
    lost = 200 - len(subscriber.payloads())
    assert lost <= sum(counters(node)["given_up"] for node in nodes)


# ---- expiry ------------------------------------------------------------------------------


def test_any_number_of_expired_messages_leaves_no_gap() -> None:
    """a x b: 33,000 messages expire in the queue; what follows was taken for repetitions."""
    fabric, (a, b) = line("sf", "a", "b", link=LinkSettings(hold_s=1000.0, queue_bytes=1 << 30))
    subscriber = persistent(b, "t/#")
    publisher = a.client("p")
    fabric.settle()
    publisher.publish("t/1", b"before", qos=1)
    fabric.settle()
    fabric.partition([a], [b])
    fabric.run(10.0)
    for _ in range(33_000):
        message = Message(b"t/1", b"", qos=1, expiry_s=2, origin="a", arrived_s=fabric.now_s)
        a.exchange.client_publish(message, lambda: lambda: None)
    fabric.run(10.0)
    publisher.publish("t/1", b"after", qos=1)
    fabric.run(0.1)
    fabric.heal()
    fabric.settle()
    assert subscriber.payloads() == [b"before", b"after"]
    assert counters(b)["repeated"] == 0


# ---- double crashes ----------------------------------------------------------------------


def publish_for(fabric: SimFabric, publisher: SimClient, seconds: float, first: int) -> int:
    """Fifty a second; the number of the next."""
    for number in range(first, first + int(seconds * 50)):
        publisher.publish("t/1", b"%d" % number, qos=1)
        fabric.run(0.02)
    return first + int(seconds * 50)


#     i ── t ── e       t and e crash together; t is back at once, e after 15 s
#          └── n        n and t's own clients do not wait for e


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_transit_and_egress_crash_together(algorithm: str) -> None:
    fabric, (t, i, e, n) = star(algorithm, "t", "i", "e", "n")
    at_e, at_n, at_t = (persistent(node, "t/#") for node in (e, n, t))
    publisher = i.client("p")
    fabric.settle()
    count = publish_for(fabric, publisher, 1.0, 0)
    fabric.crash(t)
    fabric.crash(e)
    count = publish_for(fabric, publisher, 0.5, count)
    fabric.restart(t)
    count = publish_for(fabric, publisher, 10.0, count)
    fabric.run(2.0)
    for client in (at_n, at_t):
        assert set(map(int, client.payloads())) >= set(range(75, count)), "who is there waits"
    count = publish_for(fabric, publisher, 4.5, count)
    fabric.restart(e)
    count = publish_for(fabric, publisher, 5.0, count)
    fabric.settle()
    for client in (at_e, at_n, at_t):
        got = list(dict.fromkeys(map(int, client.payloads())))
        assert got == list(range(count))
    assert counters(t)["given_up"] == 0
    assert i.exchange.unacknowledged() == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_egress_that_never_comes_back_is_given_up_in_time_and_counted(algorithm: str) -> None:
    fabric, (t, i, e) = star(algorithm, "t", "i", "e", link=LinkSettings(hold_s=30.0))
    persistent(e, "t/#")
    publisher = i.client("p")
    own = t.client("own")
    fabric.settle()
    fabric.crash(e)
    fabric.crash(t)
    fabric.restart(t)
    fabric.run(5.0)
    for number in range(100):
        publisher.publish("t/1", b"%d" % number, qos=1)
        own.publish("t/1", b"%d" % number, qos=1)
    fabric.run(20.0)
    assert counters(t)["given_up"] == 0
    assert t.exchange.unacknowledged() == 200
    fabric.run(20.0)
    assert counters(t)["given_up"] == 200
    assert "messages given up neighbor=e messages=200" in fabric.trace.text()
    assert i.exchange.unacknowledged() == t.exchange.unacknowledged() == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_waits_for_a_missing_neighbor_is_bounded(algorithm: str) -> None:
    """And nobody is held: the neighbor is given up, as it is when its link is down."""
    settings = LinkSettings(hold_s=60.0, queue_bytes=100_000)
    fabric, (t, _, e) = star(algorithm, "t", "i", "e", link=settings)
    persistent(e, "t/#")
    own = t.client("own")
    fabric.settle()
    fabric.crash(e)
    fabric.crash(t)
    fabric.restart(t)
    fabric.run(3.0)
    for number in range(100):
        own.publish("t/1", b"%d" % number + bytes(2000), qos=1)
    fabric.run(1.0)
    assert len(own.acknowledged) == 100
    assert 30 < counters(t)["given_up"] < 70
    assert not t.exchange.recovery.active
    fabric.restart(e)
    fabric.settle()
    own.publish("t/1", b"after", qos=1)
    fabric.settle()
    assert e.clients["at-e"].payloads()[-1] == b"after"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_long_wait_does_not_stop_the_lane_behind_it(algorithm: str) -> None:
    """More than a lane may have unacknowledged waits for e; n gets all of it at once."""
    fabric, (t, i, e, n) = star(algorithm, "t", "i", "e", "n")
    at_e, at_n = (persistent(node, "t/#") for node in (e, n))
    publisher = i.client("p")
    fabric.settle()
    fabric.crash(e)
    fabric.crash(t)
    fabric.restart(t)
    fabric.run(3.0)
    for number in range(5_000):
        publisher.publish("t/1", b"%d" % number, qos=1)
        if number % 50 == 0:
            fabric.run(0.01)
    fabric.run(2.0)
    assert [int(payload) for payload in at_n.payloads()] == list(range(5_000))
    fabric.restart(e)
    fabric.settle()
    assert [int(payload) for payload in at_e.payloads()] == list(range(5_000))
    assert counters(t)["given_up"] == 0


#     i ── t ── e ── f   t and e crash; e is back, f never: t learns what e itself wants at once


def test_who_is_back_does_not_wait_for_whom_it_awaits() -> None:
    fabric, (i, t, e, f) = line("sf", "i", "t", "e", "f")
    at_e = persistent(e, "t/#")
    persistent(f, "u/#")
    publisher = i.client("p")
    fabric.settle()
    for node in (f, e, t):
        fabric.crash(node)
    fabric.restart(t)
    fabric.run(3.0)
    publisher.publish("t/1", b"0", qos=1)
    fabric.restart(e)
    fabric.run(3.0)
    publisher.publish("t/1", b"1", qos=1)
    fabric.run(1.0)
    assert at_e.payloads() == [b"0", b"1"]
    fabric.run(100.0)
    assert not e.exchange.recovery.active
    assert not t.exchange.recovery.active


# ---- forged numbers ----------------------------------------------------------------------


#     x ── g ── v ── d        h says that it has messages of x
#               └── h


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_forged_numbers_make_nobody_discard_messages(algorithm: str) -> None:
    fabric, (_, _, v, d) = line(algorithm, "x", "g", "v", "d")
    x = fabric.nodes["x"]
    h = fabric.node("h")
    fabric.link(h, v)
    subscribers = [persistent(node, "t/#") for node in (v, d)]
    publisher = x.client("p")
    fabric.settle()
    publisher.publish("t/1", b"first", qos=1)
    fabric.settle()
    link = h.exchange.links.links["v"]
    for number in range(1, 500):
        forged = Message(b"t/1", b"forged", qos=1, origin="x")
        forged.number = number_of(x.exchange.incarnation, number)
        link.send(forged, fabric.now_s, None)
    fabric.run(1.0)
    for number in range(100):
        publisher.publish("t/1", b"%d" % number, qos=1)
    fabric.run(1.0)
    wanted = [b"first", *(b"%d" % number for number in range(100))]
    assert [client.payloads() for client in subscribers] == [wanted, wanted]
    fabric.run(30.0)
    assert [client.payloads() for client in subscribers] == [wanted, wanted]
    assert counters(v)["doubtful_dropped"] == 499
    assert link.unacked() == 0, "they do not stop the lane"
    assert "not reached over the neighbor they come from neighbor=h origin=x" in fabric.trace.text()


# ---- hops --------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_too_many_hops_are_dropped_and_counted_and_harm_no_link(qos: int) -> None:
    fabric, (a, b) = line("sf", "a", "b")
    subscriber = persistent(b, "t/#")
    fabric.settle()
    link = a.exchange.links.links["b"]
    for hops in (62, 63, 64, 1_000, 99_999):
        message = Message(b"t/1", b"%d" % hops, qos=qos, origin="a", hops=hops)
        if qos:
            message.number = number_of(a.exchange.incarnation, hops)
        link.send(message, fabric.now_s, None)
    fabric.settle()
    assert subscriber.payloads() == [b"62", b"63"]
    assert counters(b)["hops_dropped"] == 3
    assert link.unacked() == 0
    assert fabric.trace.accusations == []
    assert fabric.active_links() == {"a": {"b"}, "b": {"a"}}


@pytest.mark.slow
def test_a_line_of_more_than_64_links_delivers_from_end_to_end() -> None:
    fabric = SimFabric(seed=1, algorithm="pf")
    nodes = [fabric.node(f"n{index}") for index in range(67)]
    for a, b in pairwise(nodes):
        fabric.link(a, b)
    subscriber = persistent(nodes[-1], "t/#")
    publisher = nodes[0].client("p")
    fabric.run(30.0)
    for qos in (0, 1, 2):
        publisher.publish("t/1", b"%d" % qos, qos=qos)
    fabric.run(5.0)
    assert subscriber.payloads() == [b"0", b"1", b"2"]
    assert fabric.trace.accusations == []
    assert sum(counters(node)["hops_dropped"] for node in nodes) == 0


# ---- streams -----------------------------------------------------------------------------


#     a ── t x b        t lets a go and takes it back while it waits for b to acknowledge


def test_what_becomes_safe_is_acknowledged_on_the_link_that_has_taken_the_stream_up() -> None:
    fabric, (t, a, b) = star("sf", "t", "a", "b")
    subscriber = persistent(b, "t/#")
    publisher = a.client("p")
    fabric.settle()
    fabric.crash(b)
    publisher.publish("t/1", b"x", qos=1)
    fabric.run(0.1)
    fabric.partition([a], [t])  # a is not told, so it keeps its link, and the stream
    fabric.unlink(t, a)
    fabric.run(0.1)
    fabric.heal()
    fabric.link(t, a)
    fabric.run(20.0)
    assert fabric.active_links()["a"] == {"t"}
    fabric.restart(b)
    fabric.settle()
    assert subscriber.payloads() == [b"x"]
    assert a.exchange.unacknowledged() == 0
