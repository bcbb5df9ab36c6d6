"""What the demo shows: a live table on a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

import sys
import time
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
        sensors: int,
        console: Console | None = None,
    ) -> None:
        self._nodes = nodes
        self._ledger = ledger
        self._sensors = sensors
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        self._started_s = time.monotonic()
        self._next_plain_s = 0.0

    @contextmanager
    def live(self) -> Iterator[None]:
        """While inside, `refresh` shows the present state."""
        self._started_s = time.monotonic()
        self._next_plain_s = self._started_s + PLAIN_EVERY_S
        if not self._console.is_terminal:
            self._print(*self._header())
            yield
            return
        with Live(self._screen(), console=self._console, auto_refresh=False) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._screen(), refresh=True)
        elif time.monotonic() >= self._next_plain_s:
            self._next_plain_s += PLAIN_EVERY_S
            self._print(self._plain_line())

    def summary(self, took_s: float, crossings: int | None = None) -> None:
        """The end: what was sent, what arrived, what is missing, what the links carried."""
        missing = self._ledger.missing()
        published = self._ledger.published
        duplicates = sum(row.duplicates for row in self._ledger.rows())
        self._console.print(self._table())
        self._print(f"{published} messages published in {took_s:.1f} s.")
        if crossings is not None:
            everywhere = published * (len(self._nodes) - 1)
            self._print(
                f"The links carried {crossings} messages, only where someone listens; "
                f"every message to every node would be {everywhere}."
            )
        if duplicates:
            self._print(f"{duplicates} arrived twice.")
        if not missing:
            self._print("Every message that should have arrived did.")
            return
        for name, readings in missing.items():
            self._print(f"{name} misses {len(readings)}:")
            for reading, topic in list(readings.items())[:MAX_MISSING_SHOWN]:
                self._print(f"  {topic} #{reading.sequence}")
            if len(readings) > MAX_MISSING_SHOWN:
                self._print(f"  and {len(readings) - MAX_MISSING_SHOWN} more")

    def _print(self, *lines: str) -> None:
        """Lines whole, however narrow the terminal: they are there to be copied."""
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)
        sys.stdout.flush()

    def _header(self) -> list[str]:
        nodes = self._nodes
        lines = [
            f"Isthmus demo: {len(nodes)} linked nodes, {' - '.join(node.id for node in nodes)}, "
            f"each before a broker that knows nothing of the others; {self._sensors} sensors and "
            f"{len(self._ledger.subscribers)} subscribers are their clients.",
            "Each message travels only where someone listens: nobody but the gardener wants the "
            "garden's light, so it never leaves the node garden.",
        ]
        lines += [
            f"node {n.id}: mqtt {n.mqtt}, websocket {n.ws}, admin http://{n.admin}/, "
            f"broker {n.broker_name} on {n.broker_url.host}:{n.broker_url.port}"
            for n in nodes
        ]
        if not nodes:
            return lines
        here, there, middle = nodes[-1], nodes[0], nodes[len(nodes) // 2]
        return [
            *lines,
            f"Try it:  mosquitto_sub {_at(here)} -v -t 'home/#'   (on {here.id})",
            f"         mosquitto_pub {_at(there)} -t home/hall/door -m open   (on {there.id})",
            f"         {_command()} peers list --admin {middle.admin}",
        ]

    def _screen(self) -> Group:
        elapsed_s = time.monotonic() - self._started_s
        footer = f"{self._ledger.published} published, {elapsed_s:.0f} s. Ctrl-C ends the demo."
        lines = [Text(line) for line in self._header()]
        return Group(*lines, Text(), self._table(), Text(), Text(footer))

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for column, width in (("from → to node", 15), ("subscriber", 10), ("filter", 18)):
            table.add_column(column, style="cyan", no_wrap=True, min_width=width)
        for column, width in (("received", 8), ("expected", 8), ("median", 8)):
            table.add_column(column, justify="right", no_wrap=True, min_width=width)
        if self._console.width >= WIDE:
            table.add_column("last value", no_wrap=True, overflow="ellipsis")
        for row in self._ledger.rows():
            latency = "-" if row.latency_ms is None else f"{row.latency_ms:.2f} ms"
            cells = [f"{row.publisher_node} → {row.subscriber_node}", row.subscriber]
            cells += [row.topic_filter, str(row.received), str(row.expected), latency]
            table.add_row(*cells, *self._last(row.last))
        for name, (count, text) in self._ledger.others.copy().items():
            plan = self._ledger.subscribers[name]
            cells = [f"you → {plan.node}", name, plan.topic_filter, str(count), "-", "-"]
            table.add_row(*cells, *self._last(text))
        return table

    def _last(self, text: str) -> list[str]:
        return [escape(printable(text))] if self._console.width >= WIDE else []

    def _plain_line(self) -> str:
        """How many have arrived on each way from node to node."""
        ways: dict[str, tuple[int, int]] = {}
        for row in self._ledger.rows():
            way = f"{row.publisher_node} → {row.subscriber_node}"
            received, expected = ways.get(way, (0, 0))
            ways[way] = (received + row.received, expected + row.expected)
        parts = [f"{way} {received}/{expected}" for way, (received, expected) in ways.items()]
        return f"{time.monotonic() - self._started_s:5.1f} s  {', '.join(parts)}"


def _command() -> str:
    """How this program was called, so that the hint can be pasted."""
    called = sys.argv[0]
    return called if called.endswith("isthmus") else "isthmus"


def _at(node: RunningNode) -> str:
    login = ""
    if node.broker is not None and node.broker.username:
        login = f" -u {node.broker.username} -P {node.broker.password}"
    return f"-h {node.mqtt.host} -p {node.mqtt.port}{login}"
