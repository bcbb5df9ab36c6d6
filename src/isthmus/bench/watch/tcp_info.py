"""What the kernel knows of a TCP connection: `TCP_INFO`, of our own sockets and of our neighbors'.

ILDM §5.3 watches whether anything but the brokers limits a run: flow control of TCP and
retransmissions.  The paper read them from captured frames; the kernel counts them by itself:

* :func:`read` asks about a socket of this process.
* :func:`of_connections` asks about the sockets of any process here, by their local port (netlink
  `sock_diag`, which is what ``ss -ti`` uses; no privilege needed).

Only the end that *sends* knows how long the other's receive window held it back, or that something
had to be sent again.  So what subscribers do to a broker stands in the broker's socket, and what a
broker does to publishers stands in ours.

Newer kernels append fields to ``struct tcp_info`` (linux/tcp.h); one that the kernel at hand does
not have is None.  Times are counted by the kernel in its ticks (1 to 10 ms).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from typing import Final, Protocol

__all__ = ["UNKNOWN", "TcpInfo", "decode", "of_connections", "read"]

# The fields we keep and where they begin; all that lies between is skipped.  In this order
# they also grew: a struct that ends early lacks a tail of this list.
_FIELDS: Final = (
    ("retransmits", 100, "I"),
    ("bytes_received", 128, "Q"),  # Linux 4.1
    ("segments_out", 136, "I"),  # 4.2
    ("busy_us", 168, "Q"),  # 4.10
    ("rwnd_limited_us", 176, "Q"),
    ("sndbuf_limited_us", 184, "Q"),
    ("bytes_sent", 200, "Q"),  # 4.19
    ("duplicate_retransmits", 216, "I"),
    ("receive_window_bytes", 232, "I"),  # 6.2
)


def _layout() -> tuple[struct.Struct, tuple[int, ...]]:
    """One format for all of `_FIELDS`, and where each field ends."""
    code, at, ends = "=", 0, []
    for _, offset, kind in _FIELDS:
        code += f"{offset - at}x{kind}"
        at = offset + struct.calcsize("=" + kind)
        ends.append(at)
    return struct.Struct(code), tuple(ends)


_LAYOUT, _ENDS = _layout()
_COUNTERS: Final = tuple(name for name, _, _ in _FIELDS if name != "receive_window_bytes")
_ASKED_BYTES: Final = 512  # more than the struct has; the kernel says how much it filled


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """One connection as one of its ends sees it; counters since it began."""

    retransmits: int | None
    """Segments sent again."""
    bytes_received: int | None
    segments_out: int | None
    busy_us: int | None
    """Time with anything to send or to be acknowledged; the next two are parts of it."""
    rwnd_limited_us: int | None
    """Time that the other end's receive window kept us from sending."""
    sndbuf_limited_us: int | None
    """Time that our own send buffer was too small to fill the path."""
    bytes_sent: int | None
    """Those sent again included."""
    duplicate_retransmits: int | None
    """Of `retransmits`: those that the other end had already, as it says by DSACK."""
    receive_window_bytes: int | None
    """What this end is ready to take now."""

    def since(self, earlier: TcpInfo) -> TcpInfo:
        """The counters' growth since `earlier`; the window, which is none, is as it is now."""
        changes: dict[str, int] = {}
        for name in _COUNTERS:
            now, before = getattr(self, name), getattr(earlier, name)
            if now is not None and before is not None:
                changes[name] = now - before
        return replace(self, **changes)


UNKNOWN: Final = TcpInfo(*[None] * len(_FIELDS))
"""Of a connection that nobody could ask about."""


class _Asked(Protocol):
    """A socket, or what a transport hands out in its place."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def read(sock: _Asked) -> TcpInfo:
    """`TCP_INFO` of a connected TCP socket of this process."""
    return decode(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ASKED_BYTES))


def decode(data: bytes) -> TcpInfo:
    """``struct tcp_info`` in the length that the kernel at hand gives."""
    if len(data) >= _LAYOUT.size:
        return TcpInfo(*_LAYOUT.unpack_from(data))
    values = _LAYOUT.unpack(data + bytes(_LAYOUT.size - len(data)))
    known = (v if end <= len(data) else None for v, end in zip(values, _ENDS, strict=True))
    return TcpInfo(*known)


# --- sock_diag (linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h) ---

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_NLM_F_REQUEST_DUMP: Final = 0x1 | 0x300
_INET_DIAG_INFO: Final = 2  # the attribute that carries struct tcp_info
_ESTABLISHED: Final = 1

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states; then a socket id
_SOCKET_ID: Final = struct.Struct(">HH16s16s12x")  # ports, addresses; interface and cookie unused
_ANSWER_ID_AT: Final = 4
_ANSWER_SIZE: Final = 72  # struct inet_diag_msg; attributes follow
_ATTRIBUTE: Final = struct.Struct("=HH")
_RECEIVE_BYTES: Final = 1 << 16
_DEADLINE_S: Final = 2.0


def of_connections(ports: Iterable[int]) -> dict[tuple[int, str], TcpInfo]:
    """The established connections on this machine whose local port is one of `ports`.

    By local port and the other end's ``host:port``.  Raises `OSError` where the kernel does not
    answer (no `inet_diag` in it, or another system).
    """
    found: dict[tuple[int, str], TcpInfo] = {}
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_DEADLINE_S)
        for port in dict.fromkeys(ports):
            # A listener for both families has its IPv4 connections among those of IPv6.
            for family in (socket.AF_INET, socket.AF_INET6):
                for message in _dump(kernel, family, port):
                    for key, info in _connection(message):
                        found[key] = info
    return found


def _dump(kernel: socket.socket, family: int, port: int) -> Iterator[bytes]:
    """Every socket of `family` and local `port`: ``struct inet_diag_msg`` and its attributes."""
    request = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _ESTABLISHED
    ) + _SOCKET_ID.pack(port, 0, b"", b"")
    kernel.send(
        _HEADER.pack(
            _HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, port, 0
        )
        + request
    )
    while True:
        data = kernel.recv(_RECEIVE_BYTES)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, at)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
                raise OSError(-code, f"sock_diag: {os.strerror(-code)}")
            yield data[at + _HEADER.size : at + length]
            at += (length + 3) & ~3


def _connection(message: bytes) -> Iterator[tuple[tuple[int, str], TcpInfo]]:
    """The connection that `message` tells of, if it came with its ``struct tcp_info``."""
    family = message[0]
    port, remote_port, _, remote = _SOCKET_ID.unpack_from(message, _ANSWER_ID_AT)
    at = _ANSWER_SIZE
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INET_DIAG_INFO:
            info = decode(message[at + _ATTRIBUTE.size : at + length])
            yield (port, f"{_host(family, remote)}:{remote_port}"), info
        at += (length + 3) & ~3


def _host(family: int, address: bytes) -> str:
    """As the other end writes its own address: IPv4 in IPv6 is IPv4, IPv6 has brackets."""
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, address[:4])
    mapped = IPv6Address(address).ipv4_mapped
    return str(mapped) if mapped else f"[{IPv6Address(address)}]"
