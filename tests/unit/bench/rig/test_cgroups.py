"""CPU groups on a make-believe kernel that keeps the rules of both versions."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.rig import cgroups
from isthmus.bench.rig.cgroups import CpuQuotas, Hierarchy, Quota, clear_abandoned, find_hierarchy
from isthmus.errors import QuotaUnavailable


class Kernel:
    """A tree of groups in a folder; what it refuses, the kernel refuses with the same error."""

    def __init__(self, tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.version = version
        self.alive = set(range(100, 200))
        self.namespaced = False  # what is seen as the top is a group like any other
        self.top = tmp_path / "cgroup"
        self.proc = tmp_path / "proc"
        self.make(self.top)
        (self.top / "cgroup.controllers").write_text("cpu memory")
        (self.top / "cgroup.procs").write_text("100\n101\n")
        (self.proc / "self").mkdir(parents=True)
        self.set_own_group("/")
        monkeypatch.setattr(cgroups, "_make", self.make)
        monkeypatch.setattr(cgroups, "_unmake", self.unmake)
        monkeypatch.setattr(cgroups, "_write", self.write)

    def set_own_group(self, path: str) -> None:
        kind, options = ("cgroup2", "rw") if self.version == 2 else ("cgroup", "rw,cpu,cpuacct")
        (self.proc / "self/mounts").write_text(
            f"proc /proc proc rw 0 0\ncgroup {self.top} {kind} {options} 0 0\n"
        )
        controllers = "0:" if self.version == 2 else "3:cpu,cpuacct"
        (self.proc / "self/cgroup").write_text(f"4:memory:/elsewhere\n{controllers}:{path}\n")

    def make(self, group: Path) -> None:
        group.mkdir()
        (group / "cgroup.procs").touch()
        if self.version == 1:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("-1")
            (group / "cpu.shares").write_text("1024")
            (group / "cpu.stat").write_text("nr_periods 7\nnr_throttled 1\nthrottled_time 5000\n")
            return
        (group / "cgroup.subtree_control").touch()
        handed = group.parent / "cgroup.subtree_control"
        (group / "cgroup.controllers").write_text(handed.read_text() if handed.exists() else "")
        (group / "cpu.stat").write_text("usage_usec 9\nthrottled_usec 5\n")
        if "cpu" in (group / "cgroup.controllers").read_text():
            (group / "cpu.max").write_text("max 100000")
            (group / "cpu.weight").write_text("100")

    def unmake(self, group: Path) -> None:
        if (group / "cgroup.procs").read_text() or any(each.is_dir() for each in group.iterdir()):
            raise OSError(errno.EBUSY, "busy", str(group))
        shutil.rmtree(group)

    def write(self, file: Path, text: str) -> None:
        if not file.exists():
            raise FileNotFoundError(errno.ENOENT, "no such file", str(file))
        group = file.parent
        root = group == self.top and not self.namespaced
        if file.name == "cgroup.procs":
            handing = group / "cgroup.subtree_control"
            if not root and handing.exists() and handing.read_text():
                raise OSError(errno.EBUSY, "busy", str(file))
            self._move(int(text), group)
        elif file.name == "cgroup.subtree_control":
            assert text == "+cpu"
            if not root and (group / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, "busy", str(file))
            file.write_text("cpu")
        elif file.name in ("cpu.shares", "cpu.weight"):
            file.write_text(text)
        else:
            quota = text.split(maxsplit=1)[0]
            if int(quota) < 1000 or (
                file.name == "cpu.cfs_quota_us" and self._exceeds(group, text)
            ):
                raise OSError(errno.EINVAL, "invalid argument", str(file))
            file.write_text(text)

    def _move(self, pid: int, group: Path) -> None:
        if pid not in self.alive:
            raise ProcessLookupError(errno.ESRCH, "no such process")
        for procs in self.top.rglob("cgroup.procs"):
            left = [each for each in procs.read_text().split() if int(each) != pid]
            procs.write_text("".join(f"{each}\n" for each in left))
        with (group / "cgroup.procs").open("a") as procs_file:
            procs_file.write(f"{pid}\n")

    def _exceeds(self, group: Path, quota: str) -> bool:
        """v1 refuses a group that may use more than the one above it."""
        above = group.parent / "cpu.cfs_quota_us"
        if not above.exists() or above.read_text() == "-1":
            return False
        period = int((group / "cpu.cfs_period_us").read_text())
        period_above = int((group.parent / "cpu.cfs_period_us").read_text())
        return int(quota) / period > int(above.read_text()) / period_above

    def members(self, group: Path) -> list[int]:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]

    def limits(self, group: Path) -> tuple[str, str]:
        if self.version == 2:
            quota, period = (group / "cpu.max").read_text().split()
            return quota, period
        return (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()

    def ours(self) -> list[Path]:
        return sorted(self.top.rglob("isthmus-*"))


@pytest.fixture(params=[1, 2])
def kernel(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Kernel:
    return Kernel(tmp_path, request.param, monkeypatch)


@pytest.fixture
def kernel2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, 2, monkeypatch)


@given(cpu=st.floats(0.001, 64), period_s=st.floats(0.001, 1.0))
def test_a_quota_is_the_cores_asked_for_in_a_form_the_kernel_takes(
    cpu: float, period_s: float
) -> None:
    quota = Quota.of(cpu, period_s)
    assert quota.quota_us >= 1000
    assert 1000 <= quota.period_us <= 1_000_000
    assert quota.cpu == pytest.approx(cpu, rel=0.002)


@pytest.mark.parametrize(
    ("cpu", "period_s", "expected"),
    [
        (0.1, 0.02, Quota(2000, 20_000)),
        (0.1, 0.005, Quota(1000, 10_000)),  # 0.5 ms is too short for the kernel
        (2.0, 0.1, Quota(200_000, 100_000)),
        (0.0001, 0.1, Quota(1000, 1_000_000)),  # the least there is
    ],
)
def test_quotas(cpu: float, period_s: float, expected: Quota) -> None:
    assert Quota.of(cpu, period_s) == expected


def test_a_lengthened_period_and_a_raised_quota_are_noted(kernel: Kernel) -> None:
    hierarchy = find_hierarchy(kernel.proc)
    assert CpuQuotas(hierarchy, cpu=0.1, period_s=0.02).notes == []
    (longer,) = CpuQuotas(hierarchy, cpu=0.1, period_s=0.005).notes
    assert "0.1 cores in periods of 5 ms" in longer
    assert "the period is 10 ms" in longer
    (more,) = CpuQuotas(hierarchy, cpu=0.0001, period_s=0.1).notes
    assert "0.001 cores" in more


def test_server_and_processes_have_their_quotas(kernel: Kernel) -> None:
    with CpuQuotas(
        find_hierarchy(kernel.proc), cpu=0.2, cpu_per_process=0.1, period_s=0.02
    ) as quotas:
        quotas.place("n1", {"broker": lambda: [110, 111], "node": lambda: [112]})
        quotas.place("n2", {"broker": lambda: [113]})
        server, second = kernel.ours()
        assert server.name.startswith(f"isthmus-{os.getpid()}-")
        assert server.name.endswith("-n1")
        assert kernel.limits(server) == ("4000", "20000")
        weight = ("cpu.weight", "1000") if kernel.version == 2 else ("cpu.shares", "10240")
        assert (server / weight[0]).read_text() == weight[1]  # ten times the usual
        assert kernel.limits(server / "broker") == ("2000", "20000")
        assert kernel.members(server / "broker") == [110, 111]
        assert kernel.members(server / "node") == [112]
        assert kernel.members(second / "broker") == [113]
        assert quotas.throttled_ns("n1") == 15_000  # the server and its two processes
        assert quotas.throttled_ns("n1", "node") == 5_000
        assert quotas.throttled_ns("n3") is None
    assert kernel.ours() == []
    assert set(kernel.members(kernel.top)) >= {110, 111, 112, 113}


def test_without_a_quota_per_process_all_are_in_the_servers_group(kernel: Kernel) -> None:
    with CpuQuotas(find_hierarchy(kernel.proc), cpu=0.5, period_s=0.1) as quotas:
        quotas.place("n1", {"broker": lambda: [110], "node": lambda: [112]})
        (server,) = kernel.ours()
        assert kernel.members(server) == [110, 112]
        assert kernel.limits(server) == ("50000", "100000")
        assert quotas.throttled_ns("n1", "node") is None


def test_a_process_cannot_have_more_than_its_server(kernel: Kernel) -> None:
    with CpuQuotas(
        find_hierarchy(kernel.proc), cpu=0.2, cpu_per_process=1.0, period_s=0.02
    ) as quotas:
        quotas.place("n1", {"broker": lambda: [110]})
        assert kernel.limits(kernel.ours()[0] / "broker") == ("4000", "20000")


def test_children_that_appear_meanwhile_are_placed_and_those_gone_are_not_missed(
    kernel: Kernel,
) -> None:
    alive = iter([[110, 50], [110, 111], [110, 111]])  # 50 has ended, 111 was forked
    with CpuQuotas(find_hierarchy(kernel.proc), cpu=0.5, period_s=0.1) as quotas:
        quotas.place("n1", {"broker": lambda: next(alive)})
        assert kernel.members(kernel.ours()[0]) == [110, 111]


def test_a_process_that_does_not_stay_is_an_error(kernel: Kernel) -> None:
    fresh = iter(range(110, 200))
    with (
        CpuQuotas(find_hierarchy(kernel.proc), cpu=0.5, period_s=0.1) as quotas,
        pytest.raises(QuotaUnavailable, match="do not go into"),
    ):
        quotas.place("n1", {"broker": lambda: [next(fresh)]})
    assert kernel.ours() == []


def test_what_the_kernel_refuses_is_named(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(group))

    monkeypatch.setattr(cgroups, "_make", refuse)
    quotas = CpuQuotas(find_hierarchy(kernel.proc), cpu=0.5, period_s=0.1)
    with pytest.raises(QuotaUnavailable, match=r"isthmus-.*-n1: Permission denied"):
        quotas.place("n1", {"broker": lambda: [110]})
    quotas.release()


def test_abandoned_groups_are_removed_and_others_left(kernel: Kernel) -> None:
    hierarchy = find_hierarchy(kernel.proc)
    with CpuQuotas(hierarchy, cpu=0.2, cpu_per_process=0.1, period_s=0.02) as quotas:
        quotas.place("n1", {"broker": lambda: [110]})
        (alive,) = kernel.ours()
        empty, full = (kernel.top / f"isthmus-77-{n}-n1" for n in (0, 1))
        for group in (empty, full):
            kernel.make(group)
            if kernel.version == 2:
                kernel.write(group / "cgroup.subtree_control", "+cpu")
            kernel.make(group / "broker")
        kernel.write(full / "broker/cgroup.procs", "120")
        assert clear_abandoned(hierarchy) == [empty]
        assert kernel.ours() == sorted([alive, full])


def test_without_a_controller_it_says_so(kernel2: Kernel) -> None:
    (kernel2.top / "cgroup.controllers").write_text("memory")
    with pytest.raises(QuotaUnavailable, match="has no controller cpu"):
        find_hierarchy(kernel2.proc)
    (kernel2.proc / "self/mounts").write_text("proc /proc proc rw 0 0\n")
    with pytest.raises(QuotaUnavailable, match="no CPU control groups mounted"):
        find_hierarchy(kernel2.proc)


def test_without_permission_it_says_so(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(QuotaUnavailable, match=f"no permission to make groups in {kernel.top}"):
        find_hierarchy(kernel.proc)


def test_v2_at_the_real_top_leaves_the_processes_there_alone(kernel2: Kernel) -> None:
    assert find_hierarchy(kernel2.proc) == Hierarchy(2, kernel2.top, kernel2.top)
    assert kernel2.members(kernel2.top) == [100, 101]


def test_v2_in_a_container_moves_the_processes_out_of_the_way(kernel2: Kernel) -> None:
    kernel2.namespaced = True
    hierarchy = find_hierarchy(kernel2.proc)
    assert hierarchy.base == kernel2.top
    assert kernel2.members(kernel2.top / "load") == [100, 101]
    assert kernel2.members(kernel2.top) == []
    kernel2.set_own_group("/load")
    with CpuQuotas(find_hierarchy(kernel2.proc), cpu=0.2, period_s=0.02) as quotas:
        quotas.place("n1", {"broker": lambda: [110]})
    assert kernel2.members(kernel2.top / "load") == [100, 101, 110]


def test_v2_of_a_user_is_made_below_his_own_group(
    kernel2: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel2.write(kernel2.top / "cgroup.subtree_control", "+cpu")
    scope = kernel2.top / "run-1.scope"
    kernel2.make(scope)
    kernel2.write(scope / "cgroup.procs", "101")
    kernel2.set_own_group("/run-1.scope")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == scope)
    hierarchy = find_hierarchy(kernel2.proc)
    assert hierarchy.base == scope
    assert kernel2.members(scope / "load") == [101]


def test_v1_in_a_container_that_sees_its_own_group_as_the_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path, 1, monkeypatch)
    kernel.set_own_group("/docker/0123")
    assert find_hierarchy(kernel.proc) == Hierarchy(1, kernel.top, kernel.top)
