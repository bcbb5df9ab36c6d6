"""The property block of an MQTT 5 PUBLISH, checked where it lies.

For a relay, which passes a PUBLISH on as it came and only needs to know that its properties
are right and which topic alias they set: nothing is kept of it.  It accepts exactly what
`read_properties` accepts and raises the same errors; a property test holds the two together.
"""

from __future__ import annotations

from typing import Final

from isthmus.mqtt.primitives import PacketType, Reader
from isthmus.mqtt.properties import INTEGER_BYTES, allowed_properties, read_value
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
    reader = Reader(bytes(buf), start, end, 5)
    text = reader.text
    while pos < end:
        identifier = buf[pos]
        pos += 1
        if identifier == _USER_PROPERTY:  # the one that there may be thousands of
            reader.pos = pos
            text()
            text()
            pos = reader.pos
            continue
        spec = _ALLOWED.get(identifier)
        if spec is None:
            raise Rule.PROPERTY_NOT_ALLOWED.broken(5, f"identifier 0x{identifier:02X} in PUBLISH")
        size = _SIZES.get(identifier)
        if size is not None:
            if pos + size > end:
                raise Rule.TRUNCATED.broken(5, spec.name)
            value = int.from_bytes(buf[pos : pos + size], "big")
            spec.check_range(value)
            if identifier == _TOPIC_ALIAS:
                alias = value
            pos += size
        elif identifier == _SUBSCRIPTION_IDENTIFIER and from_client:
            raise Rule.SUBSCRIPTION_IDENTIFIER_FROM_CLIENT.broken(5)
        else:
            reader.pos = pos
            read_value(reader, spec)
            pos = reader.pos
        bit = 1 << identifier
        if seen & bit and not spec.repeatable_in:
            raise spec.repeated()
        seen |= bit
    return alias
