"""Retained messages over several brokers (ILDM §4.5.2): one last message per topic, everywhere.

The paper sends every retained PUBLISH to all nodes and stops there, so a broker that joins later
does not have them, and two concurrent ones may end in different orders at different brokers.
Departure: every retained message has a *version*, each node remembers the last one of each topic,
and the greatest version wins wherever it arrives, whatever the way and the order.

`retained_values` has the values, `retained_sync` brings neighbors up to date, and
`retained_journal` writes down what has to be kept over a restart.

Deletions.  An empty retained payload deletes [MQTT-3.3.1-6]; it is kept as a *tombstone*, because
a neighbor that was away may still have the message.  A tombstone is dropped `tombstone_ms` after
its version's time, or when there are too many, the oldest first: only a neighbor that was away for
longer can bring a deleted message back.  A message that expires becomes a tombstone too, so that
the one which it replaced does not return.

Clocks.  A version more than `max_ahead_ms` in the future is refused: the message goes on as one
that is not retained and moves no clock, so a node whose clock is wrong by more than that cannot
win for ever; it can only be out of step itself.  To clamp the version instead would give the same
message different versions at different nodes.  When a node finds its own versions that far ahead,
its clock has been set back: it stamps again what it holds from the future, as if written now.

Limits.  `max_topics` and `max_bytes` bound the store.  When the bytes are full, only the version
of a message is remembered, so that order is kept but a neighbor that joins cannot have it from
here; when there is no room for that either, a topic that is new is not remembered at all.  Such
messages still reach the brokers on the usual way.  Overwriting and deleting always work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from isthmus.errors import IsthmusError, RemoteProtocolError
from isthmus.exchange import kept_records
from isthmus.exchange.retained.deadlines import Deadlines
from isthmus.exchange.retained.journal import (
    CLOCK,
    FORGET,
    JOURNAL_NAME,
    JOURNAL_VERSION,
    journal_body,
    read_journal_body,
)
from isthmus.exchange.retained.values import (
    ORIGIN,
    PackedEntry,
    Retained,
    RetainedEntry,
    Version,
    leaf_of,
    topic_digest,
    write_version,
)

__all__ = ["SLICE", "SORTED_FROM", "RetainedLimits", "RetainedStore"]

_MAX_COUNTER: Final = (1 << 32) - 1
SORTED_FROM: Final = 128
"""Leaves of more topics than this are kept in order; others are put in order when asked for."""
SWEEP: Final = 500
"""How many entries one call of `sweep` changes at most."""
SLICE: Final = 500
"""How many records `loading` reads, and `snapshot` writes, between two pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedLimits:
    """What a store may take, and how far it trusts other clocks."""

    max_topics: int = 1_000_000
    max_bytes: int = 256 << 20
    max_tombstones: int = 100_000
    tombstone_ms: int = 7 * 24 * 3_600_000
    max_ahead_ms: int = 3_600_000


class RetainedStore:
    """The last retained message of every topic that this node has seen, and its clock.

    Topics fall into 65,536 leaves by their checksum, and 256 leaves into each of 256 branches.  A
    leaf's digest is the exclusive or of the hashes of its topics and versions, a branch's that of
    its leaves, so two stores find out where they differ without telling each other everything.

    Time is passed in, in milliseconds of the wall clock.  With `journal`, what changed is noted
    for `drain`.

    An entry is *owed* until the local broker has acknowledged it, which the journal remembers.
    """

    def __init__(
        self,
        origin: str,
        limits: RetainedLimits | None = None,
        *,
        journal: bool = False,
        salt: int = 0,
    ) -> None:
        if not ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} cannot be the origin of a version")
        self.origin = origin
        self.limits = limits or RetainedLimits()
        self._last = Version(0, 0, origin)
        self._leaves: dict[int, dict[bytes, PackedEntry]] = {}
        self._sorted: dict[int, list[bytes]] = {}
        """The topics of large leaves, in their order."""
        self._leaf_digests: dict[int, int] = {}
        self._branch_digests = [0] * 256
        self._live = self._tombstones = 0
        self._bytes = self._tombstone_bytes = 0
        self._expiry_times = Deadlines()
        self._drop_times = Deadlines()
        self._owed: dict[bytes, None] = {}
        self._journal = journal
        self._salt = salt
        self._changed: dict[bytes, None] = {}
        self._not_stored = self._bodies_left_out = self._tombstones_dropped = 0
        self._refused_as_future = self._clock_set_back = 0
        self.refused: Version | None = None
        """The last version that was too far in the future; whoever tells people takes it out."""

    # ---- the clock ----

    def stamp(self, now_ms: int) -> Version:
        """A version for a message of a local client: greater than every one seen so far."""
        self._check_clock(now_ms)
        return self._next_version(now_ms)

    def observe(self, version: Version, now_ms: int) -> bool:
        """Let the clock run ahead of `version`; False if that is too far in the future."""
        if version.wall_ms > now_ms + self.limits.max_ahead_ms:
            self._refused_as_future += 1
            self.refused = version
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

        The neighbors, who refused it before, have it from the next synchronization.
        """
        latest_ms = now_ms + self.limits.max_ahead_ms
        if self._last.wall_ms <= latest_ms:
            return
        self._clock_set_back += 1
        ahead = [
            (Version(*packed[:3]), topic)
            for leaf in self._leaves.values()
            for topic, packed in leaf.items()
            if packed[0] > latest_ms
        ]
        wall_ms, counter = max(
            (
                packed[:2]
                for leaf in self._leaves.values()
                for packed in leaf.values()
                if packed[0] <= latest_ms
            ),
            default=(0, 0),
        )
        self._last = Version(wall_ms, counter, self.origin)
        for _, topic in sorted(ahead):
            entry = self._find(topic)
            assert entry is not None
            version = self._next_version(now_ms)
            due_ms = (
                entry.due_ms if not entry.deleted else version.wall_ms + self.limits.tombstone_ms
            )
            self._put(topic, replace(entry, version=version, due_ms=due_ms))

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
        """A local client published a retained message: the value to send to the neighbors."""
        self.sweep(now_ms)
        retained = Retained(topic, payload, properties, qos, self.stamp(now_ms), expiry_s)
        self._store(retained, now_ms)
        return retained

    def record_found(
        self, retained: Retained, now_ms: int, version: tuple[int, int] | None
    ) -> bool:
        """The local broker has it: store it, with this version or a new one; False if not."""
        self.sweep(now_ms)
        stamp = self.stamp(now_ms) if version is None else Version(*version, self.origin)
        return self._store(replace(retained, version=stamp), now_ms)

    def offer(self, retained: Retained, now_ms: int, *, must_store: bool = False) -> bool:
        """A neighbor sent it: True if it is newer than what is stored, which it then replaces.

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
        too_old = retained.version.wall_ms + self.limits.tombstone_ms <= now_ms
        if known is None and retained.deleted and too_old:
            return False  # dropped here before, and it must not live on by being passed around
        return self._store(retained, now_ms) or not must_store

    def sweep(self, now_ms: int) -> bool:
        """Turn what has expired into tombstones, and drop tombstones that are too old.

        It is done on every write; call it now and then for a store that is not written to.  True
        if there is more to do: a call does no more than `SWEEP`.
        """
        self._check_clock(now_ms)
        left = SWEEP
        while left and (first := self._expiry_times.first()) and first[0] <= now_ms:
            entry = self._find(first[1])
            assert entry is not None
            due_ms = entry.version.wall_ms + self.limits.tombstone_ms
            self._put(first[1], RetainedEntry(entry.version, b"", due_ms=due_ms, owed=entry.owed))
            self._bound_tombstones()
            left -= 1
        while left and (first := self._drop_times.first()) and first[0] <= now_ms:
            self._put(first[1], None)
            left -= 1
        return not left

    def _store(self, retained: Retained, now_ms: int) -> bool:
        """Put it in place of what is there; False if no trace of it could be kept."""
        if retained.deleted:
            return self._store_tombstone(retained.topic, retained.version, now_ms)
        topic = retained.topic
        due_ms = None if retained.expiry_s is None else now_ms + 1000 * retained.expiry_s
        entry = RetainedEntry(
            retained.version, retained.payload, retained.properties, retained.qos, due_ms
        )
        known = self._find(topic)
        is_new = known is None or known.deleted
        if not self._has_room(topic, entry, known):
            entry = RetainedEntry(retained.version, None, due_ms=due_ms)
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
        entry = RetainedEntry(version, b"", due_ms=version.wall_ms + self.limits.tombstone_ms)
        if version.wall_ms + self.limits.tombstone_ms <= now_ms:
            self._put(topic, None)
        elif self._has_room(topic, entry, known):
            self._put(topic, entry)
            self._bound_tombstones()
        else:
            self._tombstones_dropped += 1
            self._put(topic, None)
        return known is not None or self._find(topic) is not None

    def _has_room(self, topic: bytes, entry: RetainedEntry, known: RetainedEntry | None) -> bool:
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

    def _put(self, topic: bytes, entry: RetainedEntry | None) -> None:
        """The only place that changes an entry: all that is counted is counted here."""
        index = leaf_of(topic)
        leaf = self._leaves.get(index, {})
        packed = leaf.pop(topic, None)
        known = None if packed is None else RetainedEntry.unpacked(packed)
        if known is None and entry is None:
            return
        if known is not None:
            self._account(topic, known, -1)
            if known.due_ms is not None:
                self._deadlines(known).discard(known.due_ms, topic)
        if entry is not None:
            leaf[topic] = entry.packed()
            self._leaves[index] = leaf
            self._account(topic, entry, 1)
            if entry.due_ms is not None:
                self._deadlines(entry).add(entry.due_ms, topic)
        elif not leaf:
            self._leaves.pop(index, None)
        if (known is None) is not (entry is None):
            self._keep_sorted(index, topic, leaf, added=entry is not None)
        self._note_owed(topic, owed=entry is not None and entry.owed)
        if self._journal:
            self._changed[topic] = None

    def _deadlines(self, entry: RetainedEntry) -> Deadlines:
        return self._drop_times if entry.deleted else self._expiry_times

    def _keep_sorted(
        self, index: int, topic: bytes, leaf: dict[bytes, PackedEntry], *, added: bool
    ) -> None:
        in_order = self._sorted.get(index)
        if in_order is None:
            if len(leaf) > SORTED_FROM:
                self._sorted[index] = sorted(leaf)
        elif len(leaf) <= SORTED_FROM // 2:
            del self._sorted[index]
        elif added:
            insort(in_order, topic)
        else:
            del in_order[bisect_left(in_order, topic)]

    # ---- what the broker is owed ----

    @property
    def owed(self) -> dict[bytes, None]:
        """Topics whose entry the local broker has not acknowledged: to be read only."""
        return self._owed

    def owe(self, topic: bytes) -> None:
        """The broker is to have what is stored of `topic`, and has not acknowledged it."""
        self._set_owed(topic, owed=True)

    def settle(self, topic: bytes, version: Version) -> None:
        """The broker has acknowledged this version; if there is a newer one, that is still owed."""
        entry = self._find(topic)
        if entry is not None and entry.version == version:
            self._set_owed(topic, owed=False)

    def _set_owed(self, topic: bytes, *, owed: bool) -> None:
        entry = self._find(topic)
        if entry is None or entry.owed is owed:
            return
        self._leaves[leaf_of(topic)][topic] = replace(entry, owed=owed).packed()
        self._note_owed(topic, owed=owed)
        if self._journal:
            self._changed[topic] = None

    def _note_owed(self, topic: bytes, *, owed: bool) -> None:
        if owed:
            self._owed[topic] = None
        else:
            self._owed.pop(topic, None)

    def forget(self, topic: bytes) -> None:
        """Not to have it is better than to say so and not to have given it to the broker."""
        self._put(topic, None)

    def _account(self, topic: bytes, entry: RetainedEntry, sign: int) -> None:
        self._bytes += sign * entry.size(topic)
        if entry.deleted:
            self._tombstones += sign
            self._tombstone_bytes += sign * entry.size(topic)
        else:
            self._live += sign
        digest = topic_digest(topic, entry.version)
        index = leaf_of(topic)
        self._branch_digests[index >> 8] ^= digest
        leaf_digest = self._leaf_digests.pop(index, 0) ^ digest
        if leaf_digest:
            self._leaf_digests[index] = leaf_digest

    def _find(self, topic: bytes) -> RetainedEntry | None:
        leaf = self._leaves.get(leaf_of(topic))
        packed = leaf.get(topic) if leaf is not None else None
        return RetainedEntry.unpacked(packed) if packed is not None else None

    # ---- reading ----

    def __len__(self) -> int:
        """The number of topics that have a retained message."""
        return self._live

    def version(self, topic: bytes) -> Version | None:
        """Of the message or the deletion that was last."""
        entry = self._find(topic)
        return entry.version if entry is not None else None

    def has_body(self, topic: bytes) -> bool:
        """Whether what was last is here, and not only its version."""
        entry = self._find(topic)
        return entry is not None and entry.payload is not None

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

    def add(self, topic: bytes) -> bytes | None:
        """What a topic is called in a comparison of all there is: the same."""
        return topic

    def topics(self) -> list[bytes]:
        """All of which something is known, deletions included; for checks."""
        return [topic for leaf in self._leaves.values() for topic in leaf]

    def branch_digests(self) -> tuple[int, ...]:
        return tuple(self._branch_digests)

    def leaf_digests(self, branch: int) -> dict[int, int]:
        """Of the leaves of one branch that are not empty, in their order."""
        found = self._leaf_digests
        indices = range(branch << 8, (branch + 1) << 8)
        return {index: found[index] for index in indices if index in found}

    def leaf_topics(self, leaf: int) -> list[bytes]:
        """The topics of a leaf, in any order."""
        return list(self._leaves.get(leaf, ()))

    def leaf_versions(
        self, leaf: int, after: bytes = b"", up_to: bytes | None = None
    ) -> Iterator[tuple[bytes, Version]]:
        """The topics of a leaf in their order, of those after `after` and up to `up_to`."""
        entries = self._leaves.get(leaf, {})
        in_order = self._sorted.get(leaf)
        if in_order is None:
            in_order = sorted(entries)
        stop = len(in_order) if up_to is None else bisect_right(in_order, up_to)
        for place in range(bisect_right(in_order, after), stop):
            topic = in_order[place]
            yield topic, Version(*entries[topic][:3])

    def status(self) -> dict[str, object]:
        """JSON-able facts for people."""
        return {
            "topics": self._live,
            "max_topics": self.limits.max_topics,
            "bytes": self._bytes,
            "max_bytes": self.limits.max_bytes,
            "owed": len(self._owed),
            "tombstones": self._tombstones,
            "tombstones_dropped": self._tombstones_dropped,
            "not_stored": self._not_stored,
            "bodies_left_out": self._bodies_left_out,
            "refused_as_future": self._refused_as_future,
            "clock_set_back": self._clock_set_back,
        }

    # ---- over a restart: a file that is appended to, and rewritten now and then ----

    def snapshot(self) -> Iterator[bytes]:
        """A new journal, in pieces of some `SLICE` entries; may go on while the store changes.

        What `drain` returns meanwhile is to be appended to the new journal as well as to the one
        that it is going to replace, in the order in which both come.
        """
        clock = write_version(self._last)
        piece = bytearray(kept_records.header(JOURNAL_NAME, JOURNAL_VERSION, self._salt))
        piece += kept_records.record(CLOCK + clock, self._salt)
        left = SLICE
        for index in list(self._leaves):
            for topic in self.leaf_topics(index):
                entry = self._find(topic)
                if entry is not None:
                    piece += kept_records.record(journal_body(topic, entry), self._salt)
                left -= 1
                if left <= 0 or len(piece) > 1 << 20:
                    yield bytes(piece)
                    piece.clear()
                    left = SLICE
        if piece:
            yield bytes(piece)

    @property
    def has_changed(self) -> bool:
        """Whether `drain` has something."""
        return bool(self._changed)

    def drain(self, max_bytes: int = 64 << 10) -> bytes:
        """What has to be appended to the journal, at most about `max_bytes` at a time.

        Empty if nothing has changed since.  A topic that changed often stands in it once.
        """
        if not self._changed:
            return b""
        records = bytearray(kept_records.record(CLOCK + write_version(self._last), self._salt))
        left = SLICE
        while self._changed and left and len(records) < max_bytes:
            topic, _ = self._changed.popitem()  # the order between topics does not matter
            entry = self._find(topic)
            body = FORGET + topic if entry is None else journal_body(topic, entry)
            records += kept_records.record(body, self._salt)
            left -= 1
        return bytes(records)

    def load(self, journal: bytes, now_ms: int) -> list[str]:
        """Read a journal into this store, which is empty, at one go; see `loading`."""
        problems: list[str] = []
        for problem in self.loading(journal, now_ms):
            if problem:
                problems.append(problem)
        return problems

    def loading(self, journal: bytes, now_ms: int) -> Iterator[str]:
        """Read a journal into this store, which is empty, with a pause after each `SLICE`.

        What can be read is read.  Yields what is wrong with a part, or nothing at a pause.  Raises
        `IsthmusError` if the whole is of another format.
        """
        found = kept_records.read_header(journal)
        if found is None or (found.name, found.version) != (JOURNAL_NAME, JOURNAL_VERSION):
            if journal:
                raise IsthmusError("the journal of retained messages is not of a format we read")
            return
        self._salt = found.salt
        left = SLICE
        for start, end, body in kept_records.scan(journal, found):
            if body is None:
                yield f"bytes {start} to {end} are damaged"
                continue
            try:
                self._load_record(body)
            except RemoteProtocolError as error:
                yield f"bytes {start} to {end}: {error}"
            left -= 1
            if not left:
                left = SLICE
                yield ""
        self._changed.clear()
        self._bound_tombstones()
        self.sweep(now_ms)

    def _load_record(self, body: bytes) -> None:
        topic, entry = read_journal_body(body)
        if isinstance(entry, Version):
            self._last = max(self._last, Version(entry.wall_ms, entry.counter, self.origin))
        elif entry is None:
            self._put(topic, None)
        else:
            self._load_entry(topic, entry)

    def _load_entry(self, topic: bytes, entry: RetainedEntry) -> None:
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
