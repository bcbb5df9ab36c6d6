"""What is free for this process: CPU and memory, of the machine and of every group it is in.

Linux limits processes in control groups, one in another, of version 1 or 2; the least that is left
in any of them counts.  Where something cannot be read, the machine's own figures stand.

    free = FreeResources()
    free.now()      # (1.7 cores, 3,900,000,000 bytes)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

__all__ = ["FreeResources"]

LEAST_S: Final = 0.2
"""Sooner than that after the last look, nothing can be said of CPU time."""
_UNLIMITED: Final = 1 << 60


class FreeResources:
    """Looks when it is asked."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        cores: Collection[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`root` and what follows are for tests."""
        self._proc = root / "proc"
        self._groups = root / "sys" / "fs" / "cgroup"
        own = os.sched_getaffinity(0) if cores is None else cores
        self._cores = len(own)
        self._own_cores = {f"cpu{number}" for number in own}
        self._clock = clock
        self._looked_s = clock()
        self._used_s = self._cpu_used()
        self._free_cores = float(self._cores)

    def now(self) -> tuple[float, int]:
        """Cores and bytes that are free; CPU since the last look, if that was a moment ago."""
        now_s = self._clock()
        elapsed_s = now_s - self._looked_s
        if elapsed_s >= LEAST_S:
            before, self._used_s = self._used_s, self._cpu_used()
            self._looked_s = now_s
            left = [
                limit - (used_s - before[place][1]) / elapsed_s
                for place, (limit, used_s) in self._used_s.items()
                if place in before
            ]
            self._free_cores = max(0.0, min((*left, float(self._cores))))
        return self._free_cores, self._memory()

    # ---- CPU -----------------------------------------------------------------------------

    def _cpu_used(self) -> dict[Path, tuple[float, float]]:
        """Of the machine and of each group that has a quota: cores, and CPU time used."""
        found = {}
        busy, seen = 0, 0
        for line in _text(self._proc / "stat").splitlines():
            name, *words = line.split()
            if name in self._own_cores and len(words) > 7:
                ticks = [int(word) for word in words[:8]]
                busy += sum(ticks) - ticks[3] - ticks[4]  # idle, and waiting for the disk
                seen += 1
        if seen:
            found[self._proc] = float(seen), busy / os.sysconf("SC_CLK_TCK")
        for group in self._own("cpu"):
            quota = _words(group / "cpu.max")
            if len(quota) == 2 and quota[0].isdigit():
                used = _words(group / "cpu.stat")
                if used[:1] == ["usage_usec"]:
                    found[group] = int(quota[0]) / int(quota[1]), int(used[1]) / 1e6
            elif (quota_us := _number(group / "cpu.cfs_quota_us")) > 0:
                period_us = _number(group / "cpu.cfs_period_us")
                used_ns = _number(self._twin(group, "cpu", "cpuacct") / "cpuacct.usage")
                if period_us > 0 and used_ns >= 0:
                    found[group] = quota_us / period_us, used_ns / 1e9
        return found

    # ---- memory --------------------------------------------------------------------------

    def _memory(self) -> int:
        free = _UNLIMITED
        for line in _text(self._proc / "meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        for group in self._own("memory"):
            for limit, used in (
                ("memory.max", "memory.current"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            ):
                most, now = _number(group / limit), _number(group / used)
                if 0 <= most < _UNLIMITED and now >= 0:
                    free = min(free, max(0, most - now + self._reclaimable(group)))
        return free

    @staticmethod
    def _reclaimable(group: Path) -> int:
        """Pages of files that nobody uses: they count as used, and are given back when needed."""
        for line in _text(group / "memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
        return 0

    # ---- groups --------------------------------------------------------------------------

    def _own(self, controller: str) -> Iterator[Path]:
        """The groups that this process is in, the innermost first."""
        for line in _text(self._proc / "self" / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            mount = self._groups / controller if controllers else self._groups
            if not mount.is_dir():
                continue
            group = mount / path.lstrip("/")
            if not group.is_dir():
                group = mount  # a container sees its own group as the root
            while True:
                yield group
                if group == mount:
                    break
                group = group.parent

    def _twin(self, group: Path, controller: str, other: str) -> Path:
        """The group of the same name in another hierarchy of version 1."""
        return self._groups / other / group.relative_to(self._groups / controller)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _number(file: Path) -> int:
    """-1 if there is none."""
    text = _text(file).strip()
    return int(text) if text.isdigit() else -1
