"""Virtual clients, connected to a node and through it to its broker.

A client's packets take `delay_s` to the node and the broker's delay from there, and back.  The
exchange is shown real packets at the client's protocol level, in the order in which the node's
relay shows them: `client_opened` and CONNECT when the client's CONNECT is there, CONNACK, SUBACK and
UNSUBACK when they come back from the broker, DISCONNECT before the end.

A client that loses its connection comes back by itself every `reconnect_s`, and subscribes again to
all it wants, as most client libraries do; one that `vanish`es stays away until told to `connect`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isthmus.exchange.clients import Client
from isthmus.exchange.exchange import Exchange
from isthmus.exchange.message import from_publish
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.properties import NO_PROPERTIES, Properties

if TYPE_CHECKING:
    from isthmus.sim.broker import BrokerSession
    from isthmus.sim.host import SimHost
    from isthmus.sim.node import SimNode

__all__ = ["ClientConnection", "Received", "SimClient"]


@dataclass(frozen=True, slots=True)
class Received:
    """A message that reached a client."""

    at_s: float
    topic: str
    payload: bytes
    qos: int
    retain: bool


class SimClient:
    """A client that knows one node."""

    def __init__(
        self,
        node: SimNode,
        client_id: str,
        *,
        level: int = 5,
        clean_start: bool = True,
        session_expiry_s: int = 0,
        will: Will | None = None,
        delay_s: float = 0.001,
        reconnect_s: float = 0.5,
    ) -> None:
        self.node = node
        self.client_id = client_id
        self.level = level
        self.clean_start = clean_start
        self.session_expiry_s = session_expiry_s
        self.will = will
        self.delay_s = delay_s
        self.reconnect_s = reconnect_s
        self.wanted: dict[str, int] = {}
        self.received: list[Received] = []
        self.acknowledged: list[bytes] = []
        """Payloads of its own that its broker has confirmed."""
        self.granted: dict[str, float] = {}
        """Filters that its broker has granted, with the time it heard so."""
        self.connection: ClientConnection | None = None
        self.present = False
        """Whether it means to be connected."""
        self.connecting: Callable[[SimClient], None] | None = None
        """Called before each CONNECT; may change the will."""
        self._packet_id = 0

    @property
    def connected(self) -> bool:
        return self.connection is not None and self.connection.accepted

    def payloads(self, topic: str | None = None) -> list[bytes]:
        """What it has received, in order; with `topic`, on that one."""
        return [each.payload for each in self.received if topic is None or each.topic == topic]

    # ---- what a test makes it do ---------------------------------------------------------

    def connect(self) -> None:
        self.present = True
        if self.connection is None:
            if self.connecting is not None:
                self.connecting(self)
            properties = NO_PROPERTIES
            if self.level == 5 and self.session_expiry_s:
                properties = Properties(session_expiry_interval=self.session_expiry_s)
            self.connection = ClientConnection(
                self,
                Connect(
                    self.client_id,
                    clean_start=self.clean_start,
                    will=self.will,
                    properties=properties,
                    protocol_level=self.level,
                ),
            )

    def subscribe(self, *topic_filters: str, qos: int = 2) -> None:
        self.wanted.update(dict.fromkeys(topic_filters, qos))
        if self.connected and self.connection is not None:
            self._subscribe(self.connection, topic_filters)

    def _subscribe(self, connection: ClientConnection, topic_filters: tuple[str, ...]) -> None:
        asked = tuple(Subscription(each, qos=self.wanted[each]) for each in topic_filters)
        connection.subscribe(Subscribe(self.next_packet_id(), asked))

    def unsubscribe(self, *topic_filters: str) -> None:
        for each in topic_filters:
            self.wanted.pop(each, None)
            self.granted.pop(each, None)
        if self.connected and self.connection is not None:
            self.connection.unsubscribe(Unsubscribe(self.next_packet_id(), topic_filters))

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """False, and nothing is sent, while it is not connected."""
        if not self.connected or self.connection is None:
            return False
        packet_id = self.next_packet_id() if qos else 0
        self.connection.publish(
            Publish(topic, payload, qos=qos, retain=retain, packet_id=packet_id)
        )
        return True

    def disconnect(self) -> None:
        """Say goodbye, and stay away."""
        self.present = False
        if self.connection is not None:
            self.connection.disconnect()
            self.connection = None

    def vanish(self) -> None:
        """The connection breaks, and the client stays away."""
        self.present = False
        if self.connection is not None:
            self.connection.cut()
            self.connection = None

    # ---- what happens to it --------------------------------------------------------------

    def next_packet_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def accepted(self, connection: ClientConnection) -> None:
        if connection is self.connection and self.wanted:
            self._subscribe(connection, tuple(self.wanted))

    def lost(self, connection: ClientConnection) -> None:
        if connection is self.connection:
            self.connection = None
            self.node.engine.call_later(self.reconnect_s, self._come_back)

    def _come_back(self) -> None:
        if self.present and self.connection is None:
            self.connect()


class ClientConnection:
    """One connection of a client: to the node, and the node's to the broker for it."""

    def __init__(self, client: SimClient, connect: Connect) -> None:
        self.client = client
        self.client_id = client.client_id
        self.accepted = False
        self._node = client.node
        self._engine = client.node.engine
        self._level = connect.protocol_level
        self._host: SimHost | None = None
        self._pair: Client | None = None
        self._over = False
        """The node has closed both sessions of the pair."""
        self._broker_over = False
        """The broker takes nothing more from this connection."""
        self._held = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._to_node(lambda: self._connect_arrives(connect))

    # ---- hops ----------------------------------------------------------------------------

    def _to_node(self, arrives: Callable[[], None]) -> None:
        """The client's packet reaches the node, after those that are held back there."""

        def there() -> None:
            self._engine.activity()
            if self._over:
                return
            if self._held or self._waiting:
                self._waiting.append(arrives)
            else:
                arrives()

        self._engine.call_later(self.client.delay_s, there)

    def _to_broker(self, arrives: Callable[[], None]) -> None:
        """The node's packet reaches the broker, also if the client is gone in the meantime."""

        def there() -> None:
            self._engine.activity()
            if not self._broker_over:
                arrives()

        self._engine.call_later(self._node.broker.delay_s, there)

    def _from_broker(self, arrives: Callable[[], None]) -> None:
        self._after(self._node.broker.delay_s, arrives)

    def _to_client(self, arrives: Callable[[], None]) -> None:
        self._after(self.client.delay_s, arrives)

    def _after(self, delay_s: float, arrives: Callable[[], None]) -> None:
        def there() -> None:
            self._engine.activity()
            if not self._over:
                arrives()

        self._engine.call_later(delay_s, there)

    def _shown(self, packet_type: PacketType, frame: bytes) -> bool:
        assert self._host is not None
        assert self._pair is not None
        return self._host.exchange.client_packet(self._pair, packet_type, frame)

    def _answered(self, packet_type: PacketType, frame: bytes) -> None:
        assert self._host is not None
        assert self._pair is not None
        self._host.exchange.broker_packet(self._pair, packet_type, frame)

    # ---- packets -------------------------------------------------------------------------

    def _connect_arrives(self, connect: Connect) -> None:
        node = self._node
        if node.host is None or not node.broker.up:
            self._end()
            return
        self._host = node.host
        node.attached[self] = None
        self._pair = self._host.exchange.client_opened(self.client_id)
        self._shown(PacketType.CONNECT, encode(connect, self._level))

        def at_broker() -> None:
            connack = node.broker.connect(self, connect)
            frame = encode(connack, self._level)
            self._from_broker(lambda: back(frame))
            node.broker.connected(self.client_id)

        def back(frame: bytes) -> None:
            self._answered(PacketType.CONNACK, frame)
            self._to_client(at_client)

        def at_client() -> None:
            self.accepted = True
            self.client.accepted(self)

        self._to_broker(at_broker)

    def subscribe(self, packet: Subscribe) -> None:
        def at_node() -> None:
            self._shown(PacketType.SUBSCRIBE, encode(packet, self._level))
            self._to_broker(at_broker)

        def at_broker() -> None:
            codes = self._node.broker.subscribe(self.client_id, packet.subscriptions)
            frame = encode(SubAck(packet.packet_id, codes), self._level)
            self._from_broker(lambda: back(frame))
            self._node.broker.send_retained(self.client_id, packet.subscriptions)

        def back(frame: bytes) -> None:
            self._answered(PacketType.SUBACK, frame)
            self._to_client(at_client)

        def at_client() -> None:
            for each in packet.subscriptions:
                self.client.granted.setdefault(each.topic_filter, self._engine.now_s)

        self._to_node(at_node)

    def unsubscribe(self, packet: Unsubscribe) -> None:
        def at_node() -> None:
            self._shown(PacketType.UNSUBSCRIBE, encode(packet, self._level))
            self._to_broker(at_broker)

        def at_broker() -> None:
            codes = self._node.broker.unsubscribe(self.client_id, packet.topic_filters)
            ack = UnsubAck(packet.packet_id, codes if self._level == 5 else ())
            frame = encode(ack, self._level)
            self._from_broker(lambda: self._answered(PacketType.UNSUBACK, frame))

        self._to_node(at_node)

    def publish(self, packet: Publish) -> None:
        def at_node() -> None:
            assert self._host is not None
            frame = encode(packet, self._level)
            exchange = self._host.exchange
            if exchange.algorithm.inspects_publishes and not self._shown(PacketType.PUBLISH, frame):
                return
            self._node.published(packet)
            self._to_broker(at_broker)
            self._to_fabric(exchange, packet, frame)

        def at_broker() -> None:
            self._node.broker.publish(packet)
            if packet.qos:
                self._after(
                    self._node.broker.delay_s + self.client.delay_s,
                    lambda: self.client.acknowledged.append(packet.payload),
                )

        self._to_node(at_node)

    def _to_fabric(self, exchange: Exchange, packet: Publish, frame: bytes) -> None:
        """As the node's relay does: plain messages go the short way, unrouted ones nowhere."""
        topic = packet.topic.encode()
        route = exchange.client_routes[topic]
        if route.neighbors and not packet.qos and not packet.retain:
            exchange.publish_plain(topic, packet.payload, route)
        elif route.neighbors or packet.retain or (packet.qos and exchange.recovery.active):
            message = from_publish(frame, self._level, topic, self._node.name, self._engine.now_s)
            exchange.client_publish(message, self._hold)

    def disconnect(self) -> None:
        def at_node() -> None:
            if self._host is None:
                return
            self._shown(PacketType.DISCONNECT, encode(Disconnect(), self._level))
            self._to_broker(lambda: self._broker_ended(clean=True))
            self._end(unexpected=False)

        self._to_node(at_node)

    def deliver(self, publish: Publish, session: BrokerSession) -> None:
        """From the broker; the node passes it on unseen."""

        def there() -> None:
            self._engine.activity()
            if self._over or self.client.connection is not self:
                self._node.broker.undelivered(session, publish)
                return
            self.client.received.append(
                Received(
                    self._engine.now_s, publish.topic, publish.payload, publish.qos, publish.retain
                )
            )

        self._engine.call_later(self._node.broker.delay_s + self.client.delay_s, there)

    # ---- back-pressure -------------------------------------------------------------------

    def _hold(self) -> Callable[[], None]:
        self._held += 1

        def release() -> None:
            self._held -= 1
            while self._waiting and not self._held and not self._over:
                self._waiting.popleft()()

        return release

    # ---- ends ----------------------------------------------------------------------------

    def _end(self, *, unexpected: bool = True) -> None:
        """The pair of sessions is over, as the node sees it."""
        if self._over:
            return
        self._over = True
        self._node.attached.pop(self, None)
        if self._host is not None and self._host.alive and self._pair is not None:
            self._host.exchange.client_closed(self._pair, unexpected=unexpected)
        self._engine.call_later(self.client.delay_s, lambda: self.client.lost(self))

    def _broker_ended(self, *, clean: bool) -> None:
        self._broker_over = True
        self._node.broker.ended(self, clean=clean)

    def cut(self) -> None:
        """The client's side breaks: the node notices, and closes the broker's side."""

        def noticed() -> None:
            self._engine.activity()
            self._to_broker(lambda: self._broker_ended(clean=False))
            self._end()

        self._engine.call_later(self.client.delay_s, noticed)

    def node_lost(self) -> None:
        """The node is gone, and with it both connections."""
        self._over = True
        self._to_broker(lambda: self._broker_ended(clean=False))
        self._engine.call_later(self.client.delay_s, lambda: self.client.lost(self))

    def taken_over(self) -> None:
        self._broker_over = True
        self._from_broker(self._end)

    def broker_lost(self) -> None:
        self._broker_over = True
        self._from_broker(self._end)
