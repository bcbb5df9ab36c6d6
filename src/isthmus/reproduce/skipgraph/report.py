"""The report of ``isthmus reproduce skipgraph``: statements, figures and tables.

`report.html` is one file with nothing beside it.  With a folder for the documentation, the
pictures, the small file they are drawn from and the tables as Markdown go there; and the statements
into the page above that folder, between two marks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from isthmus.bench.report.page import PageSection, page, paragraph, table
from isthmus.bench.report.sections import key_section
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.docs_files import markdown
from isthmus.reproduce.narration import clock
from isthmus.reproduce.shared_report import (
    Pictures,
    lead_of,
    made_on,
    picture_sections,
    statement_rows,
    write_between_marks,
    write_tables_page,
)
from isthmus.reproduce.skipgraph.experiments import LARGEST, Extent
from isthmus.reproduce.skipgraph.figures import write_figures
from isthmus.reproduce.skipgraph.jobs import Rows
from isthmus.reproduce.skipgraph.panels import panels_of
from isthmus.reproduce.skipgraph.tables import TITLES, tables_of
from isthmus.sim.provenance import provenance

__all__ = ["Reproduced", "Settings", "write_report"]

PAGE: Final = "reproduce-skipgraph.md"
HEADER: Final = ("thesis", "statement", "thesis says", "here", "holds")
HOW: Final = (
    "Skip Graphs on arrays, simulated by Spark's workers: topics and points of the parameter space "
    "are spread over them, what they counted is recorded in the log, and one Spark job for each "
    "figure makes its rows of that. The same seed gives the same log, byte by byte, on any "
    "number of workers."
)
PICTURES: Final[Pictures] = {
    "skipgraph-laws": ("Growth laws (Table 3.1)", ("table3.1",)),
    "skipgraph-messages": ("Messages (Fig. 3.7, 3.8)", ("fig3.7", "fig3.8")),
    "skipgraph-paths": ("Path length (Fig. 3.9-3.11)", ("fig3.9", "fig3.10", "fig3.11")),
    "skipgraph-load": ("Load (Fig. 3.12, 3.13, Table 3.3)", ("fig3.12", "fig3.13", "table3.3")),
    "skipgraph-tables": ("Routing tables (Fig. 3.14, 3.15)", ("fig3.14", "fig3.15")),
    "skipgraph-routing": ("SFB and MRF (Fig. 4.5, 4.6)", ("fig4.5", "fig4.6")),
    "skipgraph-assignment": ("Client assignment (Fig. 4.9)", ("fig4.9",)),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for."""

    out: Path
    quick: bool = False
    only: tuple[str, ...] = ()
    up_to: int = LARGEST[0]
    seed: int = 1
    master: str = "local[*]"
    docs: Path | None = None
    """A folder for the pictures and the tables as Markdown."""

    @property
    def extent(self) -> Extent:
        return Extent.of(quick=self.quick, up_to=self.up_to)


@dataclass(slots=True)
class Reproduced:
    """What came of it."""

    settings: Settings
    figures: dict[str, Rows] = field(default_factory=dict)
    simulated: int = 0
    """Runs that were simulated now; the others were there."""
    runs: int = 0
    estimate_bytes: int | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    took_s: float = 0.0
    calls: list[str] = field(default_factory=list)
    """One line for each time that something was simulated into this folder, this one included."""

    def call(self) -> str:
        """What this one did, in words."""
        stages = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.stages_s.items())
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        return (
            f"{at}, commit {provenance('', 0)['commit']}: {self.simulated} runs, networks of up to "
            f"{max(self.settings.extent.networks()):,} nodes, in {clock(self.took_s)} ({stages}), "
            f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )


def write_report(done: Reproduced, claims: Sequence[Claim]) -> None:
    """``report.html`` and ``results.json``, and what goes into the docs."""
    out = done.settings.out
    results = {
        "setup": _setup(done),
        "thesis": [asdict(claim) for claim in claims],
        "figures": done.figures,
        "calls": done.calls,
        "stages_s": done.stages_s,
        "took_s": done.took_s,
    }
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    intro = paragraph(
        "In brackets: from the least to the most of the networks that were simulated. Numbers for "
        "the thesis's words (about, linear, the same) are in the statement."
    )
    sections = [
        PageSection(
            "The thesis and this simulation",
            intro + table(HEADER, statement_rows(claims)),
        )
    ]
    sections += picture_sections(PICTURES, TITLES, panels_of(done.figures), tables_of(done.figures))
    sections.append(key_section("What it ran on", _setup(done)))
    title = "The Skip Graph thesis reproduced" + (" (quick)" if done.settings.quick else "")
    (out / "report.html").write_text(page(title, HOW, sections), encoding="utf-8")
    if done.settings.docs is not None:
        _write_docs(done.settings.docs, done, claims)


def _setup(done: Reproduced) -> dict[str, str]:
    settings = done.settings
    estimate, made = done.estimate_bytes, made_on()
    return {
        **made,
        "seed": str(settings.seed),
        "networks": f"up to {max(settings.extent.networks()):,} nodes",
        "Spark": f"{made['Spark']}, {settings.master}",
        "memory, estimated before": "" if estimate is None else f"{estimate / 2**30:.1f} GiB",
        "runs": f"{done.runs} in the log",
        "simulated": "; ".join(done.calls),
    }


def _write_docs(folder: Path, done: Reproduced, claims: Sequence[Claim]) -> None:
    setup, shown = _setup(done), tables_of(done.figures)
    write_figures(folder, setup, panels_of(done.figures))
    write_tables_page(
        folder / "skipgraph-tables.md", "isthmus reproduce skipgraph", TITLES, shown, setup
    )
    lead = (
        lead_of(claims, setup, f"seed {setup['seed']}", setup["networks"])
        + "\n\nSimulated:\n\n"
        + "\n".join(f"- {call}" for call in done.calls)
    )
    write_between_marks(
        folder.parent / PAGE, "skipgraph", [lead, markdown(HEADER, statement_rows(claims))]
    )
