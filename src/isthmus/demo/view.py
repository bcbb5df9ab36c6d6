"""What the demo shows: a live table on a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from isthmus.fabric.view import printable

if TYPE_CHECKING:
    from isthmus.demo.ledger import Ledger
    from isthmus.fabric.processes import RunningNode

__all__ = ["View"]

PLAIN_EVERY_S = 2.0
MAX_MISSING_SHOWN = 10
WIDE = 96  # columns from which there is room for the last values


class View:
    """The demo on standard output."""

    def __init__(
        self,
        nodes: Sequence[RunningNode],
        ledger: Ledger,
        how: Sequence[str] = (),
        console: Console | None = None,
    ) -> None:
        """`how` tells in a few lines how the nodes are joined."""
        self._nodes = nodes
        self._ledger = ledger
        self._how = how
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        self._started_s = self._shown_s = time.monotonic()

    @contextmanager
    def live(self) -> Iterator[None]:
        """While inside, `refresh` shows the present state."""
        self._started_s = self._shown_s = time.monotonic()
        self._print(*self._header())  # above the live part, which is cut to the terminal's height
        if not self._console.is_terminal:
            yield
            return
        with Live(self._screen(), console=self._console, auto_refresh=False) as self._live:
            yield

    def refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._screen(), refresh=True)
        elif time.monotonic() >= self._shown_s + PLAIN_EVERY_S:
            self._shown_s += PLAIN_EVERY_S
            self._print(self._plain_line())

    def summary(self, took_s: float, crossings: int | None = None) -> None:
        """The end: what was sent, what arrived, what is missing, what the links carried."""
        missing, published = self._ledger.missing(), self._ledger.published
        self._console.print(self._table())
        self._print(f"{published} messages published in {took_s:.1f} s.")
        if crossings is not None:
            self._print(
                f"The links carried {crossings} messages, only where someone listens; "
                f"every message to every node would be {published * (len(self._nodes) - 1)}."
            )
        if duplicates := sum(account.duplicates for account in self._ledger.accounts):
            self._print(f"{duplicates} arrived twice.")
        if not missing:
            self._print("Every message that should have arrived did.")
        for name, readings in missing.items():
            self._print(f"{name} misses {len(readings)}:")
            for topic, number in readings[:MAX_MISSING_SHOWN]:
                self._print(f"  {topic} #{number}")
            if len(readings) > MAX_MISSING_SHOWN:
                self._print(f"  and {len(readings) - MAX_MISSING_SHOWN} more")

    def _print(self, *lines: str) -> None:
        """Lines whole, however narrow the terminal: they are there to be copied."""
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)
        sys.stdout.flush()

    def _header(self) -> list[str]:
        there, middle, here = self._nodes
        program = sys.argv[0] if sys.argv[0].endswith("isthmus") else "isthmus"
        return [
            "Isthmus demo: 3 nodes, each before a broker that knows nothing of the others; sensors "
            "and subscribers are their clients.",
            *self._how,
            "Each message travels only where someone listens: nobody but the gardener wants the "
            "garden's light, so it does not leave the node garden.",
            *(
                f"node {n.id}: mqtt {n.mqtt}, websocket {n.ws}, admin http://{n.admin}/, "
                f"broker {n.broker_name} on {n.broker_url.host}:{n.broker_url.port}"
                for n in self._nodes
            ),
            f"Try it:  mosquitto_sub {_at(here)} -v -t 'home/#'   (on {here.id})",
            f"         mosquitto_pub {_at(there)} -t home/hall/door -m open   (on {there.id})",
            f"         {program} status --admin {middle.admin}   (what {middle.id} sees)",
        ]

    def _screen(self) -> Group:
        elapsed_s = time.monotonic() - self._started_s
        footer = f"{self._ledger.published} published, {elapsed_s:.0f} s. Ctrl-C ends the demo."
        return Group(Text(), self._table(), Text(), Text(footer))

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for column, width in (("from → to node", 15), ("subscriber", 10), ("filter", 18)):
            table.add_column(column, style="cyan", no_wrap=True, min_width=width)
        for column, width in (("received", 8), ("expected", 8), ("median", 8)):
            table.add_column(column, justify="right", no_wrap=True, min_width=width)
        wide = self._console.width >= WIDE
        if wide:
            table.add_column("last value", no_wrap=True, overflow="ellipsis")
        rows = []
        for each in self._ledger.accounts:
            latency = "-" if each.latency_ms is None else f"{each.latency_ms:.2f} ms"
            counts = (str(len(each.arrived)), str(each.expected), latency)
            rows.append((each.way, each.subscriber, counts, each.last))
        for name, (count, text) in self._ledger.others.copy().items():
            plan = self._ledger.subscribers[name]
            rows.append((f"you → {plan.node}", plan, (str(count), "-", "-"), text))
        for way, plan, counts, last in rows:
            cells = [way, plan.name, plan.topic_filter, *counts]
            table.add_row(*cells, *([escape(printable(last))] if wide else []))
        return table

    def _plain_line(self) -> str:
        """How many have arrived on each way from node to node."""
        ways: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for each in self._ledger.accounts:
            ways[each.way][0] += len(each.arrived)
            ways[each.way][1] += each.expected
        parts = [f"{way} {received}/{expected}" for way, (received, expected) in ways.items()]
        return f"{time.monotonic() - self._started_s:5.1f} s  {', '.join(parts)}"


def _at(node: RunningNode) -> str:
    login = ""
    if node.broker is not None and node.broker.username:
        login = f" -u {node.broker.username} -P {node.broker.password}"
    return f"-h {node.mqtt.host} -p {node.mqtt.port}{login}"
