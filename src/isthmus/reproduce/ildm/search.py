"""The limit of one experiment, started or resumed.

A file of measurements per experiment says what was done, in which scenario and with which lengths.
An experiment that ended is read back; one that was interrupted goes on where it stopped, with the
lengths it was begun with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isthmus.bench.coordinator.progress import Progress
from isthmus.bench.experiment import Searched, WarmUp, limit_of
from isthmus.bench.limit.file import read_limit_file
from isthmus.bench.limit.search import SearchOptions, Trial, TrialOutcome
from isthmus.bench.scenario import Scenario
from isthmus.errors import ReproduceError
from isthmus.reproduce.ildm.experiments import Experiment
from isthmus.reproduce.ildm.timing import WARM_UP_S, Times

__all__ = ["Begun", "begin", "limit_path", "search_experiment"]


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
        return Begun(scenario, SearchOptions(**header["options"]))
    scenario = experiment.scenario.changed(duration_s=times.duration_s, trim_s=times.trim_s)
    if scenario.latency is not None:
        latency = scenario.latency.model_copy(update={"interval_s": latency_interval_s})
        scenario = scenario.model_copy(update={"latency": latency})
    return Begun(scenario, SearchOptions(first_interval_ns, guided=not grid))


def search_experiment(
    out: Path,
    experiment: Experiment,
    begun: Begun,
    *,
    progress: Progress | None = None,
    tell: Callable[[Trial, TrialOutcome], None] = lambda trial, outcome: None,
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
        progress=progress,
        tell=tell,
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
