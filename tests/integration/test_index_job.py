"""The Spark job over a log of many generated runs: every value of every table is the oracle's."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from isthmus.errors import LogError
from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.count.tables import INDEXES
from isthmus.pipeline.log.schema import file_path
from isthmus.pipeline.spark.indexes import compute
from isthmus.pipeline.spark.job import run_job
from support.generated_logs import GeneratedRun, Shape, generate, write_log
from support.index_oracle import oracle_tables

SHAPES = (
    Shape(),
    Shape(lost=0.0, duplicated=0.0, displaced=0.0, rejected=0.0, renumbered=0.0),
    Shape(lost=0.4, duplicated=0.4, displaced=0.5, rejected=0.3, sparse_numbers=True),
    Shape(topics=6, writers=5, publishers=12, subscribers=15, messages=60),
    Shape(publishers=0, subscribers=0, latency_subscribers=4),
    Shape(messages=0),
)
RUNS = 36


@pytest.fixture(scope="module")
def runs() -> list[GeneratedRun]:
    return [generate(seed, f"run-{seed:02}", SHAPES[seed % len(SHAPES)]) for seed in range(RUNS)]


@pytest.fixture(scope="module")
def log(runs: list[GeneratedRun], tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("indexes") / "log"
    write_log(log, runs)
    return log


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [repr(value) for value in row.values()])


def test_every_value_of_every_table_is_the_oracles(
    spark: SparkSession, log: Path, runs: list[GeneratedRun]
) -> None:
    expected: dict[str, list[dict[str, Any]]] = {name: [] for name in INDEXES}
    for run in runs:
        for name, rows in oracle_tables(run).items():
            expected[name] += rows
    tables = compute(spark, log)
    assert tables.keys() == INDEXES.keys()
    for name, frame in tables.items():
        assert frame.columns == INDEXES[name].names
        assert in_order(frame.toArrow().to_pylist()) == in_order(expected[name]), name


def test_the_job_writes_the_named_runs(
    spark: SparkSession, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["run-03", "run-00"]
    out = tmp_path / "out"
    tables = run_job(log, out, runs=[*named, named[0]])  # one twice: counted once
    direct = [run_tables(log, run) for run in named]
    document = json.loads((out / "indexes.json").read_text())
    for name, table in tables.items():
        rows = [row for one in direct for row in one[name]]
        assert table.schema == INDEXES[name]
        assert in_order(table.to_pylist()) == in_order(rows)
        assert pq.read_table(out / f"{name}.parquet") == table
        with (out / f"{name}.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == len(rows)
        assert len(document[name]) == len(rows)
    assert document["summary"][0]["labels"] == dict(tables["summary"].to_pylist()[0]["labels"])
    shown = capsys.readouterr()
    assert all(run in shown.out for run in named)
    assert "counting" not in shown.out
    assert not list(out.glob(".*"))


def test_a_bad_log_is_refused_by_name(
    spark: SparkSession, runs: list[GeneratedRun], tmp_path: Path
) -> None:
    """Found by a task of the second pass, by one of the first, and by the survey."""
    write_log(tmp_path, runs[:2])
    run = runs[0]
    for table in ("deliveries", "publishes"):
        writer = next(writer for writer, rows in run.tables[table].items() if rows)
        path = file_path(tmp_path, table, run.run, writer)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(LogError, match="cut short or no Parquet") as caught:
            compute(spark, tmp_path)
        assert caught.value.where == str(path)
    file_path(tmp_path, "runs", run.run, "c0").unlink()
    with pytest.raises(LogError, match="no row in `runs`"):
        compute(spark, tmp_path)
