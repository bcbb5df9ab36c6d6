"""The doors of TLS ports.

The event loop tells a protocol of a TLS connection only when its handshake is over.  A door
therefore takes the plain connection, which is somebody's guest from its first moment (a client the
relay's `Entrance`'s, another node `Links.room`'s), and has the handshake done on a duplicate of its
socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import cast

from isthmus.exchange.client.relay import Relay

__all__ = ["ClientTlsDoor", "TlsDoor"]


class TlsDoor(asyncio.Protocol):
    """A connection to a TLS port whose handshake is under way."""

    def __init__(self, context: ssl.SSLContext, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._timeout_s = timeout_s
        self._shaking: asyncio.Task[None] | None = None

    def failed(self) -> None:
        """There is no handshake to be had."""

    def left(self) -> None:
        """The handshake is over, one way or the other."""

    def begin(self, plain: asyncio.BaseTransport, make: Callable[[], asyncio.Protocol]) -> None:
        """Shake hands on a duplicate of `plain`'s socket; `make` makes what comes after."""
        duplicate = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        self._shaking = self._loop.create_task(self._shake_hands(duplicate, make))

    async def _shake_hands(
        self, duplicate: socket.socket, make: Callable[[], asyncio.Protocol]
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(
                make, duplicate, ssl=self._context, ssl_handshake_timeout=self._timeout_s
            )
        except OSError:  # of which ssl.SSLError and the timeout are
            self.failed()
            duplicate.close()
        except asyncio.CancelledError:
            duplicate.close()
        finally:
            self.left()

    def cut_off(self) -> None:
        if self._shaking is not None:
            self._shaking.cancel()


class ClientTlsDoor(TlsDoor):
    """A client's; `make` makes what comes after the handshake."""

    def __init__(
        self, relay: Relay, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]
    ) -> None:
        super().__init__(context, relay.limits.connect_timeout_s)
        self._relay = relay
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast("asyncio.Transport", transport)  # the event loop's own class
        if self._shaking is not None:  # it is over
            self.left()
            protocol = self._make()
            wire.set_protocol(protocol)
            protocol.connection_made(wire)
            return
        if self._relay.knocked(self):
            self.begin(wire, lambda: self)
        wire.abort()  # before it reads anything

    def left(self) -> None:
        self._relay.entrance.leave(self)
