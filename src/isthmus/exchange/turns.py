"""Long input in slices: no client's packets hold the event loop for long.

A client's input is handled at once, as it comes, but only for `SLICE_S`, which all whose input
comes in the same turn of the event loop share.  Who needs more time has its reading stopped and
waits here for its next slice, behind the others; in each turn those who wait get `SLICE_S`
together.  While anybody waits or has just been served, and when the turn's slice is used up, nobody
else's input is handled for more than `SHORT_SLICE_S` on arrival, so that many clients with much
input cannot add up to a turn that is noticed.

Invariants: who waits is served in the order in which it came to wait; each of them has stopped
reading, so what waits is bounded by one read and `limits.buffer_bytes` per client.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from isthmus.exchange.session import SessionHost

__all__ = ["SHORT_SLICE_S", "SLICE_S", "Turns"]

SLICE_S = 0.005
SHORT_SLICE_S = 0.0005
BRIEF_S = 0.001


class Waiting(Protocol):
    """A client that has more input than fits in a slice."""

    def go_on(self, ends_s: float) -> None:
        """Handle what waits until `ends_s` on `SessionHost.clock`; wait again if needed."""
        ...


class Turns:
    """Those who wait for their next slice."""

    __slots__ = ("_begun_s", "_ends_s", "_in_turn", "_scheduled", "_served_s", "_waiting", "host")

    def __init__(self, host: SessionHost) -> None:
        self.host = host
        self._waiting: deque[Waiting] = deque()
        self._scheduled = False
        self._in_turn = False
        """Whether the end of this turn will be noticed."""
        self._begun_s = -1.0
        """When the last slice began."""
        self._ends_s = 0.0
        """When the slice that all share in this turn is over, if its end will be noticed."""
        self._served_s = -1.0
        """When those who waited were last served."""

    def __len__(self) -> int:
        return len(self._waiting)

    def slice_ends_s(self) -> float:
        """When a slice that begins now is over."""
        now_s = self.host.clock()
        if self._waiting or now_s < self._served_s + SLICE_S:
            return now_s + SHORT_SLICE_S
        begun_s, self._begun_s = self._begun_s, now_s
        if not self._in_turn:
            if now_s - begun_s < BRIEF_S:
                return now_s + SLICE_S  # the last one was short: not worth to notice turns
            self._begin_turn(now_s)
        return max(self._ends_s, now_s + SHORT_SLICE_S)

    def used_up(self) -> bool:
        """Whether what can wait for a later turn should."""
        now_s = self.host.clock()
        if self._waiting or now_s < self._served_s + SLICE_S:
            return True
        if not self._in_turn:
            self._begin_turn(now_s)
        return now_s > self._ends_s

    def _begin_turn(self, now_s: float) -> None:
        self._in_turn = True
        self._ends_s = now_s + SLICE_S
        self.host.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._in_turn = False

    def wait(self, client: Waiting) -> None:
        """Call `go_on` in a later turn of the loop."""
        self._waiting.append(client)
        if not self._scheduled:
            self._scheduled = True
            self.host.call_soon(self._serve)

    def _serve(self) -> None:
        self._scheduled = False
        now_s = self.host.clock()
        ends_s = now_s + SLICE_S
        for _ in range(len(self._waiting)):
            self._waiting.popleft().go_on(ends_s)
            if (now_s := self.host.clock()) >= ends_s:
                break
        self._served_s = now_s
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self.host.call_soon(self._serve)
