"""The relay between local clients and the local broker (ILDM §4.2).

A client's connection is a :class:`ClientSession`.  Its first packet must be a CONNECT; then a
`BrokerSession` is opened for it and the CONNECT's own bytes are sent there.  What the client sends
before its broker's accepting CONNACK is parked, AUTH apart ([MQTT-3.1.4-6]); only from the CONNACK
on does the exchange know the client.  Then packets go both ways as they came, handshakes of QoS 1
and 2, pings and AUTH included.

From the client every frame is looked at: a packet that breaks the specification, or one of
``[limits]``, ends that connection, before the broker has seen it, with the reason code that MQTT 5
provides ([MQTT-4.13.1-1]).  A PUBLISH costs a look into the forwarding table; its payload is not
touched.  The other half of the pair is in `isthmus.exchange.client.broker_session`.

When what comes is handled is `isthmus.exchange.client.input`'s to say.

Invariants:

* bytes are written in the order they were read, whole packets at a time; while the client is held
  for a congested link its pings pass what waits;
* after a bad packet nothing more is read from that client, and what came before it is delivered;
* when one session of the pair ends, so does the other, after what it still has to write.  A client
  that hangs up before its CONNACK has come is *orphaned*: its broker still gets what it sent, or
  refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from isthmus.cooperation.api import ReceivedPacket, Route
from isthmus.errors import (
    MalformedPacket,
    ProtocolError,
    RemoteProtocolError,
    UnsupportedProtocolVersion,
)
from isthmus.exchange.client.broker_session import BrokerSession
from isthmus.exchange.client.checks import (
    TopicAliases,
    check_connect_length,
    check_publish_id,
    check_publish_properties_at,
    check_topics,
)
from isthmus.exchange.client.client import Pair
from isthmus.exchange.client.confirming import Confirming
from isthmus.exchange.client.input import ClientInput
from isthmus.exchange.client.life import ClientEvent, ClientState
from isthmus.exchange.client.pending import address_group
from isthmus.exchange.client.unreleased import Unreleased
from isthmus.exchange.host import Cancellable
from isthmus.exchange.link.runs import BATCH_BYTES
from isthmus.exchange.session import SessionStatus, Wire, remote_name
from isthmus.exchange.traffic.message import Message, from_publish
from isthmus.mqtt.decoding import connect_level, decode, decode_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import body_offset, frame_length
from isthmus.mqtt.packets import ConnAck, Connect, Disconnect, PubRel
from isthmus.mqtt.publish_layout import (
    DUP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    QOS,
    RETAIN,
    acknowledgment,
    packet_id_at,
    publish_answer,
    publish_id,
)
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode

if TYPE_CHECKING:
    from isthmus.exchange.client.relay import Relay
    from isthmus.exchange.split.split import Split

__all__ = ["ClientSession"]

CHECK_FRAMES = 64
"""Frames of the cheap kind after which the clock is looked at."""
RUN_FRAMES = 64
"""What they cost on the links is not put off for longer."""

_ESTABLISHED = SessionStatus.ESTABLISHED  # looked up at every read
_LINK = ClientState.LINK
_CONNECT = 0x10
_AT_QOS_1 = PUBLISH | 0x02
_PINGREQ = 0xC0
_DISCONNECT = 0xE0
_SHORT_ACKS = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))
_ANSWERED = frozenset((8, 10))  # SUBSCRIBE, UNSUBSCRIBE
_FROM_SERVER_ONLY = frozenset((0, 2, 9, 11, 13))  # reserved, CONNACK, SUBACK, UNSUBACK, PINGRESP


class ClientSession(ClientInput):
    """A local client's connection."""

    __slots__ = (
        "aliases",
        "awaited",
        "confirming",
        "connected",
        "disconnected",
        "handle",
        "hold",
        "refused",
        "remote",
        "routes",
        "split",
        "timer",
        "transport_name",
        "unreleased",
        "withheld",
        "withheld_bytes",
        "withheld_flags",
    )

    def __init__(self, relay: Relay, transport_name: str) -> None:
        super().__init__(relay)
        self.transport_name = transport_name
        self.connected: Connect | None = None
        """What its CONNECT said, from its arrival on."""
        self.disconnected = False
        """The client said DISCONNECT."""
        self.refused = False
        self.handle: Pair | None = None
        """What the exchange knows it by, once the broker has accepted it."""
        self.routes: Mapping[bytes, Route] = relay.exchange.client_routes
        self.split: Split | None = None
        """Where there are several brokers: the wire of its session with them."""
        self.aliases = TopicAliases()
        self.awaited = 0
        """SUBSCRIBEs, UNSUBSCRIBEs and withheld PUBLISHes that the broker has not answered."""
        self.unreleased = Unreleased()
        """Its session's, once it is accepted."""
        self.confirming = Confirming(self, relay.confirm.within_s) if relay.confirm.is_on else None
        self.withheld_flags = 0
        """Flags of a PUBLISH that its broker's CONNACK does not grant."""
        self.withheld: dict[int, tuple[bytes, bytes]] = {}
        """Such PUBLISHes and their topics, by identifier, until the broker has answered them."""
        self.withheld_bytes = 0
        self.remote = ""
        self.timer: Cancellable | None = None
        self.hold: _Hold | None = None
        """What lets it go on when a link has room, or did so last."""

    @property
    def client_id(self) -> str:
        """As it says, or as its broker has assigned it."""
        if self.handle is not None:
            return self.handle.session.name
        return self.connected.client_id if self.connected is not None else ""

    # ---- the connection ------------------------------------------------------------------

    def connection_made(self, wire: Wire) -> None:
        self.established(wire, self.relay.limits.buffer_bytes)
        peername = wire.get_extra_info("peername")
        self.remote, self.address = remote_name(peername), address_group(peername)
        if not self.relay.admit(self):
            wire.abort()
            return
        self._set_timer(self.relay.limits.connect_timeout_s, self._connect_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        unexpected = self.status is SessionStatus.ESTABLISHED
        self.gone()
        if self.state.over:
            self.finish()
        elif self.state is ClientState.CONNACK and unexpected:
            # As without a node: the broker gets what was sent, and judges it.
            self._set_timer(self.relay.limits.broker_timeout_s, self.finish)
        elif self.parked and self.state is ClientState.LINK:
            self._go_on_in_time()  # its DISCONNECT may be among what waits
        elif self.state is ClientState.TURN:
            pass  # the same, when its turn comes
        elif self.handle is not None and self.relay.turns.used_up():
            self.happens(ClientEvent.OUT_OF_TIME)  # many hang up at once, each with its will
        else:
            self.finish()

    def finish(self) -> None:
        """The client is gone, and everything it sent is handled or discarded."""
        self.happens(ClientEvent.FINISHED)
        self._cancel_timer()
        self._forget_pending()
        if self.confirming is not None:
            self.confirming.close()
        if self.hold is not None:
            self.hold.client = None  # the link may keep it for long
        if self.paired is not None:
            self.paired.close()
            self.paired = None
        if self.handle is not None:
            self.relay.exchange.clients.closed(self.handle, unexpected=not self.disconnected)
            self.handle = None
        self.relay.client_gone(self)

    def _connect_timed_out(self) -> None:
        self.timer = None
        waited_s = self.relay.limits.connect_timeout_s
        self._end(
            "connect-timeout",
            RemoteProtocolError(f"no CONNECT within {waited_s:g} s", section="MQTT-3.1.0-1"),
        )

    def _set_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._cancel_timer()
        self.timer = self.host.call_later(delay_s, callback)

    def _cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # ---- its CONNECT, and the answer -----------------------------------------------------

    def _first_packet(self, data: bytes) -> None:
        """Expect CONNECT; what follows it waits for the broker's answer."""
        if data[0] & 0xF0 != _CONNECT:
            self._end(
                "no-connect",
                RemoteProtocolError(
                    f"the first packet is not CONNECT but of type {data[0] >> 4}",
                    section="MQTT-3.1.0-1",
                ),
            )
            return
        limits = self.relay.limits
        try:
            stop = frame_length(data, 0)
            check_connect_length(stop, limits)
        except RemoteProtocolError as error:
            self._refuse_connect(data, error, f"reason-0x{error.reason_code:02x}")
            return
        if not stop or stop > len(data):
            self._keep(data)
            return
        try:
            connect = decode_connect(data[:stop], self.relay.read_limits)
            check_topics(connect, limits)
        except RemoteProtocolError as error:
            self._refuse_connect(data, error, "malformed-connect")
            return
        self._cancel_timer()
        self.relay.entrance.leave(self)
        self.connected = replace(connect, password=None)  # the broker's to check, not ours to keep
        self.protocol_level = connect.protocol_level
        if self.refused:
            self.refuse(ReasonCode.QUOTA_EXCEEDED, "clients-limit")
            return
        if connect.client_id.startswith(self.relay.own_client_ids):
            # It would take over a session by which the node publishes.
            self.refuse(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "reserved-client-id")
            return
        self.connect_frame = data[:stop]
        self.happens(ClientEvent.ASKED_IN)
        self.relay.open_broker_session(self)
        self._count_pending()
        if stop < len(data):
            self.data_received(data[stop:])

    # ---- the broker's answer -------------------------------------------------------------

    def broker_connected(self, broker: BrokerSession) -> None:
        """The broker's session stands: send it the CONNECT."""
        self.pair_with(broker)
        broker.wire.write(self.connect_frame)

    def accepted(self, connack: ConnAck, frame: bytes) -> None:
        """The broker's CONNACK takes the client in: from now on the exchange knows it."""
        level = self.protocol_level
        connect = ReceivedPacket(self.connect_frame, level, self.connected)
        self.connect_frame = b""
        pair = self.relay.exchange.client_accepted(
            self, connect, ReceivedPacket(frame, level, connack)
        )
        self.handle = pair
        self.routes, self.aliases, self.unreleased = pair.routes, pair.aliases, pair.unreleased
        granted = connack.properties
        if granted.maximum_packet_size is not None:
            self.max_packet_bytes = min(self.max_packet_bytes, granted.maximum_packet_size)
        if granted.retain_available is False:
            self.withheld_flags = 0x01
        if granted.maximum_qos is not None:
            self.withheld_flags |= 0x04 if granted.maximum_qos else 0x06
        self.relay.client_accepted(self, connack)

    def released(self) -> None:
        """The client has its CONNACK: what it sent before goes on."""
        self.go_on(self.relay.turns.slice_ends_s())
        if not self.state.over:
            self._count_pending()

    def turned_away(self) -> None:
        """The broker's CONNACK refuses the client: what it sent is nobody's."""
        self.happens(ClientEvent.ENOUGH)
        self._forget_pending()
        if self.orphaned:
            self.finish()

    # ---- relaying ------------------------------------------------------------------------

    def _relay(self, data: bytes, offsets: Sequence[int]) -> int:
        """Check the whole frames in `data` and send them to the broker; how far it came."""
        exchange = self.relay.exchange
        routes = self.routes
        inspects = exchange.algorithm.inspects_publishes
        from_broker = exchange.settings.from_broker
        v5 = self.protocol_level == 5
        batches = (
            self.confirming is None
            and not inspects  # else the client may be held when the algorithm has been asked
            and not from_broker
            and not self.withheld_flags & (_AT_QOS_1 ^ PUBLISH)
        )
        publishes = waits = 0
        run = self.relay.run
        topics, payloads = run.topics, run.payloads
        begin = whole = offsets[0]
        self.interrupted = False
        frames: Iterable[tuple[int, int]] = pairwise(offsets)
        if len(offsets) > CHECK_FRAMES:
            frames = chain.from_iterable(map(pairwise, self._in_time(offsets)))
        try:
            for start, stop in frames:
                head = data[start]
                if head & 0xF0 == PUBLISH:  # the sums of `mqtt.publish_layout`, in place
                    body = start + 2 if data[start + 1] < 0x80 else body_offset(data, start)
                    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
                    topic = data[body + 2 : topic_end]
                    if head & QOS:
                        waits += 1
                        check_publish_id(data, head, topic_end, stop)
                        topic_end += 2
                    elif head & DUP:
                        raise MalformedPacket("DUP set with QoS 0", section="MQTT-3.3.1-2")
                    if topic_end + v5 > stop:
                        raise MalformedPacket("a PUBLISH that ends within its header")
                    if v5 and (data[topic_end] or not topic):
                        topic = self._check_properties(data, topic, topic_end, stop)
                    route = routes[topic]
                    if run.is_batch and (route is not run.route or head != _AT_QOS_1):
                        run.end()
                        if self.state is _LINK:
                            break  # it is held for those before it
                    if inspects and not self._approved(head, data[start:stop], topic):
                        self._forward(data[begin:start], 0)
                        begin = stop
                    elif route.neighbors and head == PUBLISH and not (v5 and data[topic_end]):
                        if route is not run.route or len(topics) == RUN_FRAMES:
                            run.begin(route)
                        topics.append(topic)
                        payloads.append(data[topic_end + v5 : stop])
                    elif (
                        head == _AT_QOS_1
                        and batches
                        and route.neighbors
                        and not (v5 and data[topic_end])
                        and self._joins_batch(route, stop - start)
                    ):
                        topics.append(topic)
                        payloads.append(data[topic_end + v5 : stop])
                    elif from_broker:
                        if head & RETAIN:
                            self._note_retained(data[start:stop], topic)
                    elif (
                        route.neighbors
                        or route.pending
                        or head & RETAIN
                        or (head & QOS and exchange.recovery.active)
                    ) and not self._to_fabric(data[start:stop], topic):
                        break
                    publishes += 1
                else:
                    if run.is_batch:
                        run.end()
                        if self.state is _LINK:
                            break
                    waits += 1
                    self._check_other(head, data, start, stop)
                whole = stop
                if self.interrupted:
                    break
        except IndexError:
            self._forward(data[begin:whole], publishes)
            self.fail(MalformedPacket("a PUBLISH that ends within its header"))
            return whole
        except RemoteProtocolError as error:
            self._forward(data[begin:whole], publishes)
            self.fail(error)
            return whole
        finally:
            run.end()
        if waits:
            self.relay.pacer.waits += waits
        if begin or whole < offsets[-1]:
            self._forward(data[begin:whole], publishes)
        else:
            self._forward(data if whole == len(data) else data[:whole], publishes, offsets)
        return whole

    def _joins_batch(self, route: Route, size: int) -> bool:
        """Whether a PUBLISH at QoS 1 goes to the links together with those before and after it."""
        run = self.relay.run
        if (
            route is run.route
            and run.is_batch
            and size <= run.room_bytes
            and len(run.topics) < RUN_FRAMES
        ):
            run.room_bytes -= size
            return True
        run.end()
        if self.state is _LINK or size > BATCH_BYTES:
            return False
        if not run.begin_batch(route, self._hold_for_link):
            return False
        run.room_bytes -= size
        self._took_time()
        return True

    def _in_time(self, offsets: Sequence[int]) -> Iterator[Sequence[int]]:
        """Parts of `offsets`, for as long as the slice lasts."""
        for at in range(0, len(offsets) - 1, CHECK_FRAMES):
            yield offsets[at : at + CHECK_FRAMES + 1]
            self._took_time()
            if self.interrupted:
                return

    def _forward(self, data: bytes, publishes: int, offsets: Sequence[int] | None = None) -> None:
        broker = self.paired
        if data and broker is not None and broker.status is _ESTABLISHED:
            if offsets is None or self.split is None:
                broker.wire.write(data)
            else:
                self.split.write_packets(data, offsets)
        counters = self.relay.counters
        counters.client_bytes += len(data)
        counters.client_publishes += publishes

    def _took_time(self) -> None:
        """Something costly was done: if the slice is over, the rest of the frames must wait."""
        if not self.ends_s:
            self.ends_s = self.relay.turns.slice_ends_s()  # it begins with what is costly
        elif self.host.clock() > self.ends_s:
            self.interrupted = True

    def _check_properties(self, data: bytes, topic: bytes, pos: int, stop: int) -> bytes:
        """Check a v5 PUBLISH's properties; return its real topic."""
        alias = check_publish_properties_at(data, pos, stop, self.relay.limits.property_bytes)
        self._took_time()
        return self.aliases.topic(alias, topic)

    def _check_other(self, head: int, data: bytes, start: int, stop: int) -> None:
        """Check a packet that is not PUBLISH; most are short and common."""
        if head in _SHORT_ACKS and stop - start == 4:
            if not (data[start + 2] or data[start + 3]):
                raise RemoteProtocolError("packet identifier 0", section="MQTT-2.2.1-3")
            if head == PUBREL:
                self.unreleased.release(packet_id_at(data, start + 2))
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
        packet = decode(frame, self.protocol_level, self.relay.read_limits)
        self._took_time()
        if kind == _DISCONNECT >> 4:
            self.disconnected = self.interrupted = True
            self.happens(ClientEvent.ENOUGH)
        elif kind in _ANSWERED:
            check_topics(packet, self.relay.limits)
            self.awaited += 1
        else:
            if isinstance(packet, PubRel):
                self.unreleased.release(packet.packet_id)
            return
        if self.handle is not None:
            message = ReceivedPacket(frame, self.protocol_level, packet)
            self.relay.exchange.clients.packet(self.handle, message)

    # ---- what the algorithm says of it ---------------------------------------------------

    def _approved(self, head: int, frame: bytes, topic: bytes) -> bool:
        """Ask the algorithm about a PUBLISH; one that it keeps back is answered from here."""
        self._took_time()
        message = ReceivedPacket(frame, self.protocol_level, topic=topic.decode())
        if self.handle is None or self.relay.exchange.clients.packet(self.handle, message):
            return True
        self.relay.counters.refusals["publish-kept-back"] += 1
        if head & QOS:
            # MQTT 3.1.1 cannot say no: the client takes it for delivered (§3.3.5).
            reason = b"\x83" if self.protocol_level == 5 else b""
            self._write(acknowledgment(publish_answer(head), publish_id(frame), reason))
        return False

    # ---- what goes to other nodes --------------------------------------------------------

    def _to_fabric(self, frame: bytes, topic: bytes) -> bool:
        """Hand a PUBLISH to the exchange as well, then the broker gets it; False if both wait."""
        self.relay.run.end()
        if self.state is _LINK:
            return False  # it is held for those before it
        if frame[0] & self.withheld_flags:
            self._withhold(frame, topic)
            return True
        exchange = self.relay.exchange
        message = from_publish(frame, self.protocol_level, topic, exchange.node_id, self.host.now())
        if exchange.traffic.must_wait(message, self._hold_for_link):
            if self.state is not ClientState.LINK:  # it has hung up: nobody acknowledges it
                self.relay.counters.refusals["hung-up-while-held"] += 1
                self.happens(ClientEvent.ENOUGH)
            return False
        self._pass_on(frame, message)
        return True

    def _note_retained(self, frame: bytes, topic: bytes) -> None:
        """It comes from the broker, which may not say that it is retained."""
        level = self.protocol_level
        message = from_publish(frame, level, topic, self.relay.exchange.node_id, self.host.now())
        self.relay.retained_published(topic, message.payload)
        self._took_time()

    def _pass_on(self, frame: bytes, message: Message) -> None:
        exchange = self.relay.exchange
        if message.qos == 2 and self.unreleased.is_repetition(
            publish_id(frame), dup=bool(frame[0] & DUP)
        ):
            if self.confirming is not None:
                self.confirming.repeated(publish_id(frame))
            return  # sent again, and passed on before [MQTT-4.3.3-10]
        confirmed = None
        if (
            self.confirming is not None
            and message.qos
            # At QoS 2 its own broker retains it when it is released: not so late as that.
            and not (message.retain and message.qos == 2)
            and self.relay.confirm.confirms(message.topic)
        ):
            confirmed = self.confirming.publish(publish_id(frame), message.qos)
        exchange.client_publish(message, self._hold_for_link, confirmed)
        self._took_time()

    def _withhold(self, frame: bytes, topic: bytes) -> None:
        """The broker has said that it does not take this [MQTT-3.2.2-11], [MQTT-3.2.2-14].

        Some do all the same (RabbitMQ lowers the QoS): the fabric gets it if the broker says so.
        """
        if frame[0] & QOS and self.withheld_bytes + len(frame) <= self.relay.limits.packet_bytes:
            packet_id = publish_id(frame)
            self._take_withheld(packet_id)
            self.awaited += 1
            self.withheld_bytes += len(frame)
            self.withheld[packet_id] = frame, topic
        else:
            self.relay.counters.refusals["publish-not-granted"] += 1

    def _take_withheld(self, packet_id: int) -> tuple[bytes, bytes] | None:
        withheld = self.withheld.pop(packet_id, None)
        if withheld is not None:
            self.awaited -= 1
            self.withheld_bytes -= len(withheld[0])
        return withheld

    def publish_answered(self, packet_id: int, *, refused: bool, final: bool) -> None:
        """The broker's PUBACK or PUBREC."""
        if refused or final:
            self.unreleased.release(packet_id)
        if withheld := self._take_withheld(packet_id):
            if refused:
                self.relay.counters.refusals["publish-not-granted"] += 1
            else:
                frame, topic = withheld
                level, origin = self.protocol_level, self.relay.exchange.node_id
                self._pass_on(frame, from_publish(frame, level, topic, origin, self.host.now()))

    def _hold_for_link(self) -> Callable[[], None]:
        """A link is congested: what comes from this client waits until it is not."""
        if self.state is not ClientState.OPEN or self.wire.is_closing():
            return _nothing
        self.happens(ClientEvent.CONGESTED)
        self.interrupted = True
        self.hold = _Hold(self)
        return self.hold

    def link_has_room(self) -> None:
        if self.state is ClientState.LINK:
            self._go_on_in_time()

    def _go_on_in_time(self) -> None:
        """Now, or in a later turn if many do at once."""
        if self.relay.turns.used_up():
            self.happens(ClientEvent.OUT_OF_TIME)
        else:
            self.go_on(self.relay.turns.slice_ends_s())

    # ---- what the fabric does not confirm ------------------------------------------------

    def now(self) -> float:
        return self.host.now()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        return self.host.call_later(delay_s, callback)

    def not_confirmed(self) -> None:
        self.relay.counters.not_confirmed += 1

    def close_unconfirmed(self) -> None:
        self._close_for("not-confirmed", "MQTT 3.1.1 has no other answer")

    # ---- ends ----------------------------------------------------------------------------

    def cut_off(self) -> None:
        """It has said nothing, and somebody else needs the room."""
        self.happens(ClientEvent.ENOUGH)
        self.wire.abort()
        self.finish()

    def end_for_pending(self, error: RemoteProtocolError) -> None:
        if self.orphaned:
            self.finish()
        else:
            self._end("pending-limit", error)

    def refuse(self, code: ReasonCode, cause: str, detail: str = "") -> None:
        """Answer the CONNECT with a CONNACK that says why not, and close."""
        level = self.protocol_level
        self._write(encode(ConnAck(False, code if level == 5 else _RETURN_CODES[code]), level))
        self._close_for(cause, detail)

    def _refuse_connect(self, frame: bytes, error: RemoteProtocolError, cause: str) -> None:
        """A CONNECT that is wrong: CONNACK where the specification has one for it."""
        level = connect_level(frame)
        if isinstance(error, UnsupportedProtocolVersion):
            self.protocol_level = 5 if level >= 5 else 4
            self.refuse(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "protocol-level", str(error))
        elif level == 5:
            self.protocol_level = 5
            self.refuse(ReasonCode(error.reason_code), cause, str(error))
        else:
            self._end(cause, error)  # no CONNACK [MQTT-3.1.4-1]

    def fail(self, error: RemoteProtocolError) -> None:
        if self.status is SessionStatus.ESTABLISHED:
            if self.handle is not None:
                self.relay.exchange.clients.failed(self.handle, error)
            self._end(f"reason-0x{error.reason_code:02x}", error)
        self.happens(ClientEvent.ENOUGH)

    def _end(self, cause: str, error: ProtocolError) -> None:
        """Close for a fault of the client's; v5 clients are told the reason."""
        self._tell(ReasonCode(error.reason_code), ReasonCode(error.reason_code))
        self._close_for(cause, str(error))

    def _tell(self, code: ReasonCode, connack_code: ReasonCode) -> None:
        """Say goodbye to a v5 client; before its CONNACK only a CONNACK may be sent to it."""
        if self.protocol_level != 5 or self.connected is None:
            return
        if self.state is ClientState.CONNACK:
            self._write(encode(ConnAck(False, connack_code), 5))
        else:
            self._write(encode(Disconnect(code), 5))

    def _close_for(self, cause: str, detail: str) -> None:
        self.relay.count_refusal(self, cause, detail)
        self.happens(ClientEvent.ENOUGH)
        self._forget_pending()
        self.close()

    def shut_down(self, code: ReasonCode = ReasonCode.SERVER_SHUTTING_DOWN) -> None:
        """The node stops, or its algorithm wants it so: tell a v5 client, and close."""
        if self.orphaned:
            self.finish()
        elif self.status is SessionStatus.ESTABLISHED:
            self._tell(code, ReasonCode.SERVER_UNAVAILABLE)
            self.close()

    def send(self, data: bytes, *, to_broker: bool) -> bool:
        """Write a packet of ours; False if there is nobody, or in the midst of one that passes."""
        session = self.paired if to_broker else self
        if session is None or session.status is not SessionStatus.ESTABLISHED:
            return False
        if not to_broker and isinstance(self.paired, BrokerSession) and self.paired.passing:
            return False
        session.wire.write(data)
        return True

    def _write(self, data: bytes) -> None:
        self.send(data, to_broker=False)


class _Hold:
    """Lets a client go on that is held for a link, if it is still there."""

    __slots__ = ("client",)

    def __init__(self, client: ClientSession) -> None:
        self.client: ClientSession | None = client

    def __call__(self) -> None:
        if self.client is not None:
            self.client.link_has_room()


def _nothing() -> None:
    """Somebody else will let the client go on."""


_RETURN_CODES = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturnCode.IDENTIFIER_REJECTED,
    ReasonCode.SERVER_UNAVAILABLE: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.QUOTA_EXCEEDED: ConnectReturnCode.SERVER_UNAVAILABLE,
}
"""MQTT 3.1.1 §3.2.2.3 for what the node itself refuses; the broker's own come from the broker."""
