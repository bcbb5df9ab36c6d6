"""The end of a measurement: its files checked and counted, what limited it judged, its row written.

The row in `runs` says what was run by whom with which clocks, and comes last: a run that has it is
whole (:mod:`isthmus.pipeline.log.schema`).  What is counted before is the same run without it, so
a file that is missing, or has other rows than its writer says, is found while the run can still be
refused, and the summary is that of the log.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from isthmus.bench.coordinator.control import ControlMessage, item
from isthmus.bench.coordinator.faults import MadeFault
from isthmus.bench.load.expected import Ending, fan_out
from isthmus.bench.load.plan import Plan
from isthmus.bench.load.receiving import OTHER_RUN
from isthmus.bench.scenario import Scenario
from isthmus.bench.watch import bottleneck, evidence
from isthmus.bench.watch.watch import WatchedTables
from isthmus.errors import LoadFailed
from isthmus.pipeline.count.direct import RunSummary, summarize
from isthmus.pipeline.count.tables import UNDER_LIMIT
from isthmus.pipeline.log.reading import LoggedFile, Run, open_file, run_of_row
from isthmus.pipeline.log.schema import SCHEMA_VERSION, Table, file_path
from isthmus.pipeline.log.writing import write_table

__all__ = ["COORDINATOR", "Measured", "RunRecord", "record_run"]

COORDINATOR: Final = "c0"
"""As a writer of the log: of what was watched, and of the row in `runs`."""

VAGUE_NS: Final = 1_000_000
"""A clock that is not known better than this gets a note."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What the coordinator knows of a run; counts are of t-clients, from start to end."""

    summary: RunSummary
    """Of the log; Definition 1 and what limited the run among it."""
    offered: int
    """What the schedule asked publishers to send."""
    sent: int
    expected: int
    """Deliveries that follow from what was sent."""
    received: int
    kept_pace: bool
    """Whether publishers sent what the schedule asked for, all but a hundredth."""
    ending: Ending
    leftovers: int
    """Messages of earlier runs that still arrived."""
    lost_clients: int
    """Clients that were cut off; a session with such cannot measure again."""
    headroom: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By load process, as it says of itself."""
    faults: tuple[MadeFault, ...] = ()
    """Those that were made, with their times."""

    @property
    def in_words(self) -> str:
        """For a line of its own."""
        lost = self.expected - self.received
        missing = f", {lost:,} missing" if lost > 0 else ""
        return (
            f"sent {self.sent:,} of {self.offered:,}, received {self.received:,} of "
            f"{self.expected:,}{missing}; limited by {self.summary.limited_by}"
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """All that a measurement left behind."""

    run: str
    scenario: Scenario
    """As it was measured."""
    plan: Plan
    labels: Mapping[str, str]
    start_ns: int
    ended_ns: int
    clocks: Sequence[Mapping[str, Any]]
    """As in `runs`, of the load processes."""
    files: tuple[LoggedFile, ...]
    """Those that the load processes wrote."""
    answers: Mapping[str, ControlMessage]
    """``measured`` of each load process, by writer."""
    ending: Ending
    most_held: int
    drain_s: float
    watched: WatchedTables | None
    notes: tuple[str, ...] = ()
    faults: tuple[MadeFault, ...] = ()

    @property
    def window_ns(self) -> tuple[int, int]:
        """What counts, on the coordinator's clock."""
        times = self.scenario.scenario
        return (
            self.start_ns + round(times.trim_s * 1e9),
            self.start_ns + round((times.duration_s - times.trim_s) * 1e9),
        )


def record_run(log: Path, measured: Measured) -> RunRecord:
    """Check and count the files, judge, and write the coordinator's own tables, `runs` last."""
    row = _row(measured, measured.files + _write_watched(log, measured))
    counted = summarize(log, _checked(log, row))
    counts = _counts(measured, counted)
    verdict = bottleneck.judge(
        evidence.gather(
            measured.watched,
            measured.window_ns,
            duration_s=measured.scenario.scenario.duration_s,
            counts=counts,
            headroom=_headroom(measured),
            tcp=[
                entry
                for writer, answer in measured.answers.items()
                for entry in item(answer, "tcp", list, writer)
            ],
            subscribers=[c.name for c in measured.plan.clients if c.role == "subscriber"],
        )
    )
    notes = (*_notes(measured, counts), *verdict.notes)
    row |= {"limited_by": verdict.limited_by, "notes": list(notes)}
    write_table(log, "runs", measured.run, COORDINATOR, [row])
    return RunRecord(
        summary=replace(counted, limited_by=verdict.limited_by, notes=notes),
        offered=counts.offered,
        sent=counts.sent,
        expected=counts.expected,
        received=counts.received,
        kept_pace=counts.sent >= UNDER_LIMIT * counts.offered,
        ending=measured.ending,
        leftovers=sum(s["rows"] for s in row["strays"] if s["reason"] == OTHER_RUN),
        lost_clients=sum(
            item(answer, "lost_clients", int, writer) for writer, answer in measured.answers.items()
        ),
        headroom=_headroom(measured),
        faults=measured.faults,
    )


def _write_watched(log: Path, measured: Measured) -> tuple[LoggedFile, ...]:
    if measured.watched is None:
        return ()
    tables: dict[Table, Any] = {
        "links": measured.watched.links,
        "resources": measured.watched.resources,
    }
    return tuple(
        LoggedFile(table, COORDINATOR, write_table(log, table, measured.run, COORDINATOR, rows))
        for table, rows in tables.items()
    )


def _checked(log: Path, row: Mapping[str, Any]) -> Run:
    """The run as it will be read from `row`, if its files are what that says."""
    run = run_of_row(log, file_path(log, "runs", row["run"], COORDINATOR), row)
    for file in run.files:
        open_file(log, run.run, file).close()
    return run


def _counts(measured: Measured, summary: RunSummary) -> evidence.Counts:
    t_writers = {client.writer for client in measured.plan.clients if client.kind == "t"}
    answers = [(w, a) for w, a in measured.answers.items() if w in t_writers]
    fans = fan_out(measured.plan, "t")
    return evidence.Counts(
        offered=sum(item(answer, "offered", int, writer) for writer, answer in answers),
        sent=sum(item(answer, "sent", int, writer) for writer, answer in answers),
        expected=sum(_expected(writer, answer, fans) for writer, answer in answers),
        received=sum(item(answer, "received", int, writer) for writer, answer in answers),
        held=measured.most_held,
        limit_ratio=summary.limit_ratio,
    )


def _expected(writer: str, answer: ControlMessage, fans: Sequence[int]) -> int:
    by_topic = item(answer, "sent_by_topic", list, writer)
    if len(by_topic) != len(fans):
        raise LoadFailed(writer, f"said sent_by_topic={by_topic!r} of {len(fans)} topics")
    return sum(sent * fan for sent, fan in zip(by_topic, fans, strict=True))


def _headroom(measured: Measured) -> dict[str, dict[str, float]]:
    return {
        writer: item(answer, "headroom", dict, writer)
        for writer, answer in measured.answers.items()
    }


def _notes(measured: Measured, counts: evidence.Counts) -> list[str]:
    notes = [*measured.notes]
    notes += [fault.in_words(measured.start_ns) for fault in measured.faults]
    notes += [
        str(note)
        for writer, answer in measured.answers.items()
        for note in item(answer, "notes", list, writer)
    ]
    notes += _returned(measured.answers)
    if measured.faults:
        notes.append("with faults, Definition 1 and what limited the run say nothing of a limit")
    if measured.ending == "drained" and counts.received < counts.expected:
        missing = counts.expected - counts.received
        notes.append(
            f"messages were still arriving {measured.drain_s:g} s after the last was sent; "
            f"{missing} had not"
        )
    notes.extend(
        f"the clock of {clock['writer']} ({clock['machine']}) is known to ±"
        f"{clock['error_ns'] / 1e6:.1f} ms only"
        for clock in measured.clocks
        if clock["error_ns"] > VAGUE_NS
    )
    return notes


def _returned(answers: Mapping[str, ControlMessage]) -> Iterator[str]:
    """What became of clients that were cut off and came back."""
    times: Counter[str] = Counter()
    last_s: dict[str, float] = {}
    for writer, answer in answers.items():
        for node, told in item(answer, "returned", dict, writer).items():
            times[node] += told["times"]
            last_s[node] = max(last_s.get(node, 0.0), told["last_s"])
    for node, count in times.items():
        last = f"the last at {last_s[node]:.3f} s"
        yield f"clients of {node} were cut off and came back {count} times, {last}"
    if left_out := sum(item(answer, "left_out", int, name) for name, answer in answers.items()):
        yield f"{left_out} messages were due while their publisher was cut off"


def _row(measured: Measured, files: Sequence[LoggedFile]) -> dict[str, Any]:
    scenario, (window_start_ns, window_end_ns) = measured.scenario, measured.window_ns
    ours = {"writer": COORDINATOR, "machine": platform.node(), "offset_ns": 0, "error_ns": 0}
    return {
        "run": measured.run,
        "schema_version": SCHEMA_VERSION,
        "scenario": scenario.name,
        "scenario_json": scenario.model_dump_json(),
        "labels": list(measured.labels.items()),
        "started_ns": measured.start_ns,
        "ended_ns": measured.ended_ns,
        "window_start_ns": window_start_ns,
        "window_end_ns": window_end_ns,
        "interval_ns": scenario.load.interval_ns,
        "topics": list(measured.plan.topics),
        "clients": [asdict(client) for client in measured.plan.clients],
        "clocks": [*measured.clocks, ours],
        "files": [asdict(file) for file in files],
        "strays": [
            {"writer": writer, "reason": stray["reason"], "rows": stray["rows"]}
            for writer, answer in measured.answers.items()
            for stray in item(answer, "strays", list, writer)
        ],
        "limited_by": "",
        "notes": [],
    }
