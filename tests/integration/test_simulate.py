"""From the simulator through Spark: what the job finds is what the simulator's clients hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.log.schema import Table, file_path
from isthmus.pipeline.spark.indexes import compute
from isthmus.simulate.exact import WRITER
from support.simulated import counted, simulated


def column(log: Path, table: Table, name: str) -> list[int]:
    path = file_path(log, table, "r", WRITER)
    found: list[int] = pq.read_table(path, partitioning=None)[name].to_pylist()
    return found


def compare(spark: SparkSession, log: Path, nodes: int, topology: str, seed: int = 1) -> None:
    """Simulate a fabric with faults in it and count it in three ways."""
    exact = simulated(
        log,
        "r",
        simulation={"nodes": nodes, "topology": topology, "duration_s": 4.0, "seed": seed},
        load={"publishers": 20, "subscribers": 100, "interval_ms": 250.0, "qos": 1},
        cut=[{"at_s": 1.0, "for_s": 1.0, "source": ["n1"], "target": ["n2"], "one_way": True}],
    )
    by_spark = {name: frame.toArrow().to_pylist() for name, frame in compute(spark, log).items()}
    directly = run_tables(log, "r")
    for name, rows in directly.items():
        assert sorted(by_spark[name], key=repr) == sorted(rows, key=repr), name

    (summary,) = by_spark["summary"]
    found = counted(exact, Counter(column(log, "publishes", "publisher")))
    assert summary["expected"] == found.expected == 20 * 16 * 10
    assert summary["delivered"] == found.delivered == found.expected
    assert summary["duplicates"] == found.duplicates == 0
    assert summary["order_violations"] == found.order_violations

    hops = next(row for row in by_spark["hops"] if row["scope"] == "all")
    on_wires = Counter[tuple[str, str]]()
    for pair, packets in exact.fabric.counts.items():
        on_wires[pair] = packets["PUBLISH"]
    assert hops["hops"] == on_wires.total() > 320
    assert hops["hop_bytes"] == sum(column(log, "hops", "bytes"))
    assert hops["path_max"] == max(column(log, "hops", "hops"))
    links = [row for row in by_spark["traffic"] if row["kind"] == "link"]
    assert len(links) >= 2 * (nodes - 1)
    assert sum(row["control_bytes_out"] for row in links) > 0


def test_a_simulated_fabric_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    compare(spark, tmp_path, 12, "tree")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("topology", ["tree", "graph"])
def test_a_thousand_nodes_through_spark(spark: SparkSession, tmp_path: Path, topology: str) -> None:
    compare(spark, tmp_path, 1000, topology)
