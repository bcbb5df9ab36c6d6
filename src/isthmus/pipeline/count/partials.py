"""What a task hands back about its file: few rows of one long format, which add up.

A large file goes in, a :class:`Partial` per count comes out; those of all files of a run are added
up by :mod:`isthmus.pipeline.count.tables`.  Each `what` uses some of the fields:

======================  ==================  ============  =====================================
what                    item                number        amount, part, data
======================  ==================  ============  =====================================
file                    table/writer                      amount: its rows
read                    table                             amount: rows
rejected                table               reason        amount: rows
published               .                   publisher     data: the numbers of its messages
sent                    .                   publisher     amount: messages sent in the window
sent second             .                   second        amount: publishes of t-clients
received                .                                 amount: to t-clients in the window
received second         .                   second        amount: deliveries to t-clients
delivered               .                   subscriber    amount: first deliveries
duplicates              .                   subscriber    amount
order violations        .                   subscriber    amount
latency                 t or l              series        part: block, amount, data: histogram
latency rest            t or l              series        amount: sum of (latency_ns mod 1000)
hops, hop bytes         .                   topic         amount
repeated hops           .                   topic         amount
path                    .                   topic         part: links, amount: subscribers reached
usage, traffic          .                                 data: a row of that table, as JSON
error                   .                                 data: what is wrong with the file `run`
======================  ==================  ============  =====================================

A *reason* is an index into :data:`REASONS`; a *series* is a topic for t-clients, a subscriber for
l-clients; for *blocks* see :mod:`isthmus.pipeline.count.histogram`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from isthmus.pipeline.log.schema import columns_of

__all__ = [
    "NOBODY_PUBLISHED",
    "NO_PUBLISHER",
    "OTHER_TOPIC",
    "PARTIALS",
    "REASONS",
    "TOPIC_NOT_SUBSCRIBED",
    "TWICE",
    "UNKNOWN_HOP",
    "UNKNOWN_PUBLISHER",
    "UNKNOWN_SUBSCRIBER",
    "Partial",
    "record_batches",
]

REASONS: Final = (
    "unknown publisher",
    "unknown subscriber",
    "delivery of a message nobody published",
    "topic not subscribed",
    "publish by a client that is no publisher",
    "publish to a topic that is not the publisher's",
    "message published twice",
    "hop of a message nobody published",
)
"""Why a row of `publishes`, `deliveries` or `hops` is rejected."""

(
    UNKNOWN_PUBLISHER,
    UNKNOWN_SUBSCRIBER,
    NOBODY_PUBLISHED,
    TOPIC_NOT_SUBSCRIBED,
    NO_PUBLISHER,
    OTHER_TOPIC,
    TWICE,
    UNKNOWN_HOP,
) = range(len(REASONS))

PARTIALS: Final = columns_of(
    "run text, what text, item text, number int, part int, amount int, data bytes"
)

_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 10_000


class Partial(NamedTuple):
    """One count, or one histogram, of one file."""

    run: str
    what: str
    item: str = ""
    number: int = 0
    part: int = 0
    amount: int = 0
    data: bytes = b""


def record_batches(partials: Iterable[Partial]) -> Iterator[pa.RecordBatch]:
    """The same as Arrow, in batches of at most about 8 MiB."""
    gathered: list[Partial] = []
    held_bytes = 0
    for partial in partials:
        gathered.append(partial)
        held_bytes += len(partial.data)
        if held_bytes >= _BATCH_BYTES or len(gathered) >= _BATCH_ROWS:
            yield _batch(gathered)
            gathered, held_bytes = [], 0
    if gathered:
        yield _batch(gathered)


def _batch(partials: list[Partial]) -> pa.RecordBatch:
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*partials, strict=True), PARTIALS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PARTIALS)
