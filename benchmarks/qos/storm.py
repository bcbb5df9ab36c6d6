"""Connection storms: many clients connect at once, as fast as they are let in.

At most `AT_ONCE` clients wait for an answer at a time: a broker's listen backlog is not longer, and
what the kernel drops comes again only after a second.  All of a client is one socket and one
prepared CONNECT, so that the generator has time left; what it used is told with the rest.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from benchmarks.relay.processes import (
    configured_node,
    cpu_ns,
    machine_busy_ns,
    node_file,
    running_broker,
)
from benchmarks.relay.statistics import Slice

from isthmus.errors import LoadError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect, Subscribe, Subscription
from isthmus.processes.ports import free_port

__all__ = ["Herd", "Restart", "restart", "storm"]

AT_ONCE = 100
LEVEL = 4
STALLED_S = 20.0
CONNACK = b"\x20\x02\x00\x00"
SUBACK = b"\x90\x03\x00\x01\x00"
DISCONNECT = b"\xe0\x00"


@dataclass(frozen=True, slots=True)
class Restart:
    """A node was killed: how long from its start until it listens, and until all are back."""

    listens_s: float
    back_s: float


class Herd:
    """Clients that connect to `port`, with TLS if there is a `context`; then they are held."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._context = context
        self._held: list[socket.socket] = []
        self._poll = select.epoll()
        self._waiting: dict[int, tuple[socket.socket, bytes, bytes]] = {}
        """By descriptor: the socket, what it sends when it can, and what it then waits for."""
        self._shaking: set[int] = set()

    def come(self, first: Sequence[bytes], then: Sequence[bytes] = ()) -> float:
        """A client for each of `first`, a CONNECT, and of `then`, a SUBSCRIBE; how long it took."""
        began_s = time.perf_counter()
        left = list(zip(first, then, strict=True) if then else ((each, b"") for each in first))
        left.reverse()
        while left or self._waiting:
            while left and len(self._waiting) < AT_ONCE:
                self._begin(*left.pop())
            ready = self._poll.poll(STALLED_S)
            if not ready:
                raise LoadError(f"no client was let in for {STALLED_S:.0f} s")
            for fd, _ in ready:
                self._turn(fd)
        return time.perf_counter() - began_s

    def _begin(self, connect: bytes, subscribe: bytes) -> None:
        sock = socket.create_connection(("127.0.0.1", self._port), STALLED_S)
        sock.setblocking(False)
        if self._context is None:
            sock.send(connect)
        else:
            sock = self._context.wrap_socket(sock, do_handshake_on_connect=False)
        fd = sock.fileno()
        self._poll.register(fd, select.EPOLLIN)
        if self._context is None:
            self._waiting[fd] = sock, subscribe, CONNACK
        else:
            self._waiting[fd] = sock, connect + subscribe, b""
            self._shaking.add(fd)
            self._turn(fd)

    def _turn(self, fd: int) -> None:
        sock, more, wanted = self._waiting[fd]
        if fd in self._shaking:
            assert isinstance(sock, ssl.SSLSocket)
            with suppress(ssl.SSLWantReadError):
                sock.do_handshake()
                self._shaking.discard(fd)
                sock.send(more)
                self._waiting[fd] = sock, b"", CONNACK
            return
        try:
            answer = sock.recv(len(wanted))
        except (ssl.SSLWantReadError, BlockingIOError):
            return  # a session ticket, perhaps
        if answer != wanted:
            raise LoadError(f"{wanted.hex(' ')} expected, got {answer.hex(' ') or 'the end'}")
        if more:
            sock.send(more)
            self._waiting[fd] = sock, b"", SUBACK
            return
        self._poll.unregister(fd)
        self._held.append(self._waiting.pop(fd)[0])

    def __enter__(self) -> Herd:
        return self

    def __exit__(self, *_error: object) -> None:
        """Those that are still connected take their leave."""
        for sock in (*self._held, *(each[0] for each in self._waiting.values())):
            with suppress(OSError):
                sock.send(DISCONNECT)
            sock.close()
        self._poll.close()


def storm(
    port: int, pids: Mapping[str, int], count: int, context: ssl.SSLContext | None = None
) -> Slice:
    """`count` clients with clean sessions; `delivered` are those that were let in."""
    connects = _connects(count)

    def clocks() -> dict[str, int]:
        used = {name: cpu_ns(pid) for name, pid in pids.items()}
        return used | {"generator": time.process_time_ns(), "machine": machine_busy_ns()}

    with Herd(port, context) as herd:
        before = clocks()
        elapsed_s = herd.come(connects)
        after = clocks()
    return Slice(elapsed_s, count, {name: after[name] - before[name] for name in after})


def restart(count: int) -> Restart:
    """A node with `count` clients that have subscribed is killed, and started again at once."""
    connects = _connects(count)
    subscribes = [
        encode(Subscribe(1, (Subscription(f"site/device/{number:05d}", 0),)), LEVEL)
        for number in range(count)
    ]
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker())
        port = free_port()
        config = node_file("bench", broker.port, mqtt=port)
        with suppress(_Killed), configured_node(config, port) as node, Herd(port) as herd:
            herd.come(connects, subscribes)
            os.kill(node.pid, signal.SIGKILL)
            raise _Killed
        node = stack.enter_context(configured_node(config, port))
        herd = stack.enter_context(Herd(port))
        taken_s = herd.come(connects, subscribes)
        return Restart(node.start_s, node.start_s + taken_s)


class _Killed(Exception):
    """The node ends as it was to."""


def _connects(count: int) -> list[bytes]:
    return [
        encode(Connect(f"storm-{number:05d}", protocol_level=LEVEL), LEVEL)
        for number in range(count)
    ]
