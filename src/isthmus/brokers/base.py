"""The one interface behind which every broker stands.

    create ──start()──▶ running ──stop()──▶ gone: no process, no folder
                         │   ▲
                    kill()   start()        same port, same data folder
                         ▼   │
                        crashed ──stop()──▶ gone

Invariants: :meth:`Broker.start` returns only when this very process answered a CONNECT with
return code 0; whatever happens, :meth:`Broker.stop` leaves no process and no folder behind;
the processes die with this one even when it is killed (see :mod:`isthmus.processes.children`).
"""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from isthmus.brokers.artifacts import Artifact
from isthmus.brokers.debian import DebianPackages
from isthmus.brokers.probe import connect_answer
from isthmus.errors import BrokerFailed, BrokerMissing
from isthmus.processes.children import Launch, end, launch, log_tail
from isthmus.processes.folders import OwnedFolder, clear_abandoned
from isthmus.processes.ports import free_port, owns_listener
from isthmus.processes.tree import process_tree

__all__ = ["Broker"]

_PORT_ATTEMPTS = 5
_PORT_TAKEN = re.compile(rb"already in use|eaddrinuse|BindException", re.IGNORECASE)


class Broker(ABC):
    """A broker of one make, run as a child of this process."""

    name: ClassVar[str]
    needs: ClassVar[Artifact | DebianPackages | None] = None
    protocol_levels: ClassVar[tuple[int, ...]] = (4,)  # 4 is MQTT 3.1.1, 5 is MQTT 5
    start_timeout_s: ClassVar[float] = 60.0
    stop_timeout_s: ClassVar[float] = 10.0
    java_options: ClassVar[Sequence[str]] = ()  # for makes in Java, beside their own

    def __init__(
        self, *, port: int = 0, username: str | None = None, password: str | None = None
    ) -> None:
        self.host = "127.0.0.1"
        self.port = port  # 0: chosen by the first start, kept by every later one
        self.username = username
        self.password = password
        self.start_seconds = 0.0  # how long the last start took
        self._port_is_ours = port == 0
        self._process: subprocess.Popen[bytes] | None = None
        self._companions: list[subprocess.Popen[bytes]] = []
        self._owned: OwnedFolder | None = None
        self._give_up = threading.Event()
        self._owner = 0

    # What each make says about itself.

    @classmethod
    def missing(cls) -> BrokerMissing | None:
        """None if it can be started here; otherwise what is missing and how to get it."""
        return cls.needs.missing() if cls.needs is not None else None

    @abstractmethod
    def configure(self, folder: Path) -> Launch:
        """Write its configuration into `folder`; what to run in the foreground.

        Called before every start, when the ports are chosen and the companions run; after a
        crash with the same `folder` again.
        """

    def companions(self, folder: Path) -> Sequence[Launch]:
        """Other processes it needs, started before it; they survive its crash."""
        return ()

    def choose_ports(self) -> None:
        """Choose every port of its own; called again when one turned out to be taken."""
        self.port = free_port(self.host)

    # What everybody calls.

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether its main process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The main process."""
        if self._process is None or not self.running:
            raise BrokerFailed(self.name, "is not running", self.log_tail())
        return self._process.pid

    @property
    def folder(self) -> Path | None:
        """Its temporary folder: configuration, data and `broker.log`; None when stopped."""
        return self._owned.path if self._owned is not None else None

    def process_ids(self) -> list[int]:
        """Every process that belongs to it, for the accounting of CPU and memory."""
        main = [self._process] if self._process is not None else []
        return sorted(
            pid for process in (*main, *self._companions) for pid in process_tree(process.pid)
        )

    def log_tail(self) -> str:
        """The end of what it printed."""
        return log_tail(self._log_path()) if self._owned is not None else ""

    def start(self) -> None:
        """Start it and wait until it answers.  Blocks; raises BrokerMissing or BrokerFailed."""
        if self.running:
            raise RuntimeError(f"{self.name} is already running on {self.address}")
        missing = self.missing()
        if missing is not None:
            raise missing
        self._give_up.clear()
        first = self._owned is None
        if first:
            clear_abandoned()
            self._owned = OwnedFolder(self.name)
            self._owner = os.getpid()
            atexit.register(self._stop_at_exit)
        began = time.monotonic()
        try:
            self._start_on_some_port(may_choose=first and self._port_is_ours)
        except BaseException:  # also when interrupted: leave nothing behind
            self._end_main(0)
            if first:
                self.stop()
            raise
        self.start_seconds = time.monotonic() - began

    def stop(self) -> None:
        """End all its processes and remove its folder; doing it twice does no harm."""
        self._give_up.set()
        self._end_main(self.stop_timeout_s)
        self._end_companions()
        if self._owned is not None:
            self._owned.remove()
            self._owned = None
        atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """SIGKILL, as a crash; :meth:`start` brings it back on the same port and data."""
        self._end_main(0)

    async def async_start(self) -> None:
        """:meth:`start` for a caller in an event loop; canceling it ends the broker."""
        import asyncio

        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._give_up.set()
            await asyncio.wait({starting})
            if not starting.cancelled():
                starting.exception()  # seen: the cancellation is what counts
            await asyncio.to_thread(self.stop)
            raise

    async def async_stop(self) -> None:
        """:meth:`stop` for a caller in an event loop."""
        import asyncio

        await asyncio.to_thread(self.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        return f"<{type(self).__name__} {self.address} {state}>"

    # The start, step by step.

    def _start_on_some_port(self, *, may_choose: bool) -> None:
        """Start it; when somebody else was faster on a port that we chose, choose again."""
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if may_choose:
                self.choose_ports()
            log_start = self._log_path().stat().st_size if self._log_path().exists() else 0
            try:
                self._start_processes()
                self._await_answer()
                return
            except BrokerFailed:
                taken = _PORT_TAKEN.search(self._log_since(log_start)) is not None
                if not (may_choose and taken) or attempt == _PORT_ATTEMPTS:
                    raise
                self._end_main(0)
                self._end_companions()

    def _start_processes(self) -> None:
        assert self._owned is not None
        folder = self._owned.path
        try:
            if any(process.poll() is not None for process in self._companions):
                self._end_companions()
            if not self._companions:
                for companion in self.companions(folder):
                    self._companions.append(launch(companion, self._log_path()))
            self._process = launch(self.configure(folder), self._log_path())
        except (OSError, subprocess.SubprocessError) as error:
            raise BrokerFailed(self.name, f"cannot be run: {error}", self.log_tail()) from error

    def _await_answer(self) -> None:
        assert self._process is not None
        began = time.monotonic()
        answer: int | None = None
        while (elapsed_s := time.monotonic() - began) < self.start_timeout_s:
            if self._give_up.is_set():
                raise BrokerFailed(self.name, "was stopped while it started")
            status = self._process.poll()
            if status is not None:
                problem = f"ended with status {status} while it started"
                raise BrokerFailed(self.name, problem, self.log_tail())
            answer = connect_answer(
                self.host, self.port, username=self.username, password=self.password
            )
            if answer == 0 and owns_listener(self.process_ids(), self.port):
                return
            # At most a twentieth of the start is lost by looking too rarely.
            time.sleep(min(0.1, max(0.005, elapsed_s / 20)))
        problem = f"did not accept a CONNECT on {self.address} within {self.start_timeout_s:g} s"
        if answer:
            problem += f"; it answered with return code {answer}"
        raise BrokerFailed(self.name, problem, self.log_tail())

    # Ends and traces.

    def _end_main(self, grace_s: float) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, grace_s)

    def _end_companions(self) -> None:
        for process in self._companions:
            end(process, self.stop_timeout_s)
        self._companions.clear()

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner:  # not in a forked copy of this process
            self.stop()

    def _log_path(self) -> Path:
        assert self._owned is not None
        return self._owned.path / "broker.log"

    def _log_since(self, offset: int) -> bytes:
        if self._owned is None:
            return b""
        try:
            with self._log_path().open("rb") as log:
                log.seek(offset)
                return log.read()
        except OSError:
            return b""
