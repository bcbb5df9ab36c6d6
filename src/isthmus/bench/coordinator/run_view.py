"""What ``isthmus bench run`` and ``bench limit`` print: a run's indexes, a search's course and end.

Results go to standard output, what happens meanwhile to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from isthmus.bench.limit.search import Found, Trial, TrialOutcome
from isthmus.bench.limit.trial import PILE_UP
from isthmus.pipeline.count.direct import RunSummary

if TYPE_CHECKING:
    from isthmus.bench.experiment import Searched

__all__ = ["in_words", "print_limit", "print_run", "print_trial", "trial_line"]

VERDICTS: Final = {
    "found": "The limit is found",
    "beyond": "The limit is beyond the shortest interval that is tried",
    "none": "No interval in reach is under the limit",
}


def print_run(summary: RunSummary, log: Path, notes: Sequence[str]) -> None:
    """The indexes of one run."""
    console = Console(highlight=False)
    console.print(run_table(summary))
    for note in dict.fromkeys([*notes, *summary.notes]):
        console.print(f"note: {note}", markup=False)
    console.print(f"Every table of it by Spark: isthmus bench index {log}", markup=False)


def run_table(summary: RunSummary) -> Table:
    """The summary's row, one index per line."""
    table = Table("index", "value", title=f"run {summary.run}", title_justify="left")
    interval = "varied" if summary.interval_ns is None else f"{summary.interval_ns / 1e6:g} ms"
    under = "under the limit" if summary.under_limit else "over the limit"
    table.add_row("interval of each publisher", interval)
    table.add_row("measured", f"{summary.window_s:g} s")
    table.add_row("ingress", f"{summary.ingress:,.1f} messages/s")
    table.add_row("egress", f"{summary.egress:,.1f} messages/s")
    table.add_row("sp-ratio", f"{summary.sp_ratio:g}")
    if summary.limit_ratio is not None:
        table.add_row("egress / (ingress * sp-ratio)", f"{summary.limit_ratio:.4f}: {under}")
    lost = f"{summary.lost:,} of {summary.expected:,}"
    if summary.loss_rate is not None:
        lost += f" ({summary.loss_rate:.4%})"
    table.add_row("lost", lost)
    table.add_row("duplicates", f"{summary.duplicates:,}")
    table.add_row("out of order", f"{summary.order_violations:,}")
    if summary.latency_mean_us is not None:
        table.add_row("latency, mean", f"{summary.latency_mean_us / 1e3:.3f} ms")
        for name, value_us in (
            ("median", summary.latency_p50_us),
            ("p99", summary.latency_p99_us),
            ("p99.9", summary.latency_p999_us),
            ("maximum", summary.latency_max_us),
        ):
            table.add_row(f"latency, {name}", f"{(value_us or 0) / 1e3:.3f} ms")
    table.add_row("limited by", summary.limited_by or "nobody watched")
    return table


def print_trial(trial: Trial, outcome: TrialOutcome) -> None:
    """One measurement of a search."""
    print(trial_line(trial, outcome), file=sys.stderr, flush=True)


def trial_line(trial: Trial, outcome: TrialOutcome) -> str:
    """One measurement of a search."""
    judged = "under the limit" if outcome.satisfies else "over the limit"
    if not outcome.kept_pace:
        judged += ", publishers did not keep the interval"
    elif any(note.startswith(PILE_UP) for note in outcome.notes):
        judged += f", {PILE_UP}"
    return (
        f"{trial.number + 1:3}  {trial.interval_ns / 1e6:10.4f} ms  "
        f"egress {outcome.egress:12,.1f}/s  ratio {outcome.ratio:.4f}  {judged}  "
        f"({outcome.limited_by})"
    )


def print_limit(searched: Searched, summary: RunSummary | None, log: Path) -> None:
    """What a search found."""
    console = Console(highlight=False)
    found = searched.found
    if summary is not None:
        console.print(run_table(summary))
    console.print(in_words(found), markup=False)
    for note in dict.fromkeys([*searched.notes, *found.notes]):
        console.print(f"note: {note}", markup=False)
    console.print(f"Every table of it by Spark: isthmus bench index {log}", markup=False)


def in_words(found: Found) -> str:
    """The result of a search in one sentence."""
    text = f"{VERDICTS[found.verdict]} after {found.measurements} measurements"
    if found.outcome is None or found.interval_ns is None:
        return text + "."
    least = "at least " if found.is_lower_bound else ""
    text += (
        f": {least}{found.outcome.ingress:,.0f} messages/s in, {found.outcome.egress:,.0f}/s out, "
        f"at {found.interval_ns / 1e6:g} ms"
    )
    if found.smaller_interval_ns is not None and not found.is_lower_bound:
        error = found.interval_ns / found.smaller_interval_ns - 1
        text += f"; less than {error:.1%} below the true one"
    if found.is_lower_bound and found.limited_by:
        text += f"; the {found.limited_by} gave way, not the brokers"
    return text + "."
