"""Brings a neighbor's store of retained messages up to date, and is brought up to date by it.

The payloads travel over the link in order, as control messages; see `RetainedSync` for what they
say.  Each begins with the format's version, its kind, and the number of the comparison that its
sender is at.

Each is answered with an ACK when it has been dealt with, and an end has at most `WINDOW` of them
unanswered, so a store that is slow to take things over is not buried in them.  A payload is small
(`CHUNK_BYTES`, or one topic or message): to deal with one holds nobody up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

from isthmus.errors import MalformedPacket, RemoteProtocolError
from isthmus.exchange.retained.store import SLICE, RetainedStore
from isthmus.exchange.retained.values import (
    Retained,
    Version,
    leaf_of,
    read_retained,
    read_topic,
    read_version,
    take,
    write_retained,
    write_version,
)
from isthmus.exchange.retained.view import RetainedTopics
from isthmus.mqtt.primitives import Reader

__all__ = ["CHUNK_BYTES", "WINDOW", "RetainedSync", "as_it_is"]

CHUNK_BYTES: Final = 8 << 10
WINDOW: Final = 8
_SYNC_FORMAT: Final = 2
_HEAD_BYTES: Final = 6
_DIGESTS: Final = struct.Struct(">256Q")
"""Of all branches: most of what a new link costs where nothing is retained."""
MAX_CHUNK_BYTES: Final = 4 * CHUNK_BYTES
"""What is taken of a neighbor, whose chunks may be larger than ours."""


class _Kind(IntEnum):
    """The second byte of a payload; the first is the format's version."""

    DIGEST = 1
    ASK_LEAVES = 2
    LEAVES = 3
    ASK_VERSIONS = 4
    VERSIONS = 5
    MESSAGES = 6
    ACK = 7
    ASK_DIGEST = 8


@dataclass(slots=True)
class _Section:
    """What a neighbor has of a leaf, of the topics after `after` and up to `last`."""

    leaf: int
    after: bytes
    last: bytes | None
    """None if that is to the leaf's end."""
    versions: dict[bytes, Version]


class RetainedSync:
    """One node's end of the synchronization with one neighbor.

    Each end states what it has, and pushes what the other's statements lack; the two directions
    do not depend on each other.  If not all may cross the link, or not under the same names, each
    states what may come and pushes what may go, with the names of the link (`stated`, `pushed`).
    Towards the end that states:

        holder                                      other
               ◀── DIGEST: a hash for each branch ──
               ── ASK_LEAVES: branches that differ ──▶
               ◀── LEAVES: a hash for each leaf ────
               ── ASK_VERSIONS: leaves that differ ──▶
               ◀── VERSIONS: topics and versions ───
               ── MESSAGES: what is newer here ──▶

    A branch or leaf of which the other has nothing is pushed at once.  Equal stores exchange one
    DIGEST of 2 KiB in each direction.  What one neighbor brought is pushed to the others without
    comparing (`push`).

    Nothing can be lost or come back by what happens meanwhile: a statement that is out of date
    only makes the holder push what the other then finds not newer, and what changes after a
    comparison goes to the neighbor as a message of its own.  So the link must carry new retained
    messages from before `start` on.

    It keeps no messages, only what is still to be said, each thing once: memory is bounded by the
    store's size, whatever the neighbor asks.  Payloads are at most `chunk_bytes` long, or as long
    as the one topic or message in them.
    """

    def __init__(
        self, store: RetainedStore, *, chunk_bytes: int = CHUNK_BYTES, first: int = 0
    ) -> None:
        """`first` numbers the comparisons; after a restart it should be another."""
        self._store = store
        self.stated: RetainedTopics = store
        """What is said to be here: what may come from the neighbor."""
        self.pushed: RetainedTopics = store
        """What is compared with what the neighbor says, and sent."""
        self.own: Callable[[bytes], bytes | None] = as_it_is
        """What a topic of the neighbor is called here; None if it should not have come."""
        self._chunk_bytes = chunk_bytes
        self._digest_due = self._digest_to_ask = False
        self._comparison = first
        self._unanswered = 0
        # Ordered sets.
        self._leaves_to_ask: dict[int, None] = {}
        self._leaves_to_tell: dict[int, None] = {}
        self._versions_to_ask: dict[int, None] = {}
        self._versions_to_tell: dict[int, bytes] = {}  # after which topic
        self._to_compare: list[_Section] = []
        self._branches_to_push: dict[int, None] = {}
        self._leaves_to_push: dict[int, None] = {}
        self._topics_to_push: dict[bytes, None] = {}
        self._pending: tuple[dict[Any, Any], ...] = (
            self._leaves_to_ask,
            self._leaves_to_tell,
            self._versions_to_ask,
            self._versions_to_tell,
            self._branches_to_push,
            self._leaves_to_push,
            self._topics_to_push,
        )

    def start(self, *, alone: bool = False, keeps: bool = False) -> None:
        """The link stands (again), or it is time to compare anew: both ends call it.

        If this end does so `alone`, it asks the other one for its DIGEST (ASK_DIGEST).  It `keeps`
        what was to be pushed, which the neighbor may have come to want meanwhile.
        """
        self._digest_to_ask = alone
        self._comparison = (self._comparison + 1) & 0xFFFF_FFFF
        self._unanswered = 0
        for pending in self._pending:
            if not (keeps and pending is self._topics_to_push):
                pending.clear()
        self._to_compare.clear()
        self._digest_due = True

    @property
    def awaits_answer(self) -> bool:
        """Whether the neighbor has not dealt with all that was said."""
        return self._unanswered > 0

    @property
    def may_speak(self) -> bool:
        """Whether there is something to say, and the neighbor has dealt with enough of it."""
        return self._unanswered < WINDOW and self.has_more

    @property
    def has_more(self) -> bool:
        """Whether `next_payload` has something to say."""
        return self._digest_due or self._digest_to_ask or any(self._pending)

    def push(self, topic: bytes) -> None:
        """Send what is stored of `topic`, which came from elsewhere, if it may go there."""
        name = self.pushed.add(topic)
        if name is not None:
            self._topics_to_push[name] = None

    def next_payload(self, now_ms: int) -> bytes | None:
        """The next control message to the neighbor; call it when the link has room.

        None if there is none now; if `has_more`, there may be one the next time.
        """
        said = self._next(now_ms)
        if said is None:
            return None
        self._unanswered += 1
        return self._payload(*said)

    def _next(self, now_ms: int) -> tuple[_Kind, bytes] | None:
        if self._digest_due:
            self._digest_due = False
            self._store.sweep(now_ms)
            digests = self.stated.branch_digests()
            return _Kind.DIGEST, _DIGESTS.pack(*digests)
        if self._digest_to_ask:
            self._digest_to_ask = False
            return _Kind.ASK_DIGEST, b""
        if self._leaves_to_ask:
            return _Kind.ASK_LEAVES, bytes(_take_some(self._leaves_to_ask, 256))
        if self._leaves_to_tell:
            return _Kind.LEAVES, self._tell_leaves()
        if self._versions_to_ask:
            leaves = _take_some(self._versions_to_ask, max(1, self._chunk_bytes // 2))
            return _Kind.ASK_VERSIONS, b"".join(leaf.to_bytes(2) for leaf in leaves)
        if self._versions_to_tell:
            return _Kind.VERSIONS, self._tell_versions()
        messages = self._push(now_ms)
        return (_Kind.MESSAGES, messages) if messages else None

    def _payload(self, kind: _Kind, body: bytes) -> bytes:
        return b"%c%c%b%b" % (_SYNC_FORMAT, kind, self._comparison.to_bytes(4), body)

    @staticmethod
    def answer(payload: bytes) -> bytes:
        """The ACK of a payload that has been dealt with."""
        return b"%c%c%b" % (_SYNC_FORMAT, _Kind.ACK, payload[2:_HEAD_BYTES])

    def is_answer(self, payload: bytes) -> bool:
        """Whether this is an ACK, which is noted; all else is for `receive`."""
        if payload[:2] != b"%c%c" % (_SYNC_FORMAT, _Kind.ACK):
            return False
        if len(payload) != _HEAD_BYTES:
            raise MalformedPacket("an answer about retained messages of the wrong length")
        if int.from_bytes(payload[2:]) == self._comparison and self._unanswered:
            self._unanswered -= 1
        return True

    @staticmethod
    def is_statement(payload: bytes) -> bool:
        """Whether the neighbor begins to say what it has."""
        return payload[1:2] == b"%c" % _Kind.DIGEST

    def receive(self, payload: bytes, now_ms: int) -> list[tuple[Retained, bool]]:
        """A control message of the neighbor: the retained messages that are news here.

        Give them to the local broker with retain, and push them to the other neighbors.  With
        each, whether nothing at all was known of its topic.  Raises `RemoteProtocolError`, before
        anything of it has been taken over, if it is wrong.
        """
        reader = Reader(payload, 0, len(payload), 5)
        version, kind = reader.byte(), reader.byte()
        if version != _SYNC_FORMAT:
            raise RemoteProtocolError(
                f"retained messages are synchronized in format {version}, not {_SYNC_FORMAT}"
            )
        reader.four_byte_integer()
        match kind:
            case _Kind.DIGEST:
                self._compare_branches(reader)
            case _Kind.ASK_DIGEST:
                reader.finish()
                self._digest_due = True
            case _Kind.ASK_LEAVES:
                _check_size(reader)
                self._leaves_to_tell.update(dict.fromkeys(_ascending(reader.rest())))
            case _Kind.LEAVES:
                self._compare_leaves(reader)
            case _Kind.ASK_VERSIONS:
                _check_size(reader)
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
            branch = next(reversed(self._leaves_to_tell))
            digests = self.stated.leaf_digests(branch)
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
            leaf, after = next(reversed(self._versions_to_tell.items()))
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
        for topic, version in self.stated.leaf_versions(leaf, after):
            item = len(topic).to_bytes(2) + topic + write_version(version)
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
        left = SLICE
        while True:
            if not self._topics_to_push:
                if not self._leaves_to_push and self._branches_to_push:
                    branch, _ = self._branches_to_push.popitem()
                    leaves = self.pushed.leaf_digests(branch)
                    self._leaves_to_push.update(dict.fromkeys(leaves))
                if not self._leaves_to_push:
                    return bytes(pushed)
                leaf, _ = self._leaves_to_push.popitem()
                self._topics_to_push.update(dict.fromkeys(self.pushed.leaf_topics(leaf)))
                continue
            topic = next(reversed(self._topics_to_push))
            retained = self.pushed.get(topic, now_ms)
            if retained is not None:
                record = write_retained(retained)
                if pushed and len(pushed) + len(record) > self._chunk_bytes:
                    return bytes(pushed)
                pushed += record
            del self._topics_to_push[topic]
            left -= 1
            if not left:  # of many without a body, which cannot be sent
                return bytes(pushed)

    # ---- what is heard ----

    def _compare_branches(self, reader: Reader) -> None:
        theirs = _DIGESTS.unpack(take(reader, _DIGESTS.size))
        reader.finish()
        for branch, ours in enumerate(self.pushed.branch_digests()):
            if ours in (theirs[branch], 0):
                continue
            if theirs[branch] == 0:
                self._branches_to_push[branch] = None
            else:
                self._leaves_to_ask[branch] = None

    def _compare_leaves(self, reader: Reader) -> None:
        _check_size(reader)
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
            for leaf, ours in self.pushed.leaf_digests(branch).items():
                if leaf not in theirs:
                    self._leaves_to_push[leaf] = None
                elif theirs[leaf] != ours:
                    self._versions_to_ask[leaf] = None

    def _compare_versions(self, reader: Reader) -> None:
        sections: list[_Section] = []
        while reader.remaining:
            leaf, after, complete = reader.two_byte_integer(), reader.binary(), reader.byte()
            count = reader.four_byte_integer()
            if count > 1 or sections:
                _check_size(reader)
            if complete > 1 or not (complete or count):
                raise MalformedPacket("a list of retained versions that has no end")
            theirs: dict[bytes, Version] = {}
            last = after
            for _ in range(count):
                topic = read_topic(reader)
                if topic <= last or leaf_of(topic) != leaf:
                    raise MalformedPacket(f"retained topic {topic[:80]!r} is out of place")
                theirs[topic] = read_version(reader)
                last = topic
            sections.append(_Section(leaf, after, None if complete else last, theirs))
        self._to_compare += sections
        self.compare_more()

    @property
    def has_to_compare(self) -> bool:
        """Whether the last payload is not dealt with yet: `compare_more`, then answer it."""
        return bool(self._to_compare)

    def compare_more(self) -> None:
        """Go on with what the neighbor listed, `SLICE` topics of this store further."""
        left = SLICE
        while self._to_compare and left > 0:
            section = self._to_compare[-1]
            for topic, ours in self.pushed.leaf_versions(section.leaf, section.after, section.last):
                if not left:
                    break
                left -= 1
                section.after = topic
                known = section.versions.get(topic)
                if known is None or known < ours:
                    self._topics_to_push[topic] = None
            else:
                self._to_compare.pop()
                left -= 1

    def _take_over(self, reader: Reader, now_ms: int) -> list[tuple[Retained, bool]]:
        messages = [read_retained(reader)]
        if reader.remaining:
            _check_size(reader)
        while reader.remaining:
            messages.append(read_retained(reader))
        news: list[tuple[Retained, bool]] = []
        for message in messages:
            topic = self.own(message.topic)
            if topic is None:
                continue
            retained = message if topic == message.topic else replace(message, topic=topic)
            unknown = self._store.version(topic) is None
            if self._store.offer(retained, now_ms, must_store=True):
                news.append((retained, unknown))
        return news


def as_it_is(topic: bytes) -> bytes | None:
    """The name of a topic where all nodes have the same."""
    return topic


def _check_size(reader: Reader) -> None:
    """Only one topic or message may make a payload longer than a chunk."""
    if len(reader.data) > MAX_CHUNK_BYTES:
        raise MalformedPacket(f"a payload of {len(reader.data)} bytes about many retained messages")


def _take_some(pending: dict[int, None], limit: int) -> list[int]:
    """Take out at most `limit`, and return them in order."""
    taken = [pending.popitem()[0] for _ in range(min(limit, len(pending)))]
    return sorted(taken)


def _ascending(numbers: Iterable[int]) -> list[int]:
    found = list(numbers)
    if any(right <= left for left, right in pairwise(found)):
        raise MalformedPacket("a list about retained messages that is not in order")
    return found


def _eight_bytes(reader: Reader) -> int:
    return reader.four_byte_integer() << 32 | reader.four_byte_integer()
