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

from benchmarks.relay.processes import Process, configured_node, node_file, running_broker

from isthmus.processes.ports import free_port

__all__ = [
    "PATHS",
    "Site",
    "bridge_lines",
    "fabric_status",
    "running_site",
]

PATHS = ("bridge", "sf", "pf")


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


@contextmanager
def running_site(path: str, environment: Mapping[str, str] | None = None) -> Iterator[Site]:
    """Both brokers, joined as `path` says; whether they are is for a first message to show.

    `environment` is what the nodes have besides this process's own.
    """
    if path not in PATHS:
        raise ValueError(f"path {path!r}; known: {', '.join(PATHS)}")
    with ExitStack() as stack:
        far = stack.enter_context(running_broker())
        if path == "bridge":
            near = stack.enter_context(running_broker(*bridge_lines(far.port)))
            yield Site(near.port, far.port, {"near broker": near.pid, "far broker": far.pid})
            return
        near = stack.enter_context(running_broker())
        near_link, near_admin = free_port(), free_port()

        def node(name: str, broker: Process, link: int, admin: int, peer: int) -> Process:
            mqtt = free_port()
            more = f'[cooperation]\nalgorithm = "{path}"'
            config = node_file(
                name, broker.port, more, peer=peer, mqtt=mqtt, link=link, admin=admin
            )
            return stack.enter_context(configured_node(config, mqtt, environment))

        near_node = node("near", near, near_link, near_admin, 0)
        far_node = node("far", far, free_port(), free_port(), near_link)
        pids = {
            "near broker": near.pid,
            "near node": near_node.pid,
            "far node": far_node.pid,
            "far broker": far.pid,
        }
        yield Site(near_node.port, far_node.port, pids, near_admin)


def fabric_status(admin_port: int) -> dict[str, Any]:
    """What a node says of its links and its algorithm."""
    url = f"http://127.0.0.1:{admin_port}/api/status"
    with urllib.request.urlopen(url, timeout=10) as answer:
        status: dict[str, Any] = json.loads(answer.read())
    fabric: dict[str, Any] = status["fabric"]
    return fabric
