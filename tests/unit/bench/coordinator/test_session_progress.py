"""What a measurement shows on a terminal and elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from isthmus.bench.coordinator.progress import Progress
from isthmus.bench.load.expected import Totals


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=terminal, width=140, highlight=False))
    progress.say("connecting 100 clients [n1]")
    progress.begin("C-sf", 20.0)
    for tick in range(-1, 45):
        elapsed_s = tick / 2
        sent = max(0, min(tick, 40)) * 250
        progress.report(
            elapsed_s, Totals(sent, sent * 10 - 7 * (tick > 0), sent * 10, int(tick == 20))
        )
    progress.end("sent 10,000 of 10,000")
    return out.getvalue()


def test_plain_lines_now_and_then() -> None:
    assert shown(terminal=False).splitlines() == [
        "connecting 100 clients [n1]",
        "C-sf: measuring for 20 s",
        "C-sf: 0:05 of 0:20  sent 500/s  received 5,000/s  missing 7",
        "C-sf: 0:10 of 0:20  sent 500/s  received 5,000/s  missing 7  held back 1",
        "C-sf: 0:15 of 0:20  sent 500/s  received 5,000/s  missing 7",
        "C-sf: 0:20 of 0:20  sent 500/s  received 5,000/s  missing 7",
        "C-sf: sent 10,000 of 10,000",
    ]


def test_a_bar_on_a_terminal() -> None:
    text = shown(terminal=True)
    assert "━" in text
    assert "0:10 of 0:20  sent 500/s  received 5,000/s  missing 7  held back 1" in text
    assert "sent all, waiting for 0:02" in text


def test_a_measurement_that_failed_leaves_the_terminal_as_it_was() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True, width=100))
    progress.begin("r", 1.0)
    progress.end()
    progress.begin("r2", 1.0)  # a bar left open would refuse a second one
    progress.end()
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 2
