"""What a benchmark found about one system: a row of figures, from the tables of the indexes.

All numbers come from the tables that the job of :mod:`isthmus.pipeline.spark.indexes` computes; a
search only says *which* run is the limit and what kept the next faster one from counting.

The true limit of a system is not below what was measured and, as the next smaller interval of the
grid was tried and failed, not above `most_egress` (ILDM §5.3: at most 5 % more).  Comparisons use
both ends.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

__all__ = [
    "Cpu",
    "IndexTables",
    "Result",
    "milliseconds",
    "result_of",
    "rows_of_run",
    "write_csv",
    "write_json",
]

IndexTables = Mapping[str, Sequence[Mapping[str, Any]]]
"""The tables of the indexes by name, each a sequence of rows."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Cores in use on average, by who used them."""

    brokers: float
    nodes: float
    load: float
    machine: float | None
    """All processes of the machine, ours and others'; None where nobody watched."""
    busiest_server: float
    """Broker and node of the server that used most."""
    throttled_share: float | None
    """Of the time, how long the server that waited most was kept waiting by its quota."""


@dataclass(frozen=True, slots=True)
class Result:
    """One system at one interval: the limit of a search, or a run by itself."""

    name: str
    scenario: str
    algorithm: str
    """Empty for bare brokers."""
    brokers: tuple[str, ...]
    """One per server."""
    run: str
    interval_ms: float | None
    next_interval_ms: float | None
    """The next smaller one of the grid, which was not under the limit; None: not searched."""
    window_s: float
    ingress: float
    egress: float
    sp_ratio: float
    limit_ratio: float | None
    expected: int
    lost: int
    loss_rate: float | None
    duplicates: int
    order_violations: int
    latency_expected: int
    latency_lost: int
    """Messages to l-clients, which are not among `expected` and `lost`."""
    latency_count: int
    latency_mean_ms: float | None
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    latency_max_ms: float | None
    cpu: Cpu | None
    limited_by: str
    """What kept the next smaller interval from being under the limit; of a single run, itself."""
    is_lower_bound: bool
    """The limit was not the brokers', so they may be able to do more."""
    measurements: int = 1
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """How much larger the true limit can be, as a share (ILDM §5.3: at most 0.05)."""
        if self.interval_ms is None or self.next_interval_ms is None:
            return None
        return self.interval_ms / self.next_interval_ms - 1

    @property
    def most_egress(self) -> float:
        """The true limit is below this."""
        if self.is_lower_bound or self.error is None:
            return math.inf
        return self.egress * (1 + self.error)


def rows_of_run(tables: IndexTables, table: str, run: str) -> list[Mapping[str, Any]]:
    """The rows of `table` that are about `run`."""
    return [row for row in tables[table] if row["run"] == run]


def result_of(
    tables: IndexTables,
    run: str,
    *,
    name: str | None = None,
    next_interval_ms: float | None = None,
    limited_by: str | None = None,
    is_lower_bound: bool = False,
    measurements: int = 1,
    notes: Iterable[str] = (),
) -> Result:
    """The figures of `run`, with what a search knows beside them."""
    (row,) = rows_of_run(tables, "summary", run)
    timed = [
        each
        for each in rows_of_run(tables, "losses", run)
        if each["scope"] == "subscriber" and each["name"].startswith("l-")
    ]
    labels = dict(row["labels"])
    interval_ns = row["interval_ns"]
    figures = {field.name: row[field.name] for field in fields(Result) if field.name in row}
    for which in ("mean", "p50", "p99", "max"):
        latency_us = row[f"latency_{which}_us"]
        figures[f"latency_{which}_ms"] = None if latency_us is None else latency_us / 1e3
    figures |= {
        "limited_by": row["limited_by"] if limited_by is None else limited_by,
        "notes": (*row["notes"], *notes),
    }
    return Result(
        name=run if name is None else name,
        algorithm=labels.get("algorithm", ""),
        brokers=tuple(filter(None, labels.get("broker", "").split(","))),
        interval_ms=None if interval_ns is None else interval_ns / 1e6,
        next_interval_ms=next_interval_ms,
        latency_expected=sum(each["expected"] for each in timed),
        latency_lost=sum(each["lost"] for each in timed),
        cpu=_cpu(rows_of_run(tables, "usage", run)),
        is_lower_bound=is_lower_bound,
        measurements=measurements,
        **figures,
    )


def milliseconds(value: float | None) -> str | None:
    """A latency to be shown."""
    if value is None:
        return None
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.3g} ms"


def write_csv(results: Sequence[Result], path: Path) -> None:
    """One line per result, the parts of `cpu` as columns of their own."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _columns())
        writer.writeheader()
        writer.writerows(_flat(result) for result in results)


def write_json(results: Sequence[Result], path: Path, **beside: Any) -> None:
    """All of it, with whatever else the caller wants `beside`."""
    text = json.dumps({**beside, "results": [asdict(result) for result in results]}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def _columns() -> list[str]:
    own = [field.name for field in fields(Result) if field.name != "cpu"]
    return own + [f"cpu_{field.name}" for field in fields(Cpu)]


def _flat(result: Result) -> dict[str, Any]:
    row = asdict(result)
    cpu = row.pop("cpu")
    row["brokers"] = " ".join(result.brokers)
    row["notes"] = "; ".join(result.notes)
    return row | {f"cpu_{key}": value for key, value in (cpu or {}).items()}


def _cpu(usage: Sequence[Mapping[str, Any]]) -> Cpu | None:
    """Summed by kind of process; see `process` in the log's table `resources`."""
    if not usage:
        return None

    def cores(rows: Iterable[Mapping[str, Any]]) -> float:
        return sum(row["cpu_cores"] or 0.0 for row in rows)

    servers: dict[str, list[Mapping[str, Any]]] = {}
    for row in usage:
        if row["node"]:
            servers.setdefault(row["node"], []).append(row)
    machine = [row for row in usage if row["process"] == "machine"]
    throttled = [r["throttled_share"] for r in usage if r["throttled_share"] is not None]
    return Cpu(
        brokers=cores(row for row in usage if row["process"] == "broker"),
        nodes=cores(row for row in usage if row["process"] == "node"),
        load=cores(row for row in usage if row["process"].startswith("load:")),
        machine=cores(machine) if machine else None,
        busiest_server=max(map(cores, servers.values()), default=0.0),
        throttled_share=max(throttled, default=None),
    )
