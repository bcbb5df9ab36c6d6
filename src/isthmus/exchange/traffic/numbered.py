"""What is known of neighbors' messages at QoS 1 that go to the local broker and nowhere else.

As with plain messages (`isthmus.exchange.traffic.plain`), all of the packet but the packet
identifier, the count and the payload is the same for every message of one topic and origin, and
what was found out about one of them holds for the others until `forget` is called.  So the next
one like it need not be taken apart: where it goes, and what it says of itself, is known.

Nothing that arrives anywhere depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from isthmus.cooperation.api import Route, SessionInfo
from isthmus.exchange.traffic.aged import ENTRY_BYTES, Aged
from isthmus.exchange.traffic.message import COUNT_BYTES, Message
from isthmus.exchange.traffic.routes import MAX_BYTES
from isthmus.mqtt.publish_layout import PUBLISH

__all__ = ["AT_QOS_1", "KnownNumbered", "NumberedMessage", "NumberedMessages"]

AT_QOS_1: Final = PUBLISH | 0x02
MAX_RUN: Final = 256
_KNOWN_BYTES: Final = 88
"""What a `KnownNumbered` takes besides its topic and block."""

_COUNT = re.compile(rb"[0-9a-f]{%d}" % COUNT_BYTES)


@dataclass(frozen=True, slots=True)
class KnownNumbered:
    """What messages that begin alike have in common."""

    topic: bytes
    origin: str
    incarnation: str
    hops: int
    confirm: bool
    block: bytes
    """What is between the packet identifier and the count."""


NumberedMessage = tuple[KnownNumbered, int, bytes, bytes]
"""What is known, the packet identifier, the count as it stands there, and the payload."""


class NumberedMessages:
    """What is remembered, of all neighbors together; bounded, and aged."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[SessionInfo, Aged[bytes, KnownNumbered]] = {}

    def run(
        self, neighbor: SessionInfo, frames: Sequence[bytes], at: int
    ) -> Iterator[NumberedMessage]:
        """The messages at `at` and next to it, while one like them came before."""
        found = self._found.get(neighbor)
        if found is None:
            return
        head, known, block = b"", None, b""
        id_at = count_at = 0
        for frame in frames[at : at + MAX_RUN]:
            if known is None or not (frame.startswith(head) and frame.startswith(block, id_at + 2)):
                start, id_at, count_at = _places(frame)
                if not start:
                    return
                block = frame[id_at + 2 : count_at]
                key = frame[start:id_at] + block
                known = found.get(key)
                if known is None and (known := found.recall(key, _size(key))) is None:
                    return
                head = frame[:id_at]
            payload_at = count_at + COUNT_BYTES
            count = frame[count_at:payload_at]
            if _COUNT.fullmatch(count) is None:
                return
            yield known, frame[id_at] << 8 | frame[id_at + 1], count, frame[payload_at:]

    def remember(self, neighbor: SessionInfo, frame: bytes, message: Message, route: Route) -> None:
        """A message was looked at closely; if it is such a one, the next like it need not be."""
        if (
            frame[0] != AT_QOS_1
            or message.qos != 1
            or message.properties
            or message.expiry_s is not None
            or message.version
            or message.label
            or not message.number
            or not route.to_local_broker
            or route.neighbors
            or route.pending
            or route.provisional
        ):
            return
        start, id_at, count_at = _places(frame)
        incarnation, _, count = message.number.partition(".")
        if not start or not frame.startswith(count.encode(), count_at):
            return  # something follows the number
        found = self._found.get(neighbor)
        if found is None:
            found = self._found[neighbor] = Aged(MAX_BYTES)
            for each in self._found.values():
                each.most_bytes = MAX_BYTES // len(self._found)
        block = frame[id_at + 2 : count_at]
        key = frame[start:id_at] + block
        known = KnownNumbered(
            message.topic, message.origin, incarnation, message.hops, message.confirm, block
        )
        found.keep(key, known, _size(key))

    def forget(self, neighbor: SessionInfo | None = None) -> None:
        """Routes, links or the topology have changed; or a neighbor is gone for good."""
        if neighbor is not None:
            self._found.pop(neighbor, None)
        for found in self._found.values():
            found.forget()


def _size(key: bytes) -> int:
    """What an entry takes."""
    return ENTRY_BYTES + _KNOWN_BYTES + 2 * len(key)


def _places(frame: bytes) -> tuple[int, int, int]:
    """Where topic, identifier and count begin; zeros if that takes a closer look.

    `isthmus.mqtt.publish_layout` says why these are the places.
    """
    start = 2 if frame[1] < 0x80 else 3
    if frame[0] != AT_QOS_1 or len(frame) < start + 2 or frame[start - 1] >= 0x80:
        return 0, 0, 0
    id_at = start + 2 + (frame[start] << 8 | frame[start + 1])
    block_at = id_at + 2
    if block_at + 1 >= len(frame):
        return 0, 0, 0
    size = frame[block_at]
    if size >= 0x80:
        return 0, 0, 0
    count_at = block_at + 1 + size - COUNT_BYTES
    if count_at <= block_at or count_at + COUNT_BYTES > len(frame):
        return 0, 0, 0
    return start, id_at, count_at
