"""Closed loop: the highest rate that the path sustains without losing anything.

At most `window` published messages are outstanding, all publishers together; a message is no
longer outstanding when its deliveries are in.  The path therefore runs at its own limit and no
queue grows beyond the window, so nothing may be lost.

How the subscribers read decides what a broker on the same machine pays for each write.  One that
waits for data (`nap_s` 0), as real clients do, has to be woken up; one that sleeps for `nap_s` and
then takes all that has gathered costs the broker no wake-up, but exists only in benchmarks.  Both
are measured.  The window covers what the path delivers in many naps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle

from benchmarks.relay.load import Load
from benchmarks.relay.statistics import Slice, slices_of

from isthmus.errors import LoadError

__all__ = ["ClosedLoop", "drain", "saturate"]

STALLED_S = 10.0  # nothing delivered for so long: the run is stuck, or the rest is lost


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """How hard and how long to push."""

    window: int = 1000
    batch: int = 5  # messages per send
    nap_s: float = 0.0  # between two turns of the generator
    warmup_s: float = 0.5
    slices: int = 5  # quiet ones to collect
    slice_s: float = 0.5
    patience: int = 4  # at most so many times `slices` when other processes disturb


def saturate(load: Load, plan: ClosedLoop, cpu_ns: Callable[[], Mapping[str, int]]) -> list[Slice]:
    """Run `plan` to its end; `cpu_ns` reads the CPU clocks of the processes to account for.

    A delivery that never came is a `LoadError`: a rate that loses messages is not sustained.
    """
    turns = cycle(load.publishers)
    sent = 0

    def send() -> None:
        """Hand out the free part of the window in batches, publisher after publisher."""
        nonlocal sent
        room = plan.window - sent + load.delivered // load.shape.fan_out
        full = 0
        while room >= plan.batch and full < len(load.publishers):
            publisher = next(turns)
            before = publisher.message
            publisher.publish(plan.batch, load.tag, load.sent_log)
            count = publisher.message - before
            full = 0 if count else full + 1
            sent += count
            room -= count

    def push_until(end: float) -> int:
        """Run turns until the time `end`; the deliveries by then."""
        last, last_progress = load.delivered, time.perf_counter()
        while (now := time.perf_counter()) < end:
            load.turn(0.05)
            if load.delivered != last:
                last, last_progress = load.delivered, now
            elif now - last_progress > STALLED_S:
                raise LoadError(f"nothing delivered for {STALLED_S:.0f} s under load")
            send()
            if plan.nap_s:
                time.sleep(plan.nap_s)
        return load.delivered

    send()
    push_until(time.perf_counter() + plan.warmup_s)
    found = slices_of(push_until, cpu_ns, plan.slices, plan.slice_s, plan.patience)
    drain(load)
    return found


def drain(load: Load) -> None:
    """Stop sending and wait for what is outstanding; what never comes is a `LoadError`."""
    last_progress = time.perf_counter()
    before = missing = load.missing()
    while missing:
        load.turn(0.05)
        missing = load.missing()
        if missing != before:
            before, last_progress = missing, time.perf_counter()
        elif time.perf_counter() - last_progress > STALLED_S:
            raise LoadError(f"{missing} of {load.due()} deliveries lost")
