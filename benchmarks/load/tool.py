"""The load processes and the source that floods them, as processes that this one starts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks.relay.clients import LoadError

from isthmus.bench.coordinator.control import LineChannel, Message
from isthmus.processes.children import Launch, end, launch

__all__ = ["Peer", "Tool", "peak_memory_bytes", "running_peer", "running_tool"]

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

    def __init__(self, channels: Sequence[LineChannel], pids: Sequence[int]) -> None:
        self._channels = tuple(channels)
        self.pids = tuple(pids)

    @property
    def writers(self) -> list[str]:
        return [channel.name for channel in self._channels]

    def clock(self) -> None:
        """Until they answer, which is when they have started."""
        for channel in self._channels:
            channel.send({"do": "clock"}, ANSWER_S)
            _answer(channel, "clock")

    def connect(self, port: int, role: str, count: int) -> None:
        """Connect that many clients, dealt out to the processes."""
        writers = self.writers
        clients = [
            {
                "client": number,
                "name": f"t-{role[:3]}-{number}",
                "kind": "t",
                "role": role,
                "topic": number % len(TOPICS),
                "node": "n1",
                "writer": writers[number % len(writers)],
            }
            for number in range(count)
        ]
        order = {
            "do": "connect",
            "clients": clients,
            "topics": TOPICS,
            "targets": {"n1": {"host": "127.0.0.1", "port": port}},
            "qos": {"t": 0, "l": 0},
            "payload_bytes": 32,
            "timeout_s": ANSWER_S,
        }
        for channel in self._channels:
            channel.send(order, ANSWER_S)
        for channel in self._channels:
            _answer(channel, "connected")

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
        for channel in self._channels:
            channel.send(order, ANSWER_S)

    def wait_for(self, messages: int) -> None:
        """Until they have received so many together."""
        received = dict.fromkeys(self.writers, 0)
        while sum(received.values()) < messages:
            for channel in self._channels:
                received[channel.name] = _answer(channel, "progress")["received"]

    def wait_for_the_end(self) -> None:
        """Until nobody publishes any more."""
        for channel in self._channels:
            while _answer(channel, "progress")["sending"]:
                pass

    def finish(self) -> list[Message]:
        """Until all files are written; what each process says of the run."""
        for channel in self._channels:
            channel.send({"do": "finish"}, ANSWER_S)
        return [_answer(channel, "measured", besides="progress") for channel in self._channels]


def _answer(channel: LineChannel, expected: str, besides: str = "") -> Message:
    while (answer := channel.receive(ANSWER_S))["is"] == besides:
        pass
    if answer["is"] != expected:
        raise LoadError(f"{channel.name}: {answer}")
    return answer


@contextmanager
def running_tool(processes: int, folder: Path) -> Iterator[Tool]:
    """That many load processes."""
    with ExitStack() as stack:
        channels, pids = [], []
        for number in range(processes):
            argv = [sys.executable, "-m", "isthmus.bench.load.worker", f"w{number}"]
            what = Launch(argv, pipe_stdin=True, pipe_stdout=True)
            process = launch(what, folder / f"w{number}.stderr")
            stack.callback(end, process, 1.0)
            assert process.stdin is not None
            assert process.stdout is not None
            pipes = process.stdout.fileno(), process.stdin.fileno()
            channels.append(LineChannel(f"w{number}", *pipes))
            pids.append(process.pid)
        yield Tool(channels, pids)


def peak_memory_bytes(pid: int) -> int:
    """The most that a running process has had in memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise LoadError(f"/proc/{pid}/status has no VmHWM")
    return int(found[1]) * 1024
