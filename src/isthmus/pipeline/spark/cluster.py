"""A real Spark cluster, or a Spark Connect server, on this machine: to try jobs on.

    with Cluster(workers=2) as cluster:          a standalone master and two workers
        with open_session(cluster.master_url) as spark: …

    with ConnectServer() as server:              with master=cluster.master_url, on that cluster
        with open_session(connect=server.url) as spark: …

`python -m isthmus.pipeline.spark.cluster` starts them and shows their addresses until Ctrl-C.

Everything listens on loopback only, on ports that the kernel chose; there, as is Spark's default,
any user of this machine is let in.  Each process logs into a file of one temporary folder.
Leaving the `with` block ends the processes and removes the folder; when this process dies they
die with it (see :mod:`isthmus.processes.children`), and what they started notices and follows.
"""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from isthmus.errors import SparkError, SparkFailed
from isthmus.pipeline.spark.class_archive import SHORT_LIVED, find_archive, reading
from isthmus.pipeline.spark.driver import child_environment, spark_home
from isthmus.pipeline.spark.java import find_java
from isthmus.pipeline.spark.settings import SessionRequest, start_settings
from isthmus.processes.children import Launch, end, launch
from isthmus.processes.folders import OwnedFolder, clear_abandoned
from isthmus.processes.tree import process_tree

__all__ = ["Cluster", "ConnectServer"]

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 120.0
_POLL_S = 0.02
_GRACE_S = 5.0
_TAIL_BYTES = 4000


class _Servers(ABC):
    """Processes of Spark's with their folder; a subclass says which."""

    def __init__(self) -> None:
        self._owned: OwnedFolder | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @abstractmethod
    def _start_all(self) -> None:
        """Start them and wait until they are up."""

    @property
    def folder(self) -> Path:
        """Logs and working folders."""
        assert self._owned is not None, "not started"
        return self._owned.path

    def process_ids(self) -> list[int]:
        """Every process of it, executors and Python workers too."""
        return sorted(
            pid for process in self._running.values() for pid in process_tree(process.pid)
        )

    def __enter__(self) -> Self:
        clear_abandoned()
        self._owned = OwnedFolder("spark")
        try:
            self._start_all()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        # The last started first: it is told by those before it when they go.
        while self._running:
            end(self._running.popitem()[1], _GRACE_S)
        if self._owned is not None:
            self._owned.remove()
            self._owned = None

    def _launch(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        log = self.folder / f"{name}.log"
        self._running[name] = launch(Launch(command, environment, self.folder), log)

    def _await(self, name: str, up: str) -> re.Match[str]:
        """Wait until the log of `name` has something that matches `up`."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            dead = self._running[name].poll()
            text = (self.folder / f"{name}.log").read_text(errors="replace")
            found = re.search(up, text)
            if dead is not None:
                problem = f"ended with {dead} while it started"
            elif found is not None:
                return found
            elif time.monotonic() > deadline:
                problem = f"is not up after {_START_TIMEOUT_S:g} s"
            else:
                time.sleep(_POLL_S)
                continue
            raise SparkFailed(f"Spark's {name}", problem, text[-_TAIL_BYTES:])


class Cluster(_Servers):
    """A standalone master and its workers, each with `cores` and `memory` to give."""

    def __init__(self, workers: int = 2, *, cores: int = 1, memory: str = "1g") -> None:
        super().__init__()
        self.workers = workers
        self.cores = cores
        self.memory = memory
        self.master_url = ""

    def work_folder(self, worker: int) -> Path:
        """Below it the executors of this worker (0, 1, …) have their current folders."""
        return self.folder / f"worker-{worker}"

    def _start_all(self) -> None:
        java, home = find_java(), spark_home()
        options = (*SHORT_LIVED, *reading(find_archive(java, home)))
        environment = {
            **child_environment(java, home, loopback=True),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": shlex.join(options),
            "SPARK_LOCAL_DIRS": str(self.folder),
        }
        program = str(home / "bin" / "spark-class")
        listen = ["--host", _HOST, "--port", "0", "--webui-port", "0"]
        master = [program, "org.apache.spark.deploy.master.Master", *listen]
        self._launch("master", master, environment)
        self.master_url = self._await("master", r"Starting Spark master at (spark://\S+)")[1]
        worker = [program, "org.apache.spark.deploy.worker.Worker", *listen]
        worker += ["--cores", str(self.cores), "--memory", self.memory]
        for number in range(self.workers):
            folder = ["--work-dir", str(self.work_folder(number))]
            self._launch(f"worker-{number}", [*worker, *folder, self.master_url], environment)
        for number in range(self.workers):
            self._await(f"worker-{number}", "Successfully registered with master")


class ConnectServer(_Servers):
    """A Spark Connect server whose jobs run on `master`."""

    def __init__(self, master: str = "local[*]") -> None:
        super().__init__()
        self.request = SessionRequest(master, None, True, None)
        self.url = ""

    def _start_all(self) -> None:
        self.request.check_reachable()
        java, home = find_java(), spark_home()
        options = (*SHORT_LIVED, *reading(find_archive(java, home)))
        settings = {
            **start_settings(self.request, self.folder, options, options),
            "spark.connect.grpc.binding.address": _HOST,
            "spark.connect.grpc.binding.port": "0",
        }
        command = [str(home / "bin" / "spark-submit")]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        environment = child_environment(java, home, loopback=True)
        self._launch("connect", [*command, "spark-internal"], environment)
        port = self._await("connect", r"Spark Connect server started at: \S*:(\d+)")[1]
        self.url = f"sc://{_HOST}:{port}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Start them, say where they are, and wait for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m isthmus.pipeline.spark.cluster")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=1, help="of each worker (1)")
    parser.add_argument("--memory", default="1g", help="of each worker, for executors (1g)")
    parser.add_argument(
        "--connect",
        action="store_true",
        help="with a Spark Connect server; it takes all the cores, for its own clients",
    )
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        try:
            cluster = Cluster(given.workers, cores=given.cores, memory=given.memory)
            master_url = stack.enter_context(cluster).master_url
            print(f"--master {master_url}", flush=True)
            if given.connect:
                server = stack.enter_context(ConnectServer(master_url))
                print(f"--connect {server.url}", flush=True)
            signal.pause()
        except SparkError as error:
            sys.exit(str(error))
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
