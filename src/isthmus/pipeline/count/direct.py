"""The same indexes without Spark, in this process: for one run, between two measurements.

After every measurement the load tool must know whether it was under the limit; a Spark session
would take longer to start than the measurement.  What Spark's tasks do is done here one file after
the other, so the result is the same number for number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from isthmus.pipeline.count.counting import NEED_PUBLISHED, count_file, survey
from isthmus.pipeline.count.partials import Partial
from isthmus.pipeline.count.published import Numbers
from isthmus.pipeline.count.tables import index_tables, summary_row
from isthmus.pipeline.log.reading import Run, read_run
from isthmus.pipeline.log.schema import Table

__all__ = ["RunSummary", "run_tables", "summarize"]

_IN_ORDER: Final[tuple[Table, ...]] = (
    "publishes",
    "links",
    "resources",
    "tallies",
    *NEED_PUBLISHED,
)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run's row in the table `summary`; `docs/reference/indexes.md` has the meanings."""

    run: str
    scenario: str
    labels: dict[str, str]
    interval_ns: int | None
    window_s: float
    ingress: float
    egress: float
    sp_ratio: float
    limit_ratio: float | None
    under_limit: bool
    expected: int
    delivered: int
    lost: int
    loss_rate: float | None
    duplicates: int
    order_violations: int
    latency_count: int
    latency_mean_us: float | None
    latency_p50_us: int | None
    latency_p99_us: int | None
    latency_p999_us: int | None
    latency_max_us: int | None
    limited_by: str
    notes: tuple[str, ...]


def summarize(log: Path, run: str | Run) -> RunSummary:
    """The summary of `run`; raises `LogError` where the log cannot be trusted.

    One that is given as a `Run` need not have its row in the log yet.
    """
    read = read_run(log, run) if isinstance(run, str) else run
    row = summary_row(read, _count(log, read, ("publishes", "deliveries")))
    return RunSummary(**{**row, "labels": dict(row["labels"]), "notes": tuple(row["notes"])})


def run_tables(log: Path, run: str) -> dict[str, list[dict[str, Any]]]:
    """Every table of indexes for `run`, as rows."""
    read = read_run(log, run)
    return index_tables(read, _count(log, read, _IN_ORDER))


def _count(log: Path, run: Run, tables: Sequence[Table]) -> list[Partial]:
    """What the files of `tables` add up from; those that need `publishes` come after it."""
    partials = list(survey(run))
    published: dict[int, Numbers] = {}
    for table in tables:
        for file in run.files_of(table):
            counted = list(count_file(log, run, file, published))
            published |= {
                partial.number: Numbers.from_bytes(partial.data)
                for partial in counted
                if partial.what == "published"
            }
            partials += counted
    return partials
