"""Engines in turn over the same log, each in a fresh process whose memory is watched."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from isthmus.errors import LoadError

__all__ = ["Taken", "differences", "take"]

SAMPLE_S: Final = 0.2
ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Taken:
    """What one engine needed, once."""

    engine: str
    startup_s: float
    work_s: float
    cpu_s: float
    """Of all its processes, start-up included."""
    peak_bytes: int
    """Most memory of all its processes together (PSS)."""
    tables: dict[str, list[list[Any]]]


def take(engine: str, log: Path, time_limit_s: float) -> Taken | None:
    """Run `engine` over `log`; None if it took longer than `time_limit_s`."""
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder:
        out, errors = Path(folder, "found.json"), Path(folder, "stderr")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.pipeline.child", engine, str(log), str(out)],
                cwd=ROOT,
                stdout=stderr,
                stderr=stderr,
            )
        try:
            peak_bytes, cpu_s = _watch(process, time.monotonic() + time_limit_s)
        finally:
            _end(process)
        if cpu_s is None:
            return None
        if process.returncode != 0:
            raise LoadError(f"{engine}: {errors.read_text()[-4000:]}")
        found = json.loads(out.read_text())
    return Taken(engine, found["startup_s"], found["work_s"], cpu_s, peak_bytes, found["tables"])


def _watch(process: subprocess.Popen[bytes], deadline: float) -> tuple[int, float | None]:
    peak_bytes, cpu_of = 0, dict[int, float]()
    parent = psutil.Process(process.pid)
    while process.poll() is None:
        if time.monotonic() > deadline:
            return peak_bytes, None
        peak_bytes = max(peak_bytes, _sample(parent, cpu_of))
        time.sleep(SAMPLE_S)
    return peak_bytes, sum(cpu_of.values())


def _sample(parent: psutil.Process, cpu_of: dict[int, float]) -> int:
    total_bytes = 0
    try:
        processes = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            times = process.cpu_times()
            cpu_of[process.pid] = times.user + times.system
            total_bytes += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # it has just ended; its last sample stands
    return total_bytes


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                child.kill()
        process.kill()
    process.wait()


def differences(ours: Taken, theirs: Taken) -> list[str]:
    """Where the tables that both have are not the same."""
    found: list[str] = []
    for name in sorted(set(ours.tables) & set(theirs.tables)):
        one, other = ours.tables[name], theirs.tables[name]
        if one != other:
            first = next((pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]), "")
            found.append(f"{name}: {len(one)} and {len(other)} rows, first difference {first}")
    return found
