"""Virtual clients, connected to a node and through it to its broker.

A client that loses its connection comes back by itself every `reconnect_s`, and subscribes again to
all it wants, as most client libraries do; one that `vanish`es stays away until told to `connect`.
Where its session goes on, it sends again what was not acknowledged at QoS 2, with DUP set, and
releases what was ([MQTT-4.4.0-1]).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isthmus.mqtt.packets import Connect, Publish, Subscribe, Subscription, Unsubscribe, Will
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.sim.client_connection import ClientConnection

if TYPE_CHECKING:
    from isthmus.sim.node import SimNode

__all__ = ["Received", "SimClient"]


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
        packet_ids: int = 65_535,
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
        self.was_refused = False
        self.packet_ids = packet_ids
        """How many packet identifiers it uses; few, so that they come round."""
        self._packet_id = 0
        self._unreceived: dict[int, Publish] = {}
        """At QoS 2, without a PUBREC."""
        self._unreleased: dict[int, None] = {}
        """With one, and without a PUBCOMP."""

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

    def connect_and_publish(self, *packets: Publish) -> None:
        """In one write: who may not connect says it all the same."""
        self.connect()
        if self.connection is not None:
            for packet in packets:
                packet_id = self._new_packet_id() if packet.qos else 0
                self.connection.publish(replace(packet, packet_id=packet_id))

    def take_over(self) -> None:
        """Connect once more while the old connection stands."""
        if self.connected:
            self.connection = None
            self.connect()

    def subscribe(self, *topic_filters: str, qos: int = 2) -> None:
        self.wanted.update(dict.fromkeys(topic_filters, qos))
        if self.connected and self.connection is not None:
            self._subscribe(self.connection, topic_filters)

    def _subscribe(self, connection: ClientConnection, topic_filters: tuple[str, ...]) -> None:
        asked = tuple(Subscription(each, qos=self.wanted[each]) for each in topic_filters)
        connection.subscribe(Subscribe(self._new_packet_id(), asked))

    def unsubscribe(self, *topic_filters: str) -> None:
        for each in topic_filters:
            self.wanted.pop(each, None)
            self.granted.pop(each, None)
        if self.connected and self.connection is not None:
            self.connection.unsubscribe(Unsubscribe(self._new_packet_id(), topic_filters))

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        expiry_s: int | None = None,
    ) -> bool:
        """False, and nothing is sent, while it is not connected or has no identifier free."""
        if not self.connected or self.connection is None:
            return False
        if qos == 2 and len(self._unreceived) + len(self._unreleased) >= self.packet_ids - 1:
            return False
        properties = NO_PROPERTIES
        if expiry_s is not None and self.level == 5:
            properties = Properties(message_expiry_interval=expiry_s)
        packet = Publish(
            topic,
            payload,
            qos=qos,
            retain=retain,
            packet_id=self._new_packet_id() if qos else 0,
            properties=properties,
        )
        if qos == 2:
            self._unreceived[packet.packet_id] = packet
        self.connection.publish(packet)
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

    def _new_packet_id(self) -> int:
        self._packet_id = self._packet_id % self.packet_ids + 1
        while self._packet_id in self._unreceived or self._packet_id in self._unreleased:
            self._packet_id = self._packet_id % self.packet_ids + 1
        return self._packet_id

    def take(self, publish: Publish) -> None:
        now_s = self.node.engine.now_s
        self.received.append(
            Received(now_s, publish.topic, publish.payload, publish.qos, publish.retain)
        )

    def received_by_broker(self, connection: ClientConnection, packet: Publish) -> None:
        """PUBACK or PUBREC came."""
        if packet.qos == 1:
            self.acknowledged.append(packet.payload)
        elif connection is not self.connection:
            return  # it reads no more from there
        elif self._unreceived.pop(packet.packet_id, None) is not None:
            self.acknowledged.append(packet.payload)
            self._unreleased[packet.packet_id] = None
            connection.release(packet.packet_id)

    def completed(self, packet_id: int) -> None:
        """PUBCOMP came."""
        self._unreleased.pop(packet_id, None)

    def accepted(self, connection: ClientConnection, *, session_present: bool) -> None:
        if connection is not self.connection:
            return
        if self.wanted:
            self._subscribe(connection, tuple(self.wanted))
        if not session_present:
            self._unreceived.clear()
            self._unreleased.clear()
        for packet in list(self._unreceived.values()):
            connection.publish(replace(packet, dup=True))
        for packet_id in list(self._unreleased):
            connection.release(packet_id)

    def refused(self, connection: ClientConnection) -> None:
        if connection is self.connection:
            self.was_refused, self.present = True, False

    def lost(self, connection: ClientConnection) -> None:
        if connection is self.connection:
            self.connection = None
            self.node.engine.call_later(self.reconnect_s, self._come_back)

    def _come_back(self) -> None:
        if self.present and self.connection is None:
            self.connect()
