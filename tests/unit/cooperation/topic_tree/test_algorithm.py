"""Topic-based overlays (Overlays §4.1.2, §4.2.2, §5.2), with every message on the wire counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import pytest

from isthmus.cooperation.api import Port
from isthmus.cooperation.registry import check_options
from isthmus.cooperation.topic_tree import algorithm as bounds
from isthmus.cooperation.topic_tree import membership, overlays
from isthmus.cooperation.topic_tree.algorithm import DIRECT, LINGER_S, TopicTree
from isthmus.cooperation.topic_tree.messages import OfOverlay
from isthmus.cooperation.topic_tree.overlays import FORGET_S, members_of
from isthmus.cooperation.tree.messages import Echo, Explore
from isthmus.sim.check import check_scenario
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import check_at_rest
from isthmus.sim.network import HopRecord
from isthmus.sim.scenarios import SCENARIOS


class Recorded(TopicTree):
    """Notes what it says of overlays."""

    signaled: list[tuple[str, str, OfOverlay]]

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self.signaled = []

    def send_in(self, neighbor: str, message: OfOverlay) -> None:
        self.signaled.append((self.port.node_id, neighbor, message))
        super().send_in(neighbor, message)


class Mesh:
    """Nodes that are all linked with each other, and what crosses the links."""

    def __init__(
        self,
        names: str,
        options: Mapping[str, object] | None = None,
        slow: str = "",
        algorithm: type[TopicTree] = TopicTree,
    ) -> None:
        self.hops: list[HopRecord] = []
        self.fabric = SimFabric(algorithm=algorithm, options=options or {}, on_hop=self.hops.append)
        self.nodes = {name: self.fabric.node(name) for name in names}
        for one, other in combinations(names, 2):
            delay_s = 0.15 if one + other == slow else None
            self.fabric.link(self.nodes[one], self.nodes[other], delay_s=delay_s)
        self._publishers: dict[str, SimClient] = {}
        self.rest()

    def rest(self) -> None:
        self.fabric.settle()
        check_at_rest(self.fabric)

    def subscriber(self, name: str, *filters: str) -> SimClient:
        client = self.nodes[name].client(f"{name} {' '.join(filters)}")
        client.subscribe(*filters)
        return client

    def publish(self, name: str, topic: str, payload: bytes = b"", **how: int) -> None:
        if name not in self._publishers:
            self._publishers[name] = self.nodes[name].client(f"publisher {name}")
            self.fabric.run(0.1)
        self._publishers[name].publish(topic, payload or topic.encode(), **how)  # type: ignore[arg-type]

    def carried(self) -> Counter[tuple[str, str]]:
        """Which links carried how many messages since this was asked last."""
        counted = Counter((hop.source, hop.target) for hop in self.hops)
        self.hops.clear()
        return counted

    def of(self, name: str) -> TopicTree:
        algorithm = self.nodes[name].algorithm
        assert isinstance(algorithm, TopicTree)
        return algorithm

    def signaled(self) -> dict[str, dict[str, list[tuple[str, str, object]]]]:
        """All that was said to build a tree of each member set: from, to, cost in ms or nodes."""
        found: dict[str, dict[str, list[tuple[str, str, object]]]] = {}
        for node in self.nodes.values():
            assert isinstance(node.algorithm, Recorded)
            for sender, receiver, said in node.algorithm.signaled:
                message, kinds = said.message, found.setdefault("".join(said.members), {})
                about: object
                if isinstance(message, Explore):
                    about = round(message.cost_us / 1000)
                else:
                    about = "".join(sorted(message.nodes))
                kind = type(message).__name__.lower()
                kinds.setdefault(kind, []).append((sender, receiver, about))
        return found

    def t_ort(self, topic: str) -> dict[str, tuple[str, ...]]:
        return {name: table for name in self.nodes if (table := self.of(name).t_ort(topic))}

    def roots(self) -> Counter[str]:
        return Counter(
            tree.wave.root
            for name in self.nodes
            for overlay in self.of(name).overlays
            if (tree := overlay.tree) is not None and not tree.parent
        )


def test_figure_5_d() -> None:
    """A ── B ── C: A publishes topic1, B does not care, C subscribes; the overlay is A ── C."""
    mesh = Mesh("ABC")
    subscriber = mesh.subscriber("C", "topic1")
    mesh.publish("A", "topic1", qos=1)
    mesh.rest()
    assert mesh.t_ort("topic1") == {"A": ("C",), "C": ("A",)}
    assert mesh.carried() == {("A", "C"): 1}
    assert subscriber.payloads() == [b"topic1"]


def test_figure_4() -> None:
    """A table for each topic, of those whose clients subscribe to it or publish on it.

    topic1: A publishes, C subscribes         A ── C
    topic2: A, B, D subscribe, D publishes    B ── A ── D, since A has the lowest address
    topic3: C alone                           nobody
    """
    mesh = Mesh("ABCD", algorithm=Recorded)
    for name, topics in {"A": ["topic2"], "B": ["topic2"], "C": ["topic1", "topic3"]}.items():
        mesh.subscriber(name, *topics)
    mesh.subscriber("D", "topic2")
    mesh.publish("A", "topic1")
    mesh.publish("D", "topic2")
    mesh.publish("C", "topic3")
    mesh.rest()
    assert mesh.t_ort("topic1") == {"A": ("C",), "C": ("A",)}
    assert mesh.t_ort("topic2") == {"A": ("B", "D"), "B": ("A",), "D": ("A",)}
    assert mesh.t_ort("topic3") == {}
    # Members alone signal, of their overlay; two need no tree.
    assert mesh.signaled() == {
        "ABD": {
            "explore": [("A", "B", 0), ("A", "D", 0), ("B", "D", 10), ("D", "B", 10)],
            "echo": [("B", "A", "B"), ("D", "A", "D")],
            "adopt": [("A", "B", "ABD"), ("A", "D", "ABD")],
        }
    }
    mesh.carried()
    mesh.publish("D", "topic2")
    mesh.rest()
    assert mesh.carried() == {("D", "A"): 1, ("A", "B"): 1}


def test_nothing_reaches_a_node_without_an_interested_client() -> None:
    """Wildcards included, from the first message on; in a tree, who publishes is a member too."""
    mesh = Mesh("ABCDE")
    wanted = {"A": ["a/#"], "B": ["a/1", "b/+"], "C": ["a/1", "a/2"], "D": ["+/2"]}
    clients = {name: mesh.subscriber(name, *filters) for name, filters in wanted.items()}
    mesh.rest()
    interested = {"a/1": "ABC", "a/2": "ACD", "b/1": "B", "b/2": "BD", "c/1": "", "a": "A"}
    publishing = {"a/1": "AD", "a/2": "BE", "b/1": "ABC", "b/2": "A", "c/1": "AE", "a": "AB"}
    for turn in range(3):  # directly, then while trees are built, then along them
        for topic, names in publishing.items():
            for name in names:
                mesh.publish(name, topic, f"{turn} {name} {topic}".encode(), qos=turn)
        mesh.fabric.run(0.08)
    mesh.rest()
    labels = {topic: {hop.label for hop in mesh.hops if hop.topic == topic} for topic in interested}
    # The others go nowhere, or to one node.
    assert {topic for topic, found in labels.items() if found - {DIRECT}} == {"a/1", "a/2", "b/2"}
    assert all(DIRECT in labels[topic] for topic in interested if topic != "c/1")
    for hop in mesh.hops:
        may = interested[hop.topic] + ("" if hop.label == DIRECT else publishing[hop.topic])
        assert hop.target in may, hop
    for name, client in clients.items():
        expected = sum(3 * len(publishing[t]) for t, nodes in interested.items() if name in nodes)
        assert len(set(client.payloads())) == len(client.payloads()) == expected


def test_a_publisher_alone_gets_nothing_of_others() -> None:
    """It is a member, as in the paper, but nobody beyond it wants anything."""
    mesh = Mesh("ABCDE")
    mesh.subscriber("A", "t")
    mesh.subscriber("B", "t")
    for _ in range(2):
        for name in "CDE":
            mesh.publish(name, "t", qos=1)
        mesh.rest()
    overlay = mesh.of("E").overlays.of_topic("t")
    assert overlay is not None
    assert overlay.members == tuple("ABCDE")
    assert not [hop for hop in mesh.hops if hop.target in "CDE"]


def test_at_full_locality_nothing_leaves_the_node() -> None:
    mesh = Mesh("ABC")
    clients = [mesh.subscriber(name, f"{name}/#") for name in "ABC"]
    for name in "ABC":
        for number in range(20):
            mesh.publish(name, f"{name}/{number}", qos=number % 3)
    mesh.rest()
    assert not mesh.hops
    assert [len(client.payloads()) for client in clients] == [20, 20, 20]


def signals(mesh: Mesh, topics: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Messages of waves that `topics` with three different member sets took."""
    sent = []
    send = TopicTree.send_in

    def counting(self: TopicTree, neighbor: str, message: OfOverlay) -> None:
        sent.append(message)
        send(self, neighbor, message)

    monkeypatch.setattr(TopicTree, "send_in", counting)
    for number in range(topics):
        for name in ("ABC", "BCD", "CDE")[number % 3]:
            mesh.subscriber(name, f"t/{number}")
    mesh.fabric.settle()
    for number in range(topics):
        mesh.publish("ABC"[number % 3], f"t/{number}")
    mesh.rest()
    return len(sent)


def test_equal_member_sets_share_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = Mesh("ABCDE"), Mesh("ABCDE")
    signalled = signals(few, 3, monkeypatch)
    assert signalled == signals(many, 60, monkeypatch)
    # Each of three waves: an explore over each link and back or not, an echo and an adopt for each
    # of two others.
    assert 3 * (2 + 2 + 2) <= signalled <= 3 * (6 + 2 + 2)
    assert sorted(overlay.members for overlay in many.of("C").overlays) == [
        ("A", "B", "C"),
        ("B", "C", "D"),
        ("C", "D", "E"),
    ]
    assert [len(many.of("C").overlays.topics_of(each)) for each in many.of("C").overlays] == [
        20
    ] * 3


def sets_of_three(mesh: Mesh) -> None:
    """A topic for any three of five nodes: ten overlays."""
    for members in combinations("ABCDE", 3):
        for name in members:
            mesh.subscriber(name, "".join(members))
    mesh.fabric.settle()
    for members in combinations("ABCDE", 3):
        mesh.publish(members[0], "".join(members))
    mesh.rest()


def test_by_capacity_the_most_capable_node_is_the_root() -> None:
    mesh = Mesh("ABCDE")
    sets_of_three(mesh)
    # All are as capable here: then the lowest address counts.
    assert mesh.roots() == {"A": 6, "B": 3, "C": 1}


def test_by_balance_the_roots_are_spread() -> None:
    mesh = Mesh("ABCDE", {"roots": "balance", "delta": 0.0})
    sets_of_three(mesh)
    assert sum(mesh.roots().values()) == 10
    assert max(mesh.roots().values()) <= 3


def test_by_balance_clients_weigh_too() -> None:
    mesh = Mesh("ABC", {"roots": "balance", "gamma": 0.0, "delta": 1.0})
    for number in range(5):
        mesh.nodes["A"].client(f"idle {number}")
        mesh.nodes["C"].client(f"idle too {number}")
    for name in "ABC":
        mesh.subscriber(name, "t")
    mesh.fabric.settle()
    mesh.publish("A", "t")
    mesh.rest()
    assert mesh.roots() == {"B": 1}


def test_who_is_away_gets_it_later_and_nobody_else_waits() -> None:
    mesh = Mesh("ABCD")
    clients = {name: mesh.subscriber(name, "t") for name in "BCD"}
    mesh.publish("A", "t", b"1", qos=1)
    mesh.rest()
    mesh.fabric.partition([mesh.nodes["D"]], [mesh.nodes[name] for name in "ABC"])
    mesh.publish("A", "t", b"2", qos=1)
    mesh.fabric.run(10.0)
    mesh.publish("A", "t", b"3", qos=1)
    mesh.fabric.run(0.1)
    assert [clients[name].payloads() for name in "BCD"] == [
        [b"1", b"2", b"3"],
        [b"1", b"2", b"3"],
        [b"1"],
    ]
    mesh.fabric.heal()
    mesh.rest()
    assert clients["D"].payloads() == [b"1", b"2", b"3"]
    mesh.carried()
    mesh.publish("A", "t", b"4", qos=1)
    mesh.rest()
    carried = mesh.carried()
    assert sorted(target for _, target in carried.elements()) == ["B", "C", "D"]


def test_where_a_link_is_missing_the_tree_over_all_nodes_does_it() -> None:
    mesh = Mesh("ABC")
    mesh.fabric.unlink(mesh.nodes["A"], mesh.nodes["C"])
    mesh.rest()
    subscriber = mesh.subscriber("C", "t")
    mesh.rest()
    mesh.publish("A", "t", qos=1)
    mesh.rest()
    assert subscriber.payloads() == [b"t"]
    assert mesh.carried() == {("A", "B"): 1, ("B", "C"): 1}
    mesh.publish("B", "t", qos=1)
    mesh.rest()
    assert mesh.carried() == {("B", "C"): 1}


def test_order_is_kept_while_ways_change() -> None:
    """Subscribers come and go, trees are built, and a link is slow: nothing overtakes."""
    mesh = Mesh("ABCDE", slow="AE")
    steady = mesh.subscriber("E", "t")
    mesh.rest()
    others: list[SimClient] = []
    for number in range(60):
        mesh.publish("A", "t", b"%03d" % number, qos=1)
        mesh.fabric.run(0.02)
        if number % 10 == 3:
            others.append(mesh.subscriber("BCD"[len(others) % 3], "t"))
        if number % 15 == 9:
            others.pop(0).disconnect()
    mesh.rest()
    assert steady.payloads() == [b"%03d" % number for number in range(60)]
    labels = {(hop.source, hop.target): hop.label for hop in mesh.hops if hop.target == "E"}
    assert labels.pop(("A", "E")) == DIRECT
    assert labels.keys() & {("B", "E"), ("C", "E"), ("D", "E")}  # which is quicker


def test_retained_messages_are_at_every_broker_and_in_order() -> None:
    mesh = Mesh("ABCDE")
    clients = [mesh.subscriber(name, "t") for name in "BCD"]
    mesh.rest()
    for number in range(12):
        mesh.publish("A", "t", b"%d" % number, qos=1, retain=number % 3 == 0)
        mesh.fabric.run(0.02)
    mesh.rest()
    for client in clients:
        assert client.payloads() == [b"%d" % number for number in range(12)]
    assert [node.broker.retained["t"].payload for node in mesh.nodes.values()] == [b"9"] * 5


def test_an_overlay_that_nobody_needs_is_forgotten() -> None:
    mesh = Mesh("ABC")
    for name in "ABC":
        mesh.subscriber(name, "t")
    mesh.fabric.settle()
    publisher = mesh.nodes["A"].client("p")
    mesh.fabric.settle()
    publisher.publish("t", b"x")
    mesh.rest()
    assert [len(list(mesh.of(name).overlays)) for name in "ABC"] == [1, 1, 1]
    before = mesh.of("C").overlays.of_topic("t")
    publisher.disconnect()
    mesh.fabric.run(LINGER_S + 2 * FORGET_S + 2.0)
    assert [len(list(mesh.of(name).overlays)) for name in "ABC"] == [0, 0, 0]
    assert mesh.t_ort("t") == {}
    mesh.publish("A", "t")
    mesh.rest()
    again = mesh.of("C").overlays.of_topic("t")
    assert before is not None
    assert again is not None
    # Who has not forgotten it, and waits, must go with the later one.
    assert again.building.number > before.building.number


def test_without_room_for_an_overlay_messages_go_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "MAX_OVERLAYS", 0)
    mesh = Mesh("ABC")
    clients = [mesh.subscriber(name, "t") for name in "BC"]
    mesh.fabric.settle()
    for _ in range(3):
        mesh.publish("A", "t")
        mesh.fabric.settle()
    assert [len(client.payloads()) for client in clients] == [3, 3]
    assert mesh.carried() == {("A", "B"): 3, ("A", "C"): 3}


def test_who_wants_too_much_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MAX_FILTERS", 10)
    monkeypatch.setattr(bounds, "MAX_FILTERS", 10)
    mesh = Mesh("AB")
    client = mesh.subscriber("B", *(f"t/{number}" for number in range(11)))
    mesh.fabric.settle()
    mesh.publish("A", "t/10")
    mesh.publish("A", "other")
    mesh.fabric.settle()
    assert client.payloads() == [b"t/10"]
    assert mesh.carried() == {("A", "B"): 2}
    client.unsubscribe(*(f"t/{number}" for number in range(6)))
    mesh.rest()
    mesh.publish("A", "other")
    mesh.publish("A", "t/10")
    mesh.rest()
    assert mesh.carried() == {("A", "B"): 1}


def test_a_neighbor_that_speaks_of_others_overlays_is_refused() -> None:
    mesh = Mesh("ABC")
    stranger = mesh.of("A")
    stranger.send_in("B", OfOverlay(("B", "C"), Explore(stranger.candidate(1), 0)))
    mesh.fabric.run(1.0)
    assert any("not ours" in str(each) for each in mesh.fabric.trace.accusations)


def test_who_has_forgotten_a_tree_gets_another() -> None:
    mesh = Mesh("ABC")
    clients = [mesh.subscriber(name, "t") for name in "ABC"]
    mesh.fabric.settle()
    mesh.publish("A", "t")
    mesh.rest()
    mesh.fabric.crash(mesh.nodes["A"])
    mesh.fabric.run(1.0)
    mesh.fabric.restart(mesh.nodes["A"])
    mesh.rest()
    mesh.publish("B", "t", b"again", qos=1)
    mesh.rest()
    assert all(client.payloads().count(b"again") == 1 for client in clients if client.connected)
    mesh.carried()
    mesh.publish("C", "t", b"and again", qos=1)
    mesh.rest()
    overlay = mesh.of("A").overlays.of(("A", "B", "C"))
    assert overlay is not None
    assert {hop.label for hop in mesh.hops} == {overlay.label}


def test_a_wave_without_an_answer_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """B forgets an overlay when it has been asked, and nobody hears from it."""
    say = TopicTree.send_in
    lost: list[OfOverlay] = []

    def forgetful(self: TopicTree, neighbor: str, message: OfOverlay) -> None:
        if self.port.node_id == "B" and isinstance(message.message, Echo) and len(lost) < 2:
            lost.append(message)
        else:
            say(self, neighbor, message)

    monkeypatch.setattr(TopicTree, "send_in", forgetful)
    mesh = Mesh("ABC")
    clients = [mesh.subscriber(name, "t") for name in "ABC"]
    mesh.fabric.settle()
    mesh.publish("A", "t", b"first", qos=1)
    mesh.fabric.run(1.0)
    assert len(lost) == 1
    assert [mesh.of(name).overlays.of(("A", "B", "C")).tree for name in "ABC"] == [None] * 3  # type: ignore[union-attr]
    assert all(client.payloads() == [b"first"] for client in clients), "it does not wait for that"
    mesh.fabric.run(overlays.LATE_S + 1.0)
    assert len(lost) == 2
    mesh.fabric.run(2 * overlays.LATE_S + 1.0)
    mesh.rest()
    mesh.publish("A", "t", b"second", qos=1)
    mesh.rest()
    assert all(client.payloads() == [b"first", b"second"] for client in clients)


@pytest.mark.parametrize(
    ("wanting", "publishing", "members"),
    [
        ("", "A", None),
        ("A", "BC", None),  # each of them sends directly
        ("AB", "", None),
        ("AB", "A", None),
        ("AB", "C", "ABC"),
        ("ABC", "A", "ABC"),
        ("ABC", "", None),
        ("AB", "CD", "ABCD"),
    ],
)
def test_which_topics_need_a_tree(wanting: str, publishing: str, members: str | None) -> None:
    expected = None if members is None else tuple(members)
    assert members_of(set(wanting), set(publishing)) == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"roots": "chance"}, "roots"),
        ({"gamma": "1"}, "gamma"),
        ({"delta": -1}, "delta"),
        ({"epsilon": 1}, "'topic-tree' has no such option"),
        ({"review_s": 0}, "review_s"),
    ],
)
def test_options_that_are_wrong(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_options("topic-tree", options)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
@pytest.mark.parametrize("topology", ["mesh", "ildm"])
def test_by_balance_the_suite_passes_too(topology: str, scenario: str) -> None:
    check_scenario(TopicTree, scenario, topology, options={"roots": "balance"})
