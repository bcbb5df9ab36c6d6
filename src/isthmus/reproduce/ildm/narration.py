"""What a reproduction says on the terminal while it works: the plan, the end of each search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isthmus.bench.coordinator.run_view import in_words
from isthmus.bench.experiment import Searched
from isthmus.reproduce.ildm.experiments import Experiment
from isthmus.reproduce.ildm.paper import Claim
from isthmus.reproduce.ildm.timing import Timing, forecast_s

__all__ = ["claims", "clock", "found", "plan"]

STYLES = {"yes": "green", "no": "red", "within noise": "yellow", "not measured": "dim"}


def plan(
    console: Console, timing: Timing, wanted: Sequence[Experiment], left_out: Mapping[str, str]
) -> None:
    """What will be made, and how long it will take."""
    table = _table("experiment", "brokers", "algorithm", "takes about")
    forecast = forecast_s(timing, wanted, None, 0.0)
    for experiment, takes_s in zip(wanted, forecast, strict=True):
        brokers = ", ".join(dict.fromkeys(experiment.brokers))
        table.add_row(experiment.name, brokers, experiment.labels["algorithm"], clock(takes_s))
    console.print(table)
    for name, why in left_out.items():
        console.print(f"left out: {name}: {why}", markup=False)
    total = clock(sum(forecast) + timing.end_s)
    console.print(f"{len(wanted)} experiments, then the indexes and the report: about {total}")


def found(console: Console, name: str, searched: Searched, took_s: float) -> None:
    """The end of a search."""
    for note in [*searched.notes, *searched.found.notes]:
        console.print(f"  note: {note}", markup=False)
    said = f"{name}: {in_words(searched.found)} Took {clock(took_s)}."
    console.print(said, style="bold", markup=False)


def claims(console: Console, judged: Sequence[Claim]) -> None:
    """The paper's statements beside ours."""
    table = _table("the paper says", "paper", "here", "holds")
    for claim in judged:
        style = STYLES[claim.verdict]
        table.add_row(
            escape(f"{claim.statement} ({claim.source})"),
            claim.paper,
            escape(claim.ours),
            f"[{style}]{claim.verdict}[/{style}]",
        )
    console.print(table)


def clock(seconds: float) -> str:
    """A duration in words."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s"


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    return table
