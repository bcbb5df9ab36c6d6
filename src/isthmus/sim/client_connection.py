"""One connection of a virtual client: to the node, and the node's to the broker for it.

A client's packets take `delay_s` to the node and the broker's delay from there, and back.  The
exchange is shown real packets at the client's protocol level, in the order in which the node's
relay shows them: `client_opened` and CONNECT when the client's CONNECT is there, the broker's
answers when they come back, DISCONNECT before the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.primitives import PacketType

if TYPE_CHECKING:
    from isthmus.sim.broker import BrokerSession
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
            self.client.take(publish)

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
