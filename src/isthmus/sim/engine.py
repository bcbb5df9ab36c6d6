"""The virtual clock: events in the order of their time, from one seed.

Nothing here knows the wall clock.  Events of the same time happen in the order they were scheduled,
so a run is a function of its seed and of what the test does.

*Activity* is what a test waits to end: packets other than pings, and whatever clients and brokers
do.  Keep-alive never ends, so a fabric at rest still has events; it is quiet when for a while none
of them was activity.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

__all__ = ["Engine", "NeverQuiet", "Timer"]

MAX_EVENTS = 400_000


class NeverQuiet(AssertionError):
    """The fabric does not come to rest: something circulates or oscillates."""


class Timer:
    """A scheduled call; `cancel` makes it do nothing."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Engine:
    """The event queue."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.max_events: float = MAX_EVENTS
        """More are taken for something that circulates."""
        self.now_s = 0.0
        self.active_s = 0.0
        """When there was activity last."""
        self.events = 0
        self._queue: list[tuple[float, int, Timer]] = []
        self._scheduled = 0

    def random_for(self, name: str) -> random.Random:
        """A generator of its own for `name`, so that one part's draws do not shift another's."""
        return random.Random(f"{self.seed}/{name}")

    def call_at(self, at_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        self._scheduled += 1
        heapq.heappush(self._queue, (max(at_s, self.now_s), self._scheduled, timer))
        return timer

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self.call_at(self.now_s + delay_s, callback)

    def activity(self) -> None:
        self.active_s = self.now_s

    def run_until(self, until_s: float) -> None:
        """Everything that happens up to `until_s`."""
        queue = self._queue
        while queue and queue[0][0] <= until_s:
            self._step()
        self.now_s = max(self.now_s, until_s)

    def run_until_quiet(self, quiet_s: float, limit_s: float) -> None:
        """Go on until nothing but keep-alive has happened for `quiet_s`."""
        self.active_s = self.now_s
        give_up_s = self.now_s + limit_s
        queue = self._queue
        while queue and queue[0][0] <= self.active_s + quiet_s:
            self._step()
            if self.now_s > give_up_s:
                raise NeverQuiet(f"not quiet after {limit_s:g} simulated seconds")
        self.now_s = self.active_s + quiet_s

    def _step(self) -> None:
        at_s, _, timer = heapq.heappop(self._queue)
        callback = timer.callback
        if callback is None:
            return
        timer.callback = None
        self.now_s = at_s
        self.events += 1
        if self.events > self.max_events:
            raise NeverQuiet(f"more than {self.max_events} events, at {at_s:.3f} s")
        callback()
