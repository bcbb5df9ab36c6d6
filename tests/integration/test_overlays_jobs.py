"""The Spark jobs of the Overlays reproduction, over a log whose figures are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from isthmus.reproduce.overlays.experiments import CONTENDERS, Experiment, Parameters, Setting
from isthmus.reproduce.overlays.jobs import compute_tables
from support.generated_logs import GeneratedRun, Shape, generate, write_log
from support.spark import spark

__all__ = ["spark"]

S = 1_000_000_000
EXPERIMENT = Experiment(Setting(50, 3), CONTENDERS["capacity"])


def link(t_ns: int, node: str, peer: str, **counters: int) -> dict[str, Any]:
    """A sample of a link; `messages=5` stands for both directions."""
    names = ("messages", "bytes", "data_bytes", "control_packets", "control_bytes")
    both = {f"{name}_{way}": counters.get(name) for name in names for way in ("out", "in")}
    tcp = dict.fromkeys(("retransmits", "rwnd_limited_us", "sndbuf_limited_us", "busy_us"))
    given = {key: value for key, value in counters.items() if key in both}
    return {"t_ns": t_ns, "kind": "link", "node": node, "peer": peer, **both, **tcp, **given}


def use(t_ns: int, node: str, process: str, cpu_ns: int, rss_bytes: int) -> dict[str, Any]:
    return {
        "t_ns": t_ns,
        "node": node,
        "process": process,
        "cpu_ns": cpu_ns,
        "rss_bytes": rss_bytes,
        "throttled_ns": None,
    }


def made(number: int, *, growth: int) -> GeneratedRun:
    """A run whose links grow by multiples of `growth` in its window of 4 s."""
    found = generate(1, EXPERIMENT.run(number), dataclasses.replace(Shape(), rejected=0.0))
    row = found.row
    for clock in row["clocks"]:
        clock["offset_ns"] = 0 if clock["writer"] == "c0" else clock["offset_ns"]
    row["window_start_ns"] = start = row["started_ns"] + S
    row["window_end_ns"] = end = start + 4 * S
    row["ended_ns"] = end + 2 * S
    row["labels"] = list(EXPERIMENT.labels(Parameters(), number).items())
    before = {"messages": 10, "data_bytes": 1000, "control_packets": 7, "control_bytes": 500}
    within = {name: value + growth for name, value in before.items()}
    later = dict.fromkeys(before, 10**6)  # after the window: counts nowhere
    found.tables["links"] = {
        "c0": [
            sample
            for node, peer in (("n1", "n2"), ("n2", "n1"))
            for sample in (
                link(start, node, peer, **before),
                link(end, node, peer, **within, messages_out=99),
                link(end + S, node, peer, **later),
            )
        ]
    }
    found.tables["resources"] = {
        "c0": [
            sample
            for node in ("n1", "n2")
            for process, cpu_ns in (("node", 2 * S), ("broker", S))
            for sample in (
                use(start, node, process, 0, 100),
                use(end, node, process, cpu_ns, 300),
            )
        ]
    }
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("spark")  # the job's own session is this one
def test_cells_and_grid(tmp_path: Path) -> None:
    runs = [made(1, growth=400), made(2, growth=800)]
    write_log(tmp_path / "log", runs)
    tables = compute_tables(tmp_path / "log", tmp_path / "out", [run.run for run in runs])
    first, second = tables["cells"]
    assert (first["run"], first["round"], second["round"]) == ("l50-t3-capacity-1", 1, 2)
    assert (first["contender"], first["locality"], first["stress"]) == ("capacity", 50, False)
    # Two ends of a link, 400 more at each within 4 s.
    assert first["publications_bytes_s"] == first["signalling_bytes_s"] == 200.0
    assert first["publications_s"] == 200.0
    assert first["signalling_bytes"] == 2 * 900
    assert first["publications_bytes"] == 2 * 1400
    assert first["publications"] == 2 * 99  # what left the nodes, not what arrived
    assert (first["node_cores"], first["broker_cores"]) == (1.0, 0.5)
    assert first["node_rss_bytes"] == 400.0
    (summed,) = tables["grid"]
    assert summed["rounds"] == 2
    assert summed["signalling_bytes_mean"] == 2200.0
    assert (summed["signalling_bytes_least"], summed["signalling_bytes_most"]) == (1800, 2600)
    assert summed["signalling_bytes_deviation"] == pytest.approx(565.685, abs=0.001)
    (delay,) = [
        row
        for row in tables["latency"]
        if (row["run"], row["kind"], row["scope"]) == (first["run"], "t", "all")
    ]
    assert delay["count"] == first["delays"] > 0
    assert first["delay_ms"] == pytest.approx(delay["mean_us"] / 1000)
    assert (tmp_path / "out" / "cells.parquet").is_file()
    assert (tmp_path / "out" / "grid.csv").is_file()
