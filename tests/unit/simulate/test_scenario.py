"""A scenario's file in the exact simulator: its nodes, lines, clients and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from isthmus.bench.load.plan import plan_clients
from isthmus.bench.scenario import Scenario, load_scenario
from isthmus.cli.main import main
from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.log.reading import read_run
from isthmus.pipeline.log.schema import Table, file_path
from isthmus.simulate.exact import ExactRun
from isthmus.simulate.plan import WRITER, planned_scenario

THREE = """
[scenario]
name = "three"
duration_s = 8.0
trim_s = 0.5
seed = 3
[load]
interval_ms = 50.0
qos = {qos}
[emulation]
link_delay_ms = 10.0
[[node]]
id = "a"
[[node]]
id = "b"
peers = ["a"]
[[node]]
id = "c"
peers = ["b"]
[[place]]
node = "a"
topic = "t"
publishers = 2
subscribers = 1
[[place]]
node = "b"
topic = "t"
publishers = 1
subscribers = 1
[[place]]
node = "c"
topic = "t"
subscribers = 2
"""
CRASH = '[[crash]]\nnode = "{node}"\nat_s = 2.0\nfor_s = 1.0\n'


def loaded(folder: Path, text: str, **values: object) -> Scenario:
    file = folder / "scenario.toml"
    file.write_text(text.format(**values))
    return load_scenario(file, all_started=True)


def played(folder: Path, text: str, **values: object) -> tuple[ExactRun, dict[str, Any]]:
    exact = ExactRun(planned_scenario(loaded(folder, text, **values)), folder / "log", "r")
    exact.record()
    (summary,) = run_tables(folder / "log", "r")["summary"]
    return exact, summary


def rows(folder: Path, table: Table) -> list[dict[str, Any]]:
    path = file_path(folder / "log", table, "r", WRITER)
    found: list[dict[str, Any]] = pq.read_table(path, partitioning=None).to_pylist()
    return found


def test_the_clients_and_messages_of_bench_run(tmp_path: Path) -> None:
    exact, summary = played(tmp_path, THREE, qos=0)
    scenario = exact.plan
    wanted = plan_clients(loaded(tmp_path, THREE, qos=0), [WRITER], WRITER)
    assert (scenario.clients, scenario.topics) == (wanted.clients, wanted.topics)
    run = read_run(tmp_path / "log", "r")
    assert (run.scenario, run.labels["algorithm"], run.labels["seed"]) == ("three", "sf", "3")
    assert run.window_end_ns - run.window_start_ns == 7 * 10**9
    assert (
        len(rows(tmp_path, "publishes")) == 3 * 160
    )  # of three publishers, as many as fit into 8 s
    assert summary["lost"] == summary["duplicates"] == 0
    assert summary["expected"] == summary["delivered"] == 3 * 140 * 4


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_a_crash_loses_only_what_was_leaving_the_node(tmp_path: Path, qos: int, node: str) -> None:
    """Guarantees, "A crash of the ingress node": on a link of 10 ms, and acknowledged already."""
    exact, summary = played(tmp_path, THREE + CRASH, qos=qos, node=node)
    assert exact.faults[0].in_words(exact.faults[0].began_ns - 2 * 10**9) in summary["notes"]
    publishers = {"a": 2, "b": 1, "c": 0}[node]
    assert (exact.missed > 0) == (publishers > 0)
    nodes = {client.client: client.node for client in exact.plan.clients}
    sent = rows(tmp_path, "publishes")
    received = {
        (row["subscriber"], row["publisher"], row["message"])
        for row in rows(tmp_path, "deliveries")
    }
    lost = [
        row
        for row in sent
        for client in exact.plan.clients
        if client.role == "subscriber"
        and (client.client, row["publisher"], row["message"]) not in received
    ]
    killed_ns = exact.faults[0].began_ns
    for row in lost:
        assert nodes[row["publisher"]] == node
        assert killed_ns - 12_000_000 < row["t_send_ns"] <= killed_ns
    assert not lost or publishers


def test_a_crash_of_the_subscribers_node_loses_at_qos_0(tmp_path: Path) -> None:
    _, summary = played(tmp_path, THREE + CRASH, qos=0, node="c")
    assert summary["lost"] > 0


def test_each_direction_has_its_delay(tmp_path: Path) -> None:
    lines = '[[emulation.link]]\nbetween = ["a", "b"]\ndelay_ms = 30.0\nback_delay_ms = 5.0\n'
    exact, _ = played(tmp_path, THREE + lines, qos=0)
    nodes = {client.client: client.node for client in exact.plan.clients}
    least_ms: dict[tuple[str, str], float] = {}
    for row in rows(tmp_path, "deliveries"):
        way = nodes[row["publisher"]], nodes[row["subscriber"]]
        took_ms = (row["t_receive_ns"] - row["t_send_ns"]) / 1e6
        least_ms[way] = min(took_ms, least_ms.get(way, took_ms))
    at_home_ms = least_ms["a", "a"]
    assert least_ms["a", "b"] - at_home_ms >= 30
    assert 5 <= least_ms["b", "a"] - at_home_ms < 30
    assert least_ms["a", "c"] - at_home_ms >= 40


def test_a_cut_ends_when_the_last_one_does(tmp_path: Path) -> None:
    cuts = "".join(
        f'[[cut]]\nsource = ["c"]\ntarget = ["b"]\nat_s = {at_s}\nfor_s = 2.0\n'
        for at_s in (1.0, 2.5)
    )
    exact, summary = played(tmp_path, THREE + cuts, qos=1)
    assert summary["lost"] == 0
    subscribers = {client.client for client in exact.plan.clients if client.node == "c"}
    begin_ns = read_run(tmp_path / "log", "r").started_ns
    came_s = sorted(
        (row["t_receive_ns"] - begin_ns) / 1e9
        for row in rows(tmp_path, "deliveries")
        if row["subscriber"] in subscribers
    )
    assert not [at_s for at_s in came_s if 1.1 < at_s < 4.5]
    assert [at_s for at_s in came_s if at_s < 1.1]
    assert [at_s for at_s in came_s if at_s > 4.5]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded(tmp_path, THREE, qos=1)
    file, log = str(tmp_path / "scenario.toml"), str(tmp_path / "log")
    options = ["--log", log, "--run", "r", "--seed", "5", "--duration", "4", "--algorithm", "pf"]
    with pytest.raises(SystemExit) as ended:
        main(["simulate", file, *options, "--interval-ms", "100"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "run r: scenario three, 3 nodes, 2 links, pf, seed 5, 4 s" in shown
    assert "delivered  360 of 360 expected, 0 lost" in shown
    with pytest.raises(SystemExit) as ended:
        main(["simulate", file, *options, "--nodes", "4", "--qos", "1"])
    assert ended.value.code == 2
    assert "nodes, qos" in capsys.readouterr().err


def test_what_cannot_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scenario.toml"
    text = THREE.format(qos=0).replace('id = "c"\npeers = ["b"]', 'id = "c"\naddress = "h:1"')
    file.write_text(text)
    for command in ("simulate", "up"):
        with pytest.raises(SystemExit) as ended:
            main([command, str(file)])
        assert ended.value.code == 2
        line = text[: text.index("address")].count("\n") + 1
        assert f"{file}:{line}: node[2].address: " in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "single"])
    assert ended.value.code == 2
    assert "node[0].with_node: a broker without a node" in capsys.readouterr().err


def test_up_starts_its_fabric_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = loaded(tmp_path, THREE, qos=0)
    started: list[object] = []

    def run_fabric(config: object, for_s: float | None) -> int:
        started.append(config)
        return 0

    monkeypatch.setattr("isthmus.fabric.processes.run_fabric", run_fabric)
    with pytest.raises(SystemExit) as ended:
        main(["up", str(tmp_path / "scenario.toml")])
    assert ended.value.code == 0
    assert started == [scenario.fabric]
    assert "load, delays and faults are for" in capsys.readouterr().out
