"""What holds of `topic-tree` in a fabric at rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isthmus.cooperation.topic_tree.membership import MAX_FILTERS

if TYPE_CHECKING:
    from isthmus.cooperation.api import AtRest
    from isthmus.cooperation.topic_tree.algorithm import TopicTree

__all__ = ["check_overlays"]


def check_overlays(algorithms: Mapping[str, TopicTree], fabric: AtRest) -> None:
    """Neighbors know what each wants; members of an overlay have one tree.

    Each of them knows its own part of it.
    """
    by_id = {each.port.node_id: each for each in algorithms.values()}
    for name, node in algorithms.items():
        told = set(node.membership.told) - {node.port.node_id}
        linked = {session.name for session in fabric.links[name].values()}
        assert told == linked, f"{name} is linked with {linked} and knows what {told} want"
        for neighbor in told:
            member = node.membership.member(neighbor)
            assert member is not None
            wants = set(by_id[neighbor].port.local_filters)
            if len(wants) <= MAX_FILTERS:
                assert set(member.filters) == wants, (
                    f"{name} thinks that {neighbor} wants {sorted(member.filters)}: {sorted(wants)}"
                )
        for overlay in node.overlays:
            if not overlay.needed:
                continue
            tree, here = overlay.tree, node.port.node_id
            assert tree is not None, f"{name} has no tree for {overlay.members}"
            for other in tree.neighbors:
                far = by_id[other].overlays.of(overlay.members)
                assert far is not None, f"{other} has no overlay {overlay.members}"
                assert far.tree is not None, f"{other} has no tree for {overlay.members}"
                assert far.label == overlay.label, f"{other} and {name} have different trees"
                back = far.tree.children if other == tree.parent else {far.tree.parent}
                assert here in back, f"{other} has left {name} out of {overlay.members}"
