"""The one log schema: what every run writes and the jobs read.

A log is a folder; its tables are Parquet, partitioned by run::

    LOG/runs/run=RUN/WRITER.parquet          one row: what was run, by whom, with which clocks
    LOG/publishes/run=RUN/WRITER.parquet     one row per message that a client sent
    LOG/deliveries/run=RUN/WRITER.parquet    one row per message that a client received
    LOG/hops/run=RUN/WRITER.parquet          one row per message that a node sent on a link
    LOG/links/run=RUN/WRITER.parquet         counters of connections, once a second
    LOG/resources/run=RUN/WRITER.parquet     CPU and memory of processes, once a second
    LOG/tallies/run=RUN/WRITER.parquet       what a bulk simulation counted, by equal values

A *writer* is one process that records; a simulator is one for all its nodes.  Invariants:

* A run has one row in `runs`, written last: a run without it did not end and is refused.  Its
  `files` lists every other file with its number of rows, so a missing or shortened file is found.
* Every file says in its footer which table, run, writer and schema version it is; a file in the
  wrong place is refused by name.
* All that one subscriber received stands in the file of one writer, in the order of arrival; so
  duplicates and order need no shuffle.
* A delivery is complete: the payload brought publisher, message and time of sending along, so
  latency needs no join.  Messages are numbered from 0 per publisher, in the order of sending.
* So is a hop, if the payload could be read; and all hops to one node stand in the file of one
  writer, in the order of sending.
* Times are nanoseconds since the epoch on the writer's own clock; `clocks.offset_ns` added to them
  gives the coordinator's clock, which `window_start_ns` and `window_end_ns` are of.
* `client` numbers are unique in a run; `topic` is an index into the run's `topics`.
* A bulk simulation has no clock and no clients: its run lasts from 0 to 1 ns, and its `labels` say
  what was simulated.  The same simulation gives the same bytes.

A change of meaning, of a column or of the tables raises :data:`SCHEMA_VERSION`.  Files of earlier
versions are read as well.  Version 2 has no `tallies`.  Version 1 has topics of 16 bits, no `hops`
either, and `links` without what is new in :data:`LINKS`; a reader sees them as files of the present
version with those columns empty (:func:`columns_in`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

__all__ = [
    "DELIVERIES",
    "FOOTER",
    "HOPS",
    "LINKS",
    "PUBLISHES",
    "RESOURCES",
    "RUNS",
    "SCHEMA_VERSION",
    "TABLES",
    "TALLIES",
    "VERSIONS",
    "Table",
    "columns_in",
    "columns_of",
    "file_path",
    "with_footer",
]

SCHEMA_VERSION: Final = 3
VERSIONS: Final = (1, 2, 3)
"""Those that are read; what is written is :data:`SCHEMA_VERSION`."""

Table = Literal["runs", "publishes", "deliveries", "hops", "links", "resources", "tallies"]


def columns_of(text: str) -> pa.Schema:
    """`name type, …`; a type that ends in `!` is never empty."""
    types = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "labels": pa.map_(pa.string(), pa.string()),
        "int": pa.int64(),
        "int32": pa.int32(),
        "uint32": pa.uint32(),
        "uint16": pa.uint16(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "bytes": pa.binary(),
    }
    pairs = [column.split() for column in text.split(",")]
    return pa.schema(
        [pa.field(name, types[kind.rstrip("!")], not kind.endswith("!")) for name, kind in pairs]
    )


def _structs(name: str, columns: str) -> pa.Field:
    """A column that is a list of structs."""
    return pa.field(name, pa.list_(pa.struct(list(columns_of(columns)))), nullable=False)


RUNS: Final = pa.schema(
    [
        *columns_of(
            "run text!, schema_version int32!, scenario text!, scenario_json text!, "
            "labels labels!, "  # broker, algorithm…
            "started_ns int!, ended_ns int!, window_start_ns int!, window_end_ns int!, "
            "interval_ns int, "  # of every t-client that publishes; null: varied
            "topics texts!"
        ),
        _structs(
            "clients",
            "client uint32!, name text!, "
            "kind text!, "  # "t" (throughput) or "l" (latency)
            "role text!, "  # "publisher" or "subscriber"
            "topic uint32!, node text!, writer text!",
        ),
        _structs("clocks", "writer text!, machine text!, offset_ns int!, error_ns int!"),
        _structs("files", "table text!, writer text!, rows int!"),
        # What a writer received and could not record as a delivery: no payload of ours, or one of
        # another run.
        _structs("strays", "writer text!, reason text!, rows int!"),
        # What bounded the run, see isthmus.bench.watch.bottleneck; "" where nobody watched.
        *columns_of("limited_by text!, notes texts!"),
    ]
)

PUBLISHES: Final = columns_of("publisher uint32!, message uint32!, topic uint32!, t_send_ns int!")

DELIVERIES: Final = columns_of(
    "subscriber uint32!, publisher uint32!, message uint32!, topic uint32!, "
    "t_send_ns int!, "  # the publisher's clock
    "t_receive_ns int!"  # the writer's clock
)

# A hop is a message on one link, when it was sent; whether it arrived is not known there.  What
# only the payload tells is null where the payload is none of ours.
HOPS: Final = columns_of(
    "t_ns int!, "
    "source text!, target text!, "  # the nodes at both ends
    "origin text!, "  # the node where the message entered the fabric
    "number text!, "  # the number that it got there; "" if it has none
    "label bytes!, "  # what the algorithm gave it along
    "qos uint16!, "  # the publisher's
    "hops uint32!, "  # links crossed, this one included
    "bytes uint32!, "  # of its packet
    "publisher uint32, message uint32, topic uint32, "
    "t_send_ns int"  # the publisher's clock
)

# Counters since the connection began; null where the end that writes cannot know.  A connection of
# a client has two ends: "client" is the load tool's, "server" the node's or broker's, which alone
# knows how long it waited for a subscriber to read.  "link" is one between nodes.
LINKS: Final = columns_of(
    "t_ns int!, "
    "kind text!, "  # "client", "server" or "link"
    "node text!, "
    "peer text!, "  # the client's name or the neighbor's id
    "messages_out int, "  # towards the node for "client", to the peer for "link"
    "messages_in int, bytes_out int, bytes_in int, retransmits int, rwnd_limited_us int, "
    "sndbuf_limited_us int, busy_us int, "
    # Of a "link": its bytes are those of messages with their acknowledgments, and of control.
    "data_bytes_out int, data_bytes_in int, control_packets_out int, control_packets_in int, "
    "control_bytes_out int, control_bytes_in int"
)

RESOURCES: Final = columns_of(
    "t_ns int!, "
    "node text!, "  # "" for the load tool and the machine
    "process text!, "  # broker, node, load:WRITER, machine
    "cpu_ns int!, "  # used since the process began
    "rss_bytes int!, "
    "throttled_ns int"  # kept waiting by a CPU quota since it began
)

# Things of which many are equal: so many of them have this value.  Any sum over rows is right,
# whatever the parts were; what a mean needs is there where nobody kept single values.
TALLIES: Final = columns_of(
    "part uint32!, "  # of the work: a portion of topics
    "what text!, "  # what was counted
    "given int, "  # what these things have in common, e.g. how many messages they received
    "value int, "  # of each of them; null where only their sum is known
    "count int!, "  # how many things
    "total int!"  # of their values
)

TABLES: Final[dict[Table, Any]] = {
    "runs": RUNS,
    "publishes": PUBLISHES,
    "deliveries": DELIVERIES,
    "hops": HOPS,
    "links": LINKS,
    "resources": RESOURCES,
    "tallies": TALLIES,
}

_NEW_IN_2: Final = frozenset(
    f"{what}_{way}"
    for what in ("data_bytes", "control_packets", "control_bytes")
    for way in ("out", "in")
)


def columns_in(table: Table, version: int) -> Any:
    """The table's schema in one of :data:`VERSIONS`; `runs` is the same in all but for topics."""
    schema = TABLES[table]
    if version == 1:
        schema = pa.schema([_in_1(field) for field in schema if field.name not in _NEW_IN_2])
    return schema


def _in_1(field: pa.Field) -> pa.Field:
    if field.name == "topic":
        return field.with_type(pa.uint16())
    if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
        inner = pa.struct([_in_1(each) for each in field.type.value_type])
        return field.with_type(pa.list_(inner))
    return field


FOOTER: Final = "isthmus."
"""What the footer's own keys begin with: ``isthmus.table``, ``.run``, ``.writer``, ``.version``."""


def with_footer(table: Table, run: str, writer: str) -> Any:
    """The table's schema, carrying what every file of it says in its footer."""
    footer = {"table": table, "run": run, "writer": writer, "version": str(SCHEMA_VERSION)}
    return TABLES[table].with_metadata({FOOTER + key: value for key, value in footer.items()})


def file_path(log: Path, table: Table, run: str, writer: str) -> Path:
    """Where the rows that `writer` has for `table` stand."""
    return log / table / f"run={run}" / f"{writer}.parquet"
