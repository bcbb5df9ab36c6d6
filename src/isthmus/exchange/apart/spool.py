"""A queue of messages on disk, for one destination that is set apart.

A destination, a neighbor or the local broker, that does not take its messages as they come must
stop nobody else.  So its queue is written to disk, all of it and in order, and what is on disk is
*safe*: it may be acknowledged to whom it came from.  Of the queue only the head is in memory, too.

    in memory         ├─ resident ─┤
    on disk     ┆─────┼────────────┼──────────────────────────┼ ─ ─ unwritten
             acknowledged          read from disk when the    in memory until the disk has it
                                   residents have gone

What comes in a turn is one write, and while that goes on the next one gathers.  What a kernel has
been given survives kill -9, so nothing waits for the disk itself (no fsync): if the machine stops,
what was written last may be missing.

The files are segments, in the form of `isthmus.exchange.kept_records`, numbered in order:

    h  ordinal of its first message, ordinal of the first one that is not acknowledged
    m  ordinal of a message, the message (`kept_message`)
    a  ordinal of the first one that is not acknowledged: now and then, `NOTE_S` after a change

A segment of which everything is acknowledged is removed, whatever waits before it, and all of them
with the last message.  So
a crash repeats what was acknowledged within `NOTE_S`, and a start reads the last segment only.
What is damaged, or the remains of a write that failed, is told from the rest by the ordinals.

**No room.**  When the disk does not take it, or `limit_bytes` are there, what is to be written
waits in memory, counted in `unwritten_bytes`, and is tried again; who puts it there asks for that
before there is more (`problem` says why).  If the destination goes on meanwhile it gets them from
memory.

Invariants: messages are read in the order in which they were kept; residents are before all others;
each is acknowledged once.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from typing import Any, Final, Protocol

from isthmus.exchange import kept_records
from isthmus.exchange.host import Host

__all__ = ["Record", "Spool", "SpoolOwner", "Spools"]

NAME, VERSION = "spool", 2
SEGMENT_BYTES: Final = 8 << 20
STEP: Final = 500
"""Messages that are formed in a turn, and written at once."""
LOAD_BYTES: Final = 256 << 10
NOTE_S: Final = 0.25
RETRY_S: Final = 0.5
HEAD_BYTES: Final = 512
"""Within them are the header and the first record of a segment."""
_FILE: Final = re.compile(r"([a-z]+-[A-Za-z0-9._-]{1,80}(?:@[A-Za-z0-9._-]{1,64})?)\.([0-9]{10})")
"""What it is for, a neighbor, which of several brokers; the number of the segment."""
_HEAD, _MESSAGE, _ACKNOWLEDGED = b"h", b"m", b"a"
FULL: Final = "link.apart_bytes are used"


class Record:
    """One message of a spool, as long as it is in memory."""

    __slots__ = ("_spool", "cost", "earlier", "entry", "is_over", "ordinal", "resident")

    def __init__(
        self, spool: Spool, entry: Any, cost: int, *, resident: bool, ordinal: int = -1
    ) -> None:
        self._spool = spool
        self.entry = entry
        """The owner's."""
        self.cost = cost
        self.resident = resident
        """It is in the owner's queue."""
        self.ordinal = ordinal
        """Negative until it is on disk."""
        self.is_over = False
        self.earlier = False
        """It was kept by an earlier life of the node."""

    @property
    def is_on_disk(self) -> bool:
        return self.ordinal >= 0

    def over(self) -> None:
        """The destination has it, or does without it."""
        self._spool.done_with(self)

    def is_unreadable(self) -> None:
        """It is whole, but no message: nobody gets it."""
        self._spool.cannot_read(self)
        self.over()


class SpoolOwner(Protocol):
    """Whose queue it is."""

    def form(self, entry: Any) -> bytes:
        """How an entry is written."""
        ...

    def written(self, record: Record) -> None:
        """It is safe; if it is not resident, the spool forgets it."""
        ...

    def loaded(self, records: list[tuple[Record, bytes]], unwritten: list[Any]) -> None:
        """The next ones: read, or, if the disk does not take them, entries as they were kept."""
        ...


@dataclass(eq=False, slots=True)
class _Segment:
    file: str
    salt: int
    first: int
    """The ordinal of its first message."""
    end: int
    """The ordinal after its last one."""
    size: int = 0
    start: int = 0
    """Where records begin."""
    is_closed: bool = False
    """Nothing is added: it is an earlier life's, and may end in the middle of a record."""


class _Ordinals:
    """A set of ordinals, most of which follow on each other."""

    __slots__ = ("_begins", "_ends", "count")

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.count = 0

    def add(self, ordinal: int) -> None:
        """`ordinal` is not in it."""
        begins, ends = self._begins, self._ends
        self.count += 1
        at = bisect_right(begins, ordinal)
        follows = at > 0 and ends[at - 1] == ordinal
        if at < len(begins) and begins[at] == ordinal + 1:
            begins[at] = begins[at - 1] if follows else ordinal
            if follows:
                del begins[at - 1], ends[at - 1]
        elif follows:
            ends[at - 1] = ordinal + 1
        else:
            begins.insert(at, ordinal)
            ends.insert(at, ordinal + 1)

    def take_from(self, ordinal: int) -> int:
        """Forget those from `ordinal` on, which is the least of all, up to the first gap; where."""
        if not self._begins or self._begins[0] != ordinal:
            return ordinal
        del self._begins[0]
        end = self._ends.pop(0)
        self.count -= end - ordinal
        return end

    def has_all(self, begin: int, end: int) -> bool:
        at = bisect_right(self._begins, begin)
        return at > 0 and end <= self._ends[at - 1]


class Spool:
    """The queue of one destination."""

    def __init__(self, host: Host, name: str, numbers: count[int], limit_bytes: int) -> None:
        self._host = host
        self.name = name
        self._numbers = numbers
        self._limit_bytes = limit_bytes
        self._owner: SpoolOwner | None = None
        self._segments: deque[_Segment] = deque()
        self._unwritten: deque[Record] = deque()
        self._batch: list[tuple[Record, int, int]] = []
        """What is being written, from where to where in its segment."""
        self._writing = self._flush_due = self._note_set = self._retry_set = False
        self._sweep_set = False
        self._writing_bytes = 0
        self._next = 0
        self._first = 0
        """The first that is not acknowledged."""
        self._noted = 0
        self._acknowledged = _Ordinals()
        """Those behind it that are."""
        self._life = 0
        """The first ordinal of this life."""
        self._read = 0
        """The first that was neither resident nor read."""
        self._read_at: tuple[_Segment, int] | None = None
        """Where it is, or where it will be."""
        self._loading = False
        self._chunk = LOAD_BYTES
        self.behind = 0
        """How many are not in the owner's queue."""
        self.unwritten_bytes = 0
        """Of those that are not, and not on disk either."""
        self.bytes = 0
        """On disk."""
        self.problem = ""
        """Why what is to be written waits."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when less waits to be written, or nothing at all."""

    @property
    def end(self) -> int:
        """The ordinal after that of the last one."""
        return self._next + len(self._batch) + len(self._unwritten)

    def begin_behind(self, other: Spool) -> None:
        """`other` is of the same destination, and to be emptied: a crash must not mix them up."""
        self._next = self._first = self._noted = self._life = self._read = other.end

    def attach(self, owner: SpoolOwner) -> None:
        self._owner = owner

    @property
    def apart(self) -> bool:
        """Whether the destination is set apart."""
        return bool(self._segments or self._unwritten or self._batch)

    @property
    def messages(self) -> int:
        """How many are not acknowledged, as far as they are to be on disk."""
        on_disk = self._next - self._first - self._acknowledged.count
        return on_disk + len(self._unwritten) + len(self._batch)

    @property
    def all_written(self) -> bool:
        return not self._unwritten and not self._batch

    # ---- writing -------------------------------------------------------------------------

    def keep(self, entry: Any, cost: int, *, resident: bool) -> Record:
        """Write `entry`, after all that were kept before."""
        record = Record(self, entry, cost, resident=resident)
        self._unwritten.append(record)
        if not resident:
            self.behind += 1
            self.unwritten_bytes += cost
        if not self.problem:
            self._flush_soon()
        return record

    def _flush_soon(self) -> None:
        if not self._flush_due and not self._writing:
            self._flush_due = True
            self._host.call_later(0.0, self._flush)

    def _flush(self) -> None:
        """Write what is to be written, a batch at a time."""
        self._flush_due = False
        if self._writing:
            return
        notes = bool(self._segments) and self._first > self._noted
        while self._unwritten and self._unwritten[0].is_over:
            self._unwritten.popleft()
        if not self._unwritten:
            self._tidy()
            notes = bool(self._segments) and self._first > self._noted
        if not self._unwritten and not notes:
            return
        segment = self._tail()
        pieces = [] if segment.size else [self._beginning(segment)]
        at = segment.size + sum(map(len, pieces))
        while self._unwritten and len(self._batch) < STEP:
            record = self._unwritten.popleft()
            if record.is_over:
                continue
            piece = self._formed(record, len(self._batch), segment)
            self._batch.append((record, at, at + len(piece)))
            at += len(piece)
            pieces.append(piece)
        if notes:
            pieces.append(kept_records.record(_ACKNOWLEDGED + _ordinal(self._first), segment.salt))
        data = b"".join(pieces)
        if self._batch and self.bytes + len(data) > self._limit_bytes:
            self._not_written(FULL)
            return
        self._writing, self._writing_bytes = True, len(data)
        wrote = partial(self._wrote, segment, len(data), self._first)
        self._host.write_spool(segment.file, segment.size, data, wrote)

    def _formed(self, record: Record, after: int, segment: _Segment) -> bytes:
        """As it is written when so many are on their way to the disk before it."""
        assert self._owner is not None
        body = _MESSAGE + _ordinal(self._next + after) + self._owner.form(record.entry)
        return kept_records.record(body, segment.salt)

    def stop(self) -> None:
        """The life ends: write all that is left, and how far it has come."""
        left = [record for record in self._unwritten if not record.is_over]
        if self._owner is None or not (left or (self._segments and self._first > self._noted)):
            return
        segment = self._tail()
        offset = segment.size + (self._writing_bytes if self._writing else 0)
        pieces = [] if offset else [self._beginning(segment)]
        for after, record in enumerate(left, len(self._batch)):
            pieces.append(self._formed(record, after, segment))
        pieces.append(kept_records.record(_ACKNOWLEDGED + _ordinal(self._first), segment.salt))
        self._host.write_spool(segment.file, offset, b"".join(pieces), lambda _: None)

    def _tail(self) -> _Segment:
        tail = self._segments[-1] if self._segments else None
        if tail is None or tail.is_closed or tail.size >= SEGMENT_BYTES:
            salt = int.from_bytes(self._host.token_bytes(4))
            file = f"{self.name}.{next(self._numbers):010d}"
            segment = _Segment(file, salt, self._next, self._next)
            segment.start = len(self._beginning(segment))
            self._segments.append(segment)
        return self._segments[-1]

    def _beginning(self, segment: _Segment) -> bytes:
        head = _HEAD + _ordinal(segment.first) + _ordinal(self._first)
        return kept_records.header(NAME, VERSION, segment.salt) + kept_records.record(
            head, segment.salt
        )

    def _wrote(self, segment: _Segment, size: int, noted: int, problem: str) -> None:
        self._writing = False
        if problem and self._batch:
            self._not_written(problem)
            self._tidy()
            return
        if problem:  # it was only noted how far it has come
            self._tidy()
            return
        batch, self._batch = self._batch, []
        segment.size += size
        self.bytes += size
        self._noted = noted
        self._tell("")
        for record, begin, end in batch:
            self._is_on_disk(record, segment, begin, end)
        if self._unwritten:
            self._flush_soon()
        self._tidy()
        self.on_room()

    def _is_on_disk(self, record: Record, segment: _Segment, begin: int, end: int) -> None:
        ordinal = self._next
        self._next = segment.end = ordinal + 1
        if self._read == ordinal:
            passed = record.resident or record.is_over
            self._read += passed
            self._read_at = (segment, end if passed else begin)
        if not record.resident:
            self.unwritten_bytes -= record.cost
        if record.is_over:
            self._acknowledge(ordinal)
            return
        record.ordinal = ordinal
        assert self._owner is not None
        self._owner.written(record)

    def _not_written(self, problem: str) -> None:
        """Keep it, and try again."""
        self._unwritten.extendleft(record for record, _, _ in reversed(self._batch))
        self._batch = []
        if self._segments and not self._segments[-1].size:
            self._host.drop_spool(self._segments.pop().file)  # nothing whole is there
        self._tell(problem)
        if not self._retry_set:
            self._retry_set = True
            self._host.call_later(RETRY_S, self._retry)
        self.on_room()  # who has nothing left in memory takes them from here

    def _retry(self) -> None:
        self._retry_set = False
        if self.problem:
            self._flush_soon()

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            self._host.log(
                "error",
                "no room on disk for what waits: who sends it has to wait, too",
                destination=self.name,
                cause=problem,
                messages=self.messages,
            )
        elif self.problem and not problem:
            self._host.log("info", "what waits is written again", destination=self.name)
        self.problem = problem

    def unwritten(self) -> Iterator[Any]:
        """Entries that are not on disk, nor in the owner's queue."""
        return (each.entry for each in self._unwritten if not each.resident)

    def give_up(self, size: int, may: Callable[[Any], bool]) -> list[Any]:
        """The oldest of these that `may` be given up, of so many bytes: they are not kept."""
        given: list[Any] = []
        kept: deque[Record] = deque()
        for record in self._unwritten:
            if size > 0 and not record.resident and may(record.entry):
                record.is_over = True
                self.behind -= 1
                self.unwritten_bytes -= record.cost
                size -= record.cost
                given.append(record.entry)
            else:
                kept.append(record)
        self._unwritten = kept
        if self.all_written:
            self.problem = ""
            self._tidy()
        return given

    def discard(self) -> None:
        """Remove all of it; nobody has it in memory."""
        while self._segments:
            self._remove(self._segments.popleft())
        self._first = self._read = self._next
        self._read_at, self.behind = None, 0

    # ---- reading -------------------------------------------------------------------------

    def load(self) -> None:
        """Have the owner given the next ones that it has not in its queue, some of them."""
        if self._loading or not self.behind:
            return
        if self._read < self._next:
            assert self._read_at is not None
            segment, offset = self._read_at
            if offset >= segment.size and segment is not self._segments[-1]:
                segment = self._segments[self._segments.index(segment) + 1]
                offset = segment.start
                self._read_at = (segment, offset)
            self._loading = True
            size = min(self._chunk, segment.size - offset)
            came = partial(self._came, segment, offset, size)
            self._host.read_spool(segment.file, offset, size, came)
        elif self.problem and not self._writing:
            self._give_unwritten()

    def _came(self, segment: _Segment, offset: int, size: int, data: bytes | None) -> None:
        self._loading = False
        if data is None:
            self._host.log(
                "error", "what waits cannot be read from disk", file=segment.file, offset=offset
            )
            self._host.call_later(RETRY_S, self.load)
            return
        is_cut = len(data) < size
        at_end = is_cut or offset + size >= segment.size
        if is_cut:
            self._damaged(segment, offset + len(data), size - len(data))
        found: list[tuple[Record, bytes]] = []
        whole = kept_records.KeptHeader(NAME, VERSION, segment.salt, 0, whole=True)
        used = 0
        for start, end, body in kept_records.scan(data, whole, more=not at_end):
            if body is None:
                self._damaged(segment, offset + start, end - start)
            elif body.startswith(_MESSAGE):
                self._take(body, segment, found)
            used = end
        self._chunk = LOAD_BYTES if used else 2 * self._chunk
        if self._segments and segment in self._segments:
            self._read_at = (segment, segment.size if is_cut else offset + used)
            if self._read_at[1] >= segment.size:
                self._skip(segment.end)
        assert self._owner is not None
        if found:
            self._owner.loaded(found, [])
        else:
            self.load()

    def _take(self, body: bytes, segment: _Segment, found: list[tuple[Record, bytes]]) -> None:
        ordinal = int.from_bytes(body[1:9])
        if not self._read <= ordinal < segment.end:
            return  # it remains of a write that failed
        self._skip(ordinal)
        self._read += 1
        if self._is_over(ordinal):
            return
        self.behind -= 1
        record = Record(self, None, 0, resident=True, ordinal=ordinal)
        record.earlier = ordinal < self._life
        found.append((record, body[9:]))

    def _skip(self, end: int) -> None:
        """What should have been read before that one, and was not, is damaged."""
        while self._read < end:
            ordinal, self._read = self._read, self._read + 1
            if not self._is_over(ordinal):
                self.behind -= 1
                self._acknowledge(ordinal)

    def _is_over(self, ordinal: int) -> bool:
        return ordinal < self._first or self._acknowledged.has_all(ordinal, ordinal + 1)

    def _damaged(self, segment: _Segment, offset: int, size: int) -> None:
        self._host.log(
            "error",
            "what waits is damaged on disk; what can be read is read",
            file=segment.file,
            offset=offset,
            bytes=size,
        )

    def cannot_read(self, record: Record) -> None:
        self._host.log(
            "error",
            "what waits on disk is no message; it is left out",
            destination=self.name,
            ordinal=record.ordinal,
        )

    def _give_unwritten(self) -> None:
        """The disk takes nothing, and the destination goes on."""
        given = [each for each in self._unwritten if not each.is_over]
        self._unwritten.clear()
        entries = []
        for record in given:
            record.is_over = True
            if not record.resident:
                self.behind -= 1
                self.unwritten_bytes -= record.cost
                entries.append(record.entry)
        self.problem = ""
        assert self._owner is not None
        self._owner.loaded([], entries)
        self._tidy()  # only now: who waits for room comes behind them
        self.on_room()

    # ---- acknowledgment ------------------------------------------------------------------

    def done_with(self, record: Record) -> None:
        if record.is_over:
            return
        record.is_over = True
        if record.ordinal >= 0:
            self._acknowledge(record.ordinal)
            self._tidy()
            return
        while self._unwritten and self._unwritten[0].is_over:
            self._unwritten.popleft()
        if not self._unwritten:
            self._tidy()

    def _acknowledge(self, ordinal: int) -> None:
        self._acknowledged.add(ordinal)
        self._first = self._acknowledged.take_from(self._first)

    def _tidy(self) -> None:
        """Remove segments of which nothing is needed, note how far it has come."""
        segments = self._segments
        while len(segments) > 1 and segments[0].end <= self._first and not self._writing:
            self._remove(segments.popleft())
        if self._first == self._next and not (self._unwritten or self._batch or self._writing):
            while segments:
                self._remove(segments.popleft())
            self._read, self._read_at, self._noted = self._next, None, self._first
            self.on_room()
        elif self._first > self._noted and not self._note_set:
            self._note_set = True
            self._host.call_later(NOTE_S, self._note)
        if self._acknowledged.count and len(segments) > 1 and not self._sweep_set:
            self._sweep_set = True
            self._host.call_later(NOTE_S, self._sweep)

    def _sweep(self) -> None:
        """Remove segments of which nothing is needed, behind one of which something is."""
        self._sweep_set = False
        reading = self._read_at and self._read_at[0]
        for segment in list(self._segments)[:-1]:
            is_over = self._acknowledged.has_all(segment.first, segment.end)
            if is_over and segment is not reading:
                self._segments.remove(segment)
                self._remove(segment)

    def _remove(self, segment: _Segment) -> None:
        self.bytes -= segment.size
        self._host.drop_spool(segment.file)
        if self._read_at is not None and self._read_at[0] is segment:
            self._read_at = (self._segments[0], self._segments[0].start) if self._segments else None
        if self.problem == FULL:
            self._flush_soon()

    def _note(self) -> None:
        self._note_set = False
        if not self.problem:
            self._flush_soon()

    # ---- an earlier life -----------------------------------------------------------------

    def take_up(self, files: list[tuple[str, int]]) -> None:
        """What a life before this one has left, in files and their sizes."""
        segments: list[_Segment] = []
        for file, size in files:
            segment = self._look_into(file, size)
            if segment is None:
                if size:  # else it was never written
                    self._host.log(
                        "error", "what waits cannot be read and is removed", file=file, bytes=size
                    )
                self._host.drop_spool(file)
            else:
                segments.append(segment)
                self.bytes += segment.size
        if not segments:
            return
        # What was left of one that was none any more may have been written last.
        segments.sort(key=lambda each: each.first)
        for segment, following in pairwise(segments):
            segment.end = following.first
        self._segments.extend(segments)
        tail = segments[-1]
        self._read_tail(tail)
        self._next = self._life = tail.end
        self._first = min(max(self._first, self._segments[0].first), self._next)
        self._noted = self._first
        self.behind = self._next - self._first
        begin = self._segments[0]
        for segment in self._segments:
            if segment.first <= self._first:
                begin = segment
        self._read, self._read_at = begin.first, (begin, begin.start)
        self._tidy()

    def _look_into(self, file: str, size: int) -> _Segment | None:
        data = self._host.load_spool(file, min(size, HEAD_BYTES))
        header = kept_records.read_header(data)
        if header is None or (header.name, header.version) != (NAME, VERSION):
            return None
        head = next(kept_records.scan(data, header), (0, 0, None))
        if head[2] is None or not head[2].startswith(_HEAD):
            return None
        first = int.from_bytes(head[2][1:9])
        self._first = max(self._first, int.from_bytes(head[2][9:17]))
        return _Segment(file, header.salt, first, first, size, head[1], is_closed=True)

    def _read_tail(self, tail: _Segment) -> None:
        """How many messages the last segment has, and what is known to be acknowledged."""
        data = self._host.load_spool(tail.file, tail.size)
        whole = kept_records.KeptHeader(NAME, VERSION, tail.salt, tail.start, whole=True)
        for _, _, body in kept_records.scan(data, whole):
            if body is not None and body.startswith(_MESSAGE):
                tail.end = max(tail.end, int.from_bytes(body[1:9]) + 1)
            elif body is not None and body.startswith(_ACKNOWLEDGED):
                self._first = max(self._first, int.from_bytes(body[1:9]))


def _ordinal(number: int) -> bytes:
    return number.to_bytes(8)


class Spools:
    """Those of a node: none if it keeps no state, or is to set nobody apart."""

    def __init__(self, host: Host, limit_bytes: int) -> None:
        self._host = host
        self._limit_bytes = limit_bytes
        self.on = host.keeps_state and limit_bytes > 0
        self._numbers: dict[str, count[int]] = {}
        self._open: dict[str, Spool] = {}
        self._left: dict[str, Spool] = {}
        """Of an earlier life, that nobody has asked for yet."""
        self._leaving: list[Spool] = []
        """Of destinations that are none any more."""

    def start(self) -> None:
        """Take up what earlier lives have left."""
        files: dict[str, list[tuple[str, int]]] = {}
        for file, size in sorted(self._host.spools().items()):
            if found := _FILE.fullmatch(file):
                files.setdefault(found[1], []).append((file, size))
                self._numbers[found[1]] = count(int(found[2]) + 1)
        for name, segments in files.items():
            spool = Spool(self._host, name, self._numbers[name], self._limit_bytes)
            spool.take_up(segments)
            if spool.apart:
                self._left[name] = spool
                self._host.log(
                    "info", "messages wait on disk", destination=name, messages=spool.messages
                )

    def left(self) -> list[str]:
        """Destinations for which something waits, and that nobody has asked for."""
        return list(self._left)

    def open(self, name: str) -> Spool | None:
        """The spool of a destination, with what an earlier life has left; None if there is none."""
        if not self.on:
            return None
        spool = self._left.pop(name, None)
        if spool is None:
            numbers = self._numbers.setdefault(name, count(1))
            spool = Spool(self._host, name, numbers, self._limit_bytes)
            for leaving in self._leaving:
                if leaving.name == name and leaving.apart:
                    spool.begin_behind(leaving)
        self._open[name] = spool
        return spool

    def leaves(self, spool: Spool) -> None:
        """The destination is none any more; what is left of its spool goes elsewhere."""
        if self._open.get(spool.name) is spool:
            del self._open[spool.name]
        self._leaving = [each for each in self._leaving if each.apart]
        if spool.apart:
            self._leaving.append(spool)

    def close(self, spool: Spool) -> None:
        """Whoever opened it does not need it; what an earlier life has left stays."""
        del self._open[spool.name]
        if spool.apart:
            self._left[spool.name] = spool

    def stop(self) -> None:
        for spool in self:
            spool.stop()

    def __iter__(self) -> Iterator[Spool]:
        for spool in (*self._open.values(), *self._left.values(), *self._leaving):
            if spool.apart:
                yield spool

    @property
    def problem(self) -> str:
        """Why somebody has to wait for somebody else; empty if nobody has."""
        return next((f"{each.name}: {each.problem}" for each in self if each.problem), "")

    def status(self) -> list[dict[str, object]]:
        return [
            {
                "destination": each.name,
                "messages": each.messages,
                "bytes": each.bytes,
                "unwritten_bytes": each.unwritten_bytes,
                "problem": each.problem,
            }
            for each in self
        ]
