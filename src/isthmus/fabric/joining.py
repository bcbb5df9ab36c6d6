"""How the nodes of a fabric come together: those that a file links, and those that find each other.

For nodes that find each other a port of the group is chosen, and a secret made, for each run: so
two fabrics on one machine do not meet.

Whom a node reaches it knows by the topology guard.  With an algorithm for which links may form any
graph only that one knows: `tree` tells, of others it is known of neighbors alone.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.config.addresses import Address
from isthmus.config.files import FabricConfig, FabricDiscovery
from isthmus.errors import AdminError, IsthmusError, NodeFailed
from isthmus.fabric.admin_client import fetch_status
from isthmus.fabric.links import FabricLinks, fabric_links
from isthmus.node.discovery_io import deafness
from isthmus.processes.ports import free_port

if TYPE_CHECKING:
    from isthmus.fabric.processes import RunningNode

__all__ = ["Joined", "for_this_run", "no_multicast", "until_joined"]

POLL_S = 0.05

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Joined:
    """How it stands when all have come together."""

    statuses: Mapping[str, Status]
    """By node."""

    @property
    def took_s(self) -> float:
        """From when the last node was up until the last one used the tree, or else until now."""
        up_s = [float(each.get("node", {}).get("uptime_s", 0)) for each in self.statuses.values()]
        age_s = [float(tree["age_s"]) for tree in self.trees.values()]
        return max(0.0, min(up_s, default=0.0) - min(age_s, default=0.0))

    @property
    def trees(self) -> dict[str, Status]:
        """What each node says of the tree that the nodes have built; empty if they build none."""
        found = {name: _tree(status) for name, status in self.statuses.items()}
        return {name: tree for name, tree in found.items() if tree is not None}

    @property
    def needs_tree(self) -> bool:
        """Whether the algorithm leaves it to the nodes to cut rings."""
        return any(_wanted(status) == "tree" for status in self.statuses.values())


def no_multicast(discovery: FabricDiscovery) -> str:
    """Why the nodes would not hear each other; empty if they would."""
    return asyncio.run(deafness(_with_port(discovery).of_nodes()))


def for_this_run(config: FabricConfig) -> FabricConfig:
    """`config` with a port for the group and a secret, where it leaves them open.

    Raises `IsthmusError` if nobody would hear anybody.
    """
    discovery, link = config.discovery, config.link
    if discovery.group is None:
        return config
    discovery = _with_port(discovery)
    if not link.secret_bytes():
        link = link.model_copy(update={"secret": secrets.token_hex(16)})
    if problem := no_multicast(discovery):
        raise IsthmusError(
            f"discovery.group: the nodes cannot find each other: {problem}; give another "
            "discovery.interface, or say by `peers` of [[node]] who links to whom"
        )
    return config.model_copy(update={"discovery": discovery, "link": link})


def _with_port(discovery: FabricDiscovery) -> FabricDiscovery:
    if discovery.group is None or discovery.group.port:
        return discovery
    group = Address(discovery.group.host, free_port())
    return discovery.model_copy(update={"group": group})


def until_joined(nodes: Iterable[RunningNode], config: FabricConfig, timeout_s: float) -> Joined:
    """Wait until every node reaches all those that it should; raises `NodeFailed`."""
    running = {node.id: node for node in nodes}
    links = fabric_links(config)
    deadline = time.monotonic() + timeout_s
    while True:
        joined = Joined({name: _status(node) for name, node in running.items()})
        apart = [
            (name, problem)
            for group in links.groups
            for name, problem in _apart(joined, group, links, config.discovery.is_on)
        ]
        if not apart:
            return joined
        if time.monotonic() >= deadline:
            late, problem = apart[0]
            said = _problems(joined.statuses[late])
            raise NodeFailed(late, problem + said, running[late].log_tail())
        time.sleep(POLL_S)


def _apart(
    joined: Joined, group: Sequence[str], links: FabricLinks, finds: bool
) -> Iterator[tuple[str, str]]:
    """The nodes of one group that are not together yet, and what is missing."""
    for name in group:
        status = joined.statuses[name]
        neighbors = {end for pair in links.links if name in pair for end in pair}
        wanted = set(group) if finds or _knows_all(status) else neighbors
        if missing := wanted - _reached(status) - {name}:
            yield name, f"not linked with {', '.join(sorted(missing))}"
    trees = {name: tree for name, tree in joined.trees.items() if name in group}
    latest = max((tree["number"] for tree in trees.values()), default=0)
    for name, tree in trees.items():
        if tree["number"] != latest:
            yield name, f"still in tree {tree['number']}, others in {latest}"


def _status(node: RunningNode) -> Status:
    if node.process.poll() is not None:
        raise node.death()
    try:
        return fetch_status(node.admin)
    except AdminError:
        return {}


def _fabric(status: Status) -> Status:
    fabric: Status = status.get("fabric", {})
    return fabric


def _wanted(status: Status) -> str:
    return str(_fabric(status).get("topology", {}).get("wanted", ""))


def _tree(status: Status) -> Status | None:
    tree: Status | None = _fabric(status).get("algorithm", {}).get("tree")
    return tree


def _knows_all(status: Status) -> bool:
    """Whether a node knows of others than its neighbors."""
    return _wanted(status) != "any" or "tree" in _fabric(status).get("algorithm", {})


def _reached(status: Status) -> set[str]:
    if "tree" in _fabric(status).get("algorithm", {}):
        return set((_tree(status) or {}).get("nodes", ()))
    return set(_fabric(status).get("topology", {}).get("paths", {}))


def _problems(status: Status) -> str:
    said = [
        f"{peer['address']}: {peer['problem']}"
        for peer in _fabric(status).get("peers", [])
        if peer.get("problem")
    ]
    return f" ({'; '.join(said)})" if said else ""
