"""Which messages are retained, at a broker that does not say so.

MQTT 3.1.1 takes the RETAIN flag from live messages [MQTT-3.3.1-9], and has no Retain As Published.
To pass such a message on as a live one, and later once more as a retained one, would deliver it
twice.  So the flag is found out before it goes on:

    published through the node      the relay has seen the flag: it is noted by its content
    a topic with a retained message  the broker is asked, which takes a moment; if it has this very
                                     payload retained, that is it
    a topic that is new here         the same; that there is none takes `GRACE_S` of the reader
    any other topic                  no: the broker is asked beside, every `AGAIN_S` of use

Messages on a topic that is asked for wait, in order.  Of several that wait, the last with the
payload that is found is the retained one; an empty one deletes if there is nothing, and was.

Bounds: `MAX_ASKED` topics and `MAX_WAITING_BYTES` wait, for `GIVE_UP_S` at most; what comes beyond
goes on as not retained and is counted.  `MAX_TOPICS` are known, and as many asked for at once, none
of them twice; flags are noted for `NOTED_S`, as many as `Echoes` remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

from isthmus.exchange.broker.echoes import Echoes
from isthmus.exchange.host import Cancellable
from isthmus.exchange.session import SessionHost
from isthmus.exchange.traffic.message import Message

__all__ = ["Ask", "RetainFlags"]

BATCH: Final = 100
MAX_ASKED: Final = 2_000
MAX_WAITING_BYTES: Final = 8 << 20
MAX_TOPICS: Final = 65_536
NOTED_S: Final = 60.0
AGAIN_S: Final = 60.0
GIVE_UP_S: Final = 10.0
"""A broker that does not answer for so long is not waited for."""
ASK_S: Final = 0.005
"""Questions are put together for so long."""

Ask = Callable[[Sequence[bytes], Callable[[Mapping[bytes, bytes | None] | None], None]], None]
GoOn = Callable[[Message, bool], None]


class RetainFlags:
    """Messages from the broker wait here until it is known whether they are retained."""

    def __init__(
        self,
        host: SessionHost,
        ask: Ask,
        *,
        go_on: GoOn,
        found: Callable[[bytes, bytes], None],
        is_known: Callable[[bytes], bool],
        unasked: Callable[[], None],
    ) -> None:
        """`go_on` is told a message that waited and whether it is retained; `found` what else the
        broker has; `unasked` that there was no room to ask.  `is_known` says whether there is
        anything that could be deleted."""
        self._host = host
        self._ask = ask
        self._go_on = go_on
        self._found = found
        self._is_known = is_known
        self._unasked = unasked
        self._noted = Echoes(host.now, NOTED_S)
        self._retains: dict[bytes, bool] = {}
        """Topics, and whether there was something retained when the broker was last asked."""
        self._asked_s: dict[bytes, float] = {}
        self._waiting: dict[bytes, list[Message]] = {}
        """By topics that are asked for."""
        self._since_s: dict[bytes, float] = {}
        """Of these, when the first came."""
        self._bytes = 0
        self._asking: set[bytes] = set()
        """What is not answered."""
        self._to_ask: dict[bytes, None] = {}
        self._timer: Cancellable | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def note(self, topic: bytes, payload: bytes) -> None:
        """A client publishes it through the node, retained."""
        self._noted.published(topic, payload)

    def is_plain(self, topic: bytes) -> bool:
        """Whether nothing about messages on `topic` is to be found out just now: the hot path."""
        return (
            self._retains.get(topic) is False
            and topic not in self._waiting
            and not self._noted
            and self._asked_s[topic] > self._host.now() - AGAIN_S
        )

    def judge(self, message: Message) -> bool:
        """Whether it can go on, with its flag right; else it waits."""
        topic = message.topic
        self._noted.forget_old()
        if self._noted.is_echo(topic, message.payload):
            message.retain = True
            self._retains[topic] = True
            self._asked_s[topic] = self._host.now()
            return topic not in self._waiting or not self._wait(message)
        if topic in self._waiting:
            return not self._wait(message)
        if self._retains.get(topic) is False:
            if self._asked_s[topic] <= self._host.now() - AGAIN_S:
                self._asked_s[topic] = self._host.now()
                self._soon(topic)
            return True
        if len(self._waiting) >= MAX_ASKED or len(self._asking) >= MAX_TOPICS:
            self._unasked()
            return True
        self._waiting[topic] = []
        if not self._wait(message):
            del self._waiting[topic]
            return True
        if not self._since_s:
            self._host.call_later(GIVE_UP_S, self._give_up)
        self._since_s[topic] = self._host.now()
        self._soon(topic)
        return False

    def asks_for(self, topic: bytes) -> bool:
        """Whether messages wait for the answer; what else the broker has is told after them."""
        return topic in self._waiting

    def check(self, topic: bytes) -> None:
        """Ask what the broker has on `topic`, soon."""
        if len(self._to_ask) < MAX_ASKED:
            self._soon(topic)

    def _wait(self, message: Message) -> bool:
        if self._bytes + message.cost > MAX_WAITING_BYTES:
            self._unasked()
            return False
        self._bytes += message.cost
        self._waiting[message.topic].append(message)
        return True

    def _soon(self, topic: bytes) -> None:
        if topic not in self._asking and len(self._asking) < MAX_TOPICS:
            self._asking.add(topic)
            self._to_ask[topic] = None
            self._ask_soon()

    def _ask_soon(self) -> None:
        if self._timer is None and self._to_ask:
            self._timer = self._host.call_later(ASK_S, self._ask_some)

    def _ask_some(self) -> None:
        self._timer = None
        topics = list(islice(self._to_ask, BATCH))
        for topic in topics:
            del self._to_ask[topic]
        if topics:
            self._ask(topics, lambda found: self._told(topics, found))
        self._ask_soon()

    def _give_up(self) -> None:
        """Whoever has waited too long goes on, and so does what comes next on its topic."""
        now_s = self._host.now()
        for topic, since_s in list(self._since_s.items()):
            if since_s > now_s - GIVE_UP_S:
                self._host.call_later(since_s + GIVE_UP_S - now_s, self._give_up)
                break
            self._know(topic, retains=False)
            for message in self._no_longer_waiting(topic):
                self._unasked()
                self._go_on(message, message.retain)

    def _know(self, topic: bytes, *, retains: bool) -> None:
        if len(self._retains) >= MAX_TOPICS:
            self._retains.clear()
            self._asked_s.clear()
        self._retains[topic] = retains
        self._asked_s[topic] = self._host.now()

    def _no_longer_waiting(self, topic: bytes) -> list[Message]:
        self._since_s.pop(topic, None)
        waited = self._waiting.pop(topic, [])
        self._bytes -= sum(message.cost for message in waited)
        return waited

    def _told(self, topics: Sequence[bytes], found: Mapping[bytes, bytes | None] | None) -> None:
        for topic in topics:
            payload = found.get(topic) if found is not None else None
            self._asking.discard(topic)
            self._know(topic, retains=payload is not None)
            waited = self._no_longer_waiting(topic)
            retained = payload
            if payload is None and self._is_known(topic):
                retained = b""  # what deletes it
            last = max(
                (place for place, each in enumerate(waited) if each.payload == retained),
                default=-1,
            )
            for place, message in enumerate(waited):
                self._go_on(message, message.retain or place == last)
            if payload is not None and last < 0:
                self._found(topic, payload)
