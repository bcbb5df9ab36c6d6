"""Client sessions as a node follows them, and how they are kept over a restart.

A `Client` is the session that the local broker keeps for a client id, with its subscriptions; a
`Connection` is one network connection of a client, with the subscriptions it has asked for and
not been granted yet.  `isthmus.cooperation.local_interest` says when which becomes what.

The clock does not survive a restart, so what is written is the time that was left.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from isthmus.cooperation import kept_records
from isthmus.cooperation.subscription_flooding.neighbor import within_levels
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.filters.topics import check_topic_filter, split_shared
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = [
    "FOR_EVER",
    "MAX_PENDING_BYTES",
    "Client",
    "Connection",
    "interest_in",
    "read_state",
    "write_state",
]

FOR_EVER: Final = 0xFFFFFFFF
"""The Session Expiry Interval that does not end (3.1.2.11.2); also 3.1.1's persistent session."""

MAX_PENDING_BYTES: Final = 16 * 1024 * 1024
"""How much one client may have in SUBSCRIBEs and UNSUBSCRIBEs that are not yet answered."""

_OVERHEAD_BYTES: Final = 64
_STATE_NAME: Final = "client-sessions"
_STATE_VERSION: Final = 2


@dataclass(eq=False, slots=True)
class Client:
    """What is held for a client id; `filters` maps what was subscribed to what it matches."""

    client_id: str
    expiry_s: int
    filters: dict[str, str] = field(default_factory=dict)
    connection: Connection | None = None
    expires_at: float | None = None


@dataclass(eq=False, slots=True)
class Connection:
    """A local client's session; `client` is set when its CONNECT has been accepted."""

    client_id: str
    level: int
    clean_start: bool
    expiry_s: int
    client: Client | None = None
    pending: dict[tuple[PacketType, int], tuple[str, ...]] = field(default_factory=dict)
    pending_bytes: int = 0
    asked_filters: int = 0
    """In SUBSCRIBEs that are not yet answered."""

    def check_room(self, filters: tuple[str, ...], limit: int) -> None:
        """Raise if the client would be subscribed to more than `limit` filters."""
        held = self.client.filters if self.client is not None else {}
        new = sum(1 for each in dict.fromkeys(filters) if each not in held)
        if new and len(held) + self.asked_filters + new > limit:
            raise RemoteProtocolError(
                f"client {self.client_id!r} subscribes to more than {limit} topic filters",
                section="4.13",
                reason_code=ReasonCode.QUOTA_EXCEEDED,
            )

    def remember(self, key: tuple[PacketType, int], filters: tuple[str, ...]) -> None:
        """Keep what a SUBSCRIBE or UNSUBSCRIBE asks for until it is answered."""
        self.recall(key)
        self.pending[key] = filters
        if key[0] is PacketType.SUBSCRIBE:
            self.asked_filters += len(filters)
        self.pending_bytes += _size(filters)
        if self.pending_bytes > MAX_PENDING_BYTES:
            raise RemoteProtocolError(
                f"client {self.client_id!r} has more than {MAX_PENDING_BYTES} bytes of "
                "subscriptions that its broker has not answered",
                section="4.13",
                reason_code=ReasonCode.QUOTA_EXCEEDED,
            )

    def recall(self, key: tuple[PacketType, int]) -> tuple[str, ...]:
        """The filters of the packet that is answered; none if there was no such packet."""
        filters = self.pending.pop(key, ())
        if key[0] is PacketType.SUBSCRIBE:
            self.asked_filters -= len(filters)
        self.pending_bytes -= _size(filters)
        return filters


def interest_in(subscribed: str) -> str | None:
    """The filter that messages from elsewhere are matched against; None if none can match."""
    _, topic_filter = split_shared(subscribed)
    return None if topic_filter.startswith("$") else within_levels(normal_form(topic_filter))


def _size(filters: tuple[str, ...]) -> int:
    return sum(len(topic_filter) + _OVERHEAD_BYTES for topic_filter in filters)


def write_state(clients: Iterable[Client], now: float) -> bytes:
    """A record for each client, so that damage costs one of them and not all."""
    return kept_records.write(_STATE_NAME, _STATE_VERSION, (_record(c, now) for c in clients))


def _record(client: Client, now: float) -> bytes:
    return json.dumps(
        {
            "id": client.client_id,
            "filters": list(client.filters),
            "expiry_s": _left_s(client, now),
        }
    ).encode()


def _left_s(client: Client, now: float) -> int | None:
    """How long the filters are kept if the client is not seen any more; None for ever."""
    if client.expiry_s == FOR_EVER:
        return None
    if client.expires_at is None:
        return client.expiry_s
    return max(0, math.ceil(client.expires_at - now))


def read_state(state: bytes) -> Iterator[Client]:
    """The clients that can be read; whoever keeps the file has told what is damaged."""
    kept = kept_records.read(state)
    if not kept.is_(_STATE_NAME, _STATE_VERSION):
        found = kept.header
        what = f"{found.name} version {found.version}" if found is not None else "something else"
        raise ValueError(f"{what}, not {_STATE_NAME} version {_STATE_VERSION}")
    for record in kept.records:
        entry = json.loads(record)
        expiry_s = FOR_EVER if entry["expiry_s"] is None else int(entry["expiry_s"])
        if expiry_s <= 0:
            continue
        client = Client(str(entry["id"]), expiry_s)
        for subscribed in entry["filters"]:
            check_topic_filter(subscribed, shared_subscriptions=False)
            matched = interest_in(subscribed)
            if matched is not None:
                client.filters[subscribed] = matched
        yield client
