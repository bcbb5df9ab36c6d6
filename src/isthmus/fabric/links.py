"""The links that a fabric's file asks for, as a graph: whom they join, where they form rings.

Nothing runs here: `isthmus check` prints `notes`, and a fabric that is being started waits until
`groups` are joined.  With ``[discovery]`` all nodes are one group, whatever links there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.config.files import FabricConfig
from isthmus.graph import path_to, search

__all__ = ["FabricLinks", "fabric_links", "notes"]


@dataclass(frozen=True, slots=True)
class FabricLinks:
    """The links between the nodes of one file; links to nodes elsewhere are not known here."""

    links: tuple[tuple[str, str], ...]
    """Each pair once, whoever of the two names the other."""
    groups: tuple[tuple[str, ...], ...]
    """The node ids that come together, in the order of the file; a node alone is a group."""
    rings: tuple[tuple[str, ...], ...]
    """Node ids from one end of a link to the other, for every link that closes a ring."""


def fabric_links(config: FabricConfig) -> FabricLinks:
    """What the ``peers`` of all nodes come to."""
    ids = dict.fromkeys(node.id for node in config.node)
    links: dict[tuple[str, str], None] = {}
    forest: list[tuple[str, str]] = []
    rings: list[tuple[str, ...]] = []
    for node in config.node:
        for peer in node.peers:
            if peer not in ids or (node.id, peer) in links or (peer, node.id) in links:
                continue
            links[node.id, peer] = None
            before = search(forest, node.id)
            if peer in before:
                rings.append(path_to(before, peer))
            else:
                forest.append((node.id, peer))
    groups: list[tuple[str, ...]] = [tuple(ids)] if config.discovery.is_on else []
    left = {} if config.discovery.is_on else dict(ids)
    while left:
        joined = search(forest, next(iter(left)))
        groups.append(tuple(each for each in left if each in joined))
        for each in joined:
            del left[each]
    return FabricLinks(tuple(links), tuple(groups), tuple(rings))


def notes(config: FabricConfig, *, tree: bool = True) -> list[str]:
    """What is allowed and yet perhaps not meant, by an algorithm that needs a `tree` or not."""
    shape = fabric_links(config)
    found = [
        f"the links {' - '.join((*ring, ring[0]))} form a ring; one of them will be blocked and "
        "stand by until another one of the ring fails"
        for ring in (shape.rings if tree else ())
    ]
    if len(shape.groups) > 1:
        groups = "; ".join(", ".join(group) for group in shape.groups)
        found.append(
            f"no links of this file join these {len(shape.groups)} groups of nodes, so no message "
            f"passes between them{'' if tree else ' unless the algorithm links them'}: {groups}"
        )
    return found
