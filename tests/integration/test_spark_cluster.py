"""One job, three places: this machine, a cluster of two workers, a Spark Connect server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from isthmus.brokers.processes import process_tree
from isthmus.errors import SparkFailed
from isthmus.pipeline.cluster import Cluster, ConnectServer
from spark import run_job
from waiting import wait_for

HERE = "integration.test_spark_cluster"


def job(session: SparkSession) -> list[dict[str, Any]]:
    """A few statistics of numbers that Python workers make up, by groups."""

    def squares(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        from isthmus.pipeline import schema

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
    statistics = rows.groupBy("key").agg(
        f.count("*").alias("rows"),
        f.sum("square").alias("sum"),
        f.max("third").alias("most"),
        f.sort_array(f.collect_list("square"))[7].alias("eighth"),
        f.min(f.timestamp_seconds(f.col("square"))).cast("string").alias("first"),
    )
    return [dict(row) for row in statistics.orderBy("key").toArrow().to_pylist()]


def origin_in_tasks(session: SparkSession) -> str:
    """Where a task finds the package."""

    def origin(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from isthmus.pipeline import schema

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


def on_the_cluster(session: SparkSession) -> list[Any]:
    return [job(session), origin_in_tasks(session), folders_of_tasks(session)]


def on_the_server(session: SparkSession) -> list[Any]:
    return [job(session), origin_in_tasks(session)]


SHIPPED = "/isthmus.zip/isthmus/pipeline/schema.py"


def test_the_cluster_gives_what_this_machine_gives_and_both_workers_work(
    spark: SparkSession, spark_cluster: Cluster
) -> None:
    result, origin, folders = run_job(f"{HERE}:on_the_cluster", master=spark_cluster.master_url)
    assert result == job(spark)
    assert origin.endswith(SHIPPED)
    for worker in range(2):
        work_folder = spark_cluster.work_folder(worker)
        assert any(Path(folder).is_relative_to(work_folder) for folder in folders), folders


def test_spark_connect_gives_what_this_machine_gives(
    spark: SparkSession, connect_server: ConnectServer
) -> None:
    result, origin = run_job(f"{HERE}:on_the_server", connect=connect_server.url)
    assert result == job(spark)
    assert origin.endswith(SHIPPED)


def test_what_does_not_come_up_is_reported_with_its_log() -> None:
    cluster = Cluster(workers=1, memory="lots")
    with pytest.raises(SparkFailed, match="Spark's worker-0: ended with 1") as caught, cluster:
        pass
    assert "--memory MEM" in caught.value.log_tail  # Spark tells how it is called
    assert cluster.process_ids() == []


def test_the_command_starts_a_cluster_and_nothing_outlives_it() -> None:
    command = [sys.executable, "-m", "isthmus.pipeline.cluster", "--workers", "1"]
    for how in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("--master spark://127.0.0.1:")
                children = Path(f"/proc/{process.pid}/task")
                pids = [
                    int(pid)
                    for task in children.iterdir()
                    for pid in (task / "children").read_text().split()
                ]
                assert len(pids) == 2
            finally:
                process.send_signal(how)
        assert process.returncode == (0 if how is signal.SIGINT else -how)
        wait_for(
            lambda pids=pids: not [pid for pid in pids if pid in process_tree(pid)],  # type: ignore[misc]
            30,
            "the master and the worker to end",
        )
