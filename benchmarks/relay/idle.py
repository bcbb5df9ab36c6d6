"""Idle clients: what the node's memory is with thousands of connected clients that say nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.relay.load import connect
from benchmarks.relay.processes import Memory, Process, cpu_ns, memory

from isthmus.bench.load.frames import LEVEL
from isthmus.errors import LoadError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Subscribe, Subscription

__all__ = ["Idle", "measure_idle"]

SETTLED_BYTES = 64 * 1024  # memory that changed by less between two looks has settled
LOOK_S = 0.25
SETTLE_S = 15.0
SUBACK = b"\x90\x03\x00\x01\x00"


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
    connect(node.port, 1)[0].close()  # what the first client loads once
    before = settled(node.pid)
    began = time.perf_counter()
    with ExitStack() as stack:
        socks = [stack.enter_context(sock) for sock in connect(node.port, clients)]
        connect_s = time.perf_counter() - began
        with_connected = settled(node.pid)
        cpu_before, then = cpu_ns(node.pid), time.perf_counter()
        time.sleep(watch_s)  # the quiet time is what is measured here
        cores = (cpu_ns(node.pid) - cpu_before) / (time.perf_counter() - then) / 1e9
        _subscribe(socks)
        with_subscribed = settled(node.pid)
    after = settled(node.pid)
    return Idle(clients, connect_s, before, with_connected, with_subscribed, after, cores)


def _subscribe(socks: Sequence[socket.socket]) -> None:
    """Each to a topic of its own, at QoS 0."""
    for number, sock in enumerate(socks):
        sock.settimeout(SETTLE_S)
        sock.sendall(encode(Subscribe(1, (Subscription(f"idle/{number}", 0),)), LEVEL))
        if (answer := sock.recv(5)) != SUBACK:
            raise LoadError(f"SUBACK granting QoS 0 expected, got {answer.hex(' ')}")
