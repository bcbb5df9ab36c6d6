"""The report of ``isthmus reproduce geo``: statements, tables and figures.

`report.html` is one file with nothing beside it.  With a folder for the documentation, the
pictures, the small file they are drawn from and the tables as Markdown go there; and the statements
into the page above that folder, between two marks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from isthmus.bench.report.page import PageSection, page, paragraph, table
from isthmus.bench.report.sections import key_section
from isthmus.bench.report.setup import broker_version
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.docs_files import markdown
from isthmus.reproduce.geo.delay import Delays
from isthmus.reproduce.geo.figures import write_figures
from isthmus.reproduce.geo.measuring import Measured
from isthmus.reproduce.geo.paper import Found
from isthmus.reproduce.geo.tables import TITLES, panels_of, tables_of
from isthmus.reproduce.shared_report import (
    Pictures,
    lead_of,
    made_on,
    picture_sections,
    statement_rows,
    write_between_marks,
    write_tables_page,
)

__all__ = ["Reproduced", "Settings", "write_report"]

PAGE: Final = "reproduce-geo.md"
HOW: Final = (
    "The model's equations beside its tables; the same three systems in the exact simulator and as "
    "processes with real brokers, with every PUBLISH and SUBSCRIBE counted; and the prototype's "
    "delay experiment with an independent client."
)
HEADER: Final = ("paper", "statement", "paper says", "here", "holds")
PICTURES: Final[Pictures] = {
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
    intro = paragraph(
        "Counts are exact: what differs from an equation is no noise. Numbers for the paper's "
        "words (almost, greatly) are in the statement."
    )
    sections = [
        PageSection("The paper and this machine", intro + table(HEADER, statement_rows(claims)))
    ]
    sections += picture_sections(PICTURES, TITLES, panels_of(done.found), tables_of(done.found))
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
    return {
        **made_on(),
        f"broker {settings.broker}": broker_version(settings.broker),
        "seed": str(settings.seed),
        "counted": f"{len(done.measured)} runs, {measured_s / 60:.1f} minutes",
        "delays": f"{len(done.delays)} networks",
    }


def _write_docs(folder: Path, done: Reproduced, claims: Sequence[Claim]) -> None:
    setup = _setup(done)
    write_figures(folder, setup, panels_of(done.found))
    write_tables_page(
        folder / "geo-tables.md", "isthmus reproduce geo", TITLES, tables_of(done.found), setup
    )
    lead = lead_of(claims, setup, f"seed {setup['seed']}")
    write_between_marks(
        folder.parent / PAGE, "geo", [lead, markdown(HEADER, statement_rows(claims))]
    )
