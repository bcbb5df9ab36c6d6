"""How trees are built and repaired in fabrics of many nodes: the exact simulator, in virtual time.

Every node runs the production code; only clock and network are virtual.  Nobody uses the fabric.
All nodes run when all links are dialed in the same moment; later a node is killed, is back when the
others have repaired the tree, and then the next one is killed.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from benchmarks.overlay.shapes import Place, links_of, victims_of
from benchmarks.relay.statistics import Spread, spread

from isthmus.cooperation.api import Resources, SessionInfo
from isthmus.cooperation.tree.algorithm import SpanningTree
from isthmus.cooperation.tree.messages import TreeMessage, encode
from isthmus.cooperation.tree.wave import Tree
from isthmus.errors import LoadError
from isthmus.sim.collecting import few_collections
from isthmus.sim.fabric import SimFabric
from isthmus.sim.network import WireSettings
from isthmus.sim.node import SimNode

__all__ = ["Row", "Seen", "measure", "summed_up"]

WIRE_S: Final = 0.01
LOOK_S: Final = 0.05
CALM_S: Final = 2.0
"""How long a tree must be in use to count as the last one."""
LIMIT_S: Final = 120.0


class NotedTree(SpanningTree):
    """Notes when its links came up, since when it uses its tree, and what it says to others."""

    linked_s = 0.0
    adopted_s = 0.0
    messages = 0
    message_bytes = 0

    def on_session_established(self, session: SessionInfo) -> None:
        self.linked_s = self.port.now()
        super().on_session_established(session)

    def adopted(self, tree: Tree) -> None:
        self.adopted_s = self.port.now()
        super().adopted(tree)

    def send(self, neighbor: str, message: TreeMessage) -> None:
        self.messages += 1
        self.message_bytes += len(encode(message))
        super().send(neighbor, message)


@dataclass(frozen=True, slots=True)
class Seen:
    """What followed from one thing that happened, until all used one tree again."""

    took_s: float
    messages_per_node: float
    """Of the tree; what links say besides, on retained messages for example, is not in it."""
    bytes_per_node: float
    """Of their payloads."""
    cpu_s: float
    """Of the process that simulates all nodes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One fabric."""

    shape: str
    nodes: int
    links: int
    linked_s: float
    """From the first dial until all links were up."""
    converged: Seen
    """From then on; the messages and the CPU of the links' coming up are in it."""
    repaired: Mapping[str, Seen]
    """By whom was lost; from the kill on."""


def measure(shape: str, count: int, seed: int) -> Row:
    """One fabric, from its start through the loss of a root, an inner node and a leaf."""
    rng = random.Random(f"{seed}/{shape}/{count}")
    with few_collections():
        fabric = SimFabric(seed=seed, algorithm=NotedTree, wire=WireSettings(WIRE_S))
        fabric.engine.max_events = float("inf")
        nodes = [fabric.node(f"n{number}") for number in range(count)]
        for node in nodes:
            node.resources = Resources(rng.uniform(0.1, 4.0), rng.randrange(1 << 28, 1 << 34))
        fabric.run(1.0)
        pairs = links_of(shape, count, rng)
        row = _measured(shape, fabric, nodes, pairs)
    gc.collect()
    return row


def _measured(
    shape: str, fabric: SimFabric, nodes: Sequence[SimNode], pairs: Sequence[tuple[int, int]]
) -> Row:
    def dial() -> None:
        for a, b in pairs:
            fabric.link(nodes[a], nodes[b])

    began_s = fabric.now_s
    converged = _seen(fabric, dial)
    linked_s = max(_tree_of(node).linked_s for node in nodes) - began_s
    converged = replace(converged, took_s=round(converged.took_s - linked_s, 4))
    repaired = {}
    for role in victims_of(_places(fabric)):
        name = victims_of(_places(fabric)).get(role)
        if name is None:
            continue
        victim = fabric.nodes[name]
        repaired[role] = _seen(fabric, lambda victim=victim: fabric.crash(victim))  # type: ignore[misc]
        fabric.restart(victim)
        _until_one_tree(fabric)
    return Row(shape, len(nodes), len(pairs), round(linked_s, 4), converged, repaired)


def _seen(fabric: SimFabric, happens: Callable[[], None]) -> Seen:
    for each in _trees(fabric):
        each.messages = each.message_bytes = 0
    gc.collect()
    began_s, cpu_s = fabric.now_s, time.process_time()
    happens()
    spent_s = _until_one_tree(fabric) - cpu_s
    living = _trees(fabric)
    return Seen(
        round(max(each.adopted_s for each in living) - began_s, 4),
        round(sum(each.messages for each in living) / len(living), 2),
        round(sum(each.message_bytes for each in living) / len(living)),
        round(spent_s, 3),
    )


def _until_one_tree(fabric: SimFabric) -> float:
    """Until all use one tree, and go on doing so; the process's CPU clock when they began to."""
    limit_s = fabric.now_s + LIMIT_S
    while fabric.now_s < limit_s:
        fabric.run(LOOK_S)
        if (tree := _one_tree(fabric)) is not None:
            cpu_s = time.process_time()
            fabric.run(CALM_S)
            if _one_tree(fabric) == tree:
                return cpu_s
    raise LoadError(f"{len(fabric.nodes)} nodes use no common tree after {LIMIT_S:g} s")


def _one_tree(fabric: SimFabric) -> object | None:
    """The wave of the tree that all who run use and are in; None if there is none such."""
    living = _trees(fabric)
    first = living[0].tree
    if first is None or len(first.nodes) != len(living):
        return None
    if any(each.tree is None or each.tree.wave != first.wave for each in living):
        return None
    return first.wave


def _trees(fabric: SimFabric) -> list[NotedTree]:
    return [_tree_of(node) for node in fabric.nodes.values() if node.running]


def _tree_of(node: SimNode) -> NotedTree:
    return cast("NotedTree", node.algorithm)


def _places(fabric: SimFabric) -> dict[str, Place]:
    found = {}
    for name, node in fabric.nodes.items():
        tree = _tree_of(node).tree
        assert tree is not None
        found[name] = Place((tree.wave,), tree.nodes, tree.parent, tuple(sorted(tree.children)))
    return found


def summed_up(rows: Sequence[Row]) -> dict[str, Spread]:
    """The spreads of rows of one shape and size, by what was measured."""
    found = {
        "links up, s": spread([row.linked_s for row in rows]),
        **_spreads("convergence", [row.converged for row in rows]),
    }
    for role in ("root", "inner node", "leaf"):
        seen = [row.repaired[role] for row in rows if role in row.repaired]
        if seen:
            found |= _spreads(f"{role} lost", seen)
    return found


def _spreads(name: str, seen: Sequence[Seen]) -> dict[str, Spread]:
    return {
        f"{name}, s": spread([each.took_s for each in seen]),
        f"{name}, messages per node": spread([each.messages_per_node for each in seen]),
        f"{name}, bytes per node": spread([each.bytes_per_node for each in seen]),
        f"{name}, CPU s": spread([each.cpu_s for each in seen]),
    }
