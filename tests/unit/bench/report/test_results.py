"""Results come from the tables as they are; CSV and JSON hold all of them."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.bench.report.results import Cpu, IndexTables, result_of, write_csv, write_json
from support.made_up_runs import losses_rows, summary_row, usage_rows


def tables(**values: Any) -> IndexTables:
    return {
        "summary": [summary_row("r1", **values), summary_row("r2", egress=1.0)],
        "usage": [*usage_rows("r1", 2), *usage_rows("r2", 5)],
        "per_second": [],
        "losses": [*losses_rows("r1", lost=2), *losses_rows("r2")],
    }


def test_figures_are_those_of_the_run() -> None:
    result = result_of(
        tables(
            labels=[("broker", "mosquitto,aedes"), ("algorithm", "sf")],
            notes=["a note"],
            limited_by="nothing",
        ),
        "r1",
        name="mixed",
        next_interval_ms=24.0,
        limited_by="brokers",
        notes=["another"],
    )
    assert (result.name, result.run, result.algorithm) == ("mixed", "r1", "sf")
    assert result.brokers == ("mosquitto", "aedes")
    assert (result.ingress, result.egress, result.interval_ms) == (2_000.0, 20_000.0, 25.0)
    assert (result.latency_mean_ms, result.latency_p50_ms, result.latency_p99_ms) == (4.0, 3.0, 12)
    assert result.limited_by == "brokers"
    assert (result.latency_expected, result.latency_lost) == (100, 2)
    assert result.notes == ("a note", "another")


def test_cpu_is_summed_by_who_used_it() -> None:
    cpu = result_of(tables(), "r1").cpu
    assert cpu is not None
    assert (cpu.brokers, cpu.nodes, cpu.load) == pytest.approx((0.18, 0.1, 0.3))
    assert cpu.machine == pytest.approx(0.9)
    assert cpu.busiest_server == pytest.approx(0.14)
    assert cpu.throttled_share == 0.31


def test_a_run_that_nobody_watched_and_in_which_nothing_arrived() -> None:
    empty: dict[str, Any] = {
        "limit_ratio": None,
        "loss_rate": None,
        "latency_count": 0,
        "latency_mean_us": None,
        "latency_p50_us": None,
        "latency_p99_us": None,
        "latency_max_us": None,
        "interval_ns": None,
        "labels": [],
    }
    seen = {**tables(**empty), "usage": []}
    result = result_of(seen, "r1")
    assert result.cpu is None
    assert result.latency_mean_ms is None
    assert result.limit_ratio is None
    assert result.brokers == ()
    assert result.most_egress == math.inf


def test_the_true_limit_lies_below_what_the_next_interval_would_give() -> None:
    result = result_of(tables(), "r1", next_interval_ms=24.0)
    assert result.error == pytest.approx(25 / 24 - 1)
    assert result.most_egress == pytest.approx(20_000 * 25 / 24)
    assert replace(result, is_lower_bound=True).most_egress == math.inf


def test_csv_has_a_line_for_each_and_all_columns(tmp_path: Path) -> None:
    one = result_of(tables(notes=["a, b", "c"]), "r1")
    other = replace(one, name="other", cpu=None)
    write_csv([one, other], tmp_path / "results.csv")
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["r1", "other"]
    assert rows[0]["notes"] == "a, b; c"
    assert float(rows[0]["cpu_brokers"]) == pytest.approx(0.18)
    assert rows[1]["cpu_brokers"] == ""
    assert "cpu" not in rows[0]


def test_json_has_everything_beside_the_results(tmp_path: Path) -> None:
    result = replace(result_of(tables(), "r1"), cpu=Cpu(0.1, 0.0, 0.2, None, 0.1, None))
    write_json([result], tmp_path / "results.json", took_s=1.5)
    read = json.loads((tmp_path / "results.json").read_text())
    assert read["took_s"] == 1.5
    assert read["results"][0]["egress"] == 20_000.0
    assert read["results"][0]["cpu"]["machine"] is None
