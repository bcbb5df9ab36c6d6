"""The limit of one experiment, begun or gone on with.

A file of measurements per experiment says what was done, in which scenario and with which lengths.
An experiment that ended is read back; one that was interrupted goes on where it stopped, with the
lengths it was begun with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from isthmus.bench.experiment import Searched, WarmUp, limit_of
from isthmus.bench.limit import Outcome, SearchOptions, Times, Trial
from isthmus.bench.limit_file import read_limit_file
from isthmus.bench.progress import Progress
from isthmus.bench.scenario import Scenario
from isthmus.errors import ReproduceError
from isthmus.pipeline.direct import RunSummary
from isthmus.reproduce.experiments import Experiment
from isthmus.reproduce.timing import WARM_UP_S

__all__ = ["PILE_UP", "Begun", "begin", "limit_path", "piles_up", "search_limit"]

PILE_UP: Final = "messages pile up"
PILED_UP: Final = 0.1
"""Of the window: messages that wait for longer are in a queue that grows."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A search as it is begun, or as its file says that it was."""

    scenario: Scenario
    options: SearchOptions


def limit_path(out: Path, experiment: Experiment) -> Path:
    """Where the measurements of its search stand."""
    return out / "limits" / f"{experiment.name}.jsonl"


def begin(
    out: Path,
    experiment: Experiment,
    first_interval_ns: int,
    times: Times,
    *,
    latency_interval_s: float,
    grid: bool,
) -> Begun:
    """What to search, unless it was begun already: then as it was."""
    path = limit_path(out, experiment)
    header = read_limit_file(path).header if path.exists() else {}
    if header:
        scenario = Scenario.model_validate(header["scenario"])
        if _timeless(scenario) != _timeless(experiment.scenario):
            raise ReproduceError(
                f"{path} is of another {experiment.name} than this version's; "
                "choose another folder with --out"
            )
        coarse = header["options"]["coarse"]
        begun = {**header["options"], "coarse": None if coarse is None else Times(**coarse)}
        return Begun(scenario, SearchOptions(**begun))
    scenario = experiment.scenario.changed(duration_s=times.duration_s, trim_s=times.trim_s)
    if scenario.latency is not None:
        latency = scenario.latency.model_copy(update={"interval_s": latency_interval_s})
        scenario = scenario.model_copy(update={"latency": latency})
    options = SearchOptions(first_interval_ns, guided=not grid, second_chance=True)
    return Begun(scenario, options)


def search_limit(
    out: Path,
    experiment: Experiment,
    begun: Begun,
    *,
    progress: Progress | None = None,
    tell: Callable[[Trial, Outcome], None] = lambda trial, outcome: None,
) -> Searched:
    """Search on until the limit is found; `tell` hears of every measurement that is made."""
    return limit_of(
        limit_path(out, experiment),
        out / "log",
        begun.scenario,
        begun.options,
        experiment.labels,
        prefix=experiment.name,
        warm_up=_warm_up(experiment, begun.options.first_interval_ns),
        objection=piles_up,
        progress=progress,
        tell=tell,
    )


def piles_up(summary: RunSummary) -> str | None:
    """Definition 1 is to tell loads that can go on for ever, and counts t-clients' messages.

    What is flooded to servers where nobody wants it is not among them (pattern C with PF): it can
    pile up while every t-client gets its own in time.  The messages of l-clients pass the same
    links; when they wait for a tenth of the window on average, that load cannot go on.
    """
    waited_us, window_s = summary.latency_mean_us, summary.window_s
    if waited_us is None or waited_us <= PILED_UP * window_s * 1e6:
        return None
    return (
        f"{PILE_UP}: those of l-clients took {waited_us / 1e6:.2f} s on average, in a "
        f"window of {window_s:g} s"
    )


def _warm_up(experiment: Experiment, first_interval_ns: int) -> WarmUp | None:
    """Several times the load of the first measurement, which a broker without quota can bear."""
    if not experiment.compiles_as_it_runs:
        return None
    return WarmUp(first_interval_ns // 4, WARM_UP_S)


def _timeless(scenario: Scenario) -> Scenario:
    """Without what may differ from one time to the next."""
    latency = scenario.latency
    if latency is not None:
        latency = latency.model_copy(update={"interval_s": 1.0})
    return scenario.changed(duration_s=1.0, trim_s=0.0).model_copy(update={"latency": latency})
