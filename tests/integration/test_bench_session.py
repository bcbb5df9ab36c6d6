"""Load sessions: the record they write, and what they leave behind when something fails."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from conftest import SharedBroker
from isthmus.bench.coordinator import crew as crew_module
from isthmus.bench.coordinator import session as session_module
from isthmus.bench.coordinator import workers as workers_module
from isthmus.bench.coordinator.control import Target
from isthmus.bench.coordinator.progress import Progress
from isthmus.bench.coordinator.session import LoadSession
from isthmus.bench.watch.watch import Watch, Watched
from isthmus.errors import LoadError, LoadFailed, LogError, RunRefused
from isthmus.pipeline.count.direct import summarize
from isthmus.pipeline.log.reading import list_runs, open_file, read_run
from isthmus.pipeline.log.schema import file_path
from support.load_sessions import NOWHERE, load_processes, small_scenario, stand_in
from support.waiting import wait_for


def session(folder: Path, behavior: str = "plays-along", **options: Any) -> LoadSession:
    scenario, command = small_scenario(folder), stand_in(behavior)
    return LoadSession(scenario, NOWHERE, folder / "log", writers=1, command=command, **options)


# ---- what is recorded --------------------------------------------------------------------


def test_a_run_is_recorded_whole(tmp_path: Path) -> None:
    labels = {"broker": "none", "algorithm": "sf"}
    out = io.StringIO()
    watch = Watch(lambda: [Watched("n1", "broker", (os.getpid(),))])
    progress = Progress(Console(file=out, width=200))
    with session(tmp_path, labels=labels, watch=watch, progress=progress) as load:
        record = load.measure("r1")
        again = load.measure("r2", interval_ns=5_000_000, duration_s=0.4, trim_s=0.05)
        assert len(load_processes()) == 2

    assert load_processes() == []
    assert (record.sent, record.offered, record.expected) == (120, 120, 360)
    assert (record.received, record.ending, record.kept_pace) == (360, "complete", True)
    assert record.headroom["w0"]["cpu"] == 0.1
    assert record.summary.limit_ratio == pytest.approx(1.0, abs=0.05)
    assert again.sent == 160
    assert "connecting 7 clients" in out.getvalue()
    assert "r1: sent 120 of 120, received 360 of 360; limited by" in out.getvalue()

    log = tmp_path / "log"
    assert list_runs(log) == ("r1", "r2")
    run = read_run(log, "r1")
    assert run.labels == labels
    assert run.window_start_ns - run.started_ns == 100_000_000
    assert run.window_end_ns - run.started_ns == 500_000_000
    assert run.interval_ns == 10_000_000
    assert json.loads(run.scenario_json)["scenario"]["name"] == "small"
    assert run.topics == ("topic1", "topic6")
    assert [client.writer for client in run.clients] == ["w0"] * 5 + ["l0"] * 2
    assert {clock.writer for clock in run.clocks} == {"w0", "l0", "c0"}
    assert all(abs(clock.offset_ns) <= clock.error_ns for clock in run.clocks), "it is one clock"
    assert {(stray.writer, stray.rows) for stray in run.strays} == {("w0", 2), ("l0", 2)}
    assert run.limited_by == record.summary.limited_by
    assert run.notes == record.summary.notes
    assert summarize(log, "r1") == record.summary
    rows = {(file.table, file.writer): file.rows for file in run.files}
    assert rows["publishes", "w0"] == 120
    assert rows["deliveries", "l0"] == 6
    for file in run.files:
        open_file(log, "r1", file).close()
    resources = pq.read_table(file_path(log, "resources", "r1", "c0")).to_pylist()
    assert {row["process"] for row in resources} == {"machine", "broker", "load:w0", "load:l0"}
    assert json.loads(read_run(log, "r2").scenario_json)["load"]["interval_ms"] == 5.0


def test_losses_end_a_run_quietly(tmp_path: Path) -> None:
    with session(tmp_path, "loses:w0") as load:
        record = load.measure("r")
    assert (record.expected, record.received, record.ending) == (360, 324, "quiet")
    assert record.summary.limited_by not in ("", "nothing")
    assert not record.kept_pace, "it was asked for twice as much"


def test_a_run_that_never_gets_quiet_ends_after_its_draining(tmp_path: Path) -> None:
    of_servers = ["no CPU quotas"]
    with session(tmp_path, "trickles:w0", drain_s=0.3, notes=of_servers) as load:
        first = load.measure("r1")
        of_servers.append("found out later")
        second = load.measure("r2")
    assert first.ending == second.ending == "drained"
    note = "began while messages of run r1 were still arriving"
    assert note not in first.summary.notes
    assert second.summary.notes[:3] == ("no CPU quotas", "found out later", note)
    assert read_run(tmp_path / "log", "r1").notes == first.summary.notes
    assert first.summary.notes[0] == "no CPU quotas"
    assert "found out later" not in first.summary.notes


def test_no_latency_clients_no_process_for_them(tmp_path: Path) -> None:
    scenario = small_scenario(tmp_path).model_copy(update={"latency": None})
    with LoadSession(scenario, NOWHERE, tmp_path / "log", writers=3, command=stand_in()) as load:
        assert len(load_processes()) == 3, "three processes have clients to play"
        assert load.plan.writers == ("w0", "w1", "w2")


# ---- what is refused ---------------------------------------------------------------------


def test_a_name_that_is_taken_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    with session(tmp_path) as load:
        load.measure("r")
        with pytest.raises(RunRefused, match="'r': is in"):
            load.measure("r")
        with pytest.raises(RunRefused, match="letters, digits"):
            load.measure("a/b")
        with pytest.raises(LoadError, match=r"0\.5 s cut at each end leave nothing"):
            load.measure("r2", duration_s=1.0, trim_s=0.5)
        load.measure("r2")
    with pytest.raises(LoadError, match="closed"):
        load.measure("r3")


def test_a_session_that_cannot_be(tmp_path: Path) -> None:
    scenario = small_scenario(tmp_path)
    with pytest.raises(LoadError, match="no target for n1"):
        LoadSession(scenario, {}, tmp_path)
    with pytest.raises(LoadError, match="at least 1 is needed"):
        LoadSession(scenario, NOWHERE, tmp_path, writers=0)


# ---- what fails --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behavior", "said"),
    [
        ("dies-connecting:w0", "w0: ended with exit code 3\nw0 connects\na bad end"),
        ("fails-connecting:l0", "l0: 127.0.0.1:1 refused t-pub-0"),
        ("chatters:w0", "w0: sent 'this is not JSON', which is not a JSON object"),
    ],
)
def test_who_fails_to_connect_is_named(tmp_path: Path, behavior: str, said: str) -> None:
    with pytest.raises(LoadFailed) as failed, session(tmp_path, behavior):
        pytest.fail("it connected")
    assert said in str(failed.value)
    assert load_processes() == []


@pytest.mark.parametrize(
    ("behavior", "said"),
    [
        ("dies-measuring:l0", "l0: ended with exit code 4\nl0 connects"),
        ("fails-measuring:w0", "w0: n1 closed the connection of t-sub-1"),
    ],
)
def test_who_fails_while_measuring_is_named_and_nothing_is_left(
    tmp_path: Path, behavior: str, said: str
) -> None:
    with session(tmp_path, behavior, watch=Watch()) as load:
        with pytest.raises(LoadFailed) as failed:
            load.measure("r")
        assert load_processes() == [], "the others are stopped at once"
        with pytest.raises(LoadError, match="closed"):
            load.measure("r2")
    assert said in str(failed.value)
    assert not list((tmp_path / "log").rglob("*.parquet"))
    assert not [each for each in threading.enumerate() if each.name.startswith("watch")]


def test_rows_that_are_not_there_are_found(tmp_path: Path) -> None:
    with session(tmp_path, "miscounts:w0") as load, pytest.raises(LogError, match="has 360 rows"):
        load.measure("r")
    assert not list((tmp_path / "log").rglob("*.parquet"))


def test_who_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "SILENT_S", 0.3)
    with (
        pytest.raises(LoadFailed, match="w0: has not said 'connected' within"),
        session(tmp_path, "never-connects:w0", connect_s=0.2),
    ):
        pytest.fail("it connected")
    monkeypatch.setattr(workers_module, "CLOSE_S", 0.3)
    with (
        session(tmp_path, "silent:l0") as load,
        pytest.raises(LoadFailed, match="l0: has not reported"),
    ):
        load.measure("r")
    assert load_processes() == []


def test_one_that_does_not_leave_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "CLOSE_S", 0.3)
    with session(tmp_path, "stays"):
        assert len(load_processes()) == 2
    assert load_processes() == []


def test_one_that_is_stopped_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "CLOCK_S", 0.3)
    monkeypatch.setattr(workers_module, "CLOSE_S", 0.3)
    with session(tmp_path) as load:
        for pid in load_processes():
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(LoadFailed, match="w0: has not answered in time"):
            load.measure("r")
    assert load_processes() == []


COORDINATOR = """
import signal
import sys
from pathlib import Path
from isthmus.bench.coordinator.session import LoadSession
from support.load_sessions import NOWHERE, small_scenario, stand_in
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a shell's foreground
folder = Path(sys.argv[1])
with LoadSession(small_scenario(folder), NOWHERE, folder / "log", command=stand_in()) as load:
    print("connected", flush=True)
    load.measure("r", duration_s=60.0)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_an_interrupted_coordinator(tmp_path: Path, number: int) -> None:
    coordinator = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert coordinator.stdout is not None
        assert coordinator.stdout.readline() == "connected\n"
        ours = load_processes(coordinator.pid)
        assert len(ours) == 3
        coordinator.send_signal(number)
        _, errors = coordinator.communicate(timeout=30)
    finally:
        coordinator.kill()
        coordinator.wait()
    assert "KeyboardInterrupt" in errors or number == signal.SIGKILL
    wait_for(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in ours), 10, "the end of all of them"
    )


# ---- for real ----------------------------------------------------------------------------


def test_a_real_run(tmp_path: Path, shared_broker: SharedBroker) -> None:
    broker = shared_broker("mosquitto")
    targets = {"n1": Target(broker.host, broker.port)}
    scenario = small_scenario(tmp_path, publishers=4, subscribers=5)
    with LoadSession(scenario, targets, tmp_path / "log", watch=Watch()) as load:
        for number in range(2):
            record = load.measure(f"r{number}", duration_s=2.0, trim_s=0.2)
            assert record.ending == "complete", record
            assert record.received == record.expected == 5 * record.sent, record
            # All arrived; what came late, after the window, depends on who else is busy.
            assert record.summary.limit_ratio == pytest.approx(1.0, abs=0.3)
            run = read_run(tmp_path / "log", f"r{number}")
            assert sum(stray.rows for stray in run.strays) == 0
    assert load_processes() == []


def test_a_broker_that_dies_ends_the_session(tmp_path: Path, broker_factory: Any) -> None:
    broker = broker_factory("mosquitto")
    targets = {"n1": Target(broker.host, broker.port)}
    with LoadSession(small_scenario(tmp_path), targets, tmp_path / "log") as load:
        load.measure("before")
        broker.stop()
        with pytest.raises(LoadFailed, match="n1"):
            load.measure("after")
    assert load_processes() == []
    assert list_runs(tmp_path / "log") == ("before",)
