"""Open loop: messages leave at a fixed rate, whatever comes back; the time to each delivery.

The payload carries the time just before the send, by the same clock that the receiver reads just
after its receive, in the same process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from benchmarks.relay.load import Load
from benchmarks.relay.saturation import drain
from numpy.typing import NDArray

from isthmus.bench.load.clock import now_ns
from isthmus.bench.load.headroom import Headroom
from isthmus.bench.load.sending import SendSchedule

__all__ = ["Latency", "OpenLoop", "measure_latency"]

LEAD_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """How fast and how long to send; messages of the warm-up are delivered but not counted."""

    rate_in: float = 2000.0
    warmup_s: float = 0.5
    measure_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of all counted deliveries in µs, sorted, and how well the schedule was kept."""

    latencies_us: NDArray[np.float64]
    achieved_rate: float  # messages per second in


def measure_latency(load: Load, plan: OpenLoop) -> Latency:
    """Run `plan` with every publisher in turn."""
    start_ns = now_ns() + LEAD_NS
    schedule = SendSchedule(
        load.publishers,
        start_ns=start_ns,
        duration_ns=round((plan.warmup_s + plan.measure_s) * 1e9),
        interval_ns=round(len(load.publishers) / plan.rate_in * 1e9),
        tag=load.tag,
        log=load.sent_log,
        headroom=Headroom(),
    )
    check = load.check
    check.latencies_ns, check.counted_from_ns = [], start_ns + round(plan.warmup_s * 1e9)
    counted: int | None = None
    while (wake_ns := schedule.next_wake_ns()) is not None:
        load.turn(max(0.0, (wake_ns - now_ns()) / 1e9))
        if counted is None and now_ns() >= check.counted_from_ns:
            counted = sum(one.message for one in load.publishers)
        schedule.wake(now_ns())
    took_s = (now_ns() - check.counted_from_ns) / 1e9
    schedule.end()
    sent = sum(one.message for one in load.publishers) - (counted or 0)
    drain(load)
    latencies_us = np.sort(np.concatenate(check.latencies_ns)) / 1e3
    return Latency(latencies_us, sent / took_s)
