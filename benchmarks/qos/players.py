"""Publishers that keep a window of messages in flight, and a subscriber of each, as raw sockets.

    publisher n ──PUBLISH, window of W──▶ topic n ──PUBLISH──▶ subscriber n
                ◀──PUBACK / PUBREC, PUBCOMP──      ◀──PUBACK / PUBREC, PUBCOMP──

All at one QoS, in MQTT 3.1.1; every PUBLISH of a publisher is equally long, its payload begins with
its number in turn.  So nothing is decoded, and still every message is checked: it is the next one
of its publisher.  A loss, a repetition or a change of order ends the run.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import LoadError

__all__ = ["PAYLOAD_BYTES", "PROBE", "Latencies", "Publisher", "Subscriber", "topic_of"]

PAYLOAD_BYTES = 32
IDS = 1_000
"""Identifiers in turn, and numbers in payloads; many more than are ever in flight."""
PROBE = 0xFFFF
"""In place of a number: the message is to show that the way is there, and may come late."""
FEW = 6
"""So many packets are quicker looked at one by one."""

PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x30, 0x40, 0x50, 0x62, 0x70


def topic_of(number: int) -> bytes:
    return b"loop/%02d" % number


@dataclass(slots=True)
class Latencies:
    """How long acknowledgments took, each for as many messages as came with it."""

    taken_s: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, taken_s: float, count: int) -> None:
        self.taken_s.append(taken_s)
        self.counts.append(count)

    def percentile(self, percent: float) -> float:
        """Below it lie so many per cent of the messages."""
        order = np.argsort(self.taken_s)
        counts = np.asarray(self.counts)[order].cumsum()
        at = int(np.searchsorted(counts, counts[-1] * percent / 100))
        return float(np.asarray(self.taken_s)[order[min(at, len(order) - 1)]])


class Publisher:
    """Sends as many messages as are acknowledged, until it is told to stop."""

    def __init__(
        self, sock: socket.socket, number: int, qos: int, window: int, latencies: Latencies
    ) -> None:
        self.sock = sock
        topic = topic_of(number)
        rest = bytes(PAYLOAD_BYTES - 2)
        head = bytes((PUBLISH | qos << 1, 2 + len(topic) + 2 + PAYLOAD_BYTES))
        head += len(topic).to_bytes(2) + topic
        frames = [
            head + (at + 1).to_bytes(2) + at.to_bytes(2) + rest  # identifier, number, padding
            for at in range(IDS)
        ]
        self._size = len(frames[0])
        self._frames = memoryview(b"".join(frames) * 2)
        self._at = 0
        self._two_steps = qos == 2
        self._window = window
        self._in_flight: deque[tuple[float, int]] = deque()
        """When how many were sent together."""
        self._latencies = latencies
        self._part = b""
        self.sent = self.acknowledged = 0
        self.stopped = False

    def begin(self) -> None:
        self._send(self._window, b"")

    def turn(self) -> None:
        """Read what has come, answer it, and send as many anew as are acknowledged."""
        data = self.sock.recv(65_536)
        if not data:
            raise LoadError("a publisher's connection was closed under load")
        if self._part:
            data, self._part = self._part + data, b""
        if odd := len(data) % 4:
            data, self._part = data[:-odd], data[-odd:]
        count, answer = len(data) // 4, b""
        if self._two_steps:
            count, answer = _answered(data)
        elif data and data[0] != PUBACK:
            raise LoadError(f"PUBACK expected, got {data[:4].hex(' ')}")
        self.acknowledged += count
        self._note(count)
        if self.stopped:
            count = 0
        if count or answer:
            self._send(count, answer)

    def _note(self, count: int) -> None:
        now_s, in_flight = time.perf_counter(), self._in_flight
        while count:
            sent_s, several = in_flight[0]
            done = min(count, several)
            self._latencies.add(now_s - sent_s, done)
            count -= done
            if done == several:
                in_flight.popleft()
            else:
                in_flight[0] = sent_s, several - done

    def _send(self, count: int, answer: bytes) -> None:
        data = answer
        if count:
            size, at = self._size, self._at
            data = answer + bytes(self._frames[at * size : (at + count) * size])
            self._at = (at + count) % IDS
            self.sent += count
            self._in_flight.append((time.perf_counter(), count))
        self.sock.sendall(data)


def _answered(data: bytes) -> tuple[int, bytes]:
    """At QoS 2: how many messages are over, and the PUBRELs that are asked for."""
    if len(data) <= 4 * FEW:
        over, answers = 0, []
        for at in range(0, len(data), 4):
            if data[at] == PUBCOMP:
                over += 1
            elif data[at] == PUBREC:
                answers.append(b"\x62" + data[at + 1 : at + 4])
            else:
                raise LoadError(f"PUBREC or PUBCOMP expected, got {data[at : at + 4].hex(' ')}")
        return over, b"".join(answers)
    packets = np.frombuffer(data, np.uint8).reshape(-1, 4)
    is_rec = packets[:, 0] == PUBREC
    over = int((packets[:, 0] == PUBCOMP).sum())
    if over + int(is_rec.sum()) != len(packets):
        raise LoadError("a publisher got something else than PUBREC and PUBCOMP")
    rels = packets[is_rec]
    rels[:, 0] = PUBREL
    return over, rels.tobytes()


class Subscriber:
    """Acknowledges what it gets; each message is to be the next one."""

    def __init__(self, sock: socket.socket, number: int, qos: int) -> None:
        self.sock = sock
        topic = topic_of(number)
        self._qos = qos
        self._size = 2 + 2 + len(topic) + 2 + PAYLOAD_BYTES
        self._id_at = 2 + 2 + len(topic)
        self._next = 0
        self._part = b""
        self.delivered = 0
        self.reached = False
        """Whether a probe has come."""

    def turn(self) -> None:
        data = self.sock.recv(1 << 20)
        if not data:
            raise LoadError("a subscriber's connection was closed under load")
        if self._part:
            data, self._part = self._part + data, b""
        answer = self._same(data) if self._qos == 1 else self._mixed(data)
        if answer:
            self.sock.sendall(answer)

    def _same(self, data: bytes) -> bytes:
        """At QoS 1 all that comes is equally long."""
        size, id_at = self._size, self._id_at
        count, odd = divmod(len(data), size)
        if odd:
            self._part = data[-odd:]
        if count == 0:
            return b""
        if count <= FEW:
            answers = []
            for at in range(0, count * size, size):
                self._check(data, at)
                answers.append(b"\x40\x02" + data[at + id_at : at + id_at + 2])
            return b"".join(answers)
        packets = np.frombuffer(data, np.uint8, count * size).reshape(count, size)
        self._check_all(packets)
        acks = np.empty((count, 4), np.uint8)
        acks[:, 0], acks[:, 1] = PUBACK, 2
        acks[:, 2:] = packets[:, id_at : id_at + 2]
        return acks.tobytes()

    def _mixed(self, data: bytes) -> bytes:
        """At QoS 2 messages and PUBRELs."""
        size, id_at, end = self._size, self._id_at, len(data)
        at, answers = 0, []
        while at + 4 <= end:
            if data[at] == PUBREL:
                answers.append(b"\x70\x02" + data[at + 2 : at + 4])
                at += 4
            elif at + size <= end:
                self._check(data, at)
                answers.append(b"\x50\x02" + data[at + id_at : at + id_at + 2])
                at += size
            else:
                break
        self._part = data[at:]
        return b"".join(answers)

    def _check(self, data: bytes, at: int) -> None:
        if data[at] & 0xF6 != PUBLISH | self._qos << 1:
            raise LoadError(f"a message at QoS {self._qos} expected, got 0x{data[at]:02x}")
        (number,) = struct.unpack_from(">H", data, at + self._id_at + 2)
        if number == PROBE:
            self.reached = True
        else:
            self._is_next(number, number, 1)

    def _check_all(self, packets: NDArray[np.uint8]) -> None:
        if (packets[:, 0] & 0xF6 != PUBLISH | self._qos << 1).any():
            raise LoadError(f"something else than messages at QoS {self._qos} came")
        id_at = self._id_at
        numbers = packets[:, id_at + 2].astype(np.int64) << 8 | packets[:, id_at + 3]
        numbers = numbers[numbers != PROBE]
        if (np.diff(numbers) % IDS != 1).any():
            raise LoadError("messages were lost, repeated or out of order")
        if len(numbers):
            self._is_next(int(numbers[0]), int(numbers[-1]), len(numbers))

    def _is_next(self, first: int, last: int, count: int) -> None:
        if first != self._next:
            raise LoadError(f"message {first} of a publisher came where {self._next} was due")
        self._next = (last + 1) % IDS
        self.delivered += count
