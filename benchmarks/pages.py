"""Pages of the documentation that show what was measured: tables between two marks, from a file.

With ``--docs`` a benchmark writes its document, without the single rounds, beside the page and the
tables into it; nobody's hand does.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["DOCS", "commit", "number", "publish", "tables", "with_tables"]

DOCS = Path(__file__).resolve().parents[1] / "docs" / "explanation"


def commit() -> str:
    """The one that is checked out; it ends in ``-dirty`` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=DOCS)
    return found.stdout.strip() or "unknown"


def publish(page: Path, document: Mapping[str, Any]) -> None:
    """Write `document` beside `page`, and its tables where the page's marks are."""
    kept = {name: part for name, part in document.items() if name != "rounds"}
    text = with_tables(page.read_text(), page.stem, kept)
    record = page.with_suffix(".json")
    record.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    page.write_text(text)


def with_tables(text: str, name: str, document: Mapping[str, Any]) -> str:
    """`text` of a page with what stands between the marks of `name`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, found, rest = text.partition(begin)
    _, ends, after = rest.partition(end)
    if not found or not ends:
        raise ValueError(f"{name}: the page has no {begin.strip()} and {end.strip()}")
    return before + begin + tables(document) + end + after


def tables(document: Mapping[str, Any]) -> str:
    """Targets with their verdicts, all figures, tables of its own, and where they were taken."""
    lines = ["| target | bound | measured | |", "|---|--:|--:|---|"]
    for target in document["targets"]:
        sign = "≥" if target["at_least"] else "≤"
        value = target["value"]
        shown = "not measured" if value is None else f"**{number(value)}** {target['unit']}"
        note = f": {target['note']}" if target["note"] else ""
        verdict = ("met" if target["met"] else "**missed**") + note
        bound = f"{sign} {target['bound']:g} {target['unit']}"
        lines.append(f"| {target['name']} | {bound} | {shown} | {verdict} |")
    lines += ["", "| figure | median | least | most | rounds |", "|---|--:|--:|--:|--:|"]
    for name, figure in document["summary"].items():
        spread = figure["spread"]
        cells = " | ".join(number(spread[key]) for key in ("median", "low", "high"))
        lines.append(f"| {name}, {figure['unit']} | {cells} | {figure['rounds']} |")
    for table in document.get("tables", ()):
        heads = table["headings"]
        lines += ["", table["caption"], "", _line(heads), "|---" * len(heads) + "|"]
        lines += map(_line, table["rows"])
    machine = document["machine"]
    lines += [
        "",
        f"Commit {document['commit']}, {document['time']}: {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}, Python "
        f"{machine['python']}, uvloop {machine['uvloop']}, Mosquitto {machine['mosquitto']}.",
    ]
    lines += [f"{doubt}." if not doubt.endswith(".") else doubt for doubt in document["doubts"]]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"
