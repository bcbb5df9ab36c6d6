"""What a node counts.  Plain integers on one slotted object: the hot path adds per batch."""

from __future__ import annotations

from collections import Counter

__all__ = ["Counters"]


class Counters:
    """Totals since the node started."""

    __slots__ = (
        "broker_bytes",
        "broker_connect_failures",
        "broker_packets",
        "broker_sessions_lost",
        "client_bytes",
        "client_publishes",
        "clients_accepted",
        "clients_closed",
        "clients_connected",
        "clients_refused",
        "not_confirmed",
        "refusals",
        "slow_turns",
    )

    def __init__(self) -> None:
        self.clients_accepted = 0
        self.clients_connected = 0
        self.clients_refused = 0
        self.clients_closed = 0
        self.client_bytes = 0
        self.client_publishes = 0
        self.broker_bytes = 0
        self.broker_packets = 0
        self.broker_connect_failures = 0
        self.broker_sessions_lost = 0
        self.not_confirmed = 0
        """Messages of which a publisher was told that somebody may do without them."""
        self.slow_turns = 0
        self.refusals: Counter[str] = Counter()
        """Connections that the node ended, by cause."""

    def totals(self) -> dict[str, int]:
        """Every plain total by name."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "refusals"}
