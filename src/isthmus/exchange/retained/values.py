"""A retained message with its version, and both as bytes, for the wire and the journal.

A `Version` is a hybrid logical clock's reading: totally ordered, and greater than every version
that the node which made it had seen.  See `isthmus.exchange.retained.store` for what it is good
for.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from sys import intern
from typing import Final

from isthmus.errors import MalformedPacket, RemoteProtocolError
from isthmus.mqtt.filters.topics import is_valid_topic_name
from isthmus.mqtt.primitives import Reader
from isthmus.mqtt.publish_properties import MAX_PROPERTY_BYTES, check_publish_properties

__all__ = [
    "ORIGIN",
    "PackedEntry",
    "Retained",
    "RetainedEntry",
    "Version",
    "leaf_of",
    "read_retained",
    "read_topic",
    "read_version",
    "take",
    "topic_digest",
    "write_retained",
    "write_version",
]

ORIGIN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_VERSION: Final = re.compile(
    r"(0|[1-9a-f][0-9a-f]{0,11})-(0|[1-9a-f][0-9a-f]{0,7})-([A-Za-z0-9._-]{1,64})", re.ASCII
)


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


_OVERHEAD_BYTES: Final = 256
"""About what an entry costs beside its topic, payload and properties."""


PackedEntry = tuple[int, int, str, bytes | None, bytes, int, int | None, bool]


@dataclass(frozen=True, slots=True)
class RetainedEntry:
    """What a store remembers of a topic."""

    version: Version
    payload: bytes | None
    """None if there was no room for it, empty for a tombstone."""
    properties: bytes = b""
    qos: int = 0
    due_ms: int | None = None
    """When a message expires or a tombstone is dropped."""
    owed: bool = False
    """Whether the local broker has not acknowledged it yet."""

    @property
    def deleted(self) -> bool:
        return self.payload == b""

    def packed(self) -> PackedEntry:
        """As a plain tuple, which the garbage collector stops looking at.

        A store has hundreds of thousands of them, and a full collection looks at every object
        that could be part of a cycle: that alone would hold the event loop for too long.
        """
        version = self.version
        return (
            version.wall_ms,
            version.counter,
            intern(version.origin),
            self.payload,
            self.properties,
            self.qos,
            self.due_ms,
            self.owed,
        )

    @classmethod
    def unpacked(cls, packed: PackedEntry) -> RetainedEntry:
        wall_ms, counter, origin, payload, properties, qos, due_ms, owed = packed
        return cls(Version(wall_ms, counter, origin), payload, properties, qos, due_ms, owed)

    def size(self, topic: bytes) -> int:
        return _OVERHEAD_BYTES + len(topic) + len(self.payload or b"") + len(self.properties)


def topic_digest(topic: bytes, version: Version) -> int:
    """By which it is known whether two nodes have the same of a topic."""
    text = b"%b\0%b" % (str(version).encode(), topic)
    return int.from_bytes(blake2b(text, digest_size=8).digest())


def leaf_of(topic: bytes) -> int:
    """Which of the 65,536 leaves of a store a topic falls into."""
    return zlib.crc32(topic) & 0xFFFF


_HAS_EXPIRY: Final = 0x04
_QOS: Final = 0x03


def write_version(version: Version) -> bytes:
    origin = version.origin.encode()
    return b"%b%b%c%b" % (
        version.wall_ms.to_bytes(6),
        version.counter.to_bytes(4),
        len(origin),
        origin,
    )


def read_version(reader: Reader) -> Version:
    wall_ms = reader.two_byte_integer() << 32 | reader.four_byte_integer()
    counter = reader.four_byte_integer()
    origin = take(reader, reader.byte())
    if not origin.isascii() or not ORIGIN.fullmatch(origin.decode()):
        raise MalformedPacket(f"a retained message's version of {origin!r}, which is no node's id")
    return Version(wall_ms, counter, origin.decode())


def write_retained(retained: Retained) -> bytes:
    expiry_s = retained.expiry_s
    return b"%b%b%b%c%b%b%b%b%b" % (
        write_version(retained.version),
        len(retained.topic).to_bytes(2),
        retained.topic,
        retained.qos | (0 if expiry_s is None else _HAS_EXPIRY),
        b"" if expiry_s is None else expiry_s.to_bytes(4),
        len(retained.properties).to_bytes(4),
        retained.properties,
        len(retained.payload).to_bytes(4),
        retained.payload,
    )


def read_retained(reader: Reader) -> Retained:
    version = read_version(reader)
    topic = read_topic(reader)
    flags = reader.byte()
    if flags & ~(_QOS | _HAS_EXPIRY) or flags & _QOS == 3:
        raise MalformedPacket(f"a retained message with flags 0x{flags:02X}")
    expiry_s = reader.four_byte_integer() if flags & _HAS_EXPIRY else None
    properties = take(reader, reader.four_byte_integer())
    if len(properties) > MAX_PROPERTY_BYTES:
        raise MalformedPacket(f"a retained message with {len(properties)} bytes of properties")
    if check_publish_properties(properties, 0, len(properties)):
        raise MalformedPacket("a retained message with a topic alias")
    payload = take(reader, reader.four_byte_integer())
    return Retained(topic, payload, properties, flags & _QOS, version, expiry_s)


def read_topic(reader: Reader) -> bytes:
    topic = reader.binary()
    if not is_valid_topic_name(topic):
        raise MalformedPacket(f"{topic[:80]!r} is not the topic of a retained message")
    return topic


def take(reader: Reader, size: int) -> bytes:
    start = reader.pos
    if size > reader.remaining:
        raise MalformedPacket(f"a field of {size} bytes where {reader.remaining} are left")
    reader.pos = start + size
    return reader.data[start : reader.pos]
