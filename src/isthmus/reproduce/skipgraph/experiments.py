"""All experiments of the thesis as tasks: which points there are, and what each one takes.

A *task* does some points together that share what is drawn or built, or one part of them.  It is a
function of its points, its part and the seed, so any worker can do it (`simulate.spread`).

Sizes: `THESIS` has the thesis's; beyond it the same curves go on with 1,000,000, 10,000,000 and
100,000,000 nodes (`Extent.up_to`).  What needs all nodes at once ends earlier: Scribe's curves with
`MAX_WHOLE` nodes, the tables of Fig. 3.14 with `MAX_KEYS` keys.

`--quick` has a tenth of the nodes where that saves much: paths, tables and growth; what the thesis
says of 100,000 nodes there is *not measured* then.

What a task takes was measured on one core; it only says which tasks begin first.  Bytes are upper
bounds, for the check before the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Final

from isthmus.errors import ReproduceError
from isthmus.reproduce.skipgraph import growth, load, paths, routing, storage
from isthmus.reproduce.skipgraph.points import Experiment, Method, Point
from isthmus.sim.bulk.memory import BYTES_PER_NODE
from isthmus.sim.bulk.patterns import PATTERNS, Pattern, portions
from isthmus.simulate.tallies import Counted

__all__ = ["FIGURES", "LARGEST", "Extent", "Task", "chosen_figures", "tasks"]

THESIS: Final = 100_000
LARGEST: Final = (THESIS, 1_000_000, 10_000_000, 100_000_000)
"""What `up_to` can be."""
ROUNDS: Final = 5
"""Of §3.4.1, and of §3.4.3 here."""
MAX_WHOLE: Final = 10_000_000
"""Nodes of a DHT; it cannot be worked off in portions."""
MAX_KEYS: Final = 10_000_000
"""Of the networks of Fig. 3.14, which are not worked off in portions."""
PORTION_BYTES: Final = 300 << 20
"""A portion of topics with its tables and frontier."""

Kernel = Callable[[Sequence[Point], int, int], Iterator[Counted]]

KERNELS: Final[Mapping[tuple[Experiment, Method], Kernel]] = {
    ("messages", "proposed"): paths.messages_proposed,
    ("messages", "scribe"): paths.messages_scribe,
    ("paths", "proposed"): paths.paths_whole,
    ("paths", "scribe"): paths.paths_scribe,
    ("load", "proposed"): load.load_proposed,
    ("load", "scribe"): load.load_scribe,
    ("tables", "proposed"): storage.tables_proposed,
    ("tables", "scribe"): storage.tables_scribe,
    ("shares", "proposed"): storage.shares_proposed,
    ("shares", "scribe"): storage.shares_scribe,
    ("depths", "mrf"): routing.depths,
    ("depths", "sfb"): routing.depths,
    ("assignment", "intensive"): routing.assignment,
    ("assignment", "extensive"): routing.assignment,
    ("assignment", "approximate"): routing.assignment,
    ("growth", "proposed"): growth.growth_proposed,
    ("growth", "scribe"): growth.growth_scribe,
    ("growth", "bayeux"): growth.growth_bayeux,
    ("growth", "can-mc"): growth.growth_can_mc,
}

FIGURES: Final[Mapping[str, Experiment]] = {
    "table3.1": "growth",
    "fig3.7": "messages",
    "fig3.8": "messages",
    "fig3.9": "paths",
    "fig3.10": "paths",
    "fig3.11": "paths",
    "fig3.12": "load",
    "fig3.13": "load",
    "table3.3": "load",
    "fig3.14": "tables",
    "fig3.15": "shares",
    "fig4.5": "depths",
    "fig4.6": "depths",
    "fig4.9": "assignment",
}
"""What each figure is drawn from."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How large, and how often."""

    thesis: int = THESIS
    """The most nodes of the thesis's own networks."""
    up_to: int = THESIS
    """The most nodes of all."""
    rounds: int = ROUNDS

    @classmethod
    def of(cls, *, quick: bool, up_to: int) -> Extent:
        """Raises `ReproduceError` for sizes that there are not."""
        if quick:
            return cls(THESIS // 10, THESIS // 10, 2)
        if up_to not in LARGEST:
            sizes = ", ".join(f"{size:,}" for size in LARGEST)
            raise ReproduceError(f"up to {up_to:,} nodes: choose one of {sizes}")
        return cls(up_to=up_to)

    def networks(self) -> list[int]:
        """1,000, 10,000 …"""
        sizes = [1_000, 10_000, *LARGEST]
        return [size for size in sizes if size <= self.thesis or THESIS < size <= self.up_to]

    def large(self) -> list[int]:
        """The thesis's largest, and those beyond."""
        return [size for size in self.networks() if size >= self.thesis]


@dataclass(frozen=True, slots=True)
class Task:
    """Some points, or a part of them."""

    points: tuple[Point, ...]
    seed: int
    part: int = 0
    cost: float = 0.05
    memory_bytes: int = PORTION_BYTES
    in_portions: bool = False

    @property
    def pieces(self) -> set[tuple[str, int]]:
        """What it counts: a part of each of its runs."""
        return {(point.run, self.part) for point in self.points}

    def counted(self) -> Iterator[Counted]:
        first = self.points[0]
        kernel = KERNELS[first.experiment, first.method]
        if self.in_portions:
            kernel = paths.paths_portion
        return kernel(self.points, self.part, self.seed)


def chosen_figures(only: Sequence[str]) -> list[str]:
    """Those named, or all; raises `ReproduceError`."""
    for name in only:
        if name not in FIGURES:
            raise ReproduceError(f"there is no {name!r}; there are {', '.join(FIGURES)}")
    return [name for name in FIGURES if not only or name in only]


def tasks(experiment: Experiment, extent: Extent, seed: int) -> list[Task]:
    """All of an experiment."""
    return list(_MAKERS[experiment](extent, seed))


def _dht_bytes(nodes: int, members: int) -> int:
    """The lists of two levels with their rings, and the ways of so many members (measured)."""
    return PORTION_BYTES + 2 * BYTES_PER_NODE * nodes + 150 * members


def _messages(extent: Extent, seed: int) -> Iterator[Task]:
    for nodes in (THESIS, *(size for size in extent.large() if THESIS < size <= MAX_WHOLE)):
        for method, bytes_ in (
            ("proposed", PORTION_BYTES),
            ("scribe", _dht_bytes(nodes, paths.WHOLE_NODES)),
        ):
            points = tuple(
                Point("messages", method, nodes, publishers, subscribers)  # type: ignore[arg-type]
                for publishers in (10, 100)
                for subscribers in (1000, 100, 10, 0)
            )
            cost = 0.5 if method == "proposed" else _build_s(nodes)
            for number in range(extent.rounds):
                yield Task(points, seed, number, cost, bytes_)


def _build_s(nodes: int) -> float:
    """To make all lists once."""
    return nodes * log2(nodes) * 3e-8


def _paths(extent: Extent, seed: int) -> Iterator[Task]:
    for nodes in extent.networks():
        sizes = sorted({pattern.size for pattern in PATTERNS.values()})
        for size in sizes:
            points = tuple(
                Point(
                    "paths",
                    "proposed",
                    nodes,
                    pattern.publishers,
                    pattern.subscribers,
                    pattern=pattern.name,
                )
                for pattern in PATTERNS.values()
                if pattern.size == size
            )
            if nodes <= paths.WHOLE_NODES:
                rounds = max(1, paths.ROUND_NODES // nodes)
                cost = 0.6 + 0.017 * rounds if size == 1000 else 0.08 + 0.007 * rounds
                yield Task(points, seed, cost=cost)
            else:
                cost = 0.45 if size == 1000 else 0.07
                for part in range(len(list(portions(size, nodes)))):
                    yield Task(points, seed, part, cost, in_portions=True)
        for pattern in PATTERNS.values() if nodes <= MAX_WHOLE else ():
            point = Point(
                "paths",
                "scribe",
                nodes,
                pattern.publishers,
                pattern.subscribers,
                pattern=pattern.name,
            )
            members = min(nodes, paths.SAMPLE_NODES)
            bytes_ = _dht_bytes(nodes, members)
            yield Task((point,), seed, cost=_scribe_s(nodes, pattern), memory_bytes=bytes_)


def _scribe_s(nodes: int, pattern: Pattern) -> float:
    """The lists, the ways of all subscribers, and the topics."""
    rounds = max(1, paths.ROUND_NODES // nodes)
    topics = rounds * (min(nodes, paths.SAMPLE_NODES) // pattern.size)
    # What does not fit into the processor's caches takes several times as long.
    subscriber_s = 3e-6 if nodes <= THESIS else 8e-6 if nodes <= 1_000_000 else 5e-5
    build_s = _build_s(nodes) if nodes > 1_000_000 else _build_s(nodes) / 2
    return topics * (pattern.subscribers * subscriber_s + 3.5e-5) + build_s + 0.005 * rounds


def _load(extent: Extent, seed: int) -> Iterator[Task]:
    methods: tuple[Method, ...] = ("proposed", "scribe")
    for method in methods:
        point = Point("load", method, 100 * 1001, 1, 1000, topics=100)
        for number in range(extent.rounds):
            yield Task((point,), seed, number, cost=0.5)


def _tables(extent: Extent, seed: int) -> Iterator[Task]:
    methods: tuple[Method, ...] = ("proposed", "scribe")
    for nodes in extent.large():
        for topics in (2, 4, 6, 8, 10) if nodes <= THESIS else (2, 6, 10):
            for method in methods:
                keys = nodes * topics
                if keys > MAX_KEYS:
                    continue
                bytes_ = _dht_bytes(nodes, nodes * topics // 2) + 2 * BYTES_PER_NODE * keys
                point = Point("tables", method, nodes, topics=topics)
                yield Task((point,), seed, cost=_build_s(keys) * 4, memory_bytes=bytes_)


def _shares(extent: Extent, seed: int) -> Iterator[Task]:
    methods: tuple[Method, ...] = ("proposed", "scribe")
    for method in methods:
        yield Task((Point("shares", method, 1000, topics=1000),), seed, cost=0.6)


def _depths(extent: Extent, seed: int) -> Iterator[Task]:
    beyond = [20] if extent.up_to >= 1_000_000 else []
    beyond += [23] if extent.up_to >= 10_000_000 else []
    methods: tuple[Method, ...] = ("mrf", "sfb")
    for method in methods:
        for digits in (*range(18), *beyond):
            nodes = 1 << digits
            bytes_ = PORTION_BYTES + nodes * (8 * digits + 100)
            point = Point("depths", method, nodes)
            yield Task((point,), seed, cost=nodes * 2e-6, memory_bytes=bytes_)


def _assignment(extent: Extent, seed: int) -> Iterator[Task]:
    methods: tuple[Method, ...] = ("intensive", "extensive", "approximate")
    for subscribers in (1_000_000, 5_000_000, 10_000_000, 20_000_000):
        for method in methods:
            point = Point("assignment", method, 10_000, subscribers=subscribers)
            yield Task((point,), seed, cost=0.5)


def _growth(extent: Extent, seed: int) -> Iterator[Task]:
    networks = [nodes for nodes in extent.networks() if nodes <= extent.thesis]
    members = [10, 32, 100, 316, 1000, *([3162] if extent.thesis == THESIS else [])]
    for nodes in networks:
        for size in members if nodes == networks[-1] else [100]:
            publishers = max(1, size // 10)
            for method, dimensions in (
                ("proposed", 0),
                ("scribe", 0),
                ("bayeux", 0),
                ("can-mc", 2),
                ("can-mc", 3),
            ):
                point = Point(
                    "growth",
                    method,  # type: ignore[arg-type]
                    nodes,
                    publishers,
                    size - publishers,
                    growth.topics_of(nodes, size),
                    dimensions,
                )
                cost = 2e-7 * size**2 * dimensions if dimensions else nodes * 2e-5
                bytes_ = _dht_bytes(nodes, 2 * nodes) + 32 * size**2
                yield Task((point,), seed, cost=cost, memory_bytes=bytes_)


_MAKERS: Final[Mapping[Experiment, Callable[[Extent, int], Iterator[Task]]]] = {
    "messages": _messages,
    "paths": _paths,
    "load": _load,
    "tables": _tables,
    "shares": _shares,
    "depths": _depths,
    "assignment": _assignment,
    "growth": _growth,
}
