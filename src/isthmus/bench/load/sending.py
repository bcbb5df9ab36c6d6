"""Publishers that keep to a schedule of time, whatever becomes of their messages.

Open loop: message *k* of a publisher is due at ``start + phase + k · interval``, and answers, slow
brokers or lost time move nothing.  The phases of all publishers spread over one interval.  One wake
of :class:`SendSchedule` serves all that are due, with one write for each publisher.

A publisher whose socket takes no more, or whose 65,535 packet ids are all in flight (QoS 1 and 2),
is *held*.  What falls due meanwhile is sent when it can be, with the time at which it really is
sent; what cannot be sent before the end is not sent, so `sent` is less than `offered`.  Nothing is
queued here: beyond the kernel's socket buffer there is at most the rest of one frame per publisher,
and at QoS 2 the PUBRELs it owes, four bytes for each message in flight.

A publisher that is *away* will come back; what falls due meanwhile is left out, and is not offered.

`t_send_ns` is taken just before the write of its frames, at most `WRITE_BYTES`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from isthmus.bench.load.acknowledging import InFlight
from isthmus.bench.load.clock import now_ns
from isthmus.bench.load.frames import Template
from isthmus.bench.load.headroom import LATE_NS, Headroom
from isthmus.bench.load.plan import phase_ns
from isthmus.bench.load.receiving import Columns
from isthmus.bench.load.returning import KeptInFlight
from isthmus.pipeline.log.payload import LAYOUT, MAGIC

__all__ = ["Outbox", "Publisher", "SendSchedule", "SentLog"]

WRITE_BYTES: Final = 1 << 14
WAKE_NS: Final = 500_000
"""Two wakes are at least so far apart, so that at high rates one serves many publishers."""
SENT_NOTES: Final = 8192

_PACKET_ID: Final = struct.Struct(">H")
_NOTE: Final = struct.Struct("<IIIIq")
_NOTE_TYPE: Final = np.dtype(
    {
        "names": ["publisher", "message", "count", "topic", "t_ns"],
        "formats": ["<u4", "<u4", "<u4", "<u4", "<i8"],
        "offsets": [0, 4, 8, 12, 16],
        "itemsize": _NOTE.size,
    }
)


class SentLog:
    """What was written, a note for each write, until `drain` makes rows of it."""

    __slots__ = ("_at", "_buffer", "_drain")

    def __init__(self, drain: Callable[[Columns], None]) -> None:
        self._buffer = bytearray(SENT_NOTES * _NOTE.size)
        self._at = 0
        self._drain = drain

    def note(self, publisher: int, message: int, count: int, topic: int, t_ns: int) -> None:
        """`count` messages from `message` on went out in one write."""
        _NOTE.pack_into(self._buffer, self._at, publisher, message, count, topic, t_ns)
        self._at += _NOTE.size
        if self._at == len(self._buffer):
            self.flush()

    def flush(self) -> None:
        """Hand everything on as columns of `publishes`."""
        if not self._at:
            return
        notes = np.frombuffer(self._buffer, _NOTE_TYPE, self._at // _NOTE.size)
        counts = notes["count"]
        before = np.cumsum(counts, dtype=np.int64) - counts
        number = np.arange(int(counts.sum())) - np.repeat(before, counts)
        self._drain(
            {
                "publisher": np.repeat(notes["publisher"], counts),
                "message": np.repeat(notes["message"], counts) + number.astype(np.uint32),
                "topic": np.repeat(notes["topic"], counts),
                "t_send_ns": np.repeat(notes["t_ns"], counts),
            }
        )
        self._at = 0


class Outbox:
    """Where frames of one template are filled in before a write; writes never overlap."""

    __slots__ = ("_buffer", "most", "template", "view")

    def __init__(self, template: Template) -> None:
        self.template = template
        self.most = max(1, WRITE_BYTES // template.size)
        """Messages in one write."""
        self._buffer = bytearray(template.frame * self.most)
        self.view = memoryview(self._buffer)

    def fill(self, publisher: int, message: int, count: int, tag: int, t_ns: int) -> None:
        """Make the first `count` frames that publisher's messages from `message` on."""
        buffer, pack, size = self._buffer, LAYOUT.pack_into, self.template.size
        begin = self.template.payload_at
        for at in range(begin, begin + count * size, size):
            pack(buffer, at, MAGIC, publisher, t_ns, message, 0, tag)
            message += 1

    def number(self, packet_ids: Sequence[int]) -> None:
        """Put the packet ids into the first frames."""
        at = self.template.packet_id_at
        for packet_id in packet_ids:
            _PACKET_ID.pack_into(self._buffer, at, packet_id)
            at += self.template.size


class Publisher:
    """One client that publishes.

    `send` hands bytes to the connection and says how many it took; if not all, `writable` is called
    when it takes more.
    """

    def __init__(
        self,
        client: int,
        topic: int,
        outbox: Outbox,
        send: Callable[[memoryview], int],
        *,
        kept: KeptInFlight | None = None,
    ) -> None:
        """With `kept` it comes back when it was cut off, at QoS 1 or 2."""
        self.client = client
        self.topic = topic
        self.held = False
        """Whether it could not send all that was due."""
        self.message = 0
        """The next message's number, which is also how many were sent in this run."""
        self.messages_out = 0
        """Since it connected."""
        self.away = False
        """Whether it is cut off and will come back: what is due meanwhile is left out."""
        self.left_out = 0
        """In this run."""
        self.schedule: SendSchedule | None = None
        self._in_flight: InFlight | None = kept  # which is false while it is empty
        if kept is None and outbox.template.qos:
            self._in_flight = InFlight()
        self._kept = kept
        self._tag = 0
        self._outbox = outbox
        self._send = send
        self._full = False
        self._rest = b""

    def publish(self, owed: int, tag: int, log: SentLog) -> None:
        """Send `owed` messages, or as many as can be sent now."""
        outbox, size = self._outbox, self._outbox.template.size
        self.held = False
        self._tag = tag
        while owed > 0:
            count, ids = min(owed, outbox.most), []
            if self._in_flight is not None:
                ids = self._in_flight.next_ids(count)
                count = len(ids)
                outbox.number(ids)
            if self._full or not count:
                self.held = True
                return
            t_ns = now_ns()
            outbox.fill(self.client, self.message, count, tag, t_ns)
            taken = self._send(outbox.view[: count * size])
            if self.away:
                return
            sent = -(-taken // size)  # a frame of which a part is out is sent
            if taken < count * size:
                self._full = True
                self._rest = bytes(outbox.view[taken : sent * size])
            if sent:
                log.note(self.client, self.message, sent, self.topic, t_ns)
                if self._in_flight is not None:
                    self._in_flight.sent(ids[:sent])
                if self._kept is not None:
                    self._kept.keep(ids[:sent], self.message, t_ns)
                self.message += sent
                self.messages_out += sent
                owed -= sent

    def writable(self) -> None:
        """The connection takes more: first what is left over, then what is due by now."""
        self._full = False
        self._write(b"")

    def answered(self, chunk: bytes) -> None:
        """The broker sent `chunk`; bad bytes raise a protocol error."""
        if self._in_flight is not None:
            self._write(self._in_flight.answered(chunk))

    def cut_off(self) -> None:
        """The connection broke, and the client will come back."""
        self.away = True
        self.held = self._full = False
        self._rest = b""
        if self._kept is not None:
            self._kept.lost()

    def back(self) -> None:
        """There is another connection; first what was not acknowledged."""
        self.away = False
        if self._kept is not None:
            self._write(b"".join(self._kept.again(self._frame)))

    def _frame(self, packet_id: int, message: int, t_ns: int) -> bytes:
        self._outbox.number([packet_id])
        self._outbox.fill(self.client, message, 1, self._tag, t_ns)
        return bytes(self._outbox.view[: self._outbox.template.size])

    def _write(self, data: bytes) -> None:
        self._rest += data
        if self._rest and not self._full:
            taken = self._send(memoryview(self._rest))
            self._rest = self._rest[taken:]  # nothing, if it has been cut off
            self._full = bool(self._rest)
        if self.held and not self._full and self.schedule is not None:
            self.schedule.resume(self, now_ns())


class SendSchedule:
    """When the messages of publishers with one interval are due, from `start_ns` on.

    The dues of all of them, in order of time, are counted as *slots*: with *n* publishers, sorted
    by phase, slot ``k·n + j`` is message *k* of the *j*-th.
    """

    def __init__(
        self,
        publishers: Sequence[Publisher],
        *,
        start_ns: int,
        duration_ns: int,
        interval_ns: int,
        tag: int,
        log: SentLog,
        headroom: Headroom,
    ) -> None:
        self.publishers = sorted(publishers, key=lambda p: phase_ns(p.client, interval_ns))
        self._phases_ns = [phase_ns(p.client, interval_ns) for p in self.publishers]
        self._phase_of = dict(zip(self.publishers, self._phases_ns, strict=True))
        self._start_ns = start_ns
        self._duration_ns = duration_ns
        self._interval_ns = interval_ns
        self._tag = tag
        self._log = log
        self._headroom = headroom
        self._slot = 0
        self._woken_ns = 0
        self.offered = self._slots_before(duration_ns)
        """Messages that the whole schedule asks for."""
        for publisher in self.publishers:
            publisher.message = 0
            publisher.left_out = 0
            publisher.held = False
            publisher.schedule = self

    def over(self, at_ns: int) -> bool:
        """Whether nothing more will be sent."""
        if self._slot < self.offered:
            return False
        return at_ns >= self._start_ns + self._duration_ns or not self.held

    @property
    def held(self) -> int:
        """Publishers that cannot send what is due."""
        return sum(publisher.held for publisher in self.publishers)

    @property
    def left_out(self) -> int:
        """What was due while its publisher was away."""
        return sum(publisher.left_out for publisher in self.publishers)

    def end(self) -> None:
        """Nothing more is sent, whoever is held."""
        for publisher in self.publishers:
            publisher.schedule = None

    def next_wake_ns(self) -> int | None:
        """When to call `wake`; None: never again."""
        if self._slot >= self.offered:
            return None
        return max(self._due_ns(), self._woken_ns + WAKE_NS)

    def wake(self, at_ns: int) -> None:
        """Serve everybody for whom something is due."""
        until = min(self._slots_before(at_ns - self._start_ns + 1), self.offered)
        first, count = self._slot, len(self.publishers)
        if until <= first:
            return
        self._woken_ns = at_ns
        self._note_lateness(at_ns, until)
        self._slot = until
        if until - first >= count:
            due = self.publishers
        else:
            begin, end = first % count, until % count
            due = self.publishers[begin:end]
            if end <= begin:
                due = self.publishers[begin:] + self.publishers[:end]
        for publisher in due:
            if not publisher.held:
                self._serve(publisher, at_ns)

    def resume(self, publisher: Publisher, at_ns: int) -> None:
        """`publisher` was held and is not any more; after the end it sends nothing."""
        if at_ns < self._start_ns + self._duration_ns:
            self._serve(publisher, at_ns)

    def _serve(self, publisher: Publisher, at_ns: int) -> None:
        """Let `publisher` send all that is due and unsent."""
        last_ns = min(at_ns - self._start_ns, self._duration_ns - 1) - self._phase_of[publisher]
        if last_ns >= 0:
            due = last_ns // self._interval_ns + 1
            owed = due - publisher.message - publisher.left_out
            if publisher.away:
                publisher.left_out += owed
            else:
                publisher.publish(owed, self._tag, self._log)

    def _slots_before(self, elapsed_ns: int) -> int:
        """How many slots are due earlier than `elapsed_ns` after the start."""
        if elapsed_ns <= 0 or not self.publishers:
            return 0
        rounds, into_ns = divmod(elapsed_ns, self._interval_ns)
        return rounds * len(self.publishers) + bisect_left(self._phases_ns, into_ns)

    def _due_ns(self) -> int:
        """When the first slot that is not served yet is due."""
        round_, at = divmod(self._slot, len(self.publishers))
        return self._start_ns + round_ * self._interval_ns + self._phases_ns[at]

    def _note_lateness(self, at_ns: int, until: int) -> None:
        late_slots = self._slots_before(at_ns - LATE_NS - self._start_ns) - self._slot
        self._headroom.served(until - self._slot, max(0, late_slots), at_ns - self._due_ns())
