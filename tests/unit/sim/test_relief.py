"""One branch of a transit node is away: the others get everything, and so does it when it is back.

Once, 2,000 messages after a link or a broker of the hub was gone, nobody got anything any more.
"""

from __future__ import annotations

from collections import Counter

import pytest

from isthmus.exchange.client.confirming import ConfirmSettings
from isthmus.exchange.link import lane
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.in_hand import MAX_UNSAFE
from isthmus.sim import SimFabric
from isthmus.sim.client import SimClient
from isthmus.sim.node import SimNode

ALGORITHMS = ["pf", "sf"]
COUNT = 3_000

#     s ── h ── b        s publishes; h's links and h's broker are its branches
#          └─── c


def star(
    algorithm: str, *, qos: int = 1, link: LinkSettings | None = None, trace: bool = False
) -> tuple[SimFabric, list[SimNode]]:
    settings = link or LinkSettings(qos=qos, hold_s=600.0)
    fabric = SimFabric(seed=1, algorithm=algorithm, link=settings, trace=trace)
    nodes = [fabric.node(name) for name in "hsbc"]
    for other in nodes[1:]:
        fabric.link(nodes[0], other)
    return fabric, nodes


def persistent(node: SimNode, topic_filter: str = "#") -> SimClient:
    client = node.client(f"at-{node.name}", clean_start=False, session_expiry_s=10_000)
    client.subscribe(topic_filter)
    return client


def publish(
    fabric: SimFabric,
    publisher: SimClient,
    numbers: range,
    *,
    qos: int = 1,
    topic: str = "t",
    retain: bool = False,
) -> None:
    for number in numbers:
        publisher.publish(topic, b"%d" % number, qos=qos, retain=retain)
        if number % 50 == 0:
            fabric.run(0.01)
    fabric.run(2.0)


def got(client: SimClient) -> list[int]:
    return list(map(int, client.payloads()))


def counters(node: SimNode) -> Counter[str]:
    return node.exchange.counters


def nothing_is_left(*nodes: SimNode) -> bool:
    return all(
        node.exchange.unacknowledged() == 0 and node.exchange.traffic.in_hand.only_here == 0
        for node in nodes
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("qos", [1, 2])
def test_a_link_that_is_cut_stops_nobody_else(algorithm: str, qos: int) -> None:
    fabric, (h, s, b, c) = star(algorithm, qos=qos)
    at_h, at_b, at_c = (persistent(node) for node in (h, b, c))
    publisher = s.client("p")
    fabric.settle()
    fabric.partition([b], [h, s, c])
    publish(fabric, publisher, range(COUNT), qos=qos)
    assert got(at_c) == got(at_h) == list(range(COUNT))
    assert len(at_b.payloads()) < COUNT
    assert s.exchange.links.links["h"].unacked() == MAX_UNSAFE
    assert h.exchange.traffic.in_hand.only_here == COUNT - MAX_UNSAFE
    fabric.heal()
    fabric.settle()
    assert got(at_b) == list(range(COUNT))
    assert got(at_c) == got(at_h) == list(range(COUNT))
    assert counters(h)["given_up"] == counters(h)["repeated"] == 0
    assert nothing_is_left(h, s, b, c)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("qos", "retain"), [(1, False), (2, True)])
def test_a_broker_that_is_away_stops_nobody_else(algorithm: str, qos: int, retain: bool) -> None:
    fabric, (h, s, b, c) = star(algorithm, qos=qos)
    at_h, at_b, at_c = (persistent(node) for node in (h, b, c))
    publisher = s.client("p")
    fabric.settle()
    fabric.crash_broker(h)
    fabric.run(1.0)
    publish(fabric, publisher, range(COUNT), qos=qos, retain=retain)
    assert got(at_b) == got(at_c) == list(range(COUNT))
    assert got(at_h) == []
    fabric.restart_broker(h)
    at_h.connect()
    fabric.settle()
    assert got(at_h) == got(at_b) == got(at_c) == list(range(COUNT))
    late = h.client("late")
    late.subscribe("#")
    fabric.settle()
    assert got(late) == retain * [COUNT - 1]
    assert counters(h)["given_up"] == 0
    assert nothing_is_left(h, s, b, c)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_branches_are_away_at_once(algorithm: str) -> None:
    """What waits for one is not what waits for the other, and all of it came over one lane."""
    fabric, (h, s, b, c) = star(algorithm)
    d = fabric.node("d")
    fabric.link(h, d)
    at_b, at_c, at_d = persistent(b, "b"), persistent(c, "c"), persistent(d, "#")
    at_h = persistent(h, "h")
    publisher = s.client("p")
    fabric.settle()
    fabric.partition([b, c], [h, s, d])
    fabric.crash_broker(h)
    fabric.run(1.0)
    for topic in "bch":
        publish(fabric, publisher, range(COUNT), topic=topic)
    assert got(at_d) == 3 * list(range(COUNT))
    fabric.heal()
    fabric.restart_broker(h)
    at_h.connect()
    fabric.settle()
    for client in (at_b, at_c, at_h):
        assert got(client) == list(range(COUNT))
    assert nothing_is_left(h, s, b, c, d)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_comes_through_for_a_link_that_is_down_is_bounded(algorithm: str) -> None:
    """The neighbor is given up when its queue is full, also if nobody publishes here."""
    settings = LinkSettings(hold_s=600.0, queue_bytes=2_000_000)
    fabric, (h, s, b, c) = star(algorithm, link=settings, trace=True)
    persistent(b)
    at_c = persistent(c)
    publisher = s.client("p")
    fabric.settle()
    fabric.partition([b], [h, s, c])
    fabric.run(20.0)
    publish(fabric, publisher, range(COUNT))
    assert got(at_c) == list(range(COUNT))
    assert 1_500 < counters(h)["given_up"] < COUNT
    assert "messages given up neighbor=b" in fabric.trace.text()
    assert nothing_is_left(h, s)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_broker_that_is_gone_for_good_does_not_part_the_fabric(algorithm: str) -> None:
    settings = LinkSettings(hold_s=20.0, queue_bytes=1_000_000)
    fabric, (h, s, b, c) = star(algorithm, link=settings, trace=True)
    at_h, at_b, at_c = (persistent(node) for node in (h, b, c))
    publisher = s.client("p")
    fabric.settle()
    fabric.crash_broker(h)
    publish(fabric, publisher, range(COUNT))
    assert len(at_c.payloads()) < COUNT, "as long as it may come back the neighbor waits"
    assert counters(h)["given_up"] == 0
    fabric.run(20.0)
    assert got(at_b) == got(at_c) == list(range(COUNT))
    publish(fabric, publisher, range(COUNT, 2 * COUNT))
    assert got(at_b) == got(at_c) == list(range(2 * COUNT)), "from then on nobody waits"
    assert fabric.trace.text().count("messages given up: the broker does not take them") == 1
    lost = counters(h)["given_up"]
    assert lost > COUNT
    fabric.restart_broker(h)
    at_h.connect()
    fabric.settle()
    assert got(at_h) == list(range(lost, 2 * COUNT)), "the latest, in order, once"
    assert nothing_is_left(h, s, b, c)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_full_queue_of_a_broker_holds_publishers_back_until_it_returns(algorithm: str) -> None:
    """h's queue fills, then that of s for h; nothing is lost."""
    settings = LinkSettings(hold_s=600.0, queue_bytes=1_500_000)
    fabric, (h, s, b, c) = star(algorithm, link=settings, trace=True)
    at_h, at_c = persistent(h), persistent(c)
    publisher = s.client("p")
    fabric.settle()
    fabric.crash_broker(h)
    publish(fabric, publisher, range(2 * COUNT))
    assert counters(s)["publishers_held"] > 0
    fabric.restart_broker(h)
    at_h.connect()
    fabric.settle()
    assert got(at_h) == got(at_c) == list(range(2 * COUNT))
    assert counters(h)["given_up"] == 0
    assert nothing_is_left(h, s, b, c)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_newest_retained_messages_are_not_given_up(algorithm: str) -> None:
    settings = LinkSettings(hold_s=20.0, queue_bytes=500_000)
    fabric, (h, s, _, c) = star(algorithm, link=settings, trace=True)
    at_c = persistent(c)
    publisher = s.client("p")
    fabric.settle()
    fabric.crash_broker(h)
    for number in range(COUNT):
        publisher.publish(f"t/{number % 100}", b"%d" % number, qos=1, retain=True)
    fabric.run(60.0)
    assert len(at_c.payloads()) == COUNT
    assert counters(h)["given_up"] > 0
    fabric.restart_broker(h)
    fabric.settle()
    kept = {topic: int(each.payload) for topic, each in h.broker.retained.items()}
    assert kept == {f"t/{number % 100}": number for number in range(COUNT - 100, COUNT)}
    assert nothing_is_left(h, s, c)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_crash_loses_only_what_was_let_go(algorithm: str) -> None:
    fabric, (h, s, b, c) = star(algorithm)
    at_b, at_c = persistent(b), persistent(c)
    publisher = s.client("p")
    fabric.settle()
    fabric.partition([b], [h, s, c])
    publish(fabric, publisher, range(COUNT))
    already = len(at_b.payloads())
    fabric.crash(h)
    fabric.restart(h)
    fabric.run(5.0)
    fabric.heal()
    fabric.settle()
    assert got(at_b) == [*range(already), *range(3_000 - MAX_UNSAFE, 3_000)]
    assert set(got(at_c)) == set(range(COUNT))


@pytest.mark.parametrize("apart_bytes", [0, 64 << 20])
@pytest.mark.parametrize("confirm", ["local", "fabric"])
def test_very_many_for_others_pass_a_single_one_that_waits(
    monkeypatch: pytest.MonkeyPatch, apart_bytes: int, confirm: str
) -> None:
    """Once, `SPAN` messages after it the lane stood still, for as long as it waited."""
    assert lane.FAR + 2 * lane.WINDOW < lane.SPAN
    monkeypatch.setattr(lane, "SPAN", 6_000)
    monkeypatch.setattr(lane, "FAR", 1_500)
    count = 8_000
    link = LinkSettings(hold_s=6_000.0, apart_bytes=apart_bytes)
    settings = ConfirmSettings.of("local", {"one": confirm}, 10.0, 60.0)
    fabric = SimFabric(seed=1, algorithm="sf", link=link, confirm=settings)
    h, s, b, c = (fabric.node(name) for name in "hsbc")
    for other in (s, b, c):
        fabric.link(h, other)
    at_b, at_c = persistent(b, "one"), persistent(c, "t")
    publisher = s.client("p")
    fabric.settle()
    b.broker.hang(1_000.0)
    publish(fabric, publisher, range(1), topic="one")
    publish(fabric, publisher, range(count))
    assert got(at_c) == list(range(count))
    assert s.exchange.links.links["h"].unacked() <= 1
    fabric.run(1_000.0)
    fabric.settle()
    assert got(at_b) == [0]
    assert nothing_is_left(h, s, b, c)


def test_what_was_let_go_and_is_lost_by_a_stop_is_counted() -> None:
    fabric, (h, s, b, c) = star("sf")
    persistent(b)
    publisher = s.client("p")
    fabric.settle()
    fabric.partition([b], [h, s, c])
    publish(fabric, publisher, range(COUNT))
    fabric.stop(h)
    assert h.given_up == 3_000 - MAX_UNSAFE
