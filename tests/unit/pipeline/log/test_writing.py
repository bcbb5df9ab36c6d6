"""Files that grow: what was added is read again, in bounded pieces; others' files stay."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from isthmus.errors import LogError, RunRefused
from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.log import writing
from isthmus.pipeline.log.schema import TABLES, file_path
from isthmus.pipeline.log.writing import RowWriter, TableFile, write_table
from support.generated_logs import Shape, generate

S = 1_000_000_000
HOP = (1 * S, "a", "b", "a", "1f.2", b"\x00\xff", 1, 1, 90, 0, 0, 70_000, S)
UNKNOWN = (2 * S, "b", "c", "a", "", b"", 0, 2, 60, None, None, None, None)


def test_rows_come_back_in_groups_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GROUP_ROWS", 4)
    writer = RowWriter(tmp_path, "r", "s0", ["hops", "links"])
    rows = [(number, *(HOP, UNKNOWN)[number % 2][1:]) for number in range(10)]
    for row in rows:
        writer.add("hops", row)
    assert writer.rows == {"hops": 10, "links": 0}
    assert [(file.table, file.rows) for file in writer.close()] == [("hops", 10), ("links", 0)]
    with pq.ParquetFile(file_path(tmp_path, "hops", "r", "s0")) as file:
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        assert groups == [4, 4, 2]
        read = file.read().to_pylist()
    assert read == [dict(zip(TABLES["hops"].names, row, strict=True)) for row in rows]


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    TableFile(tmp_path, "hops", "r", "s0").close()
    before = file_path(tmp_path, "hops", "r", "s0").read_bytes()
    with pytest.raises(RunRefused, match="is there already"):
        RowWriter(tmp_path, "r", "s0", ["links", "hops"])
    assert file_path(tmp_path, "hops", "r", "s0").read_bytes() == before
    assert not file_path(tmp_path, "links", "r", "s0").exists()
    with pytest.raises(LogError, match="use letters"):
        RowWriter(tmp_path, "a/b", "s0", ["hops"])


def test_a_run_that_failed_leaves_no_file(tmp_path: Path) -> None:
    writer = RowWriter(tmp_path, "r", "s0", ["hops", "publishes"])
    writer.add("hops", HOP)
    writer.discard()
    assert not list(tmp_path.rglob("*.parquet"))


def test_topics_beyond_65535_go_round(tmp_path: Path) -> None:
    topics = 70_001
    run = generate(1, "r", Shape(publishers=0, subscribers=0, latency_subscribers=0))
    row = run.row | {
        "started_ns": 0,
        "ended_ns": 10 * S,
        "window_start_ns": 0,
        "window_end_ns": 9 * S,
        "topics": [f"t/{number}" for number in range(topics)],
        "clients": [
            {
                "client": number,
                "name": role,
                "kind": "t",
                "role": role,
                "topic": 70_000,
                "node": node,
                "writer": "s0",
            }
            for number, (role, node) in enumerate((("publisher", "a"), ("subscriber", "b")))
        ],
        "clocks": [{"writer": "s0", "machine": "m", "offset_ns": 0, "error_ns": 0}],
        "strays": [],
    }
    writer = RowWriter(tmp_path, "r", "s0", ["publishes", "deliveries", "hops"])
    writer.add("publishes", (0, 0, 70_000, S))
    writer.add("deliveries", (1, 0, 0, 70_000, S, 2 * S))
    writer.add("hops", HOP)
    writer.add("hops", UNKNOWN)
    row["files"] = [
        {"table": file.table, "writer": file.writer, "rows": file.rows} for file in writer.close()
    ]
    write_table(tmp_path, "runs", "r", "s0", [row])
    tables = run_tables(tmp_path, "r")
    assert (tables["summary"][0]["expected"], tables["summary"][0]["delivered"]) == (1, 1)
    crossed = next(each for each in tables["hops"] if each["name"] == "t/70000")
    assert (crossed["sent"], crossed["hops"], crossed["path_max"]) == (1, 1, 1)
    assert len(tables["hops"]) == topics + 1
    rejected = [each for each in tables["rows"] if each["outcome"] == "rejected"]
    assert [(each["table"], each["rows"]) for each in rejected] == [("hops", 1)]
