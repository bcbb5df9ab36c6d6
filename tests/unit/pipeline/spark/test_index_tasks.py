"""How the files of a log become tasks, and what is shown of them while they run."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.count.tables import INDEXES
from isthmus.pipeline.log.reading import LoggedFile
from isthmus.pipeline.spark import job_progress
from isthmus.pipeline.spark.indexes import FileTask, _shared_out
from isthmus.pipeline.spark.job import print_summary
from support.generated_logs import Shape, generate, write_log


def tasks(*rows: int) -> list[FileTask]:
    return [
        FileTask("r", LoggedFile("deliveries", f"w{index}", count))
        for index, count in enumerate(rows)
    ]


def test_every_large_file_is_a_task_of_its_own() -> None:
    shares = _shared_out(tasks(*[10_000_000] * 20))
    assert [len(share) for share in shares] == [1] * 20


def test_many_small_files_share_tasks_evenly() -> None:
    given = tasks(*[1000 + index for index in range(3000)])
    shares = _shared_out(given)
    assert len(shares) == 16
    assert sorted(task.file.writer for share in shares for task in share) == sorted(
        task.file.writer for task in given
    )
    rows = [sum(task.file.rows for task in share) for share in shares]
    assert max(rows) - min(rows) <= 4000
    assert rows == sorted(rows, reverse=True)


def test_no_files_are_no_tasks() -> None:
    assert _shared_out([]) == []


class Connect:
    """A session of Spark Connect, as far as progress goes."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def registerProgressHandler(self, handler: Any) -> None:
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: Any) -> None:
        self.handlers.remove(handler)


def stage(tasks: int, completed: int) -> SimpleNamespace:
    return SimpleNamespace(num_tasks=tasks, num_completed_tasks=completed, done=completed == tasks)


def test_progress_over_connect_is_shown(monkeypatch: Any) -> None:
    """Where there is no terminal, as a line; stages that are done no longer count."""
    shown = threading.Event()

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if "3 of 8" in self.getvalue():
                shown.set()
            return written

    monkeypatch.setattr(job_progress, "_LOOK_S", 0.001)
    monkeypatch.setattr(job_progress, "_PLAIN_EVERY_S", 0.001)
    session: Any = Connect()
    output = Output()
    with job_progress.shown_progress(session, Console(file=output)):
        stages = [stage(4, 4), stage(8, 3)]
        session.handlers[0](stages=stages, inflight_tasks=2, operation_id="x", done=False)
        assert shown.wait(10)
    assert session.handlers == []
    with job_progress.shown_progress(session, None):
        assert session.handlers == []


@pytest.mark.parametrize(("ratio", "under", "shown"), [(1.0, True, "under"), (0.9, False, "over")])
def test_a_run_without_load_is_shown_neither_under_nor_over_the_limit(
    tmp_path: Path, ratio: float, under: bool, shown: str
) -> None:
    write_log(tmp_path, [generate(1, "idle", Shape(publishers=0))])
    [row] = run_tables(tmp_path, "idle")["summary"]
    loaded = row | {"run": "loaded", "limit_ratio": ratio, "under_limit": under}
    output = io.StringIO()
    summary = pa.Table.from_pylist([row, loaded], INDEXES["summary"])
    print_summary(Console(file=output, width=100), summary)
    *_, idle_line, loaded_line = output.getvalue().strip().splitlines()
    assert "under" not in idle_line
    assert "over" not in idle_line
    assert shown in loaded_line.split()
