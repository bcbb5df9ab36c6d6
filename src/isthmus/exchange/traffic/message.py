"""A message on its way through the fabric, and its three forms.

    client's PUBLISH ──from_publish──▶ Message ──to_link──▶ link's PUBLISH ──from_link──▶ Message
                                          └──to_broker──▶ PUBLISH for the local broker

A link's PUBLISH is MQTT 5 whatever the client spoke.  Its QoS bits are the link's own; what the
message itself needs on the way stands in a user property that always comes first:

    name  "$i"
    value <QoS> <hops> ["!"] ":" <origin> ["~" <label>] ["@" <version>] ["#" <number>]

with the publisher's QoS as a digit, the hops so far in decimal, "!" if its publisher is told only
when every broker that wants it has it (`confirm`), the id of the node where the message entered
the fabric, the algorithm's label in hexadecimal, for a retained message its
version, and the number that it got where it entered: always at QoS 1 and 2, at QoS 0 if the
algorithm's topology is not a tree.  How many hops are too many is for the receiver to say
(`Traffic`).

A topic alias ends at the connection it was made for, so the topic is written out.  The message
expiry interval is counted down by the time the message spends in each node ([MQTT-3.3.2-6]); all
other properties arrive as they were sent.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from enum import IntEnum

from isthmus.cooperation.api import MAX_LABEL_BYTES, Hop, SessionInfo
from isthmus.errors import MalformedPacket, RemoteProtocolError
from isthmus.mqtt.primitives import PacketType, Reader
from isthmus.mqtt.properties import read_properties, write_properties
from isthmus.mqtt.publish_layout import (
    DUP,
    LENGTHS,
    PUBLISH,
    QOS,
    RETAIN,
    length_bytes,
    packet_id_at,
    property_bounds,
    publish,
    topic_bounds,
)
from isthmus.mqtt.publish_properties import MAX_PROPERTY_BYTES, check_publish_properties

__all__ = [
    "COUNT_BYTES",
    "Fate",
    "Message",
    "from_link",
    "from_publish",
    "number_of",
    "numbered_block",
    "numbered_to_link",
    "plain_renamed",
    "plain_tail",
    "plain_to_broker",
    "plain_to_link",
    "publish_bytes",
    "to_broker",
    "to_link",
]

OVERHEAD_BYTES = 400
"""What a queued message takes in memory beside its topic, payload and properties, as measured."""

COUNT_BYTES = 12
"""The hexadecimal digits of a count in a number: with them, `$i` ends."""

_MARKER = b"\x26\x00\x02$i"
_EXPIRY, _ALIAS = b"\x02", b"\x23"
_VALUE = re.compile(
    r"([012])([0-9]{1,6})(!?):([A-Za-z0-9._-]{1,64})"
    rf"(?:~((?:[0-9a-f]{{2}}){{1,{MAX_LABEL_BYTES}}}))?(?:@([A-Za-z0-9._-]+))?"
    rf"(?:#([0-9a-f]{{1,32}}\.[0-9a-f]{{{COUNT_BYTES}}}))?"
)


class Fate(IntEnum):
    """What has become of a message; on links, the reason of its acknowledgment."""

    SAFE = 0
    TAKEN = 0x10
    """Not known yet: it waits for somebody."""
    MISSED = 0x80
    """Somebody does without it; it may help to send it again."""
    REFUSED = 0x83
    """A broker does not take it."""


class Message:
    """What is carried: the topic and payload, and what the publisher asked for."""

    __slots__ = (
        "arrived_s",
        "came_from",
        "confirm",
        "expiry_s",
        "fate",
        "hops",
        "label",
        "number",
        "origin",
        "passed_to",
        "payload",
        "properties",
        "qos",
        "retain",
        "taken_as",
        "topic",
        "version",
    )

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        expiry_s: int | None = None,
        origin: str = "",
        hops: int = 0,
        number: str = "",
        version: str = "",
        label: bytes = b"",
        arrived_s: float = 0.0,
        confirm: bool = False,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        """The publisher's properties as an MQTT 5 block without its length, alias and expiry."""
        self.expiry_s = expiry_s
        self.origin = origin
        self.hops = hops
        self.number = number
        self.version = version
        self.label = label
        """With which it came here."""
        self.taken_as = label
        """For which it is forwarded here, once (`CooperationAlgorithm.label_now`)."""
        self.arrived_s = arrived_s
        self.came_from: SessionInfo | None = None
        """The neighbor that brought it; None if a local client did."""
        self.passed_to: tuple[Hop, ...] = ()
        """The neighbors that have had it from here, with the labels that it had."""
        self.confirm = confirm
        """Its publisher is told when every broker that wants it has it, and not before."""
        self.fate = Fate.SAFE
        """What is known of those whom it was for, as soon as all of them are done with it."""

    def __repr__(self) -> str:
        return (
            f"Message({self.topic!r}, {len(self.payload)} bytes, qos={self.qos}, "
            f"retain={self.retain}, origin={self.origin!r}, hops={self.hops})"
        )

    def misses(self, fate: Fate = Fate.MISSED) -> None:
        """Somebody whom it was for does without it."""
        if self.fate is not Fate.MISSED:
            self.fate = fate

    @property
    def cost(self) -> int:
        """The bytes that it takes in memory while it waits in one queue, roughly."""
        return len(self.payload) + len(self.topic) + len(self.properties) + OVERHEAD_BYTES

    @property
    def content(self) -> tuple[object, ...]:
        """All that the publisher said, by which copies are known; short for a plain message."""
        if self.qos or self.retain or self.properties or self.expiry_s is not None:
            lasts = self.expiry_s is None
            said = (self.qos, self.retain, self.properties, self.version, lasts)
            return self.topic, self.payload, said
        return self.topic, self.payload

    @property
    def place(self) -> tuple[float, str]:
        """By which messages that wait are in order: when it came, then its number at its origin."""
        return self.arrived_s, self.number

    def expired(self, now_s: float) -> bool:
        return self.expiry_s is not None and now_s - self.arrived_s >= self.expiry_s


def from_publish(frame: bytes, level: int, topic: bytes, origin: str, now_s: float) -> Message:
    """The message in a client's PUBLISH that has been checked; `topic` with aliases resolved."""
    head = frame[0]
    pos = topic_bounds(frame)[1]
    qos = (head & QOS) >> 1
    if qos:
        pos += 2
    properties, expiry_s = b"", None
    if level == 5:
        start, pos = property_bounds(frame, pos)
        properties, expiry_s = _strip(frame[start:pos])
    return Message(
        topic,
        frame[pos:],
        qos=qos,
        retain=bool(head & RETAIN),
        properties=properties,
        expiry_s=expiry_s,
        origin=origin,
        arrived_s=now_s,
    )


def from_link(frame: bytes, now_s: float) -> tuple[Message, int]:
    """The message in a link's PUBLISH, and its packet identifier on the link (0 at QoS 0).

    Raises a `RemoteProtocolError` if a neighbor cannot have meant it so.
    """
    try:
        return _from_link(frame, now_s)
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise MalformedPacket(f"a PUBLISH on a link that cannot be read: {error}") from error


def _from_link(frame: bytes, now_s: float) -> tuple[Message, int]:
    head = frame[0]
    start, pos = topic_bounds(frame)
    topic = frame[start:pos]
    packet_id = 0
    if head & QOS:
        packet_id = packet_id_at(frame, pos)
        pos += 2
    pos, end = property_bounds(frame, pos)
    if not frame.startswith(_MARKER, pos) or end > len(frame) or pos + 9 > end:
        raise RemoteProtocolError("a PUBLISH on a link without the property $i")
    value_start = pos + 7
    block_start = value_start + (frame[pos + 5] << 8 | frame[pos + 6])
    if block_start > end:
        raise MalformedPacket("a property $i that is longer than its packet")
    if end - block_start > MAX_PROPERTY_BYTES:
        raise MalformedPacket(f"{end - block_start} bytes of properties")
    value = frame[value_start:block_start].decode("ascii")
    found = _VALUE.fullmatch(value)
    if found is None or not topic:
        raise RemoteProtocolError(f"a property $i that makes no sense: {value[:160]!r}")
    qos, hops, confirm, origin, label, version, number = found.groups(default="")
    properties, expiry_s = _strip(frame[block_start:end])
    message = Message(
        topic,
        frame[end:],
        qos=int(qos),
        retain=bool(head & RETAIN),
        properties=properties,
        expiry_s=expiry_s,
        origin=sys.intern(origin),
        hops=int(hops),
        number=number,
        version=version,
        label=bytes.fromhex(label),
        arrived_s=now_s,
        confirm=bool(confirm),
    )
    return message, packet_id


def number_of(incarnation: str, count: int) -> str:
    """Of the message that entered at this life of a node as its `count`-th."""
    return f"{incarnation}.{count:0{COUNT_BYTES}x}"


def to_link(
    message: Message,
    qos: int,
    packet_id: int,
    now_s: float,
    label: bytes = b"",
    *,
    dup: bool = False,
    topic: bytes | None = None,
) -> bytes:
    """The PUBLISH that carries `message` over one more link, at the link's own `qos`.

    `topic` is what it is called there, if not as here.
    """
    confirm = "!" if message.confirm else ""
    value = f"{message.qos}{message.hops + 1}{confirm}:{message.origin}"
    if label:
        value = f"{value}~{label.hex()}"
    if message.version:
        value = f"{value}@{message.version}"
    if message.number:
        value = f"{value}#{message.number}"
    marker = value.encode("ascii")
    block = b"%b%b%b%b%b" % (
        _MARKER,
        len(marker).to_bytes(2),
        marker,
        _countdown(message, now_s),
        message.properties,
    )
    head = PUBLISH | (DUP if dup else 0) | qos << 1 | message.retain
    name = message.topic if topic is None else topic
    return publish(head, name, packet_id if qos else 0, block, message.payload)


def to_broker(message: Message, level: int, qos: int, packet_id: int, now_s: float) -> bytes:
    """The PUBLISH for a broker that speaks `level`; 3.1.1 has no place for properties."""
    block = _countdown(message, now_s) + message.properties if level == 5 else None
    head = PUBLISH | qos << 1 | message.retain
    return publish(head, message.topic, packet_id if qos else 0, block, message.payload)


def publish_bytes(message: Message) -> int:
    """How long the PUBLISH is with which a client would send `message`."""
    block = len(message.properties) + (5 if message.expiry_s is not None else 0)
    body = 2 + len(message.topic) + (2 if message.qos else 0) + len(message.payload)
    if block:
        body += len(length_bytes(block)) + block
    return 1 + len(length_bytes(body)) + body


def plain_tail(origin: str, hops: int = 0, label: bytes = b"", incarnation: str = "") -> bytes:
    """What comes between the topic and the payload in the `to_link` form of a plain message.

    Plain is a message at QoS 0, not retained, without properties.  If it has a number, of which
    `incarnation` is the first half, then this is what comes between the topic and the count.
    """
    value = f"0{hops + 1}:{origin}"
    if label:
        value = f"{value}~{label.hex()}"
    count_bytes = 0
    if incarnation:
        value, count_bytes = f"{value}#{incarnation}.", COUNT_BYTES
    marker = value.encode("ascii")
    block = _MARKER + (len(marker) + count_bytes).to_bytes(2) + marker
    return length_bytes(len(block) + count_bytes) + block


def plain_to_link(topic: bytes, tail: bytes, rest: bytes) -> bytes:
    """The same packet as `to_link` makes of a plain message, in a fraction of the time.

    `rest` is the payload, after the count if the message has a number.
    """
    size = len(topic)
    length = 2 + size + len(tail) + len(rest)
    if length < 128:
        return b"0%b\0%b%b%b%b" % (LENGTHS[length], LENGTHS[size], topic, tail, rest)
    return b"0%b%b%b%b%b" % (length_bytes(length), size.to_bytes(2), topic, tail, rest)


def numbered_block(origin: str, label: bytes, incarnation: str) -> bytes:
    """What comes between the packet identifier and the count in the `to_link` form of a client's
    message at QoS 1 that is plain otherwise.
    """
    value = f"11:{origin}"
    if label:
        value = f"{value}~{label.hex()}"
    marker = f"{value}#{incarnation}.".encode("ascii")
    block = _MARKER + (len(marker) + COUNT_BYTES).to_bytes(2) + marker
    return length_bytes(len(block) + COUNT_BYTES) + block


def numbered_to_link(
    topic: bytes, packet_id: int, block: bytes, count: int, payload: bytes
) -> bytes:
    """The same packet as `to_link` makes of such a message, in a fraction of the time."""
    size = len(topic) + len(block) + len(payload) + 4 + COUNT_BYTES
    return b"2%b%b%b%b%b%012x%b" % (
        LENGTHS[size] if size < 128 else length_bytes(size),
        len(topic).to_bytes(2),
        topic,
        packet_id.to_bytes(2),
        block,
        count,
        payload,
    )


def plain_renamed(frame: bytes, topic: bytes) -> bytes:
    """What `plain_to_link` has made, of the same message under another name."""
    rest = frame[topic_bounds(frame)[1] :]
    size = 2 + len(topic) + len(rest)
    return b"0%b%b%b%b" % (length_bytes(size), len(topic).to_bytes(2), topic, rest)


def plain_to_broker(topic: bytes, payload: bytes, level: int) -> bytes:
    """The same packet as `to_broker` makes of a plain message."""
    size = 2 + len(topic) + len(payload)
    if level == 5:
        return b"0%b%b%b\0%b" % (length_bytes(size + 1), len(topic).to_bytes(2), topic, payload)
    return b"0%b%b%b%b" % (length_bytes(size), len(topic).to_bytes(2), topic, payload)


def _countdown(message: Message, now_s: float) -> bytes:
    if message.expiry_s is None:
        return b""
    waited_s = int(now_s - message.arrived_s)
    return _EXPIRY + max(0, message.expiry_s - waited_s).to_bytes(4)


def _strip(block: bytes) -> tuple[bytes, int | None]:
    """Without the expiry interval, which is counted down, and the alias, which is not passed on."""
    if not block:
        return b"", None
    if _EXPIRY not in block and _ALIAS not in block:
        check_publish_properties(block, 0, len(block))
        return block, None
    whole = length_bytes(len(block)) + block
    properties = read_properties(Reader(whole, 0, len(whole), 5), PacketType.PUBLISH)
    rest = replace(properties, message_expiry_interval=None, topic_alias=None)
    written = write_properties(rest, PacketType.PUBLISH)
    start, end = property_bounds(written, 0)
    return written[start:end], properties.message_expiry_interval
