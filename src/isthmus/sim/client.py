"""Virtual clients, connected to a node and through it to its broker.

They speak MQTT in bytes.  A client that loses its connection comes back by itself every
`reconnect_s`, and subscribes again to all it wants, as most client libraries do; one that
`vanish`es stays away until told to `connect`.  Where its session goes on, it sends again what was
not acknowledged at QoS 2, with DUP set, and releases what was ([MQTT-4.4.0-1]).  What its broker
sends again at QoS 1, with DUP set, it takes once: what it got twice came twice from the fabric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.exchange.session import Wire
from isthmus.exchange.traffic.message import from_publish
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packet_ids import free_packet_id
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode

if TYPE_CHECKING:
    from isthmus.sim.node import SimNode

__all__ = ["Received", "SimClient", "VirtualConnection"]


@dataclass(frozen=True, slots=True)
class Received:
    """A message that reached a client."""

    at_s: float
    topic: str
    payload: bytes
    qos: int
    retain: bool


class VirtualConnection:
    """A client's end of a connection with its node."""

    def __init__(self, client: SimClient, connect: Connect) -> None:
        self.accepted = False
        self.direct = client.direct
        self._client = client
        self._level = connect.protocol_level
        self._wire: Wire | None = None
        self._unsent = encode(connect, self._level)
        self._ending = False
        self._buffer = FrameBuffer()
        client.node.open_client(self, client.delay_s)

    def send(self, packet: Packet) -> None:
        frame = encode(packet, self._level)
        if self._wire is None:
            self._unsent += frame
        else:
            self._wire.write(frame)

    def close(self) -> None:
        """Without a word."""
        self._ending = True
        if self._wire is not None:
            self._wire.close()

    def connection_made(self, wire: Wire) -> None:
        self._wire = wire
        wire.write(self._unsent)
        if self._ending:
            wire.close()

    def data_received(self, data: bytes) -> None:
        data = self._buffer.push(data)
        offsets = scan(data)
        for start, stop in pairwise(offsets):
            self._client.packet(self, decode(data[start:stop], self._level))
        self._buffer.keep(data[offsets[-1] :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self)


@dataclass(eq=False, repr=False)
class SimClient:
    """A client that knows one node."""

    node: SimNode
    client_id: str
    _: KW_ONLY
    level: int = 5
    clean_start: bool = True
    session_expiry_s: int = 0
    will: Will | None = None
    delay_s: float = 0.001
    reconnect_s: float = 0.5
    packet_ids: int = 65_535
    """How many packet identifiers it uses; few, so that they come round."""
    subscribes_again: bool = True
    """Whether it does so where its session is present, as most client libraries do."""
    direct: bool = False
    """Whether it connects to the broker, past the node."""
    repeats_qos1: bool = False
    """Whether it sends again what had no PUBACK, when its session was kept; at QoS 2 it does."""

    def __post_init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.received: list[Received] = []
        self.acknowledged: list[bytes] = []
        """Payloads of its own that were acknowledged."""
        self.refused: list[bytes] = []
        """Payloads of its own that were refused: by its broker, or as nobody confirms them."""
        self.repeated: Counter[bytes] = Counter()
        """How often it has sent each payload again, on a new connection."""
        self.back_s = -math.inf
        """When it was accepted last, if that was not the first time."""
        self.granted: dict[str, float] = {}
        """Filters that its broker has granted, with the time it heard so."""
        self.asked_until_s: list[float] = []
        """Of each SUBSCRIBE that it has sent, until when it may have been answered: whoever does
        gives it once more what is retained."""
        self.on_acknowledged: Callable[[bytes], None] | None = None
        """Is told of payloads of its own as they are acknowledged."""
        self.on_received: Callable[[Received], None] | None = None
        """Is told of all that it receives."""
        self.connection: VirtualConnection | None = None
        self.present = False
        """Whether it means to be connected."""
        self.connecting: Callable[[SimClient], None] | None = None
        """Called before each CONNECT; may change the will."""
        self._packet_id = 0
        self._asked: dict[int, tuple[int, tuple[str, ...]]] = {}
        """SUBSCRIBEs that are not answered: which of all it was, and what it has asked for."""
        self._unacknowledged: dict[int, Publish] = {}
        """At QoS 1, without a PUBACK."""
        self._unreceived: dict[int, Publish] = {}
        """At QoS 2, without a PUBREC."""
        self._unreleased: dict[int, None] = {}
        """With one, and without a PUBCOMP."""
        self._incoming: dict[int, Publish] = {}
        """What came last with an identifier; at QoS 2 until its PUBREL."""
        self._ended_s = 0.0
        """When its last connection that was accepted ended."""

    @property
    def connected(self) -> bool:
        return self.connection is not None and self.connection.accepted

    @property
    def unanswered(self) -> list[bytes]:
        """Payloads of its own that were neither acknowledged nor refused, while it is connected."""
        waiting = (*self._unacknowledged.values(), *self._unreceived.values())
        return [packet.payload for packet in waiting] if self.connected else []

    @property
    def under_way(self) -> int:
        """Messages of its own that count against the broker's Receive Maximum."""
        return len(self._unacknowledged) + len(self._unreceived) + len(self._unreleased)

    def payloads(self, topic: str | None = None) -> list[bytes]:
        """What it has received, in order; with `topic`, on that one."""
        return [each.payload for each in self.received if topic is None or each.topic == topic]

    # ---- what a test makes it do ---------------------------------------------------------

    def connect(self) -> None:
        self.present = True
        if self.connection is None:
            if self.level == 5 and self.node.engine.now_s - self._ended_s > self.session_expiry_s:
                self._forget()
            if self.connecting is not None:
                self.connecting(self)
            properties = NO_PROPERTIES
            if self.level == 5 and self.session_expiry_s:
                properties = Properties(session_expiry_interval=self.session_expiry_s)
            self.connection = VirtualConnection(
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
                self.connection.send(replace(packet, packet_id=packet_id))

    def take_over(self) -> None:
        """Connect once more while the old connection stands."""
        if self.connected:
            self.connection = None
            self.connect()

    def subscribe(self, *topic_filters: str, qos: int = 2) -> None:
        self.wanted.update(dict.fromkeys(topic_filters, qos))
        if self.connected and self.connection is not None:
            self._subscribe(self.connection, topic_filters)

    def _subscribe(self, connection: VirtualConnection, topic_filters: tuple[str, ...]) -> None:
        asked = tuple(Subscription(each, qos=self.wanted[each]) for each in topic_filters)
        packet_id = self._new_packet_id()
        self._asked[packet_id] = len(self.asked_until_s), topic_filters
        self.asked_until_s.append(math.inf)
        connection.send(Subscribe(packet_id, asked))

    def unsubscribe(self, *topic_filters: str) -> None:
        for each in topic_filters:
            self.wanted.pop(each, None)
            self.granted.pop(each, None)
        if self.connected and self.connection is not None:
            self.connection.send(Unsubscribe(self._new_packet_id(), topic_filters))

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
        elif qos == 1:
            self._unacknowledged[packet.packet_id] = packet
        self.node.fabric.trace.publish(self.node.name, "client publish", packet)
        self.connection.send(packet)
        return True

    def flood(self, packet: Publish, count: int) -> None:
        """The same message many times over, to the fabric alone: cheap, for what grows."""

        def arrives() -> None:
            host = self.node.host
            topic = packet.topic.encode()
            if host is None or not host.exchange.client_routes[topic].neighbors:
                return
            frame = encode(packet, self.level)
            for _ in range(count):
                message = from_publish(frame, self.level, topic, self.node.node_id, host.now())
                host.exchange.client_publish(message, lambda: lambda: None)

        if self.connected:
            self.node.engine.call_later(self.delay_s, arrives)

    def disconnect(self) -> None:
        """Say goodbye, and stay away."""
        self.present = False
        if self.connection is not None:
            self.connection.send(Disconnect())
            self._hang_up()

    def vanish(self) -> None:
        """The connection breaks, and the client stays away."""
        self.present = False
        if self.connection is not None:
            self._hang_up()

    def _hang_up(self) -> None:
        assert self.connection is not None
        self.connection.close()
        self._ended(self.connection)

    # ---- what happens to it --------------------------------------------------------------

    def _new_packet_id(self) -> int:
        used = self._unreceived.keys() | self._unacknowledged.keys() | self._asked.keys()
        self._packet_id = free_packet_id(self._packet_id, self._unreleased, used, self.packet_ids)
        return self._packet_id

    def packet(self, connection: VirtualConnection, packet: Packet) -> None:
        if connection is not self.connection:
            return  # it reads no more from there
        match packet:
            case Publish():
                self._take(connection, packet)
            case PubRel(packet_id=packet_id):
                self._incoming.pop(packet_id, None)
                connection.send(PubComp(packet_id))
            case PubAck(packet_id=packet_id, reason_code=code) if packet_id in self._unacknowledged:
                self._answered(self._unacknowledged.pop(packet_id).payload, code)
            case PubRec(packet_id=packet_id, reason_code=code) if packet_id in self._unreceived:
                self._answered(self._unreceived.pop(packet_id).payload, code)
                if code < ReasonCode.UNSPECIFIED_ERROR:
                    self._unreleased[packet_id] = None
                    connection.send(PubRel(packet_id))
            case PubComp(packet_id=packet_id):
                self._unreleased.pop(packet_id, None)
            case SubAck(packet_id=packet_id, reason_codes=codes):
                number, asked = self._asked.pop(packet_id, (None, ()))
                if number is not None:
                    self.asked_until_s[number] = self.node.engine.now_s
                for each, code in zip(asked, codes, strict=False):
                    if each in self.wanted and code < ReasonCode.UNSPECIFIED_ERROR:
                        self.granted.setdefault(each, self.node.engine.now_s)
                refused = [
                    each
                    for each, code in zip(asked, codes, strict=False)
                    if code >= ReasonCode.UNSPECIFIED_ERROR
                ]
                if refused:
                    ask_again = partial(self._ask_again, connection, refused)
                    self.node.engine.call_later(self.reconnect_s, ask_again)
            case ConnAck(reason_code=code, session_present=present):
                if code == 0:
                    self._accepted(connection, session_present=present)
                elif code in (ReasonCode.NOT_AUTHORIZED, ConnectReturnCode.NOT_AUTHORIZED):
                    self.present = False

    def _ask_again(self, connection: VirtualConnection, refused: list[str]) -> None:
        """What a broker refuses that is away, it may grant when it is back."""
        if connection is self.connection and (left := [f for f in refused if f in self.wanted]):
            self._subscribe(connection, tuple(left))

    def _take(self, connection: VirtualConnection, publish: Publish) -> None:
        packet_id = publish.packet_id
        if publish.qos == 2:
            connection.send(PubRec(packet_id))
            if packet_id in self._incoming and self._incoming[packet_id].qos == 2:
                return
        elif publish.qos == 1:
            connection.send(PubAck(packet_id))
            last = self._incoming.get(packet_id)
            if publish.dup and last is not None and last.payload == publish.payload:
                return
        if publish.qos:
            self._incoming[packet_id] = publish
        now_s = self.node.engine.now_s
        received = Received(now_s, publish.topic, publish.payload, publish.qos, publish.retain)
        if self.on_received is not None:
            self.on_received(received)
        if self.node.fabric.remembers:
            self.received.append(received)

    def _answered(self, payload: bytes, code: int) -> None:
        refused = code >= ReasonCode.UNSPECIFIED_ERROR
        if self.node.fabric.remembers:
            (self.refused if refused else self.acknowledged).append(payload)
        if self.on_acknowledged is not None and not refused:
            self.on_acknowledged(payload)

    def _accepted(self, connection: VirtualConnection, *, session_present: bool) -> None:
        connection.accepted = True
        if self._ended_s:
            self.back_s = self.node.engine.now_s
        for number, _ in self._asked.values():
            self.asked_until_s[number] = self.node.engine.now_s
        self._asked.clear()
        if not session_present or not self.repeats_qos1:
            self._unacknowledged.clear()
        if not session_present:
            self._forget()
        missing = tuple(each for each in self.wanted if each not in self.granted)
        asked = tuple(self.wanted) if self.subscribes_again or not session_present else missing
        if asked:
            self._subscribe(connection, asked)
        for packet in (*self._unacknowledged.values(), *self._unreceived.values()):
            connection.send(replace(packet, dup=True))
            if self.node.fabric.remembers:
                self.repeated[packet.payload] += 1
        for packet_id in list(self._unreleased):
            connection.send(PubRel(packet_id))

    def lost(self, connection: VirtualConnection) -> None:
        if connection is self.connection:
            self._ended(connection)
            self.node.engine.call_later(self.reconnect_s, self._come_back)

    def _ended(self, connection: VirtualConnection) -> None:
        self.connection = None
        if connection.accepted:
            self._ended_s = self.node.engine.now_s

    def _forget(self) -> None:
        """Its session is over, whatever the broker says of one that it has begun meanwhile."""
        self._unacknowledged.clear()
        self._unreceived.clear()
        self._unreleased.clear()
        self._incoming.clear()

    def _come_back(self) -> None:
        if self.present and self.connection is None:
            self.connect()
