"""What the log of a simulated run says is what the simulator's clients hold, whatever happened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.log.schema import file_path
from isthmus.sim.invariants import check_at_rest
from isthmus.simulate.plan import WRITER
from support.simulated import counted, simulated

CUT = {"at_s": 1.0, "for_s": 3.0, "source": ["n1", "n2"], "target": ["n3", "n4", "n5"]}
FAULTS: tuple[dict[str, Any], ...] = (
    {},
    {"cut": [CUT]},
    {"cut": [CUT | {"one_way": True}]},
    {"crash": [{"node": "n2", "at_s": 1.0, "for_s": 1.5}]},
    {"cut": [CUT], "crash": [{"node": "n4", "at_s": 2.5, "for_s": 2.0}]},
)


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: "+".join(faults) or "none")
@pytest.mark.parametrize(
    ("topology", "algorithm", "qos"), [("tree", "sf", 0), ("tree", "sf", 2), ("ring", "pf", 1)]
)
def test_deliveries_duplicates_and_order(
    tmp_path: Path, topology: str, algorithm: str, qos: int, faults: dict[str, Any]
) -> None:
    exact = simulated(
        tmp_path,
        "r",
        simulation={"nodes": 5, "topology": topology, "duration_s": 6.0, "seed": qos},
        cooperation={"algorithm": algorithm},
        load={
            "topics": 3,
            "publishers": 6,
            "subscribers": 8,
            "interval_ms": 300.0,
            "qos": qos,
        },
        **faults,
    )
    check_at_rest(exact.fabric)
    path = file_path(tmp_path, "publishes", "r", WRITER)
    sent = Counter(pq.read_table(path, partitioning=None)["publisher"].to_pylist())
    tables = run_tables(tmp_path, "r")
    (summary,) = tables["summary"]
    found = counted(exact, sent)
    assert (
        summary["expected"],
        summary["delivered"],
        summary["duplicates"],
        summary["order_violations"],
    ) == (found.expected, found.delivered, found.duplicates, found.order_violations)
    assert found.expected > 250
    if not faults:
        assert found.delivered == found.expected
        assert (found.duplicates, tables["hops"][0]["repeated"]) == (0, 0)
    assert [row for row in tables["rows"] if row["outcome"] == "rejected"] == []
