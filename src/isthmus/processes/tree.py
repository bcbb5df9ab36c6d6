"""Process trees, their CPU time and memory: one look at ``/proc`` serves every tree.

A tree is a process, the members of its session and the descendants of all these: brokers are often
started by wrappers (RabbitMQ's scripts, a JVM's launcher), which may end before them.

CPU time is user and system time of all threads, of children that have ended too (once their
parent has waited for them); the kernel gives it in clock ticks, 10 ms mostly.  Memory is the sum of
the members' resident sets: pages that they share count once for each.

psutil would read four files of every process for this, and take five times as long.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

__all__ = ["Snapshot", "Use", "process_tree"]

_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STAT_BYTES: Final = 1024  # /proc/PID/stat is one line of about 300


class Use(NamedTuple):
    """What was used: CPU since the beginning, memory now."""

    cpu_ns: int
    rss_bytes: int


class Snapshot:
    """Every process of the machine at one moment."""

    def __init__(self) -> None:
        self._uses: dict[int, Use] = {}
        self._started: dict[int, int] = {}
        """Of those that have not ended, in clock ticks since boot."""
        self._below: defaultdict[int, list[int]] = defaultdict(list)
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                self._take(int(entry))

    def _take(self, pid: int) -> None:
        try:
            file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
            try:
                line = os.read(file, _STAT_BYTES)
            finally:
                os.close(file)
        except OSError:  # it ended since the folder was listed
            return
        # The command, in parentheses, may itself contain spaces and parentheses.
        stat = line[line.rindex(b")") + 2 :].split()
        parent, session = int(stat[1]), int(stat[3])
        ticks = sum(map(int, stat[11:15]))  # user, system, and both of children waited for
        self._uses[pid] = Use(ticks * _TICK_NS, int(stat[21]) * _PAGE_BYTES)
        if stat[0] not in (b"Z", b"X"):
            self._started[pid] = int(stat[19])
        self._below[parent].append(pid)
        if session not in (pid, parent):
            self._below[session].append(pid)

    def tree(self, root: int, others: Collection[int] = ()) -> set[int]:
        """The processes of `root`'s tree, without the trees of `others`."""
        members, left = {root}, [root]
        while left:
            for pid in self._below.get(left.pop(), ()):
                if pid not in members and pid not in others:
                    members.add(pid)
                    left.append(pid)
        return members & self._uses.keys()

    def running(self, root: int) -> dict[int, int]:
        """The processes of `root`'s tree that have not ended, and when each was started.

        That tells a process from a later one with its number.
        """
        return {pid: self._started[pid] for pid in self.tree(root) if pid in self._started}

    def alive(self, pid: int, started: int | None = None) -> bool:
        """Whether that process has not ended; with `started`, that it is the one of then."""
        found = self._started.get(pid)
        return found is not None and started in (None, found)

    def use(self, roots: Collection[int], others: Collection[int] = ()) -> Use:
        """What the trees of `roots` have used, together."""
        members: set[int] = set()
        for root in roots:
            members |= self.tree(root, others)
        uses = [self._uses[pid] for pid in members]
        return Use(sum(use.cpu_ns for use in uses), sum(use.rss_bytes for use in uses))


def process_tree(pid: int) -> list[int]:
    """`pid`, the members of its session, and the descendants of all these; alive ones only."""
    return sorted(Snapshot().running(pid))
