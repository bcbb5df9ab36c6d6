"""Spark in tests: one session for the whole test run, and jobs in processes of their own.

Fixtures, which `conftest.py` offers to all tests; each starts what it is when it is first asked
for and keeps it to the end:

* `spark`: the session of this process, `open_session(quick=True)`.  Code under test that opens the
  same kind of session gets this one.
* `spark_cluster`, `connect_server`: a standalone cluster and a Spark Connect server.  A process
  has one session at a time, so a job for these runs in another process: :func:`run_job`.

A job is a function `job(spark, *arguments)` in a module of the tests, with strings for arguments
and a result that JSON can carry.  What it hands to Spark to be run in Python workers is a function
inside that function: workers cannot import the tests.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from isthmus.pipeline.spark.class_archive import find_archive
from isthmus.pipeline.spark.cluster import Cluster, ConnectServer
from isthmus.pipeline.spark.driver import spark_home
from isthmus.pipeline.spark.java import find_java
from isthmus.pipeline.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["connect_server", "python", "run_job", "spark", "spark_cluster"]

TESTS = Path(__file__).parents[1]
DEADLINE_S = 240.0


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of this process.

    The first one on a machine writes the class archive of the next ones when it ends, which takes
    longer than all it is used for here: one that has loaded what jobs need ends before the tests.
    """
    if find_archive(find_java(), spark_home()) is None:
        with open_session(quick=True) as first:
            first.range(8).mapInArrow(lambda rows: rows, "id long").groupBy("id").count().toArrow()
    with open_session(quick=True) as session:
        yield session


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[Cluster]:
    """A master and two workers with one core each."""
    with Cluster(workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def connect_server() -> Iterator[ConnectServer]:
    """A Spark Connect server with this machine's cores."""
    with ConnectServer() as server:
        yield server


def python(
    *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with the tests on its path; `environment` is added to ours."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(TESTS), **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def run_job(job: str, *arguments: str, master: str = "", connect: str = "") -> Any:
    """What `MODULE:FUNCTION` returns, in a process of its own; it must print nothing."""
    ended = python(__file__, job, master, connect, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def main() -> None:
    """MODULE:FUNCTION MASTER CONNECT ARGUMENTS…"""
    job, master, connect, *arguments = sys.argv[1:]
    module, _, name = job.partition(":")
    function = getattr(importlib.import_module(module), name)
    with open_session(master or "local[*]", connect=connect or None, quick=True) as session:
        print(json.dumps(function(session, *arguments)))


if __name__ == "__main__":
    main()
