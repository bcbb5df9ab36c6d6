"""A part of a client's session: its session at one of several brokers.

It says CONNECT as the client did, gives back what the broker has lost (subscriptions), then sends
what the client sends there and hands on what comes.  What the client sends keeps its order and its
packet identifiers.

Bounds.  What waits for the broker to be there, or for its Receive Maximum, is `buffer_bytes` at
most, and one message.  Beyond that the client is not read while the session is being opened, which
takes no longer than ``limits.broker_timeout_s``; at other times, when answers of the client may be
what is waited for, MQTT 5 refuses the message (0x97) and MQTT 3.1.1 ends the connection.

While the broker is away, MQTT 5 refuses QoS 1 and 2 (0x83), or holds them (``away = "hold"``), as
MQTT 3.1.1 does, which cannot refuse them; within the same bound.  QoS 0 is dropped and counted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from isthmus.errors import ProtocolError, RemoteProtocolError
from isthmus.exchange.host import Cancellable
from isthmus.exchange.session import Session, SessionStatus, Wire
from isthmus.exchange.split.kept import KeptSession
from isthmus.exchange.split.life import PART, PartEvent, PartState
from isthmus.exchange.split.rows import puback_ids, publish_ids
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.filters.topics import matches
from isthmus.mqtt.framing import FrameBuffer, body_offset, scan
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.packets import ConnAck, SubAck, Subscribe, Subscription, Unsubscribe
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.publish_layout import (
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
    topic_bounds,
)
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.tables import step

if TYPE_CHECKING:
    from isthmus.exchange.split.split import Split

__all__ = ["Part"]

RESTORED_AT_ONCE: Final = 100
"""Filters in one SUBSCRIBE."""
SUBSCRIBED_S: Final = 5.0
QUIET_S: Final = 1.0
"""Within it what is retained comes for a subscription that was granted."""
SILENT_S: Final = 10.0
"""A broker that says nothing for so long, although asked, is away."""

_PACKET_BYTES: Final = 13
"""Of a SUBSCRIBE without filters, with a Subscription Identifier, at most."""
_FILTER_BYTES: Final = 3
"""What a filter takes in it besides its name."""

_SUBSCRIBE, _SUBACK, _UNSUBSCRIBE, _UNSUBACK = 0x82, 0x90, 0xA2, 0xB0
_CONNACK, _PINGRESP, _DISCONNECT, _AUTH = 0x20, 0xD0, 0xE0, 0xF0
_PLAIN: Final = bytes((PUBLISH,))
"""How a message at QoS 0 begins that is not retained."""
_GOING = frozenset((ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.SERVER_BUSY))


class Part(Session):
    """One broker's connection for one client of several brokers."""

    __slots__ = (
        "_buffer",
        "_connack",
        "_early",
        "_early_held",
        "_flight",
        "_full",
        "_heard",
        "_leaving",
        "_out",
        "_quiet",
        "_quiet_until_s",
        "_releasing",
        "_restoring",
        "_silent_s",
        "_swallowed",
        "_telling",
        "_timer",
        "_waiting",
        "_waiting_bytes",
        "_watched",
        "followers",
        "max_packet_bytes",
        "name",
        "present",
        "quota",
        "refused_flags",
        "split",
        "state",
    )

    def __init__(self, split: Split, name: str) -> None:
        super().__init__(split.host, split.relay.limits.drain_s)
        self.split = split
        self.name = name
        self.state = PartState.CONNECTING
        self.present = False
        """The broker had a session of the client."""
        self._buffer = FrameBuffer()
        self._connack: ConnAck | None = None
        self._early: list[bytes] = []
        """Frames that came before the client has its CONNACK."""
        self._early_held = False
        self._out: list[bytes] = []
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._full = False
        """The client is not read on its account."""
        self._flight: dict[int, int] = {}
        """The client's identifiers that are in use here, and which packet comes next."""
        self._restoring: set[int] = set()
        self._releasing: dict[int, None] = {}
        self._heard = True
        self._leaving = False
        """The client has gone, and waits only for what it said to be said."""
        self._silent_s = 0.0
        self._timer: Cancellable | None = None
        self.followers: list[Part] = []
        """Those of the client's next connections, which wait until this one has left."""
        self.quota = IDENTIFIERS
        self.refused_flags = 0
        self.max_packet_bytes = 1 << 32
        self._telling: tuple[list[str], list[str]] = [], []
        """What it is being subscribed to, and unsubscribed from."""
        self._watched: set[int] = set()
        """Of what is under way, what topics that move wait for."""
        self._quiet: tuple[str, ...] = ()
        """Filters for which what is retained has come elsewhere; MQTT 3.1.1 cannot ask for none."""
        self._quiet_until_s = 0.0
        self._swallowed: set[int] = set()
        """At QoS 2, what came and does not go to the client."""

    def happens(self, event: PartEvent) -> None:
        self.state, actions = step(PART, self.state, event)
        if not actions:  # there is but one
            return
        if self.split.brokers.is_away(self.name):
            self.host.call_soon(partial(self._looked, False))
        else:
            self.split.brokers.look(self.name, self._looked)

    @property
    def is_accepted(self) -> bool:
        """The broker has taken the client in, and is told next what it does not know."""
        return self.state is PartState.RESTORING

    @property
    def was_accepted(self) -> bool:
        """The broker has let this connection's client in, now or before it went."""
        return self._connack is not None

    # ---- the connection --------------------------------------------------------------------

    def connect(self, *, try_anyway: bool = False) -> None:
        """Unless it is known to be away, and is not to be tried all the same."""
        brokers = self.split.brokers
        if brokers.is_away(self.name) and not try_anyway:
            self.host.call_soon(partial(self._unreachable, ""))
        else:
            brokers.connect(self.name, self, self._unreachable)

    def _unreachable(self, cause: str) -> None:
        self.happens(PartEvent.UNREACHABLE)
        if self._leaving:
            self._left()
        elif self.state is PartState.AWAY:
            self._is_away()

    def back(self) -> None:
        """The broker is back."""
        self.happens(PartEvent.BACK)
        self.connect()

    def connection_made(self, wire: Wire) -> None:
        self.established(wire, self.split.relay.limits.buffer_bytes)
        if self.state is PartState.CLOSED:
            self.close()
            return
        self.happens(PartEvent.CONNECTED)
        wire.write(self.split.connect_for(self))
        self._timer = self.host.call_later(self.split.relay.limits.broker_timeout_s, self.give_up)

    def _readable(self) -> bool:
        # Whoever does not read must not make a broker that answers look as if it did not.
        return self.state is not PartState.GREETING and super()._readable()

    def give_up(self) -> None:
        """The broker does not answer."""
        self._cancel_timer()
        self.split.brokers.failed(self.name, "it does not answer")
        if self.status is SessionStatus.ESTABLISHED:
            self.wire.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        self._cancel_timer()
        self._buffer = FrameBuffer()
        self._early.clear()
        self._out.clear()
        self._restoring.clear()
        self._watched.clear()
        self._swallowed.clear()
        self.resume_writing()
        if self._early_held:
            self._early_held = False
            self.release_reading()
        self.happens(PartEvent.LOST)
        self.split.part_lost(self)

    def _looked(self, stands: bool) -> None:
        """Whether the broker stands, with which the session was lost."""
        if self.state is not PartState.LOOKING:
            return
        if self._leaving:
            self._left()
        elif not stands:
            self.happens(PartEvent.GONE)
            self._is_away()
        elif self._connack is None:
            self.happens(PartEvent.TURNED_AWAY)
            self.split.part_refused(self, b"")
            self._refuse_waiting()
        else:
            self.split.end()  # as with one broker: it wants this client no more

    def _is_away(self) -> None:
        """Wait for the broker; what was under way, and what waits, is refused or held."""
        brokers = self.split.brokers
        if brokers.is_away(self.name):
            brokers.when_back(self.name, self.back)
        else:  # it came back in this moment
            self.host.call_soon(self._came_back)
        if self.split.level != 5 and any(
            answer in (PUBACK, PUBREC) for answer in self._flight.values()
        ):
            self.split.end()  # it has to send them again, and will on a new connection
            return
        flight, self._flight = self._flight, {}
        for packet_id, answer in flight.items():
            if answer in (PUBACK, PUBREC):
                if answer == PUBREC:
                    self.split.refused_under_way(self.name, packet_id)
                self.split.released(packet_id)
                self.split.answer(acknowledgment(answer, packet_id, b"\x83"))
            elif answer == PUBCOMP:
                self._waiting.appendleft(acknowledgment(PUBREL, packet_id))
                self._waiting_bytes += 4
            elif answer in (_SUBACK, _UNSUBACK):
                self.split.subscribing.cannot(self, packet_id, was_sent=True)
            else:
                self._flight[packet_id] = answer
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for frame in waiting:
            self.send(frame)
        self._read_client_again()
        self.split.part_away(self)

    def _came_back(self) -> None:
        if self.state is PartState.AWAY:
            self.back()

    def over(self) -> None:
        """The client's connection ends: say what is to be said, and close.

        Who publishes and leaves may do so before the broker is greeted: it still gets that.
        """
        greets = self.state in (PartState.CONNECTING, PartState.GREETING)
        if greets and self._waiting and self.split.lingers:
            self._leaving = True
            if self.split.client_id:
                self.split.sessions.leaving[self.split.client_id, self.name] = self
            return
        if self.state is PartState.AWAY:
            self.split.brokers.never_mind(self.name, self.back)
        if self.state is PartState.RESTORING:
            self._send_last_words()
        self._left()

    def _send_last_words(self) -> None:
        while self._waiting:
            self._go(self._waiting.popleft())

    def _left(self) -> None:
        if self._leaving:
            self._leaving = False
            leaving, key = self.split.sessions.leaving, (self.split.client_id, self.name)
            if leaving.get(key) is self:
                del leaving[key]
        self._waiting.clear()
        self._cancel_timer()
        self.flush()
        self.happens(PartEvent.OVER)
        self.close()
        followers, self.followers = self.followers, []
        for each in followers:
            if each.state is PartState.CONNECTING:
                each.connect(try_anyway=True)

    # ---- the broker's greeting -------------------------------------------------------------

    def _greeted(self, frame: bytes) -> None:
        split = self.split
        if frame[0] & 0xF0 == _AUTH:
            split.part_auth(self, frame)
            return
        if frame[0] & 0xF0 != _CONNACK:
            raise RemoteProtocolError("the first packet is not CONNACK", section="MQTT-3.2.0-1")
        self._cancel_timer()
        connack = decode(frame, split.level)
        assert isinstance(connack, ConnAck)
        if self._leaving:
            self._agree(connack.properties)
            self.happens(PartEvent.ACCEPTED)
            if connack.reason_code == 0:
                self._send_last_words()
            self._left()
            return
        if connack.reason_code != 0:
            self.happens(PartEvent.TURNED_AWAY)
            self._refuse_waiting()
            split.part_refused(self, frame)
            return
        self.present = connack.session_present
        self._agree(connack.properties)
        self._connack = connack
        self.happens(PartEvent.ACCEPTED)
        if self.read_holds and self._readable():
            self.wire.pause_reading()
        split.part_accepted(self, connack, frame)

    def _agree(self, granted: Properties) -> None:
        """What the broker takes [MQTT-3.2.2-11], [MQTT-3.2.2-14], [MQTT-3.2.2-15]."""
        self.quota = granted.receive_maximum or IDENTIFIERS
        self.max_packet_bytes = granted.maximum_packet_size or 1 << 32
        self.refused_flags = RETAIN if granted.retain_available is False else 0
        if granted.maximum_qos is not None:
            self.refused_flags |= 0x04 if granted.maximum_qos else QOS

    def tell_more(self) -> None:
        """What the client wants of this broker has changed by itself, as topics move.

        If it is not open yet, it is told when it is.
        """
        if self.state is PartState.OPEN:
            self.happens(PartEvent.ASKED)
            self.restore(self.split.kept, again=True)

    def restore(self, kept: KeptSession, *, again: bool = False) -> None:
        """Subscribe to what the client wants and this broker does not know, and the other way.

        If it knows nothing any more that is everything.  What is not answered is told again.  QoS 2
        messages that were refused are released first: their identifiers may be used again.
        """
        wanted = kept.wanted.get(self.name, {})
        if not self.present and not again:
            kept.untold[self.name] = dict.fromkeys(wanted)
            kept.unwanted.pop(self.name, None)
            kept.refused.pop(self.name, None)
        self._releasing = kept.refused.setdefault(self.name, {})
        for packet_id in self._releasing:
            self.put(acknowledgment(PUBREL, packet_id))
        unwanted = list(kept.unwanted.get(self.name, ()))
        self._telling = list(kept.untold.get(self.name, ())), unwanted
        kept.asked.setdefault(self.name, set()).update(self._telling[0])
        quiet = kept.quiet.get(self.name, set())
        self._quiet = tuple(quiet) if self.split.level < 5 else ()
        self._quiet_until_s = math.inf
        by_identifier: dict[int, list[Subscription]] = {}
        for name in kept.untold.get(self.name, ()):
            if (each := wanted.get(name)) is not None:
                asked = each.subscription
                if name in quiet and self.split.level == 5:
                    asked = replace(asked, retain_handling=2)
                by_identifier.setdefault(each.identifier, []).append(asked)
        for identifier, theirs in by_identifier.items():
            properties = (
                Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
            )
            for at, to in self._packets([each.topic_filter for each in theirs]):
                some = tuple(theirs[at:to])
                self._ask_again(Subscribe(self._restoring_id(), some, properties))
        for at, to in self._packets(unwanted):
            self._ask_again(Unsubscribe(self._restoring_id(), tuple(unwanted[at:to])))
        self.flush()
        self._restored_if_all()

    def _packets(self, filters: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Which of `filters` go into a packet, from and to: no more than the broker takes."""
        begin, size = 0, _PACKET_BYTES
        for at, each in enumerate(filters):
            more = len(each.encode()) + _FILTER_BYTES
            if at > begin and (
                size + more > self.max_packet_bytes or at - begin >= RESTORED_AT_ONCE
            ):
                yield begin, at
                begin, size = at, _PACKET_BYTES
            size += more
        if filters:
            yield begin, len(filters)

    def _restoring_id(self) -> int:
        """One that the client does not use at this broker; of its own it sends nothing yet."""
        packet_id = min(self._restoring, default=IDENTIFIERS + 1) - 1
        while packet_id in self._flight or packet_id in self._releasing:
            packet_id -= 1
        self._restoring.add(packet_id)
        return packet_id

    def _ask_again(self, packet: Subscribe | Unsubscribe) -> None:
        self.put(encode(packet, self.split.level))

    def _restored_if_all(self) -> None:
        if self._restoring or self._releasing or self.state is not PartState.RESTORING:
            return
        self.happens(PartEvent.RESTORED)
        self._quiet_until_s = self.host.now() + QUIET_S
        self.split.part_restored(self, *self._telling)
        for frame in [each for each in self._waiting if each[0] == PUBREL]:
            self._waiting.remove(frame)  # no PUBLISH that waits for them is to be before them
            self._waiting_bytes -= len(frame)
            self._go(frame)
        self._send_waiting()
        self.flush()

    # ---- what comes from the broker --------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._buffer.pending_bytes and not (data := self._buffer.push(data)):
            return
        try:
            offsets = scan(data)
            if not self._hand_on(data, offsets):
                self.split.flush_soon()
                return
            if offsets[-1] < len(data):
                self._buffer.keep(data[offsets[-1] :])
        except (ProtocolError, IndexError) as error:
            self.split.misbehaved(self, error)
            return
        self.split.flush()

    def _hand_on(self, data: bytes, offsets: Sequence[int]) -> bool:
        """Most goes on unchanged, those in a row in one piece; whether the session goes on."""
        split = self.split
        at, end = 0, len(offsets) - 1
        while at < end:
            after = at
            if self.state is PartState.OPEN and split.is_open:
                head = data[offsets[at]]
                if head == PUBACK:
                    after = self._acknowledged(data, offsets, at)
                elif head & RETAIN or split.kept.copies:
                    pass  # it may be a copy of what the client has had
                elif head == PUBLISH:
                    after = _after_plain(data, offsets, at)
                elif head & 0xF0 == PUBLISH:
                    after = split.delivering.take(self, data, offsets, at)
            if after > at:
                split.hand_on(data[offsets[at] : offsets[after]], after - at)
            else:
                after = at + 1
                self._frame(data[offsets[at] : offsets[after]])
                if self.status is not SessionStatus.ESTABLISHED:
                    return False
            at = after
        return True

    def _acknowledged(self, data: bytes, offsets: Sequence[int], at: int) -> int:
        """Where the row of PUBACKs ends that begins here and that the client waits for."""
        end, flight = len(offsets) - 1, self._flight
        if self._waiting or self._watched:
            return at
        ids = puback_ids(data, offsets, at)
        if ids and list(map(flight.get, ids)).count(PUBACK) == len(set(ids)) == len(ids):
            for packet_id in ids:
                del flight[packet_id]
            return end
        while at < end:
            start = offsets[at]
            if data[start] != PUBACK or offsets[at + 1] - start != 4:
                break
            packet_id = data[start + 2] << 8 | data[start + 3]
            if flight.get(packet_id) != PUBACK:
                break
            del flight[packet_id]
            at += 1
        return at

    def _frame(self, frame: bytes) -> None:
        if self.state is PartState.GREETING:
            self._greeted(frame)
        elif self.state is PartState.REFUSED or self.state is PartState.CLOSED:
            pass
        elif frame[0] in (PUBCOMP, _SUBACK, _UNSUBACK) and self._restores(frame):
            self._restored_if_all()
        elif not self.split.is_open:
            self._early.append(frame)
            if not self._early_held:
                self._early_held = True
                self.hold_reading()
        else:
            self._packet(frame)

    def client_let_in(self) -> None:
        """The client has its CONNACK: what came since then goes on."""
        early, self._early = self._early, []
        try:
            for frame in early:
                self._packet(frame)
        except (ProtocolError, IndexError) as error:
            self.split.misbehaved(self, error)
            return
        if self._early_held:
            self._early_held = False
            self.release_reading()

    def _restores(self, frame: bytes) -> bool:
        packet_id = packet_id_at(frame, body_offset(frame, 0))
        if frame[0] == PUBCOMP:
            return self._releasing.pop(packet_id, 0) is None
        if packet_id not in self._restoring:
            return False
        self._restoring.discard(packet_id)
        packet = decode(frame, self.split.level)
        if isinstance(packet, SubAck):
            self.split.restored(self, sum(code >= 0x80 for code in packet.reason_codes))
        return True

    def _packet(self, frame: bytes) -> None:
        head, split = frame[0], self.split
        kind = head & 0xF0
        if kind == PUBLISH:
            if self._is_copy(frame):
                self._swallow(frame)
            else:
                split.delivering.publish(self, frame)
        elif head in (PUBACK, PUBREC, PUBCOMP):
            self._answered(head, frame)
        elif head == PUBREL:
            if not self._swallowed or not self._releases_swallowed(frame):
                split.delivering.release(self, frame)
        elif head in (_SUBACK, _UNSUBACK):
            packet_id = packet_id_at(frame, body_offset(frame, 0))
            if self._flight.get(packet_id) == head:
                del self._flight[packet_id]
                split.subscribing.answered(self, packet_id, frame)
        elif kind == _DISCONNECT:
            self._farewell(frame)
        elif kind == _AUTH:
            split.part_auth(self, frame)
        elif head != _PINGRESP:
            raise RemoteProtocolError(f"packet type {head >> 4} from a broker")

    def _is_copy(self, frame: bytes) -> bool:
        """Of what is retained, and the client has had: its topic moves here, or has."""
        copies = self.split.kept.copies.get(self.name, ())
        return any(each.takes(frame) for each in copies) or (
            frame[0] & RETAIN == RETAIN and self._is_known_retained(frame)
        )

    def is_quiet_on(self, topic_filter: str) -> None:
        """What is retained for a subscription comes from another broker; for some time from now."""
        self._quiet = (*self._quiet, topic_filter)
        self._quiet_until_s = self.host.now() + SUBSCRIBED_S

    def _is_known_retained(self, frame: bytes) -> bool:
        """What has come elsewhere; or what a broker still retains that its topic has left."""
        brokers = self.split.brokers
        if self._quiet and self.host.now() > self._quiet_until_s:
            self._quiet = ()
        if not self._quiet and not brokers.topics_move:
            return False
        begin, end = topic_bounds(frame)
        topic = frame[begin:end]
        if any(matches(each, topic.decode()) for each in self._quiet):
            return True
        return brokers.of(topic) != self.name and not any(
            each.subscription.retain_as_published  # it may be no retained message
            for each in self.split.kept.wanted.get(self.name, {}).values()
        )

    def _swallow(self, frame: bytes) -> None:
        """A PUBLISH that is not for the client, which has had it."""
        if frame[0] & QOS:
            packet_id = publish_id(frame)
            answer = publish_answer(frame[0])
            if answer == PUBREC:
                self._swallowed.add(packet_id)
            self.put(acknowledgment(answer, packet_id))
            self.flush()

    def _releases_swallowed(self, frame: bytes) -> bool:
        packet_id = packet_id_at(frame, body_offset(frame, 0))
        if packet_id not in self._swallowed:
            return False
        self._swallowed.discard(packet_id)
        self.put(acknowledgment(PUBCOMP, packet_id))
        self.flush()
        return True

    def watch_under_way(self) -> None:
        """From now on nothing is sent on topics that move: what is under way can come to an end."""
        acknowledgments = (PUBACK, PUBREC, PUBREL, PUBCOMP)
        self._watched = {each for each, next_ in self._flight.items() if next_ in acknowledgments}

    def has_under_way(self, moves: Callable[[bytes], bool]) -> bool:
        """Whether the broker has not answered something that may be on such a topic."""
        if self._watched:
            return True
        for frame in self._waiting:
            if frame[0] & 0xF0 == PUBLISH:
                begin, end = topic_bounds(frame)
                if moves(frame[begin:end]):
                    return True
            elif frame[0] == PUBREL:
                return True
        return False

    def _answered(self, head: int, frame: bytes) -> None:
        """The broker acknowledges what the client has sent."""
        pos = body_offset(frame, 0)
        packet_id = packet_id_at(frame, pos)
        refused = len(frame) > pos + 2 and frame[pos + 2] >= 0x80
        expected = self._flight.get(packet_id)
        if expected not in (PUBACK, PUBREC, PUBCOMP, PUBREL):
            return  # nobody has asked
        if head == PUBREC and not refused:
            if expected == PUBREC:
                self._flight[packet_id] = PUBREL
        else:
            # Also a PUBACK for QoS 2, as RabbitMQ's, is the last word.
            del self._flight[packet_id]
            self._watched.discard(packet_id)
            self.split.released(packet_id)
        self.split.answer(frame)
        self._send_waiting()
        self.flush()

    def _farewell(self, frame: bytes) -> None:
        """The broker ends the session; one that ends itself is away until it is back."""
        code = frame[2] if len(frame) > 2 else 0
        if code in _GOING:
            self.split.brokers.failed(self.name, f"DISCONNECT 0x{code:02x}")
            self.close()
        else:
            self.split.answer(frame)
            self.split.end()

    # ---- what goes to the broker -----------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """A PUBLISH, PUBREL, SUBSCRIBE, UNSUBSCRIBE or DISCONNECT of the client."""
        if self.state is PartState.OPEN and self._may_go(frame):
            self._go(frame)
        elif self.state is PartState.OPEN or self.state.waits:
            self._wait(frame)
        else:
            self._cannot(frame)

    def take(self, data: bytes, offsets: Sequence[int], at: int, topic_end: int) -> int:
        """Where the row ends that begins with this PUBLISH and goes to the broker unchanged.

        Of messages at QoS 0 or 1 that begin alike, up to their topic's end, those that it can have
        now.  In MQTT 5 they are without properties.
        """
        start, end = offsets[at], len(offsets) - 1
        head, first = data[start], at
        if (
            self.state is not PartState.OPEN
            or head & self.refused_flags
            or offsets[at + 1] - start > self.max_packet_bytes
        ):
            return at
        v5 = self.split.level == 5
        if not head & QOS:
            beginning = data[start : topic_end + v5]
            at += 1
            while at < end and data.startswith(beginning, offsets[at]):
                at += 1
        elif not self._waiting:
            stop = min(end, at + max(0, self.quota - len(self._flight)))
            ids = publish_ids(data, offsets, at, stop, data[start:topic_end], plain=v5)
            self._flight.update(dict.fromkeys(ids, PUBACK))
            at += len(ids)
        if at > first:
            self.put(data[offsets[first] : offsets[at]])
        return at

    def put(self, data: bytes) -> None:
        """Packets that go as they are."""
        self._out.append(data)

    def pass_on(self, frame: bytes) -> None:
        """An answer to what the broker sent."""
        if self.state in (PartState.RESTORING, PartState.OPEN) or (
            self.state is PartState.GREETING and frame[0] & 0xF0 == _AUTH
        ):
            self.put(frame)
            if self.state is PartState.GREETING:
                self.flush()

    def _may_go(self, frame: bytes) -> bool:
        """Only a PUBLISH at QoS 1 or 2 waits for others to be acknowledged."""
        return frame[0] & 0xF0 != PUBLISH or not (
            frame[0] & QOS and (self._waiting or len(self._flight) >= self.quota)
        )

    def _go(self, frame: bytes) -> None:
        head = frame[0]
        if head & 0xF0 == _DISCONNECT:
            pass
        elif head & 0xF0 != PUBLISH:
            packet_id = packet_id_at(frame, body_offset(frame, 0))
            if len(frame) > self.max_packet_bytes:
                self.split.subscribing.is_too_large(self, packet_id)
                return
            self._flight[packet_id] = _ANSWER_TO[head]
        elif head & self.refused_flags or len(frame) > self.max_packet_bytes:
            self._refuse(frame, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
            return
        elif head & QOS:
            self._flight[publish_id(frame)] = publish_answer(head)
        self.put(frame)

    def _wait(self, frame: bytes) -> None:
        size = self._waiting_bytes + len(frame)
        if self._waiting and size > self.split.relay.limits.buffer_bytes:
            if self.state is PartState.OPEN:
                self._refuse(frame, ReasonCode.QUOTA_EXCEEDED)
                return
            if not self._full:
                self._full = True
                self.split.stop_reading_client()
        self._waiting.append(frame)
        self._waiting_bytes = size

    def _send_waiting(self) -> None:
        waiting = self._waiting
        while waiting and self.state is PartState.OPEN:
            if waiting[0][0] & 0xF0 == PUBLISH and len(self._flight) >= self.quota:
                break
            frame = waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._go(frame)
        if not waiting or self.state is PartState.OPEN:
            self._read_client_again()

    def _read_client_again(self) -> None:
        if self._full:
            self._full = False
            self.split.read_client_again()

    def _cannot(self, frame: bytes) -> None:
        """The broker is away, or does not want this client."""
        head = frame[0]
        if head & 0xF0 == _DISCONNECT:
            return
        if head in (_SUBSCRIBE, _UNSUBSCRIBE):
            self.split.subscribing.cannot(self, packet_id_at(frame, body_offset(frame, 0)))
        elif self.state is PartState.AWAY and (head == PUBREL or (head & QOS and self._holds)):
            size = self._waiting_bytes + len(frame)
            if self._waiting and size > self.split.relay.limits.buffer_bytes:
                if self.split.level == 5 and head != PUBREL:
                    self._refuse(frame, ReasonCode.QUOTA_EXCEEDED)
                else:
                    self.split.refuse_by_closing(self.name)
            else:
                self._waiting.append(frame)
                self._waiting_bytes = size
        elif head == PUBREL:
            reason = b"\x92" if self.split.level == 5 else b""
            packet_id = packet_id_at(frame, body_offset(frame, 0))
            self.split.released(packet_id)
            self.split.answer(acknowledgment(PUBCOMP, packet_id, reason))
        elif self.state is PartState.AWAY:
            self._refuse(frame, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        else:
            self._refuse(frame, ReasonCode.NOT_AUTHORIZED)

    @property
    def _holds(self) -> bool:
        """Whether messages wait for a broker that is away: MQTT 3.1.1 cannot refuse them."""
        return self.split.level != 5 or self.name in self.split.brokers.holding

    def _refuse_waiting(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for frame in waiting:
            self._cannot(frame)
        self._read_client_again()

    def _refuse(self, frame: bytes, code: ReasonCode) -> None:
        """A PUBLISH that does not go."""
        self.split.refuse_publish(frame, code, self.name)

    def flush(self) -> None:
        if self._out and self.status is SessionStatus.ESTABLISHED:
            self.wire.write(b"".join(self._out))
        self._out.clear()

    # ---- that both are there ---------------------------------------------------------------

    def beat(self, interval_s: float) -> None:
        """Half a keep-alive interval has passed: ask for a sign of life."""
        if self.state not in (PartState.RESTORING, PartState.OPEN):
            return
        self._silent_s = 0.0 if self._heard or self.read_holds else self._silent_s + interval_s
        if self._silent_s >= SILENT_S:
            self.give_up()
            return
        self._heard = False
        self.wire.write(b"\xc0\x00")

    def pause_writing(self) -> None:
        if not self.full:
            self.full = True
            self.split.stop_reading_client()

    def resume_writing(self) -> None:
        if self.full:
            self.full = False
            self.split.read_client_again()


_ANSWER_TO: Final = {PUBREL: PUBCOMP, _SUBSCRIBE: _SUBACK, _UNSUBSCRIBE: _UNSUBACK}


def _after_plain(data: bytes, offsets: Sequence[int], at: int) -> int:
    """Where the row of messages at QoS 0 ends that begins here; none of them is retained."""
    end = len(offsets) - 1
    if not at and isinstance(offsets, range):  # of the same length, and so often of the same kind
        heads = data[: offsets[-1] : offsets.step]
        if not heads.translate(None, _PLAIN):
            return end
    while at < end and data[offsets[at]] == PUBLISH:
        at += 1
    return at
