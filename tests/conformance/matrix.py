"""Runs scenarios directly at a broker and through a node in front of it, and compares.

A *site* is a broker to ask directly and a node before a broker of the same make, which may be the
same one.  Sturdy brokers have one site, where both sides of all scenarios run at the same time,
each with names of its own, so that the deadlines that prove an absence overlap.  Brokers that
mix clients up (:data:`FRAGILE`) have several sites, each with two brokers and one scenario at a
time.

A broker may answer differently from one run to the next, by itself: aedes loses the first of two
queued QoS 2 messages about every seventh time.  Where the two sides differ, the *direct* side is
therefore run again, with more patience, until its last :data:`AGAIN` runs brought no variant that
was not known; if need be :data:`DIRECT_RUNS` times, and twice in a :data:`CROWD`, as impatiently
as at first (HiveMQ delivers late when 64 clients return at once).  The node's side is run again
:data:`AGAIN` times.  What it saw must be one of the direct side's variants every time, the first
time included: one run that the broker itself cannot explain is a difference.  So a fault of the
node that shows in every second run never passes where it shows.  What a broker was seen to do in
earlier measurements counts as well (:mod:`.variants`); if it stopped there, then for one run of any
of its scenarios.  Only for the brokers that mix clients up
does the first run say nothing but that there is a doubt: a moquette with a stopped session loop,
behind the node or not, is one that had run for a while, and the next runs are at fresh ones; such a
fault of the node would pass once in 64 times.

A broker that does not answer a CONNECT has said nothing, so nothing is held against the node that
was silent in the same run, or in any if the broker was so more than once (a moquette whose session
loop has stopped); only if the broker never answers is that what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain

from conformance.catalog import RAW, SCENARIOS, Scenario
from conformance.clients import LIBRARIES
from conformance.observation import Observation, Stopped, differences
from conformance.stage import Address, Stage
from conformance.variants import is_known_stop, variants_of
from isthmus.brokers import broker_class, names

from . import scenarios, scenarios_raw, scenarios_v5

__all__ = [
    "AGAIN",
    "CROWD",
    "DIRECT_RUNS",
    "FRAGILE",
    "Cell",
    "Observe",
    "OpenSite",
    "Outcome",
    "Site",
    "all_cells",
    "is_silent",
    "observe",
    "run_cells",
]

FRAGILE = {
    # Hands retained messages to clients that did not ask for them, and drops a client that
    # connects while another one subscribes.
    "embedded": 4,
    # Clients that connect at the same time can stop one of its session loops for good.
    "moquette": 3,
}
"""Brokers for which scenarios must not run side by side: the number of sites in their place."""

_REGISTERED = (scenarios, scenarios_v5, scenarios_raw)
_AT_ONCE = 32
_PATIENCE_S = 4.0
AGAIN = 6
DIRECT_RUNS = 30
CROWD = 2 * _AT_ONCE
MANY = 10
"""Where so many cells are in doubt it is no rare variant: three more runs, all cells together."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario with one library at one broker in one version."""

    broker: str
    level: int
    library: str
    name: str

    @property
    def scenario(self) -> Scenario:
        return SCENARIOS[self.name]

    @property
    def quick(self) -> bool:
        """Whether it belongs to the part that runs every time."""
        return self.library in self.scenario.quick

    def __str__(self) -> str:
        version = "5" if self.level == 5 else "3.1.1"
        return f"{self.broker}-{version}-{self.library}-{self.name}"


@dataclass(frozen=True, slots=True)
class Site:
    """Where the two sides connect."""

    direct: Address
    node: Address


OpenSite = Callable[[], AbstractContextManager[Site]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the two sides saw in all their runs; those at one place in both were simultaneous."""

    cell: Cell
    direct_runs: tuple[Observation, ...] = ()
    node_runs: tuple[Observation, ...] = ()
    error: BaseException | None = None
    """What the scenario itself failed of, which is neither the broker's nor the node's doing."""

    @property
    def direct(self) -> Observation:
        """What the broker does, most of the time."""
        usual = max(self.variants, key=lambda each: each[1], default=(Observation({}), 0))
        return usual[0]

    @property
    def variants(self) -> list[tuple[Observation, int]]:
        """All that the broker does, and in how many runs."""
        answered = self._answered()
        seen = [each.seen for each in answered]
        return [
            (each, seen.count(each.seen))
            for place, each in enumerate(answered)
            if each.seen not in seen[:place]
        ]

    @property
    def unexplained(self) -> list[Observation]:
        """What the node's side saw and the broker itself never does."""
        cell = self.cell
        known = [each.seen for each, _ in self.variants]
        known += variants_of(cell.broker, cell.level, cell.name)
        if cell.scenario.early and self.node_runs:
            known += self.node_runs[0].allowed
        silent = [is_silent(each) for each in self.direct_runs]
        excused = [
            is_silent(each) and (sum(silent) > 1 or any(silent[place : place + 1]))
            for place, each in enumerate(self.node_runs)
        ]
        found = [
            each
            for each, without_answer in zip(self.node_runs, excused, strict=True)
            if not without_answer and each.seen not in known
        ]
        stops = [each for each in found if is_known_stop(cell.broker, cell.level, each.seen)]
        return [each for each in found if each not in stops] if len(stops) == 1 else found

    @property
    def mended(self) -> bool:
        """Whether the broker departs from the standard, and the node in front of it does not."""
        return (
            bool(self.direct.departure)
            and self.agrees
            and all(each.keeps_the_standard for each in self.node_runs)
        )

    @property
    def agrees(self) -> bool:
        return self.error is None and not self.unexplained

    @property
    def difference(self) -> str:
        """What the node's side saw, not what the broker does; and how often."""
        if not self.unexplained:
            return ""
        seen = self.unexplained[0].seen
        nearest = min((differences(seen, each.seen) for each, _ in self.variants), key=len)
        runs = f"in {len(self.unexplained)} of {len(self.node_runs)} runs"
        return f"{nearest} ({runs}; directly never in {len(self.direct_runs)})"

    @property
    def doubtful(self) -> bool:
        """The sides differ, or the broker did not even answer: what a second look may change."""
        if self.error is not None:
            return False
        return bool(self.unexplained) or any(is_silent(each) for each in self.direct_runs)

    @property
    def unsettled(self) -> bool:
        """Whether more direct runs could say more: of the node's runs, or of variants to come."""
        if self.error is not None:
            return False
        seen = [each.seen for each in self._answered()]
        return bool(self.unexplained) or any(each not in seen[:-AGAIN] for each in seen[-AGAIN:])

    def _answered(self) -> Sequence[Observation]:
        return [each for each in self.direct_runs if not is_silent(each)] or self.direct_runs

    def varieties(self) -> list[str]:
        """The broker's variants in words: how often what, told from what it does most often."""
        usual, runs = self.direct, len(self.direct_runs)
        others = [each for each in self.variants if each[0] is not usual]
        silent = runs - sum(count for _, count in self.variants)
        lines = [
            f"in {count} of {runs} runs: {differences(each.seen, usual.seen)}"
            for each, count in others
        ]
        if silent:
            lines.append(f"in {silent} of {runs} runs: no answer to CONNECT")
        return lines or [f"the same in {runs} runs"]

    def with_runs(self, more: Outcome) -> Outcome:
        return replace(
            self,
            direct_runs=(*self.direct_runs, *more.direct_runs),
            node_runs=(*self.node_runs, *more.node_runs),
            error=self.error or more.error,
        )


def is_silent(observation: Observation) -> bool:
    """Whether a client found no answer to its CONNECT."""
    return "CONNECT" in str(observation.seen.get("stopped", ""))


def all_cells() -> list[Cell]:
    """Everything there is, broker by broker."""
    return [
        Cell(broker, level, library, scenario.name)
        for broker in names()
        for level in broker_class(broker).protocol_levels
        for scenario in SCENARIOS.values()
        if level in scenario.levels
        and not (scenario.only_without_5 and 5 in broker_class(broker).protocol_levels)
        for library in (*LIBRARIES, RAW)
        if library in scenario.libraries
    ]


def run_cells(
    broker: str, cells: Sequence[Cell], open_site: OpenSite, observing: Observe | None = None
) -> dict[Cell, Outcome]:
    """Run each cell of this broker on both sides."""
    lanes = FRAGILE.get(broker, 1)
    at_once = 1 if broker in FRAGILE else _AT_ONCE
    runner = _Runner(open_site, at_once, observing or observe)
    with ThreadPoolExecutor(lanes) as pool:
        ordered = _longest_first(cells)
        shares = [ordered[lane::lanes] for lane in range(lanes)]
        outcomes = list(chain(*pool.map(runner.run_once, shares)))
        doubtful = [each for each in outcomes if each.doubtful]
        settle = runner.settle if len(doubtful) < MANY else runner.settle_many
        settled = list(chain(*pool.map(settle, (doubtful[lane::lanes] for lane in range(lanes)))))
    return {each.cell: each for each in (*outcomes, *settled)}


Observe = Callable[[Cell, Address, float], Observation]
"""Runs a cell once at an address, with some patience in seconds."""


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs cells at sites, `at_once` at the same time."""

    open_site: OpenSite
    at_once: int
    observe: Observe

    def run_once(self, cells: Sequence[Cell], patience_s: float = _PATIENCE_S) -> list[Outcome]:
        """Both sides of each cell."""
        if not cells:
            return []
        if self.at_once == 1:
            return self._run_afresh(cells, patience_s)
        with (
            self.open_site() as site,
            ThreadPoolExecutor(2 * self.at_once) as sides,
            ThreadPoolExecutor(self.at_once) as pool,
        ):
            return list(pool.map(lambda cell: self._both(sides, site, cell, patience_s), cells))

    def _run_afresh(self, cells: Sequence[Cell], patience_s: float) -> list[Outcome]:
        """The same one by one; a broker that does not answer a client any more makes room."""
        outcomes: list[Outcome] = []
        with ThreadPoolExecutor(2) as sides:
            while len(outcomes) < len(cells):
                with self.open_site() as site:
                    answers = True
                    while answers and len(outcomes) < len(cells):
                        both = self._both(sides, site, cells[len(outcomes)], patience_s)
                        outcomes.append(both)
                        answers = not any(map(is_silent, (*both.direct_runs, *both.node_runs)))
        return outcomes

    def settle_many(self, doubtful: Sequence[Outcome]) -> list[Outcome]:
        """The cells again, all of them together."""
        for _ in range(3):
            again = self.run_once([each.cell for each in doubtful], 2 * _PATIENCE_S)
            doubtful = [
                before.with_runs(after) for before, after in zip(doubtful, again, strict=True)
            ]
        return [*doubtful]

    def settle(self, doubtful: Sequence[Outcome]) -> list[Outcome]:
        """Each cell again, until it is known what the broker does and what the node does."""
        return [
            self._one_by_one(each) if self.at_once == 1 else self._several_at_once(each)
            for each in doubtful
        ]

    def _several_at_once(self, outcome: Outcome) -> Outcome:
        cell, patience_s = outcome.cell, 2 * _PATIENCE_S
        with (
            self.open_site() as site,  # where nothing is left of what happened before
            ThreadPoolExecutor(2 * AGAIN) as sides,
            ThreadPoolExecutor(AGAIN) as pool,
        ):
            for pair in pool.map(lambda _: self._both(sides, site, cell, patience_s), range(AGAIN)):
                outcome = outcome.with_runs(pair)
            while outcome.unsettled and len(outcome.direct_runs) < DIRECT_RUNS:
                learned = pool.map(
                    lambda _: self.observe(cell, site.direct, patience_s), range(AGAIN)
                )
                outcome = outcome.with_runs(Outcome(cell, tuple(learned)))
            for _ in range(2):
                if outcome.unexplained:
                    outcome = outcome.with_runs(Outcome(cell, self._in_a_crowd(site, cell)))
        return outcome

    def _one_by_one(self, first: Outcome) -> Outcome:
        """The same for brokers that mix clients up: afresh whenever one no longer answers."""
        cell, patience_s = first.cell, 2 * _PATIENCE_S
        before, outcome = Outcome(cell, first.direct_runs), Outcome(cell)

        def unfinished() -> bool:
            learning = len(outcome.direct_runs) < DIRECT_RUNS // 2  # each takes its time
            return outcome.error is None and (
                len(outcome.node_runs) < AGAIN or (learning and outcome.with_runs(before).unsettled)
            )

        with ThreadPoolExecutor(2) as sides:
            while unfinished():
                with self.open_site() as site:
                    answers = True
                    while answers and unfinished():
                        if len(outcome.node_runs) < AGAIN:
                            run = self._both(sides, site, cell, patience_s)
                        else:
                            run = Outcome(cell, (self.observe(cell, site.direct, patience_s),))
                        outcome = outcome.with_runs(run)
                        seen = (*run.direct_runs, *run.node_runs)
                        answers = not any("stopped" in each.seen for each in seen)
        return outcome.with_runs(before)

    def _in_a_crowd(self, site: Site, cell: Cell) -> tuple[Observation, ...]:
        """The direct side under the circumstances of the first run."""
        with ThreadPoolExecutor(CROWD) as pool:
            return tuple(
                pool.map(lambda _: self.observe(cell, site.direct, _PATIENCE_S), range(CROWD))
            )

    def _both(
        self, sides: ThreadPoolExecutor, site: Site, cell: Cell, patience_s: float
    ) -> Outcome:
        at_broker: Future[Observation] = sides.submit(self.observe, cell, site.direct, patience_s)
        at_node = sides.submit(self.observe, cell, site.node, patience_s)
        error = at_broker.exception() or at_node.exception()
        if error is not None:
            return Outcome(cell, error=error)
        return Outcome(cell, (at_broker.result(),), (at_node.result(),))


def _longest_first(cells: Iterable[Cell]) -> list[Cell]:
    waits = ("expir", "delay", "keep-alive", "session", "will")
    return sorted(cells, key=lambda cell: not any(word in cell.name for word in waits))


def observe(cell: Cell, address: Address, patience_s: float) -> Observation:
    """One run of a cell at an address."""
    with Stage(address, cell.level, cell.library, patience_s) as stage:
        try:
            return cell.scenario.run(stage)
        except Stopped as stopped:
            return Observation({"stopped": str(stopped)}, ({"stopped": "not at all"},))
