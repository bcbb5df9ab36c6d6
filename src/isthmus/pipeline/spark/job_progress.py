"""How far a Spark job is, on a console: a bar on a terminal, a line now and then elsewhere.

Spark tells it in two ways: a session in this process has a tracker that can be asked, Spark Connect
calls a handler.  Either way it is a number of tasks done of those known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from isthmus.pipeline.progress_bar import ProgressBar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["shown_progress"]

_LOOK_S: Final = 0.3
_PLAIN_EVERY_S: Final = 10.0

Tasks = tuple[int, int]


@contextmanager
def shown_progress(
    spark: SparkSession, console: Console | None, name: str = "counting"
) -> Iterator[None]:
    """Show on `console`, if there is one, how far the jobs of `spark` are that do `name`."""
    if console is None:
        yield
        return
    with _tasks_of(spark) as tasks:
        ended = threading.Event()
        shower = threading.Thread(target=_show, args=(console, name, tasks, ended))
        shower.start()
        try:
            yield
        finally:
            ended.set()
            shower.join()


@contextmanager
def _tasks_of(spark: SparkSession) -> Iterator[Callable[[], Tasks]]:
    """A function that says how many tasks of the stages that run now are done, and how many are."""
    if hasattr(spark, "_jsparkSession"):
        tracker = spark.sparkContext.statusTracker()

        def asked() -> Tasks:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            done = sum(stage.numCompletedTasks for stage in known)
            return done, sum(stage.numTasks for stage in known)

        yield asked
        return
    latest: Tasks = (0, 0)

    def told(stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        nonlocal latest
        running = [] if done else [stage for stage in stages or () if not stage.done]
        completed = sum(stage.num_completed_tasks for stage in running)
        latest = (completed, sum(stage.num_tasks for stage in running))

    handler: Any = told  # a plain function serves, as Spark's own examples show
    spark.registerProgressHandler(handler)
    try:
        yield lambda: latest
    finally:
        spark.removeProgressHandler(handler)


def _show(console: Console, name: str, tasks: Callable[[], Tasks], ended: threading.Event) -> None:
    bar, began_s = ProgressBar(console, name, _PLAIN_EVERY_S), time.monotonic()
    try:
        while not ended.wait(_LOOK_S):
            done, known = tasks()
            elapsed_s = time.monotonic() - began_s
            shown = f"{done} of {known} tasks done, {elapsed_s:.0f} s"
            bar.show(elapsed_s, done, known or None, shown)
    finally:
        bar.stop()
