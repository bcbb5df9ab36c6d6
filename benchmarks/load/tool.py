"""The load processes and the source that floods them, as processes that this one starts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from isthmus.bench.coordinator.control import ControlMessage
from isthmus.bench.coordinator.crew import Crew
from isthmus.bench.coordinator.workers import LocalWorker
from isthmus.errors import LoadError
from isthmus.pipeline.log.reading import ClientRole, LoggedClient
from isthmus.processes.children import Launch, end, launch

__all__ = ["Peer", "Tool", "running_peer", "running_tool"]

ROOT = Path(__file__).resolve().parents[2]
TOPICS = [f"topic{number}" for number in range(1, 6)]
ANSWER_S = 120.0
START_NS = 200_000_000


class Peer:
    """The flood or the sink, for the number of connections it was started with."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders: IO[bytes] = process.stdin
        self._answers: IO[bytes] = process.stdout
        self.port = int(self.answer())

    def wait_until_ready(self) -> None:
        """Everybody has connected."""
        if self.answer() != "ready":
            raise LoadError("the other end does not say that it is ready")

    def order(self, line: str) -> None:
        """Let it do what it is for; `answer` waits for the result."""
        self._orders.write(f"{line}\n".encode())
        self._orders.flush()

    def answer(self) -> Any:
        """Its next line, which is JSON or a word."""
        line = self._answers.readline().decode().strip()
        if not line:
            raise LoadError("the other end of the load ended")
        return line if line.isalpha() else json.loads(line)


@contextmanager
def running_peer(module: str, *arguments: object, folder: Path) -> Iterator[Peer]:
    """``benchmarks.load.MODULE``, to which nobody is connected yet."""
    argv = [sys.executable, "-m", f"benchmarks.load.{module}", *map(str, arguments)]
    what = Launch(argv, cwd=ROOT, pipe_stdin=True, pipe_stdout=True)
    process = launch(what, folder / f"{module}.stderr")
    try:
        yield Peer(process)
    finally:
        end(process, 1.0)


class Tool:
    """Load processes that play clients of one role."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.writers = [worker.writer for worker in crew.workers]
        self.pids = [pid for worker in crew.workers for pid in worker.pids]

    def clock(self) -> None:
        """Until they answer, which is when they have started."""
        self._crew.clocks()

    def connect(self, port: int, role: ClientRole, count: int) -> None:
        """Connect that many clients, dealt out to the processes."""
        writers = self.writers
        clients = [
            LoggedClient(
                number,
                f"t-{role[:3]}-{number}",
                "t",
                role,
                number % len(TOPICS),
                "n1",
                writers[number % len(writers)],
            )
            for number in range(count)
        ]
        order = {
            "do": "connect",
            "clients": [asdict(client) for client in clients],
            "topics": TOPICS,
            "targets": {"n1": {"host": "127.0.0.1", "port": port}},
            "qos": {"t": 0, "l": 0},
            "payload_bytes": 32,
            "timeout_s": ANSWER_S,
            "returning": [],
        }
        self._crew.ask(lambda _: order, "connected", ANSWER_S)

    def measure(
        self, run: str, log: Path, *, duration_s: float = 0, interval_ns: int = 1_000_000_000
    ) -> None:
        """Record everything from now on; publishers publish for so long."""
        order = {
            "do": "measure",
            "run": run,
            "log": str(log),
            "start_ns": time.time_ns() + START_NS,
            "duration_s": duration_s,
            "interval_ns": {"t": interval_ns},
        }
        self._crew.tell(lambda _: order)

    def wait_for(self, messages: int) -> None:
        """Until they have received so many together."""
        received = dict.fromkeys(self.writers, 0)
        while sum(received.values()) < messages:
            for worker, said in self._crew.listen(ANSWER_S):
                received[worker.writer] = said["received"]

    def wait_for_the_end(self) -> None:
        """Until nobody publishes any more."""
        sending = set(self.writers)
        while sending:
            sending -= {w.writer for w, said in self._crew.listen(ANSWER_S) if not said["sending"]}

    def finish(self) -> list[ControlMessage]:
        """Until all files are written; what each process says of the run."""
        return list(self._crew.ask(lambda _: {"do": "finish"}, "measured", ANSWER_S).values())


@contextmanager
def running_tool(processes: int, folder: Path) -> Iterator[Tool]:
    """That many load processes."""
    with ExitStack() as stack:
        crew = Crew([LocalWorker(f"w{number}", folder) for number in range(processes)])
        stack.callback(crew.close)
        yield Tool(crew)
