"""Small scenarios for load sessions, and which load processes are left."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from isthmus.bench.coordinator.control import Target
from isthmus.bench.scenario import Scenario, load_scenario

__all__ = ["NOWHERE", "load_processes", "small_scenario", "stand_in"]

NOWHERE = {"n1": Target("127.0.0.1", 1)}
"""For stand-ins, which connect to nobody."""


def small_scenario(folder: Path, *, publishers: int = 2, subscribers: int = 3) -> Scenario:
    """One server, one topic of t-clients at 100 messages/s each, l-clients, 0.6 s."""
    file = folder / "small.toml"
    file.write_text(
        f"""
        [scenario]
        name = "small"
        duration_s = 0.6
        trim_s = 0.1
        [load]
        interval_ms = 10.0
        [latency]
        publisher = "n1"
        subscribers = ["n1"]
        interval_s = 0.1
        [[node]]
        id = "n1"
        with_node = false
        [[place]]
        node = "n1"
        topic = "topic1"
        publishers = {publishers}
        subscribers = {subscribers}
        """
    )
    return load_scenario(file)


def stand_in(behavior: str = "plays-along") -> tuple[str, ...]:
    """The command of a stand-in for the load process (`load_process.py`)."""
    return (sys.executable, str(Path(__file__).with_name("load_process.py")), behavior)


def load_processes(pid: int | None = None) -> list[int]:
    """The load processes, real ones and stand-ins, below the process `pid` or this one."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            words = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if "load_process.py" in words or "isthmus.bench.load.worker" in words:
            found.append(process.pid)
    return found
