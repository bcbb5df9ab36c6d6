"""The report of ``isthmus reproduce geo``: statements, tables and figures.

`report.html` is one file with nothing beside it.  With a folder for the documentation, the
pictures, the small file they are drawn from and the tables as Markdown go there; and the statements
into the page above that folder, between two marks.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from isthmus.bench.report import plots
from isthmus.bench.report.page import PageSection, figure, page, paragraph, table
from isthmus.bench.report.sections import key_section
from isthmus.bench.report.setup import broker_version, machine
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.docs_files import markdown
from isthmus.reproduce.geo.delay import Delays
from isthmus.reproduce.geo.figures import write_figures
from isthmus.reproduce.geo.measuring import Measured
from isthmus.reproduce.geo.paper import Found
from isthmus.reproduce.geo.tables import TITLES, panels_of, tables_of
from isthmus.reproduce.panels import panels_figure
from isthmus.sim.provenance import provenance

__all__ = ["Reproduced", "Settings", "write_report"]

PAGE: Final = "reproduce-geo.md"
BEGIN, END = "<!-- geo: begin -->\n", "<!-- geo: end -->\n"
HOW: Final = (
    "The model's equations beside its tables; the same three systems in the exact simulator and as "
    "processes with real brokers, with every PUBLISH and SUBSCRIBE counted; and the prototype's "
    "delay experiment with an independent client."
)
HEADER: Final = ("paper", "statement", "paper says", "here", "holds")
PICTURES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "geo-tables": ("Tables I and II", ("tables",)),
    "geo-messages": ("Equations and counts", ("counted", "cases", "live")),
    "geo-delay": ("The delay of a gateway", ("delays",)),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for."""

    out: Path
    quick: bool = False
    only: tuple[str, ...] = ()
    broker: str = "mosquitto"
    seed: int = 1
    docs: Path | None = None
    """A folder for the pictures and the tables as Markdown."""


@dataclass(slots=True)
class Reproduced:
    """What came of it."""

    settings: Settings
    measured: list[Measured] = field(default_factory=list)
    delays: dict[str, Delays] = field(default_factory=dict)
    """By the network's name."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by what could not be measured."""
    took_s: float = 0.0

    @property
    def found(self) -> Found:
        return Found(self.measured, self.delays)


def write_report(done: Reproduced, claims: Sequence[Claim]) -> None:
    """``report.html`` and ``results.json``, and what goes into the docs."""
    out, setup = done.settings.out, _setup(done)
    results = {
        "setup": setup,
        "paper": [asdict(claim) for claim in claims],
        "measured": [asdict(each) for each in done.measured],
        "delays": [asdict(each) for each in done.delays.values()],
        "failed": done.failed,
        "took_s": done.took_s,
    }
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    rows = [(c.source, c.statement, c.paper, c.ours, c.verdict) for c in claims]
    intro = paragraph(
        "Counts are exact: what differs from an equation is no noise. Numbers for the paper's "
        "words (almost, greatly) are in the statement."
    )
    sections = [PageSection("The paper and this machine", intro + table(HEADER, rows))]
    drawn, shown = panels_of(done.found), tables_of(done.found)
    for name, (title, parts) in PICTURES.items():
        body = "".join(
            paragraph(TITLES[each]) + table(*shown[each]) for each in parts if each in shown
        )
        if name in drawn:
            body = figure(plots.svg(panels_figure(drawn[name]), title), "") + body
        if body:
            sections.append(PageSection(title, body))
    if done.failed:
        sections.append(PageSection("Not measured", table(("", "why"), list(done.failed.items()))))
    sections.append(key_section("What it ran on", setup))
    title = "The Geo paper reproduced" + (" (quick)" if done.settings.quick else "")
    (out / "report.html").write_text(page(title, HOW, sections), encoding="utf-8")
    if done.settings.docs is not None:
        _write_docs(done.settings.docs, done, claims)


def _setup(done: Reproduced) -> dict[str, str]:
    settings = done.settings
    measured_s = sum(each.took_s for each in done.measured)
    load = os.getloadavg()[0]
    return {
        **machine(),
        "commit": str(provenance("", 0)["commit"]),
        f"broker {settings.broker}": broker_version(settings.broker),
        "seed": str(settings.seed),
        "counted": f"{len(done.measured)} runs, {measured_s / 60:.1f} minutes",
        "delays": f"{len(done.delays)} networks",
        "load average at the end": f"{load:.1f}",
        "report written at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _write_docs(folder: Path, done: Reproduced, claims: Sequence[Claim]) -> None:
    setup = _setup(done)
    write_figures(folder, setup, panels_of(done.found))
    text = ["<!-- written by `isthmus reproduce geo --docs` -->"]
    for name, shown in tables_of(done.found).items():
        text += [f"## {TITLES[name]}", markdown(*shown)]
    text += ["## What it ran on", markdown(("", ""), list(setup.items()))]
    (folder / "geo-tables.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    beside = folder.parent / PAGE
    if beside.exists():
        _write_page(beside, setup, claims)


def _write_page(path: Path, setup: Mapping[str, str], claims: Sequence[Claim]) -> None:
    """What stands between the two marks."""
    counts = Counter(claim.verdict for claim in claims)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [
        f"Of {len(claims)} statements: {verdicts}. Commit {setup['commit']}, {setup['processor']}, "
        f"load average {setup['load average at the end']}, seed {setup['seed']}, "
        f"{setup['report written at']}.",
        markdown(HEADER, [(c.source, c.statement, c.paper, c.ours, c.verdict) for c in claims]),
    ]
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        text = before + BEGIN + "\n\n".join(lines) + "\n" + END + after
        path.write_text(text, encoding="utf-8")
