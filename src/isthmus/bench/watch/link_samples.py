"""The counters of a load process's own connections, in the `links` table and at the end of a run.

Once a second, of at most `AT_ONCE` connections, so that 10,000 clients do not stop the process: a
connection of a larger crowd is looked at in turn.  The counters are the kernel's `TCP_INFO`
(:mod:`isthmus.bench.watch.tcp_info`), and messages sent and received since the client connected.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

from isthmus.bench.watch import tcp_info
from isthmus.bench.watch.samples import LinkRow, link_row
from isthmus.bench.watch.tcp_info import TcpInfo
from isthmus.pipeline.log.reading import LoggedClient
from isthmus.pipeline.log.schema import LINKS

__all__ = ["LinkSamples", "Sampled"]

AT_ONCE: Final = 500
GROUP_ROWS: Final = 1 << 14


class Sampled(Protocol):
    """A client's connection; its socket is None when it is lost."""

    client: LoggedClient
    sock: socket.socket | None

    def messages(self) -> tuple[int, int]:
        """Sent and received since it connected."""


class LinkSamples:
    """Of one run, which begins now; `write` takes the rows of the table."""

    def __init__(
        self,
        connections: Sequence[Sampled],
        write: Callable[[Mapping[str, Sequence[Any]]], None],
    ) -> None:
        self._connections = tuple(connections)
        self._write = write
        self._next = 0
        self._rows: list[LinkRow] = []
        self._socks = [connection.sock for connection in connections]
        self._first = [self._read(connection) for connection in connections]
        self._last = list(self._first)
        self._window_bytes: list[int | None] = [None] * len(connections)

    def sample(self, t_ns: int) -> None:
        """Look at the connections whose turn it is."""
        count = len(self._connections)
        for _ in range(min(AT_ONCE, count)):
            number = self._next
            self._next = (number + 1) % count
            info = self._look(number)
            if info is not None:
                one = self._connections[number]
                client, messages = one.client, one.messages()
                self._rows.append(
                    link_row(t_ns, "client", client.node, client.name, info, messages)
                )
        if len(self._rows) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand the rows on."""
        if self._rows:
            self._write(dict(zip(LINKS.names, zip(*self._rows, strict=True), strict=True)))
            self._rows = []

    def growth(self) -> list[dict[str, Any]]:
        """What each connection's counters grew by during the run, as far as it is known."""
        found: list[dict[str, Any]] = []
        for number, connection in enumerate(self._connections):
            self._look(number)
            first, last = self._first[number], self._last[number]
            client = connection.client
            if connection.sock not in (None, self._socks[number]):
                first = None  # it has come back: these are counters of two connections
            grown = tcp_info.UNKNOWN if first is None or last is None else last.since(first)
            entry = {"peer": client.name, "node": client.node, **asdict(grown)}
            found.append(entry | {"receive_window_min_bytes": self._window_bytes[number]})
        return found

    def _look(self, number: int) -> TcpInfo | None:
        info = self._read(self._connections[number])
        if info is not None:
            self._last[number] = info
            seen, now = self._window_bytes[number], info.receive_window_bytes
            if now is not None:
                self._window_bytes[number] = now if seen is None else min(seen, now)
        return info

    @staticmethod
    def _read(connection: Sampled) -> TcpInfo | None:
        return None if connection.sock is None else tcp_info.read(connection.sock)
