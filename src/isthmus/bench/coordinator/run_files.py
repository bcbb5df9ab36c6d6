"""The name of a run in a log, and what the coordinator reads of its files.

The load processes write `publishes`, `deliveries` and `links`; the coordinator, as the writer
:data:`COORDINATOR`, adds what was watched and at last the row in `runs`, without which no run
counts.  Before that it opens every file once: one that is missing, or has other rows than its
writer says, is found while the run can still be refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc

from isthmus.errors import RunRefused
from isthmus.pipeline.log.reading import NAME, LoggedFile, open_file
from isthmus.pipeline.log.schema import TABLES, Table

__all__ = ["COORDINATOR", "Counted", "check_run", "count_window", "is_run_name", "remove_run"]

COORDINATOR: Final = "c0"
LONGEST_NAME: Final = 200
BATCH_ROWS: Final = 1 << 18
COUNTED: Final[Mapping[Table, str]] = {"publishes": "t_send_ns", "deliveries": "t_receive_ns"}


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


@dataclass(frozen=True, slots=True)
class Counted:
    """Messages within a window of time."""

    sent: int = 0
    received: int = 0


def count_window(
    log: Path,
    run: str,
    files: Iterable[LoggedFile],
    offsets_ns: Mapping[str, int],
    window_ns: tuple[int, int],
) -> Counted:
    """Check every file, and count what those writers sent and received that have an offset."""
    counts = dict.fromkeys(TABLES, 0)
    for file in files:
        with open_file(log, run, file) as opened:
            if file.table not in COUNTED or file.writer not in offsets_ns:
                continue
            start, end = (edge - offsets_ns[file.writer] for edge in window_ns)
            for batch in opened.iter_batches(BATCH_ROWS, columns=[COUNTED[file.table]]):
                inside = pc.and_(pc.greater_equal(batch[0], start), pc.less(batch[0], end))
                counts[file.table] += pc.sum(inside).as_py() or 0
    return Counted(counts["publishes"], counts["deliveries"])
