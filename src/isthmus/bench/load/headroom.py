"""Whether the load process kept up: its own share of a core, and how late it sent.

A load tool that is itself at its limit measures itself.  So each process says of each run how much
CPU time it used in its busiest second (all its threads; 1.0 is one core), by how much it was late,
and how long it waited for its own recording.  Late means: later than the schedule asks *because
this process came late*.  A publisher whose socket takes no more is held, which is the broker's
doing and no lateness (:mod:`isthmus.bench.load.sending`).

Judged by :mod:`isthmus.bench.watch.bottleneck`.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

__all__ = ["LATE_NS", "SAMPLES_PER_SECOND", "Headroom"]

SAMPLES_PER_SECOND: Final = 2
LATE_NS: Final = 10_000_000
"""A send that was due longer ago than this counts as late."""


class Headroom:
    """Of one process during one run; `sample` is called `SAMPLES_PER_SECOND` times a second."""

    def __init__(self) -> None:
        self.cpu = 0.0
        """Cores used in the busiest second."""
        self.late_ns_max = 0
        self.due = 0
        self.late = 0
        self._lasted = False
        self._last: deque[tuple[int, int]] = deque(maxlen=SAMPLES_PER_SECOND + 1)

    def sample(self) -> None:
        """Account for the CPU time of the last second."""
        now_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        self._last.append((now_ns, cpu_ns))
        before_ns, cpu_before_ns = self._last[0]
        if now_ns == before_ns:
            return
        share = (cpu_ns - cpu_before_ns) / (now_ns - before_ns)
        # A run that has not lasted a second yet has nothing better than the part of it.
        self.cpu = max(self.cpu, share) if self._lasted else share
        self._lasted = len(self._last) == self._last.maxlen

    def served(self, due: int, late: int, late_ns: int) -> None:
        """`due` sends were served, `late` of them late; the latest was `late_ns` over time."""
        self.due += due
        self.late += late
        self.late_ns_max = max(self.late_ns_max, late_ns)

    def summary(self, stalled_ns: int) -> dict[str, float]:
        """As the coordinator gets it."""
        return {
            "cpu": round(self.cpu, 4),
            "late_ms_max": round(self.late_ns_max / 1e6, 3),
            "late_share": round(self.late / self.due, 6) if self.due else 0.0,
            "stalled_ms": round(stalled_ns / 1e6, 3),
        }
