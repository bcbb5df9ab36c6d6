"""Subscribers of a node's last life, of which a node that keeps nothing knows nothing.

Their sessions are their broker's, and may live on; what is published meanwhile is for them, too.
A node that confirms messages (`confirming`) must not do without it.  So for `back_s` after its
start such a node wants everything, as if a client had subscribed to ``#``: its broker gives each of
them what it has subscribed to, and nobody else gets anything more.

Who is back within that time and is told by its broker that its session is present need not
subscribe again, and many do not.  Its filters are then not known here, so it counts as wanting
everything for longer: until it subscribes, by which it is taken to name all that it wants, or its
session ends.
"""

from __future__ import annotations

from typing import Final

from isthmus.exchange.client.client import Client
from isthmus.exchange.client.interest import LocalInterest
from isthmus.exchange.host import Cancellable, Host

__all__ = ["Returning"]

EVERYTHING: Final = "#"
UNSAID: Final = "\0unsaid"
"""In the place of the filters that a client has not named; no filter of a client is like it."""


class Returning:
    """Who may be back, until it is over."""

    def __init__(self, host: Host, interest: LocalInterest, back_s: float) -> None:
        """Nobody is waited for if `back_s` is 0."""
        self._host = host
        self._interest = interest
        self._back_s = back_s
        self._timer: Cancellable | None = None

    @property
    def awaited(self) -> bool:
        return self._timer is not None

    def start(self) -> None:
        if self._back_s:
            self._timer = self._host.call_later(self._back_s, self._over)
            self._interest.hold(EVERYTHING)
            self._interest.report()

    def _over(self) -> None:
        self._timer = None
        self._interest.release(EVERYTHING)
        self._interest.report()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def is_back(self, client: Client) -> None:
        """Its broker has a session for it, of which nothing is known here."""
        if self.awaited and UNSAID not in client.filters:
            client.filters[UNSAID] = EVERYTHING
            self._interest.hold(EVERYTHING)

    def has_subscribed(self, client: Client) -> None:
        if client.filters.pop(UNSAID, None) is not None:
            self._interest.release(EVERYTHING)
