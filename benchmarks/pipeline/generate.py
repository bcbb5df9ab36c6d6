"""A big log in the one schema, seeded: the same arguments give the same rows.

Ten topics with ten publishers and ten subscribers each (sp-ratio 10), played by twenty writers for
80 s, and one pair of l-clients.  Latency is lognormal around half a millisecond with a tail; the
deliveries of a pair come in the order of sending but for some that overtake; some get lost, some
come twice.  One writer is in memory at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from isthmus.pipeline.log.schema import SCHEMA_VERSION, Table, file_path, with_footer
from isthmus.pipeline.log.writing import parquet_options, write_table

__all__ = ["RUN", "Shape", "generate"]

RUN: Final = "generated"
TOPICS: Final = 10
PER_TOPIC: Final = 10
"""Publishers, and subscribers, of each topic."""
WRITERS: Final = 20
DURATION_NS: Final = 80_000_000_000
TRIM_NS: Final = 10_000_000_000
STARTED_NS: Final = 1_750_000_000_000_000_000
ROW_GROUP: Final = 1_000_000

LOST: Final = 1e-4
TWICE: Final = 2e-5
OVERTAKES: Final = 1e-5

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """How big, and from which seed."""

    scale: float = 1.0
    seed: int = 20190523

    @property
    def per_publisher(self) -> int:
        """Messages that each publisher sends; 200,000 at full scale, 20 million in all."""
        return max(100, round(200_000 * self.scale))


def generate(log: Path, shape: Shape, say: Callable[[str], None]) -> None:
    """Write the log, unless it is there already."""
    marker = log / "shape.json"
    if marker.exists() and json.loads(marker.read_text()) == asdict(shape):
        say(f"using {log}")
        return
    shutil.rmtree(log, ignore_errors=True)
    clients = _clients()
    files: list[dict[str, Any]] = []
    for number in range(WRITERS):
        files += _write_throughput(log, shape, number)
        say(f"writer {number + 1} of {WRITERS}")
    files += _write_latency(log, shape, clients)
    write_table(log, "runs", RUN, "c0", [_run_row(shape, clients, files)])
    marker.write_text(json.dumps(asdict(shape)))


def _clients() -> list[dict[str, Any]]:
    """Publisher p of topic p // 10 is client p, subscriber s is client 100 + s."""
    count = TOPICS * PER_TOPIC
    clients: list[dict[str, Any]] = []
    for role, first in (("publisher", 0), ("subscriber", count)):
        for number in range(count):
            clients.append(
                {
                    "client": first + number,
                    "name": f"t-{role[:3]}-{first + number}",
                    "kind": "t",
                    "role": role,
                    "topic": number // PER_TOPIC,
                    "node": f"n{number % 5 + 1}",
                    "writer": f"w{number % WRITERS}",
                }
            )
    for role, client in (("publisher", 2 * count), ("subscriber", 2 * count + 1)):
        latency = {"kind": "l", "role": role, "topic": TOPICS, "node": "n1", "writer": "l0"}
        clients.append({"client": client, "name": f"l-{role[:3]}-{client}", **latency})
    return clients


def _sent(shape: Shape, publisher: int) -> Ints:
    """When `publisher` sent its messages; every writer that needs it makes it anew."""
    random = np.random.default_rng([shape.seed, 1, publisher])
    interval_ns = DURATION_NS // shape.per_publisher
    phase_ns = int(random.integers(interval_ns))
    late_ns = random.integers(0, max(1, interval_ns // 8), shape.per_publisher)
    return STARTED_NS + phase_ns + np.arange(shape.per_publisher) * interval_ns + late_ns


def _write_throughput(log: Path, shape: Shape, number: int) -> list[dict[str, Any]]:
    count = TOPICS * PER_TOPIC
    mine = range(number, count, WRITERS)
    publishes = _sorted("t_send_ns", [_published(p, p // PER_TOPIC, _sent(shape, p)) for p in mine])
    deliveries = _sorted(
        "t_receive_ns",
        [
            _delivered(shape, count + s, publisher, s // PER_TOPIC, _sent(shape, publisher))
            for s in mine
            for publisher in range(s // PER_TOPIC * PER_TOPIC, (s // PER_TOPIC + 1) * PER_TOPIC)
        ],
    )
    writer = f"w{number}"
    return [
        _write(log, "publishes", writer, publishes),
        _write(log, "deliveries", writer, deliveries),
    ]


def _write_latency(log: Path, shape: Shape, clients: list[dict[str, Any]]) -> list[dict[str, Any]]:
    publisher, subscriber = (c["client"] for c in clients if c["kind"] == "l")
    sent = STARTED_NS + np.arange(80) * 1_000_000_000
    publishes = _published(publisher, TOPICS, sent)
    deliveries = _sorted("t_receive_ns", [_delivered(shape, subscriber, publisher, TOPICS, sent)])
    return [
        _write(log, "publishes", "l0", publishes),
        _write(log, "deliveries", "l0", deliveries),
    ]


def _published(publisher: int, topic: int, sent: Ints) -> dict[str, Any]:
    return {
        "publisher": np.full(len(sent), publisher, np.uint32),
        "message": np.arange(len(sent), dtype=np.uint32),
        "topic": np.full(len(sent), topic, np.uint32),
        "t_send_ns": sent,
    }


def _delivered(
    shape: Shape, subscriber: int, publisher: int, topic: int, sent: Ints
) -> dict[str, Any]:
    """What `subscriber` got of `publisher`: in order, but for losses, doubles and overtaking."""
    random = np.random.default_rng([shape.seed, 2, subscriber, publisher])
    latency_ns = (random.lognormal(np.log(500_000), 0.6, len(sent))).astype(np.int64)
    received = np.maximum.accumulate(sent + latency_ns)
    overtaken = random.random(len(sent)) < OVERTAKES
    received[overtaken] += 3 * DURATION_NS // shape.per_publisher
    kept = np.flatnonzero(random.random(len(sent)) >= LOST)
    twice = kept[random.random(len(kept)) < TWICE]
    message = np.concatenate([kept, twice])
    received = np.concatenate([received[kept], received[twice] + 1_000_000])
    return {
        "subscriber": np.full(len(message), subscriber, np.uint32),
        "publisher": np.full(len(message), publisher, np.uint32),
        "message": message.astype(np.uint32),
        "topic": np.full(len(message), topic, np.uint32),
        "t_send_ns": sent[message],
        "t_receive_ns": received,
    }


def _sorted(by: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns[by], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def _write(log: Path, table: Table, writer: str, columns: dict[str, Any]) -> dict[str, Any]:
    path = file_path(log, table, RUN, writer)
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = with_footer(table, RUN, writer)
    rows = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    with pq.ParquetWriter(path, schema, **parquet_options(table)) as file:
        file.write_table(rows, row_group_size=ROW_GROUP)
    return {"table": table, "writer": writer, "rows": rows.num_rows}


def _run_row(
    shape: Shape, clients: list[dict[str, Any]], files: list[dict[str, Any]]
) -> dict[str, Any]:
    writers = [*(f"w{number}" for number in range(WRITERS)), "l0", "c0"]
    return {
        "run": RUN,
        "schema_version": SCHEMA_VERSION,
        "scenario": "generated",
        "scenario_json": json.dumps(asdict(shape)),
        "labels": [],
        "started_ns": STARTED_NS,
        "ended_ns": STARTED_NS + DURATION_NS + 10_000_000_000,
        "window_start_ns": STARTED_NS + TRIM_NS,
        "window_end_ns": STARTED_NS + DURATION_NS - TRIM_NS,
        "interval_ns": DURATION_NS // shape.per_publisher,
        "topics": [f"topic{number + 1}" for number in range(TOPICS + 1)],
        "clients": clients,
        "clocks": [
            {"writer": writer, "machine": "one", "offset_ns": 0, "error_ns": 0}
            for writer in writers
        ],
        "files": files,
        "strays": [],
        "limited_by": "",
        "notes": [],
    }
