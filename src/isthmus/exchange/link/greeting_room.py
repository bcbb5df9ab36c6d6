"""Where connections to the link port wait until their greeting is over.

There is always room for one more: when there is none, somebody who has waited in vain leaves.  So a
stranger with any number of silent connections keeps nobody out, and holds `PLACES` at most.

Who leaves, if an address has more than its share, or else if the room is full:

1. not from an address where a neighbor is or was, as long as there are others;
2. of the address with the most guests (its own, if it has more than its share);
3. first those that have said nothing yet;
4. first the one that has waited longest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

__all__ = ["PLACES", "SHARE", "GreetingRoom", "Guest"]

PLACES = 256
SHARE = 64
"""Guests of one address that no neighbor is known at."""
MAX_KNOWN = 4_096


class Guest(Protocol):
    """A connection that is being greeted, or whose TLS handshake is under way."""

    @property
    def host(self) -> str:
        """Where it comes from, without the port."""
        ...

    @property
    def spoke(self) -> bool:
        """Whether it has said anything that made sense."""
        ...

    opened_s: float

    def abort(self) -> None:
        """Cut it off."""
        ...


class GreetingRoom:
    """The guests, oldest first, and the addresses of neighbors."""

    def __init__(self) -> None:
        self._guests: dict[Guest, None] = {}
        self._of_host: Counter[str] = Counter()
        self._known: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[Guest]:
        return iter(list(self._guests))

    def enter(self, guest: Guest) -> Guest | None:
        """Let `guest` in; who must leave for it, if anybody."""
        leaving = None
        if self._of_host[guest.host] >= SHARE and guest.host not in self._known:
            leaving = self._last_wanted(guest.host)
        elif len(self._guests) >= PLACES:
            leaving = self._last_wanted(None)
        if leaving is not None:
            self.leave(leaving)
        self._guests[guest] = None
        self._of_host[guest.host] += 1
        return leaving

    def leave(self, guest: Guest) -> None:
        if guest in self._guests:
            del self._guests[guest]
            self._of_host[guest.host] -= 1
            if not self._of_host[guest.host]:
                del self._of_host[guest.host]

    def is_neighbor(self, host: str) -> None:
        """A node that proved itself was there; the oldest such addresses are forgotten."""
        self._known.pop(host, None)
        self._known[host] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _last_wanted(self, host: str | None) -> Guest:
        of = [guest for guest in self._guests if host is None or guest.host == host]

        def order(guest: Guest) -> tuple[bool, int, bool, float]:
            known = guest.host in self._known
            return known, -self._of_host[guest.host], guest.spoke, guest.opened_s

        return min(of, key=order)
