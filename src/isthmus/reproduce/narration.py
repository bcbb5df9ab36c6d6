"""What any reproduction says on the terminal: tables, durations, verdicts, a second attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isthmus.errors import BrokerFailed, LoadFailed, NodeFailed
from isthmus.reproduce.claims import Claim

__all__ = ["clock", "print_claims", "table", "tried_again"]

STYLES = {"yes": "green", "no": "red", "within noise": "yellow", "not measured": "dim"}

Made = TypeVar("Made")


def print_claims(console: Console, judged: Sequence[Claim]) -> None:
    """The paper's statements beside ours."""
    shown = table("the paper says", "paper", "here", "holds")
    for claim in judged:
        style = STYLES[claim.verdict]
        shown.add_row(
            escape(f"{claim.statement} ({claim.source})"),
            claim.paper,
            escape(claim.ours),
            f"[{style}]{claim.verdict}[/{style}]",
        )
    console.print(shown)


def clock(seconds: float) -> str:
    """A duration in words."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s"


def table(*columns: str) -> Table:
    """An empty one; long cells are folded."""
    made = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for column in made.columns:
        column.overflow = "fold"
    return made


def tried_again(console: Console, attempt: Callable[[], Made]) -> Made:
    """A broker or node that did not start, or cut clients off, gets a second chance."""
    try:
        return attempt()
    except (BrokerFailed, NodeFailed, LoadFailed) as error:
        console.print(f"  once more, as this went wrong: {error}", markup=False)
    return attempt()
