"""Ports for brokers that cannot be asked to choose one themselves.

A port is picked at random *below* the range from which the kernel takes the local ports of
outgoing connections.  A port from that range (which is what binding to port 0 gives) could be
taken by any outgoing connection between our choice and the broker's bind or, after a crash,
before its restart; a client that retries against such a port can even connect to itself.
Another process may still be faster than the broker, so :func:`listening_inodes` lets the
caller make sure that it is the broker that listens.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable
from pathlib import Path

__all__ = ["free_port", "listening_inodes", "owns_listener", "share"]

_LOWEST = 10_240
_LISTEN = "0A"
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_random = random.SystemRandom()
_given: set[int] = set()  # by this process: two brokers that start at once must not share
_part, _parts = 0, 1


def share(part: int, parts: int) -> None:
    """Give every `parts`-th port only: others are for processes that do so beside this one."""
    global _part, _parts
    _part, _parts = part, parts


def _highest() -> int:
    try:
        return int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _bindable(host: str, port: int) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((host, port))
        except OSError:
            return None
        bound: int = trial.getsockname()[1]
        return bound


def free_port(host: str = "127.0.0.1") -> int:
    """A port on `host` that nobody listens on now and that this process has not given before."""
    highest = _highest()
    if highest - _LOWEST >= 1000:
        for _ in range(200):
            port = _random.randrange(_LOWEST, highest - _parts) // _parts * _parts + _part
            if port not in _given and _bindable(host, port) is not None:
                _given.add(port)
                return port
    port = _bindable(host, 0) or 0
    if port == 0:
        raise OSError(f"no free port on {host}")
    return port


def listening_inodes(port: int) -> set[str]:
    """The socket inodes that listen on `port`, on any local address, IPv4 or IPv6."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def owns_listener(process_ids: Iterable[int], port: int) -> bool:
    """Whether one of these processes holds a socket that listens on `port`.

    Where the kernel has no such tables the answer is yes: nothing speaks against it.
    """
    if not Path("/proc/net/tcp").exists():
        return True
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    for pid in process_ids:
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") in wanted:
                    return True
            except OSError:
                continue
    return False
