"""The files of `isthmus.exchange.apart`, in `apart/` of the `state_dir`, written by one thread.

A thread of its own: what is kept in other files waits for the disk itself (fsync), these do not.  A
write is done when the kernel has it: that outlives this process, however it ends, but not the
machine.  Writes, reads and removals happen in the order in which they were asked for, and tell the
loop when they are done.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from isthmus.logs import get_logger

__all__ = ["SpoolFiles"]

log = get_logger(__name__)

T = TypeVar("T")

_NEVER: Final = frozenset((errno.ENOENT, errno.EIO))
"""What cannot be read so will not be read later either."""


class SpoolFiles:
    """One node's; files are opened for each operation, of which there are few and large ones."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._folder = folder
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "apart")
        self._closed = False

    def sizes(self) -> dict[str, int]:
        try:
            files = [each for each in self._folder.iterdir() if each.is_file()]
            return {each.name: each.stat().st_size for each in files}
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.error("what waits cannot be read", dir=str(self._folder), cause=error.strerror)
            return {}

    def load(self, file: str, size: int) -> bytes:
        return self._read(file, 0, size) or b""

    def write(self, file: str, offset: int, data: bytes, done: Callable[[str], None]) -> None:
        self._do(lambda: self._write(file, offset, data), done)

    def read(self, file: str, offset: int, size: int, done: Callable[[bytes | None], None]) -> None:
        """`done` gets less if there is less, or never will be; None if it may be read later."""
        self._do(lambda: self._read(file, offset, size), done)

    def drop(self, file: str) -> None:
        self._do(lambda: self._drop(file), lambda _: None)

    def close(self) -> None:
        """Do what was asked for; nobody is told any more."""
        self._closed = True
        self._thread.shutdown()

    # ---- in the thread -------------------------------------------------------------------

    def _do(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        if self._closed:
            return

        def run() -> None:
            result = work()
            if not self._closed:
                self._loop.call_soon_threadsafe(self._tell, done, result)

        self._thread.submit(run).add_done_callback(lambda future: future.result())

    def _tell(self, done: Callable[[T], None], result: T) -> None:
        if not self._closed:
            done(result)

    def _write(self, file: str, offset: int, data: bytes) -> str:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._folder / file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                view, at = memoryview(data), offset
                while view:
                    written = os.pwrite(handle, view, at)
                    at += written
                    view = view[written:]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, offset)  # a part of it is of no use
                raise
            finally:
                os.close(handle)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _read(self, file: str, offset: int, size: int) -> bytes | None:
        try:
            with (self._folder / file).open("rb", buffering=0) as handle:
                handle.seek(offset)
                pieces = []
                while size and (piece := handle.read(size)):
                    pieces.append(piece)
                    size -= len(piece)
                return b"".join(pieces)
        except OSError as error:
            return b"" if error.errno in _NEVER else None

    def _drop(self, file: str) -> None:
        try:
            (self._folder / file).unlink(missing_ok=True)
        except OSError as error:
            log.error("cannot be removed", file=str(self._folder / file), cause=error.strerror)
