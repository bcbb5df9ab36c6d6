"""The watch's samples on their way into the log, in bounded memory.

All that is sampled are counters that run on, so a sample less costs resolution and nothing else:
beyond :data:`MAX_ROWS` rows every other sample is dropped, and from then on half as many are taken.
The first sample and the newest are always kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from isthmus.bench.watch.tcp_info import TcpInfo

__all__ = ["MAX_ROWS", "LinkRow", "ResourceRow", "Series", "link_row", "table"]

MAX_ROWS: Final = 200_000
"""Of one series; some 60 MB."""


class ResourceRow(NamedTuple):
    """A row of `resources`, in the order of its columns."""

    t_ns: int
    node: str
    process: str
    cpu_ns: int
    rss_bytes: int
    throttled_ns: int | None


class LinkRow(NamedTuple):
    """A row of `links`, in the order of its columns; counters since the connection began."""

    t_ns: int
    kind: str
    node: str
    peer: str
    messages_out: int | None = None
    messages_in: int | None = None
    bytes_out: int | None = None
    bytes_in: int | None = None
    retransmits: int | None = None
    rwnd_limited_us: int | None = None
    sndbuf_limited_us: int | None = None
    busy_us: int | None = None
    data_bytes_out: int | None = None
    data_bytes_in: int | None = None
    control_packets_out: int | None = None
    control_packets_in: int | None = None
    control_bytes_out: int | None = None
    control_bytes_in: int | None = None


def link_row(  # noqa: PLR0917 - the first columns, in their order
    t_ns: int,
    kind: str,
    node: str,
    peer: str,
    info: TcpInfo,
    messages: tuple[int | None, int | None] = (None, None),
) -> LinkRow:
    """What the kernel counted of a connection, and the messages sent and received on it."""
    return LinkRow(
        t_ns,
        kind,
        node,
        peer,
        *messages,
        bytes_out=info.bytes_sent,
        bytes_in=info.bytes_received,
        retransmits=info.retransmits,
        rwnd_limited_us=info.rwnd_limited_us,
        sndbuf_limited_us=info.sndbuf_limited_us,
        busy_us=info.busy_us,
    )


class Series:
    """The samples of one table; ticks without one lie between them, more the longer a run."""

    def __init__(self, stride: int = 1) -> None:
        self.stride = stride
        """Ticks from one sample to the next, at least."""
        self._next_tick = 0
        self._samples: list[Sequence[NamedTuple]] = []
        self._rows = 0

    def due(self, tick: int) -> bool:
        """Whether to take a sample at `tick`; then the next is `stride` ticks away."""
        if tick < self._next_tick:
            return False
        self._next_tick = tick + self.stride
        return True

    def append(self, rows: Sequence[NamedTuple]) -> None:
        """One sample, perhaps of several rows."""
        if self._rows + len(rows) > MAX_ROWS and len(self._samples) > 1:
            del self._samples[1::2]
            self._rows = sum(map(len, self._samples))
            self.stride *= 2
        self._samples.append(rows)
        self._rows += len(rows)

    def rows(self) -> Iterator[NamedTuple]:
        for sample in self._samples:
            yield from sample


def table(series: Sequence[Series], schema: Any) -> Any:
    """All rows of `series`, whose fields are the schema's columns, as a `pyarrow.Table`."""
    rows = [row for one in series for row in one.rows()]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array(column, type=part.type) for column, part in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
