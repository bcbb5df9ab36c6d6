"""The pipeline benchmark: its log is seeded and valid, DuckDB agrees with us, its verdicts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from benchmarks.bench_pipeline import targets_of
from benchmarks.pipeline.child import from_indexes, run_duckdb
from benchmarks.pipeline.generate import RUN, Shape, generate
from benchmarks.pipeline.rounds import Taken, differences

from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.log.reading import list_runs, read_run
from isthmus.pipeline.log.schema import file_path

SHAPE = Shape(0.0005)


def silent(_line: str) -> None:
    pass


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("bench-pipeline") / "log"
    generate(log, SHAPE, silent)
    return log


def test_the_log_is_a_log(log: Path) -> None:
    assert list_runs(log) == (RUN,)
    run = read_run(log, RUN)
    publishes, deliveries = (
        sum(file.rows for file in run.files_of(table)) for table in ("publishes", "deliveries")
    )
    assert publishes == 100 * SHAPE.per_publisher + 80
    assert deliveries == pytest.approx(1000 * SHAPE.per_publisher + 80, rel=0.001)


def test_a_log_is_written_once_and_belongs_to_its_seed(log: Path, tmp_path: Path) -> None:
    said: list[str] = []
    generate(log, SHAPE, said.append)
    assert said == [f"using {log}"]
    rows = []
    for seed in (SHAPE.seed, SHAPE.seed + 1):
        generate(tmp_path, replace(SHAPE, seed=seed), silent)
        rows.append(pq.read_table(file_path(tmp_path, "deliveries", RUN, "w3")))
    assert pq.read_table(file_path(log, "deliveries", RUN, "w3")) == rows[0] != rows[1]


def test_duckdb_and_we_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for chance in ("LOST", "TWICE", "OVERTAKES"):  # so that each happens, also at the edges
        monkeypatch.setattr(f"benchmarks.pipeline.generate.{chance}", 0.01)
    log = tmp_path / "log"
    generate(log, SHAPE, silent)
    tables = run_tables(log, RUN)
    ours = from_indexes(tables)
    [summary] = tables["summary"]
    assert all(summary[what] for what in ("lost", "duplicates", "order_violations"))
    exact, counted = (
        run_duckdb(f"duckdb-{form}", log, time.perf_counter())["tables"]
        for form in ("exact", "counted")
    )
    assert exact == ours
    assert (counted["ingress"], counted["egress"]) == (ours["ingress"], ours["egress"])


def took(engine: str, work_s: float, losses: int = 0) -> Taken:
    return Taken(engine, 1.0, work_s, work_s, 1 << 30, {"losses": [["s", losses]], engine: []})


def test_a_difference_is_named() -> None:
    assert differences(took("spark", 1), took("duckdb-exact", 1)) == []
    [difference] = differences(took("spark", 1, 2), took("duckdb-exact", 1, 3))
    assert difference == "losses: 1 and 1 rows, first difference (['s', 2], ['s', 3])"


def test_what_was_not_measured_is_not_met() -> None:
    taken = {
        ("spark", 1.0): [took("spark", 30)],
        ("spark", 0.5): [took("spark", 16)],
        ("duckdb-exact", 1.0): [took("duckdb-exact", 60)],
        ("duckdb-counted", 1.0): [took("duckdb-counted", 15)],
    }
    exact, counted, memory, doubling, differ = targets_of(taken, 1.0, 0.5, [], 900)
    assert (exact.value, counted.value, memory.value) == (0.5, 2.0, 1.0)
    assert (doubling.value, differ.value) == (30 / 16, 0.0)
    assert [t.met for t in (exact, counted, memory, doubling, differ)] == [True, False] + [True] * 3

    del taken["duckdb-exact", 1.0]
    exact, *_, differ = targets_of(taken, 1.0, 0.5, [], 90)
    assert (exact.value, exact.note) == (30 / 90, "DuckDB was stopped after 90 s")
    assert (differ.value, differ.met) == (None, False)

    del taken["spark", 1.0]
    targets = targets_of(taken, 1.0, 0.5, [], 90)
    assert [target.met for target in targets] == [False] * 5
