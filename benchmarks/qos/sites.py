"""What is compared: a broker alone, behind a node, and two of them joined; all are children.

direct    clients ─▶ broker
node      clients ─▶ node ─▶ broker                      as it is by default
never     the same, and the node never rests (`limits.rest_s = 0`)
linked    publishers ─▶ node ══link══ node ◀─ subscribers     a broker behind each
bridge    publishers ─▶ broker ══bridge══ broker ◀─ subscribers
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fabric.sites import bridge_lines
from benchmarks.relay.processes import configured_node, node_file, running_broker, running_node

from isthmus.processes.ports import free_port
from support.certificates import Authority

__all__ = ["NEVER_RESTS", "PATHS", "QosSite", "StormSite", "running_doors", "running_paths"]

PATHS = ("direct", "node", "never", "linked", "bridge")
IN_FLIGHT = {1: (), 2: ("max_inflight_messages 100",)}
"""Mosquitto closes on publishers with more than that unreleased at QoS 2; 20 is its default."""
NEVER_RESTS = "[limits]\nrest_s = 0.0"


@dataclass(frozen=True, slots=True)
class QosSite:
    """Where publishers and subscribers connect, and every process by its part."""

    near_port: int
    far_port: int
    pids: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StormSite:
    """A broker, or a node before one, and where it takes clients with TLS and without."""

    ports: Mapping[str, int]
    pids: Mapping[str, int]
    ca: Path


@contextmanager
def running_doors(folder: Path) -> Iterator[dict[str, StormSite]]:
    """A broker alone and behind a node; both have the same certificate, made in `folder`."""
    authority = Authority(folder)
    own, secure = authority.issue("bench"), [free_port(), free_port()]
    more = [f"listener {secure[0]} 127.0.0.1", "max_connections -1"]
    more += [f"certfile {own.cert}", f"keyfile {own.key}"]
    with running_broker(*more) as broker:
        tls = f'[tls]\ncert = "{own.cert}"\nkey = "{own.key}"'
        port = free_port()
        config = node_file("bench", broker.port, tls, mqtt=port, mqtts=secure[1])
        with configured_node(config, port) as node:
            alone = {"broker": broker.pid}
            yield {
                "direct": StormSite({"TCP": broker.port, "TLS": secure[0]}, alone, authority.cert),
                "node": StormSite(
                    {"TCP": port, "TLS": secure[1]}, alone | {"node": node.pid}, authority.cert
                ),
            }


@contextmanager
def running_paths(paths: tuple[str, ...] = PATHS, qos: int = 1) -> Iterator[dict[str, QosSite]]:
    """All of `paths`, side by side; the bridge carries messages at `qos`."""
    more = IN_FLIGHT[qos]
    with ExitStack() as stack:
        sites: dict[str, QosSite] = {}
        alone = None
        for path in paths:
            if path in ("direct", "node", "never"):
                if alone is None:
                    alone = stack.enter_context(running_broker(*more))
                pids, port = {"broker": alone.pid}, alone.port
                if path != "direct":
                    rests = NEVER_RESTS if path == "never" else ""
                    node = stack.enter_context(running_node(alone.port, rests))
                    pids, port = pids | {"node": node.pid}, node.port
                sites[path] = QosSite(port, port, pids)
            elif path == "linked":
                sites[path] = _linked(stack, more)
            elif path == "bridge":
                far = stack.enter_context(running_broker(*more))
                lines = bridge_lines(far.port)
                lines[lines.index("topic # both 0")] = f"topic # both {qos}"
                near = stack.enter_context(running_broker(*more, *lines))
                pids = {"near broker": near.pid, "far broker": far.pid}
                sites[path] = QosSite(near.port, far.port, pids)
            else:
                raise ValueError(f"path {path!r}; known: {', '.join(PATHS)}")
        yield sites


def _linked(stack: ExitStack, more: tuple[str, ...]) -> QosSite:
    link = free_port()
    near, far = (stack.enter_context(running_broker(*more)) for _ in range(2))
    ports = [free_port(), free_port()]
    near_file = node_file("near", near.port, mqtt=ports[0], link=link)
    far_file = node_file("far", far.port, peer=link, mqtt=ports[1], link=free_port())
    nodes = [
        stack.enter_context(configured_node(file, port))
        for file, port in zip((near_file, far_file), ports, strict=True)
    ]
    pids = {
        "near broker": near.pid,
        "near node": nodes[0].pid,
        "far node": nodes[1].pid,
        "far broker": far.pid,
    }
    return QosSite(ports[0], ports[1], pids)
