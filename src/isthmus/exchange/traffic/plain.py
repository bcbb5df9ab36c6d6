"""The hot path of links: plain messages, which are most.

A plain message is at QoS 0, not retained, and has no properties.  All of its packet but the length,
the topic, the payload and, if it has a number, the count just before it is then the same for every
message of one origin and label, the *tail*, so it is made once; and what was found out about one
message (its route, that its origin may come over this link) holds for the others on its topic,
until `forget` is called because anything that the finding rests on may have changed.  Where every
topic has the same route it holds for all ordinary topics (`routes.is_ordinary`), and is remembered
once for each tail; of a few topics by themselves, too, which are quicker to find.  Topics that a
broker may close on are not remembered: the closer look is what they need.

They come in *runs*, at most `MAX_RUN` of those that one read brings, and go on in runs: what a run
has in common (that the link carries messages, that the broker takes them) is asked once.

Everything here could be left out without changing what arrives where; it is several times faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from isthmus.cooperation.api import Route, SessionInfo
from isthmus.exchange.broker.aversions import is_special
from isthmus.exchange.link.runs import BATCH_BYTES
from isthmus.exchange.traffic.aged import ENTRY_BYTES, Aged
from isthmus.exchange.traffic.message import COUNT_BYTES, Message, plain_tail, plain_to_link
from isthmus.exchange.traffic.routes import FEW, is_ordinary
from isthmus.mqtt.publish_layout import LENGTHS, PUBLISH

__all__ = ["MAX_RUN", "ClientRun", "Hold", "Known", "PassedRun", "PlainMessage", "PlainMessages"]

MAX_RUN: Final = 256
"""Looking for a run must cost little also where there is none, however much one read brings."""

MAX_BYTES: Final = 2**25
"""Of what is remembered, all neighbors together."""
MAX_TAILS: Final = 1_000
"""So many labels here, and of each neighbor origins for which all topics are alike."""

_KNOWN_BYTES: Final = 350
"""What a `Known` takes, with the bytes of one tail."""
_COUNT = re.compile(rb"[0-9a-f]{%d}" % COUNT_BYTES)


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about a message, for the next one like it."""

    topic: bytes
    """Empty if it is known of all topics."""
    to_broker: bool
    tails: tuple[tuple[bytes, tuple[SessionInfo, ...]], ...]
    """For the links that it goes to next: one for those that get it with the same label."""
    origin: str
    incarnation: str
    label: bytes


Hold = Callable[[], Callable[[], None]]
"""Stops reading from a client; what it returns lets it go on."""

PlainMessage = tuple[Known, bytes, bytes]
"""What is known, the topic, and the payload, after the count if there is one."""


class PlainMessages:
    """What is remembered of plain messages; bounded for neighbors and for the local clients."""

    __slots__ = ("_alike", "_count_bytes", "_found", "_incarnation", "_origin", "_tail", "_tails")

    def __init__(self, origin: str, incarnation: str = "") -> None:
        """`incarnation` if plain messages have numbers."""
        self._origin = origin
        self._incarnation = incarnation
        self._count_bytes = COUNT_BYTES if incarnation else 0
        self._tail = plain_tail(origin, 0, b"", incarnation)
        """Of local clients' messages without label."""
        self._tails: dict[bytes, bytes] = {}
        """Of those that leave with labels."""
        self._found: dict[SessionInfo, Aged[bytes, Known]] = {}
        self._alike: dict[SessionInfo, dict[bytes, Known]] = {}
        """By tail, of neighbors from which all topics have the same route."""

    def to_link(self, topics: Sequence[bytes], payloads: Sequence[bytes]) -> list[bytes]:
        """The packets for a link of local clients' plain messages without number or label."""
        tail = self._tail
        added = 2 + len(tail)
        return [  # as `plain_to_link`, without a call for each
            b"0%b\0%b%b%b%b" % (LENGTHS[length], LENGTHS[size], topic, tail, rest)
            if (length := added + (size := len(topic)) + len(rest)) < len(LENGTHS)
            else plain_to_link(topic, tail, rest)
            for topic, rest in zip(topics, payloads, strict=True)
        ]

    def to_link_labeled(self, topic: bytes, rest: bytes, label: bytes) -> bytes:
        """The same of one with a label, or a number; `rest` as in `PlainMessage`."""
        return plain_to_link(topic, self._labeled_tail(label) if label else self._tail, rest)

    def _labeled_tail(self, label: bytes) -> bytes:
        tail = self._tails.get(label)
        if tail is None:
            if len(self._tails) >= MAX_TAILS:
                self._tails.clear()
            tail = self._tails[label] = plain_tail(self._origin, 0, label, self._incarnation)
        return tail

    def run(self, neighbor: SessionInfo, frames: Sequence[bytes], at: int) -> list[PlainMessage]:
        """What is known of the messages at `at` and next to it, while one like them came before."""
        run: list[PlainMessage] = []
        found, alike = self._found.get(neighbor), self._alike.get(neighbor)
        if found is None:
            return run
        end, topic, count_bytes = 0, b"", self._count_bytes
        head = known = None
        for frame in frames[at : at + MAX_RUN]:
            # Often the same topic and length as the one before: then all before the rest is.
            if head is None or not frame.startswith(head):
                start, pos, end = _header(frame)
                if not end:
                    break
                end -= count_bytes
                key = frame[start:end]
                known = found.get(key)
                if known is not None:
                    topic = known.topic
                else:
                    topic = frame[start + 2 : pos]
                    if alike is not None and is_ordinary(topic) is not None:
                        known = alike.get(frame[pos:end])
                    if known is None:
                        known = found.recall(key, _size(key))
                        if known is None:
                            break
                    elif len(found) < FEW:
                        found.keep(key, replace(known, topic=topic), _size(key))
                head = frame[:end]
            assert known is not None
            run.append((known, topic, frame[end:]))
        if count_bytes:
            for place, (_, _, rest) in enumerate(run):
                if _COUNT.match(rest) is None:
                    return run[:place]
        return run

    def remember(
        self,
        neighbor: SessionInfo,
        frame: bytes,
        message: Message,
        route: Route,
        *,
        alike: bool = False,
    ) -> None:
        """A message was looked at closely; if it was plain, the next one like it need not be.

        If topics are `alike`, that is the next one of its origin on any ordinary topic.
        """
        start, pos, end = _header(frame)
        if end and not (
            message.qos
            or message.properties
            or message.expiry_s is not None
            or is_special(message.topic)
            or bool(message.number) != bool(self._count_bytes)
            or route.pending
        ):
            end -= self._count_bytes
            found = self._found.get(neighbor)
            if found is None:
                found = self._found[neighbor] = Aged(MAX_BYTES)
                for each in self._found.values():
                    each.most_bytes = MAX_BYTES // len(self._found)
            if alike and is_ordinary(message.topic) is not None:
                of_tails = self._alike.setdefault(neighbor, {})
                if len(of_tails) >= MAX_TAILS:
                    of_tails.clear()
                of_tails[frame[pos:end]] = _known(b"", message, route)
                return
            key = frame[start:end]
            found.keep(key, _known(message.topic, message, route), _size(key))

    def ask_each(self) -> None:
        """What is known of all topics holds no longer; what is of one does."""
        self._alike.clear()

    def forget(self, neighbor: SessionInfo | None = None) -> None:
        """Routes, links or the topology have changed; or a neighbor is gone for good."""
        self._alike.clear()
        if neighbor is not None:
            self._found.pop(neighbor, None)
        for found in self._found.values():
            found.forget()


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
        publish_batch: Callable[[Sequence[bytes], list[bytes], Route, Hold], None],
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

    def to_links(self, known: Known, topic: bytes, rest: bytes) -> None:
        for tail, sessions in known.tails:
            packet = plain_to_link(topic, tail, rest)
            for session in sessions:
                topics, packets = self.links.setdefault(session, ([], []))
                topics.append(topic)
                packets.append(packet)


def _known(topic: bytes, message: Message, route: Route) -> Known:
    incarnation = message.number.partition(".")[0]
    by_label: dict[bytes, tuple[SessionInfo, ...]] = {}
    for session, label in route.hops:
        by_label[label] = (*by_label.get(label, ()), session)
    tails = tuple(
        (plain_tail(message.origin, message.hops, label, incarnation), sessions)
        for label, sessions in by_label.items()
    )
    to_broker = route.to_local_broker
    return Known(topic, to_broker, tails, message.origin, incarnation, message.taken_as)


def _size(key: bytes) -> int:
    return ENTRY_BYTES + _KNOWN_BYTES + 2 * len(key)  # the topic once more, on its own


def _header(frame: bytes) -> tuple[int, int, int]:
    """Where the topic's length is, and where topic and tail end; zeros if it takes a closer look.

    `isthmus.mqtt.publish_layout` says why these are the places.
    """
    start = 2 if frame[1] < 0x80 else 3
    if frame[0] != PUBLISH or len(frame) < start + 2 or frame[start - 1] >= 0x80:
        return 0, 0, 0
    pos = start + 2 + (frame[start] << 8 | frame[start + 1])
    if pos >= len(frame) or frame[pos] >= 0x80:
        return 0, 0, 0
    return start, pos, pos + 1 + frame[pos]
