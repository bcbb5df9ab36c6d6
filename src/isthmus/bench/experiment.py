"""One scenario, run: its servers started and watched, its clients playing, its runs recorded.

    Scenario ──▶ Rig (brokers, nodes, quotas) ──▶ LoadSession (clients, faults) ──▶ log ──▶ summary

`one_run` and `search_limit` are what ``isthmus bench run`` and ``isthmus bench limit`` do;
`limit_of` is the search alone, for whoever makes many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isthmus.bench.coordinator.progress import Progress
from isthmus.bench.coordinator.session import LoadSession
from isthmus.bench.limit.file import LimitFile, MeasuredTrial, find_limit
from isthmus.bench.limit.search import Found, LimitSearch, SearchOptions, Trial, TrialOutcome
from isthmus.bench.limit.trial import Measuring, measuring
from isthmus.bench.rig.rig import Rig
from isthmus.bench.scenario import Scenario
from isthmus.bench.watch.watch import Watch
from isthmus.errors import LimitError
from isthmus.fabric.processes import interruptible
from isthmus.pipeline.count.direct import RunSummary, summarize
from isthmus.pipeline.log.run_files import remove_run

if TYPE_CHECKING:
    from isthmus.config.addresses import Address

__all__ = ["Machines", "Searched", "WarmUp", "limit_of", "loaded", "one_run", "search_limit"]

WARMING: Final = "warm-up"
"""The run that warms brokers up."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Who plays the t-clients: processes here, or at agents."""

    writers: int = 2
    agents: tuple[Address, ...] = ()
    token: bytes | None = None


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Load before the quotas are set, as brokers of Java and JavaScript begin slowly."""

    interval_ns: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Searched:
    """A search that ended."""

    found: Found
    measurements: tuple[MeasuredTrial, ...]
    notes: tuple[str, ...]


@contextmanager
def loaded(
    scenario: Scenario,
    log: Path,
    labels: Mapping[str, str],
    *,
    machines: Machines | None = None,
    warm_up: WarmUp | None = None,
    progress: Progress | None = None,
    notes: list[str],
) -> Iterator[LoadSession]:
    """The scenario's servers and clients; `notes` gets what is not as the scenario asks for."""
    machines = machines or Machines()
    if progress is not None:
        progress.say(f"starting {', '.join(node.id for node in scenario.node)}")
    with Rig(scenario, quotas=warm_up is None) as rig:
        every_s = min(1.0, scenario.scenario.duration_s / 8)
        watch = Watch(rig.watched, rig.admins, rig.throttled_ns, every_s=every_s)
        with LoadSession(
            scenario,
            rig.targets,
            log,
            writers=machines.writers,
            agents=machines.agents,
            token=machines.token,
            labels=labels,
            watch=watch,
            progress=progress,
            rig=rig,
            notes=rig.notes,
        ) as session:
            if warm_up is not None:
                _warm_up(session, log, warm_up)
                rig.set_quotas()
            notes.extend(rig.notes)
            yield session


def _warm_up(session: LoadSession, log: Path, warm_up: WarmUp) -> None:
    """Its run is no measurement, and not kept."""
    remove_run(log, WARMING)
    session.measure(
        WARMING, interval_ns=warm_up.interval_ns, duration_s=warm_up.duration_s, trim_s=0.0
    )
    remove_run(log, WARMING)


def limit_of(
    file: Path,
    log: Path,
    scenario: Scenario,
    options: SearchOptions,
    labels: Mapping[str, str],
    *,
    prefix: str,
    machines: Machines | None = None,
    warm_up: WarmUp | None = None,
    progress: Progress | None = None,
    tell: Callable[[Trial, TrialOutcome], None] = lambda trial, outcome: None,
) -> Searched:
    """Search on from what `file` holds until the limit is found.

    `tell` hears of every measurement that is made.  Servers are started only if there is one, and
    anew after a run in which clients were cut off.
    """
    if scenario.cut or scenario.crash:
        raise LimitError("a limit is searched without faults; leave [[cut]] and [[crash]] out")
    notes: list[str] = []
    with LimitFile(file, scenario, labels, options) as kept, ExitStack() as stack:
        started: list[Measuring] = []

        def measure(trial: Trial) -> TrialOutcome:
            if not started:
                session = stack.enter_context(
                    loaded(
                        scenario,
                        log,
                        labels,
                        machines=machines,
                        warm_up=warm_up,
                        progress=progress,
                        notes=notes,
                    )
                )
                started.append(measuring(session, log, scenario, options, prefix=prefix))
            outcome = started[0](trial)
            tell(trial, outcome)
            if started[0].lost_clients:
                started.clear()
                stack.close()
            return outcome

        notes += kept.notes
        found = find_limit(measure, LimitSearch(options), kept)
        return Searched(found, tuple(kept.measurements), tuple(notes))


def one_run(scenario: Scenario, log: Path, run: str, machines: Machines) -> int:
    """Load once and print the run's indexes; the exit code."""
    from isthmus.bench.coordinator.run_view import print_run

    notes: list[str] = []
    with (
        interruptible(),
        loaded(
            scenario,
            log,
            labels_of(scenario),
            machines=machines,
            progress=Progress(),
            notes=notes,
        ) as session,
    ):
        record = session.measure(run)
    print_run(record.summary, log, notes)
    return 0


def search_limit(
    scenario: Scenario,
    out: Path,
    *,
    guided: bool,
    machines: Machines,
) -> int:
    """Find the limit and print it; 1 if there is none in reach."""
    from isthmus.bench.coordinator.run_view import print_limit, print_trial

    log = out / "log"
    with interruptible():
        searched = limit_of(
            out / "limit.jsonl",
            log,
            scenario,
            SearchOptions(scenario.load.interval_ns, guided=guided),
            labels_of(scenario),
            prefix=scenario.name,
            machines=machines,
            progress=Progress(),
            tell=print_trial,
        )
    summary: RunSummary | None = None
    if searched.found.outcome is not None:
        summary = summarize(log, searched.found.outcome.run)
    print_limit(searched, summary, log)
    return 0 if searched.found.verdict in ("found", "beyond") else 1


def labels_of(scenario: Scenario) -> dict[str, str]:
    """What the runs of a scenario are labeled with in the log."""
    with_nodes = any(node.with_node for node in scenario.node)
    return {
        "broker": ",".join(dict.fromkeys(node.broker for node in scenario.node)),
        "algorithm": scenario.cooperation.algorithm if with_nodes else "",
    }
