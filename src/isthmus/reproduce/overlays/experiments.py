"""The experiments of the Overlays paper's evaluation: settings, contenders, and their repetitions.

    l50-t60-capacity            50 % locality, 60 topics, 10³ bytes, normal rate
    l50-t60-p100000-single      the same with 10⁵ bytes
    l50-t60-stress-balance      the same at the stress rate

A *setting* says where clients are, how many topics there are, how long messages and how often.  In
each setting all four *contenders* are measured in one *round* with the same clients at the same
nodes over the same lines; another round draws them anew, from the seed and its number alone.

Readings of the paper, where it leaves open what it did:

* Publishers choose one topic each among all, subscribers one each among those that are published
  on.  So of 60 topics at most as many are used as there are publishers.
* All five nodes share one machine, hence what is free of it: their capability C says nothing.  It
  is set equal (weights of 0), so the tie decides, which is the lowest address: the root of the tree
  over all nodes is n1, in every run.
* With 100 % and 0 % locality the clients are at other nodes than n1.  In the paper the broker with
  the most free resources is the root, which one that serves all publishers is not.

Source: Overlays §6, Table 1.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

from isthmus.bench.scenario import (
    EmulatedLink,
    Emulation,
    Load,
    Overview,
    Place,
    Scenario,
    ScenarioNode,
)
from isthmus.brokers import broker_class, names
from isthmus.config.addresses import Address
from isthmus.config.files import Cooperation, FabricDiscovery
from isthmus.errors import ReproduceError

__all__ = [
    "CONTENDERS",
    "NODES",
    "ROOT",
    "Contender",
    "Experiment",
    "Parameters",
    "Setting",
    "check_broker",
    "choose",
    "experiments",
    "lines",
    "places",
    "scenario_of",
    "settings",
]

NODES: Final = ("n1", "n2", "n3", "n4", "n5")
ROOT: Final = "n1"
LOCALITIES: Final = (100, 50, 0)
TOPICS: Final = (3, 30, 60)
PAYLOADS: Final = (1_000, 10_000, 100_000)
MBIT_S: Final = 10.0
DELAY_MS: Final = 10.0
DELAY_SIGMA_MS: Final = 2.5
LEAST_DELAY_MS: Final = 1.0
"""A normal distribution has a tail below."""
SETTLE_S: Final = 0.2
GROUP: Final = "239.255.77.86"
PAPER_REPETITIONS: Final = 10
"""Of 50 % locality."""
REPETITIONS: Final = 3
"""Of everything else; the paper has one."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to cooperate."""

    key: str
    name: str
    algorithm: str
    options: Mapping[str, str] = field(default_factory=dict)


CONTENDERS: Final[Mapping[str, Contender]] = {
    each.key: each
    for each in (
        Contender("flooding", "benchmark (flooding)", "tree"),
        Contender("single", "single overlay", "routed-tree"),
        Contender("capacity", "topic overlays, capacity", "topic-tree", {"roots": "capacity"}),
        Contender("balance", "topic overlays, root balance", "topic-tree", {"roots": "balance"}),
    )
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """What is the same in all experiments."""

    publishers: int = 20
    subscribers: int = 5
    rate: float = 1.0
    """Messages per second of each publisher."""
    stress_rate: float = 10.0
    messages: int = 3
    """Of each publisher within the window at the normal rate; the paper's are 500."""
    broker: str = "mosquitto"
    seed: int = 1

    @property
    def trim_s(self) -> float:
        """At both ends: until every publisher has sent once, and what that sets off is done."""
        return round(1 / self.rate + SETTLE_S, 3)

    @property
    def duration_s(self) -> float:
        """Of a measurement, at whatever rate."""
        return round(self.messages / self.rate + 2 * self.trim_s, 3)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the four contenders are compared in."""

    locality: int
    topics: int
    payload_bytes: int = PAYLOADS[0]
    stress: bool = False

    @property
    def name(self) -> str:
        payload = "" if self.payload_bytes == PAYLOADS[0] else f"-p{self.payload_bytes}"
        return f"l{self.locality}-t{self.topics}{payload}{'-stress' if self.stress else ''}"

    @property
    def figures(self) -> tuple[str, ...]:
        """What of the paper's is drawn from it."""
        short, middle = self.payload_bytes == PAYLOADS[0], self.locality == 50
        return tuple(
            name
            for name, needs in (
                ("fig6", short and not self.stress),
                ("fig7", short and not self.stress),
                ("fig8", middle and self.topics == TOPICS[-1]),
                ("fig9", short and middle),
                ("table2", self.repairs),
            )
            if needs
        )

    @property
    def repairs(self) -> bool:
        """Whether a node is killed after its measurements."""
        return self == Setting(50, TOPICS[0])

    @property
    def repetitions(self) -> int:
        if self.stress and self.payload_bytes != PAYLOADS[0]:
            return 1  # beyond the paper, and saturated in any round
        of_paper = self == Setting(50, self.topics)
        return PAPER_REPETITIONS if of_paper else REPETITIONS


@dataclass(frozen=True, slots=True)
class Experiment:
    """One contender in one setting, measured once in each round."""

    setting: Setting
    contender: Contender

    @property
    def name(self) -> str:
        return f"{self.setting.name}-{self.contender.key}"

    def run(self, round_number: int) -> str:
        """Its name in the log."""
        return f"{self.name}-{round_number}"

    def labels(self, parameters: Parameters, round_number: int) -> dict[str, str]:
        """What its runs are labeled with in the log."""
        setting = self.setting
        used = places(parameters, setting, round_number)
        return {
            "experiment": self.name,
            "contender": self.contender.key,
            "algorithm": self.contender.algorithm,
            "broker": parameters.broker,
            "locality": str(setting.locality),
            "topics": str(setting.topics),
            "payload_bytes": str(setting.payload_bytes),
            "stress": str(setting.stress).lower(),
            "round": str(round_number),
            "topics_used": str(len({place.topic for place in used})),
            "member_sets": str(len(member_sets(used))),
        }


def settings(*, quick: bool) -> list[Setting]:
    """All of them, in the order in which they are measured."""
    topics = (TOPICS[0], TOPICS[-1]) if quick else TOPICS
    made = [Setting(locality, number) for locality in (50, 0, 100) for number in topics]
    if quick:
        made.append(Setting(50, TOPICS[1]))  # whether something is linear takes a third point
    made += [Setting(50, TOPICS[-1], payload) for payload in PAYLOADS[1:]]
    made += [Setting(50, number, stress=True) for number in topics]
    if not quick:
        made += [Setting(50, TOPICS[-1], payload, stress=True) for payload in PAYLOADS[1:]]
    return made


def experiments(*, quick: bool) -> list[Experiment]:
    """All of them; the contenders of one setting follow each other."""
    return [
        Experiment(setting, contender)
        for setting in settings(quick=quick)
        for contender in CONTENDERS.values()
    ]


def choose(known: Sequence[Experiment], only: Iterable[str]) -> list[Experiment]:
    """Those named in `only`, by themselves, their setting or a figure; all if that is empty.

    Raises `ReproduceError` for other names.
    """
    wanted = set(only)
    if not wanted:
        return list(known)

    def called(experiment: Experiment) -> set[str]:
        return {experiment.name, experiment.setting.name, *experiment.setting.figures}

    if unknown := sorted(wanted - {name for each in known for name in called(each)}):
        figures = dict.fromkeys(name for each in known for name in each.setting.figures)
        among = dict.fromkeys(each.setting.name for each in known)
        raise ReproduceError(
            f"there is no experiment {', '.join(unknown)}; there are {', '.join(sorted(figures))}, "
            f"the settings {', '.join(among)}, and each of these with one of "
            f"{', '.join(f'-{key}' for key in CONTENDERS)}"
        )
    return [each for each in known if called(each) & wanted]


def check_broker(broker: str) -> None:
    """Raises `ReproduceError` for an unknown one, `BrokerMissing` for one that is not installed."""
    if broker not in names():
        raise ReproduceError(f"there is no broker {broker}; there are {', '.join(names())}")
    if (missing := broker_class(broker).missing()) is not None:
        raise missing


# ---- what is drawn by lot ----------------------------------------------------------------


def places(parameters: Parameters, setting: Setting, round_number: int) -> tuple[Place, ...]:
    """Who publishes and subscribes what, where; the same for all payloads and rates."""
    rng = random.Random(
        f"{parameters.seed}/{round_number}/clients/{setting.locality}/{setting.topics}"
    )
    published = [_topic(rng.randrange(setting.topics)) for _ in range(parameters.publishers)]
    among = sorted(set(published))
    subscribed = [rng.choice(among) for _ in range(parameters.subscribers)]
    publishing, subscribing = _nodes(rng, setting.locality, len(published), len(subscribed))
    publishers = Counter(zip(publishing, published, strict=True))
    subscribers = Counter(zip(subscribing, subscribed, strict=True))
    return tuple(
        Place(
            node=node,
            topic=topic,
            publishers=publishers[node, topic],
            subscribers=subscribers[node, topic],
        )
        for node, topic in sorted(publishers.keys() | subscribers.keys())
    )


def _topic(number: int) -> str:
    return f"topic-tree/{number}"


def _nodes(
    rng: random.Random, locality: int, publishers: int, subscribers: int
) -> tuple[list[str], list[str]]:
    """The nodes of the publishers and those of the subscribers."""
    if locality == 50:
        return rng.choices(NODES, k=publishers), rng.choices(NODES, k=subscribers)
    one, other = rng.sample([node for node in NODES if node != ROOT], 2)
    return [one] * publishers, [one if locality == 100 else other] * subscribers


def member_sets(used: Iterable[Place]) -> set[frozenset[str]]:
    """The distinct sets of nodes that a topic concerns, of two nodes or more."""
    members: dict[str, set[str]] = {}
    for place in used:
        members.setdefault(place.topic, set()).add(place.node)
    return {frozenset(nodes) for nodes in members.values() if len(nodes) > 1}


def lines(parameters: Parameters, round_number: int) -> tuple[EmulatedLink, ...]:
    """The line between every two nodes: 10 Mbit/s and a delay from N(10 ms, 2.5 ms), one way."""
    rng = random.Random(f"{parameters.seed}/{round_number}/lines")
    return tuple(
        EmulatedLink(
            between=pair,
            delay_ms=round(max(LEAST_DELAY_MS, rng.gauss(DELAY_MS, DELAY_SIGMA_MS)), 3),
            mbit_s=MBIT_S,
        )
        for pair in combinations(NODES, 2)
    )


def scenario_of(
    parameters: Parameters, experiment: Experiment, round_number: int, *, multicast: bool = True
) -> Scenario:
    """What is run; without multicast the nodes are told of each other."""
    setting, contender = experiment.setting, experiment.contender
    options: dict[str, Any] = {"alpha": 0, "beta": 0, **contender.options}
    return Scenario(
        scenario=Overview(
            name=experiment.name,
            description=f"{contender.name}, {setting.locality} % locality, {setting.topics} topics",
            duration_s=parameters.duration_s,
            trim_s=parameters.trim_s,
        ),
        node=tuple(_scenario_nodes(parameters.broker, multicast)),
        cooperation=Cooperation(algorithm=contender.algorithm, **options),
        discovery=FabricDiscovery(group=Address(GROUP, 0) if multicast else None),
        load=Load(
            rate=parameters.stress_rate if setting.stress else parameters.rate,
            payload_bytes=setting.payload_bytes,
        ),
        place=places(parameters, setting, round_number),
        emulation=Emulation(link=lines(parameters, round_number)),
    )


def _scenario_nodes(broker: str, multicast: bool) -> Iterator[ScenarioNode]:
    for number, node in enumerate(NODES):
        yield ScenarioNode(id=node, broker=broker, peers=() if multicast else NODES[:number])
