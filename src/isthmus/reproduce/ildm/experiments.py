"""The experiments of the ILDM paper's evaluation, and one that it left for later.

    single-BROKER     a bare broker of each make that is installed here     (Fig. 11, §6.3)
    A-pf … D-sf       Mosquitto with nodes, patterns A to D, PF and SF      (Fig. 12, §6.4)
    mixed-C-sf …      five brokers of different makes in one fabric         (beyond the paper)

Departures from the paper: servers are emulated on one machine, each a CPU quota ("emulation" of the
scenarios).  Such a server has two cores of a tenth each.  A process that runs in one thread can use
one of them; a broker of many threads uses both, as it would on the paper's server, alone or in a
mixed fabric.  Brokers that compile themselves as they run are warmed up before the quotas are set;
the paper's had whole cores to do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from isthmus.bench.scenario import Scenario, load_scenario
from isthmus.brokers import broker_class, names
from isthmus.errors import ReproduceError

__all__ = ["MIXED", "Experiment", "choose", "experiments", "missing_brokers"]

Group = Literal["single", "pattern", "mixed"]

MIXED: Final = ("mosquitto", "aedes", "hivemq", "activemq", "rabbitmq")
"""One per server of the row, in this order."""
ONE_THREAD: Final = frozenset({"mosquitto", "embedded", "aedes"})
"""Brokers that handle all messages in one thread."""
COMPILES_AS_IT_RUNS: Final = frozenset({"aedes", "moquette", "hivemq", "activemq"})
"""Brokers of Java and JavaScript: slow until the machine code of their busy parts is made."""

RELATIVE: Final[Mapping[str, float]] = {
    "single-mosquitto": 1.0,
    "single-embedded": 0.092,
    "single-aedes": 0.32,
    "single-moquette": 0.6,
    "single-ejabberd": 0.6,
    "single-hivemq": 0.5,
    "single-activemq": 0.9,
    "single-rabbitmq": 0.18,
    "A-pf": 0.9,
    "A-sf": 0.9,
    "B-pf": 3.0,
    "B-sf": 3.0,
    "C-pf": 3.4,
    "C-sf": 4.4,
    "D-pf": 3.3,
    "D-sf": 3.7,
    "mixed-B-sf": 0.6,
    "mixed-C-sf": 1.0,
    "mixed-D-sf": 0.9,
}
"""Egress as a multiple of bare Mosquitto's, roughly: where a search begins, not what it finds."""
BEGIN_AT: Final = 0.87
"""Times the interval that is expected: far enough over the limit to be no narrow failure."""
USUAL_EGRESS: Final = 29_000.0
"""Of bare Mosquitto on a tenth of a core, as long as it is not measured."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One system whose limit is searched."""

    name: str
    group: Group
    scenario: Scenario
    brokers: tuple[str, ...]
    """One per server."""

    @property
    def labels(self) -> dict[str, str]:
        """What its runs are labeled with in the log."""
        algorithm = "" if self.group == "single" else self.scenario.cooperation.algorithm
        return {
            "experiment": self.name,
            "broker": ",".join(self.brokers),
            "algorithm": algorithm,
        }

    @property
    def compiles_as_it_runs(self) -> bool:
        """Whether a broker of it wants to be warmed up."""
        return not COMPILES_AS_IT_RUNS.isdisjoint(self.brokers)

    def first_interval_ns(self, bare_mosquitto_egress: float | None) -> int:
        """Where to begin the search: over the limit, where egress shows what the system can do."""
        egress = RELATIVE.get(self.name, 1.0) * (bare_mosquitto_egress or USUAL_EGRESS)
        publishers = sum(place.publishers for place in self.scenario.place)
        expected_s = publishers * self.scenario.sp_ratio / egress
        return round(BEGIN_AT * expected_s * 1e6) * 1000


def experiments(*, quick: bool) -> list[Experiment]:
    """All of them, in the order in which they are made."""
    return [
        *(_single(broker) for broker in names()),
        *(_pattern(pattern, algorithm) for pattern in "ABCD" for algorithm in ("pf", "sf")),
        *(_mixed(pattern) for pattern in ("C" if quick else "BCD")),
    ]


def choose(known: Sequence[Experiment], only: Iterable[str]) -> list[Experiment]:
    """Those named in `only`, all if that is empty; raises `ReproduceError` for other names."""
    wanted = dict.fromkeys(only)
    listed = {experiment.name: experiment for experiment in known}
    if unknown := [name for name in wanted if name not in listed]:
        raise ReproduceError(
            f"there is no experiment {', '.join(unknown)}; there are {', '.join(listed)}"
        )
    return [listed[name] for name in listed if not wanted or name in wanted]


def missing_brokers(experiment: Experiment) -> dict[str, str]:
    """Brokers that it needs and that are not installed here, with how to get them."""
    found = {broker: broker_class(broker).missing() for broker in dict.fromkeys(experiment.brokers)}
    return {broker: str(missing) for broker, missing in found.items() if missing is not None}


def _single(broker: str) -> Experiment:
    scenario = load_scenario("single").changed(broker=broker)
    if broker not in ONE_THREAD:
        scenario = _many_threads(scenario)
    return Experiment(f"single-{broker}", "single", scenario, (broker,))


def _pattern(pattern: str, algorithm: str) -> Experiment:
    scenario = load_scenario(pattern).changed(broker="mosquitto", algorithm=algorithm)
    brokers = ("mosquitto",) * len(scenario.node)
    return Experiment(f"{pattern}-{algorithm}", "pattern", scenario, brokers)


def _mixed(pattern: str) -> Experiment:
    scenario = load_scenario(pattern).changed(algorithm="sf")
    nodes = tuple(
        node.model_copy(update={"broker": broker})
        for node, broker in zip(scenario.node, MIXED, strict=True)
    )
    mixed = _many_threads(scenario.model_copy(update={"node": nodes}))
    return Experiment(f"mixed-{pattern}-sf", "mixed", mixed, MIXED)


def _many_threads(scenario: Scenario) -> Scenario:
    emulation = scenario.emulation.model_copy(update={"cpu_per_process": None})
    return scenario.model_copy(update={"emulation": emulation})
