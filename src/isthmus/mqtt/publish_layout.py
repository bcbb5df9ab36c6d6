"""The layout of a PUBLISH and of its acknowledgments, for who passes them on undecoded.

    PUBLISH   first byte         PUBLISH | DUP | QoS << 1 | RETAIN
              remaining length   1 to 4 bytes
              topic              2 bytes of length, the name
              packet identifier  2 bytes, at QoS 1 and 2 only
              properties         in MQTT 5 only: 1 to 4 bytes of length, the block
              payload            the rest

    PUBACK, PUBREC, PUBREL, PUBCOMP
              first byte, 2, packet identifier; in MQTT 5 a reason code and properties may follow

Nothing here checks: a frame is whole, and what it holds is for the caller to doubt.  Bytes that are
missing raise IndexError.  The loops that have no time for a call (`exchange.client.client_session`,
`exchange.traffic.plain`) do the same sums in place, with these names.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DUP",
    "LENGTHS",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "QOS",
    "RETAIN",
    "acknowledgment",
    "length_bytes",
    "packet_id_at",
    "property_bounds",
    "publish",
    "publish_answer",
    "publish_id",
    "topic_bounds",
    "topic_start",
]

PUBLISH: Final = 0x30
DUP, QOS, RETAIN = 0x08, 0x06, 0x01
"""The bits of a PUBLISH's first byte."""
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70

LENGTHS: Final = [bytes((length,)) for length in range(128)]
"""What `length_bytes` gives for a length of less than 128, without a call."""


def topic_start(data: bytes, start: int = 0) -> int:
    """Where the topic name of the PUBLISH at `start` begins."""
    pos = start + 1
    while data[pos] >= 0x80:
        pos += 1
    return pos + 3


def topic_bounds(data: bytes, start: int = 0) -> tuple[int, int]:
    """Where the topic name of the PUBLISH at `start` begins and ends."""
    begin = topic_start(data, start)
    return begin, begin + (data[begin - 2] << 8 | data[begin - 1])


def packet_id_at(data: bytes, pos: int = 2) -> int:
    """The packet identifier at `pos`; in an acknowledgment it is at 2."""
    return data[pos] << 8 | data[pos + 1]


def publish_id(data: bytes) -> int:
    """The packet identifier of a PUBLISH at QoS 1 or 2."""
    return packet_id_at(data, topic_bounds(data)[1])


def property_bounds(data: bytes, pos: int) -> tuple[int, int]:
    """Where the block whose length is at `pos` begins and ends."""
    size = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return pos, pos + size
        shift += 7


def length_bytes(value: int) -> bytes:
    """A length of the packet or of its properties, in the fewest bytes."""
    if value < 128:
        return LENGTHS[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def publish(
    first: int, topic: bytes, packet_id: int, properties: bytes | None, payload: bytes
) -> bytes:
    """A PUBLISH; without an identifier if that is 0, before MQTT 5 if `properties` is None."""
    body = b"%b%b%b%b%b" % (
        len(topic).to_bytes(2),
        topic,
        packet_id.to_bytes(2) if packet_id else b"",
        b"" if properties is None else length_bytes(len(properties)) + properties,
        payload,
    )
    return b"%c%b%b" % (first, length_bytes(len(body)), body)


def acknowledgment(first: int, packet_id: int, reason: bytes = b"") -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP, whichever `first` says."""
    return b"%c%c%b%b" % (first, 2 + len(reason), packet_id.to_bytes(2), reason)


def publish_answer(first: int) -> int:
    """The first byte of what answers a PUBLISH at QoS 1 or 2 that begins with `first`."""
    return PUBACK if first & QOS == 0x02 else PUBREC
