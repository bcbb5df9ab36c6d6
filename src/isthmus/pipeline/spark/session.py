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
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
    except Exception as error:
        # PySpark cancels its jobs at Ctrl-C, and then hears from Java that they were.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
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
