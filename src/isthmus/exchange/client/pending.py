"""What clients make the node keep before it can be used, counted by client, address and in all.

That is: packets that have not arrived whole, and whatever a client sends before its broker has
accepted it.  Strangers can do this, so it is bounded, per address (`pending_bytes_per_address`) and
together (`pending_bytes`).  Beyond a bound goes the client that holds the most among those who
share the bound, and not the one whose bytes happened to come last.

Invariant: `total` is the sum over the clients, and over the addresses, of what they hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.limits import ClientLimits
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["Pending", "address_group"]


class Holder(Protocol):
    """A client, as far as its bytes are counted."""

    address: str
    pending_bytes: int

    def end_for_pending(self, error: RemoteProtocolError) -> None:
        """Give up what is held, and the connection; `count` is called with 0 from within."""
        ...


class Pending:
    """The bytes of all clients."""

    __slots__ = ("_by_address", "_clients", "_limits", "_per_address", "total")

    def __init__(self, limits: ClientLimits, clients: Iterable[Holder]) -> None:
        self._limits = limits
        self._per_address = max(limits.pending_bytes_per_address, limits.packet_bytes)
        self._clients = clients
        self._by_address: dict[str, int] = {}
        self.total = 0

    def count(self, client: Holder, held: int) -> None:
        """`client` holds so many bytes from now on."""
        change = held - client.pending_bytes
        client.pending_bytes = held
        self.total += change
        address = client.address
        at_address = self._by_address.get(address, 0) + change
        if at_address:
            self._by_address[address] = at_address
        else:
            self._by_address.pop(address, None)
        if change > 0:
            if at_address > self._per_address:
                self._end_largest("pending_bytes_per_address", self._per_address, address)
            if self.total > self._limits.pending_bytes:
                self._end_largest("pending_bytes", self._limits.pending_bytes)

    def _end_largest(self, key: str, limit: int, address: str | None = None) -> None:
        held_by = [each for each in self._clients if address is None or each.address == address]
        largest = max(held_by, key=lambda each: each.pending_bytes)
        where = "" if address is None else f" of {address}"
        largest.end_for_pending(
            RemoteProtocolError(
                f"packets that are not complete{where} exceed limits.{key}, {limit} bytes; "
                f"this client has {largest.pending_bytes}",
                reason_code=ReasonCode.QUOTA_EXCEEDED,
            )
        )


def address_group(peername: object) -> str:
    """Who shares a bound: one IPv4 address, or one /64 of IPv6, which is one customer's."""
    host = peername[0] if isinstance(peername, tuple) and peername else peername
    try:
        address = ip_address(str(host))
    except ValueError:
        return str(host)
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> 64 << 64)) + "/64"
    return str(address)
