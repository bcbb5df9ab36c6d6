"""Process trees of real processes, and what a process may ask of the kernel."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.processes.children import log_tail
from isthmus.processes.kernel import keep_alive, raise_open_files
from isthmus.processes.tree import Snapshot, process_tree

OWN = os.getpid()

PARENT = """
import subprocess, sys
running = "import sys; print(flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", running], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def parent() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a child that runs (and so has memory); both end with the parent's input."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def test_a_tree_has_the_children_and_ends_where_another_begins(
    parent: tuple[subprocess.Popen[str], int],
) -> None:
    process, child = parent
    snapshot = Snapshot()
    assert snapshot.tree(process.pid) == {process.pid, child}
    assert snapshot.tree(process.pid, {process.pid, child}) == {process.pid}
    assert child in snapshot.tree(OWN)
    assert child not in snapshot.tree(OWN, {process.pid})
    both, alone = snapshot.use([process.pid]), snapshot.use([process.pid], [child])
    assert both.rss_bytes > alone.rss_bytes > 0
    assert snapshot.use([process.pid, child]) == both, "nothing counts twice"


def test_cpu_time_of_a_child_that_ended_stays_counted() -> None:
    before = Snapshot().use([OWN]).cpu_ns
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert Snapshot().use([OWN]).cpu_ns - before >= 190_000_000


def test_nobody_uses_nothing() -> None:
    snapshot = Snapshot()
    gone = 2**22 + 1  # beyond the largest process number
    assert snapshot.tree(gone) == set()
    assert not snapshot.alive(gone)
    assert snapshot.alive(OWN)


def test_the_members_of_a_session_stay_with_it_when_its_leader_has_ended() -> None:
    leader = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        "'import sys; sys.stdin.read()']); print(child.pid, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", leader],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.wait(10)
        snapshot = Snapshot()
        assert process_tree(process.pid) == [child]
        [started] = snapshot.running(process.pid).values()
        assert snapshot.alive(child, started)
        assert not snapshot.alive(child, started + 1), "another process with that number"
        assert process.stdin is not None
        process.stdin.close()


def test_the_end_of_a_log_has_whole_lines_and_no_colors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_text("x" * 5000 + "\n" + "".join(f"\x1b[31mline\x1b[0m {at}\n" for at in range(40)))
    assert log_tail(log).splitlines() == [f"line {at}" for at in range(15, 40)]


def test_open_files_are_raised_as_far_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [100, 1000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(
        resource, "setrlimit", lambda _, found: limits.__setitem__(slice(None), found)
    )
    assert raise_open_files(50) == 50
    assert limits == [100, 1000]
    assert raise_open_files(500) == 500
    assert raise_open_files(5000) == 1000
    assert limits == [1000, 1000]
    limits[:] = [100, resource.RLIM_INFINITY]
    assert raise_open_files(5000) == 5000
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    assert raise_open_files(5000) == 5000


def test_the_kernel_is_told_when_to_probe() -> None:
    with socket.socket() as sock:
        keep_alive(sock, idle_s=7, interval_s=3, probes=2)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [sock.getsockopt(socket.IPPROTO_TCP, each) for each in options] == [7, 3, 2]
