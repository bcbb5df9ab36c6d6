"""Spark in a JVM of our own: all of it on this machine, or the driver of a cluster's job.

    Driver(request) ──▶ spark ──close()──▶ no process, no temporary file, PySpark as if unused

PySpark starts the JVM and talks to it; here it gets its Java, settings, environment and end.
PySpark keeps the JVM for as long as the process lives, so that a second session would inherit the
first one's options; :meth:`Driver.close` makes it forget the JVM.  It has no API for that: the
names that begin with an underscore and are not ours are PySpark's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isthmus.errors import SparkError, SparkFailed
from isthmus.pipeline.spark.class_archive import (
    SHORT_LIVED,
    NewArchive,
    drop_if_unused,
    find_archive,
    reading,
)
from isthmus.pipeline.spark.java import Java, find_java, launcher
from isthmus.pipeline.spark.settings import SessionRequest, start_settings
from isthmus.pipeline.spark.shipping import package_zip
from isthmus.processes.children import end
from isthmus.processes.folders import OwnedFolder, clear_abandoned
from isthmus.processes.tree import process_tree

__all__ = ["LOG4J", "Driver", "child_environment", "environment", "spark_home"]

LOG4J = Path(__file__).with_name("log4j2.properties")
"""Tells the JVM what to print."""

_END_S = 10.0
_ARCHIVE_S = 180.0  # more: the JVM writes an archive of classes before it ends


def spark_home() -> Path:
    """The installed PySpark's folder, whatever `SPARK_HOME` says: their versions must agree."""
    try:
        import pyspark
        from pyspark.find_spark_home import _find_spark_home
    except ImportError as error:
        raise SparkError("PySpark is not installed; pip install 'isthmus[pipeline]'") from error
    home = Path(pyspark.__file__).parent
    if (home / "bin" / "spark-submit").exists():
        return home
    return Path(_find_spark_home())  # not from pip: the Python part of a distribution


def child_environment(java: Java, home: Path, *, loopback: bool) -> dict[str, str]:
    """What a JVM of Spark's needs in its environment."""
    values = {
        "JAVA_HOME": str(launcher(java)),
        "SPARK_HOME": str(home),
        # The machines of a cluster may have Python elsewhere; then the user says where.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # For the JVM that only composes the command line of the real one.
        "SPARK_LAUNCHER_OPTS": " ".join(SHORT_LIVED),
    }
    if loopback:
        values["SPARK_LOCAL_IP"] = "127.0.0.1"
    return values


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Our environment, which children inherit, with these values for a while; None is unset."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class Driver:
    """The JVM and the session in it."""

    def __init__(self, request: SessionRequest) -> None:
        """Start it.  Raises JavaMissing or SparkFailed; then nothing is left."""
        from pyspark import SparkContext

        if SparkContext._gateway is not None:  # also when its session was stopped: the JVM stays
            raise SparkError("this process has started Spark already, without open_session")
        request.check_reachable()
        java, home = find_java(), spark_home()
        values = child_environment(java, home, loopback=request.loopback)
        archive = find_archive(java, home) if request.quick else None
        self.spark: Any = None
        self._jvm: subprocess.Popen[bytes] | None = None
        self._new_archive = None
        if request.quick and request.local and archive is None:
            self._new_archive = _new_archive(java, home)
        options = (*SHORT_LIVED, *reading(archive)) if request.quick else ()
        making = self._new_archive.options if self._new_archive is not None else ()
        clear_abandoned()
        self._folder = OwnedFolder("spark")
        settings = start_settings(
            request,
            self._folder.path,
            driver_options=(f"-Dlog4j2.configurationFile={LOG4J.as_uri()}", *options, *making),
            executor_options=options if request.loopback else options[: len(SHORT_LIVED)],
        )
        try:
            self._start(request, settings, values)
        except BaseException:
            self._end(well=False)
            raise
        if archive is not None:
            drop_if_unused(archive, java, self.jvm.pid)

    @property
    def jvm(self) -> subprocess.Popen[bytes]:
        """The process."""
        assert self._jvm is not None
        return self._jvm

    def process_ids(self) -> list[int]:
        """The JVM and its Python workers."""
        return process_tree(self.jvm.pid)

    def close(self, well: bool) -> None:
        """Stop the session and end the JVM; `well` says that the session went well so far."""
        alive = self.jvm.poll() is None and self.spark.sparkContext._jsc is not None
        try:
            if alive:
                if well and self._new_archive is not None:
                    _exercise(self.spark)
                self.spark.stop()
        finally:
            self._end(well and alive)

    def _start(
        self, request: SessionRequest, settings: Mapping[str, str], values: Mapping[str, str]
    ) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        start: Any = launch_gateway  # without types
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        classic = {"SPARK_REMOTE": None, "SPARK_CONNECT_MODE_ENABLED": None}
        try:
            with environment({**values, **classic}):
                # A session of its own: Ctrl-C is ours to handle, and all it starts can be found.
                gateway = start(conf, {"start_new_session": True})
                self._jvm = gateway.proc
                context = SparkContext(conf=conf, gateway=gateway)
                self.spark = SparkSession(context)
            if not request.local:
                context.addPyFile(str(package_zip(self._folder.path)))
        except (PySparkException, Py4JError, OSError) as error:
            problem = next(iter(str(error).splitlines()), type(error).__name__)
            what = f"Spark on {request.where}"
            raise SparkFailed(what, f"{problem} What Java printed is above.") from error

    def _end(self, well: bool) -> None:
        try:
            _make_pyspark_forget()
            below = str(self._folder.path)
            sys.path[:] = [entry for entry in sys.path if not entry.startswith(below)]
        finally:
            if self._jvm is not None:
                assert self._jvm.stdin is not None
                self._jvm.stdin.close()  # which ends it
                if well:
                    _wait(self._jvm, _END_S if self._new_archive is None else _ARCHIVE_S)
                end(self._jvm, 0)
            if self._new_archive is not None:
                self._new_archive.finish(keep=well and self.jvm.returncode == 0)
            self._folder.remove()


def _new_archive(java: Java, home: Path) -> NewArchive | None:
    try:
        return NewArchive(java, home)
    except OSError:  # a cache that cannot be written: every session takes its time
        return None


def _make_pyspark_forget() -> None:
    """What PySpark remembers of a JVM that is ending or dead."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context
    if context is not None:  # it was not stopped: the JVM is dead, or no session came of it
        context._jsc = None
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass


def _exercise(spark: Any) -> None:
    """Something of all that jobs use, so that the archive has the classes for it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    def unchanged(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    words = spark.createDataFrame(
        [("a", 1.5, [1]), ("b", 2.5, [2])], "a string, b double, c array<int>"
    )
    numbers = spark.range(100, numPartitions=2).mapInArrow(unchanged, "id long").persist()
    grouped = (
        numbers.withColumn("key", f.col("id") % 7)
        .groupBy("key")
        .agg(f.sum("id").alias("total"), f.max("id").alias("most"), f.count("*").alias("rows"))
    )
    ranked = grouped.withColumn("rank", f.row_number().over(Window.orderBy("total")))
    ranked.join(numbers, ranked.key == numbers.id, "left").crossJoin(words).orderBy("id").toArrow()
    numbers.union(numbers).groupBy("id").applyInArrow(lambda group: group, "id long").collect()
