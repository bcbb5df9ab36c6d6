"""``isthmus simulate assignment``: the answer as a table, and all of it as CSV."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isthmus.errors import IsthmusError
from isthmus.simulate.assignment import Advice, Place, advice, peak, simulated_ms
from isthmus.simulate.assignment_file import Question

__all__ = ["MAX_CHECKED", "answer"]

SHOWN: Final = 40
"""Topics in the table; a file has all of them."""
MAX_CHECKED: Final = 100_000
"""Brokers that are simulated."""


def answer(question: Question, out: Path | None, *, check: bool) -> None:
    """Print what to do with each topic."""
    place, found = question.place, advice(question.place, question.topics)
    if check and place.brokers > MAX_CHECKED:
        raise IsthmusError(
            f"--check simulates {MAX_CHECKED:,} brokers at most, not {place.brokers:,}"
        )
    console = Console(highlight=False)
    console.print(_title(place), markup=False)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("topic", overflow="fold", min_width=7)
    for column in _columns(check):
        table.add_column(column, justify="right", no_wrap=True)
    for each in found[:SHOWN]:
        table.add_row(Text(each.topic), *_cells(place, each, check=check))
    console.print(table)
    if len(found) > SHOWN:
        where = f"all are in {out}" if out else "--out FILE.csv writes all"
        console.print(f"{SHOWN} of {len(found):,} topics; {where}", markup=False)
    for line in _summary(place, found):
        console.print(line, markup=False)
    if out is not None:
        _write(out, found)


def _title(place: Place) -> str:
    return (
        f"{place.brokers:,} brokers, {place.subscribers:,} subscribers, "
        f"t_c {place.communication_ms:g} ms, t_p {place.processing_ms:g} ms; times in ms"
    )


def _columns(check: bool) -> list[str]:
    """All of them fit into 80 characters, with topics of 7."""
    columns = ["subscribers", "T_i", "T_e", "T_d", "approx."]
    return [*columns, *(["simulated"] if check else []), "assign"]


def _cells(place: Place, each: Advice, *, check: bool) -> Iterator[str]:
    yield f"{each.subscribers:,}"
    for value in (each.intensive_ms, each.extensive_ms, each.difference_ms, each.approximate_ms):
        yield f"{value:,.3f}"
    if check:
        ways = [simulated_ms(place, each.subscribers, way) for way in ("intensive", "extensive")]
        yield ", ".join(f"{value:,.2f}" for value in ways)
    yield each.way


def _summary(place: Place, found: Sequence[Advice]) -> Iterator[str]:
    counts = Counter(each.way for each in found)
    yield (
        f"to assign intensively (on few brokers): {counts['intensive']:,}; "
        f"extensively (on many): {counts['extensive']:,}"
    )
    highest = peak(place)
    if highest is None:
        yield "equation 4.4 has no peak among these sizes"
    else:
        yield f"extensive assignment gains most for a topic of about {highest:,.0f} subscribers"


def _write(path: Path, found: Sequence[Advice]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(
            ["topic", "subscribers", "intensive_ms", "extensive_ms", "difference_ms",
             "approximate_difference_ms", "assignment"]
        )  # fmt: skip
        for each in found:
            rows.writerow(
                [each.topic, each.subscribers, each.intensive_ms, each.extensive_ms,
                 each.difference_ms, each.approximate_ms, each.way]
            )  # fmt: skip
