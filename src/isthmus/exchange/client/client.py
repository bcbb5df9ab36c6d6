"""A local client, and each of its connections.

A `Client` is the session that the local broker keeps for a client id, over as many connections as
it takes; a `Pair` is one connection of it: the session with the client, the one with the broker for
it (ILDM §2.2.1), and what belongs to that connection alone.  `isthmus.exchange.client.clients` says
when which becomes what.

What is kept of clients over a restart is a record for each, in the form of
`isthmus.exchange.kept_records`.  The clock does not survive, so what is written is the time that
was left.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from isthmus.cooperation.api import MAX_LEVELS, Route, SessionInfo
from isthmus.errors import RemoteProtocolError
from isthmus.exchange import kept_records
from isthmus.exchange.client.checks import TopicAliases
from isthmus.exchange.client.unreleased import Unreleased
from isthmus.exchange.host import Cancellable
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.filters.topics import check_topic_filter, split_shared
from isthmus.mqtt.packets import ConnAck, Connect, Will
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = [
    "FOR_EVER",
    "MAX_PENDING_BYTES",
    "STATE_NAME",
    "STATE_VERSION",
    "Client",
    "ClientEnd",
    "ClientWill",
    "Pair",
    "interest_in",
    "read_state",
    "write_state",
]

FOR_EVER: Final = 0xFFFFFFFF
"""The Session Expiry Interval that does not end (3.1.2.11.2); also 3.1.1's persistent session."""

MAX_PENDING_BYTES: Final = 16 * 1024 * 1024
"""How much one client may have in SUBSCRIBEs and UNSUBSCRIBEs that are not yet answered."""

STATE_NAME: Final = "client-sessions"
STATE_VERSION: Final = 2
_OVERHEAD_BYTES: Final = 64


class ClientEnd(Protocol):
    """What can be done with a connection of a client: the relay's."""

    def send(self, data: bytes, *, to_broker: bool) -> bool:
        """Send a packet to the client, or to the broker for it; False if that is not possible."""
        ...

    def shut_down(self, code: ReasonCode) -> None:
        """Close both sessions of the pair; an MQTT 5 client is told why."""
        ...


@dataclass(slots=True)
class ClientWill:
    """A client's will: of a connection that stands, or waiting since it ended."""

    number: int
    will: Will
    due_s: float | None = None
    """None as long as the connection stands."""
    timer: Cancellable | None = None


@dataclass(eq=False, slots=True)
class Client:
    """What is held for a client id; `filters` maps what was subscribed to what it matches."""

    client_id: str
    """One that nobody knows, not even the client, begins with U+0000."""
    expiry_s: int = 0
    filters: dict[str, str] = field(default_factory=dict)
    pair: Pair | None = None
    """Its latest connection, if that stands."""
    connections: int = 0
    """Also those that were taken over and have not ended yet."""
    expires_at: float | None = None
    expiry_timer: Cancellable | None = None
    will: ClientWill | None = None
    unreleased: Unreleased = field(default_factory=Unreleased)

    @property
    def name(self) -> str:
        """Its client id, as far as anybody knows it."""
        return "" if self.client_id.startswith("\0") else self.client_id

    def identifiers(self, connect: Connect, connack: ConnAck) -> Unreleased:
        """Which QoS 2 messages a connection that was accepted has not released."""
        if connect.clean_start:
            self.unreleased = Unreleased()
        elif not connack.session_present:
            self.unreleased.doubtful.update(self.unreleased)
        return self.unreleased

    def will_delay_s(self, will: Will) -> int:
        """Until the will delay has passed or the session ends, whichever happens first."""
        return min(will.properties.will_delay_interval or 0, self.expiry_s)


@dataclass(eq=False, slots=True)
class Pair:
    """One connection of a client that its broker has accepted."""

    session: SessionInfo
    broker: SessionInfo
    end: ClientEnd
    routes: Mapping[bytes, Route]
    """Where what it publishes goes."""
    aliases: TopicAliases
    may_change_expiry: bool
    client: Client | None = None
    """None after another connection has begun the session anew."""
    unreleased: Unreleased = field(default_factory=Unreleased)
    """Its session's QoS 2 messages."""
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
                f"client {self.session.name!r} subscribes to more than {limit} topic filters",
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
                f"client {self.session.name!r} has more than {MAX_PENDING_BYTES} bytes of "
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
    if topic_filter.startswith("$"):
        return None
    if topic_filter.count("/") >= MAX_LEVELS:
        levels = topic_filter.split("/", MAX_LEVELS - 1)
        topic_filter = "/".join(levels[: MAX_LEVELS - 1]) + "/#"
    return normal_form(topic_filter)


def _size(filters: tuple[str, ...]) -> int:
    return sum(len(topic_filter) + _OVERHEAD_BYTES for topic_filter in filters)


# ---- over a restart ----------------------------------------------------------------------


def write_state(clients: Iterable[Client], now: float) -> bytes:
    """A record for each client, so that damage costs one of them and not all."""
    return kept_records.write(STATE_NAME, STATE_VERSION, (_record(c, now) for c in clients))


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
    for record in kept_records.read(state).records:
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
