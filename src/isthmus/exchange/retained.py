"""Retained messages over several brokers (ILDM §4.5.2): one last message per topic, everywhere.

The paper sends every retained PUBLISH to all nodes and stops there, so a broker that joins later
does not have them, and two concurrent ones may end in different orders at different brokers.
Departure: every retained message has a *version*, each node remembers the last one of each topic,
and the greatest version wins wherever it arrives, whatever the way and the order.

`Version`        a hybrid logical clock's reading: totally ordered, and greater than every version
                 that the node which made it had seen
`RetainedStore`  the last retained message of each topic, deletions included
`RetainedSync`   brings a neighbour's store up to date, and is brought up to date by it
`read_journal`   and the store's `drain` and `snapshot`: what has to be kept over a restart

Deletions.  An empty retained payload deletes [MQTT-3.3.1-6]; it is kept as a *tombstone*, because
a neighbour that was away may still have the message.  A tombstone is dropped `tombstone_ms` after
its version's time, or when there are too many, the oldest first: only a neighbour that was away for
longer can bring a deleted message back.  A message that expires becomes a tombstone too, so that
the one which it replaced does not return.

Clocks.  A version more than `max_ahead_ms` in the future is refused: the message goes on as one
that is not retained and moves no clock, so a node whose clock is wrong by more than that cannot
win for ever; it can only be out of step itself.  To clamp the version instead would give the same
message different versions at different nodes.  When a node finds its own versions that far ahead,
its clock has been set back: it stamps again what it holds from the future, as if written now.

Limits.  `max_topics` and `max_bytes` bound the store.  When the bytes are full, only the version
of a message is remembered, so that order is kept but a neighbour that joins cannot have it from
here; when there is no room for that either, a topic that is new is not remembered at all.  Such
messages still reach the brokers on the usual way.  Overwriting and deleting always work.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final

from isthmus.errors import IsthmusError, MalformedPacket, RemoteProtocolError
from isthmus.mqtt.primitives import Reader
from isthmus.mqtt.publish_properties import check_publish_properties
from isthmus.mqtt.topics import is_valid_topic_name

__all__ = [
    "Retained",
    "RetainedLimits",
    "RetainedStore",
    "RetainedSync",
    "Version",
    "read_journal",
]

_MAX_COUNTER: Final = (1 << 32) - 1
_ORIGIN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_VERSION: Final = re.compile(
    r"(0|[1-9a-f][0-9a-f]{0,11})-(0|[1-9a-f][0-9a-f]{0,7})-([A-Za-z0-9._-]{1,64})", re.ASCII
)


# ---- values ----


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Greater is newer; no two nodes, and no node twice, make the same one."""

    wall_ms: int
    counter: int
    origin: str

    def __str__(self) -> str:
        """One form for each version, for example ``198f3c2b1a0-0-edge-1``."""
        return f"{self.wall_ms:x}-{self.counter:x}-{self.origin}"

    @classmethod
    def parse(cls, text: str) -> Version:
        found = _VERSION.fullmatch(text)
        if found is None:
            raise RemoteProtocolError(f"{text[:100]!r} is not the version of a retained message")
        return cls(int(found[1], 16), int(found[2], 16), found[3])


@dataclass(frozen=True, slots=True)
class Retained:
    """The last message of a topic; an empty payload says that there is none."""

    topic: bytes
    payload: bytes
    properties: bytes
    """The publisher's, as an MQTT 5 block without its length, topic alias and expiry interval."""
    qos: int
    version: Version
    expiry_s: int | None = None
    """What is left of the message expiry interval."""

    @property
    def deleted(self) -> bool:
        return not self.payload


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedLimits:
    """What a store may take, and how far it trusts other clocks."""

    max_topics: int = 1_000_000
    max_bytes: int = 256 << 20
    max_tombstones: int = 100_000
    tombstone_ms: int = 7 * 24 * 3_600_000
    max_ahead_ms: int = 3_600_000


# ---- the store ----

_OVERHEAD_BYTES: Final = 256
"""About what an entry costs beside its topic, payload and properties."""


@dataclass(slots=True)
class _Entry:
    version: Version
    payload: bytes | None
    """None if there was no room for it, empty for a tombstone."""
    properties: bytes = b""
    qos: int = 0
    due_ms: int | None = None
    """When a message expires or a tombstone is dropped."""

    @property
    def deleted(self) -> bool:
        return self.payload == b""

    def size(self, topic: bytes) -> int:
        return _OVERHEAD_BYTES + len(topic) + len(self.payload or b"") + len(self.properties)


class _Deadlines:
    """Topics by when they are due.  What is no longer true is skipped, and swept out in time."""

    def __init__(self, is_current: Callable[[int, bytes], bool]) -> None:
        self._is_current = is_current
        self._heap: list[tuple[int, bytes]] = []

    def add(self, due_ms: int, topic: bytes, current: int) -> None:
        """`current` is how many there should be by now, so that the heap stays of that size."""
        heappush(self._heap, (due_ms, topic))
        if len(self._heap) > 2 * current + 64:
            self._heap = [pair for pair in set(self._heap) if self._is_current(*pair)]
            heapify(self._heap)

    def first(self) -> tuple[int, bytes] | None:
        heap = self._heap
        while heap and not self._is_current(*heap[0]):
            heappop(heap)
        return heap[0] if heap else None


class RetainedStore:
    """The last retained message of every topic that this node has seen, and its clock.

    Topics fall into 65,536 leaves by their checksum, and 256 leaves into each of 256 branches.  A
    leaf's digest is the exclusive or of the hashes of its topics and versions, a branch's that of
    its leaves, so two stores find out where they differ without telling each other everything.

    Time is passed in, in milliseconds of the wall clock.  With `journal`, what changed is noted
    for `drain`.
    """

    def __init__(
        self, origin: str, limits: RetainedLimits | None = None, *, journal: bool = False
    ) -> None:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} cannot be the origin of a version")
        self.origin = origin
        self.limits = limits or RetainedLimits()
        self._last = Version(0, 0, origin)
        self._leaves: dict[int, dict[bytes, _Entry]] = {}
        self._leaf_digests: dict[int, int] = {}
        self._branch_digests = [0] * 256
        self._live = self._tombstones = self._expiring = 0
        self._bytes = self._tombstone_bytes = 0
        self._expiry_times = _Deadlines(lambda due, topic: self._is_due(due, topic, deleted=False))
        self._drop_times = _Deadlines(lambda due, topic: self._is_due(due, topic, deleted=True))
        self._journal = journal
        self._changed: dict[bytes, None] = {}
        self._not_stored = self._bodies_left_out = self._tombstones_dropped = 0
        self._refused_as_future = self._clock_set_back = 0

    # ---- the clock ----

    def stamp(self, now_ms: int) -> Version:
        """A version for a message of a local client: greater than every one seen so far."""
        self._check_clock(now_ms)
        return self._next_version(now_ms)

    def observe(self, version: Version, now_ms: int) -> bool:
        """Let the clock run ahead of `version`; False if that is too far in the future."""
        if version.wall_ms > now_ms + self.limits.max_ahead_ms:
            self._refused_as_future += 1
            return False
        last = self._last
        if (version.wall_ms, version.counter) > (last.wall_ms, last.counter):
            self._last = Version(version.wall_ms, version.counter, self.origin)
        return True

    def _next_version(self, now_ms: int) -> Version:
        last = self._last
        if now_ms > last.wall_ms:
            self._last = Version(now_ms, 0, self.origin)
        elif last.counter < _MAX_COUNTER:
            self._last = Version(last.wall_ms, last.counter + 1, self.origin)
        else:
            self._last = Version(last.wall_ms + 1, 0, self.origin)
        return self._last

    def _check_clock(self, now_ms: int) -> None:
        """If this node's clock was far ahead and has been set right, stamp what it wrote again.

        The neighbours, who refused it before, have it from the next synchronisation.
        """
        latest_ms = now_ms + self.limits.max_ahead_ms
        if self._last.wall_ms <= latest_ms:
            return
        self._clock_set_back += 1
        ahead = [
            (entry.version, topic)
            for leaf in self._leaves.values()
            for topic, entry in leaf.items()
            if entry.version.wall_ms > latest_ms
        ]
        self._last = Version(0, 0, self.origin)
        self._last = max(
            (
                Version(entry.version.wall_ms, entry.version.counter, self.origin)
                for leaf in self._leaves.values()
                for entry in leaf.values()
                if entry.version.wall_ms <= latest_ms
            ),
            default=self._last,
        )
        for _, topic in sorted(ahead):
            entry = self._find(topic)
            assert entry is not None
            version = self._next_version(now_ms)
            due_ms = entry.due_ms if not entry.deleted else version.wall_ms + self._tombstone_ms
            self._put(topic, _Entry(version, entry.payload, entry.properties, entry.qos, due_ms))

    # ---- writing ----

    def record_local(
        self,
        topic: bytes,
        payload: bytes,
        *,
        properties: bytes = b"",
        qos: int = 0,
        expiry_s: int | None = None,
        now_ms: int,
    ) -> Retained:
        """A local client published a retained message: the value to send to the neighbours."""
        self.sweep(now_ms)
        retained = Retained(topic, payload, properties, qos, self.stamp(now_ms), expiry_s)
        self._store(retained, now_ms)
        return retained

    def offer(self, retained: Retained, now_ms: int, *, must_store: bool = False) -> bool:
        """A neighbour sent it: True if it is newer than what is stored, which it then replaces.

        If so, publish it at the local broker with retain; if not, without, unless it is here
        already (`version(topic) == retained.version`).  With `must_store` a topic for which there
        is no room counts as not newer.
        """
        self.sweep(now_ms)
        if not self.observe(retained.version, now_ms):
            return False
        known = self._find(retained.topic)
        if known is not None and known.version >= retained.version:
            return False
        too_old = retained.version.wall_ms + self._tombstone_ms <= now_ms
        if known is None and retained.deleted and too_old:
            return False  # dropped here before, and it must not live on by being passed around
        return self._store(retained, now_ms) or not must_store

    def sweep(self, now_ms: int) -> None:
        """Turn what has expired into tombstones, and drop tombstones that are too old.

        It is done on every write; call it now and then for a store that is not written to.
        """
        self._check_clock(now_ms)
        while (first := self._expiry_times.first()) and first[0] <= now_ms:
            entry = self._find(first[1])
            assert entry is not None
            due_ms = entry.version.wall_ms + self._tombstone_ms
            self._put(first[1], _Entry(entry.version, b"", due_ms=due_ms))
            self._bound_tombstones()
        while (first := self._drop_times.first()) and first[0] <= now_ms:
            self._put(first[1], None)

    @property
    def _tombstone_ms(self) -> int:
        return self.limits.tombstone_ms

    def _store(self, retained: Retained, now_ms: int) -> bool:
        """Put it in place of what is there; False if no trace of it could be kept."""
        if retained.deleted:
            return self._store_tombstone(retained.topic, retained.version, now_ms)
        topic = retained.topic
        due_ms = None if retained.expiry_s is None else now_ms + 1000 * retained.expiry_s
        entry = _Entry(
            retained.version, retained.payload, retained.properties, retained.qos, due_ms
        )
        known = self._find(topic)
        is_new = known is None or known.deleted
        if not self._has_room(topic, entry, known):
            entry = _Entry(retained.version, None, due_ms=due_ms)
            if not is_new or self._has_room(topic, entry, known):
                self._bodies_left_out += 1
            else:
                return self._leave_out(topic)
        if is_new and self._live >= self.limits.max_topics:
            return self._leave_out(topic)
        self._put(topic, entry)
        return True

    def _leave_out(self, topic: bytes) -> bool:
        """An older tombstone must go: told to a node in the same need, it would delete there."""
        self._not_stored += 1
        self._put(topic, None)
        return False

    def _store_tombstone(self, topic: bytes, version: Version, now_ms: int) -> bool:
        known = self._find(topic)
        entry = _Entry(version, b"", due_ms=version.wall_ms + self._tombstone_ms)
        if version.wall_ms + self._tombstone_ms <= now_ms:
            self._put(topic, None)
        elif self._has_room(topic, entry, known):
            self._put(topic, entry)
            self._bound_tombstones()
        else:
            self._tombstones_dropped += 1
            self._put(topic, None)
        return known is not None or self._find(topic) is not None

    def _has_room(self, topic: bytes, entry: _Entry, known: _Entry | None) -> bool:
        """Whether `entry` fits in place of `known`, if need be after dropping tombstones."""
        needed = entry.size(topic) - (known.size(topic) if known is not None else 0)
        if self._bytes - self._tombstone_bytes + needed > self.limits.max_bytes:
            return False  # and dropping tombstones would not help
        while self._bytes + needed > self.limits.max_bytes:
            first = self._drop_times.first()
            if first is None or first[1] == topic:
                return False
            self._tombstones_dropped += 1
            self._put(first[1], None)
        return True

    def _bound_tombstones(self) -> None:
        while self._tombstones > self.limits.max_tombstones:
            first = self._drop_times.first()
            assert first is not None
            self._tombstones_dropped += 1
            self._put(first[1], None)

    def _put(self, topic: bytes, entry: _Entry | None) -> None:
        """The only place that changes an entry: all that is counted is counted here."""
        index = _leaf_of(topic)
        leaf = self._leaves.get(index, {})
        known = leaf.pop(topic, None)
        if known is None and entry is None:
            return
        if known is not None:
            self._account(topic, known, -1)
        if entry is not None:
            leaf[topic] = entry
            self._leaves[index] = leaf
            self._account(topic, entry, 1)
            if entry.due_ms is not None:
                if entry.deleted:
                    self._drop_times.add(entry.due_ms, topic, self._tombstones)
                else:
                    self._expiry_times.add(entry.due_ms, topic, self._expiring)
        elif not leaf:
            self._leaves.pop(index, None)
        if self._journal:
            self._changed[topic] = None

    def _account(self, topic: bytes, entry: _Entry, sign: int) -> None:
        self._bytes += sign * entry.size(topic)
        if entry.deleted:
            self._tombstones += sign
            self._tombstone_bytes += sign * entry.size(topic)
        else:
            self._live += sign
            self._expiring += sign if entry.due_ms is not None else 0
        digest = _digest(topic, entry.version)
        index = _leaf_of(topic)
        self._branch_digests[index >> 8] ^= digest
        leaf_digest = self._leaf_digests.pop(index, 0) ^ digest
        if leaf_digest:
            self._leaf_digests[index] = leaf_digest

    def _find(self, topic: bytes) -> _Entry | None:
        leaf = self._leaves.get(_leaf_of(topic))
        return leaf.get(topic) if leaf is not None else None

    def _is_due(self, due_ms: int, topic: bytes, *, deleted: bool) -> bool:
        entry = self._find(topic)
        return entry is not None and entry.due_ms == due_ms and entry.deleted is deleted

    # ---- reading ----

    def __len__(self) -> int:
        """The number of topics that have a retained message."""
        return self._live

    def version(self, topic: bytes) -> Version | None:
        """Of the message or the deletion that was last."""
        entry = self._find(topic)
        return entry.version if entry is not None else None

    def get(self, topic: bytes, now_ms: int) -> Retained | None:
        """The message or the deletion that was last, unless it has not been kept or has expired."""
        entry = self._find(topic)
        if entry is None or entry.payload is None:
            return None
        expiry_s = None
        if entry.due_ms is not None and not entry.deleted:
            expiry_s = -((now_ms - entry.due_ms) // 1000)  # rounded up
            if expiry_s <= 0:
                return None
        return Retained(topic, entry.payload, entry.properties, entry.qos, entry.version, expiry_s)

    def live(self, now_ms: int) -> Iterator[Retained]:
        """Every retained message, for a broker that has lost its own; may go on while it changes.

        What changes meanwhile is given in either state.
        """
        for index in list(self._leaves):
            for topic in list(self._leaves.get(index, ())):
                retained = self.get(topic, now_ms)
                if retained is not None and not retained.deleted:
                    yield retained

    def branch_digests(self) -> tuple[int, ...]:
        return tuple(self._branch_digests)

    def leaf_digests(self, branch: int) -> dict[int, int]:
        """Of the leaves of one branch that are not empty, in their order."""
        found = self._leaf_digests
        indices = range(branch << 8, (branch + 1) << 8)
        return {index: found[index] for index in indices if index in found}

    def leaf_versions(self, leaf: int) -> list[tuple[bytes, Version]]:
        """The topics of a leaf in their order."""
        entries = self._leaves.get(leaf, {})
        return [(topic, entries[topic].version) for topic in sorted(entries)]

    def status(self) -> dict[str, object]:
        """JSON-able facts for people."""
        return {
            "topics": self._live,
            "max_topics": self.limits.max_topics,
            "bytes": self._bytes,
            "max_bytes": self.limits.max_bytes,
            "tombstones": self._tombstones,
            "tombstones_dropped": self._tombstones_dropped,
            "not_stored": self._not_stored,
            "bodies_left_out": self._bodies_left_out,
            "refused_as_future": self._refused_as_future,
            "clock_set_back": self._clock_set_back,
        }

    # ---- over a restart: a file that is appended to, and rewritten now and then ----

    def snapshot(self) -> Iterator[bytes]:
        """A new journal, in pieces; may go on while the store changes.

        Write all of it to a new file, put that in the place of the old one, and only then go on
        appending what `drain` returns.
        """
        self._changed.clear()
        yield _JOURNAL_HEADER + _journal_record(_CLOCK, _write_version(self._last))
        for index in list(self._leaves):
            entries = self._leaves.get(index, {})
            yield b"".join(_journal_entry(topic, entry) for topic, entry in entries.items())

    def drain(self, max_bytes: int = 1 << 20) -> bytes:
        """What has to be appended to the journal, at most about `max_bytes` at a time.

        Empty if nothing has changed since.  A topic that changed often stands in it once.
        """
        if not self._changed:
            return b""
        records = bytearray(_journal_record(_CLOCK, _write_version(self._last)))
        while self._changed and len(records) < max_bytes:
            topic = next(iter(self._changed))
            del self._changed[topic]
            entry = self._find(topic)
            if entry is None:
                records += _journal_record(_FORGET, topic)
            else:
                records += _journal_entry(topic, entry)
        return bytes(records)

    def load(self, journal: bytes, now_ms: int) -> int:
        """Read a journal into this store, which is empty; returns how much of it is good.

        Cut the file there before appending to it: the rest was not written completely.
        """
        records, good = read_journal(journal)
        for topic, entry in records:
            if isinstance(entry, Version):
                self._last = max(self._last, Version(entry.wall_ms, entry.counter, self.origin))
            elif entry is None:
                self._put(topic, None)
            else:
                self._load_entry(topic, entry)
        self._changed.clear()
        self._bound_tombstones()
        self.sweep(now_ms)
        return good

    def _load_entry(self, topic: bytes, entry: _Entry) -> None:
        version = entry.version
        self._last = max(self._last, Version(version.wall_ms, version.counter, self.origin))
        known = self._find(topic)
        is_new = known is None or known.deleted
        if not self._has_room(topic, entry, known) or (
            is_new and not entry.deleted and self._live >= self.limits.max_topics
        ):
            self._leave_out(topic)  # the limits have been lowered since
        else:
            self._put(topic, entry)


def _leaf_of(topic: bytes) -> int:
    return zlib.crc32(topic) & 0xFFFF


def _digest(topic: bytes, version: Version) -> int:
    text = b"%b\0%b" % (str(version).encode(), topic)
    return int.from_bytes(blake2b(text, digest_size=8).digest())


# ---- values as bytes, for the wire and the journal ----

_HAS_EXPIRY: Final = 0x04
_QOS: Final = 0x03


def _write_version(version: Version) -> bytes:
    origin = version.origin.encode()
    return b"%b%b%c%b" % (
        version.wall_ms.to_bytes(6),
        version.counter.to_bytes(4),
        len(origin),
        origin,
    )


def _read_version(reader: Reader) -> Version:
    wall_ms = reader.two_byte_integer() << 32 | reader.four_byte_integer()
    counter = reader.four_byte_integer()
    origin = _take(reader, reader.byte())
    if not origin.isascii() or not _ORIGIN.fullmatch(origin.decode()):
        raise MalformedPacket(f"a retained message's version of {origin!r}, which is no node's id")
    return Version(wall_ms, counter, origin.decode())


def _write_retained(retained: Retained) -> bytes:
    expiry_s = retained.expiry_s
    return b"%b%b%b%c%b%b%b%b%b" % (
        _write_version(retained.version),
        len(retained.topic).to_bytes(2),
        retained.topic,
        retained.qos | (0 if expiry_s is None else _HAS_EXPIRY),
        b"" if expiry_s is None else expiry_s.to_bytes(4),
        len(retained.properties).to_bytes(4),
        retained.properties,
        len(retained.payload).to_bytes(4),
        retained.payload,
    )


def _read_retained(reader: Reader) -> Retained:
    version = _read_version(reader)
    topic = _read_topic(reader)
    flags = reader.byte()
    if flags & ~(_QOS | _HAS_EXPIRY) or flags & _QOS == 3:
        raise MalformedPacket(f"a retained message with flags 0x{flags:02X}")
    expiry_s = reader.four_byte_integer() if flags & _HAS_EXPIRY else None
    properties = _take(reader, reader.four_byte_integer())
    if check_publish_properties(properties, 0, len(properties)):
        raise MalformedPacket("a retained message with a topic alias")
    payload = _take(reader, reader.four_byte_integer())
    return Retained(topic, payload, properties, flags & _QOS, version, expiry_s)


def _read_topic(reader: Reader) -> bytes:
    topic = reader.binary()
    if not is_valid_topic_name(topic):
        raise MalformedPacket(f"{topic[:80]!r} is not the topic of a retained message")
    return topic


def _take(reader: Reader, size: int) -> bytes:
    start = reader.pos
    if size > reader.remaining:
        raise MalformedPacket(f"a field of {size} bytes where {reader.remaining} are left")
    reader.pos = start + size
    return reader.data[start : reader.pos]


# ---- the journal ----

_JOURNAL_HEADER: Final = b"isthmus-retained 1\n"
_CLOCK, _ENTRY, _ENTRY_WITHOUT_BODY, _FORGET = b"C", b"E", b"V", b"F"


def _journal_record(kind: bytes, body: bytes) -> bytes:
    record = kind + body
    return len(record).to_bytes(4) + zlib.crc32(record).to_bytes(4) + record


def _journal_entry(topic: bytes, entry: _Entry) -> bytes:
    due = (0 if entry.due_ms is None else entry.due_ms + 1).to_bytes(8)
    kind = _ENTRY if entry.payload is not None else _ENTRY_WITHOUT_BODY
    retained = Retained(topic, entry.payload or b"", entry.properties, entry.qos, entry.version)
    return _journal_record(kind, due + _write_retained(retained))


def read_journal(journal: bytes) -> tuple[list[tuple[bytes, _Entry | Version | None]], int]:
    """The records of a journal in their order, and where the last whole one ends.

    A record is a topic with its entry, a topic that was forgotten (None), or no topic and the
    clock.  What follows the first record that is incomplete or whose checksum is wrong is left
    out: a file that was being written when the machine stopped ends like that.  A file that is
    something else, or was written by another version, raises `IsthmusError`.
    """
    if len(journal) < len(_JOURNAL_HEADER) and _JOURNAL_HEADER.startswith(journal):
        return [], 0
    if not journal.startswith(_JOURNAL_HEADER):
        raise IsthmusError("the journal of retained messages is not of a format that we can read")
    records: list[tuple[bytes, _Entry | Version | None]] = []
    pos = len(_JOURNAL_HEADER)
    while pos + 8 <= len(journal):
        end = pos + 8 + int.from_bytes(journal[pos : pos + 4])
        record = journal[pos + 8 : end]
        checksum = int.from_bytes(journal[pos + 4 : pos + 8])
        if end > len(journal) or not record or zlib.crc32(record) != checksum:
            break
        try:
            records.append(_read_journal_record(record))
        except RemoteProtocolError as error:
            raise IsthmusError(f"the journal of retained messages, byte {pos}: {error}") from error
        pos = end
    return records, pos


def _read_journal_record(record: bytes) -> tuple[bytes, _Entry | Version | None]:
    kind = record[:1]
    reader = Reader(record, 1, len(record), 5)
    if kind == _FORGET:
        return reader.rest(), None
    if kind == _CLOCK:
        version = _read_version(reader)
        reader.finish()
        return b"", version
    if kind not in (_ENTRY, _ENTRY_WITHOUT_BODY):
        raise MalformedPacket(f"a record of unknown kind {kind!r}")
    due = reader.four_byte_integer() << 32 | reader.four_byte_integer()
    retained = _read_retained(reader)
    reader.finish()
    payload = retained.payload if kind == _ENTRY else None
    due_ms = due - 1 if due else None
    return retained.topic, _Entry(
        retained.version, payload, retained.properties, retained.qos, due_ms
    )


# ---- bringing a neighbour up to date ----

_SYNC_FORMAT: Final = 1


class _Kind(IntEnum):
    """The second byte of a payload; the first is the format's version."""

    DIGEST = 1
    ASK_LEAVES = 2
    LEAVES = 3
    ASK_VERSIONS = 4
    VERSIONS = 5
    MESSAGES = 6


class RetainedSync:
    """One node's end of the synchronisation with one neighbour.

    Each end states what it has, and pushes what the other's statements lack; the two directions
    do not depend on each other.  Towards the end that states:

        holder                                      other
               ◀── DIGEST: a hash for each branch ──
               ── ASK_LEAVES: branches that differ ──▶
               ◀── LEAVES: a hash for each leaf ────
               ── ASK_VERSIONS: leaves that differ ──▶
               ◀── VERSIONS: topics and versions ───
               ── MESSAGES: what is newer here ──▶

    A branch or leaf of which the other has nothing is pushed at once.  Equal stores exchange one
    DIGEST of 2 KiB in each direction.

    Nothing can be lost or come back by what happens meanwhile: a statement that is out of date
    only makes the holder push what the other then finds not newer, and what changes after a
    comparison goes to the neighbour as a message of its own.  So the link must carry new retained
    messages from before `start` on.

    It keeps no messages, only what is still to be said, each thing once: memory is bounded by the
    store's size, whatever the neighbour asks.  Payloads are at most `chunk_bytes` long, or as long
    as the one topic or message in them.
    """

    def __init__(self, store: RetainedStore, *, chunk_bytes: int = 64 << 10) -> None:
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._digest_due = False
        # Ordered sets.
        self._leaves_to_ask: dict[int, None] = {}
        self._leaves_to_tell: dict[int, None] = {}
        self._versions_to_ask: dict[int, None] = {}
        self._versions_to_tell: dict[int, bytes] = {}  # after which topic
        self._leaves_to_push: dict[int, None] = {}
        self._topics_to_push: dict[bytes, None] = {}

    def start(self) -> None:
        """The link stands (again), or it is time to compare anew: both ends call it."""
        for pending in (
            self._leaves_to_ask,
            self._leaves_to_tell,
            self._versions_to_ask,
            self._versions_to_tell,
            self._leaves_to_push,
            self._topics_to_push,
        ):
            pending.clear()
        self._digest_due = True

    @property
    def has_more(self) -> bool:
        """Whether `next_payload` has something to say."""
        return bool(
            self._digest_due
            or self._leaves_to_ask
            or self._leaves_to_tell
            or self._versions_to_ask
            or self._versions_to_tell
            or self._leaves_to_push
            or self._topics_to_push
        )

    def next_payload(self, now_ms: int) -> bytes | None:
        """The next control message to the neighbour; call it when the link has room."""
        if self._digest_due:
            self._digest_due = False
            self._store.sweep(now_ms)
            digests = self._store.branch_digests()
            return _payload(_Kind.DIGEST, b"".join(digest.to_bytes(8) for digest in digests))
        if self._leaves_to_ask:
            return _payload(_Kind.ASK_LEAVES, bytes(_take_first(self._leaves_to_ask, 256)))
        if self._leaves_to_tell:
            return _payload(_Kind.LEAVES, self._tell_leaves())
        if self._versions_to_ask:
            leaves = _take_first(self._versions_to_ask, max(1, self._chunk_bytes // 2))
            return _payload(_Kind.ASK_VERSIONS, b"".join(leaf.to_bytes(2) for leaf in leaves))
        if self._versions_to_tell:
            return _payload(_Kind.VERSIONS, self._tell_versions())
        messages = self._push(now_ms)
        return _payload(_Kind.MESSAGES, messages) if messages else None

    def receive(self, payload: bytes, now_ms: int) -> list[Retained]:
        """A control message of the neighbour: the retained messages that are news here.

        Publish them at the local broker with retain, and send them to the other neighbours.
        Raises `RemoteProtocolError`, before anything of it has been taken over, if it is wrong.
        """
        reader = Reader(payload, 0, len(payload), 5)
        version, kind = reader.byte(), reader.byte()
        if version != _SYNC_FORMAT:
            raise RemoteProtocolError(
                f"retained messages are synchronised in format {version}, not {_SYNC_FORMAT}"
            )
        match kind:
            case _Kind.DIGEST:
                self._compare_branches(reader)
            case _Kind.ASK_LEAVES:
                self._leaves_to_tell.update(dict.fromkeys(_ascending(reader.rest())))
            case _Kind.LEAVES:
                self._compare_leaves(reader)
            case _Kind.ASK_VERSIONS:
                leaves = [reader.two_byte_integer() for _ in range((reader.remaining + 1) // 2)]
                self._versions_to_tell.update(dict.fromkeys(_ascending(leaves), b""))
            case _Kind.VERSIONS:
                self._compare_versions(reader)
            case _Kind.MESSAGES:
                return self._take_over(reader, now_ms)
            case _:
                raise RemoteProtocolError(f"a message of unknown kind {kind} about retained ones")
        return []

    # ---- what is said ----

    def _tell_leaves(self) -> bytes:
        told = bytearray()
        while self._leaves_to_tell:
            branch = next(iter(self._leaves_to_tell))
            digests = self._store.leaf_digests(branch)
            if told and len(told) + 3 + 9 * len(digests) > self._chunk_bytes:
                break
            told += b"%c%b" % (branch, len(digests).to_bytes(2))
            for leaf, digest in digests.items():
                told += b"%c%b" % (leaf & 0xFF, digest.to_bytes(8))
            del self._leaves_to_tell[branch]
        return bytes(told)

    def _tell_versions(self) -> bytes:
        told = bytearray()
        while self._versions_to_tell:
            leaf, after = next(iter(self._versions_to_tell.items()))
            room = self._chunk_bytes - len(told)
            section, last = self._versions_section(leaf, after, room if told else None)
            if section is None:
                break
            told += section
            if last is None:
                del self._versions_to_tell[leaf]
            else:
                self._versions_to_tell[leaf] = last
                break
        return bytes(told)

    def _versions_section(
        self, leaf: int, after: bytes, room: int | None
    ) -> tuple[bytes | None, bytes | None]:
        """The leaf, the topic it goes on after, whether to the end, and topics with versions.

        Returns it and the last topic in it, which is None if that was the leaf's last.  Without
        `room` the first topic is in it however long it is; if there is none for it: (None, None).
        """
        head = b"%b%b%b" % (leaf.to_bytes(2), len(after).to_bytes(2), after)
        size = len(head) + 5
        items: list[bytes] = []
        last: bytes | None = None
        for topic, version in self._store.leaf_versions(leaf):
            if topic <= after:
                continue
            item = len(topic).to_bytes(2) + topic + _write_version(version)
            limit = self._chunk_bytes if room is None else room
            if size + len(item) > limit and (items or room is not None):
                if not items:
                    return None, None
                return b"%b\0%b%b" % (head, len(items).to_bytes(4), b"".join(items)), last
            items.append(item)
            size += len(item)
            last = topic
        return b"%b\1%b%b" % (head, len(items).to_bytes(4), b"".join(items)), None

    def _push(self, now_ms: int) -> bytes:
        pushed = bytearray()
        while True:
            if not self._topics_to_push:
                if not self._leaves_to_push:
                    return bytes(pushed)
                (leaf,) = _take_first(self._leaves_to_push, 1)
                self._topics_to_push.update(
                    (topic, None) for topic, _ in self._store.leaf_versions(leaf)
                )
                continue
            topic = next(iter(self._topics_to_push))
            retained = self._store.get(topic, now_ms)
            if retained is not None:
                record = _write_retained(retained)
                if pushed and len(pushed) + len(record) > self._chunk_bytes:
                    return bytes(pushed)
                pushed += record
            del self._topics_to_push[topic]

    # ---- what is heard ----

    def _compare_branches(self, reader: Reader) -> None:
        theirs = [_eight_bytes(reader) for _ in range(256)]
        reader.finish()
        for branch, ours in enumerate(self._store.branch_digests()):
            if ours in (theirs[branch], 0):
                continue
            if theirs[branch] == 0:
                self._leaves_to_push.update(dict.fromkeys(self._store.leaf_digests(branch)))
            else:
                self._leaves_to_ask[branch] = None

    def _compare_leaves(self, reader: Reader) -> None:
        branches: dict[int, dict[int, int]] = {}
        while reader.remaining:
            branch, count = reader.byte(), reader.two_byte_integer()
            lows: list[int] = []
            digests: list[int] = []
            for _ in range(count):
                lows.append(reader.byte())
                digests.append(_eight_bytes(reader))
            leaves = (branch << 8 | low for low in _ascending(lows))
            branches[branch] = dict(zip(leaves, digests, strict=True))
        for branch, theirs in branches.items():
            for leaf, ours in self._store.leaf_digests(branch).items():
                if leaf not in theirs:
                    self._leaves_to_push[leaf] = None
                elif theirs[leaf] != ours:
                    self._versions_to_ask[leaf] = None

    def _compare_versions(self, reader: Reader) -> None:
        newer: list[bytes] = []
        while reader.remaining:
            leaf, after, complete = reader.two_byte_integer(), reader.binary(), reader.byte()
            count = reader.four_byte_integer()
            if complete > 1 or not (complete or count):
                raise MalformedPacket("a list of retained versions that has no end")
            theirs: dict[bytes, Version] = {}
            last = after
            for _ in range(count):
                topic = _read_topic(reader)
                if topic <= last or _leaf_of(topic) != leaf:
                    raise MalformedPacket(f"retained topic {topic[:80]!r} is out of place")
                theirs[topic] = _read_version(reader)
                last = topic
            for topic, ours in self._store.leaf_versions(leaf):
                known = theirs.get(topic)
                listed = topic > after and (complete or topic <= last)
                if listed and (known is None or known < ours):
                    newer.append(topic)
        self._topics_to_push.update(dict.fromkeys(newer))

    def _take_over(self, reader: Reader, now_ms: int) -> list[Retained]:
        messages: list[Retained] = []
        while reader.remaining:
            messages.append(_read_retained(reader))
        return [
            retained
            for retained in messages
            if self._store.offer(retained, now_ms, must_store=True)
        ]


def _payload(kind: _Kind, body: bytes) -> bytes:
    return b"%c%c%b" % (_SYNC_FORMAT, kind, body)


def _take_first(pending: dict[int, None], limit: int) -> list[int]:
    """Take out the first `limit`, and return them in order."""
    taken = [key for key, _ in zip(pending, range(limit), strict=False)]
    for key in taken:
        del pending[key]
    return sorted(taken)


def _ascending(numbers: Iterable[int]) -> list[int]:
    found = list(numbers)
    if any(right <= left for left, right in pairwise(found)):
        raise MalformedPacket("a list about retained messages that is not in order")
    return found


def _eight_bytes(reader: Reader) -> int:
    return reader.four_byte_integer() << 32 | reader.four_byte_integer()
