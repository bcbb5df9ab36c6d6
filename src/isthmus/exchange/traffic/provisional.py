"""Messages that are not sent on for good yet, because the neighbor will send them again.

A `Route` that is *provisional* reaches those that this node reaches now, and perhaps not all whom
its neighbor relies on it for: one that was restarted, for one, knows nobody but itself for a
moment.  And what comes by a way that is not in use any more comes again by the new one
(`CooperationAlgorithm.comes_again`).  Either comes again behind what is older, and must not
overtake that here: what waits with the neighbor for others may be older.

So at QoS 1 and 2 such a message goes to the local broker alone, and is not acknowledged until

- it comes again with the label that is in use: then it is acknowledged when that one is;
- routes have changed so that it does not have to come again: then this node sends it again;
- it has waited for `COPY_S`, or `hold_s` if its neighbor is not reached: then this node does, too.

Bound: with `queue_bytes` waiting nothing more is acknowledged early (`in_hand`), so the neighbors
wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from isthmus.cooperation.api import SessionInfo
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.traffic.in_hand import InHand
from isthmus.exchange.traffic.message import Message

__all__ = ["AGAIN", "COPY_S", "ProvisionalMessages"]

AGAIN: Final = "its coming again"
"""What a message in hand waits for; no node can be called so."""
COPY_S: Final = 5.0
SWEEP_S: Final = 1.0

_Key = tuple[str, str]
"""Origin and number."""


@dataclass(slots=True)
class _Waiting:
    message: Message
    in_hand: InHand
    until_s: float
    given: bool = False


class ProvisionalMessages:
    """What waits, in the order in which it came."""

    def __init__(
        self,
        host: Host,
        *,
        waits_for: Callable[[Message, InHand], float],
        again: Callable[[Message, InHand], None],
        give: Callable[[Message, InHand], bool],
        queue_bytes: int,
    ) -> None:
        """`waits_for` says how long one still waits, `again` sends it where it goes now.

        `give` has the broker get one that waits on although it does not come again, as it would get
        newer ones that come now; False if it may still come.
        """
        self._host = host
        self._waits_for = waits_for
        self._again = again
        self._give = give
        self._queue_bytes = queue_bytes
        self._waiting: dict[_Key, list[_Waiting]] = {}
        self._sweeper: Cancellable | None = None
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def has_room(self) -> bool:
        return self.bytes <= self._queue_bytes

    def put(self, message: Message, in_hand: InHand, wait_s: float) -> None:
        in_hand.wait_for(AGAIN)
        waiting = _Waiting(message, in_hand, self._host.now() + wait_s)
        self._waiting.setdefault((message.origin, message.number), []).append(waiting)
        self.bytes += message.cost
        if self._sweeper is None:
            self._sweeper = self._host.call_later(SWEEP_S, self._sweep)

    def copies(self, message: Message) -> Iterator[InHand]:
        """It has come again: what waited for that, until the caller goes on."""
        if self._waiting:
            for each in self._waiting.pop((message.origin, message.number), ()):
                yield each.in_hand
                self._done(each)

    def routes_changed(self) -> None:
        now_s = self._host.now()

        def is_over(each: _Waiting) -> bool:
            wait_s = self._waits_for(each.message, each.in_hand)
            each.until_s = min(each.until_s, now_s + wait_s)
            if wait_s > 0 and not each.given:
                each.given = self._give(each.message, each.in_hand)
            return wait_s <= 0

        self._take_out(is_over)

    def neighbor_left(self, session: SessionInfo) -> None:
        self._take_out(lambda each: each.message.came_from is session)

    def _sweep(self) -> None:
        now_s = self._host.now()
        self._take_out(lambda each: each.until_s <= now_s)
        self._sweeper = self._host.call_later(SWEEP_S, self._sweep) if self._waiting else None

    def _take_out(self, over: Callable[[_Waiting], bool]) -> None:
        """This node sends them again, and with them what is older: a newer one does not pass it."""
        ends = [each for waiting in self._waiting.values() for each in waiting if over(each)]
        newest: dict[tuple[str, bytes], str] = {}
        for each in ends:
            subject = (each.message.origin, each.message.topic)
            newest[subject] = max(newest.get(subject, ""), each.message.number)
        ending = set(map(id, ends))
        for key, waiting in list(self._waiting.items()) if ends else ():
            ends = []
            for each in waiting:
                message = each.message
                if id(each) in ending:
                    ends.append(each)
                elif message.number < newest.get((message.origin, message.topic), ""):
                    each.in_hand.waited = True
                    ends.append(each)
            if len(ends) == len(waiting):
                del self._waiting[key]
            elif ends:
                self._waiting[key] = [each for each in waiting if each not in ends]
            for each in ends:
                self._again(each.message, each.in_hand)
                self._done(each)

    def _done(self, each: _Waiting) -> None:
        self.bytes -= each.message.cost
        each.in_hand.acknowledged_by(AGAIN)

    def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
