"""Runs scenarios directly at a broker and through a node in front of it, and compares.

A *site* is a broker to ask directly and a node before a broker of the same make, which may be the
same one.  Sturdy brokers have one site, where both sides of all scenarios run at the same time,
each with names of its own, so that the deadlines that prove an absence overlap.  Brokers that
mix clients up (:data:`FRAGILE`) have several sites, each with two brokers and one scenario at a
time.

A broker may answer differently from one run to the next, by itself: aedes loses the first of two
queued QoS 2 messages about every seventh time.  Where the two sides differ they are therefore run
again, alone and with more patience, until the node's side saw what the direct one saw in one of
its runs; a difference that is there every time counts, and one that went away is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from isthmus.brokers import broker_class, names

from . import scenarios, scenarios_raw, scenarios_v5
from .catalogue import RAW, SCENARIOS, Scenario
from .clients import LIBRARIES
from .observation import Observation, Seen, Stopped, differences
from .stage import Address, Stage

__all__ = ["FRAGILE", "Cell", "OpenSite", "Outcome", "Site", "all_cells", "run_cells"]

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
_REPEATS = 3
_NOTHING = Observation({})


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
    """What was seen last, and how often the two sides had to be run."""

    cell: Cell
    direct: Observation
    through_node: Observation
    runs: int = 1
    earlier: str = ""
    """The difference, or the doubt, that went away."""
    error: BaseException | None = None
    """What the scenario itself failed of, which is neither the broker's nor the node's doing."""
    seen_before: tuple[Seen, ...] = ()
    """What the direct side saw in earlier runs."""

    @property
    def agrees(self) -> bool:
        return self.through_node.seen in (self.direct.seen, *self.seen_before)

    @property
    def difference(self) -> str:
        return differences(self.through_node.seen, self.direct.seen)

    @property
    def doubtful(self) -> bool:
        """The sides differ, or the broker did not even answer: what a second look may change."""
        stopped = str(self.direct.seen.get("stopped", ""))
        return self.error is None and (not self.agrees or "CONNECT" in stopped)


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


def run_cells(broker: str, cells: Sequence[Cell], open_site: OpenSite) -> dict[Cell, Outcome]:
    """Run each cell of this broker on both sides."""
    lanes = FRAGILE.get(broker, 1)
    at_once = 1 if broker in FRAGILE else _AT_ONCE
    outcomes: dict[Cell, Outcome] = {}
    with ThreadPoolExecutor(lanes) as pool:
        ordered = _longest_first(cells)
        shares = (ordered[lane::lanes] for lane in range(lanes))
        work = [pool.submit(_run_share, share, open_site, at_once) for share in shares if share]
        for share in work:
            outcomes.update(share.result())
    return outcomes


def _run_share(cells: Sequence[Cell], open_site: OpenSite, at_once: int) -> dict[Cell, Outcome]:
    with open_site() as site:
        outcomes = {each.cell: each for each in _run_at(site, cells, at_once, _PATIENCE_S)}
    for run in range(2, _REPEATS + 2):
        doubtful = [each for each in outcomes.values() if each.doubtful]
        if not doubtful:
            break
        with open_site() as site:  # where nothing is left of what happened before
            again = [each.cell for each in doubtful]
            for before, after in zip(
                doubtful, _run_at(site, again, 1, 2 * _PATIENCE_S), strict=True
            ):
                earlier = before.earlier or before.difference or before.direct.departure
                outcomes[after.cell] = replace(
                    after,
                    runs=run,
                    earlier=earlier,
                    seen_before=(*before.seen_before, before.direct.seen),
                )
    return outcomes


def _run_at(site: Site, cells: Sequence[Cell], at_once: int, patience_s: float) -> list[Outcome]:
    """Both sides of `at_once` cells at the same time."""

    def both(cell: Cell) -> Outcome:
        at_broker = sides.submit(_observe, cell, site.direct, patience_s)
        return _outcome(cell, at_broker, sides.submit(_observe, cell, site.node, patience_s))

    with ThreadPoolExecutor(2 * at_once) as sides, ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(both, cells))


def _outcome(cell: Cell, at_broker: Future[Observation], at_node: Future[Observation]) -> Outcome:
    error = at_broker.exception() or at_node.exception()
    if error is not None:
        return Outcome(cell, _NOTHING, _NOTHING, error=error)
    return Outcome(cell, at_broker.result(), at_node.result())


def _longest_first(cells: Iterable[Cell]) -> list[Cell]:
    waits = ("expir", "delay", "keep-alive", "session", "will")
    return sorted(cells, key=lambda cell: not any(word in cell.name for word in waits))


def _observe(cell: Cell, address: Address, patience_s: float) -> Observation:
    with Stage(address, cell.level, cell.library, patience_s) as stage:
        try:
            return cell.scenario.run(stage)
        except Stopped as stopped:
            return Observation({"stopped": str(stopped)}, ({"stopped": "not at all"},))
