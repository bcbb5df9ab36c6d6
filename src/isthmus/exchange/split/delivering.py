"""What several brokers send to one client: identifiers, and its Receive Maximum.

The Receive Maximum holds over all brokers together.  Each is told its share.  What is too much
waits here: one message of each where the client allows fewer messages than there are brokers; and
the share of one that has forgotten what the client has not answered.  Who sends more than its share
breaks the rules [MQTT-3.3.4-9].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.split.identifiers import Identifiers
from isthmus.exchange.split.rows import puback_ids, publish_ids
from isthmus.mqtt.framing import body_offset
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.publish_layout import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    QOS,
    acknowledgment,
    packet_id_at,
    topic_bounds,
)

if TYPE_CHECKING:
    from isthmus.exchange.split.part import Part
    from isthmus.exchange.split.split import Split

__all__ = ["Delivering"]

_QOS_2 = 0x04


class Delivering:
    """Of one connection of a client."""

    __slots__ = ("_held", "_receive_maximum", "_split", "identifiers")

    def __init__(self, split: Split) -> None:
        self._split = split
        self.identifiers = Identifiers()
        """Its session's, once it is let in."""
        self._receive_maximum = IDENTIFIERS
        self._held: deque[tuple[Part, bytes]] = deque()

    def begin(self, identifiers: Identifiers, receive_maximum: int | None) -> None:
        self.identifiers = identifiers
        self._receive_maximum = receive_maximum or IDENTIFIERS
        for packet_id in identifiers.begin():
            self._split.answer(acknowledgment(PUBREL, packet_id))

    def take(self, part: Part, data: bytes, offsets: Sequence[int], at: int) -> int:
        """Where the row ends that begins with this PUBLISH and goes to the client unchanged.

        Of a broker's messages at QoS 1 or 2 that begin alike, those that the client can have now
        and under the identifier that they have.  They are noted.
        """
        start, end = offsets[at], len(offsets) - 1
        pos = start + 1
        while data[pos] >= 0x80:
            pos += 1
        if pos + 5 > offsets[at + 1]:
            return at
        pos += 3 + (data[pos + 1] << 8 | data[pos + 2])
        if self._held or pos + 2 > offsets[at + 1] or self.identifiers.is_new:
            return at
        identifiers, qos = self.identifiers, data[start] >> 1 & 3
        stop = min(end, at + max(0, self._receive_maximum - len(identifiers.open)))
        ids = publish_ids(data, offsets, at, stop, data[start:pos])
        return at + identifiers.take_row(part.name, ids, qos)

    def sender(self, data: bytes, offsets: Sequence[int], at: int) -> str:
        """The broker to which this PUBACK goes as it is; empty if one has to look closer."""
        start = offsets[at]
        if self._held or offsets[at + 1] - start != 4:
            return ""
        delivery = self.identifiers.deliveries.get(data[start + 2] << 8 | data[start + 3])
        return "" if delivery is None or delivery.theirs else delivery.broker

    def take_back(self, data: bytes, offsets: Sequence[int], at: int) -> int:
        """Where the row of PUBACKs ends that begins with this one, which has a `sender`."""
        end, answered = len(offsets) - 1, self.identifiers.answered
        start = offsets[at]
        like = self.identifiers.deliveries[data[start + 2] << 8 | data[start + 3]]
        ids = puback_ids(data, offsets, at)
        if ids and self.identifiers.row_answered(ids, like):
            return end
        while at < end:
            start = offsets[at]
            if (
                data[start] != PUBACK
                or offsets[at + 1] - start != 4
                or not answered(data[start + 2] << 8 | data[start + 3], like)
            ):
                break
            at += 1
        return at

    def publish(self, part: Part, frame: bytes) -> None:
        """A PUBLISH of a broker."""
        if not frame[0] & QOS:
            self._split.answer(frame)
            return
        _, at = topic_bounds(frame)
        if self.identifiers.is_open(part.name, packet_id_at(frame, at)):
            self._publish(part, frame)  # again: the client may be about to answer it
        elif self._held or len(self.identifiers.open) >= self._receive_maximum:
            self._held.append((part, frame))
            if len(self._held) > max(self._receive_maximum, len(self._split.brokers.names)):
                raise RemoteProtocolError(
                    "more messages than the Receive Maximum allows", section="MQTT-3.3.4-9"
                )
        else:
            self._publish(part, frame)

    def _publish(self, part: Part, frame: bytes) -> None:
        _, at = topic_bounds(frame)
        theirs = packet_id_at(frame, at)
        packet_id = self.identifiers.give(part.name, theirs, frame[0] >> 1 & 3)
        if not packet_id:
            raise RemoteProtocolError("no packet identifier is free for a broker's message")
        if packet_id != theirs:
            frame = b"%b%b%b" % (frame[:at], packet_id.to_bytes(2), frame[at + 2 :])
        if frame[0] & QOS == _QOS_2 and self.identifiers.is_to_be_cleared(packet_id):
            # It may hold it of a message that it was sent before the node was restarted.
            self._split.answer(acknowledgment(PUBREL, packet_id))
        self._split.answer(frame)

    def release(self, part: Part, frame: bytes) -> None:
        """A PUBREL of a broker; of an earlier life of the node, if its PUBLISH is not known."""
        theirs = packet_id_at(frame, body_offset(frame, 0))
        packet_id = self.identifiers.give(part.name, theirs, 2)
        if packet_id:
            self._split.answer(_with_id(frame, packet_id))

    def answered(self, head: int, frame: bytes) -> None:
        """The client's PUBACK, PUBREC or PUBCOMP."""
        at = body_offset(frame, 0)
        packet_id = packet_id_at(frame, at)
        if head == PUBCOMP and packet_id in self.identifiers.clearing:
            self.identifiers.clearing.discard(packet_id)
            return
        delivery = self.identifiers.deliveries.get(packet_id)
        if delivery is None:
            return
        refused = len(frame) > at + 2 and frame[at + 2] >= 0x80
        if head != PUBREC or refused:
            self.identifiers.done(packet_id)
        if delivery.broker:
            theirs = delivery.theirs or packet_id
            self._split.pass_on(delivery.broker, _with_id(frame, theirs))
        elif head == PUBREC and not refused:
            self._split.answer(acknowledgment(PUBREL, packet_id))
        while self._held and len(self.identifiers.open) < self._receive_maximum:
            self._publish(*self._held.popleft())

    def lost(self, part: Part) -> None:
        """What it has sent it sends again."""
        self._held = deque(each for each in self._held if each[0] is not part)

    def forget(self, part: Part) -> None:
        """The broker has forgotten what it has sent."""
        for packet_id in self.identifiers.forget(part.name):
            self._split.answer(acknowledgment(PUBREL, packet_id))


def _with_id(frame: bytes, packet_id: int) -> bytes:
    at = body_offset(frame, 0)
    return b"%b%b%b" % (frame[:at], packet_id.to_bytes(2), frame[at + 2 :])
