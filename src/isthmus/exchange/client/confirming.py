"""Acknowledgments that a publisher gets only when the fabric has its message.

    PUBLISH ──▶ own broker ──PUBACK, PUBREC──▶ ┐
        └─────▶ fabric ──safe, or missed──────▶┴─ both have come ──▶ the client

With ``confirm = "local"`` the broker's answer goes to the client as it comes.  With ``"fabric"`` it
is kept until every broker that wanted the message when it was published has acknowledged it (ILDM
§4.5.1 names it as future work).  At QoS 2 the answer is the PUBREC, with which a publisher gives a
message away; what follows passes.

If somebody does without the message, or after `confirm_s`, the client is told so: in MQTT 5 by an
answer with the reason 0x80; MQTT 3.1.1 has none, so its connection is closed, and it sends again
what was not acknowledged.  What a broker refuses for good (0x83), it would send again for ever: so
that is acknowledged to a client of 3.1.1, as the standard has it (3.1.1 §3.3.5).  The message may
be at some brokers by then, and its repetition comes there twice.  A QoS 2 message that is refused
so, its own broker has taken: the node releases it
there, since the client will not ([MQTT-4.3.3-9]).

At QoS 2 a client that comes back and sends a message again, which the fabric is still busy with,
waits for the same confirmation, and one that was refused is refused again: the memory is its
session's (`Unreleased.unconfirmed`).

Answers are kept in their order, those of messages that need no confirmation too ([MQTT-4.6.0-2]).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from isthmus.exchange.client.unreleased import Unreleased
from isthmus.exchange.host import Cancellable
from isthmus.exchange.traffic.message import Fate
from isthmus.mqtt.framing import body_offset
from isthmus.mqtt.publish_layout import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    acknowledgment,
    packet_id_at,
)

__all__ = ["LOCAL", "ConfirmSettings", "Confirming", "Publisher"]

_ANSWERS: Final = frozenset((PUBACK, PUBREC))
TOLD_AT_ONCE: Final = 1_000
"""Of messages that need not wait any longer, so many are told in a turn."""


@dataclass(frozen=True, slots=True)
class ConfirmSettings:
    """Which messages are confirmed by the whole fabric."""

    by_default: bool = False
    prefixes: Mapping[str, bool] = field(default_factory=dict)
    """Of topics; the longest that fits decides."""
    within_s: float = 10.0
    back_s: float = 60.0
    """How long subscribers of a last life of which nothing is kept may take (`returning`)."""
    _sorted: tuple[bytes, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sorted", tuple(sorted(map(str.encode, self.prefixes))))

    @classmethod
    def of(
        cls, confirm: str, topics: Mapping[str, str], within_s: float, back_s: float
    ) -> ConfirmSettings:
        """As the configuration says it."""
        prefixes = {prefix: each == "fabric" for prefix, each in topics.items()}
        return cls(confirm == "fabric", prefixes, within_s, back_s)

    @property
    def is_on(self) -> bool:
        return self.by_default or any(self.prefixes.values())

    def confirms(self, topic: bytes) -> bool:
        """Whether a message on `topic` is confirmed by the fabric."""
        at = bisect_right(self._sorted, topic)
        while at:
            prefix = self._sorted[at - 1]
            if topic.startswith(prefix):
                return self.prefixes[prefix.decode()]
            # Another prefix of the topic is a prefix of what both have in common.
            common = next(
                (i for i, (a, b) in enumerate(zip(prefix, topic, strict=False)) if a != b),
                min(len(prefix), len(topic)),
            )
            at = bisect_right(self._sorted, topic[:common], 0, at - 1)
        return self.by_default


LOCAL: Final = ConfirmSettings()


class Publisher(Protocol):
    """The client's connection."""

    protocol_level: int
    unreleased: Unreleased

    def send(self, data: bytes, *, to_broker: bool) -> bool:
        """Write to the client, or to the broker for it."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable: ...

    def now(self) -> float: ...

    def not_confirmed(self) -> None:
        """A message was missed, or took too long: it is counted."""
        ...

    def close_unconfirmed(self) -> None:
        """Close the connection of a client that cannot be told otherwise."""
        ...


@dataclass(eq=False, slots=True)
class _Publish:
    """A message that is on its way."""

    waits: Confirming
    """Of the connection by which it came last."""
    until_s: float
    fate: Fate = Fate.TAKEN
    """As far as the fabric has said."""
    late: bool = False

    @property
    def is_open(self) -> bool:
        return self.fate is Fate.TAKEN and not self.late

    def is_acknowledged(self, level: int) -> bool:
        """To a client that speaks `level`."""
        return self.fate is Fate.SAFE or (self.fate is Fate.REFUSED and level != 5)


class Confirming:
    """What of one connection is not confirmed."""

    __slots__ = (
        "_advancing",
        "_answers",
        "_by_id",
        "_client",
        "_late",
        "_released",
        "_timer",
        "_unsent",
        "_within_s",
    )

    def __init__(self, client: Publisher, within_s: float) -> None:
        self._client = client
        self._within_s = within_s
        self._by_id: dict[int, _Publish] = {}
        """What its broker has not answered."""
        self._answers: deque[tuple[bytes, _Publish | None]] = deque()
        """What its broker has answered, and waits, in that order."""
        self._late: deque[_Publish] = deque()
        """What may take too long, in the order of publishing."""
        self._released: set[int] = set()
        """Released here, at QoS 2: the broker's PUBCOMP is not the client's."""
        self._unsent: list[bytes] = []
        """In the midst of a long packet, behind which it goes."""
        self._timer: Cancellable | None = None
        self._advancing = False
        """It will be looked in the next turn what need not wait any longer."""

    def __bool__(self) -> bool:
        """Whether what the broker says is to be looked at."""
        return bool(self._by_id or self._answers or self._released)

    def publish(self, packet_id: int, qos: int) -> Callable[[Fate], None]:
        """A message goes to broker and fabric; what is to be told what becomes of it."""
        unreleased = self._client.unreleased
        entry = _Publish(self, 0.0)
        self._wait(packet_id, entry)
        if qos == 2:
            unreleased.unconfirmed[packet_id] = entry

        def confirmed(fate: Fate) -> None:
            entry.fate = fate
            if unreleased.unconfirmed.get(packet_id) is entry:
                if fate is Fate.MISSED:
                    unreleased.release(packet_id)  # if it is sent again, it is passed on again
                elif fate is Fate.SAFE:
                    del unreleased.unconfirmed[packet_id]
            entry.waits.advance_soon()

        return confirmed

    def repeated(self, packet_id: int) -> None:
        """A QoS 2 message came again, and is not passed on again."""
        entry = self._client.unreleased.unconfirmed.get(packet_id)
        if isinstance(entry, _Publish):
            entry.waits, entry.late = self, False
            self._wait(packet_id, entry)

    def _wait(self, packet_id: int, entry: _Publish) -> None:
        late = self._late
        while late and late[0].fate is not Fate.TAKEN:
            late.popleft()  # else what is over would be kept for `within_s`, at any rate
        entry.until_s = self._client.now() + self._within_s
        self._by_id[packet_id] = entry
        self._late.append(entry)
        if self._timer is None:
            self._timer = self._client.call_later(self._within_s, self._too_late)

    def answer(self, frame: bytes) -> bytes:
        """The broker says `frame`: what the client is told now."""
        head = frame[0]
        if head == PUBCOMP and self._released:
            packet_id = packet_id_at(frame, body_offset(frame, 0))
            if packet_id in self._released:
                self._released.discard(packet_id)
                return b""
        if head not in _ANSWERS:
            return frame
        entry = self._by_id.pop(packet_id_at(frame, body_offset(frame, 0)), None)
        if entry is not None and _is_refusal(frame):
            entry = None  # the broker's own word goes to the client
        if not self._answers and (entry is None or entry.fate is Fate.SAFE):
            return frame
        self._answers.append((frame, entry))
        return self._next_answers()

    def _next_answers(self) -> bytes:
        """What need not wait any longer."""
        answers, passed = self._answers, list[bytes]()
        left = TOLD_AT_ONCE
        while answers:
            if not left:
                self.advance_soon()
                break
            left -= 1
            frame, entry = answers[0]
            if entry is not None and entry.is_open:
                break
            answers.popleft()
            level = self._client.protocol_level
            if entry is not None and entry.fate is not Fate.SAFE:
                self._client.not_confirmed()
            if entry is None or entry.is_acknowledged(level):
                passed.append(frame)
                continue
            if level != 5:
                self.close()
                self._client.close_unconfirmed()
                break
            reason = Fate.REFUSED if entry.fate is Fate.REFUSED else Fate.MISSED
            passed.append(self._refusal(frame, reason))
        return b"".join(passed)

    def advance_soon(self) -> None:
        """The fabric has spoken: of many messages in a turn, perhaps, which are told together."""
        if self._answers and not self._advancing:
            self._advancing = True
            self._client.call_later(0.0, self._advance)

    def _advance(self) -> None:
        """The fabric has spoken, or time is over."""
        self._advancing = False
        if told := self._next_answers():
            self._unsent.append(told)
            self.flush()

    def flush(self) -> None:
        """Send what is to be sent, unless a long packet is on its way to the client."""
        if self._unsent and self._client.send(b"".join(self._unsent), to_broker=False):
            self._unsent.clear()

    def _refusal(self, frame: bytes, reason: Fate) -> bytes:
        packet_id = packet_id_at(frame, body_offset(frame, 0))
        if frame[0] == PUBREC:
            self._client.unreleased.release(packet_id)
            self._released.add(packet_id)
            self._client.send(acknowledgment(PUBREL, packet_id), to_broker=True)
        return acknowledgment(frame[0], packet_id, bytes((reason,)))

    def _too_late(self) -> None:
        self._timer = None
        now_s = self._client.now()
        late = self._late
        while late and (late[0].fate is not Fate.TAKEN or late[0].until_s <= now_s):
            late.popleft().late = True
        if late:
            self._timer = self._client.call_later(late[0].until_s - now_s, self._too_late)
        self._advance()

    def close(self) -> None:
        """The connection ends: nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._by_id.clear()
        self._answers.clear()
        self._late.clear()


def _is_refusal(frame: bytes) -> bool:
    pos = body_offset(frame, 0)
    return len(frame) > pos + 2 and frame[pos + 2] >= 0x80
