"""What is measured: systems, sizes and cases, in the simulator and live, and the delay experiment.

    sim-sf-k3              System 2 by SF, 64 cells, in the simulator
    sim-sf-z-tree-k3       the same with nodes linked as a tree of cells, not a star
    sim-one-hop-case-C     as the paper's case C: as many publishers for a subscriber, k as below
    live-geo-k1            real brokers and processes
    delay-loopback         the prototype's experiment

N_P and N_S are small: in the equations everything is proportional to them.  The cases have the
paper's ratio of publishers to subscribers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from isthmus.errors import ReproduceError
from isthmus.reproduce.geo.delay import LOOPBACK, NAGLE, WAYS, Network
from isthmus.reproduce.geo.expected import Shape, Way
from isthmus.reproduce.geo.model import Parameters, System

__all__ = [
    "CASE_SIZES",
    "CONTENDERS",
    "Contender",
    "ContenderOf",
    "DelayPoint",
    "Point",
    "choose",
    "delay_points",
    "points",
]

Contender = Literal["pf", "sf", "one-hop", "geo"]


@dataclass(frozen=True, slots=True)
class ContenderOf:
    """One way to be one of the paper's systems."""

    system: System
    way: Way
    name: str


CONTENDERS: Final = MappingProxyType[Contender, ContenderOf](
    {
        "pf": ContenderOf("system-1", "broadcast", "System 1 (PF)"),
        "one-hop": ContenderOf("system-2", "interest-one-hop", "System 2 (one hop)"),
        "sf": ContenderOf("system-2", "interest-tree", "System 2 (SF on a tree)"),
        "geo": ContenderOf("proposed", "gateway", "Proposed (geo)"),
    }
)
SMALL: Final = (2, 5)
"""N_P and N_S by k."""
CASE_SIZES: Final = MappingProxyType({"A": (50, 5), "B": (5, 5), "C": (2, 20)})
"""In each of the paper's cases."""
LARGEST_K: Final = 4
QUICK_K: Final = 3
LIVE_K: Final = (1, 2)
"""With k = 3 there are 448 clients.  Tried: their CONNECTs find no answer, probably since paho-mqtt
can wait, with ``select``, for no descriptor over 1,024, and with the taps' sockets there are more.
"""
TIMES: Final = 100
QUICK_TIMES: Final = 30


@dataclass(frozen=True, slots=True)
class Point:
    """One system of one size, measured once."""

    where: Literal["sim", "live"]
    contender: Contender
    of: Parameters
    shape: Shape = "star"
    case: str = ""

    @property
    def name(self) -> str:
        shape = "" if self.shape == "star" else f"-{self.shape}"
        size = f"case-{self.case}" if self.case else f"k{self.of.k}"
        return f"{self.where}-{self.contender}{shape}-{size}"

    @property
    def forecast_s(self) -> float:
        """About how long it takes on one core."""
        of, cells = self.of, self.of.areas
        if self.where == "live":
            return 7.0 + 1.3 * cells
        packets = 3 * cells * of.publishers * (cells if self.contender == "pf" else 2)
        packets += cells * of.subscribers * (2 * cells if self.contender == "sf" else 4)
        return 0.2 + packets / 15_000 + cells * cells / 6_000


@dataclass(frozen=True, slots=True)
class DelayPoint:
    """The prototype's experiment on one network."""

    network: Network
    times: int

    @property
    def name(self) -> str:
        words = self.network.name.replace(",", "").replace("'s", "").lower()
        return "delay-" + "-".join(words.split())

    @property
    def forecast_s(self) -> float:
        each_s = 0.02 if not self.network.direct_s else 0.65
        return 3.0 + self.times * (each_s + 0.15 * self.network.nagle)


def points(*, quick: bool) -> list[Point]:
    """All of them, in the order in which they are measured."""
    most = QUICK_K if quick else LARGEST_K
    made = [
        Point("sim", contender, Parameters(k, *SMALL))
        for k in range(1, most + 1)
        for contender in CONTENDERS
    ]
    made += [
        Point("sim", contender, Parameters(k, *SMALL), "z-tree")
        for k in range(2, most + 1)
        for contender in ("pf", "sf")
        if contender == "sf" or k == 2
    ]
    made += [
        Point("sim", contender, Parameters(2 if quick else 3, *size), case=case)
        for case, size in CASE_SIZES.items()
        for contender in CONTENDERS
    ]
    made += [
        Point("live", contender, Parameters(k, *SMALL))
        for k in ((1,) if quick else LIVE_K)
        for contender in ("pf", "sf", "geo")
    ]
    return made


def delay_points(*, quick: bool) -> list[DelayPoint]:
    """All networks of the delay experiment."""
    if not quick:
        return [DelayPoint(network, TIMES) for network in WAYS]
    return [
        DelayPoint(LOOPBACK, TIMES),
        *(DelayPoint(network, QUICK_TIMES) for network in (NAGLE, WAYS[2])),
    ]


def choose(
    known: Sequence[Point], delays: Sequence[DelayPoint], only: Iterable[str]
) -> tuple[list[Point], list[DelayPoint]]:
    """Those named in `only`, by themselves or as ``sim``, ``live`` or ``delay``; all without.

    Raises `ReproduceError` for other names.
    """
    wanted = set(only)
    if not wanted:
        return list(known), list(delays)
    groups = {"sim", "live", "delay"}
    names = {*(each.name for each in known), *(each.name for each in delays)}
    if unknown := sorted(wanted - names - groups):
        raise ReproduceError(
            f"there is no {', '.join(unknown)}; there are {', '.join(sorted(groups))} and "
            f"{', '.join(sorted(names))}"
        )
    return (
        [each for each in known if {each.where, each.name} & wanted],
        [each for each in delays if {"delay", each.name} & wanted],
    )
