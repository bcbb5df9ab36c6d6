"""What a reproduction says on the terminal while it works: the plan, the end of each search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from isthmus.bench.coordinator.run_view import in_words
from isthmus.bench.experiment import Searched
from isthmus.reproduce.ildm.experiments import Experiment
from isthmus.reproduce.ildm.timing import Timing, forecast_s
from isthmus.reproduce.narration import clock, table

__all__ = ["found", "plan"]


def plan(
    console: Console, timing: Timing, wanted: Sequence[Experiment], left_out: Mapping[str, str]
) -> None:
    """What will be made, and how long it will take."""
    shown = table("experiment", "brokers", "algorithm", "takes about")
    forecast = forecast_s(timing, wanted, None, 0.0)
    for experiment, takes_s in zip(wanted, forecast, strict=True):
        brokers = ", ".join(dict.fromkeys(experiment.brokers))
        shown.add_row(experiment.name, brokers, experiment.labels["algorithm"], clock(takes_s))
    console.print(shown)
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
