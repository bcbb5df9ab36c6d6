"""The links that a fabric's file asks for, as a graph: whom they join, where they form rings.

Nothing runs here: `isthmus check` prints `notes`, and a fabric that is being started waits until
`groups` are joined.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from isthmus.config.files import FabricConfig

__all__ = ["FabricLinks", "fabric_links", "notes"]


@dataclass(frozen=True, slots=True)
class FabricLinks:
    """The links between the nodes of one file; links to nodes elsewhere are not known here."""

    links: tuple[tuple[str, str], ...]
    """Each pair once, whoever of the two names the other."""
    groups: tuple[tuple[str, ...], ...]
    """The node ids that links join, in the order of the file; a node alone is a group."""
    rings: tuple[tuple[str, ...], ...]
    """Node ids from one end of a link to the other, for every link that closes a ring."""


def fabric_links(config: FabricConfig) -> FabricLinks:
    """What the ``peers`` of all nodes come to."""
    neighbors: dict[str, list[str]] = {node.id: [] for node in config.node}
    links: dict[tuple[str, str], None] = {}
    rings: list[tuple[str, ...]] = []
    for node in config.node:
        for peer in node.peers:
            if peer not in neighbors or (node.id, peer) in links or (peer, node.id) in links:
                continue
            links[node.id, peer] = None
            path = _path(neighbors, node.id, peer)
            if path is not None:
                rings.append(path)
            else:
                neighbors[node.id].append(peer)
                neighbors[peer].append(node.id)
    return FabricLinks(tuple(links), _groups(neighbors), tuple(rings))


def _path(neighbors: dict[str, list[str]], start: str, end: str) -> tuple[str, ...] | None:
    """The way from `start` to `end` in a forest, or None if there is none."""
    came_from = {start: start}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        if here == end:
            path = [end]
            while path[-1] != start:
                path.append(came_from[path[-1]])
            return tuple(reversed(path))
        for neighbor in neighbors[here]:
            if neighbor not in came_from:
                came_from[neighbor] = here
                waiting.append(neighbor)
    return None


def _groups(neighbors: dict[str, list[str]]) -> tuple[tuple[str, ...], ...]:
    groups: list[tuple[str, ...]] = []
    grouped: set[str] = set()
    for node in neighbors:
        if node in grouped:
            continue
        members = {node}
        waiting = [node]
        while waiting:
            found = [other for other in neighbors[waiting.pop()] if other not in members]
            members.update(found)
            waiting += found
        grouped |= members
        groups.append(tuple(other for other in neighbors if other in members))
    return tuple(groups)


def notes(config: FabricConfig) -> list[str]:
    """What is allowed and yet perhaps not meant."""
    shape = fabric_links(config)
    found = [
        f"the links {' - '.join((*ring, ring[0]))} form a ring; one of them will be blocked and "
        "stand by until another one of the ring fails"
        for ring in shape.rings
    ]
    if len(shape.groups) > 1:
        groups = "; ".join(", ".join(group) for group in shape.groups)
        found.append(
            f"no links of this file join these {len(shape.groups)} groups of nodes, so no message "
            f"passes between them: {groups}"
        )
    return found
