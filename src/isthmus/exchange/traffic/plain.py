"""The hot path of links: plain messages, which are most.

A plain message is at QoS 0, not retained, and has no properties.  All of its packet but the length
and the payload is then the same for every message of one topic and origin, so it is made once, and
what was found out about one message (its route, that its origin may come over this link) holds for
the others, until `forget` is called because anything that the finding rests on may have changed.
Topics that a broker may close on are not remembered: the closer look is what they need.

Everything here could be left out without changing what arrives where; it is several times faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.cooperation.api import Route, SessionInfo
from isthmus.exchange.broker.aversions import is_special
from isthmus.exchange.traffic.message import Message, plain_prefix, plain_to_link
from isthmus.exchange.traffic.routes import MAX_TOPICS
from isthmus.mqtt.publish_layout import PUBLISH

__all__ = ["PlainMessage", "PlainMessages"]


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about a message, for the next one like it."""

    topic: bytes
    route: Route
    prefix: bytes
    """For the links that it goes to next."""


PlainMessage = tuple[Known, bytes]
"""What is known, and the payload."""


class PlainMessages:
    """What is remembered of plain messages; bounded for neighbors and for the local clients."""

    __slots__ = ("_count", "_found", "_origin", "_prefixes")

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._prefixes: dict[bytes, bytes] = {}
        self._found: dict[SessionInfo, dict[bytes, Known]] = {}
        self._count = 0  # of all neighbors together: forgetting them must not take long

    def to_link(self, topic: bytes, payload: bytes) -> bytes:
        """The packet for a link of a local client's plain message."""
        prefix = self._prefixes.get(topic)
        if prefix is None:
            if len(self._prefixes) >= MAX_TOPICS:
                self._prefixes.clear()
            prefix = self._prefixes[topic] = plain_prefix(topic, self._origin)
        return plain_to_link(prefix, payload)

    def find(self, neighbor: SessionInfo, frame: bytes) -> PlainMessage | None:
        """What is known of the message in a link's PUBLISH, if one like it came before."""
        found = self._found.get(neighbor)
        if found is None:
            return None
        start, end = _header(frame)
        known = found.get(frame[start:end])
        return None if known is None else (known, frame[end:])

    def remember(self, neighbor: SessionInfo, frame: bytes, message: Message, route: Route) -> None:
        """A message was looked at closely; if it was plain, the next one like it need not be."""
        start, end = _header(frame)
        if end and not (
            message.qos
            or message.properties
            or message.expiry_s is not None
            or is_special(message.topic)
        ):
            if self._count >= MAX_TOPICS:
                self.forget()
            self._count += 1
            found = self._found.setdefault(neighbor, {})
            prefix = plain_prefix(message.topic, message.origin, message.hops)
            found[frame[start:end]] = Known(message.topic, route, prefix)

    def forget(self) -> None:
        """Routes, links or the topology have changed."""
        self._found.clear()
        self._count = 0


def _header(frame: bytes) -> tuple[int, int]:
    """From where to where the constant part goes; (0, 0) if that takes a closer look.

    `isthmus.mqtt.publish_layout` says why these are the places.
    """
    start = 2 if frame[1] < 0x80 else 3
    if frame[0] != PUBLISH or frame[start - 1] >= 0x80:
        return 0, 0
    pos = start + 2 + (frame[start] << 8 | frame[start + 1])
    if pos >= len(frame) or frame[pos] >= 0x80:
        return 0, 0
    return start, pos + 1 + frame[pos]
