"""The Skip Graph thesis with real Spark: spread work, one log, one job for each figure."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from isthmus.errors import ReproduceError, SimulationTooLarge, SparkFailed
from isthmus.pipeline.log.reading import list_runs
from isthmus.reproduce.skipgraph import command
from isthmus.reproduce.skipgraph.command import Settings, reproduce
from isthmus.reproduce.skipgraph.experiments import FIGURES, Extent, Task, tasks
from isthmus.reproduce.skipgraph.jobs import compute_figures
from isthmus.reproduce.skipgraph.points import EXPERIMENTS, Point
from isthmus.simulate import spread as spreading
from isthmus.simulate.fit import Fit, check_memory
from isthmus.simulate.parts import Parts
from isthmus.simulate.spread import spread
from isthmus.simulate.tallies import record
from support.spark import python, spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

SEED = 3
SOME = ("fig3.8", "fig4.6", "table3.3")
PLENTY = 1 << 40


def quick_tasks(*experiments: str) -> list[Task]:
    extent = Extent.of(quick=True, up_to=100_000)
    return [
        each for name in EXPERIMENTS if name in experiments for each in tasks(name, extent, SEED)
    ]


def log_bytes(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.parquet")}


def quiet() -> Console:
    return Console(file=io.StringIO(), width=160)


def test_any_number_of_shares_gives_the_same_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One share is one worker's; a share for each task is spread over all of them."""
    some = quick_tasks("messages", "depths", "load")
    labels = {point.run: point.labels(SEED) for task in some for point in task.points}
    for name, share_s, session in (("here", 0.25, None), ("one", 1e9, spark), ("many", 0.0, spark)):
        monkeypatch.setattr(spreading, "SHARE_S", share_s)
        shared = len(spreading.shares(some))
        assert shared == {"one": 1, "many": len(some)}.get(name, shared)
        record(tmp_path / name, "test", labels, spread(session, some))
    here = log_bytes(tmp_path / "here")
    assert len(here) == 2 * len(labels)
    assert log_bytes(tmp_path / "one") == here
    assert log_bytes(tmp_path / "many") == here


def test_the_jobs_say_what_numpy_says(spark: SparkSession, tmp_path: Path) -> None:
    point = Point("load", "proposed", 30 * 1001, 1, 1000, topics=30)
    paths = tuple(
        Point("paths", "proposed", 1_000, publishers, 10 - publishers, pattern=name)
        for name, publishers in (("delta", 1), ("epsilon", 5))
    )
    some = [Task((point,), SEED), Task(paths, SEED)]
    counted = spread(None, some)
    labels = {each.run: each.labels(SEED) for task in some for each in task.points}
    record(tmp_path, "test", labels, counted)
    figures = compute_figures(spark, tmp_path, list(labels), ["table3.3", "fig3.9", "fig3.13"])
    rows = [row for row in counted.to_pylist() if row["what"] == "subscriber_forwards"]
    given, forwards = (
        np.repeat([row[key] for row in rows], [row["count"] for row in rows])
        for key in ("given", "value")
    )
    publishers, subscribers = figures["table3.3"]
    assert publishers["coefficient"] == pytest.approx(1.0)
    assert subscribers["coefficient"] == pytest.approx(np.corrcoef(given, forwards)[0, 1])
    assert subscribers["most"] == 2.0
    assert subscribers["once"] == pytest.approx(np.mean(given == forwards))
    assert sum(row["nodes"] for row in figures["fig3.13"]) == 30_000
    hops = [row for row in counted.to_pylist() if row["what"] == "hops"]
    for row in figures["fig3.9"]:
        own = [each for each in hops if row["pattern"] in each["run"]]
        pairs = sum(each["count"] for each in own)
        assert row["pairs"] == pairs
        assert row["hops"] == pytest.approx(sum(each["total"] for each in own) / pairs)
        assert row["longest"] == max(each["value"] for each in own)


def test_a_task_that_fails_says_why(spark: SparkSession) -> None:
    # So many members of a CAN are refused.
    task = Task((Point("growth", "can-mc", 10**5, 10**5, 0, 1, 2),), SEED)
    with pytest.raises(SparkFailed, match="a task failed: ValueError: 100000 members in 2 dim"):
        spread(spark, [task])


@pytest.mark.usefixtures("spark")  # the command's own session is this one
def test_the_command_from_the_first_task_to_the_report(tmp_path: Path) -> None:
    out, docs = tmp_path / "out", tmp_path / "docs" / "skipgraph"
    docs.parent.mkdir()
    page = docs.parent / "reproduce-skipgraph.md"
    page.write_text(
        "# Page\n<!-- skipgraph: begin -->\nas it was before\n<!-- skipgraph: end -->\nrest\n"
    )
    settings = Settings(out, quick=True, only=SOME, seed=SEED, docs=docs)
    done = reproduce(settings, console=quiet(), free_bytes=lambda: PLENTY)
    assert list(done.figures) == [name for name in FIGURES if name in SOME]
    assert done.simulated == done.runs > 40
    verdicts = {
        claim["statement"]: claim["verdict"]
        for claim in json.loads((out / "results.json").read_text())["thesis"]
    }
    assert verdicts["SFB: average hops, exactly (to 10⁻⁹)"] == "yes"
    assert verdicts["messages without a subscriber, Proposed"] == "yes"
    assert "not measured" not in verdicts.values()
    report = (out / "report.html").read_text()
    assert "Fig. 4.6: average number of hops" in report
    assert "Table 3.3: correlation coefficients" in report
    assert (out / "figures" / "fig3.8.csv").exists()
    assert {path.name for path in docs.iterdir()} == {
        "skipgraph.json",
        "skipgraph-messages.png",
        "skipgraph-routing.png",
        "skipgraph-tables.md",
    }
    written = page.read_text()
    assert written.startswith("# Page\n")
    assert written.endswith("rest\n")
    assert "as it was before" not in written
    assert "| yes |" in written
    made_on = json.loads((docs / "skipgraph.json").read_text())["setup"]
    assert f" Commit {made_on['commit']}, {made_on['processor']}, load average " in written
    assert f", commit {made_on['commit']}: " in made_on["simulated"]

    # Called again it simulates nothing; of one that is missing, that one.
    again = reproduce(settings, console=quiet(), free_bytes=lambda: 0, write=lambda *_: None)
    assert (again.simulated, again.estimate_bytes) == (0, None)
    assert again.figures == done.figures
    before = log_bytes(out / "log")
    gone = next(run for run in list_runs(out / "log") if run.startswith("depths-sfb"))
    (out / "log" / "runs" / f"run={gone}" / "s0.parquet").unlink()
    again = reproduce(settings, console=quiet(), free_bytes=lambda: PLENTY, write=lambda *_: None)
    assert again.simulated == 1
    assert log_bytes(out / "log") == before
    with pytest.raises(ReproduceError, match="experiments of another kind"):
        reproduce(Settings(out, quick=True, only=SOME, seed=4), console=quiet())


@pytest.mark.usefixtures("spark")
def test_a_long_one_goes_on_with_the_piece_that_was_being_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after each piece, it counts none twice, and the log is the same."""

    def settings(name: str) -> Settings:
        return Settings(tmp_path / name, quick=True, only=("fig3.8", "table3.3"), seed=SEED)

    def nothing(*_: object) -> None:
        pass

    reproduce(settings("whole"), console=quiet(), free_bytes=lambda: PLENTY, write=nothing)
    monkeypatch.setattr(spreading, "BATCH_S", 0.5)
    counted: list[Task] = []
    keeping = Parts.keep

    def keep_and_end(parts: Parts, rows: pa.Table) -> None:
        keeping(parts, rows)
        raise KeyboardInterrupt

    def noted(session: SparkSession, some: Sequence[Task], fit: Fit | None) -> pa.Table:
        counted.extend(some)
        return spread(session, some, fit)

    monkeypatch.setattr(command, "spread", noted)
    ends = 0
    while True:
        monkeypatch.setattr(Parts, "keep", keep_and_end if ends < 3 else keeping)
        try:
            done = reproduce(
                settings("pieces"), console=quiet(), free_bytes=lambda: PLENTY, write=nothing
            )
            break
        except KeyboardInterrupt:
            ends += 1
            assert any((tmp_path / "pieces" / "parts").iterdir())
    assert ends == 3
    assert done.runs == len(list_runs(tmp_path / "pieces" / "log"))
    assert len(counted) == len(set(counted)) == len(quick_tasks("messages", "load"))
    assert not (tmp_path / "pieces" / "parts").exists()
    assert log_bytes(tmp_path / "pieces" / "log") == log_bytes(tmp_path / "whole" / "log")


@pytest.mark.usefixtures("spark")
def test_what_fits_one_by_one_is_told_and_done(tmp_path: Path) -> None:
    """With memory for one of the largest tasks, and not for two."""
    console = quiet()
    settings = Settings(tmp_path / "out", quick=True, only=("fig3.14",), seed=SEED)
    largest = sorted(task.memory_bytes for task in quick_tasks("tables"))[-2:]
    own = check_memory(1, [], 2, PLENTY).needed_bytes
    free = own + sum(largest) - 1
    done = reproduce(settings, console=console, free_bytes=lambda: free, write=lambda *_: None)
    assert (done.estimate_bytes or 0) <= free
    assert isinstance(console.file, io.StringIO)
    if len(os.sched_getaffinity(0)) == 2:
        assert "too large for memory side by side; 1 at once" in console.file.getvalue()


def test_too_large_is_told_before_anything_is_made(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "out", up_to=10_000_000)
    with pytest.raises(SimulationTooLarge, match="10,000,000 nodes takes about") as caught:
        reproduce(settings, console=quiet(), free_bytes=lambda: 2 << 30)
    huge = Settings(tmp_path / "out", up_to=100_000_000, only=("fig3.9",))
    with pytest.raises(SimulationTooLarge, match="100,000,000 nodes takes about"):
        reproduce(huge, console=quiet(), free_bytes=lambda: 2 << 30)
    assert caught.value.needed_bytes > 2 << 30
    assert not settings.out.exists()


def run_command(out: Path, *arguments: str) -> str:
    ended = python("-m", "isthmus", "reproduce", "skipgraph", "--out", str(out), *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_one_worker_and_two_write_the_same_bytes(tmp_path: Path) -> None:
    """Log and figures, byte by byte; in processes of their own, as a process has one session."""
    figures = ("fig3.8", "fig3.14", "table3.3")
    only = [word for name in figures for word in ("--only", name)]
    for workers in (1, 2):
        master = f"local[{workers}]"
        run_command(tmp_path / str(workers), "--quick", "--master", master, *only)
    one, two = (log_bytes(tmp_path / str(workers)) for workers in (1, 2))
    assert len(one) > 50
    assert one == two
    for name in figures:
        csv = [(tmp_path / str(w) / "figures" / f"{name}.csv").read_bytes() for w in (1, 2)]
        assert csv[0] == csv[1]


@pytest.mark.slow
def test_ctrl_c_ends_it_and_it_goes_on_later(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["-m", "isthmus", "reproduce", "skipgraph", "--quick", "--out", str(out)]
    command += ["--only", "fig3.8", "--only", "fig3.14"]
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("size of routing tables"):  # the messages are done
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "isthmus/cli/main.py" not in err  # what py4j logs at that moment may be there
    there = list_runs(out / "log")
    assert any(run.startswith("messages-") for run in there)
    assert not any(run.startswith("tables-") for run in there)
    said = run_command(out, "--quick", "--only", "fig3.8")
    assert ": 0 tasks to simulate" in said


@pytest.mark.slow
def test_quick(tmp_path: Path) -> None:
    """All figures; what the thesis says of those is so, but for one statement."""
    said = run_command(tmp_path / "out", "--quick", "--seed", "1")
    assert "the report is" in said
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["figures"].keys() == FIGURES.keys()
    wrong = {claim["statement"] for claim in results["thesis"] if claim["verdict"] == "no"}
    assert wrong <= {"Proposed: correlation of receiving and forwarding, in the interval"}
    assert sum(claim["verdict"] == "yes" for claim in results["thesis"]) > 40
