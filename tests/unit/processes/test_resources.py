"""Free CPU and memory, from files as Linux has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.processes.resources import FreeResources

GIB = 1 << 30


class Machine:
    """A folder that looks like / to whoever asks for what is free; four cores, 8 GiB."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 0.0
        self.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
        self.busy(0.0)

    def write(self, name: str, text: object) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text))

    def busy(self, seconds: float) -> None:
        """All processes of the machine have used so much."""
        ticks = int(seconds * 100) // 4
        each = "".join(f"cpu{n} {ticks} 0 0 999999 50 0 0 0 0 0\n" for n in range(4))
        self.write("proc/stat", f"cpu {100 * ticks} 0 0 0 0 0 0 0 0 0\n{each}cpu4 77777 0\n")

    def looked(self) -> FreeResources:
        return FreeResources(self.root, cores=range(4), clock=lambda: self.now_s)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_without_groups(machine: Machine) -> None:
    free = machine.looked()
    assert free.now() == (4.0, 8 * GIB)
    machine.busy(15.0)
    machine.now_s = 10.0
    assert free.now() == (2.5, 8 * GIB)
    machine.busy(35.0)
    assert free.now()[0] == 2.5, "too soon to tell"
    machine.now_s = 20.0
    assert free.now()[0] == 2.0


@pytest.mark.parametrize("seen_as_root", [False, True])
def test_groups_of_version_2(machine: Machine, seen_as_root: bool) -> None:
    machine.write("proc/self/cgroup", "0::/site/node\n")
    inner = "sys/fs/cgroup/" if seen_as_root else "sys/fs/cgroup/site/node/"
    machine.write(f"{inner}cpu.max", "max 100000")
    machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 0\n")
    if not seen_as_root:
        machine.write("sys/fs/cgroup/site/cpu.max", "150000 100000")
        machine.write("sys/fs/cgroup/site/cpu.stat", "usage_usec 1000000\nuser_usec 5\n")
        machine.write("sys/fs/cgroup/site/memory.max", "max")
    machine.write(f"{inner}memory.max", 2 * GIB)
    machine.write(f"{inner}memory.current", GIB + 4_096)
    machine.write(f"{inner}memory.stat", "anon 5\ninactive_file 4096\n")
    free = machine.looked()
    assert free.now()[1] == GIB
    machine.now_s = 2.0
    if not seen_as_root:
        machine.write("sys/fs/cgroup/site/cpu.stat", "usage_usec 2000000\nuser_usec 5\n")
    assert free.now()[0] == (4.0 if seen_as_root else 1.0), "1.5 cores, of which 0.5 are used"


def test_groups_of_version_1(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/node\n3:cpu,cpuacct:/node\n0::/\n")
    machine.write("sys/fs/cgroup/cpu/node/cpu.cfs_quota_us", 50_000)
    machine.write("sys/fs/cgroup/cpu/node/cpu.cfs_period_us", 100_000)
    machine.write("sys/fs/cgroup/cpuacct/node/cpuacct.usage", 10**9)
    machine.write("sys/fs/cgroup/memory/node/memory.limit_in_bytes", GIB)
    machine.write("sys/fs/cgroup/memory/node/memory.usage_in_bytes", GIB + 5)
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", 5)
    free = machine.looked()
    machine.now_s = 1.0
    machine.write("sys/fs/cgroup/cpuacct/node/cpuacct.usage", 10**9 + 4 * 10**8)
    cores, memory = free.now()
    assert cores == pytest.approx(0.1)
    assert memory == 0, "never less"


@pytest.mark.parametrize("quota", ["", "nonsense", "max", "0 100000 3"])
def test_what_cannot_be_read_does_not_count(machine: Machine, quota: str) -> None:
    machine.write("proc/self/cgroup", "0::/node\n")
    machine.write("sys/fs/cgroup/node/cpu.max", quota)
    free = machine.looked()
    machine.now_s = 1.0
    assert free.now() == (4.0, 8 * GIB)


def test_this_machine() -> None:
    cores, memory = FreeResources().now()
    assert cores > 0
    assert memory > 0
