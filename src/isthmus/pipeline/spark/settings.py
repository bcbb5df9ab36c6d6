"""What a session is asked for, and the Spark settings that follow from it.

Pure but for :meth:`SessionRequest.check_reachable`: nothing here imports PySpark.  The reasons for
each setting are in docs/explanation/spark.md.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import SparkError, SparkFailed

__all__ = ["SessionRequest", "memory_bytes", "runtime_settings", "start_settings"]

_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)\])?")
_SPARK = re.compile(r"spark://(?P<addresses>[^/,\s]+:\d+(,[^/,\s]+:\d+)*)")
_CONNECT = re.compile(r"sc://(?P<host>\[[^\]]+\]|[^:/;\s]+)(:(?P<port>\d+))?(/.*)?")
_CONNECT_PORT = 15002
_SIZE = re.compile(r"[1-9]\d*[mgt]", re.IGNORECASE)
_MEBIBYTES = {"m": 1, "g": 1024, "t": 1024 * 1024}

_LEAST_MIB = 512  # below 450 MiB Spark refuses to start
_MOST_MIB = 2048  # the jobs keep their data in Python; more heap would only grow
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
_REACH_TIMEOUT_S = 5.0
_PARTITIONS_ELSEWHERE = 8


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What :func:`~isthmus.pipeline.spark.session.open_session` was asked for; checked here."""

    master: str
    connect: str | None
    quick: bool
    memory: str | None

    def __post_init__(self) -> None:
        if self.connect is not None:
            if _CONNECT.fullmatch(self.connect) is None:
                raise SparkError(
                    f"connect {self.connect!r} is not a Spark Connect address; write sc://HOST:PORT"
                )
            if self.memory is not None:
                raise SparkError(
                    "memory cannot be set for Spark Connect: it is the server's to decide"
                )
        elif not (_LOCAL.fullmatch(self.master) or _SPARK.fullmatch(self.master)):
            raise SparkError(
                f"master {self.master!r} is not known; local[*], local[N] and"
                " spark://HOST:PORT are, and any other cluster through Spark Connect"
                " (connect=sc://HOST:PORT)"
            )
        if self.memory is not None and (
            _SIZE.fullmatch(self.memory) is None or _mebibytes(self.memory) < _LEAST_MIB
        ):
            raise SparkError(
                f"memory {self.memory!r}: a number with unit m or g, {_LEAST_MIB}m or more, is"
                " right, for example 1g"
            )

    @property
    def where(self) -> str:
        """The address that the user gave."""
        return self.connect if self.connect is not None else self.master

    @property
    def local(self) -> bool:
        """Whether driver and executor are one JVM here."""
        return self.connect is None and _LOCAL.fullmatch(self.master) is not None

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where to reach what is not in our own JVM."""
        if self.connect is not None:
            server = _CONNECT.fullmatch(self.connect)
            assert server is not None
            return ((server["host"].strip("[]"), int(server["port"] or _CONNECT_PORT)),)
        cluster = _SPARK.fullmatch(self.master)
        if cluster is None:
            return ()
        pairs = (address.rpartition(":") for address in cluster["addresses"].split(","))
        return tuple((host.strip("[]"), int(port)) for host, _, port in pairs)

    @property
    def loopback(self) -> bool:
        """Whether everything is on this machine, so that nobody else need reach the driver."""
        return all(_is_loopback(host) for host, _ in self.addresses)

    def check_reachable(self) -> None:
        """Raise SparkFailed if nobody answers; Spark itself would go on trying for minutes."""
        problems = []
        for host, port in self.addresses:
            try:
                socket.create_connection((host, port), _REACH_TIMEOUT_S).close()
                return
            except OSError as error:
                problems.append(f"{host}:{port} cannot be reached ({error.strerror or error})")
        if problems:
            raise SparkFailed(self.where, "; ".join(problems))


def start_settings(
    request: SessionRequest,
    folder: Path,
    driver_options: Sequence[str],
    executor_options: Sequence[str] = (),
) -> dict[str, str]:
    """What the driver's JVM starts with; its temporary files go into `folder`.

    The options are those for Java; executors that are JVMs of their own get theirs.
    """
    settings = {
        "spark.master": request.master,
        "spark.app.name": "isthmus",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": shlex.join(
            (f"-Djava.io.tmpdir={folder}", *driver_options)
        ),
        "spark.driver.memory": _driver_memory(request),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if request.loopback:
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    if not request.local:
        if request.memory is not None:
            settings["spark.executor.memory"] = request.memory
        if executor_options:
            settings["spark.executor.extraJavaOptions"] = shlex.join(executor_options)
    return settings | runtime_settings(request)


def runtime_settings(request: SessionRequest) -> dict[str, str]:
    """What may also be set on a session of somebody else's server."""
    partitions = _PARTITIONS_ELSEWHERE if request.addresses else _local_cores(request.master)
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(partitions),
    }


def memory_bytes() -> int:
    """This machine's memory, or what our control group allows of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _CGROUP_LIMITS:
        try:
            total = min(total, int(Path(file).read_text()))
        except (OSError, ValueError):  # no such control group, or no limit ("max")
            continue
    return total


def _local_cores(master: str) -> int:
    number = master.removeprefix("local").strip("[]")
    if number == "*":
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    return int(number or 1)


def _driver_memory(request: SessionRequest) -> str:
    if request.local and request.memory is not None:
        return request.memory
    return f"{max(_LEAST_MIB, min(_MOST_MIB, memory_bytes() // 4 // 2**20))}m"


def _mebibytes(size: str) -> int:
    return int(size[:-1]) * _MEBIBYTES[size[-1].lower()]


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
