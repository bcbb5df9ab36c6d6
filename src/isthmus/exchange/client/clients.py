"""Local clients as the exchange sees them: their pairs of sessions, and their wills.

The packets of a client and of its broker session are shown to the algorithm.  Beside that, what
the exchange itself needs of them is kept here: the will, and which QoS 2 messages the client's
session has not released yet (`isthmus.exchange.client.unreleased`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from isthmus.cooperation.api import CooperationAlgorithm, SessionInfo, SessionKind, SessionStatus
from isthmus.exchange.client.unreleased import Unreleased, UnreleasedOfSessions
from isthmus.exchange.client.wills import DueWill, Wills
from isthmus.exchange.client.wills_keeping import WillsKeeping
from isthmus.exchange.host import Host
from isthmus.exchange.timers import Timers
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.packets import ConnAck, Connect, Disconnect
from isthmus.mqtt.primitives import PacketType

__all__ = ["Client", "Clients"]

RESTORED_AFTER_S = 5.0


@dataclass(eq=False, slots=True)
class Client:
    """A local client's pair of sessions."""

    session: SessionInfo
    broker: SessionInfo
    connect: Connect | None = None
    client_id: str = ""
    accepted: bool = False
    disconnect: Disconnect | None = None
    """A DISCONNECT that came before the CONNACK."""
    unreleased: Unreleased = field(default_factory=Unreleased)
    """Its session's, once it is accepted."""


class Clients:
    """All of them; `due` is called with every will that is to go to the neighbors."""

    def __init__(
        self,
        host: Host,
        new_session: Callable[[SessionKind, str], SessionInfo],
        due: Callable[[DueWill], None],
    ) -> None:
        self._host = host
        self.algorithm: CooperationAlgorithm
        self._new_session = new_session
        self._due = due
        self._timers = Timers(host, self._timer_fired)
        self._clients: dict[SessionInfo, Client] = {}
        self._unreleased = UnreleasedOfSessions()
        self._restored: list[DueWill] = []
        """Wills of the node's last life; they wait until the neighbors are back."""
        self.wills = Wills(self._timers, salt=int.from_bytes(host.token_bytes(4)))
        self._keeping = WillsKeeping(host, self.wills)

    def start(self) -> None:
        """Send the wills of clients that were lost with the node's last life."""
        self._restored = self._keeping.load()
        if self._restored:
            self._timers.set_timer(RESTORED_AFTER_S, "restored")

    def stop(self) -> None:
        self._send(self._restored)
        self._restored = []
        self._send(self.wills.stop(self._host.now()))
        self._timers.cancel_all()
        self._keeping.stop()

    def state_lost(self) -> None:
        """Not all of the wills could be written."""
        if not self._restored:
            self._keeping.lost()

    def __len__(self) -> int:
        return len(self._clients) // 2

    def paired(self, session: SessionInfo) -> SessionInfo | None:
        client = self._clients.get(session)
        if client is None:
            return None
        return client.broker if session is client.session else client.session

    # ---- a client's life -----------------------------------------------------------------

    def opened(self, client_id: str) -> Client:
        client = Client(
            self._new_session(SessionKind.LOCAL_CLIENT, client_id),
            self._new_session(SessionKind.LOCAL_BROKER, client_id),
        )
        for session in (client.session, client.broker):
            session.status = SessionStatus.ESTABLISHED
            self._clients[session] = client
            self.algorithm.on_session_established(session)
        return client

    def packet(self, client: Client, packet_type: PacketType, frame: bytes) -> bool:
        """A packet from the client, before it is relayed."""
        if packet_type is PacketType.CONNECT:
            connect = decode(frame, 5)
            assert isinstance(connect, Connect)
            client.connect = connect
        elif packet_type is PacketType.DISCONNECT and client.connect is not None:
            self._disconnect(client, frame)
        return self.algorithm.mqtt_message_arrived(client.session, packet_type, frame)

    def broker_packet(self, client: Client, packet_type: PacketType, frame: bytes) -> None:
        """A packet from the broker's side, after it was relayed."""
        if packet_type is PacketType.CONNACK and client.connect is not None:
            self._connack(client, client.connect, frame)
        self.algorithm.mqtt_message_arrived(client.broker, packet_type, frame)

    def closed(self, client: Client, *, unexpected: bool) -> None:
        """Both sessions of the pair are gone."""
        for session in (client.session, client.broker):
            if self._clients.pop(session, None) is None:
                continue
            session.status = SessionStatus.CLOSED
            if unexpected:
                self.algorithm.on_tcp_down(session)
            self.algorithm.on_session_closed(session)
        if client.accepted:
            client.accepted = False
            self._send(self.wills.lost(client.session.id, self._host.now()))
            self._save_soon()
            self._unreleased.closed(client.client_id, client.unreleased)

    def _connack(self, client: Client, connect: Connect, frame: bytes) -> None:
        connack = decode(frame, connect.protocol_level)
        assert isinstance(connack, ConnAck)
        if connack.reason_code != 0 or client.accepted:
            return
        client.accepted = True
        given = connack.properties
        client.client_id = client.session.name = (
            given.assigned_client_identifier or connect.client_id
        )
        client.unreleased = self._unreleased.connected(client.client_id, connect, connack)
        self._send(
            self.wills.connected(
                client.session.id,
                connect,
                client.client_id,
                session_expiry=given.session_expiry_interval,
            )
        )
        if client.disconnect is not None:
            self._said_goodbye(client, client.disconnect)
        self._save_soon()

    def _disconnect(self, client: Client, frame: bytes) -> None:
        assert client.connect is not None
        disconnect = decode(frame, client.connect.protocol_level)
        assert isinstance(disconnect, Disconnect)
        if client.accepted:
            self._said_goodbye(client, disconnect)
        else:
            client.disconnect = disconnect

    def _said_goodbye(self, client: Client, disconnect: Disconnect) -> None:
        self._send(
            self.wills.disconnected_cleanly(
                client.session.id,
                self._host.now(),
                with_will=disconnect.reason_code != 0,
                session_expiry=disconnect.properties.session_expiry_interval,
            )
        )

    # ---- wills ---------------------------------------------------------------------------

    def _send(self, due: list[DueWill]) -> None:
        for will in due:
            self._due(will)

    def _timer_fired(self, key: Hashable) -> None:
        if key == "restored":
            restored, self._restored = self._restored, []
            self._send(restored)
            self._save_soon()
        else:
            self._send(self.wills.on_timer(key))
            self._save_soon()

    def _save_soon(self) -> None:
        """Unless the wills of the last life are not sent yet: they are in the old file alone."""
        if not self._restored:
            self._keeping.changed()
