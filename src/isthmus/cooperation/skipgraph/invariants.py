"""What holds of `skipgraph` in a fabric at rest: computed from the nodes' own lists of keys.

- nodes that are all linked with each other, and keep nothing for anybody, have a graph;
- its tables are those that the lists are defined by (`tables.linked`);
- **suspension is complete**: a publisher is resumed if its group has a subscriber, and only then;
- the **strong relay-free** property: a message on any topic, from any publisher, reaches exactly
  the subscribers of its groups, and nobody but publishers and subscribers of them.

Where nodes are not all linked with each other there is no graph, and nothing of this to check but
that: so what was checked is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.cooperation.skipgraph.groups import group_of, groups_of, is_inside
from isthmus.cooperation.skipgraph.keys import Kind, default_key
from isthmus.cooperation.skipgraph.standing import Phase
from isthmus.cooperation.skipgraph.tables import linked
from isthmus.cooperation.skipgraph.vectors import vector_of

if TYPE_CHECKING:
    from isthmus.cooperation.api import AtRest
    from isthmus.cooperation.skipgraph.algorithm import SkipGraph
    from isthmus.cooperation.skipgraph.graph import Graph
    from isthmus.cooperation.skipgraph.tables import Neighbor

__all__ = ["check_graphs"]


def check_graphs(algorithms: Mapping[str, SkipGraph], fabric: AtRest) -> None:
    by_id = {each.port.node_id: each for each in algorithms.values()}
    wants = {algorithms[name].port.node_id: each for name, each in fabric.local_filters.items()}
    checked: set[str] = set()
    for name, node in by_id.items():
        tree = node.tree
        if tree is None or name in checked or len(tree.nodes) < 2:
            continue
        checked |= tree.nodes
        nodes = {each: by_id[each] for each in tree.nodes}
        if not all(each.is_fit for each in nodes.values()):
            assert all(each.graph is None for each in nodes.values()), "a graph of who is not fit"
            continue
        fabric.checked["graphs"] += 1
        graphs: dict[str, Graph] = {}
        for each, one in nodes.items():
            assert one.graph is not None, f"{each} has no graph"
            assert one.standing.phase is Phase.SETTLED, f"{each}: {one.standing.phase}"
            graphs[each] = one.graph
        epochs = {graph.epoch for graph in graphs.values()}
        assert len(epochs) == 1, f"{sorted(nodes)} are in different epochs"
        for each, one in nodes.items():
            _check_wanted(each, one, wants[each])
        _check_lists(graphs, nodes)
        subscribers = _subscribers(graphs)
        fabric.checked["statuses of publishers"] += _check_suspension(graphs, subscribers)
        for each, one in nodes.items():
            for topic in one.roles.topics:
                fabric.checked["ways of a publisher's topic"] += 1
                _check_relay_free(graphs, subscribers, each, topic)


def _check_wanted(name: str, node: SkipGraph, filters: Collection[str]) -> None:
    """Every filter's group, or one around it, is among those of the node."""
    for topic_filter in filters:
        around = (each for each in node.roles.subscribed if is_inside(group_of(topic_filter), each))
        assert any(around), (
            f"{name} has a client that wants {topic_filter} and subscribes to "
            f"{sorted(node.roles.subscribed)}"
        )


def _check_lists(graphs: Mapping[str, Graph], nodes: Mapping[str, SkipGraph]) -> None:
    base = {each.base for each in nodes.values()}
    assert len(base) == 1
    keys = {}
    for name, graph in graphs.items():
        assert graph.lists.at_rest, f"{name} is not done with its lists"
        keys[name] = (vector_of(name, *base), [default_key(name), *graph.lists.keys])
    tables = linked(keys)
    for name, graph in graphs.items():
        for virtual in tables[name]:
            found = graph.lists.table[virtual.key]
            top = graph.lists.height + 1
            for side, mine, right in (
                ("left", found.left, virtual.left),
                ("right", found.right, virtual.right),
            ):
                assert _trimmed(mine) == _trimmed(right[:top]), (
                    f"{name} has {mine} to the {side} of {virtual.key}, not {right}"
                )


def _trimmed(neighbors: Sequence[Neighbor | None]) -> list[Neighbor | None]:
    row = list(neighbors)
    while row and row[-1] is None:
        row.pop()
    return row


def _subscribers(graphs: Mapping[str, Graph]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, graph in graphs.items():
        for key in graph.lists.keys:
            if key.kind is Kind.SUBSCRIBER:
                found.setdefault(key.topic, set()).add(name)
    return found


def _check_suspension(graphs: Mapping[str, Graph], subscribers: Mapping[str, set[str]]) -> int:
    """Of how many there was one to look at."""
    looked_at = 0
    for name, graph in graphs.items():
        for key in graph.lists.keys:
            if key.kind is Kind.PUBLISHER:
                looked_at += 1
                status = graph.suspension.status_of(key)
                assert status is not None, f"{name} does not know the status of {key.topic}"
                assert status.resumed == (key.topic in subscribers), (
                    f"{name} is {'resumed' if status.resumed else 'suspended'} on {key.topic}; "
                    f"subscribers: {sorted(subscribers.get(key.topic, ()))}"
                )
    return looked_at


def _check_relay_free(
    graphs: Mapping[str, Graph], subscribers: Mapping[str, set[str]], source: str, topic: str
) -> None:
    groups = set(groups_of(topic))
    wanted = set().union(*(subscribers.get(group, set()) for group in groups)) - {source}
    members = {
        name
        for name, graph in graphs.items()
        if any(key.topic in groups for key in graph.lists.keys)
    }
    ways = graphs[source].ways(topic)
    assert ways is not None, f"{source} publishes on {topic} and has no keys for that"
    reached: set[str] = set()
    seen: set[tuple[str, bytes]] = set()
    front = list(ways)
    while front:
        name, label = front.pop()
        assert (name, label) not in seen, f"{topic} from {source} comes to {name} twice"
        seen.add((name, label))
        assert name in members, f"{topic} from {source} comes to {name}, which is none of its own"
        reached.add(name)
        further = graphs[name].ways_of_label(label, topic)
        assert further.is_member, f"{name} does not know what to do with {topic}"
        front += further.hops
    missing = wanted - reached
    assert not missing, f"{topic} from {source} does not reach {sorted(missing)}"
