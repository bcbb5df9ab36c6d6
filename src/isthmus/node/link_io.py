"""Links on asyncio: TCP or TLS channels under the exchange's connections.

A connection to a link port that speaks TLS is a guest of `Links.room` from its first moment, not
only when its handshake is over: who opens connections and never shakes hands makes room, too.

What comes is given to the exchange `PIECE_BYTES` at a time and for one slice at a time
(`isthmus.exchange.turns`), like clients' input: a read may hold thousands of messages.  Pieces that
take long, of retained messages for example, are followed by smaller ones.  While some of it waits
nothing more is read, and the end of the connection is told after it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.config.addresses import Address
from isthmus.exchange.host import Channel
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.session import Session, SessionStatus, Wire, remote_name
from isthmus.exchange.turns import Turns
from isthmus.node.sockets import as_protocol, probe_when_idle
from isthmus.node.tls_door import TlsDoor

if TYPE_CHECKING:
    from isthmus.exchange.link.links import Links

__all__ = ["LinkChannel", "LinkTlsDoor", "dial"]

DIAL_TIMEOUT_S = 5.0
LINGER_S = 1.0
PIECE_BYTES = 8192
LEAST_PIECE_BYTES = 1024
LONG_S = 0.001
"""A piece that takes longer was too large."""


class LinkChannel(Session):
    """One connection to another node."""

    __slots__ = (
        "_attach",
        "_connection",
        "_held",
        "_links",
        "_lost",
        "_piece_bytes",
        "_turns",
        "_unread",
        "remote",
    )

    def __init__(self, links: Links, turns: Turns, attach: Callable[[Channel], Connection]) -> None:
        super().__init__(turns.host, LINGER_S)
        self._links = links
        self._turns = turns
        self._attach = attach
        self._unread = b""
        self._piece_bytes = PIECE_BYTES
        self._held = False
        self._lost: str | None = None
        self._connection: Connection | None = None
        self.remote = ""

    def connection_made(self, wire: Wire) -> None:
        self.established(wire, 1 << 20)
        self.remote = remote_name(wire.get_extra_info("peername"))
        self._connection = self._attach(self)

    def data_received(self, data: bytes) -> None:
        if self._connection is None or self.status is not SessionStatus.ESTABLISHED:
            return
        if self._unread:
            self._unread += data
        elif len(data) <= self._piece_bytes:
            self._links.received(self._connection, data)
        else:
            self._unread = data
            self.go_on(self._turns.slice_ends_s())

    def go_on(self, ends_s: float) -> None:
        """Give the exchange what is unread, until the slice is over."""
        assert self._connection is not None
        unread, at = self._unread, 0
        began_s = self.host.clock()
        while at < len(unread) and (
            self.status is SessionStatus.ESTABLISHED or self._lost is not None
        ):
            size = self._piece_bytes
            self._links.received(self._connection, unread[at : at + size])
            at += size
            now_s = self.host.clock()
            if now_s - began_s > LONG_S:
                self._piece_bytes = max(LEAST_PIECE_BYTES, size // 2)
            elif size < PIECE_BYTES:
                self._piece_bytes = size * 2
            began_s = now_s
            if at < len(unread) and now_s > ends_s:
                self._unread = unread[at:]
                if not self._held:  # the exchange may hold it, too
                    self._held = True
                    self.hold_reading()
                self._turns.wait(self)
                return
        self._unread = b""
        if self._lost is not None:
            self._links.lost(self._connection, self._lost)
        elif self._held:
            self._held = False
            self.release_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        cause = str(exc or "end of stream")
        waits = bool(self._unread) and self.status is SessionStatus.ESTABLISHED
        self.gone()
        if waits:
            self._lost = cause  # told when what came before it has been dealt with
        elif self._connection is not None:
            self._unread = b""
            self._links.lost(self._connection, cause)

    # ---- the exchange's Channel ----

    def write(self, data: bytes) -> None:
        if self.status is SessionStatus.ESTABLISHED:
            self.wire.write(data)

    def abort(self) -> None:
        self.wire.abort()

    def buffered_bytes(self) -> int:
        return self.wire.get_write_buffer_size()


class LinkTlsDoor(TlsDoor):
    """A connection to the link port whose TLS handshake is under way."""

    def __init__(self, links: Links, turns: Turns, context: ssl.SSLContext) -> None:
        super().__init__(context, links.settings.greeting_s)
        self._links = links
        self._turns = turns
        self.opened_s = links.host.now()
        self.host = ""
        self.spoke = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.host = remote_name(transport.get_extra_info("peername")).rpartition(":")[0]
        accepted = self._links.accepted
        self.begin(transport, lambda: as_protocol(LinkChannel(self._links, self._turns, accepted)))
        transport.abort()  # type: ignore[attr-defined]  # before it reads anything
        self._links.knocked(self)

    def failed(self) -> None:
        self._links.refusals["tls"] += 1

    def left(self) -> None:
        self._links.room.leave(self)

    abort = TlsDoor.cut_off


async def dial(
    links: Links,
    turns: Turns,
    address: str,
    context: ssl.SSLContext | None,
    *,
    opened: Callable[[Channel], Connection],
    failed: Callable[[str], None],
) -> None:
    """Open a channel; exactly one of the two callbacks is called."""
    try:
        target = Address.parse(address)
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: as_protocol(LinkChannel(links, turns, opened)),
                target.host,
                target.port,
                ssl=context,
                server_hostname=target.host if context is not None else None,
            )
        probe_when_idle(transport.get_extra_info("socket"))
    except TimeoutError:
        failed(f"no answer within {DIAL_TIMEOUT_S:g} s")
    except (OSError, ValueError) as error:  # the latter: no host can have that name or address
        failed(str(error) or type(error).__name__)
