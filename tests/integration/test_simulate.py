"""From the simulator through Spark: what the job finds is what the simulator's clients hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from isthmus.cooperation import registry
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.log.schema import Table, file_path
from isthmus.pipeline.spark.indexes import compute
from isthmus.simulate.plan import WRITER
from support.simulated import counted, simulated


class Flooding(PublicationFlooding):
    """PF over every link there is: what comes a second time is dropped by the node."""

    name = "flooding"
    topology = "any"


def column(log: Path, table: Table, name: str) -> list[int]:
    path = file_path(log, table, "r", WRITER)
    found: list[int] = pq.read_table(path, partitioning=None)[name].to_pylist()
    return found


def compare(spark: SparkSession, log: Path, shape: dict[str, Any], algorithm: str) -> None:
    """Simulate a fabric with a fault in it and count it in three ways."""
    exact = simulated(
        log,
        "r",
        simulation={"duration_s": 4.0, **shape},
        cooperation={"algorithm": algorithm},
        load={"publishers": 20, "subscribers": 100, "interval_ms": 1000.0, "qos": 1},
        cut=[{"at_s": 1.0, "for_s": 1.0, "source": ["n1"], "target": ["n2"], "one_way": True}],
    )
    by_spark = {name: frame.toArrow().to_pylist() for name, frame in compute(spark, log).items()}
    directly = run_tables(log, "r")
    for name, rows in directly.items():
        assert sorted(by_spark[name], key=repr) == sorted(rows, key=repr), name

    (summary,) = by_spark["summary"]
    found = counted(exact, Counter(column(log, "publishes", "publisher")))
    assert summary["expected"] == found.expected == 20 * 4 * 10
    assert summary["delivered"] == found.delivered == found.expected
    assert summary["duplicates"] == found.duplicates == 0
    assert summary["order_violations"] == found.order_violations

    hops = next(row for row in by_spark["hops"] if row["scope"] == "all")
    on_wires = sum(packets["PUBLISH"] for packets in exact.fabric.counts.values())
    assert hops["hops"] == on_wires > 80
    assert hops["hop_bytes"] == sum(column(log, "hops", "bytes"))
    assert 2 <= hops["path_max"] <= max(column(log, "hops", "hops"))
    links = [row for row in by_spark["traffic"] if row["kind"] == "link"]
    assert len(links) == 2 * len(exact.plan.links)
    assert sum(row["control_bytes_out"] for row in links) > 0


def test_a_simulated_fabric_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    compare(spark, tmp_path, {"nodes": 12}, "sf")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("shape", "algorithm"), [({"topology": "graph", "links": 3000}, "flooding")]
)
def test_a_thousand_nodes_through_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: dict[str, Any],
    algorithm: str,
) -> None:
    known = {**registry._BUILT_IN, "flooding": f"{__name__}:Flooding"}
    monkeypatch.setattr(registry, "_BUILT_IN", known)
    compare(spark, tmp_path, {"nodes": 1000, **shape}, algorithm)
