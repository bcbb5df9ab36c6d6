"""CPU time and memory of process trees and of the whole machine, from ``/proc``.

One look at ``/proc`` serves every tree of a sample.  A tree is a process, the members of its
session and the descendants of all these: brokers are often started by wrappers (RabbitMQ's
scripts, a JVM's launcher).  It ends where another watched tree begins, so nothing counts twice.

CPU time is user and system time of all threads, of children that have ended too (once their
parent has waited for them); the kernel gives it in clock ticks, 10 ms mostly.  Memory is the sum of
the members' resident sets: pages that they share count once for each.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["Snapshot", "Use", "machine_use"]

_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STAT_BYTES: Final = 1024  # /proc/PID/stat is one line of about 300
_ENDED: Final = (b"Z", b"X")


@dataclass(frozen=True, slots=True)
class Use:
    """What was used: CPU since the beginning, memory now."""

    cpu_ns: int
    rss_bytes: int


class Snapshot:
    """Every process of the machine at one moment."""

    def __init__(self) -> None:
        self._uses: dict[int, Use] = {}
        self._ended: set[int] = set()
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
        if stat[0] in _ENDED:
            self._ended.add(pid)
        self._below[parent].append(pid)
        if session not in (pid, parent):
            self._below[session].append(pid)

    def tree(self, root: int, others: Collection[int] = ()) -> set[int]:
        """The processes of `root`'s tree, without the trees of `others`."""
        if root not in self._uses:
            return set()
        members, left = {root}, [root]
        while left:
            for pid in self._below.get(left.pop(), ()):
                if pid not in members and pid not in others:
                    members.add(pid)
                    left.append(pid)
        return members

    def alive(self, pid: int) -> bool:
        return pid in self._uses and pid not in self._ended

    def use(self, roots: Collection[int], others: Collection[int] = ()) -> Use:
        """What the trees of `roots` have used, together."""
        members: set[int] = set()
        for root in roots:
            members |= self.tree(root, others)
        uses = [self._uses[pid] for pid in members]
        return Use(sum(use.cpu_ns for use in uses), sum(use.rss_bytes for use in uses))


def machine_use() -> Use:
    """All cores since the machine started, and the memory in use.

    Time that a hypervisor gave to others counts as used: nobody here had it.
    """
    with open("/proc/stat", "rb") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(
            int, file.readline().split()[1:9]
        )
    ticks = user + nice + system + irq + softirq + steal
    memory: dict[bytes, int] = {}
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name in (b"MemTotal", b"MemAvailable"):
                memory[name] = int(value.split()[0]) * 1024
    return Use(ticks * _TICK_NS, memory[b"MemTotal"] - memory[b"MemAvailable"])
