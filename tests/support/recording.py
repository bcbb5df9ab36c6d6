"""Records in docs/: where and when they were made, and how they are written."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from isthmus import __version__

__all__ = ["recorded", "surroundings"]


def surroundings() -> dict[str, Any]:
    """Commit, date and machine, at the end of what is recorded."""
    commit = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "commit": subprocess.check_output(commit, text=True).strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "isthmus": __version__,
            "load_average": os.getloadavg(),
        },
    }


def recorded(plan: Mapping[str, Any], runs: list[dict[str, Any]]) -> str:
    """JSON with a line for everything that was done in each of the `runs`."""
    found = {"schema": 1, **surroundings(), "plan": plan, "runs": runs}
    whole = json.dumps(found, indent=1, ensure_ascii=False)
    return re.sub(r"\n {5,}|\n {4}(?=[}\]])", " ", whole) + "\n"
