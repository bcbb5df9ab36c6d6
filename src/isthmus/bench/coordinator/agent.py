"""An agent: runs load processes on this machine for a coordinator on another.

One connection is one load process: the greeting (:mod:`isthmus.bench.coordinator.agent_hello`),
then the control protocol passed on line by line.  Two things are the agent's own: it has the
process write its log into a temporary folder here, and ``{"do": "fetch", "run", "table"}`` hands a
file over::

    {"is": "file", "table": …, "bytes": n}  then n bytes

after which the file is removed, so the folder holds one measurement at a time.

Invariants: bytes that mean nothing, or come without the token, end that connection and nothing
else; a load process ends with its connection; at most `MAX_CONNECTIONS` at a time, a further one is
told so and closed; a connection buffers one line and one chunk of a file.
"""

from __future__ import annotations

import platform
import selectors
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from isthmus.bench.coordinator.agent_hello import greet_coordinator, read_token
from isthmus.bench.coordinator.control import (
    CHUNK_BYTES,
    MAX_LINE_BYTES,
    ControlMessage,
    LineChannel,
    item,
)
from isthmus.bench.coordinator.workers import COMMAND, LocalWorker, attend
from isthmus.config.addresses import Address
from isthmus.errors import LoadError, LoadFailed
from isthmus.fabric.processes import interruptible
from isthmus.logs import configure, get_logger
from isthmus.pipeline.log.run_files import is_run_name
from isthmus.pipeline.log.schema import TABLES, file_path
from isthmus.processes.folders import OwnedFolder

__all__ = ["MAX_CONNECTIONS", "Agent", "serve"]

MAX_CONNECTIONS: Final = 64
GREETING_BYTES: Final = 4096
SEND_S: Final = 30.0
LEAVE_S: Final = 15.0

log = get_logger(__name__)


class Agent:
    """Listens when made, serves when told; `close` may come from any thread."""

    def __init__(self, listen: Address, token: bytes, command: Sequence[str] = COMMAND) -> None:
        self._token = token
        self._command = command
        self._listener = _listener(listen)
        host, port = self._listener.getsockname()[:2]
        self.address = Address(host, port)
        self._closed = False
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}

    def serve(self) -> None:
        """Until `close`."""
        while True:
            try:
                connection, remote = self._listener.accept()
            except ConnectionAbortedError:
                continue  # it left before it was let in
            except OSError:
                if self._closed:
                    return
                raise
            address = str(Address(*remote[:2]))
            thread = threading.Thread(target=self._visit, args=(connection, address), name=address)
            with self._lock:
                if self._closed or len(self._open) >= MAX_CONNECTIONS:
                    _refuse(connection, f"runs {MAX_CONNECTIONS} load processes, which is all")
                    continue
                self._open[connection] = thread
                thread.start()

    def close(self) -> None:
        """End every connection with its load process, and the listener."""
        with self._lock:
            self._closed = True
            threads = list(self._open.values())
            # Not closed, which would not wake whoever waits on them.
            for connection in (self._listener, *self._open):
                _shut(connection)
        self._listener.close()
        for thread in threads:
            thread.join(LEAVE_S)

    def _visit(self, connection: socket.socket, remote: str) -> None:
        channel = LineChannel(
            remote, connection.fileno(), connection.fileno(), max_line_bytes=GREETING_BYTES
        )
        try:
            attend(connection)
            writer = greet_coordinator(channel, self._token, platform.node())
            channel.max_line_bytes = MAX_LINE_BYTES
            log.info("load process started", writer=writer, coordinator=remote)
            with ExitStack() as stack:
                folder = OwnedFolder(f"agent-{writer}")
                stack.callback(folder.remove)
                worker = LocalWorker(writer, folder.path, self._command)
                stack.callback(worker.close)
                _Relay(channel, worker, folder.path / "log").run()
            log.info("load process ended", writer=writer, coordinator=remote)
        except EOFError:
            log.info("connection ended in its greeting", remote=remote)
        except LoadFailed as error:
            log.warning("connection refused or failed", remote=remote, problem=str(error))
            _tell_failure(channel, error)
        except OSError as error:  # a full disk, no more processes
            log.warning("connection failed", remote=remote, problem=str(error))
            _tell_failure(channel, LoadFailed(remote, f"the agent cannot: {error}"))
        finally:
            with self._lock:
                del self._open[connection]
            connection.close()


class _Relay:
    """Between a coordinator and the load process that it asked for."""

    def __init__(self, coordinator: LineChannel, worker: LocalWorker, log: Path) -> None:
        self._coordinator = coordinator
        self._worker = worker
        self._log = log

    def run(self) -> None:
        """Pass lines on, both ways, until the coordinator has gone or asks to close."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._coordinator, selectors.EVENT_READ)
            selector.register(self._worker.channel, selectors.EVENT_READ)
            while True:
                if not self._from_coordinator():
                    return
                self._from_worker()
                selector.select()

    def _from_coordinator(self) -> bool:
        try:
            while (message := self._coordinator.next()) is not None:
                match message.get("do"):
                    case "close":
                        return False
                    case "fetch":
                        self._hand_over(message)
                    case "measure":
                        self._pass_on(message | {"log": str(self._log)})
                    case _:
                        self._pass_on(message)
        except EOFError:
            return False
        return True

    def _pass_on(self, message: ControlMessage) -> None:
        if "run" in message:
            self._run(message)
        self._worker.channel.send(message, SEND_S)

    def _from_worker(self) -> None:
        try:
            while (message := self._worker.channel.next()) is not None:
                if message.get("is") == "failed":
                    message = {"log": self._worker.log_tail()} | message
                self._coordinator.send(message, SEND_S)
        except EOFError:
            raise self._worker.failure() from None

    def _hand_over(self, message: ControlMessage) -> None:
        table = item(message, "table", str, self._coordinator.name)
        if table not in TABLES:
            raise LoadFailed(self._coordinator.name, f"asked for {table!r}, which is not a table")
        path = file_path(self._log, table, self._run(message), self._worker.writer)
        try:
            file = path.open("rb")
        except OSError as error:
            raise LoadFailed(self._worker.writer, f"has no {table} of that run: {error}") from None
        with file:
            size = path.stat().st_size
            self._coordinator.send({"is": "file", "table": table, "bytes": size}, SEND_S)
            while chunk := file.read(CHUNK_BYTES):
                self._coordinator.send_bytes(chunk, SEND_S)
        path.unlink()

    def _run(self, message: ControlMessage) -> str:
        run = item(message, "run", str, self._coordinator.name)
        if not is_run_name(run):
            raise LoadFailed(self._coordinator.name, f"{run!r} is not the name of a run")
        return run


def serve(listen: Address, token_file: Path, command: Sequence[str] = COMMAND) -> int:
    """Run an agent until Ctrl-C or SIGTERM; the process's exit code."""
    configure()
    agent = Agent(listen, read_token(token_file), command)
    try:
        with interruptible():
            print(f"agent on {agent.address}; Ctrl-C ends it", flush=True)
            agent.serve()
    except KeyboardInterrupt:
        return 0
    finally:
        agent.close()
    return 0


def _listener(listen: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((listen.host, listen.port), family=family)
    except OSError as error:
        raise LoadError(
            f"the agent cannot listen on {listen}: {error.strerror or error}; give an address of "
            "this machine and a free port, like 127.0.0.1:7900"
        ) from None


def _refuse(connection: socket.socket, problem: str) -> None:
    channel = LineChannel("stranger", connection.fileno(), connection.fileno())
    _tell_failure(channel, LoadFailed("agent", problem))
    connection.close()


def _tell_failure(channel: LineChannel, error: LoadFailed) -> None:
    try:
        channel.send(
            {"is": "failed", "problem": error.problem, "log": error.log_tail}, timeout_s=1.0
        )
    except LoadFailed:
        pass  # whoever it was is gone


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end was faster
