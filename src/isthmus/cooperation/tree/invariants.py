"""What holds of `tree` in a fabric at rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from isthmus.graph import search
from isthmus.mqtt.filters.topics import matches

if TYPE_CHECKING:
    from isthmus.cooperation.tree.algorithm import SpanningTree
    from isthmus.cooperation.tree.routed import RoutedTree
    from isthmus.cooperation.tree.wave import Tree

__all__ = ["check_tables", "check_trees"]


def check_trees(algorithms: Mapping[str, SpanningTree], links: Mapping[str, Iterable[str]]) -> None:
    """All that are connected are in one tree, of which each node knows its own part."""
    ids = {name: each.port.node_id for name, each in algorithms.items()}
    trees: dict[str, Tree] = {}
    for name, each in algorithms.items():
        assert each.tree is not None, f"{name} has no tree"
        trees[ids[name]] = each.tree
    pairs = [(ids[name], ids[other]) for name, others in links.items() for other in others]
    for name, tree in sorted(trees.items()):
        connected = set(search(pairs, name))
        assert tree.nodes == connected, (
            f"{name} is connected with {sorted(connected)}, and its tree has {sorted(tree.nodes)}"
        )
        differ = [other for other in sorted(connected) if trees[other].wave != tree.wave]
        assert not differ, f"{differ} have another tree than {name}"
        for child in tree.children:
            assert trees[child].parent == name, f"{child} is no child of {name}"
        if tree.parent:
            assert name in trees[tree.parent].children, f"{tree.parent} has left {name} out"
        else:
            assert tree.wave.root == name, f"{name} has no parent and is not the root"


def check_tables(
    algorithms: Mapping[str, RoutedTree], local_filters: Mapping[str, Collection[str]]
) -> None:
    """Overlays Fig. 5: each SRT leads to all publishers, each PRT to all who want their topics."""
    by_id = {each.port.node_id: each for each in algorithms.values()}
    filters = {algorithms[name].port.node_id: each for name, each in local_filters.items()}
    edges = [
        (name, other)
        for name, each in by_id.items()
        if each.tree is not None
        for other in each.tree.neighbors
    ]
    for name, other in edges:
        behind = search((edge for edge in edges if set(edge) != {name, other}), other)
        advertised = {topic for each in behind for topic in by_id[each].advertising.published}
        tables = by_id[name].advertising.tables
        srt = {topic for topic, each in tables.items() if other in each.srt}
        assert srt == advertised, (
            f"{name} has {sorted(srt)} from {other}; published are {sorted(advertised)}"
        )
        for topic, each in tables.items():
            if other in each.advertised:
                wanted = any(matches(f, topic) for node in behind for f in filters[node])
                assert each.prt.get(other) is wanted, (
                    f"{name} takes {topic} behind {other} for {each.prt.get(other)}, not {wanted}"
                )
