"""Small logs with everything in them that a real one can have, from a seed.

Losses, duplicates and reordering; several writers, each with a clock of its own; latencies that
are negative, or above the range that the kernel counts densely; messages sent at the very edges of
the window; message numbers with holes; rows that must be rejected, of every reason; samples
with gaps and restarts.  Nothing here knows how the indexes are computed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.pipeline.log.schema import SCHEMA_VERSION
from isthmus.pipeline.log.writing import write_table

__all__ = ["GeneratedRun", "Shape", "generate", "write_log"]

Rows = list[dict[str, Any]]
S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """How large and how bad a run is; the chances are per row."""

    topics: int = 3
    writers: int = 3
    publishers: int = 5
    subscribers: int = 6
    latency_subscribers: int = 2
    messages: int = 30
    lost: float = 0.05
    duplicated: float = 0.05
    displaced: float = 0.1
    rejected: float = 0.03
    renumbered: float = 0.2
    """Chance of a publisher whose numbers are not 0, 1, 2, …"""
    sparse_numbers: bool = False
    """Whether client numbers have holes."""


@dataclass(slots=True)
class GeneratedRun:
    """A run's tables as plain rows: the one of `runs`, and per table and writer the others."""

    row: dict[str, Any]
    tables: dict[str, dict[str, Rows]] = field(
        default_factory=lambda: {
            table: {} for table in ("publishes", "deliveries", "hops", "links", "resources")
        }
    )

    @property
    def run(self) -> str:
        return str(self.row["run"])


def generate(seed: int, run: str, shape: Shape | None = None) -> GeneratedRun:
    """The run called `run` that belongs to `seed` and `shape`."""
    return _Generator(random.Random(f"{seed}/{run}"), run, shape or Shape()).generate()


def write_log(log: Path, runs: Sequence[GeneratedRun]) -> None:
    """Write all files of `runs`, and each run's own row last."""
    for generated in runs:
        files = [
            {"table": table, "writer": writer, "rows": len(rows)}
            for table, by_writer in generated.tables.items()
            for writer, rows in by_writer.items()
        ]
        generated.row["files"] = files
        for table, by_writer in generated.tables.items():
            for writer, rows in by_writer.items():
                write_table(log, table, generated.run, writer, rows)  # type: ignore[arg-type]
        write_table(log, "runs", generated.run, "c0", [generated.row])


class _Generator:
    def __init__(self, chance: random.Random, run: str, shape: Shape) -> None:
        self.chance = chance
        self.shape = shape
        self.writers = [f"w{index}" for index in range(shape.writers)] + ["l0"]
        self.offset_ns = {
            writer: chance.choice([0, chance.randint(-5 * S, 5 * S), chance.randint(-999, 999)])
            for writer in [*self.writers, "c0"]
        }
        self.started_ns = 1_700_000_000 * S + chance.randint(0, S)
        self.window_ns = (
            self.started_ns + chance.randint(0, 3 * S),
            self.started_ns + chance.randint(4 * S, 9 * S),
        )
        self.generated = GeneratedRun(self._row(run))
        self.clients: Rows = self.generated.row["clients"]
        self.sent: dict[int, Rows] = {}

    def generate(self) -> GeneratedRun:
        tables = self.generated.tables
        for writer in self.writers:
            tables["publishes"][writer] = self._publishes(writer)
        for writer in self.writers:
            tables["deliveries"][writer] = self._deliveries(writer)
        for table in ("publishes", "deliveries"):
            for writer in self.writers:
                if not tables[table][writer] and self.chance.random() < 0.5:
                    del tables[table][writer]  # an idle writer may leave no file
        if self.chance.random() < 0.8:  # else nobody recorded hops
            for writer in self.writers[:2]:
                tables["hops"][writer] = []
            for node in ("n1", "n2", "n3", "n4"):
                tables["hops"][self.chance.choice(self.writers[:2])] += self._hops(node)
        tables["resources"]["c0"] = self._resources("c0")
        for writer in ["c0", *self.writers]:
            tables["links"][writer] = self._links(writer)
        return self.generated

    def _row(self, run: str) -> dict[str, Any]:
        chance, start, end = self.chance, self.window_ns[0], self.window_ns[1]
        topics = [f"topic{index + 1}" for index in range(self.shape.topics + 1)]
        return {
            "run": run,
            "schema_version": SCHEMA_VERSION,
            "scenario": "generated",
            "scenario_json": "{}",
            "labels": chance.choice([[], [("broker", "mosquitto"), ("algorithm", "sf")]]),
            "started_ns": self.started_ns,
            "ended_ns": end + chance.randint(0, 2 * S),
            "window_start_ns": start,
            "window_end_ns": end,
            "interval_ns": chance.choice([None, 10_000_000]),
            "topics": topics,
            "clients": self._clients(),
            "clocks": [
                {"writer": writer, "machine": f"m-{writer}", "offset_ns": offset, "error_ns": 5}
                for writer, offset in self.offset_ns.items()
            ],
            "strays": [
                {"writer": chance.choice(self.writers), "reason": reason, "rows": 1 + n}
                for n, reason in enumerate(["not ours", "another run", "not ours"])
                if chance.random() < 0.3
            ],
            "limited_by": chance.choice(["", "brokers"]),
            "notes": chance.choice([[], ["a note", "another"]]),
        }

    def _clients(self) -> Rows:
        shape, chance = self.shape, self.chance
        kinds = [("t", "publisher")] * shape.publishers + [("t", "subscriber")] * shape.subscribers
        if shape.latency_subscribers:
            kinds += [("l", "publisher")] + [("l", "subscriber")] * shape.latency_subscribers
        numbers: Sequence[int] = range(len(kinds))
        if shape.sparse_numbers:
            numbers = chance.sample(range(2**32), len(kinds))
        return [
            {
                "client": number,
                "name": f"{kind}-{role[:3]}-{number}",
                "kind": kind,
                "role": role,
                "topic": shape.topics if kind == "l" else chance.randrange(shape.topics),
                "node": f"n{chance.randint(1, 3)}",
                "writer": "l0" if kind == "l" else chance.choice(self.writers[:-1]),
            }
            for number, (kind, role) in zip(numbers, kinds, strict=True)
        ]

    def _of(self, role: str, writer: str | None = None) -> Rows:
        return [
            client
            for client in self.clients
            if client["role"] == role and writer in (None, client["writer"])
        ]

    def _time_ns(self) -> int:
        """A time of the run on the coordinator's clock; some at the edges of window and seconds."""
        if self.chance.random() < 0.15:
            edge = self.chance.choice([*self.window_ns, self.started_ns, self.started_ns + 5 * S])
            return edge + self.chance.choice([-1, 0, 1])
        return self.started_ns + self.chance.randint(-S // 2, 10 * S)

    def _publishes(self, writer: str) -> Rows:
        rows: Rows = []
        for client in self._of("publisher", writer):
            own = self._messages(client)
            self.sent[client["client"]] = own
            rows += own
        self._shuffle_between(rows, "publisher")
        return self._with_rejected(rows, self._bad_publish)

    def _messages(self, client: dict[str, Any]) -> Rows:
        chance = self.chance
        count = chance.randint(0, self.shape.messages)
        numbers = list(range(count))
        if chance.random() < self.shape.renumbered:
            numbers = sorted(chance.sample(range(2 * count + 3), count))
            if chance.random() < 0.5:
                chance.shuffle(numbers)
            if count and chance.random() < 0.5:
                numbers[-1] = 2**32 - 1
        times_ns = sorted(self._time_ns() - self.offset_ns[client["writer"]] for _ in numbers)
        return [
            {
                "publisher": client["client"],
                "message": number,
                "topic": client["topic"],
                "t_send_ns": time_ns,
            }
            for number, time_ns in zip(numbers, times_ns, strict=True)
        ]

    def _deliveries(self, writer: str) -> Rows:
        rows: Rows = []
        for client in self._of("subscriber", writer):
            own: Rows = []
            for publisher, sent in self.sent.items():
                if sent and sent[0]["topic"] == client["topic"]:
                    own += [
                        self._delivery(client, publisher, message)
                        for message in sent
                        for _ in range(self._copies())
                    ]
            own.sort(key=lambda row: row["t_receive_ns"])
            self._displace(own)
            rows += own
        self._shuffle_between(rows, "subscriber")
        return self._with_rejected(rows, self._bad_delivery)

    def _copies(self) -> int:
        if self.chance.random() < self.shape.lost:
            return 0
        return 1 + (self.chance.random() < self.shape.duplicated)

    def _delivery(
        self, client: dict[str, Any], publisher: int, message: dict[str, Any]
    ) -> dict[str, Any]:
        writers = {one["client"]: one["writer"] for one in self.clients}
        sent_ns = message["t_send_ns"] + self.offset_ns[writers[publisher]]
        return {
            "subscriber": client["client"],
            "publisher": publisher,
            "message": message["message"],
            "topic": message["topic"],
            "t_send_ns": message["t_send_ns"],
            "t_receive_ns": sent_ns + self._latency_ns() - self.offset_ns[client["writer"]],
        }

    def _latency_ns(self) -> int:
        chance = self.chance
        return chance.choice(
            [
                int(chance.lognormvariate(13, 0.5)),
                chance.randint(0, 3000),
                chance.choice([0, 999, 1000, 262_143_999, 262_144_000, 524_287_999, 524_288_000]),
                chance.randint(-2 * S, 3 * S) if chance.random() < 0.3 else 500_000,
            ]
        )

    def _displace(self, rows: Rows) -> None:
        """Move some rows to another place in the order of arrival."""
        for index in range(len(rows)):
            if self.chance.random() < self.shape.displaced:
                rows.insert(self.chance.randrange(len(rows)), rows.pop(index))

    def _shuffle_between(self, rows: Rows, key: str) -> None:
        """Mix the rows of different clients; those of each stay in their order."""
        queues: dict[int, Rows] = {}
        for row in rows:
            queues.setdefault(row[key], []).append(row)
        order = [row[key] for row in rows]
        self.chance.shuffle(order)
        rows[:] = [queues[number].pop(0) for number in order]

    def _with_rejected(self, rows: Rows, bad: Any) -> Rows:
        mixed: Rows = []
        for row in rows:
            mixed.append(row)
            if self.chance.random() < self.shape.rejected:
                mixed.append(bad(dict(row)))
        return mixed

    def _stranger(self) -> int:
        taken = {client["client"] for client in self.clients}
        while True:
            number = self.chance.choice([len(taken), self.chance.randrange(2**32), 2**32 - 1])
            if number not in taken:
                return number

    def _bad_publish(self, row: dict[str, Any]) -> dict[str, Any]:
        match self.chance.randrange(4):
            case 0:
                row["publisher"] = self._stranger()
            case 1:
                others = [client["client"] for client in self._of("subscriber")]
                row["publisher"] = self.chance.choice(others or [self._stranger()])
            case 2:
                row["topic"] = (row["topic"] + self.chance.randint(1, 9)) % 2**32
            case _:
                row["t_send_ns"] += self.chance.choice([0, 7])  # the same message once more
        return row

    def _bad_delivery(self, row: dict[str, Any]) -> dict[str, Any]:
        match self.chance.randrange(6):
            case 0:
                row["subscriber"] = self._stranger()
            case 1:
                row["publisher"] = self._stranger()
            case 2:
                row["topic"] = (row["topic"] + self.chance.randint(1, 9)) % 2**32
            case 3:
                row["message"] = self.chance.choice(
                    [2**32 - 1, 2**32 - 2, row["message"] // 2 + 1000]
                )
            case 4:
                row["subscriber"] = self.chance.choice(self._of("publisher"))["client"]
            case _:
                row["publisher"] = self.chance.choice(self.clients)["client"]
        return row

    def _hops(self, target: str) -> Rows:
        """What was sent to `target`, some of it twice."""
        chance = self.chance
        sent = [message for own in self.sent.values() for message in own]
        chosen = chance.choices(sent, k=chance.randint(0, 2 * len(sent))) if sent else []
        return [self._hop(target, dict(message)) for message in chosen]

    def _hop(self, target: str, message: dict[str, Any]) -> dict[str, Any]:
        chance = self.chance
        if chance.random() < self.shape.rejected:
            match chance.randrange(4):
                case 0:
                    message = dict.fromkeys(message)  # no payload of ours
                case 1:
                    message["publisher"] = self._stranger()
                case 2:
                    message["topic"] += 1
                case _:
                    message["message"] = chance.choice([2**32 - 2, message["message"] // 2 + 1000])
        return {
            "t_ns": self.started_ns + chance.randint(0, 10 * S),
            "source": chance.choice(["n1", "n2", "n3", "n5"]),
            "target": target,
            "origin": "n1",
            "number": chance.choice(["", "18bcfe5a.1f"]),
            "label": chance.choice([b"", b"\x00\xff"]),
            "qos": chance.randint(0, 2),
            "hops": chance.randint(1, 5),
            "bytes": chance.choice([60, 2**32 - 1]),
            **message,
        }

    def _resources(self, writer: str) -> Rows:
        rows: Rows = []
        for node, process in (("n1", "broker"), ("n1", "node"), ("", "machine"), ("n2", "broker")):
            counters = {"cpu_ns": 0, "throttled_ns": 0}
            for time_ns in self._sample_times(writer):
                self._advance(counters, 2 * S)
                rows.append(
                    {
                        "t_ns": time_ns,
                        "node": node,
                        "process": process,
                        "cpu_ns": counters["cpu_ns"],
                        "rss_bytes": self.chance.randint(1, 2**40),
                        "throttled_ns": self._maybe(counters["throttled_ns"]),
                    }
                )
        self.chance.shuffle(rows)
        return rows

    def _links(self, writer: str) -> Rows:
        rows: Rows = []
        names = [client["name"] for client in self.clients if client["writer"] == writer]
        kind, peers = ("link", ["n1", "n2"]) if writer == "c0" else ("client", names[:3])
        counted = ["messages_out", "messages_in", "bytes_out", "bytes_in"]
        if kind == "link":
            parts = ("data_bytes", "control_packets", "control_bytes")
            counted += [f"{part}_{way}" for part in parts for way in ("out", "in")]
        for peer in peers:
            counters = dict.fromkeys(counted, 0)
            for time_ns in self._sample_times(writer):
                self._advance(counters, 1000)
                row = {"t_ns": time_ns, "kind": kind, "node": "n3", "peer": peer}
                rows.append(row | {name: self._maybe(counters[name]) for name in counted})
        return rows

    def _sample_times(self, writer: str) -> list[int]:
        count = self.chance.choice([0, 1, 2, 12])
        return sorted(self._time_ns() - self.offset_ns[writer] for _ in range(count))

    def _advance(self, counters: dict[str, int], most: int) -> None:
        for name in counters:
            if self.chance.random() < 0.05:
                counters[name] = 0  # began anew
            counters[name] += self.chance.randint(0, most)

    def _maybe(self, value: int) -> int | None:
        return None if self.chance.random() < 0.1 else value
