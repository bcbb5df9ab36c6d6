"""The local clients: one object follows each of them, from its CONNECT to the end of its session.

The relay says what it has seen (`accepted`, `packet`, `broker_packet`, `failed`, `closed`), each
packet decoded once; what follows from it for subscriptions, wills and identifiers is decided here,
and the algorithm is told the packet first, then what changed by it.  The rules:

* A filter counts from the SUBACK that grants it (ILDM §4.3) to the UNSUBACK that ends it.
* Filters belong to the client id of the CONNECT, or to the Assigned Client Identifier of the
  CONNACK.  Of a CONNECT that is refused, or not answered, nobody here hears.
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
* When a will is due is `isthmus.exchange.client.wills`' to say.

Persistent clients' filters and all wills survive a restart of the node, if the host keeps anything.
The time a node is down does not count.

Invariant: a client that is not connected is remembered as long as it has filters, a will, or QoS 2
messages that it has not released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import getsizeof
from typing import Final

from isthmus.cooperation.api import (
    CooperationAlgorithm,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
    SessionStatus,
)
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.checks import TopicAliases
from isthmus.exchange.client.client import (
    FOR_EVER,
    STATE_NAME,
    STATE_VERSION,
    Client,
    ClientEnd,
    Pair,
    interest_in,
    read_state,
    write_state,
)
from isthmus.exchange.client.interest import LocalInterest
from isthmus.exchange.client.publishers import PublisherRoutes
from isthmus.exchange.client.returning import Returning
from isthmus.exchange.client.unreleased import Unreleased
from isthmus.exchange.client.wills import DueWill, Wills
from isthmus.exchange.host import Cancellable, Host
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["SAVE_DELAY_S", "Clients"]

SAVE_DELAY_S: Final = 0.2
_SAVE_S_PER_CLIENT: Final = 20e-6  # so that writing takes a small share of the time, at any size
MAX_AWAY_BYTES: Final = 64 << 20
"""What identifiers of QoS 2 messages take that are kept of clients that are away, of those who left
last."""
_BYTES_PER_AWAY_CLIENT: Final = 1024
_BYTES_PER_AWAY_ID: Final = 64


class Clients:
    """All of them; `due` is called with every will that is to go to the neighbors."""

    def __init__(
        self,
        host: Host,
        new_session: Callable[[SessionKind, str], SessionInfo],
        due: Callable[[DueWill], None],
        *,
        filters_per_client: int,
        back_s: float = 0.0,
        from_broker: bool = False,
    ) -> None:
        """`back_s`: how long those of a last life of which nothing is kept may take to be back."""
        self._host = host
        self._new_session = new_session
        self._due = due
        self._filters_per_client = filters_per_client
        self._from_broker = from_broker
        """What clients publish, and their wills, come from the broker (``source = "broker"``)."""
        self.algorithm: CooperationAlgorithm
        self.before_telling: Callable[[], None] = lambda: None
        """Is called before the algorithm is told what has come from a client."""
        self._saving: Cancellable | None = None
        self._pairs: dict[SessionInfo, Pair] = {}
        self._clients: dict[str, Client] = {}
        self.interest = LocalInterest(host, self._interest_changed)
        self.returning = Returning(host, self.interest, back_s)
        self._away: dict[Client, int] = {}
        """Those with identifiers not released, and what they take; the longest away first."""
        self._away_bytes = 0
        self.wills = Wills(host, self._will_due)

    def __len__(self) -> int:
        return len(self._pairs) // 2

    def status(self) -> dict[str, object]:
        persistent = sum(1 for client in self._clients.values() if client.expiry_s)
        return {
            "clients": len(self._clients),
            "persistent_clients": persistent,
            "filters": len(self.interest.filters),
        }

    # ---- a connection's life -------------------------------------------------------------

    def accepted(
        self,
        end: ClientEnd,
        connect: ReceivedPacket,
        connack: ReceivedPacket,
        routes: Mapping[bytes, Route],
    ) -> Pair:
        """The broker's CONNACK takes the client in; raises what the algorithm does."""
        asked, answer = connect.packet, connack.packet
        assert isinstance(asked, Connect)
        assert isinstance(answer, ConnAck)
        client_id = answer.properties.assigned_client_identifier or asked.client_id
        session = self._open(SessionKind.LOCAL_CLIENT, client_id, asked.protocol_level)
        broker = self._open(SessionKind.LOCAL_BROKER, client_id, asked.protocol_level)
        if self.algorithm.follows_publishers and not self._from_broker:
            routes = PublisherRoutes(routes, session, self.publishes)
        pair = Pair(
            session,
            broker,
            end,
            routes,
            TopicAliases(),
            bool(asked.properties.session_expiry_interval),
        )
        pair.aliases.maximum = answer.properties.topic_alias_maximum or 0
        self._pairs[session] = self._pairs[broker] = pair
        self._take_up(pair, client_id or f"\0{session.id}", asked, answer)
        self.algorithm.on_session_established(session)
        self.algorithm.on_session_established(broker)
        try:
            self.algorithm.mqtt_message_arrived(session, connect)
            self.algorithm.mqtt_message_arrived(broker, connack)
        except RemoteProtocolError as error:
            self.failed(pair, error)
            self.closed(pair, unexpected=False)
            raise
        return pair

    def _open(self, kind: SessionKind, client_id: str, level: int) -> SessionInfo:
        session = self._new_session(kind, client_id)
        session.status = SessionStatus.ESTABLISHED
        session.level = level
        return session

    def _take_up(self, pair: Pair, key: str, connect: Connect, connack: ConnAck) -> None:
        """`pair` goes on with the session of its client id, or begins it."""
        client = self._clients.get(key)
        known = client is not None
        if client is None:
            client = self._clients[key] = Client(key)
        older, client.pair, pair.client = client.pair, pair, client
        client.connections += 1
        self.wills.taken_up(client, session_ended=connect.clean_start)
        self._stop_expiry(client)
        self._away_bytes -= self._away.pop(client, 0)
        pair.unreleased = client.identifiers(connect, connack)
        left_nothing = older is not None and client.expiry_s == 0 and not connack.session_present
        if connect.clean_start or left_nothing:
            if older is not None:
                older.client = None  # answers that are still on their way there mean nothing now
                client.connections -= 1
            self._let_go(client)
        expiry_s = 0 if key.startswith("\0") else _expiry_s(connect, connack)
        if known and (client.expiry_s or expiry_s):
            self._save_soon()
        client.expiry_s = expiry_s
        if connack.session_present and not known:
            self.returning.is_back(client)
        if connect.will is not None and not self._from_broker:
            self.wills.arm(client, connect.will)

    def packet(self, pair: Pair, message: ReceivedPacket) -> bool:
        """A packet from the client, before it is relayed; False to keep it back."""
        packet = message.packet if message.type is not PacketType.PUBLISH else None
        match packet:
            case Subscribe():
                filters = tuple(each.topic_filter for each in packet.subscriptions)
                pair.check_room(filters, self._filters_per_client)
                pair.remember((PacketType.SUBSCRIBE, packet.packet_id), filters)
            case Unsubscribe():
                key = PacketType.UNSUBSCRIBE, packet.packet_id
                pair.remember(key, packet.topic_filters)
        self.before_telling()
        approved = self.algorithm.mqtt_message_arrived(pair.session, message)
        if isinstance(packet, Disconnect):
            self._said_goodbye(pair, packet)
        return approved

    def publishes(
        self, session: SessionInfo, begun: tuple[str, ...], ended: tuple[str, ...]
    ) -> None:
        self.before_telling()
        self.algorithm.on_local_publisher(session, begun, ended)

    def broker_packet(self, pair: Pair, message: ReceivedPacket) -> None:
        """A packet from the broker's side of the pair, before it is passed on to the client."""
        self.algorithm.mqtt_message_arrived(pair.broker, message)
        match message.packet:
            case SubAck(packet_id, codes):
                self._granted(pair, pair.recall((PacketType.SUBSCRIBE, packet_id)), codes)
            case UnsubAck(packet_id, codes):
                asked = pair.recall((PacketType.UNSUBSCRIBE, packet_id))
                self._ended(pair, asked, codes or (ReasonCode.SUCCESS,) * len(asked))
        self.interest.report()

    def failed(self, pair: Pair, error: RemoteProtocolError, *, by_broker: bool = False) -> None:
        """What came from one side cannot be understood; the pair is being closed."""
        self.before_telling()
        session = pair.broker if by_broker else pair.session
        pair.session.status = pair.broker.status = SessionStatus.TERMINATING
        self.algorithm.on_recv_failure(session, error)

    def closed(self, pair: Pair, *, unexpected: bool) -> None:
        """Both sessions of the pair are gone."""
        if isinstance(pair.routes, PublisherRoutes):
            pair.routes.end()
        for session in (pair.session, pair.broker):
            if self._pairs.pop(session, None) is None:
                return
            unexpected = unexpected and session.status is SessionStatus.ESTABLISHED
            session.status = SessionStatus.CLOSED
            if unexpected:
                self.algorithm.on_tcp_down(session)
            self.algorithm.on_session_closed(session)
        client = pair.client
        if client is None:
            return
        client.connections -= 1
        if client.pair is not None and client.pair is not pair:
            return  # another connection has taken over
        client.pair = None
        if client.expiry_s == 0:
            self._let_go(client)
        elif client.filters:
            if client.expiry_s != FOR_EVER and client.expires_at is None:
                self._start_expiry(client, client.expiry_s)
            self._save_soon()
        if not client.connections:
            self._keep_identifiers(client)
        self.wills.lost(client)
        self._forget_if_empty(client)

    def _keep_identifiers(self, client: Client) -> None:
        if client.unreleased and client.name:
            taken = _BYTES_PER_AWAY_CLIENT + getsizeof(client.client_id)
            taken += _BYTES_PER_AWAY_ID * len(client.unreleased)
            self._away[client] = taken
            self._away_bytes += taken
        while self._away_bytes > MAX_AWAY_BYTES:
            oldest = next(iter(self._away))
            self._away_bytes -= self._away.pop(oldest)
            oldest.unreleased = Unreleased()
            self._forget_if_empty(oldest)

    # ---- what the algorithm does with it -------------------------------------------------

    def paired(self, session: SessionInfo) -> SessionInfo | None:
        pair = self._pairs.get(session)
        if pair is None:
            return None
        return pair.broker if session is pair.session else pair.session

    def send(self, session: SessionInfo, message: bytes) -> bool:
        pair = self._pairs.get(session)
        if pair is None or session.status is not SessionStatus.ESTABLISHED:
            return False
        return pair.end.send(message, to_broker=session is pair.broker)

    def close(self, session: SessionInfo) -> None:
        """End both sessions of the pair; `closed` follows."""
        pair = self._pairs.get(session)
        if pair is not None and session.status is SessionStatus.ESTABLISHED:
            pair.session.status = pair.broker.status = SessionStatus.TERMINATING
            end = pair.end
            # Not from within a hook: what follows from it calls others.
            self._host.call_later(0.0, lambda: end.shut_down(ReasonCode.ADMINISTRATIVE_ACTION))

    # ---- subscriptions -------------------------------------------------------------------

    def _granted(self, pair: Pair, asked: tuple[str, ...], codes: tuple[ReasonCode, ...]) -> None:
        client = pair.client
        if client is None:
            return
        for subscribed, code in zip(asked, codes, strict=False):
            matched = interest_in(subscribed)
            if code < 0x80 and matched is not None and subscribed not in client.filters:
                client.filters[subscribed] = matched
                self.interest.hold(matched)
                self.returning.has_subscribed(client)
        if client.expiry_s:
            self._save_soon()

    def _ended(self, pair: Pair, asked: tuple[str, ...], codes: tuple[ReasonCode, ...]) -> None:
        client = pair.client
        if client is None:
            return
        for subscribed, code in zip(asked, codes, strict=False):
            if code < 0x80 and subscribed in client.filters:
                self.interest.release(client.filters.pop(subscribed))
        if client.expiry_s:
            self._save_soon()
        self._forget_if_empty(client)

    def _interest_changed(self, added: tuple[str, ...], removed: tuple[str, ...]) -> None:
        self.algorithm.on_local_interest(added, removed)

    def _let_go(self, client: Client) -> None:
        """Nobody wants the client's filters any more on its account."""
        if client.filters:
            self.interest.release_soon(client.filters.values())
            client.filters = {}

    def _forget_if_empty(self, client: Client) -> None:
        if not (client.connections or client.filters or client.will or client in self._away):
            self._stop_expiry(client)
            self._clients.pop(client.client_id, None)

    def _start_expiry(self, client: Client, expiry_s: int) -> None:
        client.expires_at = self._host.now() + expiry_s
        client.expiry_timer = self._host.call_later(expiry_s, lambda: self._expired(client))

    def _stop_expiry(self, client: Client) -> None:
        client.expires_at = None
        if client.expiry_timer is not None:
            client.expiry_timer.cancel()
            client.expiry_timer = None

    def _expired(self, client: Client) -> None:
        self._stop_expiry(client)
        self._let_go(client)
        self._save_soon()
        self._forget_if_empty(client)

    # ---- wills ---------------------------------------------------------------------------

    def _said_goodbye(self, pair: Pair, disconnect: Disconnect) -> None:
        client = pair.client
        if client is None or client.pair is not pair:
            return
        expiry_s = disconnect.properties.session_expiry_interval
        # From 0 it may not be raised (3.14.2.2.2): the broker ends the connection.
        valid = not expiry_s or pair.may_change_expiry
        if valid and expiry_s is not None:
            client.expiry_s = expiry_s
            self._save_soon()
        if valid and disconnect.reason_code == 0:
            self.wills.discard(client)
        else:
            self.wills.lost(client)

    def _will_due(self, will: DueWill) -> None:
        self._due(will)
        client = self._clients.get(will.client_id)
        if client is not None:
            self._forget_if_empty(client)

    # ---- over a restart ------------------------------------------------------------------

    def start(self, interest: Iterable[str] = ()) -> None:
        """Take up what was kept, and send the wills of clients that were lost with the node.

        `interest` is what subscribers want that are never seen here.
        """
        for topic_filter in interest:
            self.interest.hold(normal_form(topic_filter))
        self._restore_sessions()
        self.returning.start()
        self.interest.report()
        self.wills.start(self._client_of)

    def _restore_sessions(self) -> None:
        kept = self._host.load_state(STATE_NAME, STATE_VERSION)
        if kept is None:
            return
        try:
            clients = list(read_state(kept))
        except (ValueError, KeyError, TypeError, RemoteProtocolError) as error:
            self._host.log("error", "kept subscriptions cannot be read", cause=str(error))
            return
        for client in clients:
            if client.client_id not in self._clients:
                self._clients[client.client_id] = client
                for topic_filter in client.filters.values():
                    self.interest.hold(topic_filter)
                if client.expiry_s != FOR_EVER:
                    self._start_expiry(client, client.expiry_s)

    def _client_of(self, client_id: str) -> Client:
        if not client_id:
            return Client("\0")
        return self._clients.setdefault(client_id, Client(client_id))

    def stop(self) -> None:
        """Write what is left of every interval, as nobody counts it from now on."""
        if self._saving is not None or any(each.expires_at for each in self._clients.values()):
            self._save()
        self.returning.stop()
        self.wills.abandon()

    def _save_soon(self) -> None:
        if self._saving is None:
            delay_s = SAVE_DELAY_S + _SAVE_S_PER_CLIENT * len(self._clients)
            self._saving = self._host.call_later(delay_s, self._save)

    def _save(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        kept = [client for client in self._clients.values() if client.expiry_s and client.filters]
        self._host.save_state(STATE_NAME, write_state(kept, self._host.now()))


def _expiry_s(connect: Connect, connack: ConnAck) -> int:
    if connack.properties.session_expiry_interval is not None:
        return connack.properties.session_expiry_interval
    if connect.protocol_level == 5:
        return connect.properties.session_expiry_interval or 0
    return 0 if connect.clean_start else FOR_EVER
