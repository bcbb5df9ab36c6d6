"""What a reproduction says on the terminal while it works: the plan, each measurement, the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isthmus.bench.experiment import Searched
from isthmus.bench.limit.search import Outcome, Trial
from isthmus.bench.limit.trial import PILE_UP
from isthmus.reproduce.ildm.experiments import Experiment
from isthmus.reproduce.ildm.paper import Claim
from isthmus.reproduce.ildm.timing import Timing, forecast_s

__all__ = ["claims", "clock", "found", "plan", "trial"]

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


def trial(console: Console, made: Trial, outcome: Outcome) -> None:
    """One measurement of a search."""
    judged = "under the limit" if outcome.satisfies else f"over it ({outcome.limited_by})"
    if outcome.under_limit and not outcome.kept_pace:
        judged = f"publishers held back ({outcome.limited_by})"
    elif any(note.startswith(PILE_UP) for note in outcome.notes):
        judged = PILE_UP
    console.print(
        f"  {made.interval_ns / 1e6:9.4g} ms  egress {outcome.egress:10,.0f}/s  "
        f"ratio {outcome.ratio:.4f}  {judged}",
        markup=False,
    )


def found(console: Console, name: str, searched: Searched, took_s: float) -> None:
    """The end of a search."""
    limit = searched.found
    for note in searched.notes:
        console.print(f"  note: {note}", markup=False)
    if limit.outcome is None or limit.interval_ns is None:
        console.print(f"{name}: no limit found: {'; '.join(limit.notes)}", markup=False)
        return
    at_least = "at least " if limit.is_lower_bound else ""
    console.print(
        f"{name}: {at_least}{limit.outcome.egress:,.0f} messages/s out, each publisher every "
        f"{limit.interval_ns / 1e6:.4g} ms; {limit.measurements} measurements, {clock(took_s)}",
        style="bold",
        markup=False,
    )


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
