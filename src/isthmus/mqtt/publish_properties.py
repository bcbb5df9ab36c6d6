"""The property block of an MQTT 5 PUBLISH, checked where it lies.

For a relay, which passes a PUBLISH on as it came and only needs to know that its properties
are right and which topic alias they set: no object per message, no copy of a value but the
texts, whose UTF-8 has to be looked at.  It accepts exactly what `read_properties` accepts
and raises the same errors; a property test holds the two together.
"""

from __future__ import annotations

from typing import Final

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.properties import (
    INTEGER_BYTES,
    Kind,
    PropertySpec,
    allowed_properties,
    check_response_topic,
)
from isthmus.mqtt.rules import Rule

__all__ = ["MAX_PROPERTY_BYTES", "check_publish_properties"]

MAX_PROPERTY_BYTES: Final = 65_600
"""In a message on a link or in a store: what a node may take from a client, and a little more."""

_ALLOWED: Final = allowed_properties(PacketType.PUBLISH)
_SIZES: Final = {
    spec.identifier: INTEGER_BYTES[spec.kind]
    for spec in _ALLOWED.values()
    if spec.kind in INTEGER_BYTES
}
_TOPIC_ALIAS: Final = 0x23
_USER_PROPERTY: Final = 0x26
_PAIRS: Final = _ALLOWED[_USER_PROPERTY]
_SUBSCRIPTION_IDENTIFIER: Final = 0x0B


def check_publish_properties(
    buf: bytes | bytearray | memoryview, start: int, end: int, *, from_client: bool = True
) -> int:
    """Check the properties in `buf[start:end]`, the bytes after the Property Length.

    Returns the topic alias, or 0 if there is none.  A client may not send Subscription
    Identifiers [MQTT-3.3.4-6]; pass `from_client=False` for what a server sends.
    """
    alias = 0
    seen = 0
    pos = start
    while pos < end:
        identifier = buf[pos]
        pos += 1
        if identifier == _USER_PROPERTY:  # the one that there may be thousands of
            pos = _after_text(buf, _after_text(buf, pos, end), end)
            continue
        spec = _ALLOWED.get(identifier)
        if spec is None:
            raise Rule.PROPERTY_NOT_ALLOWED.broken(5, f"identifier 0x{identifier:02X} in PUBLISH")
        size = _SIZES.get(identifier)
        if size is not None:
            if pos + size > end:
                raise _truncated(spec)
            value = int.from_bytes(buf[pos : pos + size], "big")
            if not spec.minimum <= value <= spec.maximum:
                spec.check_range(value)
            if identifier == _TOPIC_ALIAS:
                alias = value
            pos += size
        elif identifier == _SUBSCRIPTION_IDENTIFIER:
            if from_client:
                raise Rule.SUBSCRIPTION_IDENTIFIER_FROM_CLIENT.broken(5)
            pos = _after_variable_byte_integer(buf, pos, end, spec)
        else:
            pos = _after_lengthed(buf, pos, end, spec)
        bit = 1 << identifier
        if seen & bit and not spec.repeatable_in:
            raise spec.repeated()
        seen |= bit
    return alias


def _truncated(spec: PropertySpec) -> RemoteProtocolError:
    return Rule.TRUNCATED.broken(5, spec.name)


def _after_lengthed(
    buf: bytes | bytearray | memoryview, pos: int, end: int, spec: PropertySpec
) -> int:
    """Check a binary, a text or a topic name; return where it ends."""
    if spec.kind is Kind.BINARY:
        if pos + 2 > end or (stop := pos + 2 + (buf[pos] << 8 | buf[pos + 1])) > end:
            raise _truncated(spec)
        return stop
    stop = _after_text(buf, pos, end, spec)
    if spec.kind is Kind.TOPIC_NAME:
        check_response_topic(str(buf[pos + 2 : stop], "utf-8"))
    return stop


def _after_text(
    buf: bytes | bytearray | memoryview, pos: int, end: int, spec: PropertySpec = _PAIRS
) -> int:
    start = pos + 2
    if start > end:
        raise _truncated(spec)
    stop = start + (buf[pos] << 8 | buf[pos + 1])
    if stop > end:
        raise _truncated(spec)
    if start < stop:
        try:
            text = str(buf[start:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise Rule.UTF8.broken(5, f"{spec.name}: {error.reason}") from None
        if "\0" in text:
            raise Rule.NULL_CHARACTER.broken(5, spec.name)
    return stop


def _after_variable_byte_integer(
    buf: bytes | bytearray | memoryview, pos: int, end: int, spec: PropertySpec
) -> int:
    value = 0
    for shift in (0, 7, 14, 21):
        if pos >= end:
            raise _truncated(spec)
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            spec.check_range(value)
            return pos
    raise Rule.VARIABLE_BYTE_INTEGER.broken(5, spec.name)
