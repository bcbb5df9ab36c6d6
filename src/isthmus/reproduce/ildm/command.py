"""``isthmus reproduce ildm``: the evaluation of the ILDM paper on this machine, in one command.

    OUT/limits/NAME.jsonl   every measurement of each experiment's search
    OUT/log/                what every client sent and received in every one of them
    OUT/indexes/            the tables of the Spark job over that log
    OUT/report.html         figures and the paper's statements beside ours
    OUT/results.csv, .json  all figures

Between two measurements of a search the indexes of one run are computed directly; at the end one
Spark job computes those of all runs, and the report shows only what that job says.  That both agree
on every run is checked.

In a folder that holds experiments already, those that ended are read back and one that was
interrupted goes on.  An experiment that fails is reported by name and reason, the others are made
all the same, and the exit code says so.

Source: ILDM §6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from isthmus.bench.coordinator.progress import Progress
from isthmus.bench.coordinator.run_view import trial_line
from isthmus.bench.experiment import Searched
from isthmus.bench.limit.search import Found, TrialOutcome
from isthmus.bench.limit.trial import PILE_UP
from isthmus.bench.report.results import IndexTables, Result, result_of
from isthmus.errors import IsthmusError, ReproduceError
from isthmus.fabric.processes import interruptible
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.folder import check_kind
from isthmus.reproduce.ildm import narration
from isthmus.reproduce.ildm.experiments import Experiment, choose, experiments, missing_brokers
from isthmus.reproduce.ildm.paper import compare
from isthmus.reproduce.ildm.report import Reproduced, Settings, write_report
from isthmus.reproduce.ildm.search import begin, search_experiment
from isthmus.reproduce.ildm.timing import forecast_s, times_for
from isthmus.reproduce.narration import clock, print_claims, tried_again

__all__ = ["Reproduced", "Settings", "reproduce", "results_of", "run_ildm"]

BARE: str = "single-mosquitto"
Search = Callable[..., Searched]
Compute = Callable[[Path, Path, Sequence[str]], IndexTables]


def run_ildm(settings: Settings) -> int:
    """The command: 0 if every experiment that was asked for was made, else 1."""
    with interruptible():
        return 1 if reproduce(settings).failed else 0


def reproduce(
    settings: Settings,
    *,
    console: Console | None = None,
    search: Search = search_experiment,
    compute: Compute | None = None,
    write: Callable[[Reproduced, Sequence[Claim]], None] = write_report,
) -> Reproduced:
    """Make the experiments and write the report; the last three are seams for tests."""
    console = console or Console(highlight=False)
    began_s = time.monotonic()
    chosen = choose(experiments(quick=settings.quick), settings.only)
    check_kind(
        settings.out,
        {"what": "isthmus reproduce ildm", "quick": settings.quick, "grid": settings.grid},
    )
    done = Reproduced(settings)
    missing = {each.name: missing_brokers(each) for each in chosen}
    done.left_out = {name: "; ".join(why.values()) for name, why in missing.items() if why}
    wanted = [each for each in chosen if not missing[each.name]]
    done.experiments = {each.name: each for each in wanted}
    narration.plan(console, settings.timing, wanted, done.left_out)
    for number in range(len(wanted)):
        spent_s = time.monotonic() - began_s
        _one(console, done, wanted[number:], spent_s, search)
    console.print("computing the indexes of all runs with Spark")
    _finish(done, compute or spark_tables)
    done.took_s = time.monotonic() - began_s
    claims = compare({result.name: result for result in done.results})
    write(done, claims)
    print_claims(console, claims)
    took = clock(done.took_s)
    console.print(f"took {took}; the report is {settings.out / 'report.html'}", soft_wrap=True)
    return done


def spark_tables(log: Path, out: Path, runs: Sequence[str]) -> IndexTables:
    """The tables of the indexes of `runs`, computed by one Spark job and kept in `out`."""
    from isthmus.pipeline.spark.job import run_job

    tables = run_job(log, out, runs=runs, show=False)
    return {name: table.to_pylist() for name, table in tables.items()}


def results_of(searched: Mapping[str, Searched], tables: IndexTables) -> list[Result]:
    """The figures at each limit that was found, all from the tables of the Spark job."""
    results = []
    for name, each in searched.items():
        found = each.found
        if found.outcome is None:
            continue
        smaller_ns = found.smaller_interval_ns
        results.append(
            result_of(
                tables,
                found.outcome.run,
                name=name,
                next_interval_ms=None if smaller_ns is None else smaller_ns / 1e6,
                limited_by=_limited_by(found),
                is_lower_bound=found.is_lower_bound,
                measurements=found.measurements,
                notes=found.notes,  # those of the servers stand in the run's row
            )
        )
    return results


def _limited_by(found: Found) -> str:
    """What gave way first; an objection of our own has no bottleneck's name."""
    notes = () if found.smaller is None else found.smaller.notes
    return PILE_UP if any(note.startswith(PILE_UP) for note in notes) else found.limited_by


def _one(
    console: Console,
    done: Reproduced,
    left: Sequence[Experiment],
    spent_s: float,
    search: Search,
) -> None:
    """One experiment; what goes wrong with it is kept and told, and the next one follows."""
    experiment, settings = left[0], done.settings
    began_s = time.monotonic()
    bare = done.searched[BARE].found.outcome if BARE in done.searched else None
    egress = None if bare is None else bare.egress
    first_interval_ns = experiment.first_interval_ns(egress)
    times = times_for(settings.timing, left, first_interval_ns, spent_s)
    rest_s = sum(forecast_s(settings.timing, left, egress, spent_s)) + settings.timing.end_s
    try:
        begun = begin(
            settings.out,
            experiment,
            first_interval_ns,
            times,
            latency_interval_s=settings.timing.latency_interval_s,
            grid=settings.grid,
        )
        console.print(
            f"{experiment.name}: measurements of {begun.scenario.scenario.duration_s:g} s; "
            f"about {clock(rest_s)} left for all"
        )
        searched = tried_again(
            console,
            lambda: search(
                settings.out,
                experiment,
                begun,
                progress=Progress(console) if console.is_terminal else None,
                tell=lambda trial, outcome: console.print(
                    trial_line(trial, outcome), markup=False, soft_wrap=True
                ),
            ),
        )
    except IsthmusError as error:
        done.failed[experiment.name] = str(error)
        console.print(f"{experiment.name}: failed: {error}", markup=False)
        return
    done.searched[experiment.name] = searched
    narration.found(console, experiment.name, searched, time.monotonic() - began_s)


def _finish(done: Reproduced, compute: Compute) -> None:
    out = done.settings.out
    outcomes = [
        measurement.outcome
        for searched in done.searched.values()
        for measurement in searched.measurements
    ]
    if not outcomes:
        reasons = "; ".join(f"{name}: {why}" for name, why in (done.failed | done.left_out).items())
        raise ReproduceError(f"nothing could be measured: {reasons}")
    runs = [outcome.run for outcome in outcomes]
    done.tables = compute(out / "log", out / "indexes", runs)
    check_equal(outcomes, done.tables)
    done.results = results_of(done.searched, done.tables)


def check_equal(outcomes: Sequence[TrialOutcome], tables: IndexTables) -> None:
    """What the searches went by must be what Spark says of the same runs, to the last digit."""
    summary: dict[str, Mapping[str, Any]] = {row["run"]: row for row in tables["summary"]}
    for outcome in outcomes:
        row = summary.get(outcome.run)
        if row is None:
            raise ReproduceError(f"run {outcome.run} is not in the indexes")
        saw = (outcome.ingress, outcome.egress, outcome.ratio, outcome.loss_rate)
        says = (
            row["ingress"],
            row["egress"],
            row["limit_ratio"] or 0.0,
            row["loss_rate"] or 0.0,
        )
        if saw != says:
            raise ReproduceError(
                f"run {outcome.run}: the search saw ingress, egress, ratio and loss rate "
                f"{saw}, the indexes say {says}"
            )
