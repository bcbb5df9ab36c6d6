"""The `state_dir`: what must survive a restart, written by one thread, read at the start.

    lock              held (flock) as long as the node runs; says by whom
    owner.state       the id of the node that the folder belongs to
    <name>.state      what is kept under a name, in the form of `isthmus.exchange.kept_records`
    <name>.new        one that is being written; it takes the other's place when it is whole
    <name>.damaged    a copy of one of which not all could be read
    <name>.refused    a copy of one that another version of Isthmus has written

Writing never holds the event loop.  Of several saves under one name the last counts; appends and
pieces of a rewrite are written in their order.  At most `MAX_WAITING_BYTES` wait for the disk; then
the name that would exceed it is *lost*: its owner is asked to write all of it anew.

A fault of the disk (full, read-only, gone) is told once, makes the node not ready, and is tried
again with growing pauses.  Saves wait meanwhile; what was to be appended is lost, and as soon as
the disk takes something again its owner writes all of it anew.  The fault is over when everything
is written.

No file keeps a node from starting: what can be read is read, the rest is told and kept aside.  Only
a folder that another node uses, or that is another node's, does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from isthmus.errors import StateError
from isthmus.exchange import kept_records
from isthmus.logs import get_logger

__all__ = ["Rewrite", "Storage"]

MAX_WAITING_BYTES: Final = 64 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
LOG_AGAIN_S: Final = 300.0
CLOSE_S: Final = 5.0
PROBE_BYTES: Final = 4096
_FORMER_NAMES: Final = {"algorithm": "client-sessions"}
"""What files were called before, and what is in them."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Operation:
    """Something for the thread to do; `run` raises `OSError` if the disk does not let it."""

    name: str
    size: int
    run: Callable[[], None]
    given_up: Callable[[], None] = lambda: None
    """Called if it is not going to be run."""
    is_save: bool = False
    """Of which there is only one of each name, tried until it works."""


class Storage:
    """One node's folder; `lost` is called, in the writing thread, with a name to write anew."""

    def __init__(self, folder: Path, node_id: str, lost: Callable[[str], None]) -> None:
        self.folder = folder
        self._node_id = node_id
        self._lost_told = lost
        self._lock_file = -1
        self._wake = threading.Condition()
        self._saves: dict[str, bytes] = {}
        """The last state of each name that is to be saved."""
        self._operations: deque[_Operation] = deque()
        self._waiting_bytes = 0
        self._broken: set[str] = set()
        """Names of which something was not written, until all of it has been written anew."""
        self._unasked: set[str] = set()
        """Those of them whose owner has not been asked to."""
        self._problem = ""
        self._told_problem = ""
        self._told_s = 0.0
        self._failures = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    # ---- life ----------------------------------------------------------------------------

    def open(self) -> None:
        """Make the folder this node's; raises `StateError` if it is another's."""
        try:
            self._take()
        except OSError as error:
            self._fault(error)

    def _take(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StateError(f"node.state_dir {self.folder} is not a folder") from None
        self._lock_file = self._lock()
        records = kept_records.read(self.load("owner", 1) or b"").records
        owner = records[0].decode(errors="replace") if records else ""
        if owner and owner != self._node_id:
            self._unlock()
            raise StateError(
                f"node.state_dir {self.folder} belongs to node {owner!r}, not {self._node_id!r}: "
                "give each node a folder of its own; if it is the same node under another id, "
                f"remove {self._path('owner')}"
            )
        self._rename_former()
        if not owner:
            self.save("owner", kept_records.write("owner", 1, [self._node_id.encode()]))

    def _rename_former(self) -> None:
        """Take up files of the version before, which had other names."""
        for former, name in _FORMER_NAMES.items():
            path = self._path(former)
            if path.is_file() and not self._path(name).exists():
                header = kept_records.read_header(path.read_bytes())
                if header is not None and header.name == name:
                    path.replace(self._path(name))

    def _lock(self) -> int:
        path = self.folder / "lock"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOSPC):
                raise
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # enough for the lock itself
            except OSError:
                raise error from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            by = os.pread(file, 200, 0).decode(errors="replace").strip()
            os.close(file)
            raise StateError(
                f"node.state_dir {self.folder} is in use by {by or 'another node'}: "
                "give each node a folder of its own"
            ) from None
        except OSError as error:
            log.warning("state_dir cannot be locked", file=str(path), cause=error.strerror)
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"node {self._node_id}, process {os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # it only names who holds the lock, which is held
        return file

    def _unlock(self) -> None:
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def close(self) -> None:
        """Write what waits, for `CLOSE_S` at most."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        with self._wake:
            unwritten = sorted({*self._saves, *self._broken, *(op.name for op in self._operations)})
        if unwritten:
            log.error("state is not written", names=" ".join(unwritten), cause=self._problem)
        self._unlock()

    @property
    def problem(self) -> str:
        """Why not everything that is to be kept is kept; empty if it is."""
        return self._problem

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def status(self) -> dict[str, object]:
        return {
            "dir": str(self.folder),
            "problem": self._problem,
            "faulty": bool(self._problem),
            "failures": self._failures,
            "waiting_bytes": self._waiting_bytes,
        }

    # ---- reading -------------------------------------------------------------------------

    def load(self, name: str, version: int) -> bytes | None:
        """What was kept under `name`; of what is damaged the owner reads what it can."""
        path = self._path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("kept state cannot be read", file=str(path), cause=error.strerror)
            return None
        kept = kept_records.read(data)
        for start, end in kept.damage:
            log.error(
                "kept state is damaged; what can be read is read, the file is kept aside",
                file=str(path),
                offset=start,
                bytes=end - start,
                aside=path.with_suffix(".damaged").name,
            )
        if kept.damage:
            self._keep_aside(path, ".damaged")
        if kept.header is None:
            return None
        if not kept.is_(name, version):
            log.error(
                "kept state is not of a version that is read here; the file is kept aside",
                file=str(path),
                found=f"{kept.header.name} version {kept.header.version}",
                expected=f"{name} version {version}",
                aside=path.with_suffix(".refused").name,
            )
            self._keep_aside(path, ".refused")
            return None
        return data

    def _keep_aside(self, path: Path, suffix: str) -> None:
        import shutil  # seldom needed, and takes long to import

        try:
            shutil.copyfile(path, path.with_suffix(suffix))
        except OSError as error:
            log.error("cannot be kept aside", file=str(path), cause=error.strerror)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.state"

    # ---- writing -------------------------------------------------------------------------

    def save(self, name: str, state: bytes) -> None:
        """Keep `state` in place of what was kept under `name`; all of it or nothing."""
        with self._wake:
            self._discard(name)  # what was to be appended to the state before
            self._broken.discard(name)
            self._unasked.discard(name)
            queued = name in self._saves
            self._saves[name] = state
            if not queued:
                self._queue(_Operation(name, 0, partial(self._write_save, name), is_save=True))

    def append(self, name: str, more: bytes) -> None:
        """Add to what is kept under `name`; a crash may leave only a part of it."""
        with self._wake:
            if name not in self._broken:
                self._queue(_Operation(name, len(more), partial(self._write_more, name, more)))

    def rewrite(self, name: str) -> Rewrite:
        """Write anew what is kept under `name`, piece by piece."""
        return Rewrite(self, name)

    def queue(self, operation: _Operation) -> None:
        with self._wake:
            self._queue(operation)

    def _queue(self, operation: _Operation) -> None:
        if self._waiting_bytes + operation.size > MAX_WAITING_BYTES and operation.size:
            operation.given_up()
            self._lose(operation.name, "the disk is too slow")
            return
        self._waiting_bytes += operation.size
        self._operations.append(operation)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="state", daemon=True)
            self._thread.start()
        self._wake.notify()

    def _lose(self, name: str, cause: str) -> None:
        """What was to be appended to `name` is not: its owner has to write all of it anew."""
        self._broken.add(name)
        self._unasked.add(name)
        self._discard(name)
        self._note_problem(cause)
        self._wake.notify()

    def _discard(self, name: str) -> None:
        """Nothing of what waits for `name` is to be written, except for a save."""
        for operation in [each for each in self._operations if each.name == name]:
            if not operation.is_save:
                self._operations.remove(operation)
                self._waiting_bytes -= operation.size
                operation.given_up()

    # ---- the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._operations or self._unasked or self._closing)
                if not self._operations and self._closing:
                    return
                operation = self._operations.popleft() if self._operations else None
                closing = self._closing
            try:
                if self._lock_file < 0:
                    self._take()
                if operation is None:
                    self._probe()
                else:
                    operation.run()
            except (OSError, StateError) as error:
                with self._wake:
                    self._failed(operation, error)
                    if closing:  # who began before that tries once more
                        return
                    self._wake.wait_for(lambda: self._closing, pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            else:
                if self._worked(operation):
                    pause_s = FIRST_PAUSE_S

    def _failed(self, operation: _Operation | None, error: OSError | StateError) -> None:
        """Note it, and keep what can be tried again."""
        self._fault(error)
        if operation is None:
            return
        if operation.is_save:
            self._operations.appendleft(operation)
        else:
            self._waiting_bytes -= operation.size
            self._lose(operation.name, self._problem)

    def _worked(self, operation: _Operation | None) -> bool:
        """The disk took something: ask for what was lost, and see whether the fault is over."""
        with self._wake:
            if operation is not None:
                self._waiting_bytes -= operation.size
            unasked, self._unasked = self._unasked, set()
            over = not (self._broken or self._saves)
            if over and self._problem:
                self._note_problem("")
        for name in unasked:
            self._lost_told(name)
        return over

    def _write_save(self, name: str) -> None:
        """The last state of a name, in place of the one before."""
        with self._wake:
            state = self._saves.pop(name, None)
        if state is None:
            return
        path = self._path(name)
        fresh = path.with_suffix(".new")
        try:
            _write_whole(fresh, state)
            _put_in_place(fresh, path)
        except OSError:
            with self._wake:
                self._saves.setdefault(name, state)  # a later one counts, if there is one by now
            raise

    def _write_more(self, name: str, more: bytes) -> None:
        with self._path(name).open("ab") as file:
            file.write(more)
            file.flush()
            os.fsync(file.fileno())

    def rewritten(self, name: str) -> None:
        with self._wake:
            self._broken.discard(name)
            self._unasked.discard(name)

    def _probe(self) -> None:
        """Whether the disk takes anything."""
        path = self.folder / "probe.new"
        try:
            _write_whole(path, bytes(PROBE_BYTES))
        finally:
            _remove(path)

    def _fault(self, error: OSError | StateError) -> None:
        self._failures += 1
        text = str(error) if isinstance(error, StateError) else (error.strerror or str(error))
        self._note_problem(text)

    def _note_problem(self, problem: str) -> None:
        now_s = time.monotonic()
        self._problem = problem
        if not problem:
            log.info("state is kept again", dir=str(self.folder))
            self._told_problem = ""
        elif problem != self._told_problem or now_s - self._told_s > LOG_AGAIN_S:
            log.error(
                "state cannot be kept: after a crash, messages may be lost",
                dir=str(self.folder),
                cause=problem,
            )
            self._told_problem, self._told_s = problem, now_s


class Rewrite:
    """`isthmus.exchange.host.StateRewrite`; after a fault all further pieces are in vain."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._name = name
        self._in_vain = False
        self._storage = storage
        self._path = storage.folder / f"{name}.new"
        self._begun = False

    @property
    def waiting_bytes(self) -> int:
        return self._storage.waiting_bytes

    def write(self, piece: bytes) -> None:
        self._queue(len(piece), partial(self._write, piece))

    def commit(self) -> None:
        self._queue(0, partial(self._write, None))

    def _queue(self, size: int, run: Callable[[], None]) -> None:
        self._storage.queue(_Operation(self._name, size, run, self._give_up))

    def _give_up(self) -> None:
        self._in_vain = True

    def _write(self, piece: bytes | None) -> None:
        """A piece; None is the end, which puts all of it in place."""
        if self._in_vain:
            return
        try:
            with self._path.open("ab" if self._begun or piece is None else "wb") as file:
                self._begun = True
                if piece is not None:
                    file.write(piece)
                    return
                os.fsync(file.fileno())
            _put_in_place(self._path, self._path.with_suffix(".state"))
        except OSError:
            self._in_vain = True
            if piece is not None:
                _remove(self._path)
            raise
        self._storage.rewritten(self._name)


def _write_whole(path: Path, data: bytes) -> None:
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        _remove(path)  # a full disk needs the room
        raise


def _put_in_place(fresh: Path, path: Path) -> None:
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # on a disk that lets nothing be changed there is nothing to remove
