"""Connections of clients that have not said who they are.

    TCP ──TLS handshake──▶ ──WebSocket handshake──▶ ──CONNECT──▶ a client that is known

Anybody can open such connections and leave them at any of these points, and each takes files and
memory.  So each counts as a client (`limits.clients`) from its first moment, and when there is no
room for one more, the one that has waited longest leaves, if it has waited `SILENT_S`.  So any
number of them keeps out nobody who says something.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Entrance", "Newcomer"]

SILENT_S = 2.0


class Newcomer(Protocol):
    """A connection that is not yet a client."""

    def cut_off(self) -> None:
        """Somebody else needs the room."""
        ...


class Entrance:
    """Who is there, in the order in which they came to where they are."""

    def __init__(self) -> None:
        self._guests: dict[Newcomer, tuple[float, bool]] = {}
        self.handshakes = 0
        """Those that are no client session yet."""

    def enter(self, guest: Newcomer, now_s: float, *, handshake: bool) -> None:
        self._guests[guest] = now_s, handshake
        self.handshakes += handshake

    def leave(self, guest: Newcomer) -> None:
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
