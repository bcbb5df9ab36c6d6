"""What we ask of the kernel for this process and its sockets."""

from __future__ import annotations

import resource
import socket

__all__ = ["keep_alive", "raise_open_files"]


def keep_alive(sock: socket.socket, *, idle_s: int, interval_s: int, probes: int) -> None:
    """Let the kernel find out that the other end has vanished without a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)


def raise_open_files(wanted: int) -> int:
    """Have this process open `wanted` files if it may; how many it may, at most that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
