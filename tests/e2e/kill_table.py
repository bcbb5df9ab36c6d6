"""Puts the recorded kills into the guarantees page: ``PYTHONPATH=tests python -m e2e.kill_table``.

`make kill` writes docs/explanation/kill.json; what the page says of it stands between two marks and
is written from that file, by nobody's hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "RECORD", "main", "with_table"]

DOCS = Path(__file__).parents[2] / "docs" / "explanation"
PAGE = DOCS / "guarantees.md"
RECORD = DOCS / "kill.json"
MARKED = re.compile(r"(<!-- kill -->\n).*(<!-- /kill -->)", re.DOTALL)


def with_table(page: str, record: dict[str, Any]) -> str:
    """`page` with what `record` says between the marks."""
    return MARKED.sub(lambda found: f"{found[1]}{_described(record)}\n{found[2]}", page)


def _described(record: dict[str, Any]) -> str:
    plan, machine = record["plan"], record["machine"]
    lines = [
        f"{plan['messages_per_s_and_publisher']:g} messages a second of each publisher at QoS "
        f"{plan['qos']}; a process is started again {plan['restart_after_s']:g} s after its end. "
        f"Commit {record['commit']}, {record['date'][:10]}, {machine['cores']} cores, load "
        f"{machine['load_average'][0]:.0f} when it ended.",
        "",
        "| ended | times | expected | lost | twice | flowing again, s |",
        "|---|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        lines += [f"| **{_title(run)}** | | | | | |", *_rows(run["faults"])]
    return "\n".join(lines)


def _title(run: dict[str, Any]) -> str:
    how = "SIGTERM" if run["faults"][0]["fault"].startswith("stopped") else "SIGKILL"
    state = "`state_dir`" if run["state_dir"] else "no `state_dir`"
    return f"{run['algorithm'].upper()}, {state}, {how}"


def _rows(faults: Iterable[dict[str, Any]]) -> Iterator[str]:
    of_fault: dict[str, list[dict[str, Any]]] = {}
    for each in faults:
        of_fault.setdefault(each["fault"].replace("stopped", "node"), []).append(each)
    for name, found in of_fault.items():
        expected, lost, twice = (
            sum(each[key] for each in found) for key in ("expected", "lost", "duplicated")
        )
        least, most = (bound(each["recovery_s"] for each in found) for bound in (min, max))
        yield (
            f"| {name} | {len(found)} | {expected:,} | {lost:,} | {twice:,} | "
            f"{least:.1f}-{most:.1f} |"
        )


def main() -> int:
    """Write the page anew."""
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(RECORD.read_text())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
