"""What a measurement shows while it runs: a bar on a terminal, a plain line now and then elsewhere.

    C-sf-10ms  ━━━━━━━━━━━━━━━━╸━━━━━━━  0:51 of 1:20  sent 500/s  received 5,000/s  missing 0

`missing` is what was sent and has not arrived yet, so under the limit it stays small and over it
it grows.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from rich.console import Console

from isthmus.bench.load.expected import Totals
from isthmus.pipeline.progress_bar import ProgressBar

__all__ = ["Progress"]

PLAIN_EVERY_S: Final = 5.0
RATE_OVER_S: Final = 3.0


class Progress:
    """The measurements of a session, one after the other."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: ProgressBar | None = None
        self._run = ""
        self._duration_s = 0.0
        self._recent: deque[tuple[float, Totals]] = deque()
        """Of the last `RATE_OVER_S`, for the rates."""

    def say(self, text: str) -> None:
        """A line by itself, like what is being waited for before the load begins."""
        self._console.print(text, markup=False)

    def begin(self, run: str, duration_s: float) -> None:
        """A measurement begins."""
        self._run, self._duration_s = run, duration_s
        self._recent.clear()
        if not self._console.is_terminal:
            self.say(f"{run}: measuring for {duration_s:g} s")
        self._bar = ProgressBar(self._console, run, PLAIN_EVERY_S)

    def report(self, elapsed_s: float, totals: Totals) -> None:
        """Show how far it is, `elapsed_s` after the start of sending."""
        self._recent.append((elapsed_s, totals))
        while elapsed_s - self._recent[0][0] > RATE_OVER_S:
            self._recent.popleft()
        if self._bar is not None:
            done_s = min(max(elapsed_s, 0.0), self._duration_s)
            shown = self._shown(elapsed_s, totals)
            self._bar.show(elapsed_s, done_s, self._duration_s, shown)

    def end(self, result: str = "") -> None:
        """The measurement is over; `result` says how it went, if it ended as it should."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if result:
            self.say(f"{self._run}: {result}")

    def _shown(self, elapsed_s: float, totals: Totals) -> str:
        first_s, first = self._recent[0]
        over_s = elapsed_s - first_s
        sent = (totals.sent - first.sent) / over_s if over_s else 0.0
        received = (totals.received - first.received) / over_s if over_s else 0.0
        time = f"{_clock(elapsed_s)} of {_clock(self._duration_s)}"
        if elapsed_s > self._duration_s:
            time = f"sent all, waiting for {_clock(elapsed_s - self._duration_s)}"
        held = f"  held back {totals.held}" if totals.held else ""
        return (
            f"{time}  sent {sent:,.0f}/s  received {received:,.0f}/s  "
            f"missing {totals.missing:,}{held}"
        )


def _clock(seconds: float) -> str:
    whole = max(0, int(seconds))
    return f"{whole // 60}:{whole % 60:02}"
