"""Reading less often when there is much to read.

Three quarters of what a relayed message costs is the kernel's: a read and a write per connection
that has something.  Brokers write each message on its own, so a node that reads as soon as it can
gets them almost one by one.  Above `BUSY_PACKETS_PER_S` the node therefore rests for `rest_s`
between two turns of its event loop; messages gather, and one read and one write carry several.
Below that rate, where latency is what counts, it never rests.

This is what network cards do with interrupts.  Its price is named in the documentation: under
heavy load a message waits for half of `rest_s` on average.
"""

from __future__ import annotations

import asyncio
import time

from isthmus.node.counters import Counters

__all__ = ["Pacer"]

BUSY_PACKETS_PER_S = 50_000
SAMPLE_S = 0.02


class Pacer:
    """Ends each busy turn of the event loop with a rest, if the rate calls for it."""

    __slots__ = ("_counters", "_loop", "_packets", "_rest_s", "_resting", "_since_s", "armed")

    def __init__(self, loop: asyncio.AbstractEventLoop, counters: Counters, rest_s: float) -> None:
        self._loop = loop
        self._counters = counters
        self._rest_s = rest_s
        self._resting = False
        self._since_s = time.monotonic()
        self._packets = 0
        self.armed = rest_s == 0
        """Whether this turn has called `arm` already; always so when resting is switched off."""

    def arm(self) -> None:
        """Something was read in this turn; to be called once a turn."""
        self.armed = True
        self._loop.call_soon(self._turn_ended)

    def _turn_ended(self) -> None:
        # The loop has written what this turn gave to write, and will poll next.
        self.armed = False
        now_s = time.monotonic()
        elapsed_s = now_s - self._since_s
        if elapsed_s >= SAMPLE_S:
            packets = self._counters.broker_packets + self._counters.client_publishes
            self._resting = packets - self._packets > elapsed_s * BUSY_PACKETS_PER_S
            self._packets = packets
            self._since_s = now_s
        if self._resting:
            time.sleep(self._rest_s)
