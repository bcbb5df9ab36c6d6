"""The hot path of links: plain messages, which are most.

A plain message is at QoS 0, not retained, and has no properties.  All of its packet but the length,
the payload and, if it has a number, the count just before it is then the same for every message of
one topic, origin and label, so it is made once, and what was found out about one message (its
route, that its origin may come over this link) holds for the others, until `forget` is called
because anything that the finding rests on may have changed.  Topics that a broker may close on are
not remembered: the closer look is what they need.

They come in *runs*, at most `MAX_RUN` of those that one read brings, and go on in runs: what a run
has in common (that the link carries messages, that the broker takes them) is asked once.

Everything here could be left out without changing what arrives where; it is several times faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from isthmus.cooperation.api import Route, SessionInfo
from isthmus.exchange.broker.aversions import is_special
from isthmus.exchange.link.runs import BATCH_BYTES
from isthmus.exchange.traffic.message import COUNT_BYTES, Message, plain_prefix, plain_to_link
from isthmus.exchange.traffic.routes import MAX_TOPICS
from isthmus.mqtt.publish_layout import PUBLISH

__all__ = ["MAX_RUN", "ClientRun", "Hold", "Known", "PassedRun", "PlainMessage", "PlainMessages"]

MAX_RUN: Final = 256
"""Looking for a run must cost little also where there is none, however much one read brings."""

_COUNT = re.compile(rb"[0-9a-f]{%d}" % COUNT_BYTES)


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about a message, for the next one like it."""

    topic: bytes
    to_broker: bool
    prefixes: tuple[tuple[bytes, tuple[SessionInfo, ...]], ...]
    """For the links that it goes to next: one for those that get it with the same label."""
    origin: str
    incarnation: str
    label: bytes


Hold = Callable[[], Callable[[], None]]
"""Stops reading from a client; what it returns lets it go on."""

PlainMessage = tuple[Known, bytes]
"""What is known, and the payload, after the count if there is one."""


class PlainMessages:
    """What is remembered of plain messages; bounded for neighbors and for the local clients."""

    __slots__ = ("_count", "_found", "_incarnation", "_labeled", "_origin", "_prefixes", "_tail")

    def __init__(self, origin: str, incarnation: str = "") -> None:
        """`incarnation` if plain messages have numbers."""
        self._origin = origin
        self._incarnation = incarnation
        self._tail = COUNT_BYTES if incarnation else 0
        self._prefixes = _Prefixes(origin, incarnation)
        self._labeled: dict[tuple[bytes, bytes], bytes] = {}
        """The same, of messages that leave with labels."""
        self._found: dict[SessionInfo, dict[bytes, Known]] = {}
        self._count = 0  # of all neighbors together: forgetting them must not take long

    def to_link(self, topics: Sequence[bytes], payloads: Sequence[bytes]) -> list[bytes]:
        """The packets for a link of local clients' plain messages without number or label."""
        return list(map(plain_to_link, map(self._prefixes.__getitem__, topics), payloads))

    def to_link_labeled(self, topic: bytes, rest: bytes, label: bytes) -> bytes:
        """The same of one with a label, or a number; `rest` as in `PlainMessage`."""
        prefix = self._labeled_prefix(topic, label) if label else self._prefixes[topic]
        return plain_to_link(prefix, rest)

    def _labeled_prefix(self, topic: bytes, label: bytes) -> bytes:
        prefix = self._labeled.get((topic, label))
        if prefix is None:
            if len(self._labeled) >= MAX_TOPICS:
                self._labeled.clear()
            prefix = plain_prefix(topic, self._origin, 0, label, self._incarnation)
            self._labeled[topic, label] = prefix
        return prefix

    def run(self, neighbor: SessionInfo, frames: Sequence[bytes], at: int) -> list[PlainMessage]:
        """What is known of the messages at `at` and next to it, while one like them came before."""
        run: list[PlainMessage] = []
        found = self._found.get(neighbor)
        if found is None:
            return run
        end = 0
        head = known = None
        for frame in frames[at : at + MAX_RUN]:
            # Often the same topic and length as the one before: then all before the rest is.
            if head is None or not frame.startswith(head):
                start, end = _header(frame)
                if not end:
                    break
                end -= self._tail
                known = found.get(frame[start:end])
                if known is None:
                    break
                head = frame[:end]
            assert known is not None
            run.append((known, frame[end:]))
        if self._tail:
            for place, (_, rest) in enumerate(run):
                if _COUNT.match(rest) is None:
                    return run[:place]
        return run

    def remember(self, neighbor: SessionInfo, frame: bytes, message: Message, route: Route) -> None:
        """A message was looked at closely; if it was plain, the next one like it need not be."""
        start, end = _header(frame)
        if end and not (
            message.qos
            or message.properties
            or message.expiry_s is not None
            or is_special(message.topic)
            or bool(message.number) != bool(self._tail)
            or route.pending
        ):
            if self._count >= MAX_TOPICS:
                self.forget()
            self._count += 1
            found = self._found.setdefault(neighbor, {})
            found[frame[start : end - self._tail]] = _known(message, route)

    def forget(self) -> None:
        """Routes, links or the topology have changed."""
        self._found.clear()
        self._count = 0


class ClientRun:
    """Messages of local clients that go the same way; at the end of the run they do.

    Plain ones, or such as would be plain if they were not at QoS 1.
    """

    __slots__ = (
        "_hold",
        "_may_be_batch",
        "_publish",
        "_publish_batch",
        "is_batch",
        "payloads",
        "room_bytes",
        "route",
        "topics",
    )

    def __init__(
        self,
        publish: Callable[[Sequence[bytes], Sequence[bytes], Route], None],
        publish_batch: Callable[[Sequence[bytes], Sequence[bytes], Route, Hold], None],
        may_be_batch: Callable[[Route], bool],
    ) -> None:
        self._publish = publish
        self._publish_batch = publish_batch
        self._may_be_batch = may_be_batch
        self.topics: list[bytes] = []
        self.payloads: list[bytes] = []
        self.route = Route()
        self.is_batch = False
        """They are at QoS 1."""
        self.room_bytes = 0
        """How much more there may be then."""
        self._hold: Hold | None = None

    def begin(self, route: Route) -> None:
        """What comes next goes by `route`."""
        self.end()
        self.route = route

    def begin_batch(self, route: Route, hold: Hold) -> bool:
        """The same at QoS 1, of one client, which `hold` holds; False if it must not go so."""
        self.end()
        if not self._may_be_batch(route):
            return False
        self.route, self._hold = route, hold
        self.is_batch, self.room_bytes = True, BATCH_BYTES
        return True

    def end(self) -> None:
        """Before anything that is not of the run: all stays in order."""
        if self.is_batch:
            self._end_batch()
        elif self.topics:
            try:
                self._publish(self.topics, self.payloads, self.route)
            finally:
                self.topics.clear()
                self.payloads.clear()

    def _end_batch(self) -> None:
        self.is_batch = False
        hold, self._hold = self._hold, None
        if self.topics and hold is not None:
            topics, payloads = self.topics[:], self.payloads[:]
            self.topics.clear()
            self.payloads.clear()
            self._publish_batch(topics, payloads, self.route, hold)


class PassedRun:
    """What becomes of a run that came from a neighbor: for the broker, and for the next links."""

    __slots__ = ("links", "payloads", "topics")

    def __init__(self) -> None:
        self.topics: list[bytes] = []
        self.payloads: list[bytes] = []
        self.links: dict[SessionInfo, tuple[list[bytes], list[bytes]]] = {}
        """Topics and packets."""

    def to_links(self, known: Known, rest: bytes) -> None:
        for prefix, sessions in known.prefixes:
            packet = plain_to_link(prefix, rest)
            for session in sessions:
                topics, packets = self.links.setdefault(session, ([], []))
                topics.append(known.topic)
                packets.append(packet)


class _Prefixes(dict[bytes, bytes]):
    """Topic → prefix of local clients' messages without label; a missing one is made."""

    __slots__ = ("_incarnation", "_origin")

    def __init__(self, origin: str, incarnation: str) -> None:
        super().__init__()
        self._origin, self._incarnation = origin, incarnation

    def __missing__(self, topic: bytes) -> bytes:
        if len(self) >= MAX_TOPICS:
            self.clear()
        prefix = self[topic] = plain_prefix(topic, self._origin, 0, b"", self._incarnation)
        return prefix


def _known(message: Message, route: Route) -> Known:
    incarnation = message.number.partition(".")[0]
    by_label: dict[bytes, tuple[SessionInfo, ...]] = {}
    for session, label in route.hops:
        by_label[label] = (*by_label.get(label, ()), session)
    prefixes = tuple(
        (plain_prefix(message.topic, message.origin, message.hops, label, incarnation), sessions)
        for label, sessions in by_label.items()
    )
    to_broker = route.to_local_broker
    return Known(message.topic, to_broker, prefixes, message.origin, incarnation, message.taken_as)


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
