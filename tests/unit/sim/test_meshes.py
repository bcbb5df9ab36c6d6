"""Algorithms of the topology `any`, and labels: in the simulator, with the real exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import pytest

from isthmus.cooperation import registry
from isthmus.cooperation.api import (
    MAX_LABEL_BYTES,
    CooperationAlgorithm,
    Port,
    Route,
    SessionInfo,
    SessionKind,
    Topology,
)
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.message import Message, number_of
from isthmus.exchange.traffic.seen_anywhere import SeenAnywhere
from isthmus.sim.check import check_algorithm
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.invariants import Violation, check_at_rest, check_topology
from isthmus.sim.network import HopRecord
from isthmus.sim.node import SimNode
from support.acquainting import Acquainting
from support.examples import EXAMPLES, unpack


class Flooding(PublicationFlooding):
    """To everybody but the one it came from, over all links: copies come on every way."""

    name = "flood"
    topology: ClassVar[Topology] = "any"


class Labeled(Flooding):
    """Everything goes to each neighbor twice, with two labels, which it keeps."""

    name = "labeled"
    max_label_bytes = 2

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        plain = super().route(topic, arrived_on, retain=retain)
        labels = (label,) if label else (b"a", b"bb")
        hops = [(session, each) for session in plain.neighbors for each in labels]
        return Route.labeled(hops, to_local_broker=plain.to_local_broker)


class LabeledTree(Labeled):
    name = "labeled-tree"
    topology = "tree"


@pytest.fixture
def stars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AlgorithmFactory:
    unpack("isthmus-stars", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return registry.load("stars")


def mesh(
    algorithm: AlgorithmFactory, names: str = "abcde", link: LinkSettings | None = None
) -> tuple[SimFabric, list[SimNode], list[SimClient]]:
    """Nodes with a link between any two, and a subscriber at each."""
    fabric = SimFabric(seed=1, algorithm=algorithm, link=link, trace=True)
    nodes = [fabric.node(name) for name in names]
    for a, b in combinations(nodes, 2):
        fabric.link(a, b)
    subscribers = [node.client(f"at-{node.name}") for node in nodes]
    for each in subscribers:
        each.subscribe("t/#")
    fabric.settle()
    check_at_rest(fabric)
    return fabric, nodes, subscribers


def publish(fabric: SimFabric, nodes: list[SimNode], qos: int, topics: int = 20) -> list[bytes]:
    """From every node on every topic; what was published."""
    published = []
    for node in nodes:
        publisher = node.client(f"p-{node.name}-{qos}")
        fabric.run(0.1)
        for number in range(topics):
            published.append(b"%s %d %d" % (node.name.encode(), qos, number))
            assert publisher.publish(f"t/{number}", published[-1], qos=qos)
    fabric.settle()
    return published


def counters(node: SimNode) -> Counter[str]:
    return node.exchange.counters


# ---- links that an algorithm dials ---------------------------------------------------------


def test_a_link_that_an_algorithm_dials_has_the_wire_of_its_pair() -> None:
    """a ── b ── c are configured; a is told of c and dials it."""
    fabric = SimFabric(seed=1, algorithm=Acquainting)
    a, b, c = (fabric.node(name) for name in "abc")
    fabric.wire(a, c, delay_s=0.2, bytes_per_s=10_000)
    fabric.link(a, b)
    fabric.link(b, c)
    subscriber = c.client("s")
    subscriber.subscribe("t")
    fabric.settle()
    fabric.run(5.0)  # until pings have gone round
    assert a.algorithm.status() == {"dialed": [c.address]}
    rtt_s = {link.info.name: link.info.rtt_s for link in a.exchange.links}
    assert rtt_s["c"] >= 0.4
    assert rtt_s["b"] < 0.4
    publisher = a.client("p")
    fabric.run(0.1)
    publisher.publish("t", bytes(5_000))
    fabric.run(0.2 + 0.4)
    assert subscriber.payloads() == [], (
        "5,000 bytes take half a second, and are under way for 0.2 s"
    )
    fabric.settle()
    assert subscriber.payloads() == [bytes(5_000)]


# ---- the example -------------------------------------------------------------------------


def test_a_star_for_every_topic_passes_the_suite(stars: AlgorithmFactory) -> None:
    check_algorithm(stars, seeds=range(1), schedules=20)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_star_for_every_topic_delivers_everything_once(stars: AlgorithmFactory, qos: int) -> None:
    fabric, nodes, subscribers = mesh(stars)
    published = publish(fabric, nodes, qos, topics=40)
    assert len(published) * len(subscribers) == 1_000
    for each in subscribers:
        assert sorted(each.payloads()) == sorted(published)
    centers = [counters(node)["received_from_links"] for node in nodes]
    assert max(centers) < 3 * min(centers), "the work is spread"


def test_the_example_is_short() -> None:
    source = EXAMPLES / "isthmus-stars" / "src" / "isthmus_stars" / "__init__.py"
    assert len(source.read_text().splitlines()) <= 60


# ---- copies ------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_of_many_copies_one_is_taken_whatever_the_qos(qos: int) -> None:
    fabric, nodes, subscribers = mesh(Flooding)
    published = publish(fabric, nodes, qos)
    for each in subscribers:
        assert sorted(each.payloads()) == sorted(published)
    assert all(counters(node)["repeated"] >= len(published) for node in nodes)
    assert not any(counters(node)["hops_dropped"] for node in nodes)
    for node in nodes:
        assert not any(link.unacked() for link in node.exchange.links)


def test_copies_are_recognized_also_on_the_hot_path() -> None:
    """Of the second message on a topic on, packets are not taken apart any more."""
    fabric, nodes, subscribers = mesh(Flooding, "abc")
    publisher = nodes[0].client("p")
    fabric.run(0.1)
    for number in range(300):
        publisher.publish("t/1", b"%d" % number)
    fabric.settle()
    for each in subscribers:
        assert each.payloads() == [b"%d" % number for number in range(300)]
    found = nodes[1].exchange.traffic.plain._found.values()
    assert sum(each.total for each in found) > 0


def test_every_link_is_used_and_nothing_is_announced() -> None:
    fabric, nodes, _ = mesh(Flooding)
    assert all(len(neighbors) == 4 for neighbors in fabric.active_links().values())
    assert "$isthmus/topology" not in fabric.trace.text()
    assert nodes[0].exchange.status()["topology"]["nodes"] == list("abcde")


def test_a_link_that_goes_costs_nothing_for_the_others() -> None:
    """Ways round are the guard's to know: with hundreds of links they would be asked for each."""
    fabric, (a, b, *_), _ = mesh(Flooding, "abcd")
    fabric.partition([a], [b])
    while a.exchange.links.links["b"].state.up:
        fabric.run(0.1)
    assert not a.exchange.traffic.detours._ways_round
    fabric.heal()
    fabric.settle()
    assert a.exchange.links.links["b"].state.up


def test_a_link_that_is_wanted_and_not_active_is_a_violation() -> None:
    fabric, nodes, _ = mesh(Flooding, "abc")
    nodes[0].exchange.links.links["b"].state = nodes[0].exchange.links.links["b"].state.BLOCKED
    with pytest.raises(Violation, match="active at b alone"):
        check_topology(fabric)


def test_numbers_that_are_not_ones_own_keep_nobody_from_getting_a_message() -> None:
    fabric, (a, _, c), subscribers = mesh(Flooding, "abc")
    link = c.exchange.links.links["b"]
    for number in range(1, 200):
        forged = Message(b"u/1", b"forged", qos=number % 3, origin="a")
        forged.number = number_of(a.exchange.incarnation, number)
        link.send(forged, fabric.now_s, None)
    fabric.settle()
    published = publish(fabric, [a], 1) + publish(fabric, [a], 0)
    for each in subscribers:
        assert sorted(each.payloads()) == sorted(published)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_two_contents_under_one_number_do_not_circulate(qos: int) -> None:
    hops: list[HopRecord] = []
    fabric, nodes, subscribers = mesh(Flooding, "abcd")
    fabric.network.on_hop = hops.append
    for number, link in enumerate(nodes[0].exchange.links):
        message = Message(b"t/1", b"%d" % (number % 2), qos=qos, origin="victim")
        message.number = number_of("1f", 1)
        link.send(message, fabric.now_s, None)
    fabric.run(5.0)
    assert len(hops) < 30
    for each in subscribers[1:]:
        assert sorted(each.payloads()) == [b"0", b"1"]


def test_a_copy_that_has_expired_does_not_stand_for_one_that_has_not() -> None:
    fabric, (a, b, c), (_, _, at_c) = mesh(Flooding, "abc")
    number = number_of(a.exchange.incarnation, 1)
    expired = Message(b"t/1", b"x", origin="a", number=number, expiry_s=0)
    b.exchange.links.links["c"].send(expired, fabric.now_s, None)
    fabric.run(0.5)
    assert counters(c)["expired"] == 1
    publisher = a.client("p")
    fabric.run(0.1)
    publisher.publish("t/1", b"x", qos=2)
    fabric.settle()
    assert at_c.payloads() == [b"x"]


def test_messages_at_qos_0_do_not_wait_for_neighbors_of_the_last_life() -> None:
    settings = LinkSettings(queue_bytes=65_536, hold_s=60.0)
    fabric, (a, _, c), (_, _, at_c) = mesh(Flooding, "abc", settings)
    fabric.crash(c)
    fabric.crash(a)
    fabric.run(1.0)
    fabric.restart(a)
    fabric.run(3.0)
    publisher = a.client("p2")
    fabric.run(0.5)
    publisher.publish("t/1", b"kept", qos=1)
    for _ in range(200):
        publisher.publish("t/1", bytes(400), expiry_s=600)
        fabric.run(0.001)
    fabric.run(1.0)
    assert counters(a)["given_up"] == 0
    fabric.restart(c)
    at_c.subscribe("t/#")
    fabric.run(20.0)
    assert counters(a)["given_up"] == 0


def test_a_message_without_a_number_ends_the_link() -> None:
    fabric, (a, b, _), _ = mesh(Flooding, "abc")
    a.exchange.links.links["b"].send(Message(b"t/1", b"x", origin="a"), fabric.now_s, None)
    fabric.run(1.0)
    assert b.exchange.links.refusals["protocol-error"] == 1
    assert "a message without a number" in fabric.trace.text()


def test_a_count_that_is_none_ends_the_link_and_goes_no_further() -> None:
    """It is not read as a number on the hot path only, which is why it is looked at there."""
    fabric, (a, b, c), _ = mesh(Flooding, "abc")
    publisher = a.client("p")
    fabric.run(0.1)
    publisher.publish("t/1", b"x")
    publisher.publish("t/1", b"y")
    fabric.settle()
    link = a.exchange.links.links["b"]
    frames = a.exchange.traffic.plain.to_link([b"t/1"], [b"0x00000000ffpayload"])
    link.send_plain([b"t/1"], frames)
    fabric.run(1.0)
    assert b.exchange.links.refusals["protocol-error"] == 1
    assert c.exchange.links.refusals["protocol-error"] == 0


def test_of_a_run_with_a_bad_count_all_before_it_are_passed_on_and_counted() -> None:
    fabric, (a, b, _), (_, at_b, at_c) = mesh(Flooding, "abc")
    publisher = a.client("p")
    fabric.run(0.1)
    publisher.publish("t/1", b"first")
    fabric.settle()
    before = counters(b)["received_from_links"], b.exchange.links.links["a"].received
    rests = [b"%012x%d" % (1_000 + number, number) for number in range(5)]
    rests[3] = b"000000000x00bad"
    frames = a.exchange.traffic.plain.to_link([b"t/1"] * 5, rests)
    a.exchange.links.links["c"].send_plain([b"t/1"] * 3, frames[:3])
    a.exchange.links.links["b"].send_plain([b"t/1"] * 5, frames)
    fabric.run(0.1)
    assert b.exchange.links.refusals["protocol-error"] == 1
    for each in (at_b, at_c):
        assert each.payloads() == [b"first", b"0", b"1", b"2"]
    fabric.run(5.0)
    after = counters(b)["received_from_links"], b.exchange.links.links["a"].received
    # c has passed its three on to b, which are counted, too; the bad one came and was refused.
    assert (after[0] - before[0], after[1] - before[1]) == (6, 4)


@pytest.mark.parametrize(("size", "dropped"), [(0, 2), (40, 1), (100, 0)])
def test_how_far_a_message_may_go_follows_the_size(
    size: int, dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flooding, "fabric_size", size)
    fabric, (a, b), _ = mesh(Flooding, "ab")
    link = a.exchange.links.links["b"]
    for hops in (63, 70, 100):
        message = Message(b"t/1", b"%d" % hops, origin="x", hops=hops)
        message.number = number_of("1", hops)
        link.send(message, fabric.now_s, None)
    fabric.settle()
    assert counters(b)["hops_dropped"] == dropped


# ---- labels ------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("algorithm", [Labeled, LabeledTree])
def test_a_message_is_forwarded_for_each_label_and_given_once(
    algorithm: AlgorithmFactory, qos: int
) -> None:
    fabric = SimFabric(seed=1, algorithm=algorithm, trace=True)
    a, b, c = nodes = [fabric.node(name) for name in "abc"]
    fabric.link(a, b)
    fabric.link(b, c)
    subscribers = [node.client(f"at-{node.name}") for node in nodes]
    for each in subscribers:
        each.subscribe("t/#")
    fabric.settle()
    published = publish(fabric, [a], qos)
    for each in subscribers:
        assert sorted(each.payloads()) == sorted(published)
    for node in (b, c):
        assert counters(node)["received_from_links"] == 2 * len(published)
        assert counters(node)["repeated"] == 0


def test_an_old_retained_message_is_given_once_while_its_path_is_set_up() -> None:
    fabric, (a, b), (_, at_b) = mesh(Labeled, "ab")
    assert at_b.publish("t/1", b"newest", qos=1, retain=True)
    fabric.settle()
    b.exchange.traffic.routes.is_pending = lambda _topic: True
    for label in (b"l", b"m", b"n"):
        message = Message(b"t/1", b"old", qos=1, retain=True, origin="x", version="1-0-x")
        message.number = number_of("1", 1)
        a.exchange.links.links["b"].send(message, fabric.now_s, None, label)
    fabric.run(1.0)
    assert b.broker.published[b"old"] == 1
    assert b.broker.retained["t/1"].payload == b"newest"


def test_what_comes_again_with_the_same_label_is_dropped() -> None:
    fabric, nodes, subscribers = mesh(Labeled, "abcd")
    published = publish(fabric, nodes, 0) + publish(fabric, nodes, 1)
    for each in subscribers:
        assert sorted(each.payloads()) == sorted(published)
    assert all(counters(node)["repeated"] for node in nodes)


def test_what_a_neighbor_has_disputed_is_forgotten_with_it() -> None:
    fabric, (a, b), _ = mesh(Labeled, "ab")
    link = next(iter(a.exchange.links))
    for payload in (b"one", b"other", b"third"):
        message = Message(b"t/1", payload, qos=1, origin="x", number=number_of("1", 1))
        link.send(message, fabric.now_s, None, b"l")
    fabric.settle()
    memories = (b.exchange.traffic.seen, b.exchange.traffic._given)
    for memory in memories:
        assert isinstance(memory, SeenAnywhere)
        assert list(memory._disputes) == ["a"]
    fabric.unlink(a, b)
    fabric.settle()
    for memory in memories:
        assert not memory._disputes  # type: ignore[union-attr]


def test_labels_pass_the_suite() -> None:
    check_algorithm(Labeled, seeds=range(1), schedules=5)


@pytest.mark.parametrize("algorithm", [PublicationFlooding, Labeled])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_label_that_the_algorithm_does_not_have_ends_that_link_alone(
    algorithm: AlgorithmFactory, qos: int
) -> None:
    fabric = SimFabric(seed=1, algorithm=algorithm, trace=True)
    a, b, c = (fabric.node(name) for name in "abc")
    fabric.link(a, b)
    fabric.link(b, c)
    fabric.settle()
    before = c.exchange.links.links["b"].joined_s
    message = Message(b"t/1", b"x", qos=qos, origin="a", number=number_of("1", 1))
    a.exchange.links.links["b"].send(message, fabric.now_s, None, b"long")
    fabric.run(0.5)
    assert b.exchange.links.refusals["protocol-error"] >= 1
    assert "a label of 4 bytes" in fabric.trace.text()
    assert c.exchange.links.links["b"].joined_s == before
    assert c.exchange.links.links["b"].state.carries


def test_labels_survive_a_connection_that_breaks() -> None:
    fabric, (a, b, c), subscribers = mesh(Labeled, "abc", LinkSettings(lanes=2))
    publisher = a.client("p")
    fabric.run(0.1)
    for number in range(50):
        publisher.publish(f"t/{number}", b"%d" % number, qos=1 + number % 2)
        if number == 25:
            fabric.break_connections(a, b)
            fabric.break_connections(a, c)
    fabric.settle()
    for each in subscribers:
        assert sorted(each.payloads()) == sorted(b"%d" % number for number in range(50))


class TooLong(Flooding):
    name = "too-long"
    max_label_bytes = 1

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        plain = super().route(topic, arrived_on, retain=retain)
        return Route.labeled([(session, b"two") for session in plain.neighbors])


def test_an_algorithm_that_breaks_its_own_word_is_told() -> None:
    _, (a, _), _ = mesh(TooLong, "ab")
    with pytest.raises(ValueError, match=r"TooLong.route gives a label of 3 bytes"):
        a.exchange.client_routes[b"t/1"]


def test_a_route_without_a_label_is_told_at_the_start() -> None:
    class Old(Flooding):
        def route(self, topic: str, arrived_on: SessionInfo, *, retain: bool) -> Route:  # type: ignore[override]
            return Route()

    with pytest.raises(ValueError, match="takes no `label`"):
        SimFabric(algorithm=Old).node("a")


# ---- hops --------------------------------------------------------------------------------


def test_every_hop_is_told_with_all_that_a_message_has_on_a_link(stars: AlgorithmFactory) -> None:
    hops: list[HopRecord] = []
    fabric = SimFabric(seed=1, algorithm=stars, on_hop=hops.append)
    nodes = [fabric.node(name) for name in "abc"]
    for a, b in combinations(nodes, 2):
        fabric.link(a, b)
    fabric.settle()
    publisher = nodes[0].client("p")
    fabric.settle()
    topic = next(
        t for t in map(str, range(99)) if nodes[0].exchange.client_routes[t.encode()].labels
    )
    publisher.publish(topic, b"x", qos=1)
    fabric.settle()
    (center,) = nodes[0].exchange.client_routes[topic.encode()].neighbors
    (last,) = {"b", "c"} - {center.name}
    number = number_of(nodes[0].exchange.incarnation, 1)
    assert [each[1:9] for each in hops] == [
        ("a", center.name, topic, 1, "a", number, b"c", 1),
        (center.name, last, topic, 1, "a", number, b"", 2),
    ]
    assert 0 < hops[0].at_s < hops[1].at_s
    assert all(each.size > 20 for each in hops)


# ---- what does not fit -------------------------------------------------------------------


def test_nodes_whose_algorithms_want_other_topologies_do_not_link() -> None:
    class Tree(PublicationFlooding):
        name = "flood"

    fabric = SimFabric(seed=1, algorithm=Flooding, trace=True)
    a = fabric.node("a")
    fabric.factory = Tree
    b = fabric.node("b")
    fabric.link(a, b)
    fabric.run(5.0)
    assert not any(link.state.up for link in (*a.exchange.links, *b.exchange.links))
    assert a.exchange.links.refusals["topology"] + b.exchange.links.refusals["topology"] > 0
    assert "wants the topology" in fabric.trace.text()


def test_nodes_whose_algorithms_have_other_labels_do_not_link() -> None:
    """Two versions of one algorithm: what one writes into labels the other would not take."""

    class Longer(Flooding):
        max_label_bytes = Flooding.max_label_bytes + 8

    fabric = SimFabric(seed=1, algorithm=Flooding, trace=True)
    a, c = fabric.node("a"), fabric.node("c")
    fabric.factory = Longer
    b = fabric.node("b")
    fabric.link(a, b)
    fabric.link(b, c)
    fabric.link(a, c)
    fabric.run(5.0)
    assert fabric.active_links() == {"a": {"c"}, "b": set(), "c": {"a"}}
    for node in (a, b, c):
        assert node.exchange.links.refusals["labels"] > 0
    assert "there has labels of up to" in fabric.trace.text()


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"topology": "ring"}, "neither 'tree' nor 'any'"),
        ({"max_label_bytes": MAX_LABEL_BYTES + 1}, "max_label_bytes"),
    ],
)
def test_what_an_algorithm_says_of_itself_is_checked(
    attributes: Mapping[str, object], told: str
) -> None:
    wrong = type("Wrong", (Flooding,), dict(attributes))
    with pytest.raises(ValueError, match=told):
        SimFabric(algorithm=wrong).node("a")


def test_whoever_makes_an_algorithm_must_say_what_it_says() -> None:
    def made(port: Port, options: Mapping[str, object]) -> CooperationAlgorithm:
        return Flooding(port, options)

    with pytest.raises(ValueError, match="what makes Flooding"):
        SimFabric(algorithm=made).node("a")


def test_labels_and_neighbors_must_be_as_many() -> None:
    session = SessionInfo(1, SessionKind.NEIGHBOR, "n")
    with pytest.raises(ValueError, match="2 labels for 1 neighbors"):
        Route((session,), labels=(b"a", b"b"))
    assert Route((session,)).hops == ((session, b""),)
    assert Route.labeled([(session, b"a")]) == Route((session,), labels=(b"a",))
