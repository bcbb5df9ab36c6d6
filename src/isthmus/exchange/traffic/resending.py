"""What neighbors have not acknowledged, on its way to where routes say now.

Also what waits for neighbors of the last life (`recovery`): they may be reached over others now.
Whether and where each of them goes is asked `STEP` messages in a turn, since there may be tens of
thousands of them for a neighbor that is away.  Until it has been asked of all on a topic, what
comes after them on it waits (`has`), so they stay in order.  If routes change again meanwhile, all
of it begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from isthmus.cooperation.api import Resend
from isthmus.exchange.host import Host
from isthmus.exchange.link.lane import Held, Outgoing
from isthmus.exchange.link.links import Links
from isthmus.exchange.traffic.in_hand import InHand
from isthmus.exchange.traffic.message import Message
from isthmus.exchange.traffic.recovery import Recovery
from isthmus.mqtt.filters.topics import matches

__all__ = ["Resending"]

STEP: Final = 500

_Unacknowledged = dict[Message, tuple[set[str], Held | None]]
"""With the neighbors that it was sent to, and what waits for them."""


class Resending:
    """What is to be asked about, by topic."""

    def __init__(
        self,
        host: Host,
        links: Links,
        recovery: Recovery,
        *,
        again: Callable[[Message, InHand | None], None],
        done: Callable[[bytes], None],
    ) -> None:
        """`again` sends a message where it goes now; `done` is told of topics."""
        self._host = host
        self._links = links
        self._recovery = recovery
        self._again = again
        self._done = done
        self._topics: dict[bytes, _Unacknowledged] = {}
        self._needed: Resend | None = None
        self._working = False

    def has(self, topic: bytes) -> bool:
        return topic in self._topics

    def __bool__(self) -> bool:
        return bool(self._topics)

    def begin(self, filters: list[str] | None, needed: Resend | None) -> None:
        """All that is unacknowledged on topics that `filters` match; all without."""
        concerns, topics = _Concerns(filters), self._topics
        for name, entries in self._unacknowledged():
            for entry in entries:
                message = entry.message
                on_topic = topics.get(message.topic)
                if on_topic is None:
                    if not concerns[message.topic]:
                        continue
                    on_topic = topics[message.topic] = {}
                known = on_topic.get(message)
                if known is None:
                    on_topic[message] = {name}, entry.in_hand
                else:
                    known[0].add(name)
        self._needed = needed
        if not self._working:
            self._work()

    def _unacknowledged(self) -> Iterator[tuple[str, Iterable[Outgoing]]]:
        for link in self._links:
            yield link.info.name, link.unacknowledged()
        for awaited in (*self._recovery.awaited.values(), *self._recovery.back.values()):
            yield awaited.name, awaited.entries()

    def _work(self) -> None:
        left = STEP
        done: list[bytes] = []
        while self._topics and left > 0:
            topic, messages = next(iter(self._topics.items()))
            while messages and left > 0:
                left -= 1
                message = next(iter(messages))
                self._ask(message, *messages.pop(message))
            if not messages:
                del self._topics[topic]
                done.append(topic)
        self._working = bool(self._topics)
        if self._working:
            self._host.call_later(0.0, self._work)
        for topic in done:
            self._done(topic)

    def _ask(self, message: Message, missing: set[str], in_hand: Held | None) -> None:
        assert in_hand is None or isinstance(in_hand, InHand)
        if in_hand is not None and not in_hand.waits_for:
            return  # all have it by now
        source = None if in_hand is None or in_hand.let_go else message.came_from
        labels = {label for _, label in message.passed_to}
        if self._needed is None or self._needed(labels, missing, source):
            self._again(message, in_hand)


class _Concerns(dict[bytes, bool]):
    """Topics, and whether any of some filters match them; all of them without filters."""

    def __init__(self, filters: list[str] | None) -> None:
        super().__init__()
        self._filters = None if filters is None else dict.fromkeys(filters)

    def __missing__(self, topic: bytes) -> bool:
        filters, name = self._filters, topic.decode()
        found = filters is None or name in filters or any(matches(each, name) for each in filters)
        self[topic] = found
        return found
