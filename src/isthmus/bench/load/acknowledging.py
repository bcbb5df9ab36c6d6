"""The answers that QoS 1 and 2 ask for: a subscriber's for messages, a publisher's for answers.

Bytes in, bytes out; no socket.  Frames that are alike are answered together, by slices with a step,
because that is what comes when there is much to do::

    subscriber   PUBLISH QoS 1 ▶ PUBACK     PUBLISH QoS 2 ▶ PUBREC     PUBREL ▶ PUBCOMP
    publisher    PUBACK, PUBCOMP ▶ its packet id is free again         PUBREC ▶ PUBREL

Source: MQTT 3.1.1 §4.3.  Nothing is sent twice here: a client whose connection breaks is lost to
the run, unless it is one that comes back (:mod:`isthmus.bench.load.returning`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from isthmus.bench.load.frames import MAX_FRAME_BYTES
from isthmus.errors import MalformedPacket, RemoteProtocolError
from isthmus.mqtt.framing import scan
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.publish_layout import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    QOS,
    publish_answer,
    topic_bounds,
)

__all__ = ["MAX_IN_FLIGHT", "Answers", "InFlight", "answers"]

MAX_IN_FLIGHT: Final = IDENTIFIERS


class Answers:
    """What one subscriber owes for what it reads."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def take(self, chunk: bytes) -> bytes:
        """The answers to the packets that `chunk` completes; bad bytes raise a protocol error."""
        data = self._rest + chunk if self._rest else chunk
        bounds = scan(data, MAX_FRAME_BYTES)
        self._rest = data[bounds[-1] :]
        if isinstance(bounds, range) and (alike := _to_alike(data, bounds.step)):
            return alike
        owed = bytearray()
        for begin in bounds[:-1]:
            first = data[begin]
            if first == PUBREL:
                owed += answers(PUBCOMP, data[begin + 2 : begin + 3], data[begin + 3 : begin + 4])
            elif first & 0xF0 == PUBLISH and first & QOS:
                at = topic_bounds(data, begin)[1]
                owed += answers(publish_answer(first), data[at : at + 1], data[at + 1 : at + 2])
        return bytes(owed)


def _to_alike(data: bytes, size: int) -> bytes:
    """Answers to PUBLISHes of that size that differ in packet id and payload only, else nothing."""
    if data[0] & 0xF0 != PUBLISH or not data[0] & QOS:
        return b""
    at = topic_bounds(data)[1]
    count = len(data) // size
    if any(data[byte::size].count(data[byte]) != count for byte in range(at)):
        return b""
    return answers(publish_answer(data[0]), data[at::size], data[at + 1 :: size])


def answers(kind: int, high: bytes, low: bytes) -> bytes:
    """Packets of one kind, with the packet ids whose first and second bytes are given."""
    count = len(high)
    packets = bytearray(4 * count)
    packets[0::4] = bytes((kind,)) * count
    packets[1::4] = b"\x02" * count
    packets[2::4] = high
    packets[3::4] = low
    return bytes(packets)


class InFlight:
    """The packet ids of one publisher; one is not used again before its message is acknowledged.

    At most `MAX_IN_FLIGHT` are in flight: when the next one in turn is not free, `next_ids` gives
    none, and the publisher waits.
    """

    __slots__ = ("_ids", "_next", "_rest")

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._next = 1
        self._rest = b""

    def __len__(self) -> int:
        return len(self._ids)

    def next_ids(self, count: int) -> list[int]:
        """The next packet ids, fewer than `count` if one of them is still in flight."""
        found: list[int] = []
        packet_id = self._next
        while len(found) < count and packet_id not in self._ids and len(found) < MAX_IN_FLIGHT:
            found.append(packet_id)
            packet_id = packet_id % MAX_IN_FLIGHT + 1
        return found

    def sent(self, ids: list[int]) -> None:
        """These, as `next_ids` gave them, are on their way."""
        self._ids.update(ids)
        if ids:
            self._next = ids[-1] % MAX_IN_FLIGHT + 1

    def answered(self, chunk: bytes) -> bytes:
        """Free the packet ids that `chunk` acknowledges; the PUBRELs that it asks for."""
        data = self._rest + chunk if self._rest else chunk
        bounds = scan(data, MAX_FRAME_BYTES)
        self._rest = data[bounds[-1] :]
        of_four = isinstance(bounds, range) and bounds.step == 4
        if of_four and data[::4].count(data[0]) * 4 == len(data):
            return self._take(data[0], data)
        return b"".join(self._take(data[a], data[a:b]) for a, b in pairwise(bounds))

    def _take(self, kind: int, packets: bytes) -> bytes:
        """Packets of one kind and length: several answers, or one packet of any sort."""
        if kind not in (PUBACK, PUBREC, PUBCOMP):
            return b""  # PINGRESP, for one, asks for nothing
        if len(packets) % 4:
            raise MalformedPacket(f"an acknowledgment of {len(packets)} bytes; 4 are right")
        high, low = packets[2::4], packets[3::4]
        if kind == PUBREC:
            return answers(PUBREL, high, low)
        ids = [a << 8 | b for a, b in zip(high, low, strict=True)]
        if unknown := [packet_id for packet_id in ids if packet_id not in self._ids]:
            raise RemoteProtocolError(
                f"acknowledges packet id {unknown[0]}, which is not in flight",
                section="MQTT-2.3.1-6",
            )
        self._ids.difference_update(ids)
        return b""
