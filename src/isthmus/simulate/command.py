"""``isthmus simulate``: run it, show how far it is, sum it up from its own log."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.progress_bar import ProgressBar
from isthmus.sim.collecting import few_collections
from isthmus.simulate.exact import ExactRun
from isthmus.simulate.plan import Plan

__all__ = ["run_exact", "summary_lines"]

SHOWN_EVERY_S: Final = 0.5
PLAIN_EVERY_S: Final = 5.0


def run_exact(plan: Plan, log: Path, run: str) -> None:
    """Simulate, write the log, print the summary; raises what `ExactRun.record` raises."""
    exact = ExactRun(plan, log, run)
    began_s = time.monotonic()
    with _shown(exact), few_collections():
        exact.record()
    took_s = time.monotonic() - began_s
    for line in summary_lines(exact, run_tables(log, run)):
        print(line)
    print(f"took       {took_s:.1f} s for {exact.fabric.engine.events:,} events")
    print(f"\nEvery table of it by Spark: isthmus bench index {log} --run {run}")


@contextmanager
def _shown(exact: ExactRun) -> Iterator[None]:
    """How far it is, on standard error; by a thread, as a single step may take long."""
    bar = ProgressBar(Console(stderr=True, highlight=False), "simulate", PLAIN_EVERY_S)
    over = threading.Event()
    began_s = time.monotonic()

    def show() -> None:
        while not over.wait(SHOWN_EVERY_S):
            bar.show(time.monotonic() - began_s, *_progress(exact))

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        bar.stop()


def _progress(exact: ExactRun) -> tuple[float, float | None, str]:
    duration_s = exact.plan.duration_s
    engine, events = exact.fabric.engine, f"{exact.fabric.engine.events:,} events"
    if exact.started_s is None:
        return 0.0, None, f"{exact.phase}, {events}"
    done_s = min(engine.now_s - exact.started_s, duration_s)
    return done_s, duration_s, f"{exact.phase}, {done_s:.1f} of {duration_s:g} s, {events}"


def summary_lines(exact: ExactRun, tables: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A few lines for people; every number is one of the tables'."""
    yield f"run {exact.run}: {exact.plan.title}"
    yield "set-up     {:,} control packets, {:,} bytes".format(*exact.set_up)
    (losses,), hops = tables["summary"], tables["hops"][0]
    yield f"published  {hops['sent']:,}"
    yield (
        f"delivered  {losses['delivered']:,} of {losses['expected']:,} expected, "
        f"{losses['lost']:,} lost, {losses['duplicates']:,} double, "
        f"{losses['order_violations']:,} out of order"
    )
    latency = next((row for row in tables["latency"] if row["scope"] == "all"), None)
    if latency is not None and latency["count"]:
        yield (
            f"latency    {latency['p50_us'] / 1e3:.1f} ms median, "
            f"{latency['p99_us'] / 1e3:.1f} ms p99, {latency['max_us'] / 1e3:.1f} ms at most"
        )
    yield (
        f"hops       {hops['hops']:,}, {_rounded(hops['hops_per_message'])} per message, "
        f"{_rounded(hops['hops_per_delivery'])} per delivery, {hops['repeated']:,} repeated; "
        f"a way has {_rounded(hops['path_mean'])} links, {hops['path_max'] or 0} at most"
    )
    links = [row for row in tables["traffic"] if row["kind"] == "link"]
    data, control, packets = (
        sum(row[counter] or 0 for row in links)
        for counter in ("data_bytes_out", "control_bytes_out", "control_packets_out")
    )
    yield f"links      {data:,} bytes of data, {control:,} of control in {packets:,} packets"
    for note in losses["notes"]:
        yield f"note: {note}"


def _rounded(value: float | None) -> str:
    return "no" if value is None else f"{value:.2f}"
