"""Idle clients: what the node's memory is with thousands of connected clients that say nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.relay.clients import (
    LoadError,
    connect_clients,
    connected,
    disconnect,
    subscribe_clients,
)
from benchmarks.relay.processes import Memory, Process, cpu_ns, memory

__all__ = ["Idle", "measure_idle"]

SETTLED_BYTES = 64 * 1024  # memory that changed by less between two looks has settled
LOOK_S = 0.25
SETTLE_S = 15.0


@dataclass(frozen=True, slots=True)
class Idle:
    """The node's memory before, with `clients` connected, with each subscribed, and after."""

    clients: int
    connect_s: float
    before: Memory
    connected: Memory
    subscribed: Memory
    after: Memory
    idle_cores: float  # CPU that the node used while nobody said anything

    @property
    def bytes_per_client(self) -> float:
        """Growth of resident memory per connected client."""
        return (self.connected.rss_bytes - self.before.rss_bytes) / self.clients


def settled(pid: int) -> Memory:
    """Memory once it no longer moves."""
    deadline = time.monotonic() + SETTLE_S
    last = memory(pid)
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        now = memory(pid)
        if abs(now.rss_bytes - last.rss_bytes) < SETTLED_BYTES:
            return now
        last = now
    raise LoadError(f"the node's memory did not settle within {SETTLE_S:.0f} s")


def measure_idle(node: Process, clients: int, watch_s: float = 2.0) -> Idle:
    """Connect `clients` through the node, look, subscribe each to a topic of its own, look."""
    disconnect(connect_clients(node.port, ["idle-first"]))  # what the first client loads once
    before = settled(node.pid)
    began = time.perf_counter()
    with connected(node.port, [f"idle-{i}" for i in range(clients)]) as socks:
        connect_s = time.perf_counter() - began
        with_connected = settled(node.pid)
        cpu_before, then = cpu_ns(node.pid), time.perf_counter()
        time.sleep(watch_s)  # the quiet time is what is measured here
        cores = (cpu_ns(node.pid) - cpu_before) / (time.perf_counter() - then) / 1e9
        subscribe_clients(socks, [f"idle/{i}" for i in range(clients)])
        with_subscribed = settled(node.pid)
    after = settled(node.pid)
    return Idle(clients, connect_s, before, with_connected, with_subscribed, after, cores)
