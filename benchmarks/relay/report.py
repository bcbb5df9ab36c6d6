"""What is written down: the machine, the JSON document and the table of targets."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pages import commit, number, publish
from benchmarks.relay.statistics import Target
from benchmarks.relay.verdict import Figure
from rich.console import Console
from rich.table import Table

from isthmus.processes.children import find_executable

__all__ = ["conclude", "cpu_model", "document_of", "machine_facts", "print_report", "write_json"]

SCHEMA = 1


def cpu_model(cpuinfo: str) -> str:
    """The processor's name from the text of ``/proc/cpuinfo``."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def machine_facts(console: Console) -> dict[str, Any]:
    """Where and on what the figures are taken, which is said at once."""
    mosquitto = subprocess.run(
        [find_executable("mosquitto") or "mosquitto", "-h"],
        capture_output=True,
        text=True,
        check=False,
    )
    version = re.search(r"mosquitto version (\S+)", mosquitto.stdout)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = {
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uvloop": importlib.metadata.version("uvloop"),
        "isthmus": importlib.metadata.version("isthmus"),
        "mosquitto": version[1] if version else "unknown",
        "load_average_at_start": list(os.getloadavg()),
    }
    console.print("  ".join(f"{key} {value}" for key, value in facts.items()))
    return facts


def document_of(parts: Mapping[str, Any], targets: Sequence[Target]) -> dict[str, Any]:
    """The whole result as it stands in the file."""
    judged = [asdict(target) | {"met": target.met} for target in targets]
    return {"schema": SCHEMA, **parts, "targets": judged}


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """Write the document, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(document, indent=2) + "\n")
    partial.replace(path)


def print_report(
    console: Console, figures: Mapping[str, Figure], targets: Sequence[Target]
) -> None:
    """The summary of the rounds, then each target with its verdict."""
    rounds = Table(title="Rounds", title_justify="left")
    for heading in ("figure", "unit"):
        rounds.add_column(heading)
    for heading in ("median", "min", "max", "IQR", "rounds"):
        rounds.add_column(heading, justify="right")
    for name, figure in figures.items():
        found = figure.spread
        values = (found.median, found.low, found.high, found.iqr)
        numbers = (number(value) for value in values)
        rounds.add_row(name, figure.unit, *numbers, str(figure.rounds))
    console.print(rounds)
    table = Table(title="Targets", title_justify="left")
    for heading in ("target", "bound", "measured", "", "note"):
        table.add_column(heading, justify="right" if heading in ("bound", "measured") else "left")
    for target in targets:
        bound = f"{'≥' if target.at_least else '≤'} {target.bound:g} {target.unit}"
        value = "not measured" if target.value is None else f"{target.value:.3f} {target.unit}"
        verdict = "[green]pass[/]" if target.met else "[red]missed[/]"
        table.add_row(target.name, bound, value, verdict, target.note)
    console.print(table)


def conclude(
    console: Console,
    out: Path,
    parts: Mapping[str, Any],
    figures: Mapping[str, Figure],
    targets: Sequence[Target],
    *,
    page: Path | None = None,
) -> bool:
    """Write `parts`, with the figures and targets, to `out` and show them; whether all are met.

    With a `page` they go there, too.
    """
    summary = {name: asdict(figure) for name, figure in figures.items()}
    taken = {"commit": commit(), "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    document = document_of({**taken, **parts, "summary": summary}, targets)
    write_json(document, out)
    if page is not None:
        publish(page, document)
        console.print(f"written into {page.name}, and the figures beside it")
    print_report(console, figures, targets)
    for doubt in parts.get("doubts", ()):
        console.print(doubt, style="yellow")
    console.print(f"written to {out}")
    return all(target.met for target in targets)
