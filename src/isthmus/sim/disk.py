"""A node's `state_dir` in the simulator: what a crash and bad storage can make of it.

`save_state` keeps all of the new or all of the old.  Of what `append_state` wrote last before a
crash any prefix may be left; what was appended before that is there.  A bit of a file may flip.
Files have the form of `isthmus.exchange.kept_records`, as in `isthmus.node.storage`.

What waits for destinations that are set apart (`spool`) is in files of their own: what was said to
be written survives kill -9; of what was not, any prefix may be left.  A disk that is full takes a
part of a write and says so.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from isthmus.exchange import kept_records

__all__ = ["Disk"]

SAVE_SYNC_S, APPEND_SYNC_S = 0.05, 1.0
"""What was written longer ago than this survives every crash."""


@dataclass(frozen=True, slots=True)
class _Write:
    at_s: float
    before: bytes | None
    appended: bool


@dataclass(slots=True)
class Disk:
    """Files by name, and the last write of each."""

    files: dict[str, bytes] = field(default_factory=dict)
    _last: dict[str, _Write] = field(default_factory=dict)
    spools: dict[str, bytearray] = field(default_factory=dict)
    full: bool = False
    """There is no room for what waits."""
    writing: deque[tuple[str, int, bytes]] = field(default_factory=deque)
    """To spools, in order."""

    def load(self, name: str, version: int) -> bytes | None:
        """What was kept; of what is damaged the owner reads what it can."""
        data = self.files.get(name, b"")
        return data if kept_records.read(data).is_(name, version) else None

    def save(self, name: str, state: bytes, now_s: float) -> None:
        self._last[name] = _Write(now_s, self.files.get(name), appended=False)
        self.files[name] = state

    def append(self, name: str, more: bytes, now_s: float) -> None:
        before = self.files.get(name, b"")
        self._last[name] = _Write(now_s, before, appended=True)
        self.files[name] = before + more

    def write_spool(self, rng: random.Random) -> str:
        """The next write; why it could not be done, if so."""
        file, offset, data = self.writing.popleft()
        if self.full:
            self._put(file, offset, data[: rng.randint(0, len(data))])
            return "No space left on device"
        self._put(file, offset, data)
        return ""

    def _put(self, file: str, offset: int, data: bytes) -> None:
        if data:
            content = self.spools.setdefault(file, bytearray())
            content[offset : offset + len(data)] = data

    def finish(self, rng: random.Random) -> None:
        """The process ends when all is written that can be."""
        while self.writing:
            self.write_spool(rng)

    def killed(self, rng: random.Random) -> None:
        """The process ends in the middle of writing."""
        if self.writing:
            file, offset, data = self.writing[0]
            self._put(file, offset, data[: rng.randint(0, len(data))])
        self.writing.clear()

    def torn(self, rng: random.Random, now_s: float) -> list[str]:
        """The machine stops in the middle of writing; the files that have suffered."""
        suffered = []
        for name, write in self._last.items():
            if now_s - write.at_s > (APPEND_SYNC_S if write.appended else SAVE_SYNC_S):
                continue
            if write.appended:
                kept = len(write.before or b"")
                cut = rng.randint(kept, len(self.files[name]))
                if cut < len(self.files[name]):
                    self.files[name] = self.files[name][:cut]
                    suffered.append(name)
            elif rng.random() < 0.5:
                suffered.append(name)
                if write.before is None:
                    del self.files[name]
                else:
                    self.files[name] = write.before
        self._last.clear()
        return suffered

    def flip(self, rng: random.Random) -> str:
        """One bit of one file; its name, empty if there is nothing."""
        names = sorted(name for name, content in self.files.items() if content)
        names += sorted(self.spools)
        if not names:
            return ""
        name = rng.choice(names)
        is_spool = name in self.spools
        content = self.spools[name] if is_spool else bytearray(self.files[name])
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        if not is_spool:
            self.files[name] = bytes(content)
        return name
