"""The rows as a table, on the terminal and in the documentation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["LIMIT_MS", "Row", "print_rows", "write_docs", "write_json"]

LIMIT_MS = 50.0
BEGIN = "<!-- written by `make bench-hostile ARGS=--docs` -->"
END = "<!-- end -->"
HEADS = (
    "input",
    "what",
    "longest turn",
    "of it processor",
    "p99 here",
    "p99 to the neighbor",
    "lost",
    "≤ 50 ms",
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one input did to the node and to others; `before` and `after` it, milliseconds."""

    name: str
    what: str
    seconds: float
    longest_turn_ms: float
    longest_turn_cpu_ms: float
    slow_turns: int
    here_p50_ms: float
    here_p99_ms: float
    here_max_ms: float
    there_p99_ms: float
    there_max_ms: float
    sent: int
    lost: int
    problem: str

    @property
    def met(self) -> bool:
        return self.longest_turn_ms <= LIMIT_MS and not self.problem

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            self.what,
            f"{self.longest_turn_ms:.0f} ms",
            f"{self.longest_turn_cpu_ms:.0f} ms",
            _milliseconds(self.here_p99_ms),
            _milliseconds(self.there_p99_ms),
            f"{self.lost} of {2 * self.sent}",
            "met" if self.met else f"MISSED {self.problem}".strip(),
        )


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
    judged = [asdict(row) | {"met": row.met} for row in rows]
    return {"schema": 1, "limit_ms": LIMIT_MS, **facts, "rows": judged}


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
        f"Mosquitto {facts['machine']['mosquitto']}.",
        "",
        END,
    ]
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + "\n".join(lines) + after)
