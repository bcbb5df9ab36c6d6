"""How long the node's event loop was held by one turn, always watched.

No input of a client or neighbor, within the documented limits, may hold the loop for longer than
`SLOW_S`: everybody else waits meanwhile.  A timer that is due every `TICK_S` notices: when it is
late, the loop was held.  A turn of *d* seconds makes it late by *d*, less at most one tick, so
what is told is a lower bound, by at most `TICK_S`.  Nothing is added to the turns themselves.

Slow turns are counted and told in the log, in one line per `LOG_EVERY_S`: how long the longest took
and how much processor time the thread had in it.  A turn with little of that was not computing: the
machine was busy with others, or a file was slow.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from isthmus.exchange.client.counters import Counters
from isthmus.logs import get_logger

__all__ = ["SLOW_S", "TICK_S", "Watchdog"]

SLOW_S = 0.05
TICK_S = 0.01
LOG_EVERY_S = 10.0

log = get_logger(__name__)


@dataclass(eq=False, repr=False, slots=True)
class Watchdog:
    """Counts the turns that took too long."""

    _loop: asyncio.AbstractEventLoop
    _counters: Counters
    _timer: asyncio.TimerHandle | None = None
    _due_s: float = 0.0
    _cpu_s: float = 0.0
    _untold: int = 0
    _worst: tuple[float, float] = (0.0, 0.0)
    _last_log_s: float = -LOG_EVERY_S
    longest_s: float = 0.0
    """The longest turn since the start, and the processor time in it."""
    longest_cpu_s: float = 0.0
    busiest_cpu_s: float = 0.0
    """The most processor time in one turn, perhaps another; to within `TICK_S`."""

    def start(self) -> None:
        self._again(time.monotonic(), time.thread_time())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self, now_s: float, cpu_s: float) -> None:
        self._due_s = now_s + TICK_S
        self._cpu_s = cpu_s
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now_s, cpu_s = time.monotonic(), time.thread_time()
        self.noticed(now_s, now_s - self._due_s, cpu_s - self._cpu_s)
        self._again(now_s, cpu_s)

    def noticed(self, now_s: float, held_s: float, cpu_s: float) -> None:
        """The loop was held for `held_s`, in which the thread had `cpu_s` of processor time."""
        if held_s > self.longest_s:
            self.longest_s, self.longest_cpu_s = held_s, cpu_s
        # What was used before the timer was due belongs to other turns.
        self.busiest_cpu_s = max(self.busiest_cpu_s, min(held_s, cpu_s))
        if held_s > SLOW_S:
            self._counters.slow_turns += 1
            self._untold += 1
            self._worst = max(self._worst, (held_s, cpu_s))
        if self._untold and now_s - self._last_log_s >= LOG_EVERY_S:
            held_s, cpu_s = self._worst
            log.warning(
                "event loop held",
                longest_ms=round(held_s * 1000),
                cpu_ms=round(cpu_s * 1000),
                turns=self._untold,
            )
            self._last_log_s = now_s
            self._untold = 0
            self._worst = (0.0, 0.0)
