"""A log that cannot be trusted is refused by name; what is written can be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.errors import LogError
from isthmus.pipeline.count.direct import run_tables, summarize
from isthmus.pipeline.log.reading import list_runs, read_run
from isthmus.pipeline.log.schema import TABLES, Table, columns_in, file_path, with_footer
from isthmus.pipeline.log.writing import parquet_options, write_table
from support.generated_logs import GeneratedRun, Shape, generate, write_log

SHAPE = Shape(rejected=0.0, renumbered=0.0)
VERSION_1 = Path(__file__).with_name("version-1")
"""A log as schema version 1 was written, and the indexes that it had then."""


@pytest.fixture
def run() -> GeneratedRun:
    return generate(1, "r1", SHAPE)


@pytest.fixture
def log(tmp_path: Path, run: GeneratedRun) -> Path:
    write_log(tmp_path / "log", [run])
    return tmp_path / "log"


def some_file(log: Path, run: GeneratedRun, table: Table = "deliveries") -> Path:
    """A file of the table that has rows."""
    writer = next(writer for writer, rows in run.tables[table].items() if rows)
    return file_path(log, table, run.run, writer)


def refused(log: Path, where: Path, problem: str, run: str = "r1") -> None:
    """Both ways to read the run raise a LogError that names the file and the reason."""
    for read in (run_tables, summarize):
        with pytest.raises(LogError) as caught:
            read(log, run)
        assert caught.value.where == str(where)
        assert problem in caught.value.problem, caught.value.problem


def test_a_run_is_read_as_it_was_written(log: Path, run: GeneratedRun) -> None:
    assert list_runs(log) == ("r1",)
    read = read_run(log, "r1")
    assert read.topics == tuple(run.row["topics"])
    assert [client.name for client in read.clients] == [c["name"] for c in run.row["clients"]]
    assert read.offsets_ns == {c["writer"]: c["offset_ns"] for c in run.row["clocks"]}
    assert read.labels == dict(run.row["labels"])
    for table, by_writer in run.tables.items():
        for writer, rows in by_writer.items():
            written = pq.read_table(file_path(log, table, "r1", writer))  # type: ignore[arg-type]
            names = rows[0].keys() if rows else ()
            assert written.select(list(names)).to_pylist() == rows


@pytest.mark.parametrize("table", ["publishes", "deliveries", "links", "resources", "runs"])
def test_a_file_that_is_cut_short_is_refused(log: Path, run: GeneratedRun, table: Table) -> None:
    path = file_path(log, "runs", "r1", "c0") if table == "runs" else some_file(log, run, table)
    whole = path.read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(LogError, match="cut short or no Parquet") as caught:
            run_tables(log, "r1")
        assert caught.value.where == str(path)


def test_damage_inside_a_file_is_refused(tmp_path: Path) -> None:
    run = generate(3, "r1", Shape(messages=300, rejected=0.0))
    write_log(tmp_path, [run])
    path = some_file(tmp_path, run)
    whole = bytearray(path.read_bytes())
    whole[4:400] = bytes(396)
    path.write_bytes(whole)
    refused(tmp_path, path, "cannot be read to its end")


def test_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    run = generate(3, "r1", Shape(messages=300, rejected=0.0))
    write_log(tmp_path, [run])
    path = some_file(tmp_path, run)
    column = pq.ParquetFile(path).metadata.row_group(0).column(5)
    whole = bytearray(path.read_bytes())
    whole[column.data_page_offset + column.total_compressed_size - 9] ^= 1
    path.write_bytes(whole)
    refused(tmp_path, path, "cannot be read to its end")


def test_a_file_with_other_rows_than_listed_is_refused(log: Path, run: GeneratedRun) -> None:
    path = some_file(log, run)
    rows = run.tables["deliveries"][path.stem]
    write_table(log, "deliveries", "r1", path.stem, rows[:-1])
    refused(log, path, f"has {len(rows) - 1} rows; the run's row says {len(rows)}")


def test_a_missing_file_is_refused(log: Path, run: GeneratedRun) -> None:
    path = some_file(log, run, "publishes")
    path.unlink()
    refused(log, path, "is missing")


def test_another_schema_version_is_refused(log: Path, run: GeneratedRun) -> None:
    path = some_file(log, run)
    table = pq.read_table(path)
    footer = {**table.schema.metadata, b"isthmus.version": b"4"}
    pq.write_table(table.replace_schema_metadata(footer), path)
    refused(log, path, "is of schema version 4; this Isthmus reads 1 to 3")


def test_another_schema_version_in_the_runs_row_is_refused(tmp_path: Path) -> None:
    run = generate(1, "r1", SHAPE)
    run.row["schema_version"] = 4
    write_log(tmp_path, [run])
    refused(tmp_path, file_path(tmp_path, "runs", "r1", "c0"), "is of schema version 4")


def test_a_log_of_version_1_is_read_as_it_was() -> None:
    then = json.loads((VERSION_1 / "indexes.json").read_text())
    now = run_tables(VERSION_1 / "log", "r1")
    assert now.pop("hops") == []
    assert {"table": "hops", "outcome": "read", "reason": "", "rows": 0, "run": "r1"} in now["rows"]
    now["rows"] = [row for row in now["rows"] if row["table"] not in ("hops", "tallies")]
    for row in now["traffic"]:
        for name in [name for name in row if name.startswith(("data_", "control_"))]:
            assert row.pop(name) is None
    assert json.loads(json.dumps(now)) == then


def test_a_log_of_version_2_is_read_as_it_was(log: Path, run: GeneratedRun) -> None:
    """It has no `tallies`, and is the same otherwise."""
    now = run_tables(log, "r1")
    run.row["schema_version"] = 2
    write_table(log, "runs", "r1", "c0", [run.row])
    for path in log.rglob("*.parquet"):
        table = pq.read_table(path)
        footer = {**table.schema.metadata, b"isthmus.version": b"2"}
        pq.write_table(table.replace_schema_metadata(footer), path)
    assert run_tables(log, "r1") == now
    assert "tallies" not in {file.table for file in read_run(log, "r1").files}


def test_tallies_are_no_part_of_the_indexes(log: Path, run: GeneratedRun) -> None:
    row = {"part": 0, "what": "hops", "given": None, "value": 3, "count": 5, "total": 15}
    write_table(log, "tallies", "r1", "c0", [row])
    run.row["files"].append({"table": "tallies", "writer": "c0", "rows": 1})
    write_table(log, "runs", "r1", "c0", [run.row])
    found = run_tables(log, "r1")
    assert {"run": "r1", "table": "tallies", "outcome": "used", "reason": "", "rows": 1} in found[
        "rows"
    ]
    path = file_path(log, "tallies", "r1", "c0")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogError, match="cut short or no Parquet"):
        run_tables(log, "r1")


def test_a_file_that_is_called_version_1_and_is_none_is_refused(
    log: Path, run: GeneratedRun
) -> None:
    path = some_file(log, run)
    table = pq.read_table(path)
    footer = {**table.schema.metadata, b"isthmus.version": b"1"}
    pq.write_table(table.replace_schema_metadata(footer), path)
    refused(log, path, "column topic should be uint16; it is uint32")
    assert columns_in("deliveries", 1).field("topic").type == pa.uint16()


def test_a_file_of_another_run_is_refused(tmp_path: Path, run: GeneratedRun) -> None:
    write_log(tmp_path, [run, generate(1, "r2", SHAPE)])
    path = some_file(tmp_path, run)
    other = next((tmp_path / "deliveries" / "run=r2").glob("*.parquet"))
    shutil.copy(other, path)
    refused(tmp_path, path, "its footer says run 'r2'; expected 'r1' here")


def test_a_file_that_the_run_does_not_list_is_refused(log: Path, run: GeneratedRun) -> None:
    path = some_file(log, run)
    stranger = path.with_name("w99.parquet")
    shutil.copy(path, stranger)
    refused(log, stranger, "is not among the files that the run's row lists")


def test_a_file_of_another_writer_or_table_is_refused(log: Path, run: GeneratedRun) -> None:
    path = some_file(log, run)
    rows = run.tables["deliveries"][path.stem]
    write_table(log, "deliveries", "r1", "other", rows)
    path.with_name("other.parquet").replace(path)
    refused(log, path, "its footer says writer 'other'")
    shutil.copy(some_file(log, run, "publishes"), path)
    refused(log, path, "its footer says table 'publishes'")


def test_a_run_without_its_row_is_refused(log: Path) -> None:
    shutil.rmtree(log / "runs" / "run=r1")
    with pytest.raises(LogError, match="no row in `runs`") as caught:
        list_runs(log)
    assert "run=r1" in caught.value.where
    with pytest.raises(LogError, match="there is no such run in the log, or it did not end"):
        summarize(log, "r1")


def test_two_rows_for_one_run_are_refused(log: Path, run: GeneratedRun) -> None:
    path = file_path(log, "runs", "r1", "c0")
    write_table(log, "runs", "r1", "c0", [run.row, run.row])
    refused(log, path, "has 2 rows; a run has exactly one")
    write_table(log, "runs", "r1", "c0", [run.row])
    write_table(log, "runs", "r1", "c1", [run.row])
    refused(log, path.parent, "a run has one row, in one file")


def test_no_log_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="is not a folder"):
        list_runs(tmp_path / "nowhere")
    with pytest.raises(LogError, match="holds no run"):
        list_runs(tmp_path)


def test_columns_that_are_not_the_schemas_are_refused(log: Path, run: GeneratedRun) -> None:
    path = some_file(log, run)
    table = pq.read_table(path)
    index = table.schema.get_field_index("message")
    other = table.set_column(index, "message", table.column("message").cast(pa.int64()))
    pq.write_table(other, path)
    refused(log, path, "column message should be uint32; it is int64")
    pq.write_table(table.drop_columns(["topic"]), path)
    refused(log, path, "column topic should be uint32; there is none")
    pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    refused(log, path, "not written for a log")


def test_empty_values_are_refused(log: Path, run: GeneratedRun) -> None:
    path = some_file(log, run)
    table = pq.read_table(path)
    index = table.schema.get_field_index("t_send_ns")
    values = [None, *table.column("t_send_ns").to_pylist()[1:]]
    holed = table.set_column(index, "t_send_ns", pa.array(values, pa.int64()))
    pq.write_table(holed, path)
    refused(log, path, "column t_send_ns has empty values")


@pytest.mark.parametrize("table", ["publishes", "deliveries"])
def test_a_clients_rows_in_two_writers_files_are_refused(tmp_path: Path, table: Table) -> None:
    run = generate(1, "r1", SHAPE)
    own, other, *_ = (writer for writer, rows in run.tables[table].items() if rows)
    run.tables[table][other].append(run.tables[table][own].pop())
    write_log(tmp_path, [run])
    path = file_path(tmp_path, table, "r1", other)
    refused(tmp_path, path, f"all {table} of a client stand in the file of its writer")


@pytest.mark.parametrize("time_ns", [0, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("column", ["t_send_ns", "t_receive_ns"])
def test_times_that_are_none_are_refused(tmp_path: Path, column: str, time_ns: int) -> None:
    run = generate(1, "r1", SHAPE)
    writer, rows = next((w, rows) for w, rows in run.tables["deliveries"].items() if rows)
    rows[0][column] = time_ns
    write_log(tmp_path, [run])
    refused(tmp_path, file_path(tmp_path, "deliveries", "r1", writer), f"has {column} {time_ns}")


def change(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda row: row.update(values)


def change_client(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda row: row["clients"][0].update(values)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (change(run="other"), "its row is of run 'other', not of 'r1'"),
        (lambda row: row.update(window_end_ns=row["window_start_ns"]), "are not in order"),
        (change(ended_ns=0), "are not in order"),
        (lambda row: row.update(ended_ns=row["started_ns"] + 2**53), "took over 52 days"),
        (change_client(client=1), "client 1 is listed twice"),
        (change_client(kind="x"), "has kind 'x'"),
        (change_client(role="x"), "role 'x'"),
        (change_client(topic=99), "has topic 99; the run has 4 topics"),
        (change_client(writer="w9"), "is of writer 'w9', which has no clock"),
        (lambda row: row["clocks"].append(row["clocks"][0]), "a writer has two clocks"),
        (lambda row: row["clocks"][0].update(offset_ns=2**60), "has a clock offset of"),
        (lambda row: row["clocks"].pop(), "lists a file of writer 'c0', which has no clock"),
        (lambda row: row["files"][0].update(table="x"), "lists a file of table 'x'"),
        (lambda row: row["files"].append(row["files"][0]), "lists a file twice"),
        (lambda row: row["clients"].append(None), "column clients has empty values in its list"),
        (change(labels=[("broker", None)]), "column labels has empty values in its list"),
    ],
)
def test_a_runs_row_that_contradicts_itself_is_refused(
    log: Path, run: GeneratedRun, damage: Callable[[dict[str, Any]], None], problem: str
) -> None:
    damage(run.row)
    write_table(log, "runs", "r1", "c0", [run.row])
    refused(log, file_path(log, "runs", "r1", "c0"), problem)


def test_names_that_are_no_file_names_are_refused(tmp_path: Path) -> None:
    for name in ("", "a/b", "..", ".hidden", "ä", "a b"):
        with pytest.raises(LogError, match="use letters"):
            write_table(tmp_path, "links", name, "w0", [])
        with pytest.raises(LogError, match="use letters"):
            write_table(tmp_path, "links", "r1", name, [])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("table", list(TABLES))
def test_every_table_can_be_written_as_its_options_say(tmp_path: Path, table: Table) -> None:
    path = tmp_path / "x.parquet"
    schema = with_footer(table, "r", "w")
    with pq.ParquetWriter(path, schema, **parquet_options(table)) as writer:
        writer.write_table(schema.empty_table())
    assert pq.read_schema(path) == schema
    assert pq.read_schema(path).metadata == schema.metadata
