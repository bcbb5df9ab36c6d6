"""The relay between local clients and the local broker (ILDM §4.2).

A client's connection is a :class:`ClientSession`.  Its first packet must be a CONNECT; then a
`BrokerSession` is opened for it, the CONNECT's own bytes are sent there, and from then on
packets go both ways as they came, handshakes of QoS 1 and 2, pings and AUTH included.

From the client every frame is looked at: a packet that breaks the specification ends that
connection, before the broker has seen it, with the reason code that MQTT 5 provides
([MQTT-4.13.1-1]).  A PUBLISH costs a look into the forwarding table; its payload is not touched.
The other half of the pair is in `isthmus.node.broker_session`.

Invariants:

* bytes are written in the order they were read, whole packets at a time; while the client is held
  for a congested link its pings pass what waits;
* after a bad packet nothing more is read from that client, and what came before it is delivered;
* when one session of the pair ends, so does the other, after what it still has to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.errors import MalformedPacket, ProtocolError, RemoteProtocolError
from isthmus.exchange.clients import Client
from isthmus.exchange.message import from_publish
from isthmus.exchange.routes import decode_topic
from isthmus.mqtt.decoding import connect_level, decode, decode_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, body_offset, frame_length, scan
from isthmus.mqtt.packets import ConnAck, Connect, Disconnect
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.publish_properties import check_publish_properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from isthmus.node.broker_session import BrokerSession
from isthmus.node.session import Session, SessionStatus, peer_name

if TYPE_CHECKING:
    from isthmus.node.runtime import Node

__all__ = ["ClientSession"]

_CONNECT = 0x10
_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70
_PINGREQ = 0xC0
_DISCONNECT = 0xE0
_SHORT_ACKS = frozenset((_PUBACK, _PUBREC, _PUBREL, _PUBCOMP))
_ANSWERED = frozenset((8, 10))  # SUBSCRIBE, UNSUBSCRIBE
_FROM_SERVER_ONLY = frozenset((0, 2, 9, 11, 13))  # reserved, CONNACK, SUBACK, UNSUBACK, PINGRESP


class ClientSession(Session):
    """A local client's connection."""

    __slots__ = (
        "aliases",
        "awaited",
        "buffer",
        "connect_frame",
        "connected",
        "disconnected",
        "handle",
        "held",
        "max_packet_bytes",
        "node",
        "parked",
        "parked_bytes",
        "parked_full",
        "peer",
        "protocol_level",
        "refused",
        "timer",
        "transport_name",
    )

    def __init__(self, node: Node, transport_name: str) -> None:
        super().__init__(node.limits.drain_s)
        self.node = node
        self.transport_name = transport_name
        self.max_packet_bytes = node.limits.packet_bytes
        self.buffer = FrameBuffer()
        self.connected: Connect | None = None
        """What its CONNECT said, from its arrival on."""
        self.protocol_level = 4
        self.connect_frame = b""
        self.disconnected = False
        """The client said DISCONNECT: nothing more may come from it."""
        self.refused = False
        self.aliases: dict[int, bytes] | None = None
        self.handle: Client | None = None
        """What the exchange knows it by, once the broker's session stands."""
        self.awaited = 0
        """SUBSCRIBEs and UNSUBSCRIBEs that the broker has not answered."""
        self.held = False
        """A link is congested: what comes is parked, pings apart."""
        self.parked: list[bytes] = []
        self.parked_bytes = 0
        self.parked_full = False
        self.peer = ""
        self.timer: asyncio.TimerHandle | None = None

    # ---- the connection ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.established(transport, self.node.limits.buffer_bytes)
        self.peer = peer_name(self.wire.get_extra_info("peername"))
        if not self.node.admit(self):
            self.wire.abort()
            return
        self.timer = self.node.loop.call_later(
            self.node.limits.connect_timeout_s, self._connect_timed_out
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if self.held:
            self._unpark()  # its DISCONNECT may be among it
        self.gone()
        self._cancel_timer()
        self._forget_pending()
        if self.paired is not None:
            self.paired.close()
            self.paired = None
        if self.handle is not None:
            self.node.exchange.client_closed(self.handle, unexpected=not self.disconnected)
            self.handle = None
        self.node.client_gone(self, exc)

    def _connect_timed_out(self) -> None:
        self.timer = None
        waited_s = self.node.limits.connect_timeout_s
        self._end(
            "connect-timeout",
            RemoteProtocolError(f"no CONNECT within {waited_s:g} s", section="MQTT-3.1.0-1"),
        )

    def _cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _forget_pending(self) -> None:
        self.node.pending_bytes -= self.buffer.pending_bytes
        self.buffer = FrameBuffer()

    # ---- bytes from the client -----------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.status is not SessionStatus.ESTABLISHED or self.disconnected:
            return
        if not self.node.pacer.armed:
            self.node.pacer.arm()
        buffer = self.buffer
        if before := buffer.pending_bytes:
            data = buffer.push(data)
            self.node.pending_bytes += buffer.pending_bytes - before
            if not data:
                self._check_pending()
                return
        try:
            offsets = scan(data, self.max_packet_bytes)
        except RemoteProtocolError as error:
            if error.offset:  # the frames before the bad one are good
                self._frames_received(data[: error.offset])
            self._protocol_error(error)
            return
        if self.held:
            self._park(data, offsets)
        elif self.connected is None:
            self._first_frames(data, offsets[-1])
        elif self.paired is None:
            # The broker's session is being opened: keep what comes (reading is on hold).
            self._keep(data)
        else:
            self._relay(data, offsets)

    def _frames_received(self, data: bytes) -> None:
        offsets = scan(data)
        if self.held:
            self._park(data, offsets)
        elif self.connected is None:
            self._first_frames(data, offsets[-1])
        elif self.paired is not None:
            self._relay(data, offsets)

    def _first_frames(self, data: bytes, whole: int) -> None:
        """Expect CONNECT; what follows it waits for the broker's session."""
        if data[0] & 0xF0 != _CONNECT:
            self._end(
                "no-connect",
                RemoteProtocolError(
                    f"the first packet is not CONNECT but of type {data[0] >> 4}",
                    section="MQTT-3.1.0-1",
                ),
            )
            return
        if not whole:
            self._keep(data)
            return
        stop = frame_length(data, 0)
        frame = data[:stop]
        try:
            connect = decode_connect(frame)
        except RemoteProtocolError as error:
            self._refuse_connect(frame, error)
            return
        self._cancel_timer()
        self.connected = replace(connect, password=None)  # the broker's to check, not ours to keep
        self.protocol_level = connect.protocol_level
        if self.refused:
            self.refuse(ReasonCode.QUOTA_EXCEEDED, "clients-limit")
            return
        if connect.client_id.startswith(self.node.own_client_ids):
            # It would take over a session by which the node publishes.
            self.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "reserved-client-id")
            return
        self.connect_frame = frame
        self.hold_reading()
        if stop < len(data):
            self._keep(data[stop:])
        self.node.open_broker_session(self)

    def broker_connected(self, broker: BrokerSession) -> None:
        """The broker's session stands: send it the CONNECT and whatever waited."""
        self.paired = broker
        exchange = self.node.exchange
        self.handle = exchange.client_opened(self.connected.client_id if self.connected else "")
        exchange.client_packet(self.handle, PacketType.CONNECT, self.connect_frame)
        broker.wire.write(self.connect_frame)
        self.connect_frame = b""
        self.release_reading()
        if self.buffer.pending_bytes:
            self.node.pending_bytes -= self.buffer.pending_bytes
            self.data_received(self.buffer.take())

    def _relay(self, data: bytes, offsets: Sequence[int]) -> None:
        """Check the whole frames in `data`, send them to the broker, keep the rest."""
        exchange = self.node.exchange
        routes = exchange.client_routes
        inspects = exchange.algorithm.inspects_publishes
        v5 = self.protocol_level == 5
        publishes = 0
        begin = whole = 0
        try:
            for start, stop in pairwise(offsets):
                head = data[start]
                if head & 0xF0 == 0x30:
                    body = start + 2 if data[start + 1] < 0x80 else body_offset(data, start)
                    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
                    topic = data[body + 2 : topic_end]
                    if head & 0x06:
                        self._check_publish_id(data, head, topic_end, stop)
                        topic_end += 2
                    if topic_end + v5 > stop:
                        raise MalformedPacket("a PUBLISH that ends within its header")
                    if v5 and (data[topic_end] or not topic):
                        topic = self._check_properties(data, topic, topic_end, stop)
                    elif head & 0x0E == 0x08:
                        raise MalformedPacket("DUP set with QoS 0", section="MQTT-3.3.1-2")
                    route = routes[topic]
                    if inspects and not self._approved(head, data[start:stop]):
                        self._forward(data[begin:start], 0)
                        begin = stop
                    elif route.neighbors and head == 0x30 and not (v5 and data[topic_end]):
                        exchange.publish_plain(topic, data[topic_end + v5 : stop], route)
                    elif (
                        route.neighbors or head & 0x01 or (head & 0x06 and exchange.recovery.active)
                    ):
                        self._to_fabric(data[start:stop], topic)
                    publishes += 1
                else:
                    self._check_other(head, data, start, stop)
                whole = stop
                if self.disconnected or self.held:
                    break
        except IndexError:
            self._forward(data[begin:whole], publishes)
            self._protocol_error(MalformedPacket("a PUBLISH that ends within its header"))
            return
        except RemoteProtocolError as error:
            self._forward(data[begin:whole], publishes)
            self._protocol_error(error)
            return
        self._forward(data[begin:whole] if begin or whole < len(data) else data, publishes)
        if whole < len(data) and not self.disconnected:
            if self.held:
                rest = data[whole:]
                self._park(rest, scan(rest))
            else:
                self._keep(data[whole:])

    def _forward(self, data: bytes, publishes: int) -> None:
        if data and self.paired is not None and self.paired.status is SessionStatus.ESTABLISHED:
            self.paired.wire.write(data)
        counters = self.node.counters
        counters.client_bytes += len(data)
        counters.client_publishes += publishes

    def _keep(self, rest: bytes) -> None:
        self.buffer.keep(rest)
        self.node.pending_bytes += self.buffer.pending_bytes
        self._check_pending()

    def _check_pending(self) -> None:
        limit = self.node.limits.pending_bytes
        if self.node.pending_bytes > limit:
            self._end(
                "pending-limit",
                RemoteProtocolError(
                    f"incomplete packets of all clients exceed {limit} bytes",
                    reason_code=ReasonCode.QUOTA_EXCEEDED,
                ),
            )

    # ---- checks --------------------------------------------------------------------------

    @staticmethod
    def _check_publish_id(data: bytes, head: int, pos: int, stop: int) -> None:
        if head & 0x06 == 0x06:
            raise MalformedPacket("QoS 3", section="MQTT-3.3.1-4")
        if pos + 2 <= stop and not (data[pos] or data[pos + 1]):
            raise RemoteProtocolError("packet identifier 0", section="MQTT-2.2.1-3")

    def _check_properties(self, data: bytes, topic: bytes, pos: int, stop: int) -> bytes:
        """Check a v5 PUBLISH's properties; return its real topic."""
        length = data[pos]
        start = pos + 1
        if length >= 0x80:
            length = frame_length(data, pos - 1) - 1  # the same variable byte integer
            start = body_offset(data, pos - 1)
            length -= start - pos
        if start + length > stop:
            raise MalformedPacket("properties longer than the packet", section="MQTT 5 §2.2.2.1")
        alias = check_publish_properties(data, start, start + length)
        if not alias:
            if topic:
                return topic
            raise RemoteProtocolError(
                "an empty topic name without a topic alias", section="MQTT-3.3.2-8"
            )
        return self._resolve_alias(alias, topic)

    def _resolve_alias(self, alias: int, topic: bytes) -> bytes:
        # Before the CONNACK nothing is granted, and the client cannot know better.
        granted = self.paired.topic_alias_maximum if isinstance(self.paired, BrokerSession) else 0
        if alias > granted:
            raise RemoteProtocolError(
                f"topic alias {alias}; the broker allows {granted}",
                section="MQTT-3.2.2-17",
                reason_code=ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if self.aliases is None:
            self.aliases = {}
        if topic:
            decode_topic(topic)  # valid, or it would be remembered for what follows
            self.aliases[alias] = topic
            return topic
        known = self.aliases.get(alias)
        if known is None:
            raise RemoteProtocolError(
                f"topic alias {alias} was never set",
                section="MQTT 5 §3.3.2.3.4",
            )
        return known

    def _check_other(self, head: int, data: bytes, start: int, stop: int) -> None:
        """Check a packet that is not PUBLISH; most are short and common."""
        if head in _SHORT_ACKS and stop - start == 4:
            if not (data[start + 2] or data[start + 3]):
                raise RemoteProtocolError("packet identifier 0", section="MQTT-2.2.1-3")
            if head == _PUBREL and self.handle is not None:
                self.handle.unreleased.discard(data[start + 2] << 8 | data[start + 3])
            return
        if head == _PINGREQ and stop - start == 2:
            return
        kind = head >> 4
        if kind in _FROM_SERVER_ONLY:
            raise RemoteProtocolError(
                f"packet type {kind} is not a client's to send", section="MQTT 5 §2.1.2"
            )
        if kind == _CONNECT >> 4:
            raise RemoteProtocolError("a second CONNECT", section="MQTT-3.1.0-2")
        frame = data[start:stop]
        decode(frame, self.protocol_level)
        if kind == _DISCONNECT >> 4:
            self.disconnected = True
        elif kind in _ANSWERED:
            self.awaited += 1
        if self.handle is not None:
            self.node.exchange.client_packet(self.handle, PacketType(kind), frame)

    # ---- what the algorithm says of it ---------------------------------------------------

    def _approved(self, head: int, frame: bytes) -> bool:
        """Ask the algorithm about a PUBLISH; one that it keeps back is answered from here."""
        if self.handle is None or self.node.exchange.client_packet(
            self.handle, PacketType.PUBLISH, frame
        ):
            return True
        self.node.counters.refusals["publish-kept-back"] += 1
        if head & 0x06:
            pos = body_offset(frame, 0)
            pos += 2 + int.from_bytes(frame[pos : pos + 2])
            answer = _PUBACK if head & 0x06 == 0x02 else _PUBREC
            # MQTT 3.1.1 cannot say no: the client takes it for delivered (§3.3.5).
            reason = b"\x83" if self.protocol_level == 5 else b""
            self._write(bytes((answer, 2 + len(reason))) + frame[pos : pos + 2] + reason)
        return False

    # ---- what goes to other nodes --------------------------------------------------------

    def _to_fabric(self, frame: bytes, topic: bytes) -> None:
        """Hand a PUBLISH to the exchange as well; the broker gets it in any case."""
        exchange = self.node.exchange
        message = from_publish(
            frame, self.protocol_level, topic, exchange.node_id, self.node.loop.time()
        )
        if message.qos == 2 and self.handle is not None:
            pos = body_offset(frame, 0)
            pos += 2 + int.from_bytes(frame[pos : pos + 2])
            packet_id = int.from_bytes(frame[pos : pos + 2])
            if packet_id in self.handle.unreleased:
                return  # sent again, and passed on before [MQTT-4.3.3-10]
            self.handle.unreleased.add(packet_id)
        exchange.client_publish(message, self._hold_for_link)

    def _hold_for_link(self) -> Callable[[], None]:
        """A link is congested: what comes from this client waits until it is not."""
        if self.held or self.wire.is_closing():
            return _nothing
        self.held = True
        return self._link_has_room

    def _park(self, data: bytes, offsets: Sequence[int]) -> None:
        """Keep what comes while held; pings pass, so that nobody takes the client for dead."""
        for start, stop in pairwise(offsets):
            if data[start:stop] == b"\xc0\x00":
                self._forward(b"\xc0\x00", 0)
            else:
                self.parked.append(data[start:stop])
                self.parked_bytes += stop - start
        self._keep(data[offsets[-1] :])
        limit = self.node.limits.buffer_bytes
        if self.parked_bytes > limit and not self.parked_full:
            self.parked_full = True
            self.hold_reading()  # a client that does not wait for acknowledgements

    def _link_has_room(self) -> None:
        if self.held:
            self._unpark()

    def _unpark(self) -> None:
        was_full, self.held, self.parked_full = self.parked_full, False, False
        parked, self.parked, self.parked_bytes = b"".join(self.parked), [], 0
        if parked and self.paired is not None:
            self._relay(parked, scan(parked))  # which may hold it again
        if was_full:
            self.release_reading()

    # ---- ends ----------------------------------------------------------------------------

    def refuse(self, code: ReasonCode, cause: str, detail: str = "") -> None:
        """Answer the CONNECT with a CONNACK that says why not, and close."""
        level = self.protocol_level
        self._write(encode(ConnAck(False, code if level == 5 else _RETURN_CODES[code]), level))
        self.node.count_refusal(self, cause, detail)
        self.close()

    def _refuse_connect(self, frame: bytes, error: RemoteProtocolError) -> None:
        """A CONNECT that is wrong: CONNACK where the specification has one for it."""
        level = connect_level(frame)
        if error.reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            self.protocol_level = 5 if level >= 5 else 4
            self.refuse(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "protocol-level", str(error))
        elif level == 5:
            self.protocol_level = 5
            self.refuse(ReasonCode(error.reason_code), "malformed-connect", str(error))
        else:
            self._end("malformed-connect", error)

    def _protocol_error(self, error: RemoteProtocolError) -> None:
        if self.status is SessionStatus.ESTABLISHED:
            self._end(f"reason-0x{error.reason_code:02x}", error)

    def _end(self, cause: str, error: ProtocolError) -> None:
        """Close for a fault of the client's; v5 clients are told the reason."""
        if self.connected is not None and self.protocol_level == 5:
            # Before the broker's CONNACK no other packet may be sent to the client.
            if isinstance(self.paired, BrokerSession) and self.paired.answered:
                self._write(encode(Disconnect(ReasonCode(error.reason_code)), 5))
            elif self.paired is None:
                self._write(encode(ConnAck(False, ReasonCode(error.reason_code)), 5))
        self.node.count_refusal(self, cause, str(error))
        self.close()

    def shut_down(self) -> None:
        """The node stops: tell a v5 client, and close."""
        if self.status is not SessionStatus.ESTABLISHED:
            return
        if (
            self.protocol_level == 5
            and isinstance(self.paired, BrokerSession)
            and self.paired.answered
        ):
            self._write(encode(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN), 5))
        self.close()

    def _write(self, data: bytes) -> None:
        # A packet of ours must not land inside one of the broker's that is passing in pieces.
        if not (isinstance(self.paired, BrokerSession) and self.paired.passing):
            self.wire.write(data)


def _nothing() -> None:
    """Somebody else will let the client go on."""


_RETURN_CODES = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturnCode.IDENTIFIER_REJECTED,
    ReasonCode.SERVER_UNAVAILABLE: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.QUOTA_EXCEEDED: ConnectReturnCode.SERVER_UNAVAILABLE,
}
"""MQTT 3.1.1 §3.2.2.3 for what the node itself refuses; the broker's own come from the broker."""
