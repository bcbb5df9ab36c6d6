"""What the local clients are subscribed to, learned from their packets alone.

An algorithm that shares subscriptions gives its hooks' calls on to a `LocalInterest` (the methods
have the hooks' names) and is told, through `changed`, which topic filters came to be wanted on this
node and which no longer are.  The rules:

* A filter counts from the SUBACK that grants it (ILDM §4.3) to the UNSUBACK that ends it.
* Filters belong to the client id of the CONNECT, or to the Assigned Client Identifier of the
  CONNACK.  A CONNECT that is refused, or not answered, changes nothing.
* What remains when a client leaves (ILDM §4.5.4): MQTT 3.1.1's clean session and a Session Expiry
  Interval of 0 nothing; otherwise everything, until the interval is over [MQTT-3.1.2-23] or, in
  3.1.1, for ever.  CONNACK and DISCONNECT may change the interval (3.2.2.3.2, 3.14.2.2.2).
* A CONNECT with clean start that is accepted ends what there was [MQTT-3.1.2-4].  Without clean
  start everything is kept, also if the CONNACK says that no session is present: ActiveMQ and amqtt
  say so although they resume it.  Interest without a subscriber costs messages, the lack of it
  loses them.  Only what belonged to a connection that was to leave nothing is then dropped.
* When a client id is taken over, the end of the older connection says nothing about the newer one.
* ``$share/NAME/FILTER`` is interest in ``FILTER``, also from 3.1.1 clients, since several brokers
  know it there.  Other filters that start with ``$`` are about the broker itself and do not count.

What a client leaves behind, many filters maybe, and many clients at once, need not be released in
the same turn: with `later`, sets that have ended are kept apart from all clients, `releasing` does
the work in pieces, and until then what was wanted merely counts a little longer.  Who comes back
meanwhile begins with a set of its own.

Persistent clients' filters survive a restart of the node through `Port.save_state`.  The clock does
not, so what is stored is the time that was left; the time a node is down does not count.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final

from isthmus.cooperation.api import Port, SessionInfo, SessionKind
from isthmus.cooperation.client_sessions import (
    FOR_EVER,
    Client,
    Connection,
    interest_in,
    read_state,
    write_state,
)
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["SAVE_DELAY_S", "Changed", "LocalInterest"]

Changed = Callable[[tuple[str, ...], tuple[str, ...]], None]
"""`changed(added, removed)`: filters in normal form, none of them in both, never both empty."""

SAVE_DELAY_S: Final = 0.2
_SAVE_S_PER_CLIENT: Final = 20e-6  # so that writing takes a small share of the time, at any size

_PIECE: Final = 64  # filters that are released in one step

_TIMERS: Final = "local-interest"
_SAVE: Final = (_TIMERS, "save", "")

_READ_FROM_CLIENT: Final = frozenset(
    (PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.DISCONNECT)
)
_READ_FROM_BROKER: Final = frozenset((PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK))

_log = logging.getLogger(__name__)


class LocalInterest:
    """The filters that local clients want, and who of them."""

    def __init__(
        self, port: Port, changed: Changed, later: Callable[[], None] | None = None
    ) -> None:
        """`later` is called when there is something to do for `releasing`; without it, at once."""
        self._port = port
        self._changed = changed
        self._later = later
        self._ended_sets: deque[Iterator[str]] = deque()
        self._connections: dict[SessionInfo, Connection] = {}
        self._clients: dict[str, Client] = {}
        self._counts: dict[str, int] = {}
        self._added: dict[str, None] = {}  # since the last report
        self._removed: dict[str, None] = {}
        self._save_pending = False
        self._undecodable = 0

    @property
    def filters(self) -> Iterable[str]:
        """Every filter that is wanted, once, in normal form."""
        return self._counts.keys()

    def __contains__(self, topic_filter: str) -> bool:
        return normal_form(topic_filter) in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def status(self) -> dict[str, object]:
        persistent = sum(1 for client in self._clients.values() if client.expiry_s)
        return {
            "clients": len(self._clients),
            "persistent_clients": persistent,
            "filters": len(self._counts),
            "undecodable_packets": self._undecodable,
        }

    # ---- hooks, under their names in the API ----

    def mqtt_message_arrived(
        self, session: SessionInfo, packet_type: PacketType, message: bytes
    ) -> None:
        """Read what a local client or the local broker sent, if it matters here."""
        if session.kind is SessionKind.LOCAL_CLIENT and packet_type in _READ_FROM_CLIENT:
            self._from_client(session, packet_type, message)
        elif session.kind is SessionKind.LOCAL_BROKER and packet_type in _READ_FROM_BROKER:
            client_session = self._port.get_paired_session(session)
            connection = self._connections.get(client_session) if client_session else None
            if connection is not None:
                self._from_broker(connection, packet_type, message)
        self._report()

    def on_session_closed(self, session: SessionInfo) -> None:
        connection = self._connections.pop(session, None)
        client = None if connection is None else connection.client
        if client is None or client.connection is not connection:
            return  # never accepted, or another connection has taken over
        client.connection = None
        if client.expiry_s == 0 or not client.filters:
            self._forget(client)
        elif client.expiry_s != FOR_EVER:
            self._start_expiry(client, client.expiry_s)
        self._client_changed(client)
        self._report()

    def on_timer(self, key: Hashable) -> bool:
        """Whether the timer was one of these."""
        match key:
            case (kind, "save", _) if kind == _TIMERS:
                self._save()
            case (kind, "expiry", str(client_id)) if kind == _TIMERS:
                client = self._clients.get(client_id)
                if client is not None and client.expires_at is not None:
                    self._forget(client)
                    self._client_changed(client)
            case _:
                return False
        self._report()
        return True

    def on_node_start(self) -> None:
        """Take up what was kept over a restart."""
        state = self._port.load_state()
        if state is None:
            return
        try:
            clients = list(read_state(state))
        except (ValueError, KeyError, TypeError, RemoteProtocolError) as error:
            _log.warning("kept subscriptions cannot be read and are left out: %s", error)
            return
        for client in clients:
            if client.client_id in self._clients:
                continue
            self._clients[client.client_id] = client
            for topic_filter in client.filters.values():
                self._hold(topic_filter)
            if client.expiry_s != FOR_EVER:
                self._start_expiry(client, client.expiry_s)
        self._report()

    def on_node_stop(self) -> None:
        """Write what is left of every interval, as nobody counts it from now on."""
        if self._save_pending or any(client.expires_at for client in self._clients.values()):
            self._save()

    # ---- packets ----

    def _from_client(self, session: SessionInfo, packet_type: PacketType, message: bytes) -> None:
        connection = self._connections.get(session)
        if connection is None:
            if packet_type is PacketType.CONNECT:
                self._connect(session, decode(message, 5))
            return
        packet = decode(message, connection.level)
        match packet:
            case Subscribe():
                filters = tuple(each.topic_filter for each in packet.subscriptions)
                connection.check_room(filters, self._port.filters_per_client)
                connection.remember((PacketType.SUBSCRIBE, packet.packet_id), filters)
            case Unsubscribe():
                connection.remember(
                    (PacketType.UNSUBSCRIBE, packet.packet_id), packet.topic_filters
                )
            case Disconnect():
                expiry_s = packet.properties.session_expiry_interval
                client = connection.client
                if expiry_s is None or client is None or client.connection is not connection:
                    return
                # From 0 it may not be raised: the broker refuses that (3.14.2.2.2).
                if client.expiry_s != 0:
                    client.expiry_s = expiry_s
                    self._save_soon()

    def _connect(self, session: SessionInfo, packet: Packet) -> None:
        assert isinstance(packet, Connect)
        if packet.protocol_level == 5:
            expiry_s = packet.properties.session_expiry_interval or 0
        else:
            expiry_s = 0 if packet.clean_start else FOR_EVER
        self._connections[session] = Connection(
            packet.client_id or f"\0{session.id}",  # no client id contains U+0000
            packet.protocol_level,
            packet.clean_start,
            expiry_s,
        )

    def _from_broker(self, connection: Connection, packet_type: PacketType, message: bytes) -> None:
        try:
            packet = decode(message, connection.level)
        except RemoteProtocolError as error:
            # The client gets it as it is and is the one to judge; to the algorithm it is lost.
            self._undecodable += 1
            _log.warning("%s of the local broker is ignored: %s", packet_type.name, error)
            return
        match packet:
            case ConnAck() if packet.reason_code == 0 and connection.client is None:
                self._accepted(connection, packet)
            case SubAck():
                asked = connection.recall((PacketType.SUBSCRIBE, packet.packet_id))
                if connection.client is not None:
                    self._granted(connection.client, asked, packet.reason_codes)
            case UnsubAck():
                asked = connection.recall((PacketType.UNSUBSCRIBE, packet.packet_id))
                codes = packet.reason_codes or (ReasonCode.SUCCESS,) * len(asked)
                if connection.client is not None:
                    self._ended(connection.client, asked, codes)

    def _accepted(self, connection: Connection, ack: ConnAck) -> None:
        if ack.properties.assigned_client_identifier:
            connection.client_id = ack.properties.assigned_client_identifier
        if ack.properties.session_expiry_interval is not None:
            connection.expiry_s = ack.properties.session_expiry_interval
        if connection.client_id.startswith("\0"):
            connection.expiry_s = 0  # under a name that nobody knows, nobody can come back
        client = self._clients.get(connection.client_id)
        if client is None:
            client = Client(connection.client_id, connection.expiry_s)
            self._clients[client.client_id] = client
        else:
            self._take_over(client, connection, session_present=ack.session_present)
        client.connection = connection
        connection.client = client
        client.expiry_s = connection.expiry_s

    def _take_over(self, client: Client, connection: Connection, *, session_present: bool) -> None:
        """`connection` goes on with a client id that is already known, connected or not."""
        self._stop_expiry(client)
        older = client.connection
        left_nothing = older is not None and client.expiry_s == 0 and not session_present
        if connection.clean_start or left_nothing:
            if older is not None:
                older.client = None  # answers that are still on their way there mean nothing now
            self._let_go(client)
        if client.expiry_s or connection.expiry_s:
            self._save_soon()

    def _granted(
        self, client: Client, asked: tuple[str, ...], codes: tuple[ReasonCode, ...]
    ) -> None:
        for subscribed, code in zip(asked, codes, strict=False):
            matched = interest_in(subscribed)
            if code < 0x80 and matched is not None and subscribed not in client.filters:
                client.filters[subscribed] = matched
                self._hold(matched)
        self._client_changed(client)

    def _ended(self, client: Client, asked: tuple[str, ...], codes: tuple[ReasonCode, ...]) -> None:
        for subscribed, code in zip(asked, codes, strict=False):
            if code < 0x80 and subscribed in client.filters:
                self._release(client.filters.pop(subscribed))
        self._client_changed(client)

    # ---- what is held ----

    def _hold(self, topic_filter: str) -> None:
        count = self._counts.get(topic_filter, 0)
        self._counts[topic_filter] = count + 1
        if count == 0:
            if topic_filter in self._removed:
                del self._removed[topic_filter]
            else:
                self._added[topic_filter] = None

    def _release(self, topic_filter: str) -> None:
        count = self._counts[topic_filter]
        if count > 1:
            self._counts[topic_filter] = count - 1
            return
        del self._counts[topic_filter]
        if topic_filter in self._added:
            del self._added[topic_filter]
        else:
            self._removed[topic_filter] = None

    def _report(self) -> None:
        if self._added or self._removed:
            added, removed = tuple(self._added), tuple(self._removed)
            self._added.clear()
            self._removed.clear()
            self._changed(added, removed)

    def _forget(self, client: Client) -> None:
        self._stop_expiry(client)
        del self._clients[client.client_id]
        self._let_go(client)

    def _let_go(self, client: Client) -> None:
        """Nobody wants the client's filters any more on its account."""
        if not client.filters:
            return
        self._ended_sets.append(iter(client.filters.values()))
        client.filters = {}
        if self._later is not None:
            self._later()
        else:
            for _ in self.releasing():
                pass

    def releasing(self) -> Iterator[int]:
        """Release what has ended, a piece with every step; says how much it was."""
        while self._ended_sets:
            piece = tuple(islice(self._ended_sets[0], _PIECE))
            for topic_filter in piece:
                self._release(topic_filter)
            if len(piece) < _PIECE:
                self._ended_sets.popleft()
            if self._later is not None:
                self._report()
            yield 2 + len(piece)

    def _start_expiry(self, client: Client, expiry_s: int) -> None:
        client.expires_at = self._port.now() + expiry_s
        self._port.set_timer(expiry_s, (_TIMERS, "expiry", client.client_id))

    def _stop_expiry(self, client: Client) -> None:
        if client.expires_at is not None:
            client.expires_at = None
            self._port.cancel_timer((_TIMERS, "expiry", client.client_id))

    # ---- over a restart ----

    def _client_changed(self, client: Client) -> None:
        if client.expiry_s:
            self._save_soon()

    def _save_soon(self) -> None:
        if not self._save_pending:
            self._save_pending = True
            self._port.set_timer(SAVE_DELAY_S + _SAVE_S_PER_CLIENT * len(self._clients), _SAVE)

    def _save(self) -> None:
        self._save_pending = False
        self._port.cancel_timer(_SAVE)
        now = self._port.now()
        kept = [client for client in self._clients.values() if client.expiry_s and client.filters]
        self._port.save_state(write_state(kept, now))
