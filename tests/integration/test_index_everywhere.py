"""Jobs, unchanged, on this machine, on a cluster of two workers and through Spark Connect.

A small one and the index job; in each place one process runs all, because sessions take long.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from isthmus.pipeline.count.tables import INDEXES
from isthmus.pipeline.spark.cluster import Cluster, ConnectServer
from isthmus.pipeline.spark.indexes import compute
from support.generated_logs import Shape, generate, write_log
from support.spark import run_job

HERE = "integration.test_index_everywhere"
SHIPPED = "/isthmus.zip/isthmus/pipeline/log/schema.py"
RUNS = 6


def statistics(session: SparkSession) -> list[dict[str, Any]]:
    """A few statistics of numbers that Python workers make up, by groups."""

    def squares(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        from isthmus.pipeline.log import schema

        for batch in batches:
            numbers = np.asarray(batch.column("id"))
            yield pa.RecordBatch.from_pydict(
                {
                    "key": [f"k{number % 5}·{schema.SCHEMA_VERSION}" for number in numbers],
                    "square": numbers * numbers,
                    "third": numbers / 3,
                }
            )

    rows = session.range(1000, numPartitions=4).mapInArrow(
        squares, "key string, square long, third double"
    )
    by_key = rows.groupBy("key").agg(
        f.count("*").alias("rows"),
        f.sum("square").alias("sum"),
        f.max("third").alias("most"),
        f.sort_array(f.collect_list("square"))[7].alias("eighth"),
        f.min(f.timestamp_seconds(f.col("square"))).cast("string").alias("first"),
    )
    return [dict(row) for row in by_key.orderBy("key").toArrow().to_pylist()]


def origin_in_tasks(session: SparkSession) -> str:
    """Where a task finds the package."""

    def origin(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from isthmus.pipeline.log import schema

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [schema.__file__]})

    found = session.range(1).mapInArrow(origin, "file string").toArrow()
    return str(found.column("file")[0])


def folders_of_tasks(session: SparkSession) -> list[str]:
    """The current folder of each of many tasks; an executor's is below its worker's."""

    def folder(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        import pyarrow as pa

        for _ in batches:
            time.sleep(0.05)  # a task that takes a while, so that one worker is not fast enough
            yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()]})

    tasks = session.range(16, numPartitions=16)
    # The second worker's executor may join later than the first one's.
    for _ in range(100):
        found = tasks.mapInArrow(folder, "folder string").distinct().toArrow()
        folders = sorted(found.column("folder").to_pylist())
        if len(folders) > 1:
            break
    return folders


def index_tables(session: SparkSession, log: str) -> dict[str, list[str]]:
    """Every row of every table, in an order of its own; JSON keeps each float exactly."""
    return {
        name: sorted(json.dumps(list(row.values())) for row in frame.toArrow().to_pylist())
        for name, frame in compute(session, Path(log)).items()
    }


def jobs(session: SparkSession, log: str) -> list[Any]:
    return [statistics(session), index_tables(session, log)]


def jobs_elsewhere(session: SparkSession, log: str) -> list[Any]:
    return [jobs(session, log), origin_in_tasks(session)]


def jobs_on_the_cluster(session: SparkSession, log: str) -> list[Any]:
    return [jobs(session, log), origin_in_tasks(session), folders_of_tasks(session)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("everywhere") / "log"
    shape = Shape(writers=4, messages=60)
    write_log(folder, [generate(seed, f"run-{seed}", shape) for seed in range(RUNS)])
    return str(folder)


@pytest.fixture(scope="module")
def results(spark: SparkSession, log: str) -> list[Any]:
    """Those of this machine."""
    results = jobs(spark, log)
    small, tables = results
    assert [row["rows"] for row in small] == [200] * 5
    assert tables.keys() == INDEXES.keys()
    assert len(tables["summary"]) == RUNS
    assert all(tables.values())
    return results


def test_a_cluster_gives_the_same_and_both_workers_work(
    results: list[Any], log: str, spark_cluster: Cluster
) -> None:
    there, origin, folders = run_job(
        f"{HERE}:jobs_on_the_cluster", log, master=spark_cluster.master_url
    )
    assert there == results
    assert origin.endswith(SHIPPED)
    for worker in range(2):
        work_folder = spark_cluster.work_folder(worker)
        assert any(Path(folder).is_relative_to(work_folder) for folder in folders), folders


def test_spark_connect_gives_the_same(
    results: list[Any], log: str, connect_server: ConnectServer
) -> None:
    there, origin = run_job(f"{HERE}:jobs_elsewhere", log, connect=connect_server.url)
    assert there == results
    assert origin.endswith(SHIPPED)
