"""What may reach broker, fabric and client when these operations happen: the model.

It reads the same bytes as the relay and says exactly

* which bytes the broker gets: the CONNECT, after it nothing but AUTH until the broker has accepted
  the client, then every whole valid packet in order and nothing from the first bad one on;
* which messages go to the fabric, in which order: those of accepted clients, none on a topic that
  begins with ``$``, each at QoS 2 once until it is released, of those that the broker has said it
  does not take only what it acknowledges all the same; and wills;
* which bytes of the broker's the client gets; behind them only the node's own last word may come.

Whether a packet is valid is asked of `isthmus.mqtt.decoding.decode`, which the relay does not use
for a PUBLISH; framing is done anew here.  What a packet means is remembered by its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from fuzz.node_rig import LIMITS, Operation, Sent
from isthmus.errors import ProtocolError
from isthmus.mqtt.decoding import decode, decode_connect
from isthmus.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.properties import Properties, write_properties
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["Model", "ModelClient", "header", "normal_properties"]

_TO_SERVER: Final = frozenset((3, 4, 5, 6, 7, 8, 10, 12, 14, 15))
_AUTH, _PINGREQ = 0xF0, b"\xc0\x00"
_MAX_CACHED = 200_000
_BAD: Final = b""

Meaning = tuple[str, object]
"""``("bad", …)``, ``("publish", Publish)``, ``("release", id)``, ``("goodbye", Disconnect)`` or
``("other", …)``."""


def header(data: bytes, pos: int) -> int:
    """The length of the frame at `pos`; 0 if that cannot be told yet, -1 if it never can."""
    value = shift = 0
    for at in range(pos + 1, min(pos + 5, len(data))):
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return at + 1 - pos + value
        shift += 7
    return -1 if len(data) - pos >= 5 else 0


def normal_properties(properties: Properties) -> bytes:
    """As a message carries them: without what ends at this connection or is counted down."""
    rest = replace(properties, message_expiry_interval=None, topic_alias=None)
    written = write_properties(rest, PacketType.PUBLISH)
    return written[header(b"\0" + written, 0) - len(written) :] if len(written) > 1 else b""


@dataclass(slots=True)
class Memory:
    """The identifiers of one session's messages at QoS 2 that are not released."""

    ids: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    """The broker says that it has no session: only a PUBLISH with DUP is a repetition."""

    def repeats(self, packet_id: int, *, dup: bool) -> bool:
        again = packet_id in self.ids and (dup or packet_id not in self.doubtful)
        if not again:
            self.doubtful.discard(packet_id)
            self.ids.add(packet_id)
        return again

    def release(self, packet_id: int) -> None:
        self.ids.discard(packet_id)
        self.doubtful.discard(packet_id)


class ModelClient:
    """One connection of a client, and the broker's for it."""

    def __init__(self) -> None:
        self.level = 4
        self.connect: Connect | None = None
        self.accepted = False
        self.stands = True
        """The client has not hung up and was not hung up on."""
        self.hung_up = False
        """It has, though perhaps the node has not noticed."""
        self.over = False
        """Nothing more is taken from it."""
        self.orphan = False
        """It is gone, and the broker will say what becomes of what it sent."""
        self.paired = False
        self.finished = False
        self.held = False
        self.will: Will | None = None
        self.buffer = b""
        self.connect_frame = b""
        self.parked: list[list[bytes]] = []
        """What waits, in the pieces in which it came."""
        self.deaf = False
        """What it sent last is no frame: whatever follows is not looked at."""
        self.max_bytes = LIMITS.packet_bytes
        self.alias_maximum = 0
        self.aliases: dict[int, str] = {}
        self.withheld = 0
        """Flags of a PUBLISH that the broker has said it does not take."""
        self.doubtful: dict[int, tuple[bytes, Publish, str]] = {}
        """Such PUBLISHes that it has not answered."""
        self.memory = Memory()
        self.broker_buffer = b""
        self.to_broker = bytearray()
        self.to_client = bytearray()


class Model:
    """All of them."""

    def __init__(self) -> None:
        self.clients: dict[int, ModelClient] = {}
        self.sent: list[Sent] = []
        self.packets = 0
        self.publishes = 0
        self._memories: dict[str, Memory] = {}
        self._armed: dict[str, ModelClient] = {}
        self._congested = False
        self._waiters: list[ModelClient] = []
        self._ending: list[ModelClient] = []
        self._meanings: dict[tuple[int, bytes], Meaning] = {}

    def client_ids(self) -> set[str]:
        """Those under which something may be remembered."""
        return {each.connect.client_id for each in self.clients.values() if each.connect} - {""}

    def reset(self) -> None:
        self.clients.clear()
        self.sent.clear()
        self._memories.clear()
        self._armed.clear()
        self._waiters.clear()
        self._congested = False
        if len(self._meanings) > _MAX_CACHED:
            self._meanings.clear()

    def do(self, operation: Operation) -> None:
        self._do(operation)
        ending, self._ending = self._ending, []
        for client in ending:
            self._finish(client)

    def _do(self, operation: Operation) -> None:
        kind, number, data = operation
        if kind == "open":
            self.clients[number] = ModelClient()
            return
        if kind == "congest":
            self._congested = True
            return
        if kind == "relieve":
            self._congested = False
            waiters, self._waiters = self._waiters, []
            for each in waiters:
                if each.held:
                    self._go_on(each)
            return
        client = self.clients.get(number)
        if client is None or kind in ("slow", "quick"):
            return
        match kind:
            case "data":
                self._fed(client, data)
            case "lost":
                self._lost(client)
            case "broker-up" if client.connect_frame and not client.paired:
                if client.stands or client.orphan:
                    client.paired = True
                    client.to_broker += client.connect_frame
                client.connect_frame = b""
            case "broker-fails" if client.connect_frame and not client.paired:
                client.connect_frame = b""
                self._end(client)
            case "broker-data" if client.paired:
                self._broker_said(client, data)
            case "broker-close" if client.paired:
                client.paired = False
                client.parked.clear()
                self._end(client)

    # ---- from the client -----------------------------------------------------------------

    def _fed(self, client: ModelClient, data: bytes) -> None:
        if not client.stands or client.over or client.deaf:
            return
        data = client.buffer + data
        if client.buffer and 0 < len(data) < header(client.buffer, 0):
            client.buffer = data  # not looked at again before it is whole
            return
        client.buffer = b""
        client.parked.append([])
        pos = 0
        while pos < len(data) and not client.over:
            first = client.connect is None
            if first and data[pos] >> 4 != PacketType.CONNECT:
                self.packets += 1
                self._end(client)
                return
            length = header(data, pos)
            limit = LIMITS.connect_bytes if first else client.max_bytes
            if length < 0 or length > limit:
                self.packets += 1
                self._no_frame(client)
                return
            if length == 0 or pos + length > len(data):
                client.buffer = data[pos:]
                return
            self.packets += 1
            self._frame(client, bytes(data[pos : pos + length]))
            pos += length

    def _no_frame(self, client: ModelClient) -> None:
        if client.connect is None or (client.accepted and not client.held):
            self._end(client)
        else:
            client.parked.append([_BAD])
            client.deaf = True

    def _frame(self, client: ModelClient, frame: bytes) -> None:
        if client.connect is None:
            try:
                client.connect = decode_connect(frame)
            except ProtocolError:
                self._end(client)
                return
            client.level = client.connect.protocol_level
            client.connect_frame = frame
            client.parked.append([])
        elif not client.accepted:
            if frame[0] == _AUTH and client.level == 5 and client.paired:
                if self._meaning(client.level, frame)[0] == "bad":
                    self._end(client)
                else:
                    client.to_broker += frame
                    client.parked.append([])
            else:
                client.parked[-1].append(frame)
        elif client.held:
            if frame == _PINGREQ:
                client.to_broker += frame
            else:
                client.parked[-1].append(frame)
        else:
            self._handle(client, frame)

    def _handle(self, client: ModelClient, frame: bytes) -> None:
        if frame == _BAD or len(frame) > client.max_bytes:
            self._end(client)
            return
        what, value = self._meaning(client.level, frame)
        if what == "bad":
            self._end(client)
        elif isinstance(value, Publish):
            self._published(client, frame, value)
        else:
            client.to_broker += frame
            if isinstance(value, PubRel):
                client.memory.release(value.packet_id)
            elif isinstance(value, Disconnect):
                client.over = True
                self._said_goodbye(client, value)

    def _meaning(self, level: int, frame: bytes) -> Meaning:
        key = (level, frame)
        meaning = self._meanings.get(key)
        if meaning is None:
            meaning = self._meanings[key] = _meaning_of(level, frame)
        return meaning

    def _published(self, client: ModelClient, frame: bytes, publish: Publish) -> None:
        topic = publish.topic
        alias = publish.properties.topic_alias
        if alias:
            if alias > client.alias_maximum or (not topic and alias not in client.aliases):
                self._end(client)
                return
            if topic:
                client.aliases[alias] = topic
            else:
                topic = client.aliases[alias]
        client.to_broker += frame
        self.publishes += 1
        if topic.startswith("$") and not publish.retain:
            return
        if not frame[0] & client.withheld:
            self._to_fabric(client, publish, topic)
        elif publish.qos:
            waiting = sum(len(each) for each, _, _ in client.doubtful.values())
            if waiting + len(frame) <= LIMITS.packet_bytes:
                client.doubtful[publish.packet_id] = frame, publish, topic

    def _answered(self, client: ModelClient, answer: PubAck | PubRec) -> None:
        """What the broker has said it does not take goes on if it does."""
        if isinstance(answer, PubAck) or answer.reason_code >= 0x80:
            client.memory.release(answer.packet_id)
        doubtful = client.doubtful.pop(answer.packet_id, None)
        if doubtful is not None and answer.reason_code < 0x80:
            self._to_fabric(client, *doubtful[1:])

    def _to_fabric(self, client: ModelClient, publish: Publish, topic: str) -> None:
        if publish.qos == 2 and client.memory.repeats(publish.packet_id, dup=publish.dup):
            return
        if topic.startswith("$"):
            return
        self._send(publish.qos, publish.retain, topic, publish.payload, publish.properties)
        if publish.qos and self._congested and client.stands and not client.held:
            client.held = True
            self._waiters.append(client)

    def _send(
        self, qos: int, retain: bool, topic: str, payload: bytes, properties: Properties
    ) -> None:
        if not topic.startswith("$") and properties.message_expiry_interval != 0:
            sent = (qos, retain, topic.encode(), payload, normal_properties(properties))
            self.sent.append(sent)

    def _go_on(self, client: ModelClient) -> None:
        """Nothing holds what is parked any more."""
        client.held = False
        while client.parked and not client.held and not client.over:
            piece = client.parked.pop(0)
            while piece and not client.held and not client.over:
                self._handle(client, piece.pop(0))
            if client.held:  # again: pings pass the rest, up to what will end the connection
                good = list(takewhile(lambda frame: len(frame) <= client.max_bytes, piece))
                client.to_broker += _PINGREQ * good.count(_PINGREQ)
                rest = piece[len(good) :]
                client.parked.insert(0, [each for each in good if each != _PINGREQ] + rest)
        if not client.held:
            client.deaf = False  # it is read from again
            if client.hung_up and client.stands:
                self._lost(client)

    # ---- ends ----------------------------------------------------------------------------

    def _lost(self, client: ModelClient) -> None:
        client.hung_up = True
        if not client.stands or client.deaf:
            return  # nobody reads from it
        client.stands = False
        if client.connect is not None and not client.accepted and not client.over:
            client.orphan = True
            return
        if client.held:
            self._go_on(client)
        self._finish(client)

    def _end(self, client: ModelClient) -> None:
        """The node closes the connection; that it is closed is noticed a little later."""
        client.over, client.stands, client.orphan = True, False, False
        self._ending.append(client)

    def time_out(self, client: ModelClient) -> None:
        """It has waited long enough, for whatever it was."""
        client.stands = False
        self._finish(client)

    def _finish(self, client: ModelClient) -> None:
        client.over = True
        client.orphan = client.paired = client.held = False
        if client.finished:
            return
        client.finished = True
        self._will_due(client)
        name = client.connect.client_id if client.connect is not None else ""
        shared = any(
            other is not client and other.memory is client.memory and not other.finished
            for other in self.clients.values()
        )
        if not client.memory.ids and not shared and self._memories.get(name) is client.memory:
            del self._memories[name]

    def _will_due(self, client: ModelClient) -> None:
        will, client.will = client.will, None
        if will is not None:
            properties = replace(will.properties, will_delay_interval=None)
            self._send(will.qos, will.retain, will.topic, will.payload, properties)

    def _said_goodbye(self, client: ModelClient, disconnect: Disconnect) -> None:
        assert client.connect is not None
        asked = client.connect.properties.session_expiry_interval or 0
        forbidden = disconnect.properties.session_expiry_interval and not asked
        if disconnect.reason_code or forbidden:
            self._will_due(client)
        client.will = None

    # ---- from the broker -----------------------------------------------------------------

    def _broker_said(self, client: ModelClient, data: bytes) -> None:
        data = client.broker_buffer + data
        client.broker_buffer = b""
        pos = 0
        frames: list[bytes] = []
        while pos < len(data):
            length = header(data, pos)
            if length < 0:
                client.stands = False  # nothing of it is passed on
                if client.held:
                    self._go_on(client)
                self._finish(client)
                return
            if length == 0 or pos + length > len(data):
                client.broker_buffer = data[pos:]
                break
            frames.append(bytes(data[pos : pos + length]))
            pos += length
        for frame in frames:
            if client.finished or not (client.stands or client.orphan):
                return
            self._broker_frame(client, frame)

    def _broker_frame(self, client: ModelClient, frame: bytes) -> None:
        self.packets += 1
        if client.stands:
            client.to_client += frame
        try:
            packet = decode(frame, client.level)
        except ProtocolError:
            # The client's to make something of; of a CONNACK the code is what counts.
            if frame[0] >> 4 != PacketType.CONNACK or client.accepted:
                return
            accepts = frame[3:4] == b"\0"
            packet = ConnAck(False, ReasonCode.SUCCESS if accepts else ReasonCode.UNSPECIFIED_ERROR)
            if client.connect is not None:  # the exchange makes nothing of it: no will
                client.connect = replace(client.connect, will=None, client_id="", clean_start=True)
        if client.accepted:
            if isinstance(packet, PubAck | PubRec):
                self._answered(client, packet)
        elif isinstance(packet, ConnAck) and not client.over:
            if packet.reason_code:
                client.over = True
                client.parked.clear()
                if client.orphan:
                    self._finish(client)
            else:
                self._accept(client, packet)
        elif isinstance(packet, Auth) and client.orphan:
            self._finish(client)

    def _accept(self, client: ModelClient, connack: ConnAck) -> None:
        assert client.connect is not None
        client.accepted = True
        granted = connack.properties
        client.alias_maximum = granted.topic_alias_maximum or 0
        if granted.maximum_packet_size is not None:
            client.max_bytes = min(client.max_bytes, granted.maximum_packet_size)
        if granted.retain_available is False:
            client.withheld |= 0x01
        if granted.maximum_qos is not None:
            client.withheld |= 0x04 if granted.maximum_qos else 0x06
        name = client.connect.client_id
        client.memory = self._memory(name, client.connect, connack)
        if name:
            for other in self.clients.values():
                if other.will is not None and other is not client and _named(other, name):
                    self._will_due(other)
        client.will = client.connect.will
        self._go_on(client)
        if client.orphan:
            self._finish(client)

    def _memory(self, name: str, connect: Connect, connack: ConnAck) -> Memory:
        memory = self._memories.get(name)
        if memory is None or connect.clean_start or not name:
            memory = Memory()
            if name:
                self._memories[name] = memory
        elif not connack.session_present:
            memory.doubtful |= memory.ids
        return memory


def _named(client: ModelClient, name: str) -> bool:
    return client.connect is not None and client.connect.client_id == name


def _meaning_of(level: int, frame: bytes) -> Meaning:
    if frame[0] >> 4 not in _TO_SERVER:
        return "bad", None
    try:
        packet = decode(frame, level)
    except ProtocolError as error:
        return "bad", error
    if isinstance(packet, Publish) and packet.properties.subscription_identifiers:
        return "bad", "a server's property"  # [MQTT-3.3.4-6]
    return "good", packet
