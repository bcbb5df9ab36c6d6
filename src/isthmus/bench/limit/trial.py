"""One measurement of a limit search: the load session sends, the indexes say what came of it.

The run of trial 7 at 3.2 ms is called ``PREFIX-007-3200000ns``.  Where a killed search has left a
run of that name that did not end, it is removed, because a log with such a run is refused; one that
ended but was not noted by the search any more is kept, and the new one gets another name.

A run far over the limit may leave messages that still arrive in the next one.  If that one is then
not under the limit, it is measured once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from isthmus.bench.coordinator.run_record import COORDINATOR, RunRecord
from isthmus.bench.limit.search import SearchOptions, Trial, TrialOutcome
from isthmus.bench.scenario import Scenario
from isthmus.errors import LimitError
from isthmus.pipeline.count.direct import RunSummary
from isthmus.pipeline.log.run_files import remove_run
from isthmus.pipeline.log.schema import file_path

__all__ = ["PILE_UP", "Measuring", "MeasuringSession", "measuring", "piles_up"]

PILED_UP: Final = 0.1
"""Of the window: messages that wait for longer are in a queue that grows."""
PILE_UP: Final = "messages pile up"


class MeasuringSession(Protocol):
    """What a trial needs of :class:`isthmus.bench.coordinator.session.LoadSession`."""

    def measure(self, run: str, *, interval_ns: int) -> RunRecord: ...


def measuring(
    session: MeasuringSession,
    log: Path,
    scenario: Scenario,
    options: SearchOptions,
    *,
    prefix: str,
) -> Measuring:
    """What `find_limit` measures with; `session` is one of `scenario` that writes to `log`."""
    if not scenario.sp_ratio:
        raise LimitError(
            f"scenario {scenario.name!r} has no limit to find: no t-client subscribes to what "
            "t-clients publish; give its [[place]]s publishers and subscribers of one topic"
        )
    window_s = scenario.scenario.duration_s - 2 * scenario.scenario.trim_s
    if options.first_interval_ns > window_s * 1e9:
        raise LimitError(
            f"the first interval is {options.first_interval_ns / 1e9:g} s, longer than the "
            f"{window_s:g} s that are measured; begin shorter, or measure for longer"
        )
    return Measuring(session, log, prefix)


@dataclass(slots=True)
class Measuring:
    """Makes the measurements of one session, one trial after the other."""

    session: MeasuringSession
    log: Path
    prefix: str
    lost_clients: bool = False
    """Some were cut off: this session cannot go on."""

    def __call__(self, trial: Trial) -> TrialOutcome:
        outcome, disturbed = self._once(trial)
        if disturbed and not outcome.satisfies and not self.lost_clients:
            note = f"measured again, as messages of an earlier run arrived in {outcome.run}"
            outcome, _ = self._once(trial)
            outcome = replace(outcome, notes=(*outcome.notes, note))
        return outcome

    def _once(self, trial: Trial) -> tuple[TrialOutcome, bool]:
        """What came out, and whether an earlier run disturbed it."""
        run = _free_name(self.log, f"{self.prefix}-{trial.number:03d}-{trial.interval_ns}ns")
        record = self.session.measure(run, interval_ns=trial.interval_ns)
        self.lost_clients = record.lost_clients > 0
        summary = record.summary
        notes = [*summary.notes]
        if summary.limit_ratio is None:
            notes.append("nothing was sent within the window, so Definition 1 says nothing")
        against = piles_up(summary) if summary.under_limit else None
        if against is not None:
            notes.append(against)
        outcome = TrialOutcome(
            run=run,
            under_limit=summary.under_limit and against is None,
            ratio=summary.limit_ratio or 0.0,
            ingress=summary.ingress,
            egress=summary.egress,
            loss_rate=summary.loss_rate or 0.0,
            kept_pace=record.kept_pace,
            limited_by=summary.limited_by,
            notes=tuple(notes),
        )
        return outcome, record.leftovers > 0


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


def _free_name(log: Path, wanted: str) -> str:
    """A name that no run of the log has; what did not end under it is removed."""
    run, number = wanted, 1
    while file_path(log, "runs", run, COORDINATOR).exists():
        number += 1
        run = f"{wanted}-{number}"
    remove_run(log, run)
    return run
