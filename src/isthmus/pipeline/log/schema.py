"""The one log schema: what every run writes and the jobs read.

A log is a folder; its tables are Parquet, partitioned by run::

    LOG/runs/run=RUN/WRITER.parquet          one row: what was run, by whom, with which clocks
    LOG/publishes/run=RUN/WRITER.parquet     one row per message that a client sent
    LOG/deliveries/run=RUN/WRITER.parquet    one row per message that a client received
    LOG/links/run=RUN/WRITER.parquet         counters of connections, once a second
    LOG/resources/run=RUN/WRITER.parquet     CPU and memory of processes, once a second

A *writer* is one process that records.  Invariants:

* A run has one row in `runs`, written last: a run without it did not end and is refused.  Its
  `files` lists every other file with its number of rows, so a missing or shortened file is found.
* Every file says in its footer which table, run, writer and schema version it is; a file in the
  wrong place is refused by name.
* All that one subscriber received stands in the file of one writer, in the order of arrival; so
  duplicates and order need no shuffle.
* A delivery is complete: the payload brought publisher, message and time of sending along, so
  latency needs no join.  Messages are numbered from 0 per publisher, in the order of sending.
* Times are nanoseconds since the epoch on the writer's own clock; `clocks.offset_ns` added to them
  gives the coordinator's clock, which `window_start_ns` and `window_end_ns` are of.
* `client` numbers are unique in a run; `topic` is an index into the run's `topics`.

A change of meaning or of a column raises :data:`SCHEMA_VERSION`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

__all__ = [
    "CLIENTS",
    "DELIVERIES",
    "FOOTER",
    "LINKS",
    "PUBLISHES",
    "RESOURCES",
    "RUNS",
    "SCHEMA_VERSION",
    "TABLES",
    "Table",
    "file_path",
    "with_footer",
]

SCHEMA_VERSION: Final = 1

Table = Literal["runs", "publishes", "deliveries", "links", "resources"]

CLIENTS: Final = pa.list_(
    pa.struct(
        [
            pa.field("client", pa.uint32(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),  # "t" (throughput) or "l" (latency)
            pa.field("role", pa.string(), nullable=False),  # "publisher" or "subscriber"
            pa.field("topic", pa.uint16(), nullable=False),
            pa.field("node", pa.string(), nullable=False),
            pa.field("writer", pa.string(), nullable=False),
        ]
    )
)

RUNS: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("schema_version", pa.int32(), nullable=False),
        pa.field("scenario", pa.string(), nullable=False),
        pa.field("scenario_json", pa.string(), nullable=False),
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),  # broker, algorithm…
        pa.field("started_ns", pa.int64(), nullable=False),
        pa.field("ended_ns", pa.int64(), nullable=False),
        pa.field("window_start_ns", pa.int64(), nullable=False),
        pa.field("window_end_ns", pa.int64(), nullable=False),
        pa.field("interval_ns", pa.int64()),  # of every t-client that publishes; null: varied
        pa.field("topics", pa.list_(pa.string()), nullable=False),
        pa.field("clients", CLIENTS, nullable=False),
        pa.field(
            "clocks",
            pa.list_(
                pa.struct(
                    [
                        pa.field("writer", pa.string(), nullable=False),
                        pa.field("machine", pa.string(), nullable=False),
                        pa.field("offset_ns", pa.int64(), nullable=False),
                        pa.field("error_ns", pa.int64(), nullable=False),
                    ]
                )
            ),
            nullable=False,
        ),
        pa.field(
            "files",
            pa.list_(
                pa.struct(
                    [
                        pa.field("table", pa.string(), nullable=False),
                        pa.field("writer", pa.string(), nullable=False),
                        pa.field("rows", pa.int64(), nullable=False),
                    ]
                )
            ),
            nullable=False,
        ),
        # What a writer received and could not record as a delivery: no payload of ours, or one of
        # another run.
        pa.field(
            "strays",
            pa.list_(
                pa.struct(
                    [
                        pa.field("writer", pa.string(), nullable=False),
                        pa.field("reason", pa.string(), nullable=False),
                        pa.field("rows", pa.int64(), nullable=False),
                    ]
                )
            ),
            nullable=False,
        ),
        # What bounded the run, see isthmus.bench.watch.bottleneck; "" where nobody watched.
        pa.field("limited_by", pa.string(), nullable=False),
        pa.field("notes", pa.list_(pa.string()), nullable=False),
    ]
)

PUBLISHES: Final = pa.schema(
    [
        pa.field("publisher", pa.uint32(), nullable=False),
        pa.field("message", pa.uint32(), nullable=False),
        pa.field("topic", pa.uint16(), nullable=False),
        pa.field("t_send_ns", pa.int64(), nullable=False),
    ]
)

DELIVERIES: Final = pa.schema(
    [
        pa.field("subscriber", pa.uint32(), nullable=False),
        pa.field("publisher", pa.uint32(), nullable=False),
        pa.field("message", pa.uint32(), nullable=False),
        pa.field("topic", pa.uint16(), nullable=False),
        pa.field("t_send_ns", pa.int64(), nullable=False),  # the publisher's clock
        pa.field("t_receive_ns", pa.int64(), nullable=False),  # the writer's clock
    ]
)

# Counters since the connection began; null where the end that writes cannot know.  A connection of
# a client has two ends: "client" is the load tool's, "server" the node's or broker's, which alone
# knows how long it waited for a subscriber to read.  "link" is one between nodes.
LINKS: Final = pa.schema(
    [
        pa.field("t_ns", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # "client", "server" or "link"
        pa.field("node", pa.string(), nullable=False),
        pa.field("peer", pa.string(), nullable=False),  # the client's name or the neighbor's id
        pa.field(
            "messages_out", pa.int64()
        ),  # towards the node for "client", to the peer for "link"
        pa.field("messages_in", pa.int64()),
        pa.field("bytes_out", pa.int64()),
        pa.field("bytes_in", pa.int64()),
        pa.field("retransmits", pa.int64()),
        pa.field("rwnd_limited_us", pa.int64()),
        pa.field("sndbuf_limited_us", pa.int64()),
        pa.field("busy_us", pa.int64()),
    ]
)

RESOURCES: Final = pa.schema(
    [
        pa.field("t_ns", pa.int64(), nullable=False),
        pa.field("node", pa.string(), nullable=False),  # "" for the load tool and the machine
        pa.field("process", pa.string(), nullable=False),  # broker, node, load:WRITER, machine
        pa.field("cpu_ns", pa.int64(), nullable=False),  # used since the process began
        pa.field("rss_bytes", pa.int64(), nullable=False),
        pa.field("throttled_ns", pa.int64()),  # kept waiting by a CPU quota since it began
    ]
)

TABLES: Final[dict[Table, Any]] = {
    "runs": RUNS,
    "publishes": PUBLISHES,
    "deliveries": DELIVERIES,
    "links": LINKS,
    "resources": RESOURCES,
}

FOOTER: Final = "isthmus."
"""What the footer's own keys begin with: ``isthmus.table``, ``.run``, ``.writer``, ``.version``."""


def with_footer(table: Table, run: str, writer: str) -> Any:
    """The table's schema, carrying what every file of it says in its footer."""
    footer = {"table": table, "run": run, "writer": writer, "version": str(SCHEMA_VERSION)}
    return TABLES[table].with_metadata({FOOTER + key: value for key, value in footer.items()})


def file_path(log: Path, table: Table, run: str, writer: str) -> Path:
    """Where the rows that `writer` has for `table` stand."""
    return log / table / f"run={run}" / f"{writer}.parquet"
