"""Nodes that know nothing but a group find each other, in the simulator."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import count

import pytest

from isthmus.cooperation.api import AnnouncedNode, Port
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.cooperation.tree.algorithm import SpanningTree
from isthmus.exchange.discovery import discovery as module
from isthmus.exchange.discovery.datagrams import Announcement, write
from isthmus.exchange.discovery.discovery import CLOCK_S, FORGET_S, DiscoverySettings
from isthmus.exchange.link.links import LinkSettings
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.network import DatagramSettings
from isthmus.sim.node import SimNode
from isthmus.sim.soak import soak

SETTINGS = DiscoverySettings(every_s=2.0)
SECRET = LinkSettings(secret=b"the fabric's own secret", hold_s=5.0)
BAD = DatagramSettings(loss=0.3, duplication=0.2, late=0.2)


def group(
    *names: str,
    algorithm: str | AlgorithmFactory = "sf",
    settings: DiscoverySettings = SETTINGS,
    datagrams: DatagramSettings = BAD,
    seed: int = 1,
) -> tuple[SimFabric, list[SimNode]]:
    fabric = SimFabric(
        seed=seed,
        algorithm=algorithm,
        link=SECRET,
        discovery=settings,
        datagrams=datagrams,
        trace=True,
    )
    return fabric, [fabric.node(name) for name in names]


def delivered(fabric: SimFabric, nodes: list[SimNode]) -> list[list[bytes]]:
    """A message of each, and what a subscriber at each has got of them."""
    subscribers = [node.client(f"s-{node.name}") for node in nodes]
    for each in subscribers:
        each.subscribe("t/#")
    publishers = [node.client(f"p-{node.name}") for node in nodes]
    fabric.run(5.0)
    for node, publisher in zip(nodes, publishers, strict=True):
        publisher.publish("t/1", node.name.encode(), qos=1)
    fabric.run(5.0)
    return [sorted(each.payloads()) for each in subscribers]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("algorithm", ["pf", "sf"])
def test_two_nodes_find_each_other_with_loss(algorithm: str, seed: int) -> None:
    fabric, nodes = group("a", "b", algorithm=algorithm, seed=seed)
    fabric.run(30.0)
    assert delivered(fabric, nodes) == [[b"a", b"b"]] * 2


def test_many_nodes_become_one_fabric_and_stop_making_links() -> None:
    names = [f"n{number}" for number in range(12)]
    fabric, nodes = group(*names)
    fabric.run(60.0)
    assert delivered(fabric, nodes) == [sorted(name.encode() for name in names)] * 12
    before = {node.name: set(node.exchange.links.links) for node in nodes}
    assert sum(map(len, before.values())) < 12 * 11, "not everybody with everybody"
    fabric.run(60.0)
    assert {node.name: set(node.exchange.links.links) for node in nodes} == before


def test_a_node_that_comes_later_is_found_and_one_that_goes_is_forgotten() -> None:
    fabric, nodes = group("a", "b")
    fabric.run(30.0)
    nodes.append(fabric.node("c"))
    fabric.run(30.0)
    assert delivered(fabric, nodes) == [[b"a", b"b", b"c"]] * 3
    fabric.crash(nodes[2])
    fabric.run(FORGET_S + 20.0)
    for node in nodes[:2]:
        assert node.exchange.status()["discovery"]["found"] != ["c:0"]
        assert not any("c" in address for address in node.exchange.links.peers)
    fabric.restart(nodes[2])
    fabric.run(30.0)
    assert all(set(node.exchange.guard.reach()) | {node.name} == set("abc") for node in nodes)


def test_of_two_only_one_hears_the_other() -> None:
    """Who hears dials; the other one need not hear anything."""
    fabric, nodes = group("a", "b", datagrams=DatagramSettings())
    fabric.network.cut([("a", "b")])
    fabric.run(20.0)
    fabric.heal()
    fabric.run(20.0)
    assert delivered(fabric, nodes) == [[b"a", b"b"]] * 2


def one_tree(nodes: list[SimNode]) -> bool:
    """Whether all use the same one, over all of them."""
    trees = [node.algorithm.tree for node in nodes if isinstance(node.algorithm, SpanningTree)]
    labels = {tree.label for tree in trees if tree is not None}
    names = {node.node_id for node in nodes}
    return len(labels) == 1 and all(tree is not None and tree.nodes == names for tree in trees)


@pytest.mark.parametrize("unheard", [("a", "b"), ("b", "a")])
def test_announcements_that_go_one_way_alone_are_enough_for_a_tree(
    unheard: tuple[str, str],
) -> None:
    """For good, while connections are as they should be; whichever is to dial."""
    datagrams = DatagramSettings(unheard=frozenset({unheard}))
    fabric, nodes = group("a", "b", algorithm="tree", datagrams=datagrams)
    fabric.run(3.0)
    assert one_tree(nodes)
    assert delivered(fabric, nodes) == [[b"a", b"b"]] * 2


def test_clocks_that_are_minutes_apart_keep_nobody_out_of_the_tree() -> None:
    """Nor do two between whom there is more than `CLOCK_S`, if others hear both."""
    fabric, _ = group(algorithm="tree", datagrams=DatagramSettings())
    ahead_s = {"a": -240, "b": 0, "c": 0, "d": 240}
    nodes = [fabric.node(name, clock_ahead_ms=each * 1000) for name, each in ahead_s.items()]
    fabric.run(3.0)
    assert one_tree(nodes)
    assert "d" not in nodes[0].exchange.links.links
    assert nodes[0].exchange.discovery.ignored["clock"]
    for node in nodes:
        node.clock_ahead_ms = -node.clock_ahead_ms  # they are set
    fabric.crash(nodes[1])
    fabric.restart(nodes[1])
    fabric.run(10.0)
    assert one_tree(nodes)
    assert delivered(fabric, nodes) == [[b"a", b"b", b"c", b"d"]] * 4


def test_whoever_does_not_know_the_secret_is_ignored_and_counted() -> None:
    fabric, (a, b) = group("a", "b", datagrams=DatagramSettings())
    stranger = SimFabric(link=LinkSettings(secret=b"another secret, of others"))
    x = stranger.node("x").host
    assert x is not None
    sent: list[bytes] = []
    x.exchange.discovery._settings = SETTINGS
    x.announce = sent.append  # type: ignore[method-assign, assignment]
    x.exchange.announce(b"")
    x.exchange.discovery._key = b""
    x.exchange.announce(b"")
    fabric.run(10.0)
    for datagram in [*sent, b"noise", b"isth\x01", b""]:
        a.exchange.discovery.arrived(datagram, "192.0.2.66:4711")
    ignored = a.exchange.discovery.ignored
    assert (ignored["stranger"], ignored["malformed"]) == (3, 2)
    assert set(a.exchange.links.peers) | set(b.exchange.links.peers) <= {a.address, b.address}
    assert "announcement ignored remote=192.0.2.66:4711" in fabric.trace.text()


def record(node: SimNode) -> list[bytes]:
    """What it announces from now on."""
    host = node.host
    assert host is not None
    sent: list[bytes] = []
    send = host.announce

    def announce(datagram: bytes) -> None:
        sent.append(datagram)
        send(datagram)

    host.announce = announce  # type: ignore[method-assign]
    return sent


def test_a_replay_counts_never_or_is_of_now() -> None:
    fabric, (a, b) = group("a", "b", datagrams=DatagramSettings())
    sent = record(a)
    fabric.run(30.0)
    discovery = b.exchange.discovery
    heard = discovery.heard
    for datagram in sent:
        discovery.arrived(datagram, "192.0.2.66:4711")
    assert discovery.heard == heard
    fabric.crash(a)
    fabric.run(FORGET_S + 20.0)
    assert not b.exchange.links.peers
    for datagram in sent:
        discovery.arrived(datagram, "192.0.2.66:4711")
    assert (discovery.heard, discovery._found) == (heard, {})
    fabric.restart(b)
    fabric.run(CLOCK_S)
    fabric.crash(b)
    fabric.restart(b)
    discovery = b.exchange.discovery
    for datagram in sent:
        discovery.arrived(datagram, "192.0.2.66:4711")
    assert (discovery.heard, discovery.ignored["clock"]) == (0, len(sent))


def test_a_clock_that_is_far_off_is_told() -> None:
    fabric, (a,) = group("a", datagrams=DatagramSettings())
    fabric.node("b", clock_ahead_ms=int(CLOCK_S * 2_000))
    fabric.run(10.0)
    assert a.exchange.discovery.ignored["clock"] > 0
    assert "its clock is +600 s from this node's" in fabric.trace.text()


@pytest.mark.parametrize("both", [False, True])
def test_a_node_is_heard_soon_after_its_clock_was_set_right(both: bool) -> None:
    """Stamps never stand still, but must not run on for as long as the clock was ahead."""
    fabric, (a,) = group("a", datagrams=DatagramSettings())
    b = fabric.node("b", clock_ahead_ms=7_200_000)
    if both:
        a.clock_ahead_ms = b.clock_ahead_ms
    fabric.run(10.0)
    b.clock_ahead_ms = a.clock_ahead_ms = 0
    heard = a.exchange.discovery.heard
    assert bool(heard) == both
    fabric.run(10.0)
    assert a.exchange.discovery.heard > heard


def test_a_second_node_of_the_same_id_is_told() -> None:
    fabric, (a,) = group("a", datagrams=DatagramSettings())
    fabric.node("twin", node_id="a")
    fabric.run(10.0)
    assert "another node 'a' announces itself from twin" in a.exchange.problem
    assert a.exchange.discovery.ignored["same-id"] > 0


def test_a_restart_is_no_second_node() -> None:
    fabric, (a, b) = group("a", "b", datagrams=DatagramSettings(late=0.5))
    for _ in range(5):
        fabric.run(3.0)
        fabric.crash(a)
        fabric.restart(a)
        fabric.run(3.0)
        assert a.exchange.discovery.ignored["same-id"] == 0
    assert b.exchange.problem == ""


def test_a_flood_is_not_looked_at() -> None:
    fabric, (a,) = group("a", datagrams=DatagramSettings())
    fabric.run(1.05)
    for _ in range(10_000):
        a.exchange.discovery.arrived(b"flood", "192.0.2.66:4711")
    assert a.exchange.discovery.ignored["malformed"] <= module.MAX_IN_WINDOW
    assert a.exchange.discovery.ignored["too-many"] >= 10_000 - module.MAX_IN_WINDOW


@pytest.mark.parametrize("algorithm", ["sf", "tree"])
def test_announcements_of_nodes_that_are_not_there_keep_nobody_out(algorithm: str) -> None:
    """Somebody who knows the secret invents very many at once, and goes on inventing."""
    fabric, nodes = group("a", "b", algorithm=algorithm, datagrams=DatagramSettings())
    fabric.run(10.0)
    invented = count()

    def invent(number: int) -> None:
        for _ in range(number):
            name = f"invented{next(invented)}"
            discovery = nodes[0].exchange.discovery
            stamp = discovery._host.wall_ms()
            said = Announcement(name, "1", algorithm, f"{name}:1", stamp, b"")
            for node in nodes:
                node.exchange.discovery._in_window = 0
                node.exchange.discovery.arrived(write(said, discovery._key), "192.0.2.66:4711")

    nodes.append(fabric.node("c"))
    invent(2 * module.MAX_FOUND)
    for _ in range(30):
        fabric.run(1.0)
        invent(5)
    assert delivered(fabric, nodes) == [[b"a", b"b", b"c"]] * 3


def test_another_algorithm_is_not_linked_with() -> None:
    fabric, (a,) = group("a", algorithm="pf", datagrams=DatagramSettings())
    fabric.algorithm_name = "other"
    fabric.node("b")
    fabric.run(10.0)
    assert a.exchange.discovery.ignored["algorithm"] > 0
    assert not a.exchange.links.peers


def test_linking_can_be_left_to_people() -> None:
    fabric, nodes = group("a", "b", settings=DiscoverySettings(links=False))
    fabric.run(30.0)
    assert not any(node.exchange.links.peers for node in nodes)
    assert all(node.exchange.discovery.heard for node in nodes)


def test_what_a_person_has_removed_is_not_found_again() -> None:
    fabric, (a, b) = group("a", "b", datagrams=DatagramSettings())
    fabric.run(20.0)
    for node, other in ((a, "b"), (b, "a")):
        node.exchange.remove_peer(other)
    fabric.run(30.0)
    assert not a.exchange.links.links
    assert not b.exchange.links.links


def test_without_settings_nobody_is_told() -> None:
    fabric = SimFabric()
    a = fabric.node("a")
    assert a.exchange.announce(b"x") is False
    a.exchange.discovery.arrived(b"x", "y")
    assert a.exchange.status()["discovery"]["ignored"] == {}


def test_a_found_neighbor_is_kept_as_long_as_any_other() -> None:
    fabric, (a, b) = group("a", "b", algorithm="pf", datagrams=DatagramSettings())
    fabric.link_settings = replace(SECRET, hold_s=600.0)
    for node in (a, b):
        fabric.crash(node)
        fabric.restart(node)
    subscriber = b.client("s", clean_start=False, session_expiry_s=10_000)
    subscriber.subscribe("t")
    publisher = a.client("p")
    fabric.run(20.0)
    fabric.crash(b)
    fabric.run(10.0)
    publisher.publish("t", b"kept", qos=1)
    fabric.run(FORGET_S + 30.0)
    fabric.restart(b)
    fabric.run(60.0)
    assert subscriber.payloads() == [b"kept"]
    assert a.exchange.counters["given_up"] == 0


def test_what_a_person_adds_is_not_forgotten_with_what_was_found() -> None:
    fabric, (a, b) = group("a", "b", algorithm="pf", datagrams=DatagramSettings())
    fabric.run(20.0)
    a.exchange.add_peer(b.address)
    b.exchange.add_peer(a.address)
    fabric.crash(b)
    fabric.run(FORGET_S + 60.0)
    assert b.address in a.exchange.links.peers


class Talking(PublicationFlooding):
    """Announces by itself, and notes what it hears."""

    name = "talking"
    discovers = True

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self.heard: list[tuple[AnnouncedNode, bytes]] = []
        port.set_timer(1.0, "announce")

    def on_timer(self, key: Hashable) -> None:
        assert self.port.announce(b"from " + self.port.node_id.encode())
        self.port.set_timer(1.0, "announce")

    def on_announcement(self, node: AnnouncedNode, data: bytes) -> None:
        self.heard.append((node, data))


def test_an_algorithm_announces_what_it_likes_and_the_node_leaves_it_to_it() -> None:
    fabric, (a, b) = group("a", "b", algorithm=Talking, datagrams=DatagramSettings())
    fabric.run(10.5)
    assert isinstance(a.algorithm, Talking)
    assert a.algorithm.heard == [(AnnouncedNode("b", b.address), b"from b")] * 10
    assert not a.exchange.links.peers
    with pytest.raises(ValueError, match="701 bytes"):
        a.exchange.announce(bytes(701))


def test_a_node_that_links_with_nobody_is_noticed_by_the_schedules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.Discovery, "_link", lambda *_: None)
    soaked = soak("pf", range(3), profile="found", max_failures=1)
    assert "reaches" in soaked.failures[0][2]
