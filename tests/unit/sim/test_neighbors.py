"""Neighbors that are not what they seem, in the simulator.

a ── b ── c            the line that most tests begin with
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from zlib import crc32

import pytest

from isthmus.exchange.link.connection import MAX_EARLY, Connection
from isthmus.exchange.link.life import LinkState
from isthmus.exchange.link.links import AT_ONCE, LinkSettings
from isthmus.exchange.topology.guard import TopologyGuard
from isthmus.exchange.topology.link import MAX_NODES
from isthmus.exchange.topology.messages import Announcement, LinkEntry, NodeKey, encode_updates
from isthmus.exchange.traffic.seen import SeenMessages
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.network import SimChannel, WireSettings
from isthmus.sim.node import SimNode

LAST = 2**53 - 1
"""The greatest number that the topology guard's messages can hold."""


def line(link: LinkSettings | None = None) -> tuple[SimFabric, SimNode, SimNode, SimNode]:
    fabric = SimFabric(seed=1, link=link)
    a, b, c = (fabric.node(name) for name in "abc")
    fabric.link(a, b)
    fabric.link(b, c)
    fabric.settle()
    return fabric, a, b, c


def reaches(fabric: SimFabric, publisher: SimClient, subscriber: SimClient, count: int) -> int:
    """How many of `count` messages arrive, one every 10 ms."""
    before = len(subscriber.payloads())
    for number in range(count):
        publisher.publish("t", b"%d" % number, qos=1)
        fabric.run(0.01)
    fabric.run(2.0)
    return len(subscriber.payloads()) - before


# ---- forged numbers ----------------------------------------------------------------------


def test_a_forged_birth_harms_nobody_and_is_forgotten() -> None:
    fabric, a, b, c = line()
    x = fabric.node("x")
    assert isinstance(x.exchange.guard, TopologyGuard)
    x.exchange.guard._clock = LAST - 1
    fabric.link(x, b)
    fabric.settle()
    assert fabric.active_links()["b"] == {"a", "c", "x"}
    x.stop()
    fabric.run(1.0)
    for one, other in ((a, b), (b, c)):
        fabric.break_connections(one, other)
        fabric.run(10.0)
        assert other.name in fabric.active_links()[one.name]
    d = fabric.node("d")
    fabric.link(d, a)
    fabric.run(10.0)
    assert fabric.active_links() == {"a": {"b", "d"}, "b": {"a", "c"}, "c": {"b"}, "d": {"a"}}
    assert all("protocol-error" not in node.exchange.links.refusals for node in (a, b, c, d))


# ---- another node at the same address ----------------------------------------------------


def test_another_node_at_the_same_address_is_a_link_of_its_own() -> None:
    fabric = SimFabric(seed=1, link=LinkSettings(hold_s=5.0))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    fabric.settle()
    former = a.exchange.links.links["b"].info
    b.crash()
    b.rename("b-new")
    fabric.restart(b)
    fabric.run(2.0)
    links = a.exchange.links.links
    assert {name: link.state.up for name, link in links.items()} == {"b": False, "b-new": True}
    assert (former.name, links["b-new"].info.name) == ("b", "b-new")
    assert links["b-new"].info is not former
    (peer,) = a.exchange.status()["peers"]
    assert peer["neighbor"] == "b-new"
    subscriber = b.client("s")
    subscriber.subscribe("t", qos=1)
    publisher = a.client("p")
    fabric.run(1.0)
    assert reaches(fabric, publisher, subscriber, 10) == 10
    fabric.run(10.0)  # the former neighbor is let go
    assert set(a.exchange.links.links) == {"b-new"}
    assert reaches(fabric, publisher, subscriber, 753) == 753


# ---- two nodes of one id -----------------------------------------------------------------


@pytest.mark.parametrize("dials", ["the copies", "the hub"])
def test_a_second_node_of_a_neighbors_id_is_refused(dials: str) -> None:
    """b and copy are both called b; each has a link to the hub a, whoever dials it."""
    fabric = SimFabric(seed=1)
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(b, a)
    subscriber = b.client("s")
    subscriber.subscribe("t", qos=1)
    publisher = a.client("p")
    fabric.settle()
    copy = fabric.node("copy", node_id="b")
    if dials == "the hub":
        fabric.link(a, copy)
    else:
        fabric.link(copy, a)
    assert reaches(fabric, publisher, subscriber, 1000) == 1000  # 12 s
    assert a.exchange.links.links["b"].incarnation == b.exchange.incarnation
    refused = (copy if dials == "the copies" else a).exchange.links.refusals["same-id"]
    assert 1 <= refused <= 10
    for node in (b, copy):
        assert "b" in node.exchange.problem
    assert not a.exchange.problem
    copy.stop()
    fabric.run(60.0)
    assert not b.exchange.problem


def test_a_copy_takes_over_when_the_first_one_is_silent() -> None:
    """Its machine is gone without a word: the newcomer is not kept out for long."""
    fabric = SimFabric(seed=1)
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(b, a)
    fabric.settle()
    copy = fabric.node("copy", node_id="b")
    b.crash(silent=True)
    fabric.link(copy, a)
    fabric.run(2.5)
    assert a.exchange.links.links["b"].incarnation == copy.exchange.incarnation
    assert a.exchange.links.links["b"].state.up
    assert not copy.exchange.problem


def test_two_nodes_of_one_id_far_apart_are_both_not_ready() -> None:
    """b ── a ── c ── copy, where the copy is called b as well."""
    fabric = SimFabric(seed=1)
    a, b, c = (fabric.node(name) for name in "abc")
    fabric.link(b, a)
    fabric.link(a, c)
    copy = fabric.node("copy", node_id="b")
    fabric.link(copy, c)
    fabric.run(4.0)
    assert not b.exchange.problem  # it could be a former life
    fabric.run(8.0)
    assert "b" in b.exchange.problem
    assert "b" in copy.exchange.problem
    assert not a.exchange.problem
    copy.stop()
    fabric.run(60.0)
    assert not b.exchange.problem


def test_a_restart_is_no_second_node() -> None:
    """a ── b ── c; b's machine vanishes and is back before anybody has missed it."""
    fabric, a, b, c = line()
    for _ in range(3):
        b.crash(silent=True)
        fabric.run(0.3)
        fabric.restart(b)
        for _ in range(40):
            fabric.run(0.25)
            assert not any(node.exchange.problem for node in (a, b, c))
        assert fabric.active_links() == {"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}
    assert all("same-id" not in node.exchange.links.refusals for node in (a, b, c))


# ---- a neighbor that never stops announcing ----------------------------------------------


def test_many_announcements_at_once_are_taken_in_turns() -> None:
    """x vouches for a line of 300 nodes, which come and go with one link of x, and speaks of b, so
    that b concludes from it at once; b hears others meanwhile.
    """
    fabric, a, b, _ = line()
    x = fabric.node("x")
    fabric.link(x, b)
    fabric.settle()
    guard = b.exchange.guard
    assert isinstance(guard, TopologyGuard)
    x_key = guard._links["x"].far_end
    assert x_key is not None
    keys = [x_key, *(NodeKey(f"fake-{number}", "1") for number in range(300))]
    own = guard._links["x"].heard[x_key]
    fakes = [
        Announcement(key, 1, tuple(LinkEntry(near, 99, 1) for near in nears))
        for key, *nears in zip(keys[1:-1], keys[:-2], keys[2:], strict=True)
    ]
    last = replace(own, sequence=own.sequence + 1, links=(*own.links, LinkEntry(keys[1], 99, 1)))
    flood = [*encode_updates([*fakes, last], [])]
    of_b = Announcement(guard._here, 1, ())
    for number in range(60):
        links = (own, last)[number % 2].links
        flood += encode_updates(
            [replace(last, sequence=last.sequence + 1 + number, links=links), of_b], []
        )
    taken: Counter[float] = Counter()
    message_arrived = guard.message_arrived

    def counted(neighbor: str, payload: bytes) -> None:
        taken[fabric.now_s] += neighbor == "x"
        message_arrived(neighbor, payload)

    guard.message_arrived = counted  # type: ignore[method-assign]
    x.exchange.guard.message_arrived = lambda *_: None  # type: ignore[method-assign]
    link = x.exchange.links.links["b"]
    for payload in flood:
        assert link.send_control(encode(Publish("$isthmus/topology", payload), 5))
    subscriber = b.client("s")
    subscriber.subscribe("t", qos=1)
    publisher = a.client("p")
    fabric.run(1.0)
    assert reaches(fabric, publisher, subscriber, 100) == 100
    fabric.run(20.0)
    assert sum(taken.values()) == len(flood)
    assert len(guard._view.nodes) >= 300
    assert taken.most_common(1)[0][1] <= 8
    assert fabric.active_links()["b"] == {"a", "c", "x"}


def test_a_neighbor_that_announces_too_many_nodes_is_cut_off_alone() -> None:
    fabric, _, b, _ = line()
    x = fabric.node("x")
    fabric.link(x, b)
    fabric.settle()
    fakes = [Announcement(NodeKey(f"fake-{n}", "1"), 1, ()) for n in range(MAX_NODES + 1)]
    for payload in encode_updates(fakes, []):
        x.exchange.links.links["b"].send_control(encode(Publish("$isthmus/topology", payload), 5))
    fabric.run(0.5)
    assert b.exchange.links.refusals["protocol-error"] >= 1
    assert {"a", "c"} <= fabric.active_links()["b"]


@pytest.mark.parametrize("seed", [3, 7, 8])
def test_a_neighbor_whose_lanes_are_being_opened_is_not_let_go(seed: int) -> None:
    """b dials, then a does, and opening two lanes takes longer than `hold_s`."""
    settings = LinkSettings(hold_s=1.0, lanes=2)
    fabric = SimFabric(seed=seed, link=settings, wire=WireSettings(delay_s=0.3))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(b, a)
    fabric.run(10.0)
    fabric.link(a, b)
    fabric.run(15.0)
    assert fabric.active_links() == {"a": {"b"}, "b": {"a"}}
    before = list(a.exchange.links.links["b"].connections)
    fabric.run(10.0)
    assert a.exchange.links.links["b"].connections == before


# ---- lanes that are not all there yet ----------------------------------------------------


def test_what_waited_comes_before_the_last_lane_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """b has all lanes and sends on the first what waited; a still waits for the second."""
    holds: Counter[SimChannel] = Counter()
    held: list[float] = []

    def hold(channel: SimChannel) -> None:
        holds[channel] += 1
        held.append(fabric.now_s)

    monkeypatch.setattr(SimChannel, "hold_reading", hold)
    monkeypatch.setattr(SimChannel, "release_reading", lambda channel: holds.subtract([channel]))
    wire = WireSettings(delay_s=0.02, lane_delay_s=0.3)
    fabric = SimFabric(seed=1, link=LinkSettings(lanes=2), wire=wire)
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    subscriber = a.client("s")
    subscriber.subscribe("t/#", qos=1)
    publisher = b.client("p")
    fabric.settle()
    fabric.partition([a], [b])
    fabric.run(5.0)
    topic = next(f"t/{number}" for number in range(99) if crc32(b"t/%d" % number) % 2 == 0)
    expected = [b"%d" % number for number in range(3 * MAX_EARLY)]
    for payload in expected[: 2 * MAX_EARLY]:
        publisher.publish(topic, payload, qos=1)
    fabric.run(1.0)
    fabric.heal()
    for payload in expected[2 * MAX_EARLY :]:
        publisher.publish(topic, payload, qos=1)
        fabric.run(0.01)
    fabric.settle()
    assert subscriber.payloads() == expected
    assert not fabric.trace.accusations
    assert held, "more than is kept is not read before the link is complete"
    assert set(holds.values()) == {0}


def test_what_came_before_the_link_was_complete_is_taken_in_turns() -> None:
    """x says much on 63 of 64 lanes, and one thing that is wrong, before the last lane is there."""
    fabric = SimFabric(seed=1, wire=WireSettings(lane_delay_s=0.01))
    b, x = fabric.node("b"), fabric.node("x")
    taken: Counter[int] = Counter()
    links = b.exchange.links
    take = links._frame

    def counted(connection: Connection, frame: bytes) -> float | None:
        if connection.link is not None and connection.link.state.up:
            taken[fabric.engine.events] += 1
        return take(connection, frame)

    links._frame = counted  # type: ignore[method-assign]
    fabric.link(b, x, lanes=64)
    while "b" not in x.exchange.links.links or not x.exchange.links.links["b"].state.up:
        fabric.run(0.001)
    assert not links.links["x"].state.up
    for connection in x.exchange.links.links["b"].connections[:-1]:
        assert connection is not None
        for _ in range(MAX_EARLY - 20):
            connection.send(encode(Publish("$isthmus/unknown", b""), 5))
    wrong = x.exchange.links.links["b"].connections[7]
    assert wrong is not None
    wrong.send(b"\xf0\x00")
    fabric.run(1.0)
    assert sum(taken.values()) > 60 * MAX_EARLY
    assert max(taken.values()) <= AT_ONCE
    assert links.refusals["protocol-error"] == 1


# ---- what is left of who has gone --------------------------------------------------------


def test_nothing_is_left_of_neighbors_that_were_here_for_a_moment() -> None:
    """x never becomes the algorithm's; y leaves before the broker has what it brought, z after."""
    fabric, _, b, _ = line(LinkSettings(hold_s=1.0))
    b.client("s").subscribe("t", qos=1)
    x, y, z = (fabric.node(name) for name in "xyz")
    publisher, other = y.client("p"), z.client("q")
    fabric.link(y, b)
    fabric.link(z, b)
    fabric.settle()
    other.publish("t", b"0", qos=1)
    fabric.settle()
    assert "z" in b.exchange.traffic.in_hand._at_broker
    fabric.link(x, b)
    while "x" not in b.exchange.links.links:
        fabric.run(0.001)
    assert b.exchange.links.links["x"].state is LinkState.LEARNING
    fabric.crash_broker(b)
    publisher.publish("t", b"1", qos=1)
    fabric.run(0.002)
    fabric.crash(x)
    fabric.run(0.5)
    fabric.crash(y)
    fabric.crash(z)
    fabric.run(5.0)
    fabric.restart_broker(b)
    fabric.run(30.0)
    traffic = b.exchange.traffic
    assert set(b.exchange.links.links) == {"a", "c"}
    assert {session.name for session in traffic.by_session} == {"a", "c"}
    assert not traffic.detours._ways_round
    assert not traffic.in_hand._at_broker
    assert isinstance(traffic.seen, SeenMessages)
    assert "y" in traffic.seen._left, "what it brought is forgotten in time"
    assert len(b.exchange.links.room) == 0
    assert len(b.exchange.links._connections) == 2


def test_a_neighbor_that_does_not_read_is_cut_off() -> None:
    """What is asked is answered, whether the answers are read or not: they must not pile up."""
    settings = LinkSettings(queue_bytes=100_000, packet_bytes=100_000, dead_after_s=3.0)
    fabric = SimFabric(seed=1, algorithm="pf", link=settings, trace=True)
    a, b, c = (fabric.node(name) for name in "abc")
    fabric.link(a, b)
    fabric.link(a, c)
    fabric.settle()
    link = a.exchange.links.links["b"]
    fabric.link(a, b, bytes_per_s=1_000.0)
    fabric.break_connections(a, b)
    fabric.run(3.0)
    assert link.state.carries
    for _ in range(3):
        link.send_control(
            encode(Publish("$isthmus/answer", bytes(settings.max_unread_bytes // 2)), 5)
        )
    fabric.run(1.5)
    assert "it does not read" in fabric.trace.text()
    assert a.exchange.links.links["c"].state.carries
