"""One engine over one log, in a process of its own: ``python -m benchmarks.pipeline.child``.

Writes JSON: seconds until the engine was ready, seconds of work, and the tables in one form, so
that those of two engines can be compared.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

__all__ = ["ENGINES", "main"]

ENGINES: Final = ("spark", "duckdb-counted", "duckdb-exact")
THREADS: Final = 2
MEMORY: Final = "4GB"


def main(engine: str, log: Path, out: Path) -> None:
    """Run `engine` over `log` and write what it found and how long it took to `out`."""
    began = time.perf_counter()
    found = _spark(log, began) if engine == "spark" else _duckdb(engine, log, began)
    out.write_text(json.dumps(found))


def _spark(log: Path, began: float) -> dict[str, Any]:
    from isthmus.pipeline.indexes import compute
    from isthmus.pipeline.session import open_session

    with open_session("local[2]") as spark:
        spark.range(1).count()  # a session is ready when it has answered once
        ready = time.perf_counter()
        tables = {name: table.collect() for name, table in compute(spark, log).items()}
        done = time.perf_counter()
    return {
        "startup_s": ready - began,
        "work_s": done - ready,
        "tables": {
            "ingress": _sorted((row.second, row.ingress) for row in tables["per_second"]),
            "egress": _sorted((row.second, row.egress) for row in tables["per_second"]),
            "latency": _sorted(
                (row.name, row["count"], row.p50_us, row.p99_us, row.p999_us, int(row.max_us))
                for row in tables["latency"]
                if row.scope == "topic"
            ),
            "losses": _sorted(
                (
                    row.name.split("@")[0],
                    row.expected,
                    row.delivered,
                    row.duplicates,
                    row.order_violations,
                )
                for row in tables["losses"]
                if row.scope == "subscriber" and row.name.startswith("t-")
            ),
        },
    }


def _duckdb(engine: str, log: Path, began: float) -> dict[str, Any]:
    from benchmarks.pipeline import duck

    with tempfile.TemporaryDirectory(prefix="isthmus-duckdb-") as temporary:
        connection = duck.open_log(log, Path(temporary), THREADS, MEMORY)
        ready = time.perf_counter()
        tables = (duck.counted if engine == "duckdb-counted" else duck.exact)(connection)
        done = time.perf_counter()
        names = dict(connection.execute("SELECT client, name FROM client").fetchall())
    found: dict[str, Any] = {
        "ingress": _with_count(tables["ingress"]),
        "egress": _with_count(tables["egress"]),
        "latency": _sorted((f"topic{topic + 1}", *rest) for topic, *rest in tables["latency"]),
    }
    if "losses" in tables:
        found["losses"] = _sorted(
            (names[subscriber], *rest) for _, subscriber, *rest in tables["losses"]
        )
    return {"startup_s": ready - began, "work_s": done - ready, "tables": found}


def _with_count(rows: Any) -> list[list[Any]]:
    return _sorted(row for row in rows if row[1])


def _sorted(rows: Any) -> list[list[Any]]:
    return sorted([list(row) for row in rows if row[-1] is not None and row[1] != 0])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
