"""One engine over one log, in a process of its own: ``python -m benchmarks.pipeline.child``.

Writes JSON: seconds until the engine was ready, seconds of work, and the tables in one form, so
that those of two engines can be compared.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["ENGINES", "from_indexes", "main", "run_duckdb"]

ENGINES: Final = ("spark", "duckdb-counted", "duckdb-exact")
THREADS: Final = 2
MEMORY: Final = "4GB"


def main(engine: str, log: Path, out: Path) -> None:
    """Run `engine` over `log` and write what it found and how long it took to `out`."""
    began = time.perf_counter()
    found = _run_spark(log, began) if engine == "spark" else run_duckdb(engine, log, began)
    out.write_text(json.dumps(found))


def _run_spark(log: Path, began: float) -> dict[str, Any]:
    from isthmus.pipeline.spark.indexes import compute
    from isthmus.pipeline.spark.session import open_session

    with open_session(f"local[{THREADS}]", quick=True) as spark:
        spark.range(1).count()  # a session is ready when it has answered once
        ready = time.perf_counter()
        tables = {name: table.collect() for name, table in compute(spark, log).items()}
        done = time.perf_counter()
    return {"startup_s": ready - began, "work_s": done - ready, "tables": from_indexes(tables)}


def from_indexes(tables: Mapping[str, Iterable[Any]]) -> dict[str, list[list[Any]]]:
    """Our tables of indexes in the form that is compared."""
    latency = ("name", "count", "p50_us", "p99_us", "p999_us", "max_us")
    losses = ("expected", "delivered", "duplicates", "order_violations")
    return {
        "ingress": _sorted((row["second"], row["ingress"]) for row in tables["per_second"]),
        "egress": _sorted((row["second"], row["egress"]) for row in tables["per_second"]),
        "latency": _sorted(
            [row[column] for column in latency]
            for row in tables["latency"]
            if row["scope"] == "topic"
        ),
        "losses": _sorted(
            (row["name"].split("@")[0], *(row[column] for column in losses))
            for row in tables["losses"]
            if row["scope"] == "subscriber" and row["name"].startswith("t-")
        ),
    }


def run_duckdb(engine: str, log: Path, began: float) -> dict[str, Any]:
    """What :func:`main` writes for DuckDB."""
    from benchmarks.pipeline import duck

    with tempfile.TemporaryDirectory(prefix="isthmus-duckdb-") as temporary:
        connection = duck.open_log(log, Path(temporary), THREADS, MEMORY)
        ready = time.perf_counter()
        tables = (duck.counted if engine == "duckdb-counted" else duck.exact)(connection)
        done = time.perf_counter()
        names = dict(connection.execute("SELECT client, name FROM client").fetchall())
    found: dict[str, Any] = {
        "ingress": _sorted(tables["ingress"]),
        "egress": _sorted(tables["egress"]),
        "latency": _sorted((f"topic{topic + 1}", *rest) for topic, *rest in tables["latency"]),
    }
    if "losses" in tables:
        found["losses"] = _sorted(
            (names[subscriber], *rest) for _, subscriber, *rest in tables["losses"]
        )
    return {"startup_s": ready - began, "work_s": done - ready, "tables": found}


def _sorted(rows: Iterable[Iterable[Any]]) -> list[list[Any]]:
    """Rows in order, without those that count nothing, which not every engine has."""
    return sorted(row for row in map(list, rows) if row[1] != 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
