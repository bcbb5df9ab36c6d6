"""Connections of clients that have not said who they are.

    TCP ──TLS handshake──▶ ──WebSocket handshake──▶ ──CONNECT──▶ a client that is known

Anybody can open such connections and leave them at any of these points, and each takes files and
memory.  So each counts as a client (`limits.clients`) from its first moment, and when there is no
room for one more, the one that has waited longest leaves, if it has waited `SILENT_S`.  So any
number of them keeps out nobody who says something.

The event loop tells a protocol of a TLS connection only when its handshake is over.  `TlsDoor`
therefore takes the plain connection, and has the handshake done on a duplicate of its socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from isthmus.node.runtime import Node

__all__ = ["Entrance", "Guest", "TlsDoor"]

SILENT_S = 2.0


class Guest(Protocol):
    """A connection that is not yet a client."""

    def cut_off(self) -> None:
        """Somebody else needs the room."""
        ...


class Entrance:
    """Who is there, in the order in which they came to where they are."""

    def __init__(self) -> None:
        self._guests: dict[Guest, tuple[float, bool]] = {}
        self.handshakes = 0
        """Those that are no client session yet."""

    def enter(self, guest: Guest, now_s: float, *, handshake: bool) -> None:
        self._guests[guest] = now_s, handshake
        self.handshakes += handshake

    def leave(self, guest: Guest) -> None:
        _, handshake = self._guests.pop(guest, (0.0, False))
        self.handshakes -= handshake

    def make_room(self, now_s: float) -> bool:
        """Cut off who has waited longest, if that is long enough."""
        guest = next(iter(self._guests), None)
        if guest is None or now_s - self._guests[guest][0] < SILENT_S:
            return False
        self.leave(guest)
        guest.cut_off()
        return True


class TlsDoor(asyncio.Protocol):
    """A connection to a TLS port whose handshake is under way; `make` makes what comes after."""

    def __init__(
        self, node: Node, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._node = node
        self._context = context
        self._make = make
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast("asyncio.Transport", transport)  # the event loop's own class
        if self._shaking is not None:  # it is over
            self._node.entrance.leave(self)
            protocol = self._make()
            wire.set_protocol(protocol)
            protocol.connection_made(wire)
            return
        if self._node.knocked(self):
            duplicate = socket.socket(fileno=os.dup(wire.get_extra_info("socket").fileno()))
            self._shaking = self._node.loop.create_task(self._shake_hands(duplicate))
        wire.abort()  # before it reads anything

    async def _shake_hands(self, duplicate: socket.socket) -> None:
        try:
            await self._node.loop.connect_accepted_socket(
                lambda: self,
                duplicate,
                ssl=self._context,
                ssl_handshake_timeout=self._node.limits.connect_timeout_s,
            )
        except OSError:  # of which ssl.SSLError and the timeout are
            duplicate.close()
        except asyncio.CancelledError:
            duplicate.close()
        finally:
            self._node.entrance.leave(self)

    def cut_off(self) -> None:
        if self._shaking is not None:
            self._shaking.cancel()
