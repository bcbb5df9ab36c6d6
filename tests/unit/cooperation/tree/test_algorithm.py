"""What `tree` does by itself: bad input, options, a root that changes, what it shows."""

from __future__ import annotations

import random

import pytest

from isthmus.cooperation.api import Resources
from isthmus.cooperation.registry import check_options
from isthmus.cooperation.tree.algorithm import SpanningTree
from isthmus.cooperation.tree.messages import TOPIC
from isthmus.cooperation.tree.phases import Phase
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.sim import SimFabric
from isthmus.sim.node import SimNode


def mesh(count: int, algorithm: str = "tree", **options: object) -> tuple[SimFabric, list[SimNode]]:
    fabric = SimFabric(seed=3, algorithm=algorithm, options=options)
    nodes = [fabric.node(f"n{index}") for index in range(count)]
    for index, node in enumerate(nodes):
        for other in nodes[:index]:
            fabric.link(node, other)
    fabric.settle()
    return fabric, nodes


def algorithm_of(node: SimNode) -> SpanningTree:
    algorithm = node.algorithm
    assert isinstance(algorithm, SpanningTree)
    return algorithm


def root_of(node: SimNode) -> str:
    tree = algorithm_of(node).tree
    assert tree is not None
    return tree.wave.root


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"discovery_s": -1}, "discovery_s"),
        ({"announce_s": 0}, "announce_s"),
        ({"repair_s": "soon"}, "repair_s"),
        ({"alpha": True}, "alpha"),
        ({"max_links": 0.5}, "max_links"),
        ({"max_links": 0}, "max_links"),
        ({"color": 1}, "color"),
    ],
)
@pytest.mark.parametrize("algorithm", ["tree", "routed-tree"])
def test_options_that_are_wrong_are_named(
    algorithm: str, options: dict[str, object], key: str
) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        check_options(algorithm, options)


@pytest.mark.parametrize("payload", [b"", b"[]", b'["echo",[],[]]', b'["hello",1,"",true]'])
def test_a_neighbor_that_talks_nonsense_is_cut_off_and_nobody_else(payload: bytes) -> None:
    fabric, nodes = mesh(3)
    link = nodes[0].exchange.links.links["n1"]
    link.send_control(encode(Publish(TOPIC, payload), 5))
    fabric.settle()
    assert sum(nodes[1].exchange.links.refusals.values()) == 1
    assert not nodes[2].exchange.links.refusals
    trees = [algorithm_of(node).tree for node in nodes]
    assert all(tree is not None and tree.nodes == {"n0", "n1", "n2"} for tree in trees)


def test_a_flooding_neighbor_knows_no_advertisements() -> None:
    fabric, nodes = mesh(2)
    link = nodes[0].exchange.links.links["n1"]
    link.send_control(encode(Publish(TOPIC, b'["advertise","",["a"],[]]'), 5))
    fabric.run(0.1)
    assert sum(nodes[1].exchange.links.refusals.values()) == 1


def test_the_most_capable_is_the_root_and_stays_it_until_another_is_much_more() -> None:
    """Overlays eq. 1, with the noise of machines that are shared."""
    fabric, nodes = mesh(3, review_s=1.0)
    assert {root_of(node) for node in nodes} == {"n0"}  # all alike: of the lowest address
    built = sum(algorithm_of(node).status()["built"] for node in nodes)  # type: ignore[misc]
    for cores in (0.9, 1.1, 1.2, 0.8):
        nodes[2].resources = Resources(cores, 1 << 30)
        fabric.run(5.0)
    assert {root_of(node) for node in nodes} == {"n0"}
    assert built == sum(algorithm_of(node).status()["built"] for node in nodes)  # type: ignore[misc]
    nodes[2].resources = Resources(8.0, 16 << 30)
    fabric.run(5.0)
    assert {root_of(node) for node in nodes} == {"n2"}
    assert "most capable" in str(algorithm_of(nodes[2]).status()["why"])


def test_a_link_that_becomes_slow_has_the_tree_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric, nodes = mesh(3, review_s=2.0)
    tree = algorithm_of(nodes[2]).tree
    assert tree is not None
    assert tree.parent == "n0"
    costs = {"n0": 25_000, "n1": 10_000}
    monkeypatch.setattr(algorithm_of(nodes[2]), "cost_us", costs.__getitem__)
    fabric.run(10.0)
    assert algorithm_of(nodes[2]).tree is tree  # not by much
    costs["n0"] = 400_000
    fabric.run(10.0)
    assert algorithm_of(nodes[2]).status()["why"] == "the link to n0 has become slow"
    assert algorithm_of(nodes[2]).tree is not tree
    built = algorithm_of(nodes[2]).status()["built"]
    fabric.run(600.0)  # it is as slow as before, and so is the tree: that is tried ever less often
    assert algorithm_of(nodes[2]).status()["built"] == built


def a_long_way_round(algorithm: str) -> tuple[SimFabric, list[SimNode]]:
    """n4 has taken the way over n1 to the root n0, as its own link there was slow, and is not now:

    n0 ── n1 ── n4      10 ms each; n2 and n3 are linked with all of them, too
    """
    fabric = SimFabric(seed=1, algorithm=algorithm)
    nodes = [fabric.node(f"n{index}") for index in range(5)]
    for index, node in enumerate(nodes):
        for other in nodes[:index]:
            fabric.link(node, other, delay_s=0.010)
    fabric.wire(nodes[0], nodes[4], delay_s=0.1)
    fabric.settle()
    tree = algorithm_of(nodes[4]).tree
    assert tree is not None
    assert tree.parent == "n1"
    fabric.wire(nodes[0], nodes[4], delay_s=0.010)
    return fabric, nodes


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_tree_that_was_built_by_bad_rtts_is_mended(algorithm: str, comes_back: bool) -> None:
    fabric, nodes = a_long_way_round(algorithm)
    if comes_back:
        fabric.break_connections(nodes[0], nodes[4])
    fabric.run(60.0)
    tree = algorithm_of(nodes[4]).tree
    assert tree is not None
    assert tree.parent == "n0"
    assert algorithm_of(nodes[4]).status()["why"] == "the root is nearer over n0"
    fabric.run(200.0)
    assert algorithm_of(nodes[4]).tree is tree  # and that was that
    fabric.settle()


def test_noise_in_the_rtt_does_not_keep_rebuilding() -> None:
    """Delays as the paper emulates them, N(10 ms, 2.5 ms), drawn anew every second.

    n0 ── n1
    │     │     two ways from n3 to the root n0, as long as each other
    n2 ── n3
    """
    fabric = SimFabric(seed=3, algorithm="tree", options={"review_s": 2.0})
    nodes = [fabric.node(f"n{index}") for index in range(4)]
    ways = [(nodes[0], nodes[1]), (nodes[0], nodes[2]), (nodes[1], nodes[3]), (nodes[2], nodes[3])]
    for node, other in ways:
        fabric.link(node, other, delay_s=0.010)
    fabric.settle()
    trees = [algorithm_of(node).tree for node in nodes]
    rng = random.Random(11)
    for _ in range(600):
        for node, other in ways:
            fabric.wire(node, other, delay_s=max(0.001, rng.gauss(0.010, 0.0025)))
        fabric.run(1.0)
    assert [algorithm_of(node).tree for node in nodes] == trees


def test_a_way_that_is_better_for_a_moment_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric, nodes = mesh(3, review_s=3.0)
    fabric.run(20.0)
    algorithm = algorithm_of(nodes[2])
    tree, real = algorithm.tree, algorithm.cost_us
    monkeypatch.setattr(algorithm, "cost_us", lambda name: 39_000 if name == "n0" else real(name))
    fabric.run(4.0)  # it is looked at once
    monkeypatch.setattr(algorithm, "cost_us", real)
    fabric.run(60.0)
    assert algorithm.tree is tree


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree", "topic-tree", "skipgraph"])
def test_a_parent_that_is_gone_is_no_link_to_review(algorithm: str) -> None:
    """It was removed, and the tree is built anew a moment later."""
    fabric, nodes = mesh(3, algorithm, review_s=1.0, repair_s=3.0, merge_s=3.0)
    fabric.run(10.0)
    tree = algorithm_of(nodes[1]).tree
    assert tree is not None
    assert tree.parent == "n0"
    fabric.unlink(nodes[1], nodes[0])
    fabric.run(2.0)
    assert algorithm_of(nodes[1]).tree is tree
    fabric.run(10.0)
    after = algorithm_of(nodes[1]).tree
    assert after is not None
    assert after.parent == "n2"
    nodes[1].resources = Resources(8.0, 16 << 30)
    fabric.run(10.0)
    assert {root_of(node) for node in nodes} == {"n1"}


def test_a_node_alone_runs() -> None:
    fabric, (node,) = mesh(1)
    algorithm = algorithm_of(node)
    assert algorithm.phase is Phase.RUNTIME
    tree = algorithm.tree
    assert tree is not None
    assert tree.nodes == {"n0"}
    assert not tree.neighbors
    assert fabric.now_s < 5


def test_status_says_why_the_tree_is_as_it_is() -> None:
    fabric, nodes = mesh(3)
    fabric.crash(nodes[0])
    fabric.run(2.0)
    status = algorithm_of(nodes[1]).status()
    assert status["phase"] == "RUNTIME"
    assert status["tree"]["root"] == "n1"  # type: ignore[index]
    assert status["tree"]["nodes"] == ["n1", "n2"]  # type: ignore[index]
    assert status["kept"] == ["n0"]
    assert status["why"] == "lost: n0"


def test_a_node_that_flaps_does_not_keep_the_others_busy() -> None:
    fabric, nodes = mesh(4)
    before = [algorithm_of(node).status()["built"] for node in nodes[1:]]
    for _ in range(100):  # the root, a hundred times in a minute
        fabric.crash(nodes[0])
        fabric.run(0.3)
        fabric.restart(nodes[0])
        fabric.run(0.3)
    after = [algorithm_of(node).status()["built"] for node in nodes[1:]]
    for early, late in zip(before, after, strict=True):
        assert isinstance(early, int)
        assert isinstance(late, int)
        assert late - early < 60
    fabric.settle()
    fabric.run(20.0)
    tree = algorithm_of(nodes[0]).tree
    assert tree is not None
    assert tree.nodes == {"n0", "n1", "n2", "n3"}


def test_what_waits_only_for_who_is_away_is_not_sent_to_the_others_again() -> None:
    fabric, nodes = mesh(4)
    publisher = nodes[0].client("p")
    fabric.settle()
    fabric.crash(nodes[3])
    fabric.run(1.0)
    for number in range(20):
        publisher.publish("t", b"%d" % number, qos=1)
    fabric.run(1.0)
    fabric.reset_counts()
    fabric.crash(nodes[2])
    fabric.run(2.0)
    assert algorithm_of(nodes[0]).status()["tree"]["nodes"] == ["n0", "n1"]  # type: ignore[index]
    assert sum(counts["PUBLISH"] for counts in fabric.counts.values()) == 0
    fabric.restart(nodes[3])
    fabric.settle()
    assert len(nodes[3].broker.published) == 20
