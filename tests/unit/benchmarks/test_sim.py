"""The benchmark of the bulk simulator: what it measures, sums up and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import bench_sim
from benchmarks.bench_sim import growth, main, measure, reproduced, summary, targets

from isthmus.errors import LoadError, SimulationTooLarge
from isthmus.sim.bulk.memory import check_memory, needed_bytes


def test_a_measurement_has_what_the_page_shows() -> None:
    row = measure(2_000, patterns=True)
    assert row["hops"].keys() == {"alpha", "beta", "gamma", "delta", "epsilon", "zeta"}
    assert row["total_s"] >= row["build_s"] > 0
    assert row["pairs"] == 2 * (9_900 + 250_000 + 9_900) + 200 * (9 + 25 + 9)
    assert len(measure(1_000, patterns=False)["graph_s"]) == bench_sim.BUILDS


def row(nodes: int, total_s: float, **more: Any) -> dict[str, Any]:
    return {
        "nodes": nodes,
        "build_s": total_s / 4,
        "total_s": total_s,
        "peak_gib": 1.0,
        "hops": {"alpha": 12.0},
        "pairs": 1,
        **more,
    }


def test_the_slowest_round_is_judged() -> None:
    found = summary([row(10_000_000, 80.0), row(10_000_000, 95.0), row(10_000_000, 60.0)])
    entry = found["10000000"]["total_s"]
    assert entry == {"median": 80.0, "low": 60.0, "high": 95.0, "rounds": 3}
    judged = {target["name"]: target["met"] for target in targets(found)}
    assert judged == {
        "10,000,000 nodes built and all patterns answered": False,
        "memory for 10,000,000 nodes": True,
    }
    assert growth(summary([row(1024, 1.024)]))["1024"] == pytest.approx(25_000)


def test_the_whole_evaluation_is_judged_where_it_was_run() -> None:
    name = "all of `isthmus reproduce skipgraph`, up to 100,000 nodes"
    rows = [row(100_000, 0.5), {"nodes": 100_000, "reproduce_s": 301.0, "figures": 20}]
    judged = {target["name"]: target for target in targets(summary(rows))}
    assert (judged[name]["value"], judged[name]["met"]) == (301.0, False)
    assert name not in {target["name"] for target in targets(summary(rows[:1]))}


def test_an_evaluation_that_fails_says_why() -> None:
    with pytest.raises(LoadError, match=r"reproduce skipgraph --up-to 100000 .*--no-such-option"):
        reproduced("--no-such-option")


def test_the_same_seed_gives_the_same_hops() -> None:
    with pytest.raises(LoadError, match="different path lengths"):
        summary([row(1000, 1.0), row(1000, 1.0, hops={"alpha": 12.5})])


def test_what_does_not_fit_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(
        SimulationTooLarge, match=r"1,000,000,000 nodes takes about 71\.2 GiB"
    ) as found:
        check_memory(1_000_000_000, 8 << 30)
    assert found.value.needed_bytes == needed_bytes(1_000_000_000) > found.value.free_bytes
    assert check_memory(100_000_000, 16 << 30) <= 16 << 30
    assert check_memory(10_000_000, 4 << 30) <= 4 << 30
    begun: list[int] = []
    monkeypatch.setattr(bench_sim, "in_a_process", lambda nodes, **_: begun.append(nodes))
    assert main(["--sizes", "1000000000000", "--out", str(tmp_path / "x.json")]) == 1
    assert "free; simulate fewer nodes" in capsys.readouterr().out.replace("\n", " ")
    assert not begun
    assert not list(tmp_path.iterdir())


def test_a_whole_run_of_small_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sim, "SMALL", 1_000)
    assert (
        main(["--sizes", "1000", "2000", "--rounds", "2", "--out", str(tmp_path / "x.json")]) == 0
    )
    document = json.loads((tmp_path / "x.json").read_text())
    assert set(document["summary"]) == {"1000", "2000"}
    assert document["summary"]["2000"]["total_s"]["rounds"] == 2
    assert document["summary"]["1000"]["graph_s"]["rounds"] == bench_sim.BUILDS


def test_the_page_and_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "bulk-simulator.md"
    page.write_text(f"before\n{bench_sim.BEGIN}{bench_sim.END}after\n")
    monkeypatch.setattr(bench_sim, "PAGE", page)
    monkeypatch.setattr(bench_sim, "SMALL", 1_000)
    out = tmp_path / "x.json"
    assert main(["--sizes", "1000", "2000", "--out", str(out), "--docs"]) == 0
    shown = page.read_text()
    assert shown.startswith("before\n")
    assert shown.endswith("after\n")
    assert "| 2,000 nodes |" in shown
    assert page.with_suffix(".png").stat().st_size > 5_000
    assert json.loads(page.with_suffix(".json").read_text()) == json.loads(out.read_text())
