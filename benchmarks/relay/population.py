"""The clients of the load: who publishes what, who receives it, and the check of what arrived.

    publisher p ──▶ topic p mod T ──▶ every subscriber s with s mod T = p mod T

With 50 publishers, 50 subscribers and 5 topics each message goes to 10 subscribers.

A subscriber counts bytes: the number of messages is the number of bytes over `FRAME_BYTES`,
whatever the chunks.  It checks the first byte of every frame, and the sequence number of one
frame per chunk (`take`) or of every frame (`take_all`).  At the end the count of each subscriber
is compared with the number published on its topic, so that no loss or duplicate can hide.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.relay.clients import LoadError, connected, subscribe_clients
from benchmarks.relay.wire import (
    FRAME_BYTES,
    PAYLOAD,
    PAYLOAD_AT,
    PUBLISH_QOS0,
    RECORD,
    publish,
    topic,
)

__all__ = ["Population", "Publisher", "Shape", "Subscriber", "populate"]

MOST_AT_ONCE = 256  # messages a publisher can hand over in one send


@dataclass(frozen=True, slots=True)
class Shape:
    """How many clients, on how many topics."""

    publishers: int = 50
    subscribers: int = 50
    topics: int = 5

    @property
    def fan_out(self) -> int:
        """Subscribers that each message goes to."""
        return self.subscribers // self.topics

    def __post_init__(self) -> None:
        if self.subscribers % self.topics or self.publishers % self.topics:
            raise ValueError(f"{self}: both kinds of clients must spread evenly over the topics")


class Publisher:
    """Sends frames with its own running sequence number; keeps what the socket did not take."""

    __slots__ = ("_buffer", "_frame", "_left", "_view", "number", "seq", "sock", "topic_number")

    def __init__(self, number: int, topic_number: int, sock: socket.socket) -> None:
        self.number = number
        self.topic_number = topic_number
        self.sock = sock
        self.seq = 0
        self._frame = publish(topic(topic_number), 0, 0, number)
        self._buffer = bytearray(self._frame * MOST_AT_ONCE)
        self._view = memoryview(self._buffer)
        self._left = b""  # the tail of a send that the socket did not take

    def send(self, count: int, t_send_ns: int = 0) -> int:
        """Publish up to `count` messages in one send; how many (0: the socket is full)."""
        if self._left and not self._finish():
            return 0
        count = min(count, MOST_AT_ONCE)
        buffer, pack, number, seq = self._buffer, PAYLOAD.pack_into, self.number, self.seq
        for at in range(PAYLOAD_AT, count * FRAME_BYTES, FRAME_BYTES):
            pack(buffer, at, t_send_ns, seq, number)
            seq += 1
        size = count * FRAME_BYTES
        try:
            taken = self.sock.send(self._view[:size])
        except BlockingIOError:
            return 0
        if taken != size:  # the frames are promised: the rest goes first the next time
            self._left = bytes(self._view[taken:size])
        self.seq = seq
        return count

    def _finish(self) -> bool:
        try:
            self._left = self._left[self.sock.send(self._left) :]
        except BlockingIOError:
            pass
        return not self._left

    def flush(self) -> bool:
        """Whether nothing is left over from an earlier send."""
        return not self._left or self._finish()


class Subscriber:
    """Counts and checks what one subscriber receives; knows no socket."""

    __slots__ = ("_last_seq", "_tail", "received_bytes", "topic_number")

    def __init__(self, topic_number: int) -> None:
        self.topic_number = topic_number
        self.received_bytes = 0
        self._last_seq: dict[int, int] = {}
        self._tail = b""

    @property
    def delivered(self) -> int:
        """Whole messages received so far."""
        return self.received_bytes // FRAME_BYTES

    def take(self, buffer: bytearray, size: int) -> int:
        """Count `size` bytes of `buffer`, checking by sample; whole messages that they complete."""
        before = self.received_bytes
        after = before + size
        first = -before % FRAME_BYTES  # where the first frame starts in this chunk
        heads = buffer[first:size:FRAME_BYTES]
        if heads.count(PUBLISH_QOS0) != len(heads):
            raise LoadError(f"not a PUBLISH at QoS 0 among {heads.hex(' ')}")
        if first + FRAME_BYTES <= size:
            _, seq, publisher = PAYLOAD.unpack_from(buffer, first + PAYLOAD_AT)
            if seq <= self._last_seq.get(publisher, -1):
                raise LoadError(f"publisher {publisher}: message {seq} twice or out of order")
            self._last_seq[publisher] = seq
        self.received_bytes = after
        return after // FRAME_BYTES - before // FRAME_BYTES

    def take_all(self, chunk: bytes) -> list[int]:
        """Check every frame that `chunk` completes; their send times in ns."""
        data = self._tail + chunk
        whole = len(data) - len(data) % FRAME_BYTES
        times = []
        last_seq = self._last_seq
        for head, t_send_ns, seq, publisher in RECORD.iter_unpack(data[:whole]):
            if head != PUBLISH_QOS0:
                raise LoadError(f"not a PUBLISH at QoS 0: first byte {head:#04x}")
            if seq != last_seq.get(publisher, -1) + 1:
                raise LoadError(
                    f"publisher {publisher}: message {seq} after {last_seq.get(publisher, -1)}"
                )
            last_seq[publisher] = seq
            times.append(t_send_ns)
        self._tail = data[whole:]
        self.received_bytes += len(chunk)
        return times


@dataclass(frozen=True, slots=True)
class Population:
    """Connected publishers and subscribers; subscriber `i` reads from `sockets[i]`."""

    shape: Shape
    publishers: list[Publisher]
    subscribers: list[Subscriber]
    sockets: list[socket.socket]

    def sent(self) -> int:
        """Messages published so far."""
        return sum(publisher.seq for publisher in self.publishers)

    def delivered(self) -> int:
        """Messages received so far by all subscribers together."""
        return sum(subscriber.delivered for subscriber in self.subscribers)

    def lost(self) -> int:
        """Deliveries still missing; a duplicate anywhere is an error, not a negative loss."""
        on_topic = [0] * self.shape.topics
        for publisher in self.publishers:
            on_topic[publisher.topic_number] += publisher.seq
        missing = 0
        for subscriber in self.subscribers:
            gap = on_topic[subscriber.topic_number] - subscriber.delivered
            if gap < 0:
                raise LoadError(f"a subscriber got {-gap} messages more than were published")
            missing += gap
        return missing


@contextmanager
def populate(port: int, shape: Shape, tag: str) -> Iterator[Population]:
    """Connect and subscribe everyone at `port`; `tag` makes the client ids unique."""
    sub_ids = [f"{tag}-s{i}" for i in range(shape.subscribers)]
    pub_ids = [f"{tag}-p{i}" for i in range(shape.publishers)]
    with connected(port, sub_ids) as sub_socks, connected(port, pub_ids) as pub_socks:
        subscribers = [Subscriber(i % shape.topics) for i in range(shape.subscribers)]
        subscribe_clients(sub_socks, [topic(s.topic_number) for s in subscribers])
        publishers = [Publisher(i, i % shape.topics, s) for i, s in enumerate(pub_socks)]
        yield Population(shape, publishers, subscribers, sub_socks)
