"""MQTT's data types on the wire: integers, text, binary data.

MQTT 3.1.1 section 1.5, MQTT 5 section 1.5.  A `Reader` walks over one packet and never
past `end`; whatever is missing or ill-formed raises a rule of `rules.py`.

Variable Byte Integers are written in the fewest bytes [MQTT-1.5.5-1].  Read ones may be
longer than needed, up to four bytes: MQTT 3.1.1 has no such rule, and a relay passes
bytes on as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from isthmus.mqtt.publish_layout import length_bytes
from isthmus.mqtt.rules import Rule

__all__ = [
    "MAX_VARIABLE_BYTE_INTEGER",
    "NO_LIMITS",
    "PacketType",
    "ReadLimits",
    "Reader",
    "write_binary",
    "write_integer",
    "write_text",
    "write_variable_byte_integer",
]

MAX_VARIABLE_BYTE_INTEGER: Final = 268_435_455


class PacketType(IntEnum):
    """The control packet types; 15 exists only in MQTT 5."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What a reader takes of one packet, so that no packet takes long to read."""

    property_bytes: int = MAX_VARIABLE_BYTE_INTEGER
    """In one block of properties."""
    filters: int = MAX_VARIABLE_BYTE_INTEGER
    """In one SUBSCRIBE or UNSUBSCRIBE."""


NO_LIMITS: Final = ReadLimits()


class Reader:
    """A cursor over the bytes of one packet.

    `level` is the protocol level, needed only to name the right section in an error.
    """

    __slots__ = ("data", "end", "level", "limits", "pos")

    def __init__(
        self, data: bytes, pos: int, end: int, level: int, limits: ReadLimits = NO_LIMITS
    ) -> None:
        self.data = data
        self.pos = pos
        self.end = end
        self.level = level
        self.limits = limits

    def _advance(self, size: int) -> int:
        """Step over `size` bytes and return where they begin."""
        start = self.pos
        if start + size > self.end:
            missing = start + size - self.end
            raise Rule.TRUNCATED.broken(self.level, f"{missing} more needed at byte {start}")
        self.pos = start + size
        return start

    @property
    def remaining(self) -> int:
        return self.end - self.pos

    def byte(self) -> int:
        return self.data[self._advance(1)]

    def two_byte_integer(self) -> int:
        start = self._advance(2)
        return self.data[start] << 8 | self.data[start + 1]

    def four_byte_integer(self) -> int:
        start = self._advance(4)
        return int.from_bytes(self.data[start : start + 4], "big")

    def variable_byte_integer(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Rule.VARIABLE_BYTE_INTEGER.broken(self.level, f"before byte {self.pos}")

    def binary(self) -> bytes:
        size = self.two_byte_integer()
        start = self._advance(size)
        return self.data[start : start + size]

    def text(self) -> str:
        # Without a call for each part: packets may consist of nothing but short texts.
        data, start = self.data, self.pos
        if start + 2 > self.end:
            self._advance(2)
        begin = start + 2
        stop = begin + (data[start] << 8 | data[start + 1])
        if stop > self.end:
            self.pos = begin
            self._advance(stop - begin)
        self.pos = stop
        if begin == stop:
            return ""
        try:
            text = str(data[begin:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise Rule.UTF8.broken(self.level, f"at byte {start}: {error.reason}") from None
        if "\0" in text:
            raise Rule.NULL_CHARACTER.broken(self.level, f"at byte {start}")
        return text

    def rest(self) -> bytes:
        """Everything up to the end."""
        start, self.pos = self.pos, self.end
        return self.data[start : self.end]

    def finish(self) -> None:
        """Nothing may be left."""
        if self.pos != self.end:
            raise Rule.TRAILING_BYTES.broken(self.level, f"{self.remaining} of them")


def write_integer(value: int, size: int, level: int, what: str) -> bytes:
    """Big-endian, in `size` bytes."""
    if not 0 <= value < 1 << 8 * size:
        raise Rule.INTEGER_RANGE.broken(level, f"{what} is {value}, the field has {size} bytes")
    return int(value).to_bytes(size, "big")


def write_variable_byte_integer(value: int, level: int, what: str) -> bytes:
    """Seven bits a byte, the lowest first, in the fewest bytes [MQTT-1.5.5-1]."""
    if not 0 <= value <= MAX_VARIABLE_BYTE_INTEGER:
        raise Rule.INTEGER_RANGE.broken(level, f"{what} is {value}")
    return length_bytes(value)


def write_binary(value: bytes, level: int, what: str) -> bytes:
    """Two bytes of length, then the bytes."""
    if len(value) > 0xFFFF:
        raise Rule.FIELD_TOO_LONG.broken(level, f"{what} has {len(value)}")
    return len(value).to_bytes(2, "big") + value


def write_text(value: str, level: int, what: str) -> bytes:
    """Two bytes of length, then UTF-8 without U+0000 or surrogates."""
    if "\0" in value:
        raise Rule.NULL_CHARACTER.broken(level, what)
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise Rule.UTF8.broken(level, f"{what}: {error.reason}") from None
    return write_binary(encoded, level, what)
