"""Every value of every index table equals the oracle's, whatever the log looks like."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus.pipeline.count import counting, histogram
from isthmus.pipeline.count.direct import run_tables, summarize
from isthmus.pipeline.count.tables import INDEXES
from isthmus.pipeline.log.reading import list_runs
from support.generated_logs import Shape, generate, write_log
from support.index_oracle import oracle_tables

CHANCES = st.sampled_from([0.0, 0.05, 0.4])

SHAPES = st.builds(
    Shape,
    topics=st.integers(1, 4),
    writers=st.integers(1, 3),
    publishers=st.integers(0, 6),
    subscribers=st.integers(0, 6),
    latency_subscribers=st.integers(0, 3),
    messages=st.sampled_from([0, 3, 20, 60]),
    lost=CHANCES,
    duplicated=CHANCES,
    displaced=CHANCES,
    rejected=CHANCES,
    renumbered=st.sampled_from([0.0, 0.3, 1.0]),
    sparse_numbers=st.booleans(),
)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [repr(value) for value in row.values()])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    batch_rows=st.sampled_from([1, 2, 7, 1000]),
    counters=st.sampled_from([1 << 24, 1 << 12]),
)
def test_every_value_equals_the_oracle(
    seed: int, shape: Shape, batch_rows: int, counters: int
) -> None:
    generated = generate(seed, "r", shape)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder)
        write_log(log, [generated])
        assert list_runs(log) == ("r",)
        with (
            mock.patch.object(counting, "BATCH_ROWS", batch_rows),
            mock.patch.object(histogram, "_COUNTERS", counters),
            mock.patch.object(histogram, "_GATHERED", 16),
        ):
            tables = run_tables(log, "r")
            summary = summarize(log, "r")
    expected = oracle_tables(generated)
    assert tables.keys() == expected.keys() == INDEXES.keys()
    for name, rows in expected.items():
        assert in_order(tables[name]) == in_order(rows), name
        assert all(list(row) == INDEXES[name].names for row in tables[name]), name
    [row] = expected["summary"]
    for column, value in row.items():
        plain = {"labels": dict, "notes": tuple}.get(column, lambda same: same)(value)
        assert getattr(summary, column) == plain, column
