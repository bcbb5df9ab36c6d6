"""What subscribers receive: noted while it arrives, understood later and all at once.

While bytes arrive nothing is looked at.  :class:`Inbox` takes each read into one arena that all
connections share and notes who read how much, and when.  When arena or notes are full, and at least
twice a second, :class:`Parser` makes deliveries of it with NumPy: all messages of a subscription
are equally long and begin alike (:mod:`isthmus.bench.load.frames`), so the bytes of a connection
are viewed as rows, and what stands in front of each payload is compared in one step.  Where that
does not hold (something else came in between) the connection's frames are walked one by one.

Invariants:

* A delivery's `t_receive_ns` is the time of the read that brought the last byte of its frame.
* The deliveries of one subscriber stay in their order of arrival.
* A PUBLISH that is no delivery of this run is counted in `strays`, by reason, and nothing else is
  done with it.  A connection whose bytes are not MQTT is named in `broken`, and read no further.
* Memory: the arena (512 KiB), the notes (32 KiB), and per connection less than one frame,
  which is at most `MAX_FRAME_BYTES` long.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from isthmus.bench.load.clock import now_ns
from isthmus.bench.load.frames import MAX_FRAME_BYTES, Template
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.framing import scan
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.publish_layout import QOS, topic_bounds, topic_start
from isthmus.pipeline.log.payload import MAGIC, NUMPY_FIELDS, SIZE

__all__ = ["Columns", "Inbox", "LoadSubscription", "Parser"]

ARENA_BYTES: Final = 1 << 19
READ_BYTES: Final = 1 << 16
READS: Final = 2048

NOT_OURS: Final = "not a message of the benchmark"
OTHER_RUN: Final = "a message of another run"
OTHER_TOPIC: Final = "a topic that was not subscribed"
OTHER_SIZE: Final = "a payload of another size"

_NOTE: Final = struct.Struct("<IIq")
_NOTE_TYPE: Final = np.dtype([("subscriber", "<u4"), ("size", "<u4"), ("t_ns", "<i8")])
_PAYLOAD: Final = np.dtype(NUMPY_FIELDS)

Bytes = NDArray[np.uint8]
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LoadSubscription:
    """One subscriber's only subscription."""

    client: int
    topic: int
    template: Template


class Inbox:
    """The reads of all subscribers, in order, until they are parsed."""

    __slots__ = ("_at", "_noted", "_notes", "_view", "full", "received_bytes")

    def __init__(self) -> None:
        self._view = memoryview(bytearray(ARENA_BYTES))
        self._notes = bytearray(READS * _NOTE.size)
        self._at = 0
        self._noted = 0
        self.full = False
        self.received_bytes = 0
        """By all reads."""

    def read(self, subscriber: int, recv_into: Callable[[memoryview], int]) -> int:
        """One read of that subscriber's socket; its size, 0 at the end of the stream.

        Not while `full`.
        """
        at = self._at
        size = recv_into(self._view[at : at + READ_BYTES])
        if size:
            noted = self._noted
            _NOTE.pack_into(self._notes, noted, subscriber, size, now_ns())
            self._noted = noted = noted + _NOTE.size
            self._at = at = at + size
            self.received_bytes += size
            self.full = noted == READS * _NOTE.size or at > ARENA_BYTES - READ_BYTES
        return size

    def last(self, size: int) -> bytes:
        """What the last read brought, which was that long."""
        return bytes(self._view[self._at - size : self._at])

    @property
    def notes(self) -> NDArray[Any]:
        """Subscriber, size and time of every read."""
        return np.frombuffer(self._notes, _NOTE_TYPE, self._noted // _NOTE.size)

    @property
    def view(self) -> memoryview:
        """The bytes of all reads, one after the other."""
        return self._view

    def clear(self) -> None:
        """Forget everything; it has been parsed."""
        self._at = self._noted = 0
        self.full = False


@dataclass(frozen=True, slots=True)
class _Streams:
    """Each connection's bytes since its last whole frame; `number` counts those that have some.

    Positions are counted through all streams one after the other, so that one array of ends and one
    of times serve them all.
    """

    subscribers: list[int]
    data: list[bytes]
    begins: list[int]
    read_ends: NDArray[np.int64]
    read_times: NDArray[np.int64]

    def times(self, frame_ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """When the read came that completed each frame; `frame_ends` increase."""
        until = np.searchsorted(frame_ends, self.read_ends, side="right")
        return np.repeat(self.read_times, np.diff(until, prepend=0))


@dataclass(frozen=True, slots=True)
class _Frames:
    """PUBLISHes of some streams, those of one stream after those of another."""

    streams: list[int]
    counts: list[int]
    """How many there are of each stream."""
    payloads: Bytes
    ends: NDArray[np.int64]


class Parser:
    """Makes deliveries of what an inbox holds; keeps each connection's unfinished frame."""

    def __init__(self, subscriptions: Sequence[LoadSubscription]) -> None:
        self._subscriptions = tuple(subscriptions)
        self._clients = np.array([s.client for s in subscriptions], np.uint32)
        self._topics = np.array([s.topic for s in subscriptions], np.uint32)
        self._rest = [b""] * len(subscriptions)
        self.received = np.zeros(len(subscriptions), np.int64)
        """Deliveries of each subscriber since it connected."""
        self.strays: Counter[str] = Counter()
        self.broken: dict[int, str] = {}
        """Subscribers that sent what is not MQTT, and why it is not."""

    def qos(self, subscriber: int) -> int:
        """At which that subscriber's messages come."""
        return self._subscriptions[subscriber].template.qos

    def preload(self, subscriber: int, early: bytes) -> None:
        """Bytes that were read before the first read of the inbox."""
        self._rest[subscriber] = early

    def parse(self, inbox: Inbox, tag: int | None) -> Columns:
        """The deliveries of the run with this tag (None: of no run); the inbox is empty then."""
        streams = self._streams(inbox)
        inbox.clear()
        by_template: defaultdict[Template, list[int]] = defaultdict(list)
        for number, subscriber in enumerate(streams.subscribers):
            by_template[self._subscriptions[subscriber].template].append(number)
        found: list[_Frames] = []
        for template, numbers in by_template.items():
            alike, odd = self._alike(streams, numbers, template)
            found.append(alike)
            found.extend(self._walk(streams, number, template) for number in odd)
        parts = [self._deliveries(streams, frames, tag) for frames in found]
        if len(parts) == 1:
            return parts[0]
        nothing = _Frames([], [], np.zeros((0, SIZE), np.uint8), np.zeros(0, np.int64))
        parts.append(self._deliveries(streams, nothing, tag))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _streams(self, inbox: Inbox) -> _Streams:
        notes = inbox.notes
        order = np.argsort(notes["subscriber"], kind="stable")
        sizes = notes["size"].astype(np.int64)
        ends = np.cumsum(sizes)
        view = inbox.view
        pieces = [
            view[begin:end]
            for begin, end in zip((ends - sizes)[order].tolist(), ends[order].tolist(), strict=True)
        ]
        of = notes["subscriber"][order]
        firsts = np.flatnonzero(np.diff(of, prepend=np.uint32(0xFFFFFFFF))).tolist()
        subscribers = of[firsts].tolist()
        bounds = list(pairwise([*firsts, len(pieces)]))
        rests = [self._rest[subscriber] for subscriber in subscribers]
        data = [b"".join((rest, *pieces[a:b])) for rest, (a, b) in zip(rests, bounds, strict=True)]
        lengths = np.array([len(stream) for stream in data], np.int64)
        kept = np.cumsum([len(rest) for rest in rests], dtype=np.int64)
        return _Streams(
            subscribers,
            data,
            (np.cumsum(lengths) - lengths).tolist(),
            np.cumsum(sizes[order]) + np.repeat(kept, [b - a for a, b in bounds]),
            notes["t_ns"][order],
        )

    def _alike(
        self, streams: _Streams, numbers: list[int], template: Template
    ) -> tuple[_Frames, list[int]]:
        """Of the streams that are nothing but frames like `template`; and which are not."""
        size, head = template.size, np.frombuffer(template.head, np.uint8)
        alike: list[int] = []
        odd: list[int] = []
        for number in numbers:
            stream = streams.data[number]
            rest = stream[len(stream) // size * size :][: len(head)]
            # What is left over must begin as a frame does, or it is none of ours.
            (alike if template.head.startswith(rest) else odd).append(number)
        frames, counts = _rows([streams.data[number] for number in alike], size)
        if not (frames[:, : len(head)] == head).all():
            wrong = (frames[:, : len(head)] != head).any(axis=1)
            of_row = np.repeat(alike, counts)
            found = dict.fromkeys(of_row[wrong].tolist())
            odd += found
            alike = [number for number in alike if number not in found]
            frames, counts = _rows([streams.data[number] for number in alike], size)
        for number, count in zip(alike, counts, strict=True):
            self._rest[streams.subscribers[number]] = streams.data[number][count * size :]
        payloads = frames[:, template.payload_at : template.payload_at + SIZE]
        # The n-th frame of a stream ends n frames after the stream begins.
        begins = np.repeat(np.array([streams.begins[n] for n in alike], np.int64), counts)
        before = np.repeat(np.cumsum(counts, dtype=np.int64) - counts, counts)
        ends = begins + (np.arange(1, len(frames) + 1) - before) * size
        return _Frames(alike, counts, np.ascontiguousarray(payloads), ends), odd

    def _walk(self, streams: _Streams, number: int, template: Template) -> _Frames:
        """Frame by frame: any packets, whatever their length."""
        stream = streams.data[number]
        subscriber = streams.subscribers[number]
        try:
            bounds = np.asarray(scan(stream, MAX_FRAME_BYTES), np.int64)
        except RemoteProtocolError as error:
            self.broken[subscriber] = str(error)
            bounds = np.asarray(scan(stream[: error.offset]), np.int64)
            self._rest[subscriber] = b""
        else:
            self._rest[subscriber] = stream[bounds[-1] :]
        raw = np.frombuffer(stream, np.uint8)
        begins, ends = bounds[:-1], bounds[1:]
        publishes = raw[begins] >> 4 == PacketType.PUBLISH
        begins, ends = begins[publishes], ends[publishes]
        payloads = np.zeros((len(begins), SIZE), np.uint8)
        known = ends - begins == template.size
        heads = raw[begins[known, None] + np.arange(len(template.head))]
        known[known] = (heads == np.frombuffer(template.head, np.uint8)).all(axis=1)
        payloads[known] = raw[begins[known, None] + (template.payload_at + np.arange(SIZE))]
        for at in np.flatnonzero(~known).tolist():
            payload = self._unlike(stream[begins[at] : ends[at]], template)
            if payload is not None:
                payloads[at] = np.frombuffer(payload, np.uint8, SIZE)
                known[at] = True
        frame_ends = streams.begins[number] + ends[known]
        return _Frames([number], [len(frame_ends)], payloads[known], frame_ends)

    def _unlike(self, frame: bytes, template: Template) -> bytes | None:
        """The payload of a PUBLISH that does not look as the broker should send it, if ours."""
        start, end = topic_bounds(frame)
        payload = frame[end + (2 if frame[0] & QOS else 0) :]
        if frame[start:end] != template.frame[topic_start(template.frame) : template.packet_id_at]:
            self.strays[OTHER_TOPIC] += 1
        elif len(payload) < SIZE:
            self.strays[NOT_OURS] += 1
        elif len(payload) != template.payload_bytes:
            ours = payload.startswith(MAGIC.to_bytes(4, "little"))
            self.strays[OTHER_SIZE if ours else NOT_OURS] += 1
        else:
            return payload
        return None

    def _deliveries(self, streams: _Streams, frames: _Frames, tag: int | None) -> Columns:
        """The columns of the messages that are of this run; the others are strays."""
        of = np.array([streams.subscribers[number] for number in frames.streams], np.int64)
        subscribers = np.repeat(of, frames.counts)
        t_receive_ns = streams.times(frames.ends)
        fields = frames.payloads.view(_PAYLOAD)[:, 0]
        ours = fields["magic"] == MAGIC
        wanted = ours & (fields["tag"] == np.uint64(tag)) if tag is not None else ours & False
        if not wanted.all():
            self._count_strays(int(len(ours) - ours.sum()), int(ours.sum() - wanted.sum()))
            fields, subscribers = fields[wanted], subscribers[wanted]
            t_receive_ns = t_receive_ns[wanted]
        self.received += np.bincount(subscribers, minlength=len(self.received))
        return {
            "subscriber": self._clients[subscribers],
            "publisher": fields["publisher"],
            "message": fields["message"],
            "topic": self._topics[subscribers],
            "t_send_ns": fields["t_send_ns"],
            "t_receive_ns": t_receive_ns,
        }

    def _count_strays(self, not_ours: int, other_run: int) -> None:
        for reason, count in ((NOT_OURS, not_ours), (OTHER_RUN, other_run)):
            if count:
                self.strays[reason] += count


def _rows(streams: list[bytes], size: int) -> tuple[Bytes, list[int]]:
    """The whole frames of `streams`, one per row, and how many each has; all are `size` long."""
    counts = [len(stream) // size for stream in streams]
    whole = b"".join(stream[: count * size] for stream, count in zip(streams, counts, strict=True))
    return np.frombuffer(whole, np.uint8).reshape(-1, size), counts
