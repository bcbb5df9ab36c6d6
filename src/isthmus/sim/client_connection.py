"""One connection of a virtual client: to the node, and the node's to the broker for it.

A client's packets take `delay_s` to the node and the broker's delay from there, and back.  The
exchange is shown real packets at the client's protocol level, in the order in which the node's
relay shows them: `client_opened`, CONNECT and CONNACK when the broker has accepted the client, its
answers when they come back, DISCONNECT before the end.  What comes before the CONNACK waits for it,
and of a client that is refused the exchange never hears.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.exchange.client.clients import Client
from isthmus.exchange.exchange import Exchange
from isthmus.exchange.traffic.message import from_publish
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.properties import NO_PROPERTIES

if TYPE_CHECKING:
    from isthmus.sim.broker import Delivery
    from isthmus.sim.client import SimClient
    from isthmus.sim.host import SimHost

__all__ = ["ClientConnection"]


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
        self._admitted = False
        """The broker's CONNACK has come, and says yes."""
        self._held = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._engine.call_later(client.delay_s, lambda: self._connect_arrives(connect))

    # ---- hops ----------------------------------------------------------------------------

    def _to_node(self, arrives: Callable[[], None]) -> None:
        """The client's packet reaches the node, after those that are held back there."""

        def there() -> None:
            self._engine.activity()
            if self._over:
                return
            if not self._admitted or self._held or self._waiting:
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

        self._node.broker.arrives(there)

    def _from_broker(self, arrives: Callable[[], None]) -> None:
        self._node.broker.answers(self._unless_over(arrives))

    def _to_client(self, arrives: Callable[[], None]) -> None:
        self._engine.call_later(self.client.delay_s, self._unless_over(arrives))

    def _unless_over(self, arrives: Callable[[], None]) -> Callable[[], None]:
        def there() -> None:
            self._engine.activity()
            if not self._over:
                arrives()

        return there

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
        self._engine.activity()
        if self._over:
            return
        if node.host is None or not node.broker.up:
            self._end()
            return
        self._host = node.host
        node.attached[self] = None

        def at_broker() -> None:
            connack = node.broker.connect(self, connect)
            self._from_broker(lambda: back(connack))
            if connack.reason_code == 0:
                node.broker.connected(self.client_id)
            else:
                self._broker_over = True

        def back(connack: ConnAck) -> None:
            if connack.reason_code:
                self._engine.call_later(self.client.delay_s, lambda: self.client.refused(self))
                self._end()
                return
            self._admit(connect, connack)
            self._to_client(lambda: at_client(connack))

        def at_client(connack: ConnAck) -> None:
            self.accepted = True
            self.client.accepted(self, session_present=connack.session_present)

        self._to_broker(at_broker)

    def _admit(self, connect: Connect, connack: ConnAck) -> None:
        """The exchange hears of the client, and of what it has sent meanwhile."""
        assert self._host is not None
        self._pair = self._host.exchange.client_opened(self.client_id)
        self._shown(PacketType.CONNECT, encode(connect, self._level))
        self._answered(PacketType.CONNACK, encode(connack, self._level))
        self._admitted = True
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not self._held and not self._over:
            self._waiting.popleft()()

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
            if self._node.broker.client_published(self, packet) and packet.qos:
                answered = self.client.received_by_broker
                self._from_broker(lambda: self._to_client(lambda: answered(self, packet)))

        self._to_node(at_node)

    def release(self, packet_id: int) -> None:
        """PUBREL, of a message at QoS 2."""

        def at_node() -> None:
            assert self._pair is not None
            self._pair.unreleased.release(packet_id)
            self._to_broker(at_broker)

        def at_broker() -> None:
            self._node.broker.released(self, packet_id)
            completed = self.client.completed
            self._from_broker(lambda: self._to_client(lambda: completed(packet_id)))

        self._to_node(at_node)

    def _to_fabric(self, exchange: Exchange, packet: Publish, frame: bytes) -> None:
        """As the node's relay does: plain messages go the short way, unrouted ones nowhere."""
        topic = packet.topic.encode()
        route = exchange.client_routes[topic]
        if (
            route.neighbors
            and not packet.qos
            and not packet.retain
            and packet.properties == NO_PROPERTIES
        ):
            exchange.publish_plain(topic, packet.payload, route)
        elif route.neighbors or packet.retain or (packet.qos and exchange.recovery.active):
            assert self._pair is not None
            if packet.qos == 2 and self._pair.unreleased.is_repetition(
                packet.packet_id, dup=packet.dup
            ):
                return  # sent again, and passed on before [MQTT-4.3.3-10]
            node_id, now_s = self._node.node_id, self._engine.now_s
            message = from_publish(frame, self._level, topic, node_id, now_s)
            exchange.client_publish(message, self._hold)

    def flood(self, packet: Publish, count: int) -> None:
        """The same message many times over, to the fabric alone: cheap, for what grows."""

        def at_node() -> None:
            assert self._host is not None
            exchange = self._host.exchange
            frame, topic = encode(packet, self._level), packet.topic.encode()
            if not exchange.client_routes[topic].neighbors:
                return
            node_id, now_s = self._node.node_id, self._engine.now_s
            for _ in range(count):
                message = from_publish(frame, self._level, topic, node_id, now_s)
                exchange.client_publish(message, lambda: lambda: None)

        self._to_node(at_node)

    def disconnect(self) -> None:
        def at_node() -> None:
            if self._host is None:
                return
            self._shown(PacketType.DISCONNECT, encode(Disconnect(), self._level))
            self._to_broker(lambda: self._broker_ended(clean=True))
            self._end(unexpected=False)

        self._to_node(at_node)

    def deliver(self, delivery: Delivery) -> None:
        """From the broker; the node passes it on unseen."""

        def there() -> None:
            self._engine.activity()
            if delivery.void or self._over or self.client.connection is not self:
                return  # the broker will find out, if it has not
            delivery.arrived()
            self.client.take(delivery.publish)

        to_client = self.client.delay_s
        self._node.broker.answers(lambda: self._later(to_client, there))

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._engine.activity()
        self._engine.call_later(delay_s, callback)

    # ---- back-pressure -------------------------------------------------------------------

    def _hold(self) -> Callable[[], None]:
        self._held += 1

        def release() -> None:
            self._held -= 1
            self._go_on()

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

    def closed_by_broker(self) -> None:
        """The broker takes the client id over, closes on a topic, or is gone."""
        self._broker_over = True
        self._from_broker(self._end)

    taken_over = broker_lost = closed_by_broker
