"""The broker and the node as processes: started, measured and stopped by their own ids.

CPU time comes from the kernel's per-process CPU clock (nanoseconds, all threads, also those that
ended).
"""

from __future__ import annotations

import re
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from isthmus.brokers import create
from isthmus.errors import LoadError
from isthmus.processes.children import Launch, end, launch, log_tail
from isthmus.processes.ports import free_port

__all__ = [
    "Memory",
    "Process",
    "configured_node",
    "cpu_ns",
    "machine_busy_ns",
    "memory",
    "node_file",
    "peak_bytes",
    "peak_resident",
    "raise_file_limit",
    "running_broker",
    "running_node",
]

START_S = 20.0
STOP_S = 10.0
POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Process:
    """A running broker or node; `start_s` is from exec until its MQTT port accepted."""

    pid: int
    port: int
    start_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident, proportional and unique memory of a process."""

    rss_bytes: int
    pss_bytes: int
    uss_bytes: int


def cpu_ns(pid: int) -> int:
    """CPU time of a process, user and system.

    The clock id is what ``clock_getcpuclockid(3)`` returns on Linux: the complement of the
    process id, shifted over three bits that say "whole process, scheduler time".
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def machine_busy_ns() -> int:
    """CPU time that all processes and interrupts of this machine together have used."""
    times = psutil.cpu_times()
    busy_s = times.user + times.nice + times.system + times.irq + times.softirq
    return round(busy_s * 1e9)


def memory(pid: int) -> Memory:
    """What a process has in memory now."""
    found = psutil.Process(pid).memory_full_info()
    return Memory(found.rss, found.pss, found.uss)


def peak_bytes(pid: int) -> int:
    """The most that a running process has had in memory."""
    return peak_resident(Path(f"/proc/{pid}/status").read_text())


def peak_resident(status: str) -> int:
    """The most that was resident, in bytes, from the text of ``/proc/PID/status``."""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise ValueError("no VmHWM in the process's status")
    return int(found[1]) * 1024


def raise_file_limit() -> int:
    """Allow as many open files as this user may have, here and in what is started from here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextmanager
def running_broker(*more: str) -> Iterator[Process]:
    """Mosquitto with the configuration lines `more` and its queues unlimited.

    The closed loop bounds them; a drop would be a loss.
    """
    lines = ["max_queued_messages 0", "max_connections -1", *more]
    with create("mosquitto", extra=lines) as broker:
        yield Process(broker.pid, broker.port, broker.start_seconds)
        if not broker.running:
            raise LoadError(f"the broker ended by itself:\n{broker.log_tail()}")


def node_file(
    node_id: str, broker_port: int, more: str = "", *, peer: int = 0, **listen: int
) -> str:
    """A node's file with the defaults but for its addresses on loopback, and `more`."""
    lines = [f'[node]\nid = "{node_id}"\n[listen]']
    lines += [f'{name} = "127.0.0.1:{port}"' for name, port in listen.items()]
    lines += [f'[broker]\nurl = "mqtt://127.0.0.1:{broker_port}"', '[log]\nlevel = "warning"', more]
    if peer:
        lines.append(f'[[peer]]\naddress = "127.0.0.1:{peer}"')
    return "\n".join(lines) + "\n"


@contextmanager
def running_node(
    broker_port: int, more: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """``isthmus node`` in front of the broker, configured as the defaults are, but for `more`."""
    port = free_port()
    config = node_file("bench", broker_port, more, mqtt=port)
    with configured_node(config, port, environment) as node:
        yield node


@contextmanager
def configured_node(
    config: str, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """``isthmus node`` with the file `config`, which has it listen for clients on `port`."""
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder:
        file = Path(folder, "node.toml")
        file.write_text(config)
        log = Path(folder, "node.log")
        command = Launch([sys.executable, "-m", "isthmus", "node", str(file)], environment or {})
        started = time.perf_counter()
        child = launch(command, log)
        try:
            while not _accepts(port):
                if child.poll() is not None or time.perf_counter() - started > START_S:
                    raise LoadError(f"the node does not listen on port {port}:\n{log_tail(log)}")
                time.sleep(POLL_S)
            yield Process(child.pid, port, time.perf_counter() - started)
            if child.poll() is not None:
                raise LoadError(f"the node ended with status {child.returncode}:\n{log_tail(log)}")
        finally:
            end(child, STOP_S)


def _accepts(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
