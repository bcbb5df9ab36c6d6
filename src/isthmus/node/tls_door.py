"""The door of a TLS port for clients.

The event loop tells a protocol of a TLS connection only when its handshake is over.  The door
therefore takes the plain connection, which is a guest of the relay's `Entrance` from its first
moment, and has the handshake done on a duplicate of its socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import cast

from isthmus.exchange.client.relay import Relay

__all__ = ["ClientTlsDoor"]


class ClientTlsDoor(asyncio.Protocol):
    """A connection to a TLS port whose handshake is under way; `make` makes what comes after."""

    def __init__(
        self, relay: Relay, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._relay = relay
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._make = make
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast("asyncio.Transport", transport)  # the event loop's own class
        if self._shaking is not None:  # it is over
            self._relay.entrance.leave(self)
            protocol = self._make()
            wire.set_protocol(protocol)
            protocol.connection_made(wire)
            return
        if self._relay.knocked(self):
            duplicate = socket.socket(fileno=os.dup(wire.get_extra_info("socket").fileno()))
            self._shaking = self._loop.create_task(self._shake_hands(duplicate))
        wire.abort()  # before it reads anything

    async def _shake_hands(self, duplicate: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self,
                duplicate,
                ssl=self._context,
                ssl_handshake_timeout=self._relay.limits.connect_timeout_s,
            )
        except OSError:  # of which ssl.SSLError and the timeout are
            duplicate.close()
        except asyncio.CancelledError:
            duplicate.close()
        finally:
            self._relay.entrance.leave(self)

    def cut_off(self) -> None:
        if self._shaking is not None:
            self._shaking.cancel()
