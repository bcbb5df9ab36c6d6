"""Many raw MQTT connections, opened a few hundred at a time.

Sockets are non-blocking with TCP_NODELAY.  `connect_clients` returns when every broker (or
node) has answered CONNACK "accepted"; anything else is a `LoadError`.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.relay.wire import CONNACK_ACCEPTED, DISCONNECT, SUBACK_BYTES, connect, subscribe

__all__ = ["LoadError", "connect_clients", "connected", "disconnect", "subscribe_clients"]

HANDSHAKE_S = 30.0  # no progress on any connection for so long is a failure
AT_ONCE = 200  # below the usual listen backlog of nodes and brokers


class LoadError(Exception):
    """The load could not be applied, or what came back was not what was sent."""


def connect_clients(port: int, client_ids: Sequence[str]) -> list[socket.socket]:
    """Open one accepted MQTT session on loopback per client id."""
    socks: list[socket.socket] = []
    try:
        for first in range(0, len(client_ids), AT_ONCE):
            group = []
            for client_id in client_ids[first : first + AT_ONCE]:
                sock = socket.create_connection(("127.0.0.1", port), timeout=HANDSHAKE_S)
                socks.append(sock)
                group.append(sock)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(connect(client_id))
                sock.setblocking(False)
            for answer in _answers(group, len(CONNACK_ACCEPTED)):
                if answer != CONNACK_ACCEPTED:
                    raise LoadError(f"CONNACK expected, got {answer.hex(' ')}")
    except BaseException:
        disconnect(socks)
        raise
    return socks


def subscribe_clients(socks: Sequence[socket.socket], filters: Sequence[str]) -> None:
    """Subscribe each client to its filter at QoS 0 and wait for the SUBACKs."""
    for first in range(0, len(socks), AT_ONCE):
        group = socks[first : first + AT_ONCE]
        for sock, topic_filter in zip(group, filters[first : first + AT_ONCE], strict=True):
            sock.send(subscribe(topic_filter))
        for answer in _answers(group, SUBACK_BYTES):
            if answer[0] != 0x90 or answer[-1] != 0x00:
                raise LoadError(f"SUBACK granting QoS 0 expected, got {answer.hex(' ')}")


def disconnect(socks: Sequence[socket.socket]) -> None:
    """Leave politely where the socket still takes two bytes, and close."""
    for sock in socks:
        try:
            sock.send(DISCONNECT)
        except OSError:
            pass
        sock.close()


@contextmanager
def connected(port: int, client_ids: Sequence[str]) -> Iterator[list[socket.socket]]:
    """`connect_clients`, disconnected on leaving."""
    socks = connect_clients(port, client_ids)
    try:
        yield socks
    finally:
        disconnect(socks)


def _answers(socks: Sequence[socket.socket], size: int) -> list[bytes]:
    """The next `size` bytes of every socket, in order; the rest stays in the socket."""
    got = {sock.fileno(): b"" for sock in socks}
    by_fd = {sock.fileno(): sock for sock in socks}
    waiting = set(got)
    with select.epoll() as poll:
        for fd in got:
            poll.register(fd, select.EPOLLIN)
        deadline = time.monotonic() + HANDSHAKE_S
        while waiting:
            events = poll.poll(max(0.0, deadline - time.monotonic()))
            if not events:
                raise LoadError(f"{len(waiting)} of {len(got)} clients had no answer")
            for fd, _ in events:
                chunk = by_fd[fd].recv(size - len(got[fd]))
                if not chunk:
                    raise LoadError(f"a connection was closed after {got[fd].hex(' ')!r}")
                got[fd] += chunk
                if len(got[fd]) == size:
                    poll.unregister(fd)
                    waiting.discard(fd)
            deadline = time.monotonic() + HANDSHAKE_S
    return [got[sock.fileno()] for sock in socks]
