"""The exact simulator's log: complete, of bounded memory, the same each time, or not there."""

from __future__ import annotations

import resource
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from isthmus.cli.main import main
from isthmus.cooperation import registry
from isthmus.cooperation.api import CooperationAlgorithm, Route, SessionInfo
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.errors import LogError, RunRefused, SimulationFailed
from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.log.reading import read_run
from isthmus.pipeline.log.schema import Table, file_path
from isthmus.simulate.exact import ExactRun
from isthmus.simulate.file import Simulation, simulation_of
from isthmus.simulate.plan import WRITER, planned
from support.simulated import simulated


def rows(log: Path, table: Table, run: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.read_table(
        file_path(log, table, run, WRITER), partitioning=None
    ).to_pylist()
    return found


LINE: dict[str, dict[str, Any]] = {
    "simulation": {"nodes": 3, "topology": "line", "duration_s": 3.0},
    "load": {"topics": 1, "publishers": 2, "subscribers": 4, "qos": 1},
}


def test_every_message_and_every_hop_of_a_line(tmp_path: Path) -> None:
    exact = simulated(tmp_path, "r", **LINE)
    published, hops = rows(tmp_path, "publishes", "r"), rows(tmp_path, "hops", "r")
    assert len(published) == 6
    nodes = {client.client: client.node for client in exact.plan.clients}
    wanted = {client.node for client in exact.plan.clients if client.role == "subscriber"}
    way = ["n1", "n2", "n3"]
    expected: Counter[tuple[object, ...]] = Counter()
    for message in published:
        at = way.index(nodes[message["publisher"]])  # type: ignore[index]
        for step in (1, -1):
            path = way[at::step] if step == 1 else way[at::-1]
            while path and path[-1] not in wanted:
                path.pop()
            for crossed, (source, target) in enumerate(pairwise(path), 1):
                key = (message["publisher"], message["message"], source, target, crossed)
                expected[key] += 1
    names = ("publisher", "message", "source", "target", "hops")
    assert Counter(tuple(hop[name] for name in names) for hop in hops) == expected
    sent_at = {(m["publisher"], m["message"]): m["t_send_ns"] for m in published}
    for hop in hops:
        assert hop["t_send_ns"] == sent_at[hop["publisher"], hop["message"]]
        assert hop["origin"] == nodes[hop["publisher"]]  # type: ignore[index]
        assert hop["number"], "QoS 1 is numbered"
        assert (hop["topic"], hop["label"], hop["qos"]) == (0, b"", 1)
    run = read_run(tmp_path, "r")
    assert run.labels["algorithm"] == "sf"
    assert [(clock.offset_ns, clock.error_ns) for clock in run.clocks] == [(0, 0)]


def test_the_links_counters_are_those_of_the_wire(tmp_path: Path) -> None:
    exact = simulated(tmp_path, "r", **LINE)
    traffic = run_tables(tmp_path, "r")["traffic"]
    assert {(row["node"], row["peer"]) for row in traffic} == {
        ("n1", "n2"),
        ("n2", "n1"),
        ("n2", "n3"),
        ("n3", "n2"),
    }
    hops = Counter((hop["source"], hop["target"]) for hop in rows(tmp_path, "hops", "r"))
    for row in traffic:
        assert row["messages_out"] == hops[row["node"], row["peer"]]
        assert row["data_bytes_out"] + row["control_bytes_out"] == row["bytes_out"]
        assert row["span_s"] == 3.0
    first = next(row for row in rows(tmp_path, "links", "r") if row["node"] == "n2")
    assert first["t_ns"] == read_run(tmp_path, "r").window_start_ns
    assert first["control_packets_out"] > 0, "what it took to set up"  # type: ignore[operator]
    assert exact.fabric.counts["n1", "n2"]["PUBLISH"] == hops["n1", "n2"]


def test_the_same_simulation_gives_the_same_rows(tmp_path: Path) -> None:
    tables: tuple[Table, ...] = ("publishes", "deliveries", "hops", "links")
    shape = {"nodes": 8, "topology": "graph", "duration_s": 2.0, "seed": 5}
    for run in ("a", "b"):
        simulated(tmp_path, run, simulation=shape, load={"qos": 2})
    for table in tables:
        assert rows(tmp_path, table, "a") == rows(tmp_path, table, "b") != []
    simulated(tmp_path, "c", simulation=shape | {"seed": 6}, load={"qos": 2})
    assert rows(tmp_path, "hops", "a") != rows(tmp_path, "hops", "c")


def test_memory_does_not_grow_with_the_messages(tmp_path: Path) -> None:
    exact = ExactRun(planned(simulation_of(LINE, Simulation())), tmp_path, "r")
    exact.record()
    for client in exact.playing.values():
        assert (client.received, client.acknowledged) == ([], [])
    for node in exact.fabric.nodes.values():
        assert not node.broker.published
        assert not node.broker.injected


def test_a_crash_of_the_publishers_node_is_told(tmp_path: Path) -> None:
    load = {"topics": 1, "publishers": 1, "subscribers": 1, "interval_ms": 100.0, "qos": 1}
    shape = {"nodes": 1, "duration_s": 6.0}
    crash = [{"node": "n1", "at_s": 1.0, "for_s": 2.0}]
    exact = simulated(tmp_path, "r", simulation=shape, load=load, crash=crash)
    assert exact.missed >= 20
    (summary,) = run_tables(tmp_path, "r")["summary"]
    assert summary["expected"] == 60 - exact.missed
    assert summary["notes"] == [
        "n1 was killed at 1.000 s, started again at 3.000 s and ready at 3.000 s",
        f"{exact.missed} messages were due while their publisher was cut off",
    ]


class Broken(PublicationFlooding):
    """Fails at the first message."""

    name = "broken"

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        raise ZeroDivisionError("of my own")


def test_a_failure_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: dict[str, type[CooperationAlgorithm]] = {"broken": Broken}
    monkeypatch.setattr("isthmus.sim.fabric.load", kinds.__getitem__)
    monkeypatch.setattr(registry, "load", kinds.__getitem__)
    wanted = simulation_of(LINE | {"cooperation": {"algorithm": "broken"}}, Simulation())
    with pytest.raises(SimulationFailed, match="of my own") as caught:
        ExactRun(planned(wanted), tmp_path, "r").record()
    assert caught.value.at_s > 0
    assert "in route" in str(caught.value), "where in the user's own code"
    assert not list(tmp_path.rglob("run=*")), "the name is free again"


@pytest.mark.parametrize("most_bytes", [0, 600, 2_000])
def test_a_log_that_cannot_be_written_is_told_and_leaves_nothing(
    tmp_path: Path, most_bytes: int
) -> None:
    log = tmp_path / "log"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        with pytest.raises(LogError, match=r"log: cannot be written: .*File too large"):
            simulated(log, "r", **LINE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in log.rglob("*") if path.name == "run=r" or path.is_file()]
    log.rename(tmp_path / "aside")
    log.write_text("no folder")
    with pytest.raises(LogError, match=r"log: cannot be written: .*Not a directory"):
        simulated(log, "r", **LINE)


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    simulated(tmp_path, "r", **LINE)
    before = rows(tmp_path, "hops", "r")
    with pytest.raises(RunRefused, match=r"is in .* already"):
        simulated(tmp_path, "r", **LINE)
    assert rows(tmp_path, "hops", "r") == before


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--nodes", "5", "--qos", "1", "--log", str(tmp_path), "--run", "r"])
    assert ended.value.code == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "run r: 5 nodes, tree of 4 links, sf, seed 1, 10 s"
    assert out[2] == "published  100"
    assert out[3] == "delivered  100 of 100 expected, 0 lost, 0 double, 0 out of order"
    (hops, *_) = run_tables(tmp_path, "r")["hops"]
    assert out[5].startswith(f"hops       {hops['hops']}, {hops['hops_per_message']:.2f} per")
    assert out[-1] == f"Every table of it by Spark: isthmus bench index {tmp_path} --run r"
