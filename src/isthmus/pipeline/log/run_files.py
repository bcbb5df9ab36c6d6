"""The name of a run in a log, and all that there is of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from isthmus.errors import RunRefused
from isthmus.pipeline.log.reading import NAME
from isthmus.pipeline.log.schema import TABLES

__all__ = ["check_run", "is_run_name", "remove_run"]

LONGEST_NAME: Final = 200


def is_run_name(run: str) -> bool:
    """Whether `run` can name a run: it becomes the name of folders."""
    return len(run) <= LONGEST_NAME and NAME.fullmatch(run) is not None


def check_run(log: Path, run: str) -> None:
    """Refuse a name that cannot be one, or that this log has already."""
    if not is_run_name(run):
        raise RunRefused(
            run,
            "a run is named by letters, digits, '.', '_' and '-', no '.' first and "
            f"{LONGEST_NAME} of them at most, like C-sf-10ms",
        )
    for table in TABLES:
        folder = log / table / f"run={run}"
        if folder.exists():
            ended = (log / "runs" / f"run={run}").exists()
            problem = "is in" if ended else "began and did not end in"
            remedy = f"choose another name, or remove {log}/*/run={run}"
            raise RunRefused(run, f"{problem} {log} already; {remedy}")


def remove_run(log: Path, run: str) -> None:
    """Remove what there is of a run."""
    for table in TABLES:
        shutil.rmtree(log / table / f"run={run}", ignore_errors=True)
