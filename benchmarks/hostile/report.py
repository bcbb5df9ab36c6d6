"""The rows as a table, on the terminal and in the documentation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["LIMIT_MS", "Round", "Row", "print_rows", "write_docs", "write_json"]

LIMIT_MS = 50.0
BEGIN = "<!-- written by `make bench-hostile ARGS=--docs` -->"
END = "<!-- end -->"
HEADS = (
    "input",
    "what",
    "longest turn",
    "most processor",
    "p99 here",
    "p99 to the neighbor",
    "lost",
    "≤ 50 ms",
)


@dataclass(frozen=True, slots=True)
class Round:
    """What one input did once, to a fresh node and to others; times in milliseconds."""

    seconds: float
    longest_turn_ms: float
    longest_turn_cpu_ms: float
    """The processor time in the longest turn."""
    busiest_turn_cpu_ms: float
    """The most processor time in one turn, perhaps another."""
    slow_turns: int
    here_p50_ms: float
    here_p99_ms: float
    here_max_ms: float
    there_p99_ms: float
    there_max_ms: float
    sent: int
    lost: int
    problem: str


@dataclass(frozen=True, slots=True)
class Row:
    """What one input did in all rounds.

    It is met when the median round's longest turn is, by the clock on the wall, and nobody was
    disconnected in any.  The processor time is told beside it and does not excuse anything.
    """

    name: str
    what: str
    rounds: tuple[Round, ...]

    def median(self, figure: str) -> float:
        return float(median(getattr(each, figure) for each in self.rounds))

    @property
    def problem(self) -> str:
        return next((each.problem for each in self.rounds if each.problem), "")

    @property
    def met(self) -> bool:
        return self.median("longest_turn_ms") <= LIMIT_MS and not self.problem

    @property
    def met_by_processor(self) -> bool:
        return self.median("busiest_turn_cpu_ms") <= LIMIT_MS and not self.problem

    @property
    def verdict(self) -> str:
        if self.met:
            return "met" if self.met_by_processor else "met, processor MISSED"
        if self.problem:
            return f"MISSED {self.problem}"
        return "MISSED, processor met" if self.met_by_processor else "MISSED"

    def cells(self) -> tuple[str, ...]:
        sent = sum(each.sent for each in self.rounds)
        lost = sum(each.lost for each in self.rounds)
        return (
            self.name,
            self.what,
            self._with_spread("longest_turn_ms"),
            self._with_spread("busiest_turn_cpu_ms"),
            _milliseconds(self.median("here_p99_ms")),
            _milliseconds(self.median("there_p99_ms")),
            f"{lost} of {2 * sent}",
            self.verdict,
        )

    def _with_spread(self, figure: str) -> str:
        values = [getattr(each, figure) for each in self.rounds]
        text = f"{median(values):.0f} ms"
        return text if len(values) == 1 else f"{text} ({min(values):.0f}-{max(values):.0f})"


def _milliseconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f} ms"


def print_rows(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="What hostile input does to others")
    for head in HEADS:
        table.add_column(head, justify="left" if head in HEADS[:2] else "right")
    for row in rows:
        table.add_row(*row.cells(), style=None if row.met else "red")
    console.print(table)


def document(rows: Sequence[Row], facts: Mapping[str, Any]) -> dict[str, Any]:
    judged = [
        asdict(row) | {"met": row.met, "met_by_processor": row.met_by_processor} for row in rows
    ]
    return {"schema": 2, "limit_ms": LIMIT_MS, **facts, "rows": judged}


def write_json(path: Path, rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document(rows, facts), indent=2, ensure_ascii=False)
    path.write_text(text.replace("NaN", "null") + "\n")


def write_docs(page: Path, rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """The figures beside the page, and the page's table from them."""
    write_json(page.with_suffix(".json"), rows, facts)
    lines = [
        BEGIN,
        "",
        "| " + " | ".join(HEADS) + " |",
        "|---|---|" + "--:|" * (len(HEADS) - 2),
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
        "",
        f"Commit {facts['commit']}, {facts['time']}, {facts['machine']['cpu']}, "
        f"{facts['machine']['cores']} cores, Python {facts['machine']['python']}, "
        f"Mosquitto {facts['machine']['mosquitto']}; the median of {len(rows[0].rounds)} rounds, "
        "and in brackets the least and the most.",
        "",
        END,
    ]
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + "\n".join(lines) + after)
