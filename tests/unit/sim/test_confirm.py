"""A publisher is told when every broker that wants its message has it, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.exchange.client.confirming import ConfirmSettings
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.in_hand import MAX_UNSAFE
from isthmus.sim import SimFabric
from isthmus.sim.client import SimClient
from isthmus.sim.node import SimNode

WITHIN_S = 5.0
FABRIC = ConfirmSettings(by_default=True, within_s=WITHIN_S)

#     s ── h ── b        s publishes, b subscribes


def line(
    *, algorithm: str = "sf", qos: int = 1, hold_s: float = 600.0, confirm: ConfirmSettings = FABRIC
) -> tuple[SimFabric, SimNode, SimNode, SimNode]:
    link = LinkSettings(qos=qos, hold_s=hold_s)
    fabric = SimFabric(seed=1, algorithm=algorithm, link=link, confirm=confirm)
    s, h, b = (fabric.node(name) for name in "shb")
    fabric.link(s, h)
    fabric.link(h, b)
    return fabric, s, h, b


def subscriber(node: SimNode) -> SimClient:
    client = node.client(f"at-{node.name}", clean_start=False, session_expiry_s=10_000)
    client.subscribe("#")
    return client


def nothing_is_left(*nodes: SimNode) -> bool:
    return all(
        node.exchange.unacknowledged() == 0 and not len(node.exchange.traffic.in_hand)
        for node in nodes
    )


@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree"])
@pytest.mark.parametrize("qos", [1, 2])
def test_it_is_acknowledged_when_the_far_broker_has_it(algorithm: str, qos: int) -> None:
    fabric, s, h, b = line(algorithm=algorithm, qos=qos)
    at_b, publisher = subscriber(b), s.client("p")
    fabric.settle()
    b.broker.delay_s = 0.6
    publisher.publish("t", b"1", qos=qos)
    fabric.run(0.5)
    assert (publisher.acknowledged, publisher.refused) == ([], [])
    fabric.run(4.0)
    assert publisher.acknowledged == [b"1"]
    assert at_b.payloads() == [b"1"]
    assert nothing_is_left(s, h, b)


def test_local_ones_are_acknowledged_at_once() -> None:
    confirm = ConfirmSettings(prefixes={"alarm/": True}, within_s=WITHIN_S)
    fabric, s, _, b = line(confirm=confirm)
    subscriber(b)
    publisher, other = s.client("p"), s.client("q")
    fabric.settle()
    b.broker.delay_s = 0.6
    other.publish("t", b"1", qos=1)
    publisher.publish("alarm/fire", b"2", qos=1)
    fabric.run(0.5)
    assert (other.acknowledged, publisher.acknowledged) == ([b"1"], [])


def test_acknowledgments_keep_their_order() -> None:
    confirm = ConfirmSettings(prefixes={"alarm/": True}, within_s=WITHIN_S)
    fabric, s, _, b = line(confirm=confirm)
    subscriber(b)
    publisher = s.client("p")
    fabric.settle()
    for number in range(4):
        publisher.publish("alarm/fire" if number % 2 else "t", b"%d" % number, qos=1)
    fabric.run(1.0)
    assert publisher.acknowledged == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_late_is_refused_and_all_else_goes_on(qos: int) -> None:
    fabric, s, h, b = line(qos=qos)
    at_b, at_h = subscriber(b), subscriber(h)
    publisher = s.client("p")
    fabric.settle()
    fabric.partition([b], [s, h])
    publisher.publish("t", b"1", qos=qos)
    fabric.run(WITHIN_S + 1.0)
    assert (publisher.acknowledged, publisher.refused) == ([], [b"1"])
    assert s.host is not None
    assert s.host.relay.counters.not_confirmed == 1
    assert at_h.payloads() == [b"1"]
    fabric.heal()
    fabric.settle()
    publisher.publish("t", b"2", qos=qos)
    fabric.settle()
    assert publisher.acknowledged == [b"2"]
    assert at_b.payloads() == [b"1", b"2"], "it may come all the same"
    assert nothing_is_left(s, h, b)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_of_3_1_1_is_disconnected_and_sends_again(qos: int) -> None:
    fabric, s, h, b = line(qos=qos)
    at_b = subscriber(b)
    publisher = s.client("p", level=4, clean_start=False, session_expiry_s=10_000)
    publisher.repeats_qos1 = True
    fabric.settle()
    fabric.partition([b], [s, h])
    publisher.publish("t", b"1", qos=qos)
    fabric.run(WITHIN_S + 0.2)
    assert not publisher.connected
    assert publisher.acknowledged == []
    fabric.run(2.0)
    assert publisher.connected
    assert publisher.acknowledged == []
    fabric.heal()
    fabric.settle()
    assert publisher.acknowledged == [b"1"]
    assert b"1" in at_b.payloads()
    assert qos == 1 or at_b.payloads() == [b"1"], "QoS 2: once"


def test_who_is_given_up_confirms_nothing() -> None:
    """Whoever waits longer than a neighbor is kept for."""
    confirm = ConfirmSettings(by_default=True, within_s=60.0)
    fabric, s, h, b = line(hold_s=5.0, confirm=confirm)
    subscriber(b)
    publisher = s.client("p")
    fabric.settle()
    fabric.partition([b], [s, h])
    publisher.publish("t", b"1", qos=1)
    fabric.run(15.0)
    assert (publisher.acknowledged, publisher.refused) == ([], [b"1"])
    assert h.exchange.counters["given_up"] == 1


def test_a_far_broker_that_does_not_take_it_is_told() -> None:
    fabric, s, _, b = line()
    subscriber(b)
    publisher = s.client("p")
    b.broker.poison.add("t")
    fabric.settle()
    publisher.publish("t", b"1", qos=1)
    publisher.publish("u", b"2", qos=1)
    fabric.settle()
    assert (publisher.acknowledged, publisher.refused) == ([b"2"], [b"1"])


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("algorithm", ["sf", "tree", "routed-tree", "topic-tree", "skipgraph"])
def test_what_comes_again_by_a_new_tree_waits_for_the_broker_that_has_been_given_it(
    algorithm: str, qos: int
) -> None:
    confirm = ConfirmSettings(by_default=True, within_s=600.0)
    fabric, s, h, b = line(algorithm=algorithm, confirm=confirm)
    at_b, publisher = subscriber(b), s.client("p")
    fabric.settle()
    b.broker.hang(8.0)
    publisher.publish("t", b"1", qos=qos)
    fabric.run(0.5)
    h.crash()
    h.start()
    fabric.run(6.0)
    assert publisher.acknowledged == []
    fabric.run(10.0)
    fabric.settle()
    assert publisher.acknowledged == at_b.payloads() == [b"1"]
    assert nothing_is_left(s, h, b)


def test_a_far_broker_that_does_not_take_an_older_retained_message_is_told() -> None:
    """Which comes there without the flag, as another message."""
    fabric = SimFabric(seed=1, algorithm="sf", confirm=FABRIC)
    s, b = fabric.node("s"), fabric.node("b")
    b.clock_ahead_ms = 3_600_000
    fabric.link(s, b, delay_s=0.5)
    subscriber(b)
    publisher, newer = s.client("p"), b.client("newer")
    fabric.settle()
    publisher.publish("t", b"1", qos=1, retain=True)
    newer.publish("t", b"2", qos=1, retain=True)
    fabric.run(0.3)
    b.broker.poison.add("t")
    fabric.settle()
    assert (publisher.acknowledged, publisher.refused) == ([], [b"1"])


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree"])
def test_what_waits_for_one_branch_is_with_its_origin_still(algorithm: str, qos: int) -> None:
    """More than may be unacknowledged; the node between crashes with all of it."""
    confirm = ConfirmSettings(by_default=True, within_s=3_600.0)
    fabric, s, h, b = line(algorithm=algorithm, qos=qos, confirm=confirm)
    at_b, at_h = subscriber(b), subscriber(h)
    publishers = [s.client(f"p{number}") for number in range(10)]
    fabric.settle()
    fabric.partition([b], [s, h])
    fabric.run(5.0)
    count = MAX_UNSAFE + 500
    for number in range(count):
        publishers[number % 10].publish(f"t/{number % 10}", b"%d" % number, qos=qos)
        if number % 50 == 0:
            fabric.run(0.01)
    fabric.run(5.0)
    assert len(set(at_h.payloads())) == count, "nobody else waits"
    assert not any(each.acknowledged for each in publishers)
    h.crash()
    fabric.run(1.0)
    h.start()
    fabric.heal()
    fabric.settle()
    fabric.run(30.0)
    assert sum(len(each.acknowledged) for each in publishers) == count
    assert not any(each.refused for each in publishers)
    assert set(at_b.payloads()) == {b"%d" % number for number in range(count)}
    for each in range(10):
        got = [int(payload) for payload in at_b.payloads(f"t/{each}")]
        assert list(dict.fromkeys(got)) == sorted(set(got)), "in order"
    assert nothing_is_left(s, h, b)


def test_a_neighbor_that_takes_everything_and_settles_nothing() -> None:
    """What it has is bounded, is refused in time, and goes on when its link is made anew."""
    link = LinkSettings(hold_s=600.0, queue_bytes=1 << 20)
    fabric = SimFabric(seed=1, algorithm="sf", link=link, confirm=FABRIC)
    s, h, b = (fabric.node(name) for name in "shb")
    fabric.link(s, h)
    fabric.link(h, b)
    at_b = subscriber(b)
    publishers = [s.client(f"p{number}") for number in range(5)]
    fabric.settle()
    in_hand = h.exchange.traffic.in_hand
    told, in_hand._tell_settled = in_hand._tell_settled, lambda: None  # type: ignore[method-assign]
    b.broker.delay_s = 1.0
    for number in range(8 * MAX_UNSAFE):
        publishers[number % 5].publish(f"t/{number % 5}", b"%d" % number, qos=1)
        if number % 50 == 0:
            fabric.run(0.02)
    fabric.run(WITHIN_S + 20.0)
    to_h = s.exchange.links.links["h"]
    assert to_h.unacked_bytes() < 2.2 * (1 << 20), "twice what publishers are held back for"
    assert sum(len(each.refused) for each in publishers) > 100
    in_hand._tell_settled = told  # type: ignore[method-assign]
    b.broker.delay_s = 0.001
    fabric.break_connections(s, h)
    fabric.settle()
    fabric.run(WITHIN_S + 20.0)
    assert to_h.unacked() == 0
    for each in publishers:
        assert len(each.acknowledged) + len(each.refused) == 8 * MAX_UNSAFE // 5
        assert set(each.acknowledged) <= set(at_b.payloads())
    assert nothing_is_left(s, h, b)


def test_what_somebody_missed_is_not_confirmed_because_it_comes_again() -> None:
    """h has given b up, and its word of that is lost with the connection to s."""
    confirm = ConfirmSettings(by_default=True, within_s=600.0)
    fabric, s, h, b = line(hold_s=8.0, confirm=confirm)
    subscriber(b)
    publisher = s.client("p")
    fabric.settle()
    fabric.crash(b)
    publisher.publish("t", b"1", qos=1)
    fabric.run(4.0)
    fabric.partition([h], [s], one_way=True)  # h hears s
    fabric.run(1.0)
    h.exchange.links.let_go(h.exchange.links.links["b"], "for the test")
    fabric.run(0.5)
    fabric.heal()
    fabric.break_connections(s, h)
    fabric.run(5.0)
    assert (publisher.acknowledged, publisher.refused) == ([], [b"1"])


# ---- brokers that die between two acknowledgments --------------------------------------------


def run_until(fabric: SimFabric, condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    until_s = fabric.now_s + limit_s
    while not condition():
        assert fabric.now_s < until_s
        fabric.run(0.001)


@pytest.mark.parametrize("where", ["own", "far"])
@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree"])
def test_a_broker_dies_between_its_pubrec_and_its_pubcomp(algorithm: str, where: str) -> None:
    """One that gives a message out when it is released, and forgets sessions that are not kept."""
    confirm = ConfirmSettings(by_default=True, within_s=600.0)
    fabric, s, h, b = line(algorithm=algorithm, qos=2, confirm=confirm)
    dying = s if where == "own" else b
    broker = dying.broker
    subscribers = [subscriber(node) for node in (s, h, b)]
    publisher = s.client("p", clean_start=False, session_expiry_s=10_000)
    fabric.settle()
    b.broker.delay_s = broker.delay_s = 0.2
    broker.waits_for_pubrel = True
    publisher.publish("t", b"1", qos=2)
    run_until(fabric, lambda: any(each.unreleased for each in broker.sessions.values()))
    fabric.run(0.3 if where == "far" else 0.2)  # the PUBREC is there, and a PUBREL on its way
    assert broker.published[b"1"] == 0
    fabric.crash_broker(dying)
    fabric.run(3.0)
    assert (publisher.acknowledged, publisher.refused) == ([], [])
    b.broker.delay_s = broker.delay_s = 0.001
    fabric.restart_broker(dying)
    fabric.settle()
    assert publisher.acknowledged == [b"1"]
    assert [each.payloads() for each in subscribers] == [[b"1"]] * 3
    assert nothing_is_left(s, h, b)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree"])
def test_one_of_two_interested_brokers_dies_after_the_others_acknowledgment(
    algorithm: str, qos: int
) -> None:
    confirm = ConfirmSettings(by_default=True, within_s=600.0)
    fabric, s, h, b = line(algorithm=algorithm, qos=qos, confirm=confirm)
    at_h, at_b, publisher = subscriber(h), subscriber(b), s.client("p")
    fabric.settle()
    b.broker.delay_s = 1.0
    publisher.publish("t", b"1", qos=qos)
    fabric.run(0.9)
    assert at_h.payloads() == [b"1"]
    assert h.broker.published[b"1"] == 1
    assert b.broker.published[b"1"] == 0
    fabric.crash_broker(b)
    fabric.run(5.0)
    assert (publisher.acknowledged, publisher.refused) == ([], [])
    b.broker.delay_s = 0.001
    fabric.restart_broker(b)
    fabric.settle()
    assert publisher.acknowledged == [b"1"]
    assert at_h.payloads() == at_b.payloads() == [b"1"]
    assert nothing_is_left(s, h, b)


# ---- Receive Maximum -------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_of_its_broker_holds_while_a_far_one_hangs(qos: int) -> None:
    """Also when the client has been refused a message that its broker has."""
    fabric, s, h, b = line(qos=qos)
    at_b = subscriber(b)
    s.broker.receive_maximum = 2
    s.broker.delay_s = 0.02
    publisher = s.client("p")
    fabric.settle()
    b.broker.hang(4 * WITHIN_S)
    sent, most = 0, 0

    def publish() -> bool:
        nonlocal sent, most
        while publisher.under_way < 2:
            assert publisher.publish("t", b"%d" % sent, qos=qos)
            sent += 1
        most = max(most, len(s.broker.sessions["p"].unreleased))
        return len(publisher.refused) >= 6

    run_until(fabric, publish, 4 * WITHIN_S)
    assert publisher.acknowledged == []
    assert sent <= len(publisher.refused) + 2
    run_until(fabric, lambda: publish() and len(publisher.acknowledged) > 10, 60.0)
    assert (most, s.broker.overrun) == (2 if qos == 2 else 0, 0)
    fabric.settle()
    assert set(publisher.acknowledged) <= set(at_b.payloads())
    assert nothing_is_left(s, h, b)
