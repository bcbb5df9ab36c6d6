"""The index job, unchanged, on this machine, on a cluster and through Spark Connect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from generated_logs import Shape, generate, write_log
from isthmus.pipeline.cluster import Cluster, ConnectServer
from isthmus.pipeline.indexes import compute
from isthmus.pipeline.tables import INDEXES
from spark import run_job

JOB = "integration.test_index_everywhere:all_tables"
RUNS = 6

Tables = dict[str, list[Any]]


def all_tables(session: SparkSession, log: str) -> Tables:
    """Every row of every table, in an order of its own; JSON keeps each float exactly."""
    return {
        name: sorted(json.dumps(list(row.values())) for row in frame.toArrow().to_pylist())
        for name, frame in compute(session, Path(log)).items()
    }


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("everywhere") / "log"
    shape = Shape(writers=4, messages=60)
    write_log(folder, [generate(seed, f"run-{seed}", shape) for seed in range(RUNS)])
    return str(folder)


@pytest.fixture(scope="module")
def here(spark: SparkSession, log: str) -> Tables:
    tables = all_tables(spark, log)
    assert tables.keys() == INDEXES.keys()
    assert len(tables["summary"]) == RUNS
    assert all(tables.values())
    return tables


def test_a_cluster_gives_the_same_tables(here: Tables, log: str, spark_cluster: Cluster) -> None:
    assert run_job(JOB, log, master=spark_cluster.master_url) == here


def test_spark_connect_gives_the_same_tables(
    here: Tables, log: str, connect_server: ConnectServer
) -> None:
    assert run_job(JOB, log, connect=connect_server.url) == here
