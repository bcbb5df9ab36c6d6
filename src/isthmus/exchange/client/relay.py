"""All local clients of a node, and what their sessions share.

Without I/O: connections are made by a `SessionHost`, who also keeps the time.  What a client sends
and gets is `isthmus.exchange.client.client_session`'s and `…broker_session`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from isthmus.errors import ProtocolError
from isthmus.exchange.client.broker_session import BrokerSession
from isthmus.exchange.client.checks import read_limits
from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.counters import Counters
from isthmus.exchange.client.entrance import Entrance, Newcomer
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.pending import Pending
from isthmus.exchange.session import SessionHost
from isthmus.exchange.split.split import Split
from isthmus.exchange.turns import Turns
from isthmus.mqtt.packets import ConnAck

if TYPE_CHECKING:
    from isthmus.exchange.exchange import Exchange

__all__ = ["WAITING_ROOM", "Pacing", "Relay", "Unpaced"]

WAITING_ROOM = 64
"""Connections over the limit that are still told so in a CONNACK; further ones are just closed."""


class Pacing(Protocol):
    """Who wants to know what is read, and how much of it somebody waits for."""

    armed: bool
    """Whether `arm` need not be called now."""
    waits: int

    def arm(self) -> None: ...


class Unpaced:
    """Nobody wants to know."""

    def __init__(self) -> None:
        self.armed = True
        self.waits = 0

    def arm(self) -> None:
        """Never called."""


class Relay:
    """Between the local clients and the local broker."""

    __slots__ = (
        "clients",
        "confirm",
        "counters",
        "entrance",
        "exchange",
        "host",
        "limits",
        "max_clients",
        "open",
        "own_client_ids",
        "pacer",
        "pending",
        "read_limits",
        "retained_published",
        "run",
        "turns",
    )

    def __init__(
        self,
        host: SessionHost,
        exchange: Exchange,
        limits: ClientLimits,
        *,
        counters: Counters,
        pacer: Pacing,
        turns: Turns,
        own_client_ids: str,
        retained_published: Callable[[bytes, bytes], None] = lambda _topic, _payload: None,
    ) -> None:
        """`own_client_ids`: what those of the node's own sessions begin with; no client's may.

        `retained_published` is told what clients retain, if messages are taken from the broker.
        """
        self.host = host
        self.exchange = exchange
        self.run = exchange.client_run
        self.limits = limits
        self.read_limits = read_limits(limits)
        self.counters = counters
        self.pacer = pacer
        self.turns = turns
        self.own_client_ids = own_client_ids
        self.confirm = exchange.settings.confirm
        self.retained_published = retained_published
        self.max_clients = limits.clients
        self.open = True
        """Who comes is answered, if only with a refusal."""
        self.clients: dict[ClientSession, None] = {}
        self.pending = Pending(limits, self.clients)
        self.entrance = Entrance()
        exchange.client_routes.max_levels = limits.topic_levels

    # ---- who may come --------------------------------------------------------------------

    def admit(self, client: ClientSession) -> bool:
        """Count a new connection in; over the limit it is to be refused, or just dropped."""
        if not self._has_room():
            if not self._has_waiting_room():
                self.count_refusal(client, "clients-limit", "waiting room full")
                return False
            client.refused = True
        self.clients[client] = None
        self.entrance.enter(client, self.host.now(), handshake=False)
        self.counters.clients_accepted += 1
        return True

    def knocked(self, guest: Newcomer) -> bool:
        """A handshake begins, which counts as a client; whether there is room for it."""
        if not self._has_room() and not self._has_waiting_room():
            self.counters.refusals["clients-limit"] += 1
            return False
        self.entrance.enter(guest, self.host.now(), handshake=True)
        return True

    def _has_room(self) -> bool:
        if len(self.clients) + self.entrance.handshakes < self.max_clients:
            return True
        if self.entrance.make_room(self.host.now()):
            self.counters.refusals["made-room"] += 1
            return True
        return False

    def _has_waiting_room(self) -> bool:
        open_now = len(self.clients) + self.entrance.handshakes
        return open_now < self.max_clients + WAITING_ROOM and self.open

    # ---- what becomes of them ------------------------------------------------------------

    def open_broker_session(self, client: ClientSession) -> None:
        session = BrokerSession(self, client)
        if self.exchange.brokers is None:
            self.host.connect_broker(session, session.failed)
        else:
            client.split = Split(self, session)
            client.split.open()

    def client_accepted(self, client: ClientSession, connack: ConnAck) -> None:
        """The broker's CONNACK took the client in."""
        self.counters.clients_connected += 1
        self.host.log(
            "debug",
            "client connected",
            client_id=client.client_id,
            remote=client.remote,
            protocol_level=client.protocol_level,
            session_present=connack.session_present,
        )

    def client_gone(self, client: ClientSession) -> None:
        self.entrance.leave(client)
        if self.clients.pop(client, client) is None:
            self.counters.clients_closed += 1
            self.host.log("debug", "client closed", remote=client.remote)

    def count_refusal(self, client: ClientSession, cause: str, detail: str) -> None:
        """The node ends a connection for `cause`; the log says which and why."""
        self.counters.clients_refused += 1
        self.counters.refusals[cause] += 1
        self.host.log(
            "warning",
            "client refused",
            cause=cause,
            detail=detail,
            remote=client.remote,
            client_id=client.client_id if client.connected is not None else None,
        )

    def broker_lost(self, client: ClientSession, exc: Exception | None) -> None:
        """The broker closed a session whose client had not said DISCONNECT."""
        self.counters.broker_sessions_lost += 1
        self.host.log(
            "info",
            "broker closed the session",
            client_id=client.client_id,
            remote=client.remote,
            cause=str(exc or "end of stream"),
        )

    def broker_misbehaved(self, client: ClientSession, error: ProtocolError) -> None:
        """The broker sent bytes that are not MQTT; only this pair of sessions ends."""
        self.counters.refusals["broker-protocol-error"] += 1
        self.host.log("warning", "broker sent bad bytes", remote=client.remote, detail=str(error))
