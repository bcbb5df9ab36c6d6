"""Sessions on an event loop, and options of their sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import cast

from isthmus.exchange.session import Session
from isthmus.processes.kernel import keep_alive

__all__ = ["as_protocol", "cannot_listen", "probe_when_idle", "unacknowledged_s"]

_LAST_ACK_RECEIVED = 56
"""Where `tcpi_last_ack_recv` stands in the kernel's `struct tcp_info`, in milliseconds."""


def as_protocol(session: Session) -> asyncio.Protocol:
    """A session is called as a protocol is, and knows nothing of event loops."""
    return cast(asyncio.Protocol, session)


def cannot_listen(name: str, address: object, error: OSError) -> OSError:
    """What the system says, with the key; asyncio says the address once more."""
    cause = error.strerror or str(error)
    if error.errno is not None and error.errno > 0:  # and not the resolver's
        cause = os.strerror(error.errno)
    return OSError(error.errno, f"[listen] {name} = {address}: {cause}")


def probe_when_idle(sock: object) -> None:
    """Let the kernel find who vanished without a FIN; MQTT's keep-alive may be off.

    Connections that a listening socket accepts have its options.
    """
    fileno = getattr(sock, "fileno", lambda: -1)()
    if fileno < 0:
        return  # it is closed already, or there never was one
    # The event loop's own socket object does not let options be set.
    view = socket.socket(fileno=fileno)
    try:
        keep_alive(view, idle_s=60, interval_s=15, probes=4)
    finally:
        view.detach()


def unacknowledged_s(sock: object) -> float | None:
    """How long ago the other machine's kernel was heard last; None if ours does not tell.

    It answers for a process that hangs: what is sent to it, until that is too much, and then the
    question whether there is room again, which comes every two minutes at least.
    """
    fileno = getattr(sock, "fileno", lambda: -1)()
    if fileno < 0 or not hasattr(socket, "TCP_INFO"):
        return None
    view = socket.socket(fileno=fileno)
    try:
        info = view.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK_RECEIVED + 4)
    except OSError:
        return None  # not TCP, or closed just now
    finally:
        view.detach()
    if len(info) < _LAST_ACK_RECEIVED + 4:
        return None
    return int.from_bytes(info[_LAST_ACK_RECEIVED:], sys.byteorder) / 1000
