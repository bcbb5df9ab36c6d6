"""Temporary folders that are cleared away even when their owner could not.

Each folder holds a file `owner` on which the process that made it keeps a lock.  The kernel
drops the lock when that process ends, however it ends, so :func:`clear_abandoned` can tell a
folder that a killed process left behind from one in use; unlike a process id in the name, a
lock is also right when processes in several containers share one temporary folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["OwnedFolder", "clear_abandoned"]

_PREFIX = "isthmus-"
_OWNER = "owner"


class OwnedFolder:
    """A new folder `isthmus-NAME-…`; ours until :meth:`remove`."""

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-"))
        # Locked first and named second: nobody ever sees the file without its lock.
        unnamed = self.path / f"{_OWNER}.new"
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _OWNER)

    def remove(self) -> None:
        """Remove it with everything in it, and let go of it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def clear_abandoned() -> list[Path]:
    """Remove this user's folders whose owner is gone; those that were removed."""
    removed: list[Path] = []
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            if owner.stat().st_uid != os.getuid():
                continue
            lock = os.open(owner, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its owner is alive
            continue
        else:
            shutil.rmtree(owner.parent, ignore_errors=True)
            removed.append(owner.parent)
        finally:
            os.close(lock)
    return removed
