"""Bytes that clients make the node keep before they can be used, counted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.pending import Pending, address_group
from isthmus.mqtt.reason_codes import ReasonCode

LIMITS = ClientLimits(packet_bytes=1000, pending_bytes=200_000, pending_bytes_per_address=100_000)


@dataclass(eq=False)
class Holder:
    address: str
    pending: Pending | None = None
    pending_bytes: int = 0
    ended: str = ""

    def end_for_pending(self, error: RemoteProtocolError) -> None:
        assert self.pending is not None
        assert error.reason_code == ReasonCode.QUOTA_EXCEEDED
        self.ended = str(error)
        self.pending.count(self, 0)


def holders(*addresses: str) -> tuple[Pending, list[Holder]]:
    clients: dict[Holder, None] = {Holder(address): None for address in addresses}
    pending = Pending(LIMITS, clients)
    for each in clients:
        each.pending = pending
    return pending, list(clients)


def test_the_largest_of_an_address_has_to_go() -> None:
    pending, (small, large, other) = holders("a", "a", "b")
    pending.count(other, 90_000)
    pending.count(large, 80_000)
    pending.count(small, 15_000)
    pending.count(small, 25_000)
    assert "of a exceed limits.pending_bytes_per_address" in large.ended
    assert not small.ended
    assert not other.ended
    assert pending.total == 115_000


def test_the_largest_of_all_has_to_go() -> None:
    pending, clients = holders("a", "b", "c")
    for client, size in zip(clients, (90_000, 95_000, 20_000), strict=True):
        pending.count(client, size)
    assert [bool(client.ended) for client in clients] == [False, True, False]
    for client in clients:
        pending.count(client, 0)
    assert pending.total == 0


@pytest.mark.parametrize(
    ("peername", "group"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("/run/socket", "/run/socket"),
        (None, "None"),
    ],
)
def test_who_shares_a_bound(peername: object, group: str) -> None:
    assert address_group(peername) == group
