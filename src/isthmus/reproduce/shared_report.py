"""What the reports of several papers have in common: statements, pictures with tables, the docs.

A picture is drawn from panels (`isthmus.reproduce.panels`), and its tables stand below it.  In the
documentation, statements stand in a page between two marks, ``<!-- NAME: begin -->`` and ``end``;
whatever is around them is written by hand and stays.  What a report ran on begins with commit,
machine, load and time (`made_on`), and so does what it leaves in the documentation (`lead_of`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from isthmus.bench.report import plots
from isthmus.bench.report.page import PageSection, figure, paragraph, table
from isthmus.bench.report.setup import machine
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.docs_files import markdown
from isthmus.reproduce.panels import Panels, panels_figure
from isthmus.sim.provenance import provenance

__all__ = [
    "Pictures",
    "Table",
    "lead_of",
    "made_on",
    "picture_sections",
    "statement_rows",
    "verdicts_of",
    "write_between_marks",
    "write_tables_page",
]

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Header and rows."""
Pictures = Mapping[str, tuple[str, tuple[str, ...]]]
"""By the picture's name its title, and the names of the tables below it."""


def statement_rows(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    return [(c.source, c.statement, c.paper, c.ours, c.verdict) for c in claims]


def verdicts_of(claims: Sequence[Claim]) -> str:
    """How many there are of each."""
    counts = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def made_on() -> dict[str, str]:
    """What a report says of itself, whatever it is about."""
    return {
        **machine(),
        "commit": str(provenance("", 0)["commit"]),
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
        "report written at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def lead_of(claims: Sequence[Claim], setup: Mapping[str, str], *more: str) -> str:
    """The line above the statements; `setup` is made with `made_on`."""
    parts = (
        f"Commit {setup['commit']}",
        setup["processor"],
        f"load average {setup['load average at the end']}",
        *more,
        setup["report written at"],
    )
    return f"Of {len(claims)} statements: {verdicts_of(claims)}. {', '.join(parts)}."


def picture_sections(
    pictures: Pictures,
    titles: Mapping[str, str],
    drawn: Mapping[str, Panels],
    shown: Mapping[str, Table],
) -> list[PageSection]:
    """A section for each picture or table that there is."""
    sections = []
    for name, (title, parts) in pictures.items():
        body = "".join(
            paragraph(titles[each]) + table(*shown[each]) for each in parts if each in shown
        )
        if name in drawn:
            body = figure(plots.svg(panels_figure(drawn[name]), title), "") + body
        if body:
            sections.append(PageSection(title, body))
    return sections


def write_tables_page(
    path: Path,
    command: str,
    titles: Mapping[str, str],
    shown: Mapping[str, Table],
    setup: Mapping[str, str],
) -> None:
    """All tables as Markdown."""
    text = [f"<!-- written by `{command} --docs` -->"]
    for name, each in shown.items():
        text += [f"## {titles[name]}", markdown(*each)]
    text += ["## What it ran on", markdown(("", ""), list(setup.items()))]
    path.write_text("\n\n".join(text) + "\n", encoding="utf-8")


def write_between_marks(path: Path, name: str, paragraphs: Sequence[str]) -> None:
    """Put `paragraphs` into the page, if it is there and has the marks."""
    if not path.exists():
        return
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, begun, rest = path.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if begun and ended:
        text = before + begin + "\n\n".join(paragraphs) + "\n" + end + after
        path.write_text(text, encoding="utf-8")
