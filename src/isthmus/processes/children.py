"""Child processes that never outlive this one.

* A child gets a session of its own, so that Ctrl-C and other signals to our process group do
  not reach it, and everything it starts can be found again.
* The kernel kills it when we die, however we die (`PR_SET_PDEATHSIG`).  That signal follows
  the death of the *thread* that forked, so every child is started by one thread that lives as
  long as this process.
* :func:`end` asks politely, waits, then kills whatever is left of the child's session.
"""

from __future__ import annotations

import ctypes
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.processes.tree import Snapshot

__all__ = ["Launch", "end", "find_executable", "launch", "log_tail"]

# Where Debian keeps brokers; not on an ordinary user's PATH.
SYSTEM_FOLDERS: tuple[str, ...] = ("/usr/local/sbin", "/usr/sbin", "/sbin")

_PR_SET_PDEATHSIG = 1
_KILL_DEADLINE_S = 5.0
_TAIL_BYTES = 4000
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run: `env` is added to our own environment."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    pipe_stdin: bool = False  # the child sees end of file when we die or close it
    pipe_stdout: bool = False  # then only its standard error goes to the log


def find_executable(name: str) -> str | None:
    """The path of `name` on PATH or in the system's folders."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


class _Spawner:
    """One thread that starts every child; it ends only with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def _serve(self) -> None:
        while True:
            self._jobs.get()()

    def run(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        started: Future[subprocess.Popen[bytes]] = Future()

        def job() -> None:
            try:
                started.set_result(start())
            except (OSError, subprocess.SubprocessError) as error:
                started.set_exception(error)

        with self._lock:
            # After os.fork() the thread exists in the parent only.
            if self._thread is None or not self._thread.is_alive():
                self._jobs = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._serve, name="spawner", daemon=True)
                self._thread.start()
            self._jobs.put(job)
        return started.result()


_spawner = _Spawner()


def _die_with_parent() -> Callable[[], None] | None:
    """What the child runs between fork and exec; all that it needs is loaded here, before."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # we died in between: no signal will come
            os._exit(1)

    return in_child


def launch(what: Launch, log: Path) -> subprocess.Popen[bytes]:
    """Start `what` with its outputs appended to `log`."""
    in_child = _die_with_parent()

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                list(what.argv),
                env={**os.environ, **what.env},
                cwd=what.cwd,
                stdin=subprocess.PIPE if what.pipe_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE if what.pipe_stdout else output,
                stderr=output,
                start_new_session=True,
                preexec_fn=in_child,  # noqa: PLW1509 - it needs no lock: one system call
            )

    return _spawner.run(start)


def log_tail(log: Path, lines: int = 25) -> str:
    """The end of what a child printed, without colors; nothing if there is no such file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(_COLORS.sub("", text).strip().splitlines()[-lines:])


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM, wait at most `grace_s`, then SIGKILL whatever is left of what it started.

    With no grace it is a crash: SIGKILL at once.  Returns when all of it is gone.
    """
    # Taken before the first signal: once its parent is dead, a descendant that has left the
    # session cannot be told from a stranger.
    ours = Snapshot().running(process.pid)
    if grace_s > 0 and process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while time.monotonic() < deadline:
        now = Snapshot()
        left = set(now.running(process.pid))
        left |= {pid for pid, started in ours.items() if now.alive(pid, started)}
        for pid in left:
            _kill(pid)
        if process.poll() is not None and not left:
            break
        time.sleep(0.005)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
