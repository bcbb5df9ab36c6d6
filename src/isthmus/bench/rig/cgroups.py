"""CPU quotas: a server of a tenth of a core, by a control group of the kernel.

    BASE/isthmus-PID-N-n1          the server: `cpu` cores
    BASE/isthmus-PID-N-n1/broker   each process of it: at most `cpu_per_process` cores, if given
    BASE/isthmus-PID-N-n1/node

A group may use `cpu` x period of CPU time in each period and then waits for the next one; what its
quota allows it has before processes without one.  Both versions of the kernel's interface are
known: v1 (a hierarchy for the controller `cpu`) and v2 (one hierarchy; ``cpu`` must be handed down
to children, and a group with children that it is handed down to can hold no processes itself).

Invariants:

* processes are put into a group with everything they have started, and it is verified that they
  are in it;
* :meth:`CpuQuotas.release` leaves no group behind; what a killed process left is removed by the
  next one.  An owner keeps a lock on its groups, which the kernel drops when the owner ends.
* what is missing (the controller, the permission) is told by a :class:`QuotaUnavailable`.

Source: Linux ``Documentation/scheduler/sched-bwc.rst``, ``admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from isthmus.errors import QuotaUnavailable

__all__ = ["CpuQuotas", "Hierarchy", "Quota", "clear_abandoned", "find_hierarchy"]

LEAST_US = 1_000  # of CPU time in a period, and of a period
LONGEST_PERIOD_US = 1_000_000
PLACING_PASSES = 20  # a process that forks meanwhile leaves a child outside
REMOVAL_DEADLINE_S = 5.0
PREFIX = "isthmus-"
LEAF = "load"

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Quota:
    """So much CPU time in each period."""

    quota_us: int
    period_us: int

    @classmethod
    def of(cls, cpu: float, period_s: float) -> Quota:
        """`cpu` cores; the period is lengthened where the kernel would find the quota too short."""
        period_us = min(max(period_s * 1e6, LEAST_US / cpu, LEAST_US), LONGEST_PERIOD_US)
        return cls(max(round(cpu * period_us), LEAST_US), round(period_us))

    @property
    def cpu(self) -> float:
        """In cores."""
        return self.quota_us / self.period_us


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where this machine keeps CPU groups, and how they are written."""

    version: Literal[1, 2]
    base: Path
    """The group below which ours are made."""
    outside: Path
    """The group that processes go to when they leave ours."""

    def limit(self, group: Path, quota: Quota) -> None:
        """Give `group` its quota."""
        if self.version == 2:
            _write(group / "cpu.max", f"{quota.quota_us} {quota.period_us}")
        else:
            _write(group / "cpu.cfs_period_us", str(quota.period_us))
            _write(group / "cpu.cfs_quota_us", str(quota.quota_us))

    def prefer(self, group: Path) -> None:
        """Let `group` have what its quota allows even while others keep the machine busy.

        A server of one's own does not wait for strangers.
        """
        if self.version == 2:
            _write(group / "cpu.weight", str(10 * 100))
        else:
            _write(group / "cpu.shares", str(10 * 1024))

    def hand_down(self, group: Path) -> None:
        """Let groups below `group` have quotas of their own."""
        if self.version == 2:
            _write(group / "cgroup.subtree_control", "+cpu")

    def throttled_ns(self, group: Path) -> int:
        """How long `group` was kept waiting by its quota, summed over the cores it would use."""
        stat = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return (
            int(stat["throttled_usec"]) * 1000 if self.version == 2 else int(stat["throttled_time"])
        )


class CpuQuotas:
    """The groups of some servers, each of `cpu` cores; a context manager."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        cpu: float | None,
        cpu_per_process: float | None = None,
        period_s: float,
    ) -> None:
        if cpu is not None and cpu_per_process is not None:
            cpu_per_process = min(cpu, cpu_per_process)
        self.notes: list[str] = []
        self._hierarchy = hierarchy
        self._of_server = self._quota(cpu, period_s)
        self._of_process = self._quota(cpu_per_process, period_s)
        self._groups: dict[str, Path] = {}
        self._parts: dict[tuple[str, str], Path] = {}
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def place(self, server: str, processes: Mapping[str, Callable[[], Iterable[int]]]) -> None:
        """Put the `processes` of `server` under its quota.

        Each is a name and what gives the ids of all that belongs to it now.  Raises
        `QuotaUnavailable`; what was placed until then stays until :meth:`release`.
        """
        try:
            group, lock = _locked_group(self._hierarchy.base, server)
            self._exit.callback(os.close, lock)
            self._exit.callback(_remove, group, self._hierarchy.outside)
            self._groups[server] = group
            self._hierarchy.prefer(group)
            if self._of_server is not None:
                self._hierarchy.limit(group, self._of_server)
            if self._of_process is not None:
                self._hierarchy.hand_down(group)
            for name, ids in processes.items():
                _fill(self._part(server, name), ids)
        except OSError as error:
            raise QuotaUnavailable(f"{error.filename or 'a CPU group'}: {error.strerror}") from None

    def replace(self, server: str, process: str, ids: Callable[[], Iterable[int]]) -> None:
        """`process` of `server` was started anew, and belongs where the one before it was."""
        try:
            _fill(self._parts.get((server, process), self._groups[server]), ids)
        except OSError as error:
            raise QuotaUnavailable(f"{error.filename or 'a CPU group'}: {error.strerror}") from None

    def throttled_ns(self, server: str, process: str | None = None) -> int | None:
        """How long quotas have kept `server` waiting, or one process of it by its own quota.

        None where there is no such quota.
        """
        if process is not None:
            part = self._parts.get((server, process))
            return None if part is None else self._hierarchy.throttled_ns(part)
        if server not in self._groups:
            return None
        groups = [self._groups[server]]
        groups += [part for (owner, _), part in self._parts.items() if owner == server]
        return sum(self._hierarchy.throttled_ns(group) for group in groups)

    def release(self) -> None:
        """Let every process go on without a quota, and remove the groups."""
        self._groups.clear()
        self._parts.clear()
        self._exit.close()

    def _part(self, server: str, process: str) -> Path:
        """The group for one process: its own, or the server's."""
        group = self._groups[server]
        if self._of_process is None:
            return group
        part = group / process
        _make(part)
        self._exit.callback(_remove, part, self._hierarchy.outside)
        self._hierarchy.limit(part, self._of_process)
        self._parts[server, process] = part
        return part

    def _quota(self, cpu: float | None, period_s: float) -> Quota | None:
        if cpu is None:
            return None
        quota = Quota.of(cpu, period_s)
        if quota.cpu > 1.01 * cpu:
            note = (
                f"the kernel's smallest quota is {quota.cpu:g} cores, so that is given, not {cpu:g}"
            )
        elif quota.period_us > 1.01 * period_s * 1e6:
            note = (
                f"{cpu:g} cores in periods of {period_s * 1e3:g} ms are less than the kernel's "
                f"least of 1 ms; the period is {quota.period_us / 1e3:g} ms"
            )
        else:
            return quota
        self.notes.append(note)
        return quota


def _locked_group(base: Path, server: str) -> tuple[Path, int]:
    """A new group for `server`, and the descriptor that keeps its lock."""
    while True:
        group = base / f"{PREFIX}{os.getpid()}-{next(_numbers)}-{server}"
        try:
            _make(group)
            lock = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, FileNotFoundError):
            if not base.is_dir():
                raise
            continue  # left by one with our number, or taken for abandoned before it was locked
        fcntl.flock(lock, fcntl.LOCK_EX)
        if group.is_dir():
            return group, lock
        os.close(lock)


def clear_abandoned(hierarchy: Hierarchy) -> list[Path]:
    """Remove groups whose owner is gone and that are empty; those that were removed."""
    removed: list[Path] = []
    for group in sorted(hierarchy.base.glob(f"{PREFIX}*-*-*")):
        try:
            lock = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for part in (*(each for each in group.iterdir() if each.is_dir()), group):
                _unmake(part)
            removed.append(group)
        except OSError:  # its owner is alive, or what it left is
            continue
        finally:
            os.close(lock)
    return removed


def find_hierarchy(proc: Path = Path("/proc")) -> Hierarchy:
    """Where groups can be made here; raises `QuotaUnavailable` with the reason if nowhere."""
    try:
        mounts = [line.split() for line in (proc / "self/mounts").read_text().splitlines()]
    except OSError as error:
        raise QuotaUnavailable(f"{proc}/self/mounts: {error.strerror}") from None
    for _, mount, kind, options, *_ in mounts:
        if kind == "cgroup" and "cpu" in options.split(","):
            base = _own_group(Path(mount), "cpu", proc)
            return _usable(Hierarchy(1, base, base))
    problems: list[str] = []
    for _, mount, kind, *_ in mounts:
        if kind != "cgroup2":
            continue
        # As root, at the top; a user who was given a group of his own, below that.
        for base in dict.fromkeys((Path(mount), _own_group(Path(mount), "", proc))):
            try:
                return _delegated(base, Path(mount), proc)
            except QuotaUnavailable as problem:
                problems.append(str(problem))
    raise QuotaUnavailable("; ".join(problems) or "this machine has no CPU control groups mounted")


def _own_group(mount: Path, controller: str, proc: Path) -> Path:
    """The group that this process is in, as it is seen below `mount`."""
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (mount / path.lstrip("/")).is_dir():
            return mount / path.lstrip("/")
    return mount  # a container that sees its own group as the top


def _usable(hierarchy: Hierarchy) -> Hierarchy:
    if not os.access(hierarchy.base, os.W_OK):
        raise QuotaUnavailable(f"no permission to make groups in {hierarchy.base}")
    return hierarchy


def _delegated(base: Path, mount: Path, proc: Path) -> Hierarchy:
    """A v2 group that hands the controller down to its children."""
    try:
        if "cpu" not in (base / "cgroup.controllers").read_text().split():
            raise QuotaUnavailable(f"{base} has no controller cpu")
        _usable(Hierarchy(2, base, base))
        if "cpu" not in (base / "cgroup.subtree_control").read_text().split():
            _hand_down_from(base)
    except OSError as error:
        raise QuotaUnavailable(f"{error.filename or base}: {error.strerror}") from None
    return Hierarchy(2, base, _own_group(mount, "", proc))


def _hand_down_from(base: Path) -> None:
    """Have `base` hand the controller down; its processes go into a leaf first if they must.

    The leaf has no quota, so for them nothing changes.  It stays: they may outlive us.
    """
    try:
        _write(base / "cgroup.subtree_control", "+cpu")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        leaf = base / LEAF
        if not leaf.is_dir():
            _make(leaf)
        _fill(leaf, lambda: _members(base) | _members(leaf))
        _write(base / "cgroup.subtree_control", "+cpu")


def _members(group: Path) -> set[int]:
    return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}


def _fill(group: Path, ids: Callable[[], Iterable[int]]) -> None:
    """Move all of `ids()` into `group`, until none of them is elsewhere."""
    for _ in range(PLACING_PASSES):
        elsewhere = set(ids()) - _members(group)
        if not elsewhere:
            return
        _move(elsewhere, group)
    raise QuotaUnavailable(f"processes {sorted(elsewhere)} do not go into {group}")


def _move(ids: Iterable[int], group: Path) -> None:
    for pid in ids:
        try:
            _write(group / "cgroup.procs", str(pid))
        except ProcessLookupError:
            pass  # it has ended


def _remove(group: Path, outside: Path) -> None:
    deadline = time.monotonic() + REMOVAL_DEADLINE_S
    while True:
        try:
            _move(_members(group), outside)
            _unmake(group)
            return
        except FileNotFoundError:
            return
        except OSError as error:  # busy: somebody forked, or is about to be gone
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _make(group: Path) -> None:
    group.mkdir()


def _unmake(group: Path) -> None:
    group.rmdir()  # the kernel's files in it are no obstacle


def _write(file: Path, text: str) -> None:
    # One write without creating the file: the kernel takes each write as an order.
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        error.filename = str(file)
        raise
    finally:
        os.close(descriptor)
