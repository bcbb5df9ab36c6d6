"""Keys of virtual nodes, ranges of them, and how both are written (thesis §3.2.1).

A key has three subkeys, the first one counting most:

    topic    a topic's name, or a filter that somebody subscribed to
    kind     subscribers come before publishers, so publishers stand to the right of subscribers
    place    12 bytes, different for every node: a digest of its id and the topic

So all virtual nodes of a topic stand side by side, subscribers on the left, publishers on the
right, and the leftmost publisher, which stands beside the subscribers, is the rendezvous point:

    …│ t SUBSCRIBER … t SUBSCRIBER │ t PUBLISHER (rp) … t PUBLISHER │ next topic …

The thesis takes an address of the node as the last subkey.  A digest is as unique, has a fixed
length, and as the topic is in it, no node is the rendezvous point of all its topics.  Anybody can
compute the key of a node, so nobody can claim the key of another.

**Written out** (`Key.encoded`) a key is its topic in UTF-8, a zero byte, one byte for the kind, and
the place.  No topic contains U+0000, so the bytes sort as the keys do.

**On a link** the range is the label of a message, of 64 bytes at most, and a topic may have 65,535.
But the topic stands in the message already.  Of a range inside the virtual nodes of that topic and
one kind, the label has nothing but the two bounds.  Of a range inside those of a *filter* that the
topic matches, it has besides which levels of the topic the filter has as ``+`` and where its ``#``
is: one bit per level.  What any label takes is at most `MAX_LABEL_BYTES`, whatever the topic:

    1 byte     which of the following is there; whether bounds are included; the kind
    1 byte     levels of the filter before ``#``, or all                       filters only
    n/8 bytes  which of its levels are ``+``, the first one in the lowest bit  filters only
    12 bytes   the lower bound's place                                         unless all below
    12 bytes   the upper bound's place                                         unless all above

A range over several topics or kinds cannot be a label: `label_of` refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.topics import matches

__all__ = [
    "MAX_FILTER_LEVELS",
    "MAX_LABEL_BYTES",
    "PLACE_BYTES",
    "Key",
    "KeyRange",
    "Kind",
    "default_key",
    "key_from",
    "key_of",
    "label_of",
    "publishers_of",
    "range_from",
    "subscribers_of",
]

PLACE_BYTES: Final = 12
MAX_FILTER_LEVELS: Final = 128
"""Of a filter in a label; those of `on_local_interest` have no more."""
MAX_LABEL_BYTES: Final = 2 + MAX_FILTER_LEVELS // 8 + 2 * PLACE_BYTES

_HAS_LOW, _WITH_LOW, _HAS_HIGH, _WITH_HIGH, _PUBLISHERS, _FILTER, _MULTI = (
    1 << bit for bit in range(7)
)


class Kind(IntEnum):
    """What a virtual node is there for; the order is that of the keys of one topic."""

    IDLE = 0
    """For nothing: see `default_key`."""
    SUBSCRIBER = 1
    PUBLISHER = 2
    END = 3
    """Of no virtual node: the upper bound of publishers."""


class Key(NamedTuple):
    """Of one virtual node, or a bound: then `place` may be empty, before all places."""

    topic: str
    kind: Kind
    place: bytes

    @property
    def encoded(self) -> bytes:
        return self.topic.encode() + bytes((0, self.kind)) + self.place


def key_of(topic: str, kind: Kind, node_id: str) -> Key:
    """The one key that this node can have for this topic and kind."""
    digest = blake2b(node_id.encode() + b"\0" + topic.encode(), digest_size=PLACE_BYTES)
    return Key(topic, kind, digest.digest())


def default_key(node_id: str) -> Key:
    """Of a node that neither publishes nor subscribes; no topic is empty, so it is nobody else's.

    It keeps the node in the graph, so that others can join over it.
    """
    return key_of("", Kind.IDLE, node_id)


def key_from(data: bytes) -> Key:
    """Read `Key.encoded`; raises `RemoteProtocolError`."""
    topic, separator, rest = data.partition(b"\0")
    if not separator or len(rest) != 1 + PLACE_BYTES or rest[0] >= Kind.END:
        raise RemoteProtocolError(f"a key of {len(data)} bytes that is none")
    try:
        return Key(topic.decode(), Kind(rest[0]), rest[1:])
    except UnicodeDecodeError:
        raise RemoteProtocolError("a key whose topic is not UTF-8") from None


@dataclass(frozen=True, slots=True)
class KeyRange:
    """All keys between two, each of which may belong to it: closed, half-open or open."""

    low: Key
    high: Key
    with_low: bool = True
    with_high: bool = True

    def __contains__(self, key: Key) -> bool:
        return not self.is_above(key) and not self.is_below(key)

    def is_above(self, key: Key) -> bool:
        """Whether all of it is above `key`."""
        return key < self.low or (key == self.low and not self.with_low)

    def is_below(self, key: Key) -> bool:
        return key > self.high or (key == self.high and not self.with_high)

    @property
    def is_empty(self) -> bool:
        """Surely so; between two keys there may be none, which nobody can see."""
        both = self.with_low and self.with_high
        return self.low > self.high or (self.low == self.high and not both)

    def left_of(self, key: Key, *, with_key: bool = False) -> KeyRange:
        """The part of it below `key`, which is in it."""
        return KeyRange(self.low, key, self.with_low, with_key)

    def right_of(self, key: Key, *, with_key: bool = False) -> KeyRange:
        return KeyRange(key, self.high, with_key, self.with_high)


def subscribers_of(topic: str) -> KeyRange:
    """The target of a message, G_t^S."""
    return _all_of(topic, Kind.SUBSCRIBER)


def publishers_of(topic: str) -> KeyRange:
    """The target of a signal, G_t^P."""
    return _all_of(topic, Kind.PUBLISHER)


def _all_of(topic: str, kind: Kind) -> KeyRange:
    return KeyRange(Key(topic, kind, b""), Key(topic, Kind(kind + 1), b""), with_high=False)


# ---- labels ------------------------------------------------------------------------------


def label_of(keys: KeyRange, topic: str) -> bytes:
    """The range as the label of a message on `topic`; `ValueError` if it cannot be one."""
    low, high = keys.low, keys.high
    whole = _all_of(low.topic, low.kind) if low.kind in (Kind.SUBSCRIBER, Kind.PUBLISHER) else None
    to_the_end = whole is not None and (high, keys.with_high) == (whole.high, False)
    if whole is None or not (to_the_end or high[:2] == low[:2]):
        raise ValueError(f"{keys} is not inside one topic and kind: no label can say it")
    flags = _PUBLISHERS if low.kind is Kind.PUBLISHER else 0
    data = b""
    if low.topic != topic:
        if not matches(low.topic, topic):
            raise ValueError(f"{low.topic!r} does not match {topic!r}: no label can say it")
        flags |= _FILTER
        levels = low.topic.split("/")
        if levels[-1] == "#":
            flags |= _MULTI
            levels.pop()
        if len(levels) > MAX_FILTER_LEVELS:
            raise ValueError(f"a filter of {len(levels)} levels; {MAX_FILTER_LEVELS} are possible")
        data = bytes((len(levels),)) + _bits_of(levels)
    if low.place or not keys.with_low:
        flags |= _HAS_LOW | (_WITH_LOW if keys.with_low else 0)
        data += _place(low.place)
    if not to_the_end:
        flags |= _HAS_HIGH | (_WITH_HIGH if keys.with_high else 0)
        data += _place(high.place)
    return bytes((flags,)) + data


def _place(place: bytes) -> bytes:
    if len(place) != PLACE_BYTES:
        raise ValueError(f"a bound of {len(place)} bytes; places have {PLACE_BYTES}")
    return place


def _bits_of(levels: list[str]) -> bytes:
    bits = sum(1 << number for number, level in enumerate(levels) if level == "+")
    return bits.to_bytes((len(levels) + 7) // 8, "little")


def range_from(label: bytes, topic: str) -> KeyRange:
    """What `label_of` wrote for a message on `topic`; raises `RemoteProtocolError`."""
    if not label or label[0] & 0x80:
        raise RemoteProtocolError("a label that is no range of keys")
    flags, rest = label[0], label[1:]
    name = topic
    if flags & _FILTER:
        name, rest = _filter_from(rest, topic, multi=bool(flags & _MULTI))
    kind = Kind.PUBLISHER if flags & _PUBLISHERS else Kind.SUBSCRIBER
    low, high = rest[: PLACE_BYTES if flags & _HAS_LOW else 0], b""
    rest = rest[len(low) :]
    if flags & _HAS_HIGH:
        high, rest = rest[:PLACE_BYTES], rest[PLACE_BYTES:]
    if rest or (low and len(low) < PLACE_BYTES) or (flags & _HAS_LOW and not low):
        raise RemoteProtocolError(f"a label of {len(label)} bytes that is no range of keys")
    whole = _all_of(name, kind)
    first = Key(name, kind, low) if flags & _HAS_LOW else whole.low
    with_low = bool(flags & _WITH_LOW) or not flags & _HAS_LOW
    if not flags & _HAS_HIGH:
        return KeyRange(first, whole.high, with_low, with_high=False)
    if len(high) < PLACE_BYTES:
        raise RemoteProtocolError(f"a label of {len(label)} bytes that is no range of keys")
    return KeyRange(first, Key(name, kind, high), with_low, bool(flags & _WITH_HIGH))


def _filter_from(rest: bytes, topic: str, *, multi: bool) -> tuple[str, bytes]:
    """The filter, and what follows it in the label."""
    names = topic.split("/")
    count = rest[0] if rest else MAX_FILTER_LEVELS + 1
    size = (count + 7) // 8
    bits = int.from_bytes(rest[1 : 1 + size], "little")
    fits = count <= len(names) if multi else count == len(names)
    if count > MAX_FILTER_LEVELS or len(rest) < 1 + size or bits >> count or not fits:
        raise RemoteProtocolError(f"a label of a filter that does not match {topic[:80]!r}")
    levels = ["+" if bits >> number & 1 else name for number, name in enumerate(names[:count])]
    name = "/".join([*levels, "#"] if multi else levels)
    if not matches(name, topic):  # a wildcard in front of a topic that begins with $
        raise RemoteProtocolError(f"a label of a filter that does not match {topic[:80]!r}")
    return name, rest[1 + size :]
