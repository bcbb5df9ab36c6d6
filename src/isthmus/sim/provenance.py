"""Where a recorded figure comes from: commit, date, machine, time taken."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["provenance"]


def provenance(command: str, seconds: float) -> dict[str, object]:
    """What a record begins with; the commit ends in ``+`` if files differ from it."""
    return {
        "command": command,
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "seconds": round(seconds),
        "machine": f"{os.cpu_count()} cores, {_processor()}, Python {platform.python_version()}",
    }


def _commit() -> str:
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "--short=10", "HEAD")
    if not commit:
        return "unknown"
    changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".", "../exchange")
    return commit + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
