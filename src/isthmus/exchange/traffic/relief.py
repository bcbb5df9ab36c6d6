"""What waits for one branch of a node must not stop what goes to the others.

A message from a neighbor is acknowledged when every branch it was passed on to has it: links,
neighbors that are awaited, the local broker.  A branch that is away, or slow, would so fill the
window of the lane (`lane.WINDOW`), and nothing would come over it any more, for anybody.  So of
what has come over a lane only the latest `MAX_UNSAFE` messages are left unacknowledged, and no more
bytes than leave room in the queue of the neighbor, which else would hold its publishers back; what
is older is let go: acknowledged early, and from then on in this node's memory alone.

That goes on while there is room where it waits:

    a link that is up        `queue_bytes`; beyond, nothing is let go: the neighbor waits
    a link that is down      `queue_bytes`; beyond, its neighbor is given up
    an awaited neighbor      likewise (`recovery`)
    the local broker         `queue_bytes` for each neighbor (`BrokerQueue`); beyond, the neighbor
                             waits; but when the broker has acknowledged nothing for `hold_s`, the
                             oldest are given up, so that one that is gone does not part the fabric

Invariants: a message is acknowledged once; letting go touches no queue, so order and numbers of
what waits stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from isthmus.exchange.host import Host
from isthmus.exchange.link.lane import IN_HAND_BYTES, WINDOW
from isthmus.exchange.traffic.message import Message

__all__ = ["LOOK_AGAIN_S", "MAX_UNSAFE", "UNSAFE_PART", "BrokerQueue"]

MAX_UNSAFE: Final = WINDOW // 2
UNSAFE_PART: Final = 4
"""What part of a link's `queue_bytes` may be unacknowledged."""
LOOK_AGAIN_S: Final = 0.5
"""When it is looked again whether there is room."""
PART: Final = 8
"""What is given up at once is this part of the bound."""


class BrokerQueue:
    """What one neighbor has sent at QoS 1 and 2 and the local broker has not acknowledged."""

    __slots__ = (
        "_bound",
        "_counters",
        "_heard_s",
        "_hold_s",
        "_host",
        "_key",
        "_limit",
        "_told",
        "bytes",
    )

    def __init__(
        self, host: Host, key: str, counters: Counter[str], *, queue_bytes: int, hold_s: float
    ) -> None:
        self._host = host
        self._key = key
        self._counters = counters
        self._bound = self._limit = queue_bytes
        self._hold_s = hold_s
        self._heard_s = 0.0
        """When the broker acknowledged last, or had nothing to acknowledge."""
        self._told = False
        """It was told that messages are given up, and the broker has taken none since."""
        self.bytes = 0

    def put(self, message: Message, done: Callable[[], None]) -> Callable[[], None]:
        """Count `message`; what is returned is to be called instead of `done`."""
        if self.bytes == 0:
            self._limit = self._bound
            if not self._told:
                self._heard_s = self._host.now()
        cost = message.cost + IN_HAND_BYTES
        self.bytes += cost
        return _AtBroker(self, cost, done)

    def acknowledged(self, cost: int) -> None:
        self.bytes -= cost
        self._heard_s = self._host.now()
        self._told = False

    def has_room(self) -> bool:
        """Whether more may wait; room is made if the broker has been silent for too long."""
        if self.bytes <= self._limit:
            return True
        heard_s, told = self._heard_s, self._told
        if self._host.now() - heard_s < self._hold_s:
            return False
        part = self._bound // PART
        lost = self._host.give_up_injected(self._key, self.bytes - self._bound + part)
        self._heard_s, self._told = heard_s, told or lost > 0
        # Of retained messages the newest are kept.
        self._limit = max(self._bound, self.bytes + part)
        self._counters["given_up"] += lost
        if self._told and not told:
            self._host.log(
                "warning",
                "messages given up: the broker does not take them and too many wait",
                neighbor=self._key,
                bytes=self.bytes,
            )
        return True


class _AtBroker:
    """Called when the broker has one message."""

    __slots__ = ("_cost", "_done", "_queue")

    def __init__(self, queue: BrokerQueue, cost: int, done: Callable[[], None]) -> None:
        self._queue = queue
        self._cost = cost
        self._done = done

    def __call__(self) -> None:
        self._queue.acknowledged(self._cost)
        self._done()
