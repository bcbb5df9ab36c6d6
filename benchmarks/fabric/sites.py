"""Two brokers made one, by Mosquitto's own bridge or by two nodes: started, known, stopped.

    bridge   clients ─▶ near broker ══bridge══▶ far broker ◀─ clients
    sf, pf   clients ─▶ near node ══link══▶ far node ◀─ clients
                            │                  │
                       near broker         far broker

Every process is a child of this one and ends with the context, whatever happens in it.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.relay.processes import Process, configured_node

from isthmus.brokers import create
from isthmus.errors import LoadError
from isthmus.processes.ports import free_port

__all__ = [
    "PATHS",
    "Site",
    "bridge_lines",
    "fabric_status",
    "node_file",
    "running_mosquitto",
    "running_site",
]

PATHS = ("bridge", "sf", "pf")

UNLIMITED = ("max_queued_messages 0", "max_connections -1")
"""The closed loop bounds the queues; a drop would be a loss."""


@dataclass(frozen=True, slots=True)
class Site:
    """Two joined brokers: where clients connect on either side, and every process by its part."""

    near_port: int
    far_port: int
    pids: Mapping[str, int]
    admin_port: int = 0  # the near node's; 0 with the bridge

    def crossed(self) -> int | None:
        """Messages that the near node has sent over its link so far; None with the bridge."""
        if not self.admin_port:
            return None
        sent: list[int] = [link["sent"] for link in fabric_status(self.admin_port)["links"]]
        return sum(sent)


def bridge_lines(far_port: int) -> list[str]:
    """Mosquitto's bridge, with everything that would cost it something switched off.

    `try_private` has the far broker not send back what came over the bridge; without it every
    message would cross twice.
    """
    return [
        "connection bench",
        f"address 127.0.0.1:{far_port}",
        "topic # both 0",
        "bridge_protocol_version mqttv311",
        "try_private true",
        "cleansession true",
        "notifications false",
        "keepalive_interval 60",
        "restart_timeout 1",
    ]


def node_file(
    node_id: str,
    broker_port: int,
    *,
    mqtt: int,
    link: int,
    admin: int,
    algorithm: str,
    peer: int = 0,
) -> str:
    """A node's file with the defaults but for its addresses and the algorithm."""
    lines = [
        f'[node]\nid = "{node_id}"',
        f'[listen]\nmqtt = "127.0.0.1:{mqtt}"\nlink = "127.0.0.1:{link}"',
        f'admin = "127.0.0.1:{admin}"',
        f'[broker]\nurl = "mqtt://127.0.0.1:{broker_port}"',
        f'[cooperation]\nalgorithm = "{algorithm}"',
        '[log]\nlevel = "warning"',
    ]
    if peer:
        lines.append(f'[[peer]]\naddress = "127.0.0.1:{peer}"')
    return "\n".join(lines) + "\n"


@contextmanager
def running_mosquitto(*more: str) -> Iterator[Process]:
    """Mosquitto with unlimited queues and the configuration lines `more`."""
    with create("mosquitto", extra=[*UNLIMITED, *more]) as broker:
        yield Process(broker.pid, broker.port, broker.start_seconds)
        if not broker.running:
            raise LoadError(f"a broker ended by itself:\n{broker.log_tail()}")


@contextmanager
def running_site(path: str) -> Iterator[Site]:
    """Both brokers, joined as `path` says; whether they are is for a first message to show."""
    if path not in PATHS:
        raise ValueError(f"path {path!r}; known: {', '.join(PATHS)}")
    with ExitStack() as stack:
        far = stack.enter_context(running_mosquitto())
        if path == "bridge":
            near = stack.enter_context(running_mosquitto(*bridge_lines(far.port)))
            yield Site(near.port, far.port, {"near broker": near.pid, "far broker": far.pid})
            return
        near = stack.enter_context(running_mosquitto())
        near_link, near_admin = free_port(), free_port()
        near_node = _node(stack, path, "near", near, near_link, near_admin, 0)
        far_node = _node(stack, path, "far", far, free_port(), free_port(), near_link)
        pids = {
            "near broker": near.pid,
            "near node": near_node.pid,
            "far node": far_node.pid,
            "far broker": far.pid,
        }
        yield Site(near_node.port, far_node.port, pids, near_admin)


def _node(  # noqa: PLR0917 - the addresses of one node, in their order
    stack: ExitStack, path: str, name: str, broker: Process, link: int, admin: int, peer: int
) -> Process:
    mqtt = free_port()
    config = node_file(
        name, broker.port, mqtt=mqtt, link=link, admin=admin, algorithm=path, peer=peer
    )
    return stack.enter_context(configured_node(config, mqtt))


def fabric_status(admin_port: int) -> dict[str, Any]:
    """What a node says of its links and its algorithm."""
    url = f"http://127.0.0.1:{admin_port}/api/status"
    with urllib.request.urlopen(url, timeout=10) as answer:
        status: dict[str, Any] = json.loads(answer.read())
    fabric: dict[str, Any] = status["fabric"]
    return fabric
