"""The view that is kept up to date says what is computed from all announcements at once."""

from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.exchange.topology.messages import QUIET, Announcement, LinkEntry, NodeKey
from isthmus.exchange.topology.view import ActiveTree, Ends, TopologyView, ends_of
from support import topology_oracle

HERE = NodeKey("n0", "1")


def some_announcement(node: NodeKey, keys: list[NodeKey], rng: random.Random) -> Announcement:
    """Links to some, of few births and openings, so that often both ends say the same."""
    ends = {key.node_id: key for key in rng.sample(keys, len(keys)) if key.node_id != node.node_id}
    links = tuple(
        LinkEntry(key, rng.choice([1, 1, 1, 2]), rng.choice([0, 1, 1, QUIET]))
        for key in ends.values()
        if rng.random() < 0.6
    )
    return Announcement(node, rng.randint(1, 9), links)


def open_paths(view: topology_oracle.TopologyView, target: NodeKey, own: list[NodeKey]) -> bool:
    """Whether open edges lead to `target`, without the edge to it; of ours also those to `own`."""
    links = {ends for ends, edge in view.edges.items() if edge.open(ends in view.forest)}
    links |= {ends for key in own if (ends := ends_of(HERE, key)) in view.edges}
    if target not in own:
        links -= {ends_of(HERE, target)}
    return target in connected_with(HERE, links)


def connected_with(node: NodeKey, links: Iterable[Ends]) -> set[NodeKey]:
    found, links = {node}, set(links)
    while more := {end for ends in links if found & set(ends) for end in ends} - found:
        found |= more
    return found


def check(view: TopologyView, said: dict[NodeKey, Announcement], rng: random.Random) -> None:
    expected = topology_oracle.TopologyView(HERE, said)
    assert view.nodes == expected.nodes
    edges = view.connected_edges()
    assert list(edges) == sorted(expected.edges)
    for ends, edge in expected.edges.items():
        assert (edges[ends].birth, edges[ends].active) == (edge.birth, edge.active)
        assert sorted(edges[ends].openings) == sorted(edge.openings)
        assert view.in_forest(ends) == (ends in expected.forest)
        assert view.carries(ends) == (ends in expected.forest and edge.active)
    assert view.left_out() == expected.left_out
    for ends in expected.left_out:
        assert view.ring(ends) == expected.ring(ends)
    for node_id in {key.node_id for key in said}:
        assert view.lives(node_id) == expected.lives.get(node_id, ())
    for target in expected.nodes - {HERE}:
        own = [key for key in sorted(expected.nodes) if key != target and rng.random() < 0.3]
        assert view.leads_to(target, own) == open_paths(expected, target, own)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**32))
def test_announcements_that_come_change_and_go_in_any_order(nodes: int, seed: int) -> None:
    rng = random.Random(seed)
    keys = [NodeKey(f"n{number}", "1") for number in range(nodes)]
    keys += [NodeKey(f"n{number}", "2") for number in range(1, nodes) if rng.random() < 0.2]
    said = {HERE: Announcement(HERE, 1, ())}
    former: list[Announcement] = []
    view = TopologyView(HERE, said.values())
    for _ in range(40):
        before = set(view.nodes)
        carried = {ends for ends in view.connected_edges() if view.carries(ends)}
        view.changed()
        key = rng.choice(keys)
        if former and rng.random() < 0.2:  # what was said before counts again
            announcement = rng.choice(former)
            said[announcement.node] = announcement
            view.put(announcement)
        elif key != HERE and rng.random() < 0.2:
            said.pop(key, None)
            view.drop(key)
        else:
            said[key] = announcement = some_announcement(key, keys, rng)
            former.append(announcement)
            view.put(announcement)
        assert before ^ view.nodes <= view.moved()
        carries = {ends for ends in view.connected_edges() if view.carries(ends)}
        connected = {ends for ends in carried ^ carries if ends[0] in before & view.nodes}
        assert connected <= {ends_of(*ends) for ends in view.changed().values()}
        check(view, said, rng)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 12), st.integers(0, 2**32))
def test_announcements_that_come_together(nodes: int, seed: int) -> None:
    rng = random.Random(seed)
    keys = [NodeKey(f"n{number}", "1") for number in range(nodes)]
    said = {HERE: Announcement(HERE, 1, ())}
    view = TopologyView(HERE, said.values())
    for _ in range(10):
        before = set(view.nodes)
        news = {key: some_announcement(key, keys, rng) for key in keys if rng.random() < 0.5}
        said.update(news)
        view.put(*news.values())
        assert before ^ view.nodes <= view.moved()
        check(view, said, rng)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 10), st.integers(0, 2**32))
def test_ways_over_a_tree_whose_links_come_and_go(nodes: int, seed: int) -> None:
    rng = random.Random(seed)
    keys = [HERE, *(NodeKey(f"n{rng.randrange(number, nodes)}", "1") for number in range(1, nodes))]
    keys = list(dict.fromkeys([*keys, NodeKey("n1", "2")]))
    tree, links = ActiveTree(HERE), set[Ends]()
    gone_before: dict[str, set[str]] = {}
    for _ in range(60):
        ends = ends_of(*rng.sample(keys, 2))
        if ends in links:
            links.discard(ends)
            tree.disconnect(*ends)
        elif ends[1] not in connected_with(ends[0], links):
            links.add(ends)
            tree.connect(*ends)
        expected: dict[str, set[str]] = {}
        for first in {end for ends in links if HERE in ends for end in ends} - {HERE}:
            for key in connected_with(first, links - {ends_of(HERE, first)}):
                if key.node_id != HERE.node_id:
                    expected.setdefault(key.node_id, set()).add(first.node_id)
        assert tree.ways == expected
        gone = {name: ways - expected.get(name, set()) for name, ways in gone_before.items()}
        for name, ways in gone.items():
            assert ways <= tree.gone.get(name, set())
        tree.gone = {}
        gone_before = expected
        assert set(tree.paths()) == connected_with(HERE, links) - {HERE}
