"""A Spark session for a job: on this machine, on a standalone cluster, or through Spark Connect.

    with open_session() as spark:                                # all cores of this machine
    with open_session("spark://10.0.0.7:7077") as spark:         # a cluster
    with open_session(connect="sc://10.0.0.7:15002") as spark:   # a Spark Connect server

A job sees the same DataFrame API each time, so it is written once; Python workers elsewhere get
this package from here (:mod:`isthmus.pipeline.spark.shipping`).  Invariants:

* A session that goes well prints nothing, from the JVM's first line on.
* When the `with` block is left, however it is left, the session is stopped and its JVM and Python
  workers are gone; another session may follow in the same process.  They also go when this process
  is killed: the JVM ends with its standard input.  Temporary files live in one folder, which is
  removed; the next session removes it if this one could not.
* A process has one session at a time, as PySpark has.  Opening one that is open already gives the
  same, and the last to leave closes it; asking for another kind meanwhile is an error.
* The environment of this process stays as it is, except that PySpark tells by
  `SPARK_CONNECT_MODE_ENABLED` while the session is one of Connect.
* A session on this machine listens on loopback only.

`python -m isthmus.pipeline.spark.session --time` measures how long a session takes to start.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from isthmus.errors import SparkError, SparkFailed
from isthmus.pipeline.spark.driver import Driver, environment, spark_home
from isthmus.pipeline.spark.settings import SessionRequest, runtime_settings
from isthmus.pipeline.spark.shipping import package_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["open_session", "session_processes"]


@contextmanager
def open_session(
    master: str = "local[*]",
    *,
    connect: str | None = None,
    quick: bool = False,
    memory: str | None = None,
) -> Iterator[SparkSession]:
    """A session, closed at the end of the `with` block.

    `connect` is a Spark Connect server's address and takes the place of `master`.  `quick` halves
    the start-up at the price of slower code: for jobs of seconds.  `memory` bounds the heap of the
    JVM that works, for example "1g": the one here, or each executor's on a cluster.

    Raises SparkError for a request that cannot be met; JavaMissing and SparkFailed are of its kind.
    """
    request = SessionRequest(master, connect, quick, memory)
    with _lock:
        opened = _enter(request)
    well = False
    try:
        yield opened.session.spark
        well = True
    finally:
        with _lock:
            _leave(opened, well)


def session_processes() -> list[int]:
    """The processes of the open session on this machine: the JVM and its Python workers."""
    opened = _open
    return [] if opened is None else opened.session.process_ids()


class ConnectSession:
    """A session on a Spark Connect server; this process has no JVM."""

    def __init__(self, request: SessionRequest) -> None:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        assert request.connect is not None
        request.check_reachable()
        try:
            with environment({"SPARK_REMOTE": None}):
                self.spark: Any = SparkSession.builder.remote(request.connect).create()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # it is an error, below
                try:
                    self._prepare(request)
                except BaseException:
                    self.close(well=False)
                    raise
        except PySparkException as error:
            details = re.search(r'details = "(.*)"', str(error))
            said = details[1] if details else next(iter(str(error).splitlines()), "")
            problem = f"does not answer as a Spark Connect server: {said}"
            raise SparkFailed(request.connect, problem) from error

    def _prepare(self, request: SessionRequest) -> None:
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # PySpark retries for ten minutes; what does not answer the first call is no such server.
        usual = self.spark.client.get_retry_policies()
        self.spark.client.set_retry_policies([DefaultPolicy(max_retries=1)])
        for key, value in runtime_settings(request).items():
            self.spark.conf.set(key, value)
        self.spark.client.set_retry_policies(usual)
        with tempfile.TemporaryDirectory(prefix="isthmus-spark-") as folder:
            self.spark.addArtifacts(str(package_zip(Path(folder))), pyfile=True)

    def process_ids(self) -> list[int]:
        """None."""
        return []

    def close(self, well: bool) -> None:
        """Give the session back to the server."""
        try:
            self.spark.stop()
        finally:
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


@dataclass(slots=True)
class _Open:
    request: SessionRequest
    session: Driver | ConnectSession
    holders: int = 1


_lock = threading.RLock()
_open: _Open | None = None


def _enter(request: SessionRequest) -> _Open:
    global _open
    if _open is not None:
        if _open.request != request:
            raise SparkError(
                f"this process has a session on {_open.request.where} open, and Spark allows one at"
                f" a time: close it before opening one on {request.where} or with other options"
            )
        _open.holders += 1
        return _open
    spark_home()  # raises without PySpark
    # PySpark warns of pandas 3 because of its conversions; the jobs exchange Arrow tables.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    _open = _Open(request, Driver(request) if request.connect is None else ConnectSession(request))
    return _open


def _leave(opened: _Open, well: bool) -> None:
    global _open
    opened.holders -= 1
    if opened.holders == 0:
        _open = None
        opened.session.close(well)


# python -m isthmus.pipeline.spark.session --time


def _time_one(quick: bool) -> None:
    """Print seconds until the session, the first result and the end; all in this process."""
    from pyspark.sql import functions as f

    began = time.monotonic()
    with open_session(quick=quick) as spark:
        opened = time.monotonic()
        spark.range(1000).groupBy(f.col("id") % 7).count().toArrow()
        result = time.monotonic()
    print(opened - began, result - began, time.monotonic() - result)


def _time(rounds: int) -> None:
    """Each start in a fresh process; with a cache of their own, so that the first is a first."""
    times: dict[str, list[tuple[float, ...]]] = {"quick, first ever": [], "quick": [], "plain": []}
    with tempfile.TemporaryDirectory(prefix="isthmus-time-") as cache:
        for title in ("quick, first ever", *(["plain", "quick"] * rounds)):
            before = os.times()
            printed = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "isthmus.pipeline.spark.session",
                    "--one",
                    title.split(",")[0],
                ],
                env={**os.environ, "ISTHMUS_CACHE": cache},
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
            after = os.times()
            cpu_s = sum(after[2:4]) - sum(before[2:4])
            times[title].append((*(float(number) for number in printed.split()), cpu_s))
    print(f"{'s: median (min-max)':20}{'session':>18}{'first result':>18}{'end':>18}{'CPU':>18}")
    for title, measured in times.items():
        columns = [
            f"{median(column):.1f} ({min(column):.1f}-{max(column):.1f})"
            for column in zip(*measured, strict=True)
        ]
        print(f"{title:20}" + "".join(f"{column:>18}" for column in columns))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m isthmus.pipeline.spark.session")
    parser.add_argument("--time", action="store_true", help="measure the start of a session")
    parser.add_argument("--rounds", type=int, default=5, help="how often each kind (5)")
    parser.add_argument("--one", choices=("plain", "quick"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        _time_one(given.one == "quick")
    elif given.time:
        _time(given.rounds)
    else:
        parser.error("say --time")


if __name__ == "__main__":
    main()
