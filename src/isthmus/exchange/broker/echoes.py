"""Echoes: the node's own messages, as they come back by its own subscription.

With ``source = "broker"`` the session that publishes what comes over links is also subscribed.  In
MQTT 5 it asks for No Local; MQTT 3.1.1 has no such thing, and a broker may not keep to it.  So what
is written is remembered by topic and payload, and as many messages of that content are swallowed
as they come.  If somebody else publishes the very same one meanwhile, it does not matter which of
the two is swallowed.

Only what the subscription matches is remembered: of anything else no echo will come, and what is
remembered in vain would swallow another's message.  For the same reason it is forgotten after
`ECHO_S`, or if there are more than `MAX_REMEMBERED`, the oldest first.  While the broker is away or
does not answer no echo can come, and nothing gets older.

A broker that keeps to No Local does so always: once that is proven of a session, nothing is
remembered any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["ECHO_S", "MAX_REMEMBERED", "Echoes"]

ECHO_S: Final = 120.0
MAX_REMEMBERED: Final = 100_000


class Echoes:
    """What was published by the session, and has not come back."""

    __slots__ = (
        "_came",
        "_counts",
        "_for_s",
        "_now",
        "_order",
        "_still_s",
        "_stood_s",
        "no_local",
        "on",
        "swallowed",
    )

    def __init__(self, now: Callable[[], float], for_s: float = ECHO_S) -> None:
        self._now = now
        self._for_s = for_s
        self._counts: dict[int, int] = {}
        self._order: deque[tuple[float, int]] = deque()
        self._came: dict[int, int] = {}
        """Of how many in `_order`, the first of their content, the echo has come."""
        self._stood_s: float | None = None
        """Since when time stands still."""
        self._still_s = 0.0
        """For how long it has, before."""
        self.on = True
        """Whether what is published is to be remembered."""
        self.no_local = False
        self.swallowed = 0
        """In this session."""

    def __len__(self) -> int:
        return len(self._counts)

    def opened(self, *, no_local: bool) -> None:
        """A session begins; what the one before it has published may still come."""
        self.on, self.no_local = True, no_local
        self.swallowed = 0
        self.answers(True)

    def answers(self, yes: bool) -> None:
        """Whether echoes can come now."""
        if yes and self._stood_s is not None:
            self._still_s += self._now() - self._stood_s
            self._stood_s = None
        elif not yes and self._stood_s is None:
            self._stood_s = self._now()

    def _time(self) -> float:
        return (self._now() if self._stood_s is None else self._stood_s) - self._still_s

    def published(self, topic: bytes, payload: bytes) -> None:
        key = hash((topic, payload))
        self._counts[key] = self._counts.get(key, 0) + 1
        now_s = self._time()
        self._order.append((now_s, key))
        if len(self._order) > MAX_REMEMBERED or self._order[0][0] < now_s - self._for_s:
            self._forget(now_s)

    def forget_old(self) -> None:
        if self._order and self._order[0][0] < (now_s := self._time()) - self._for_s:
            self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        order = self._order
        while order and (len(order) > MAX_REMEMBERED or order[0][0] < now_s - self._for_s):
            key = order.popleft()[1]
            _less(self._came if key in self._came else self._counts, key)

    def proven(self) -> None:
        """The session has published something that it is subscribed to, and it has not come."""
        if self.no_local and not self.swallowed:
            self.on = False
            self._counts.clear()
            self._came.clear()
            self._order.clear()

    def is_echo(self, topic: bytes, payload: bytes) -> bool:
        """Whether a message that came is one of those, which is then over."""
        key = hash((topic, payload))
        if key not in self._counts:
            return False
        self.forget_old()
        if key not in self._counts:
            return False
        _less(self._counts, key)
        self._came[key] = self._came.get(key, 0) + 1
        self.swallowed += 1
        return True


def _less(counts: dict[int, int], key: int) -> None:
    count = counts[key]
    if count > 1:
        counts[key] = count - 1
    else:
        del counts[key]
