"""Reading less often when there is much to read and nobody waits.

Three quarters of what a relayed message costs is the kernel's: a read and a write per connection
that has something.  Brokers write each message on its own, so a node that reads as soon as it can
gets them almost one by one.  If the node rests for `rest_s` between two turns of its event loop,
messages gather, and one read and one write carry several.  This is what network cards do with
interrupts.

Whoever waits for an answer before it sends more (a *closed loop*: QoS 1 and 2 with a window) can
only lose by it.  Whether the clients of QoS 1 and 2 are such cannot be seen, so it is measured.
Above `BUSY_PACKETS_PER_S`

- a flood at QoS 0 is read with rests;
- where there are packets that clients wait for an answer to, the node now and then tries the other
  mode for two short samples between two of its own (A B B A, so that a drift of the load touches
  both alike), and rests only if resting does not lower the rate of these packets.  A finding that
  contradicts the one before has to be confirmed by another trial.

    quiet ──busy──▶ A B B A ──▶ resting / not resting ──pause over──▶ A B B A …

The price is named in the documentation: under a flood a message waits for half of `rest_s` on
average, and while a closed loop runs it is slowed by trials of 28 ms, one in 8 s in the end.
What clients wait for at QoS 0 (an answer of another client) is not seen.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Final

from isthmus.exchange.client.counters import Counters

__all__ = ["Pacer", "RestOrNot"]

BUSY_PACKETS_PER_S: Final = 50_000
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = {True: 2.0, False: 8.0}
"""Between two trials, when resting is good or bad: a wrong rest costs more than a wrong try."""
FEWEST_WAITS: Final = 2
"""With fewer packets in a sample that somebody waits for, nobody is taken to wait: pings are among
them.  One client with one message in flight has more, even while the node rests."""
TOLERANCE: Final = 0.03
PLAINLY: Final = 0.3
"""So much slower with resting, and the trial is over at once."""


@dataclass(slots=True)
class _Sample:
    """What passed in a time."""

    elapsed_s: float = 0.0
    packets: int = 0
    waits: int = 0

    def add(self, other: _Sample) -> None:
        self.elapsed_s += other.elapsed_s
        self.packets += other.packets
        self.waits += other.waits

    @property
    def busy(self) -> bool:
        return self.packets > self.elapsed_s * BUSY_PACKETS_PER_S

    def slower_than(self, other: _Sample, by: float) -> bool:
        """Whether who waits got less here, by more than the share `by` and by more than chance."""
        if not self.elapsed_s or not other.elapsed_s:
            return False
        expected = other.waits * self.elapsed_s / other.elapsed_s
        return self.waits < expected * (1 - by) - 2 * math.sqrt(expected)


class RestOrNot:
    """Decides whether the node rests: totals and the time in, a yes or no out."""

    def __init__(self, rest_s: float) -> None:
        self._sample_s = max(0.02, 5 * rest_s)
        self._settle_s = 2 * rest_s
        """After a change: what had gathered would count for the new mode."""
        self.resting = False
        self._good = False
        """What the last trial found."""
        self._trial: list[bool] = []
        """The modes of the samples still to come."""
        self._found = {True: _Sample(), False: _Sample()}
        self._surprised = False
        """The last trial found the contrary of the ones before; another one has to confirm it."""
        self._pause_s = FIRST_PAUSE_S
        self._next_s = 0.0
        self._since_s = 0.0
        self._packets = self._waits = 0
        self._settling = False

    def due_s(self) -> float:
        """How long `tick` has nothing to say after this one."""
        return self._settle_s if self._settling else self._sample_s

    def tick(self, now_s: float, packets: int, waits: int) -> bool:
        """The end of a turn; `packets` and `waits` are totals."""
        elapsed_s = now_s - self._since_s
        if elapsed_s < self.due_s():
            return self.resting
        was = self.resting
        if not self._settling:
            sample = _Sample(elapsed_s, packets - self._packets, waits - self._waits)
            self._sampled(sample, now_s)
        self._settling = was is not self.resting
        self._since_s, self._packets, self._waits = now_s, packets, waits
        return self.resting

    def _sampled(self, sample: _Sample, now_s: float) -> None:
        if self._trial:
            self._found[self.resting].add(sample)
            self._trial.pop(0)
            on, off = self._found[True], self._found[False]
            if self._trial and not on.slower_than(off, PLAINLY):
                self.resting = self._trial[0]
            else:
                self._conclude(now_s)
        elif not sample.busy:
            self.resting = False
        elif sample.waits < FEWEST_WAITS:
            self.resting = True
        elif now_s < self._next_s:
            self.resting = self._good
        else:
            self._begin()

    def _begin(self) -> None:
        mine, other = self._good, not self._good
        self._trial = [mine, other, other, mine]
        self._found = {True: _Sample(), False: _Sample()}
        self.resting = mine

    def _conclude(self, now_s: float) -> None:
        on, off = self._found[True], self._found[False]
        good = not on.slower_than(off, TOLERANCE)
        if good is not self._good and not self._surprised:
            self._surprised = True
            self._begin()
            return
        if good is self._good:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S[good])
        else:
            self._pause_s = FIRST_PAUSE_S
        self._good = self.resting = good
        self._surprised = False
        self._trial = []
        self._next_s = now_s + self._pause_s


class Pacer:
    """Ends each busy turn of the event loop with a rest, where that makes nobody slower."""

    __slots__ = ("_counters", "_decision", "_loop", "_rest_s", "armed", "waits")

    def __init__(self, loop: asyncio.AbstractEventLoop, counters: Counters, rest_s: float) -> None:
        self._loop = loop
        self._counters = counters
        self._rest_s = rest_s
        self._decision = RestOrNot(rest_s)
        self.waits = 0
        """Packets of clients that somebody waits for: all but PUBLISH at QoS 0."""
        self.armed = rest_s == 0
        """Whether `arm` need not be called now; always so when resting is switched off."""

    def arm(self) -> None:
        """Something was read in this turn; to be called once a turn."""
        self.armed = True
        self._loop.call_soon(self._turn_ended)

    def _turn_ended(self) -> None:
        # The loop has written what this turn gave to write, and will poll next.
        packets = self._counters.broker_packets + self._counters.client_publishes
        if self._decision.tick(time.monotonic(), packets, self.waits):
            self.armed = False
            time.sleep(self._rest_s)
        else:
            # Who does not rest need not look at every turn.
            self._loop.call_later(self._decision.due_s(), self._look_again)

    def _look_again(self) -> None:
        self.armed = False
