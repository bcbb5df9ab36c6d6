"""``isthmus reproduce overlays``: the evaluation of the Overlays paper on this machine.

    OUT/measured/RUN.json   a measurement that is whole: its tree, convergence and repair
    OUT/log/                what every client sent and received in every one of them
    OUT/indexes/            the tables of the Spark jobs over that log
    OUT/report.html         the paper's figures and statements beside ours
    OUT/results.json        all figures

In a folder that holds measurements already, those are read back and the others are made.  One that
fails is reported by name and reason, the others are made all the same, and the exit code says so.
What is needed at the end, Spark and a Java, is looked for at the beginning.

Source: Overlays §6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from isthmus.bench.coordinator.progress import Progress
from isthmus.bench.report.results import IndexTables
from isthmus.config.addresses import Address
from isthmus.config.files import FabricDiscovery
from isthmus.errors import IsthmusError, ReproduceError
from isthmus.fabric.joining import no_multicast
from isthmus.fabric.processes import interruptible
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.folder import check_kind
from isthmus.reproduce.narration import clock, print_claims, tried_again
from isthmus.reproduce.overlays import narration
from isthmus.reproduce.overlays.experiments import (
    GROUP,
    Experiment,
    check_broker,
    choose,
    experiments,
    scenario_of,
)
from isthmus.reproduce.overlays.jobs import compute_tables
from isthmus.reproduce.overlays.measuring import Measured, measure, read_measured
from isthmus.reproduce.overlays.paper import Cells, compare
from isthmus.reproduce.overlays.report import Reproduced, Settings, write_report
from isthmus.reproduce.overlays.timing import Budget, schedule

__all__ = ["Reproduced", "Settings", "reproduce", "run_overlays"]

Measure = Callable[..., Measured]
Compute = Callable[[Path, Path, Sequence[str]], IndexTables]


def run_overlays(settings: Settings) -> int:
    """The command: 0 if every experiment that was asked for was made, else 1."""
    with interruptible():
        return 1 if reproduce(settings).failed else 0


def reproduce(
    settings: Settings,
    *,
    console: Console | None = None,
    measure: Measure = measure,
    compute: Compute | None = None,
    write: Callable[[Reproduced, Sequence[Claim]], None] = write_report,
) -> Reproduced:
    """Make the experiments and write the report; the last three are seams for tests."""
    console = console or Console(highlight=False)
    began_s = time.monotonic()
    chosen = choose(experiments(quick=settings.quick), settings.only)
    check_broker(settings.parameters.broker)
    if compute is None:
        _check_spark()
    kind = {"what": "isthmus reproduce overlays", "quick": settings.quick}
    check_kind(settings.out, kind | asdict(settings.parameters))
    done = Reproduced(settings, chosen)
    deaf = no_multicast(FabricDiscovery(group=Address(GROUP, 0)))
    if deaf:
        done.notes.append(f"no multicast here, so nodes were told of each other: {deaf}")
        console.print(done.notes[-1], markup=False)
    narration.plan(console, settings.parameters, chosen, settings.budget_s)
    _make_all(console, done, began_s, measure, multicast=not deaf)
    if not done.measured:
        reasons = "; ".join(f"{name}: {why}" for name, why in done.failed.items())
        raise ReproduceError(f"nothing could be measured: {reasons}")
    console.print(f"computing the indexes of {len(done.measured)} runs with Spark")
    runs = [each.run for each in done.measured]
    done.tables = (compute or compute_tables)(settings.out / "log", settings.out / "indexes", runs)
    check_equal(done.measured, done.tables)
    done.took_s = time.monotonic() - began_s
    claims = compare(Cells.of(done.tables["cells"]), done.measured)
    write(done, claims)
    print_claims(console, claims)
    took = clock(done.took_s)
    console.print(f"took {took}; the report is {settings.out / 'report.html'}", soft_wrap=True)
    return done


def check_equal(measured: Sequence[Measured], tables: IndexTables) -> None:
    """What was counted after each run must be what Spark says of it, to the last digit."""
    summary: dict[str, Mapping[str, Any]] = {row["run"]: row for row in tables["summary"]}
    for each in measured:
        row = summary.get(each.run)
        if row is None:
            raise ReproduceError(f"run {each.run} is not in the indexes")
        says = {name: row[name] for name in each.counted}
        if says != each.counted:
            raise ReproduceError(
                f"run {each.run}: counted were {dict(each.counted)}, the indexes say {says}"
            )


def _check_spark() -> None:
    """Raises `SparkError` rather now than after the last measurement."""
    from isthmus.pipeline.spark.driver import spark_home
    from isthmus.pipeline.spark.java import find_java

    spark_home()
    find_java()


def _make_all(
    console: Console, done: Reproduced, began_s: float, measure: Measure, *, multicast: bool
) -> None:
    """Round by round, as far as the budget lasts."""
    settings = done.settings
    budget = Budget(settings.parameters, settings.budget_s, settings.limit_s)
    planned = list(schedule(done.chosen))
    left = [
        (number, [each for each in some if read_measured(settings.out, each.run(number)) is None])
        for number, some in planned
    ]
    for index, (number, some) in enumerate(planned):
        missing = left[index][1]
        affordable = budget.affords(number, missing, time.monotonic() - began_s)
        if missing and not affordable and number == 1:
            done.left_out[some[0].setting.name] = "there was no time for it"
            console.print(f"{some[0].setting.name}: left out, there is no time for it")
        for experiment in some:
            found = read_measured(settings.out, experiment.run(number))
            if found is None and affordable:
                attempt = partial(
                    measure,
                    settings.out,
                    settings.parameters,
                    experiment,
                    number,
                    scenario_of(settings.parameters, experiment, number, multicast=multicast),
                    progress=Progress(console) if console.is_terminal else None,
                )
                found = _one(console, done, experiment, number, attempt)
                missing.remove(experiment)
                if found is not None:
                    budget.took(experiment.setting, found.took_s)
                    rest_s = budget.rest_s(left[index:], time.monotonic() - began_s)
                    narration.measured(console, found, rest_s)
            if found is not None:
                done.measured.append(found)


def _one(
    console: Console,
    done: Reproduced,
    experiment: Experiment,
    number: int,
    attempt: Callable[[], Measured],
) -> Measured | None:
    """One measurement; what goes wrong with it is kept and told, and the next one follows."""
    try:
        return tried_again(console, attempt)
    except IsthmusError as error:
        done.failed[experiment.run(number)] = str(error)
        console.print(f"{experiment.run(number)}: failed: {error}", markup=False)
        return None
