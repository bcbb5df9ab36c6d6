"""`skipgraph` in simulated fabrics: who gets messages, and who does not."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import cast

import pytest

from isthmus.cooperation.registry import load
from isthmus.cooperation.skipgraph.algorithm import APART_S, MUTE_S, SWAP_S, WAIT_S, SkipGraph
from isthmus.cooperation.skipgraph.graph import MOST_LOOKS, Graph
from isthmus.cooperation.skipgraph.keys import Kind, key_of
from isthmus.cooperation.skipgraph.lists import MAX_LOOKS
from isthmus.cooperation.skipgraph.messages import (
    Go,
    GraphMessage,
    InEpoch,
    Insert,
    Inserted,
    Left,
    Linked,
)
from isthmus.cooperation.skipgraph.roles import LINGER_S
from isthmus.cooperation.skipgraph.standing import Phase
from isthmus.cooperation.skipgraph.suspension import Suspension
from isthmus.exchange.link.links import LinkSettings
from isthmus.mqtt.packets import Will
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.invariants import check_at_rest
from isthmus.sim.node import SimNode


def mesh(
    count: int = 5,
    *,
    algorithm: AlgorithmFactory | None = None,
    options: dict[str, object] | None = None,
    hold_s: float = 10.0,
    delay_s: float | None = None,
) -> SimFabric:
    fabric = SimFabric(
        seed=3,
        algorithm=algorithm or load("skipgraph"),
        options=options or {},
        link=LinkSettings(hold_s=hold_s),
    )
    for one, other in combinations([fabric.node(f"n{n}") for n in range(count)], 2):
        fabric.link(one, other, delay_s=delay_s)
    fabric.settle()
    return fabric


def nodes_of(fabric: SimFabric) -> list[SimNode]:
    return list(fabric.nodes.values())


def graph_of(node: SimNode) -> SkipGraph:
    return cast("SkipGraph", node.algorithm)


def node_graph(node: SimNode) -> Graph:
    graph = graph_of(node).graph
    assert graph is not None
    return graph


def on_links(fabric: SimFabric) -> int:
    return sum(
        link.traffic().data_sent for node in nodes_of(fabric) for link in node.exchange.links
    )


def waiting(node: SimNode) -> int:
    return len(node.exchange.traffic.pending)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nothing_goes_over_links_while_nobody_wants_it(qos: int) -> None:
    fabric = mesh()
    publishers = [node.client(f"p{node.name}") for node in nodes_of(fabric)]
    for number in range(20):
        for publisher in publishers:
            publisher.publish("a/b", b"%d" % number, qos=qos)
        fabric.run(0.01)
    fabric.settle()
    check_at_rest(fabric)
    assert on_links(fabric) == 0


@pytest.mark.parametrize("forwarding", ["sfb", "mrf"])
@pytest.mark.parametrize("base", [2, 16])
def test_the_first_messages_of_a_publisher_wait_for_its_keys(forwarding: str, base: int) -> None:
    """Also at QoS 0: they are neither dropped nor sent to everybody."""
    fabric = mesh(options={"forwarding": forwarding, "base": base})
    nodes = nodes_of(fabric)
    subscriber = nodes[4].client("s")
    subscriber.subscribe("a/+")
    fabric.settle()
    publisher = nodes[0].client("p")
    fabric.settle()
    for number in range(6):
        publisher.publish("a/b", b"%d" % number, qos=number % 3)
    fabric.run(0.003)
    assert waiting(nodes[0]) == 6
    fabric.settle()
    assert sorted(subscriber.payloads()) == [b"%d" % number for number in range(6)]
    assert on_links(fabric) == 6
    assert nodes[0].exchange.counters["pending_dropped"] == 0


def test_on_slow_links_they_go_by_the_tree_after_a_while() -> None:
    fabric = mesh(4)
    nodes = nodes_of(fabric)
    subscriber = nodes[3].client("s")
    subscriber.subscribe("t")
    publisher = nodes[0].client("p")
    fabric.settle()
    for one, other in combinations(nodes, 2):
        fabric.wire(one, other, delay_s=1.0)
    fabric.run(0.1)
    sent_s = fabric.now_s
    publisher.publish("t", b"m", qos=1)
    fabric.run(WAIT_S + 1.2)
    assert subscriber.payloads() == [b"m"]
    assert subscriber.received[0].at_s - sent_s < WAIT_S + 1.1
    fabric.settle()
    check_at_rest(fabric)
    assert subscriber.payloads() == [b"m"]


def test_a_will_needs_no_publisher() -> None:
    fabric = mesh()
    nodes = nodes_of(fabric)
    subscriber = nodes[2].client("s")
    subscriber.subscribe("w")
    mortal = nodes[0].client("m", will=Will("w", b"gone", qos=1))
    fabric.settle()
    mortal.vanish()
    fabric.settle()
    assert subscriber.payloads() == [b"gone"]
    fabric.run(2 * LINGER_S)
    fabric.settle()
    assert not graph_of(nodes[0]).roles.topics, "it is forgotten after a while"


def test_retained_messages_reach_every_broker_and_keep_their_order() -> None:
    fabric = mesh()
    nodes = nodes_of(fabric)
    subscriber = nodes[3].client("s")
    subscriber.subscribe("t", qos=1)
    publisher = nodes[0].client("p")
    fabric.settle()
    for number in range(30):
        publisher.publish("t", b"%d" % number, qos=1, retain=number % 3 == 1)
        if number % 7 == 0:
            fabric.run(0.004)
    fabric.settle()
    assert subscriber.payloads() == [b"%d" % number for number in range(30)]
    assert {node.broker.retained["t"].payload for node in nodes} == {b"28"}


def test_a_narrower_filter_takes_the_place_of_a_wider_one() -> None:
    """And nothing is missed meanwhile."""
    fabric = mesh()
    nodes = nodes_of(fabric)
    subscriber, publisher = nodes[4].client("s"), nodes[0].client("p")
    subscriber.subscribe("#", "t/a", qos=1)
    fabric.settle()
    published = []
    for number in range(60):
        if number == 20:
            subscriber.unsubscribe("#")
        elif number == 40:
            subscriber.subscribe("t/#", qos=1)
        published.append(b"%d" % number)
        publisher.publish("t/a", published[-1], qos=1)
        fabric.run(0.05)
    fabric.run(2 * SWAP_S)
    fabric.settle()
    check_at_rest(fabric)
    assert subscriber.payloads() == published
    assert graph_of(nodes[4]).roles.subscribed == {"t/#"}


@pytest.mark.parametrize("delay_s", [0.005, 0.4])
def test_a_key_stays_until_others_have_heard_of_the_one_in_its_place(delay_s: float) -> None:
    """However long it took that one to get there, and the answer that they have."""
    fabric = mesh(4, delay_s=delay_s)
    node = nodes_of(fabric)[3]
    subscriber, publisher = node.client("s"), nodes_of(fabric)[0].client("p")
    subscriber.subscribe("#", "t/a", qos=1)
    fabric.run(1)
    assert publisher.publish("t/a", b"first", qos=1)
    fabric.run(30 * delay_s + 2)
    graph = graph_of(node).graph
    assert graph is not None
    wide, narrow = (key_of(topic, Kind.SUBSCRIBER, "n3") for topic in ("#", "t/a"))
    assert graph.lists.is_usable(wide)
    subscriber.unsubscribe("#")
    while not graph.lists.is_usable(narrow):
        fabric.run(0.01)
    taken_s = fabric.now_s
    while wide in graph.lists:
        fabric.run(0.01)
    assert SWAP_S - 0.02 <= fabric.now_s - taken_s <= 1.5 * SWAP_S + 4 * delay_s + 0.02


SLOW_S = 1.8
"""A way of a signal that is longer than `SWAP_S`."""


def _slow_rendezvous_point(group: str) -> tuple[SimFabric, SimNode]:
    """It is far from the other publishers, and the subscriber near to all: signals are late."""
    fabric = SimFabric(
        algorithm=load("skipgraph"), link=LinkSettings(dead_after_s=20.0, hold_s=60.0)
    )
    nodes = [fabric.node(f"n{number}") for number in range(8)]
    first = min(nodes[1:], key=lambda node: key_of(group, Kind.PUBLISHER, node.node_id))
    for one, other in combinations(nodes, 2):
        is_far = first in (one, other) and nodes[0] not in (one, other)
        fabric.link(one, other, delay_s=SLOW_S if is_far else None)
    fabric.settle()
    return fabric, nodes[0]


@pytest.mark.parametrize(("before", "after"), [("#", "t/a"), ("t/a", "#")])
def test_nothing_is_missed_where_a_signal_takes_longer_than_a_key_would_stay(
    before: str, after: str
) -> None:
    """A filter takes the place of another one: the other goes when all publishers have answered."""
    fabric, node = _slow_rendezvous_point(after)
    publishers = [each.client(f"p-{each.name}") for each in nodes_of(fabric) if each is not node]
    subscriber = node.client("s")
    subscriber.subscribe(before, qos=1)
    fabric.settle()
    for publisher in publishers:
        publisher.publish("t/a", b"here I am", qos=1)
    fabric.settle()
    owed = {b"here I am"}
    for number in range(120):
        if number == 10:
            subscriber.subscribe(after, qos=1)
        elif number == 12:
            subscriber.unsubscribe(before)
        for publisher in publishers:
            payload = f"{publisher.client_id} {number}".encode()
            assert publisher.publish("t/a", payload, qos=1)
            owed.add(payload)
        fabric.run(0.05)
    fabric.settle()
    assert graph_of(node).standing.phase is Phase.SETTLED
    assert set(subscriber.payloads()) == owed
    assert graph_of(node).roles.subscribed == {after}
    assert [key.topic for key in node_graph(node).lists.keys] == [after]
    check_at_rest(fabric)


def test_a_key_goes_in_the_end_though_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is mute keeps no other's key in the lists for ever."""
    monkeypatch.setattr(Suspension, "_answer", lambda *_: None)
    fabric = mesh(4)
    node = nodes_of(fabric)[3]
    subscriber = node.client("s")
    subscriber.subscribe("#", "t/a", qos=1)
    fabric.run(1)
    subscriber.unsubscribe("#")
    wide = key_of("#", Kind.SUBSCRIBER, "n3")
    fabric.run(MOST_LOOKS * SWAP_S / 4 - 1)
    assert wide in node_graph(node).lists
    fabric.run(1 + 2 * SWAP_S)
    assert wide not in node_graph(node).lists


def test_one_node_that_can_be_reached_is_enough() -> None:
    """
    n0 ─ n1 ─ n2 ─ n3     are what is configured; from there each hears of the others.
    """
    fabric = SimFabric(seed=1, algorithm=load("skipgraph"), options={"links": "all"})
    nodes = [fabric.node(f"n{number}") for number in range(4)]
    for one, other in pairwise(nodes):
        fabric.link(one, other)
    fabric.run(10.0)
    for node in nodes:
        assert {link.info.name for link in node.exchange.links if link.state.up} == {
            other.name for other in nodes if other is not node
        }
        assert graph_of(node).standing.phase is Phase.SETTLED


def test_where_links_are_missing_messages_go_by_the_tree() -> None:
    fabric = SimFabric(seed=1, algorithm=load("skipgraph"))
    nodes = [fabric.node(f"n{number}") for number in range(4)]
    for one, other in pairwise(nodes):
        fabric.link(one, other)
    fabric.settle()
    check_at_rest(fabric)
    assert {graph_of(node).standing.phase for node in nodes} == {Phase.OPEN}
    subscriber, publisher = nodes[3].client("s"), nodes[0].client("p")
    subscriber.subscribe("t")
    fabric.settle()
    publisher.publish("t", b"m", qos=1)
    fabric.settle()
    assert subscriber.payloads() == [b"m"]


def test_different_bases_have_no_graph_in_common() -> None:
    """Somebody has configured it wrong: messages go by the tree."""

    class Mixed(SkipGraph):
        def __init__(self, port: object, options: object) -> None:
            base = 3 if port.node_id == "n1" else 2  # type: ignore[attr-defined]
            super().__init__(port, {"base": base})  # type: ignore[arg-type]

    fabric = mesh(3, algorithm=Mixed)
    nodes = nodes_of(fabric)
    subscriber, publisher = nodes[2].client("s"), nodes[0].client("p")
    subscriber.subscribe("t")
    fabric.settle()
    publisher.publish("t", b"m", qos=1)
    fabric.settle()
    assert subscriber.payloads() == [b"m"]
    assert Phase.SETTLED not in {graph_of(node).standing.phase for node in nodes}


# ---- who lies ----------------------------------------------------------------------------


def _moves(message: InEpoch) -> InEpoch:
    """A key into a list that its node is not in."""
    inner = message.message
    if isinstance(inner, Insert):
        return InEpoch(message.epoch, Insert(60, inner.of))
    return message


def _claims(message: InEpoch) -> InEpoch:
    """To be beside a key that nobody has put there."""
    inner = message.message
    if isinstance(inner, Insert):
        return InEpoch(message.epoch, Left(0, inner.of, inner.of, None))
    return message


@pytest.mark.parametrize("lie", [_moves, _claims])
def test_who_lies_about_keys_is_refused_and_the_others_go_on(lie: object) -> None:
    class Lying(SkipGraph):
        def _say(self, neighbor: str, message: GraphMessage) -> None:
            if self.port.node_id == "n3" and isinstance(message, InEpoch):
                message = lie(message)  # type: ignore[operator]
            super()._say(neighbor, message)

    fabric = mesh(4, algorithm=Lying)
    nodes = nodes_of(fabric)
    subscriber = nodes[1].client("s")
    subscriber.subscribe("t", qos=1)
    fabric.settle()
    liar = nodes[3].client("l")
    liar.subscribe("t/#")
    publisher = nodes[0].client("p")
    fabric.run(0.5)
    published = []
    for number in range(100):
        published.append(b"%d" % number)
        publisher.publish("t", published[-1], qos=1)
        fabric.run(0.05)
    accused = [each for each in fabric.trace.accusations if "n3" in str(each)]
    assert accused, "nobody has noticed"
    fabric.crash(nodes[3])
    fabric.run(15.0)
    assert subscriber.payloads() == published
    assert {graph_of(node).standing.phase for node in nodes[:3]} == {Phase.SETTLED}


def test_what_is_said_twice_is_refused() -> None:
    """A neighbor that repeats itself is no honest one: what is said arrives once."""

    class Repeating(SkipGraph):
        def _say(self, neighbor: str, message: GraphMessage) -> None:
            super()._say(neighbor, message)
            if self.port.node_id == "n2" and isinstance(message, InEpoch):
                super()._say(neighbor, message)

    fabric = mesh(3, algorithm=Repeating)
    nodes = nodes_of(fabric)
    subscriber, publisher = nodes[1].client("s"), nodes[0].client("p")
    subscriber.subscribe("t", qos=1)
    nodes[2].client("l").subscribe("u")
    fabric.run(0.5)
    for number in range(40):
        publisher.publish("t", b"%d" % number, qos=1)
        fabric.run(0.05)
    assert fabric.trace.accusations
    fabric.crash(nodes[2])
    fabric.run(15.0)
    assert subscriber.payloads() == [b"%d" % number for number in range(40)]


@pytest.mark.parametrize(
    ("unsaid", "within_s"),
    [((Linked,), 2 * MUTE_S), ((Go, Inserted), (MAX_LOOKS + 1) * MUTE_S)],
    ids=["an answer at once", "a place"],
)
def test_who_does_not_answer_keeps_others_out_of_the_lists_for_a_while(
    unsaid: tuple[type, ...], within_s: float
) -> None:
    """Then messages go by the tree, and after a minute it is tried again.

    The entry to the right of `n0`'s key leads to the mute one, and is where the other belongs; or
    the mute one is where that begins to ask.
    """
    mute = False
    name, mute_name = sorted(("n1", "n3"), key=lambda each: key_of("t", Kind.SUBSCRIBER, each))

    class Mute(SkipGraph):
        def _say(self, neighbor: str, message: GraphMessage) -> None:
            here = self.port.node_id
            of_mute = mute and here == mute_name and isinstance(message, InEpoch)
            if not of_mute or not isinstance(message.message, unsaid):  # type: ignore[union-attr]
                super()._say(neighbor, message)

        def _look_for_mute(self) -> None:
            if self.port.node_id != mute_name:
                super()._look_for_mute()

    fabric = mesh(4, algorithm=Mute)
    nodes = nodes_of(fabric)
    publisher, subscriber = nodes[0].client("p"), fabric.nodes[name].client("s")
    beside = fabric.nodes[mute_name].client("m")
    fabric.run(1)
    assert publisher.publish("t", b"first", qos=1)
    fabric.run(1)
    mute = Linked in unsaid
    beside.subscribe("t" if mute else "s")
    fabric.run(1)
    mute = True
    assert graph_of(nodes[0]).standing.phase is Phase.SETTLED
    subscriber.subscribe("t", qos=1)
    fabric.run(1)
    graph = graph_of(fabric.nodes[name]).graph
    assert graph is not None
    assert not graph.lists.is_usable(key_of("t", Kind.SUBSCRIBER, name)), "nothing is tried"
    fabric.run(within_s)
    sent = [b"%d" % number for number in range(100)]
    for payload in sent:
        assert publisher.publish("t", payload, qos=1)
        fabric.run(0.1)
    fabric.run(1)
    assert [payload for payload in subscriber.payloads() if payload in sent] == sent
    mute = False
    fabric.run(APART_S + 5)
    assert {graph_of(node).standing.phase for node in nodes} == {Phase.SETTLED}
    assert not fabric.trace.accusations
