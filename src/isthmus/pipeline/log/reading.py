"""Opening a log: what is not as the schema says is refused by name.

Everybody who reads a log goes through here.  :func:`read_run` reads a run's row and what can be
known from it and the folders; :func:`open_file` opens one file and compares its footer with its
place, its columns with the schema and its length with the run's `files`; :func:`batches` reads it
in pieces.  Each raises :class:`~isthmus.errors.LogError` with the file and the reason.

The schema and its invariants stand in :mod:`isthmus.pipeline.log.schema`.  A file of an earlier
version comes out of :func:`batches` like one of the present, so nobody else knows of versions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from isthmus.errors import LogError
from isthmus.pipeline.log.schema import FOOTER, TABLES, VERSIONS, Table, columns_in, file_path

__all__ = [
    "NAME",
    "TIME_RANGE_NS",
    "ClientKind",
    "ClientRole",
    "Clock",
    "LoggedClient",
    "LoggedFile",
    "Run",
    "Stray",
    "batches",
    "list_runs",
    "open_file",
    "read_run",
    "run_of_row",
]

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
"""Of runs and writers: each becomes a folder's or a file's name."""

TIME_RANGE_NS: Final = 1 << 52
"""Times further than this (52 days) from the run's start are no times of that run."""

_LATEST_NS: Final = 1 << 62
"""Times from here on (the year 2116) are no nanoseconds since the epoch."""


ClientKind = Literal["t", "l"]
ClientRole = Literal["publisher", "subscriber"]


@dataclass(frozen=True, slots=True)
class LoggedClient:
    """One client of a run, as `runs.clients` has it."""

    client: int
    name: str
    kind: ClientKind
    role: ClientRole
    topic: int
    """Index into the run's topics."""
    node: str
    writer: str


@dataclass(frozen=True, slots=True)
class Clock:
    """How to get from a writer's clock to the coordinator's."""

    writer: str
    machine: str
    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A file that belongs to the run."""

    table: Table
    writer: str
    rows: int


@dataclass(frozen=True, slots=True)
class Stray:
    """What a writer received and could not record as a delivery."""

    writer: str
    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run's row in `runs`."""

    run: str
    scenario: str
    scenario_json: str
    labels: dict[str, str]
    started_ns: int
    ended_ns: int
    window_start_ns: int
    window_end_ns: int
    interval_ns: int | None
    topics: tuple[str, ...]
    clients: tuple[LoggedClient, ...]
    clocks: tuple[Clock, ...]
    files: tuple[LoggedFile, ...]
    strays: tuple[Stray, ...]
    limited_by: str
    notes: tuple[str, ...]

    @property
    def offsets_ns(self) -> dict[str, int]:
        """Per writer: what to add to its times."""
        return {clock.writer: clock.offset_ns for clock in self.clocks}

    def files_of(self, table: Table) -> tuple[LoggedFile, ...]:
        """The run's files of one table."""
        return tuple(file for file in self.files if file.table == table)


def list_runs(log: Path) -> tuple[str, ...]:
    """Every run of the log in order of its name; one that did not end is refused."""
    if not log.is_dir():
        raise LogError(
            log, "is not a folder; a log is a folder with runs/, publishes/, deliveries/ …"
        )
    found: dict[str, set[str]] = {table: _run_folders(log / table) for table in TABLES}
    for table, runs in found.items():
        for run in sorted(runs - found["runs"]):
            raise LogError(
                log / table / f"run={run}",
                "this run has no row in `runs`: it did not end, or its row was taken away; "
                "remove what there is of it, or name the runs that you want",
            )
    if not found["runs"]:
        raise LogError(log, "holds no run; its `runs` table is empty")
    return tuple(sorted(found["runs"]))


def read_run(log: Path, run: str) -> Run:
    """The run's row in `runs`, checked in itself and against the files that are there."""
    path = _run_file(log, run)
    with _open(path, "runs", run, path.stem) as file:
        rows = [row for batch in batches(path, file, "runs", 1) for row in batch.to_pylist()]
    if len(rows) != 1:
        raise LogError(path, f"has {len(rows)} rows; a run has exactly one")
    row = rows[0]
    if row["run"] != run:
        raise LogError(path, f"its row is of run {row['run']!r}, not of {run!r}")
    if row["schema_version"] not in VERSIONS:
        raise LogError(path, _other_version(row["schema_version"]))
    for name, value in row.items():
        if isinstance(value, list) and _has_holes(value):
            raise LogError(path, f"column {name} has empty values in its list; it may not")
    return run_of_row(log, path, row)


def run_of_row(log: Path, path: Path, row: Mapping[str, Any]) -> Run:
    """The run whose row in `runs` is, or will be, `row` in the file `path`; checked like that."""
    read = _from_row(row)
    _check_run(path, read)
    _check_folders(log, read)
    return read


def open_file(log: Path, run: str, file: LoggedFile) -> pq.ParquetFile:
    """The file, if it is what the run says; to be closed by the caller (use `with`)."""
    path = file_path(log, file.table, run, file.writer)
    if not path.exists():
        raise LogError(path, f"is missing; the run's row says it has {file.rows} rows")
    opened = _open(path, file.table, run, file.writer)
    rows = opened.metadata.num_rows
    if rows != file.rows:
        opened.close()
        raise LogError(path, f"has {rows} rows; the run's row says {file.rows}")
    return opened


def batches(
    path: Path, opened: pq.ParquetFile, table: Table, rows: int
) -> Iterator[pa.RecordBatch]:
    """What an opened file of `table` holds, `rows` rows at a time at most."""
    wanted = TABLES[table]
    written = columns_in(table, _version(path, _footer(opened.schema_arrow)))
    full = [field.name for field in written if not field.nullable]
    try:
        for batch in opened.iter_batches(rows, columns=written.names, use_threads=False):
            for name in full:
                if batch.column(name).null_count:
                    raise LogError(path, f"column {name} has empty values; it may not")
            yield batch if written is wanted else _as_now(batch, wanted)
    except (pa.ArrowException, OSError) as error:
        raise LogError(path, f"cannot be read to its end: {error}") from error


def _run_folders(table: Path) -> set[str]:
    folders = table.glob("run=*") if table.is_dir() else ()
    return {folder.name.removeprefix("run=") for folder in folders if any(folder.glob("*.parquet"))}


def _run_file(log: Path, run: str) -> Path:
    folder = log / "runs" / f"run={run}"
    found = sorted(folder.glob("*.parquet"))
    if not found:
        raise LogError(
            folder, "no row of this run: there is no such run in the log, or it did not end"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise LogError(folder, f"has {names}; a run has one row, in one file")
    return found[0]


def _open(path: Path, table: Table, run: str, writer: str) -> pq.ParquetFile:
    """The file, if its footer says that it belongs where it stands."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise LogError(path, f"is cut short or no Parquet file: {error}") from error
    try:
        _check_footer(path, file.schema_arrow, table, run, writer)
    except LogError:
        file.close()
        raise
    return file


def _as_now(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """A batch of an earlier version with the columns of the present one."""
    present = set(batch.schema.names)
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(batch.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _footer(schema: pa.Schema) -> dict[str, str]:
    prefix = FOOTER.encode()
    return {
        key[len(prefix) :].decode(): value.decode()
        for key, value in (schema.metadata or {}).items()
        if key.startswith(prefix)
    }


def _check_footer(path: Path, schema: pa.Schema, table: Table, run: str, writer: str) -> None:
    footer = _footer(schema)
    if not footer:
        raise LogError(path, f"has no {FOOTER}* entries in its footer: not written for a log")
    version = _version(path, footer)
    for key, right in (("run", run), ("table", table), ("writer", writer)):
        if footer.get(key) != right:
            raise LogError(
                path, f"its footer says {key} {footer.get(key)!r}; expected {right!r} here"
            )
    for field in columns_in(table, version):
        index = schema.get_field_index(field.name)
        if index < 0 or schema.field(index).type != field.type:
            found = f"it is {schema.field(index).type}" if index >= 0 else "there is none"
            raise LogError(path, f"column {field.name} should be {field.type}; {found}")


def _version(path: Path, footer: Mapping[str, str]) -> int:
    """Which schema the file was written with."""
    for version in VERSIONS:
        if footer.get("version") == str(version):
            return version
    raise LogError(path, _other_version(footer.get("version")))


def _other_version(version: object) -> str:
    return (
        f"is of schema version {version}; this Isthmus reads {VERSIONS[0]} to {VERSIONS[-1]}: "
        "use the Isthmus that wrote it"
    )


def _has_holes(values: list[Any]) -> bool:
    """Whether one of a list's values, or what a map has for a key, is missing."""
    return any(value is None or (type(value) is tuple and None in value) for value in values)


def _from_row(row: Mapping[str, Any]) -> Run:
    plain = {key: value for key, value in row.items() if key not in ("schema_version", "labels")}
    nested: dict[str, Any] = {
        "labels": dict(row["labels"]),
        "topics": tuple(row["topics"]),
        "clients": tuple(LoggedClient(**client) for client in row["clients"]),
        "clocks": tuple(Clock(**clock) for clock in row["clocks"]),
        "files": tuple(LoggedFile(**file) for file in row["files"]),
        "strays": tuple(Stray(**stray) for stray in row["strays"]),
        "notes": tuple(row["notes"]),
    }
    return Run(**{**plain, **nested})


def _check_run(path: Path, run: Run) -> None:
    times = (run.started_ns, run.window_start_ns, run.window_end_ns, run.ended_ns)
    if not (0 <= times[0] <= times[1] < times[2] <= times[3] < _LATEST_NS):
        raise LogError(path, f"started, window start, window end, ended are not in order: {times}")
    if run.ended_ns - run.started_ns >= TIME_RANGE_NS:
        raise LogError(path, "says that the run took over 52 days")
    numbers = Counter(client.client for client in run.clients)
    if twice := [number for number, count in numbers.items() if count > 1]:
        raise LogError(path, f"client {twice[0]} is listed twice; numbers are unique in a run")
    if len(run.offsets_ns) != len(run.clocks):
        raise LogError(path, "a writer has two clocks")
    clocks = run.offsets_ns.keys()
    for client in run.clients:
        what = f"client {client.client} ({client.name})"
        if client.kind not in ("t", "l") or client.role not in ("publisher", "subscriber"):
            raise LogError(path, f"{what} has kind {client.kind!r} and role {client.role!r}")
        if client.topic >= len(run.topics):
            raise LogError(
                path, f"{what} has topic {client.topic}; the run has {len(run.topics)} topics"
            )
        if client.writer not in clocks:
            raise LogError(path, f"{what} is of writer {client.writer!r}, which has no clock")
    for offset_ns in run.offsets_ns.values():
        if abs(offset_ns) >= TIME_RANGE_NS:
            raise LogError(path, f"has a clock offset of {offset_ns} ns, over 52 days")
    for file in run.files:
        if file.table not in TABLES or file.table == "runs":
            raise LogError(path, f"lists a file of table {file.table!r}; there is no such table")
        if file.writer not in clocks:
            raise LogError(path, f"lists a file of writer {file.writer!r}, which has no clock")
    if len({(file.table, file.writer) for file in run.files}) != len(run.files):
        raise LogError(path, "lists a file twice")


def _check_folders(log: Path, run: Run) -> None:
    """Whether the run's folders hold exactly its files."""
    for table in TABLES:
        if table == "runs":
            continue
        listed = {file.writer for file in run.files_of(table)}
        folder = log / table / f"run={run.run}"
        found = {path.stem for path in folder.glob("*.parquet")}
        for writer in sorted(found - listed):
            raise LogError(
                folder / f"{writer}.parquet", "is not among the files that the run's row lists"
            )
        for writer in sorted(listed - found):
            raise LogError(folder / f"{writer}.parquet", "is missing; the run's row lists it")
