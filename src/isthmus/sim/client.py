"""Virtual clients, connected to a node and through it to its broker.

A client that loses its connection comes back by itself every `reconnect_s`, and subscribes again to
all it wants, as most client libraries do; one that `vanish`es stays away until told to `connect`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    def take(self, publish: Publish) -> None:
        now_s = self.node.engine.now_s
        self.received.append(
            Received(now_s, publish.topic, publish.payload, publish.qos, publish.retain)
        )

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
