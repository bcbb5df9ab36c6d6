"""Long input in slices: no client's packets hold the event loop for long.

A client's input is handled at once, as it comes, but only for `SLICE_S`.  Who needs more time has
its reading stopped and waits here for its next slice, behind the others; in each turn of the event
loop those who wait get `SLICE_S` together.  While anybody waits, nobody else's input is handled for
more than `SHORT_SLICE_S` on arrival, so that many clients with much input cannot add up to a turn
that is noticed.

Invariants: who waits is served in the order in which it came to wait; each of them has stopped
reading, so what waits is bounded by one read and `limits.buffer_bytes` per client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Protocol

__all__ = ["SLICE_S", "Turns"]

SLICE_S = 0.01
SHORT_SLICE_S = 0.001


class Waiting(Protocol):
    """A client that has more input than fits in a slice."""

    def go_on(self, ends_s: float) -> None:
        """Handle what waits until `ends_s` on the clock of `perf_counter`; wait again if needed."""
        ...


class Turns:
    """Those who wait for their next slice."""

    __slots__ = ("_loop", "_scheduled", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Waiting] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    def slice_ends_s(self) -> float:
        """When a slice that begins now is over."""
        return perf_counter() + (SHORT_SLICE_S if self._waiting else SLICE_S)

    def wait(self, client: Waiting) -> None:
        """Call `go_on` in a later turn of the loop."""
        self._waiting.append(client)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._scheduled = False
        ends_s = perf_counter() + SLICE_S
        for _ in range(len(self._waiting)):
            self._waiting.popleft().go_on(ends_s)
            if perf_counter() >= ends_s:
                break
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._serve)
