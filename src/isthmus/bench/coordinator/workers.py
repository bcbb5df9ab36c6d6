"""The load processes that a coordinator runs: here, or at an agent on another machine.

Both look the same: a channel for the control protocol, the name of the machine, and the files of a
measurement brought into the coordinator's log.  Whatever was started ends with `close`, and with
this process (:mod:`isthmus.processes.children`); an agent ends what it started when the connection
that asked for it ends.
"""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from isthmus.bench.coordinator.agent_hello import greet_agent
from isthmus.bench.coordinator.control import ControlMessage, LineChannel, item
from isthmus.config.addresses import Address
from isthmus.errors import LoadFailed
from isthmus.pipeline.log.schema import Table, file_path
from isthmus.processes.children import Launch, end, launch, log_tail
from isthmus.processes.kernel import keep_alive

__all__ = ["COMMAND", "LoadProcess", "LocalWorker", "RemoteWorker", "attend"]

COMMAND: Final[tuple[str, ...]] = (sys.executable, "-m", "isthmus.bench.load.worker")
"""What runs a load process; its writer's name follows."""
CLOSE_S: Final = 5.0
CONNECT_S: Final = 10.0
FETCH_S: Final = 60.0


class LoadProcess(Protocol):
    """One load process, wherever it runs."""

    writer: str
    machine: str
    channel: LineChannel

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process, if that is one of this machine's."""

    def failure(self) -> LoadFailed:
        """Why its channel ended."""

    def gather(self, table: Table, run: str, log: Path) -> None:
        """Bring its file of `table` into `log`, where it is not there already."""

    def close(self) -> None:
        """End it; it may be dead, and it may be called twice."""


class LocalWorker:
    """A load process on this machine; what it prints to standard error is kept in `folder`."""

    def __init__(self, writer: str, folder: Path, command: Sequence[str] = COMMAND) -> None:
        self.writer = writer
        self.machine = platform.node()
        self._stderr = folder / f"{writer}.stderr"
        self._process: subprocess.Popen[bytes] = launch(
            Launch([*command, writer], pipe_stdin=True, pipe_stdout=True), self._stderr
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.channel = LineChannel(
            writer, self._process.stdout.fileno(), self._process.stdin.fileno()
        )

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,)

    def failure(self) -> LoadFailed:
        try:
            code = self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            problem = "closed its standard output and goes on running"
        else:
            problem = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return LoadFailed(self.writer, problem, self.log_tail())

    def log_tail(self) -> str:
        """The end of what it printed to standard error."""
        return log_tail(self._stderr)

    def gather(self, table: Table, run: str, log: Path) -> None:
        """Nothing to do: it wrote into `log` itself."""

    def close(self) -> None:
        if self._process.poll() is None:
            try:
                self.channel.send({"do": "close"}, CLOSE_S)
                self._process.wait(CLOSE_S)
            except (LoadFailed, subprocess.TimeoutExpired):
                end(self._process, grace_s=0.0)  # it does not listen any more, or takes too long
            except BaseException:  # Ctrl-C, a second time
                end(self._process, grace_s=0.0)
                raise
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class RemoteWorker:
    """A load process that the agent at `agent` runs for us."""

    pids: tuple[int, ...] = ()

    def __init__(self, writer: str, agent: Address, token: bytes) -> None:
        self.writer = writer
        name = f"{writer} at {agent}"
        try:
            self._socket = socket.create_connection((agent.host, agent.port), CONNECT_S)
        except OSError as error:
            raise LoadFailed(
                name,
                f"no agent answers: {error.strerror or error}; start one there with "
                f"`isthmus bench agent --listen {agent}`",
            ) from None
        attend(self._socket)
        self.channel = LineChannel(name, self._socket.fileno(), self._socket.fileno())
        try:
            self.machine = greet_agent(self.channel, token, writer)
        except BaseException:
            self._socket.close()
            raise

    def failure(self) -> LoadFailed:
        return LoadFailed(self.channel.name, "the agent closed the connection")

    def gather(self, table: Table, run: str, log: Path) -> None:
        self.channel.send({"do": "fetch", "table": table, "run": run}, FETCH_S)
        try:
            head = self.channel.receive(FETCH_S)
            self._check(head, table)
            size = item(head, "bytes", int, self.channel.name)
            path = file_path(log, table, run, self.writer)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            with part.open("wb") as file:
                self.channel.receive_bytes(size, file, FETCH_S)
            part.replace(path)
        except EOFError:
            raise self.failure() from None

    def _check(self, head: ControlMessage, table: Table) -> None:
        if head.get("is") == "failed":
            raise LoadFailed(self.channel.name, item(head, "problem", str, self.channel.name))
        if (head.get("is"), head.get("table")) != ("file", table):
            raise LoadFailed(self.channel.name, f"answered {head!r} when asked for its {table}")

    def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        try:
            self.channel.send({"do": "close"}, CLOSE_S)
        except LoadFailed:
            pass  # it is gone; the agent ends the process when this connection ends
        self._socket.close()


def attend(connection: socket.socket) -> None:
    """Notice within half a minute that the other machine is gone; send every line at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(connection, idle_s=15, interval_s=5, probes=3)
