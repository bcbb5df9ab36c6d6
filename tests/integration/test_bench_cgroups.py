"""Real CPU groups: a busy process gets the part of a core that it was given, and no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.bench.rig.cgroups import CpuQuotas, Hierarchy, clear_abandoned, find_hierarchy
from isthmus.errors import QuotaUnavailable
from isthmus.processes.children import Launch, end, launch
from isthmus.processes.tree import process_tree
from support.waiting import wait_for

Run = Callable[[str], subprocess.Popen[bytes]]

BUSY = "while True: pass"
MANY = """
import os, threading
for _ in range(2):
    if os.fork() == 0:
        break
threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
while True: pass
"""


@pytest.fixture
def hierarchy() -> Hierarchy:
    """Where groups can be made; without: fail in CI, elsewhere skip, saying what is missing."""
    try:
        found = find_hierarchy()
        with CpuQuotas(found, cpu=0.5, period_s=0.1) as trial:
            trial.place("trial", {})
    except QuotaUnavailable as problem:
        if os.environ.get("CI"):
            pytest.fail(f"no CPU quotas: {problem}", pytrace=False)
        pytest.skip(f"no CPU quotas: {problem}")
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """`run(code)`: a Python process, ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> subprocess.Popen[bytes]:
        process = launch(Launch([sys.executable, "-c", code]), tmp_path / "log")
        started.append(process)
        return process

    yield start
    for process in started:
        end(process, 0)


def cpu_s(pids: list[int]) -> float:
    """CPU time of these processes with all their threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def cores_used(pids: list[int], for_s: float) -> float:
    """Cores that they use on average while at least `for_s` pass."""
    began_s, used_s = time.monotonic(), cpu_s(pids)
    wait_for(lambda: time.monotonic() - began_s >= for_s, 60, "the time to pass")
    return (cpu_s(pids) - used_s) / (time.monotonic() - began_s)


def assert_at_most(quota: float, used: float) -> None:
    """All of the quota and no more; on a machine that others keep busy it may be less."""
    assert quota / 4 < used < 1.2 * quota


def test_a_busy_process_in_a_tenth_of_a_core_uses_a_tenth_of_a_core(
    hierarchy: Hierarchy, run: Run
) -> None:
    process = run(BUSY)
    with CpuQuotas(hierarchy, cpu=0.1, period_s=0.02) as quotas:
        quotas.place("n1", {"broker": lambda: [process.pid]})
        assert_at_most(0.1, cores_used([process.pid], 2.0))
        assert (quotas.throttled_ns("n1") or 0) > 0
    assert "isthmus-" not in Path(f"/proc/{process.pid}/cgroup").read_text()
    assert process.poll() is None  # and goes on without


def test_children_and_threads_share_the_quota_of_their_process(
    hierarchy: Hierarchy, run: Run
) -> None:
    process = run(MANY)
    wait_for(lambda: len(process_tree(process.pid)) == 3, 10, "the children")
    with CpuQuotas(hierarchy, cpu=0.4, cpu_per_process=0.2, period_s=0.02) as quotas:
        quotas.place("n1", {"broker": lambda: process_tree(process.pid)})
        assert_at_most(0.2, cores_used(process_tree(process.pid), 2.0))
        of_process = quotas.throttled_ns("n1", "broker")
        assert of_process
        assert of_process <= (quotas.throttled_ns("n1") or 0)


def test_a_server_has_no_more_than_its_own_quota_for_all_its_processes(
    hierarchy: Hierarchy, run: Run
) -> None:
    broker, node = run(BUSY), run(BUSY)
    with CpuQuotas(hierarchy, cpu=0.2, cpu_per_process=0.15, period_s=0.02) as quotas:
        quotas.place("n1", {"broker": lambda: [broker.pid], "node": lambda: [node.pid]})
        assert_at_most(0.2, cores_used([broker.pid, node.pid], 2.0))


def test_what_a_killed_owner_leaves_is_removed_by_the_next(
    hierarchy: Hierarchy, tmp_path: Path
) -> None:
    code = f"""
import subprocess, sys, time
from pathlib import Path
from isthmus.bench.rig.cgroups import CpuQuotas, find_hierarchy
from isthmus.processes.children import Launch, launch
child = launch(Launch([sys.executable, "-c", {BUSY!r}]), Path({str(tmp_path / "child.log")!r}))
quotas = CpuQuotas(find_hierarchy(), cpu=0.1, cpu_per_process=0.1, period_s=0.02)
quotas.place("n1", {{"broker": lambda: [child.pid]}})
print(child.pid, flush=True)
time.sleep(600)
"""
    log = tmp_path / "owner.log"
    owner = launch(Launch([sys.executable, "-c", code]), log)
    try:
        child = int(wait_for(lambda: log.read_text().strip(), 20, "the group"))
        (group,) = hierarchy.base.glob(f"isthmus-{owner.pid}-*-n1")
        clear_abandoned(hierarchy)
        assert group.is_dir()  # its owner is alive
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        wait_for(lambda: not Path(f"/proc/{child}").exists(), 10, "the child to die with its owner")

        def cleared() -> bool:  # others may clear it as well
            clear_abandoned(hierarchy)
            return not group.exists()

        wait_for(cleared, 10, "the group to go")
    finally:
        end(owner, 0)
