"""How long paths are from publishers to subscribers: the patterns of Table 3.2 (thesis §3.4.2).

Every topic has the same size, and there are as many of them as there are nodes for.  Topics do not
depend on each other, so a network of any size is worked off in portions of whole topics, here or by
many workers: a portion is a function of the seed and of the topics that are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from isthmus.sim.bulk.graph import skip_graph
from isthmus.sim.bulk.topics import equal_topics
from isthmus.sim.bulk.totals import total_hops
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.vectors import drawn_vectors
from isthmus.sim.bulk.visits import Counts, StrategyName

__all__ = ["PATTERNS", "PathLengths", "Pattern", "path_lengths", "portion", "portions"]

PORTION_NODES: Final = 1 << 17
"""Small enough that the tables of a portion stay in the processor's cache, more or less."""


@dataclass(frozen=True, slots=True)
class Pattern:
    name: str
    publishers: int
    subscribers: int

    @property
    def size(self) -> int:
        return self.publishers + self.subscribers


PATTERNS: Final = {
    name: Pattern(name, publishers, subscribers)
    for name, publishers, subscribers in (
        ("alpha", 10, 990),
        ("beta", 500, 500),
        ("gamma", 990, 10),
        ("delta", 1, 9),
        ("epsilon", 5, 5),
        ("zeta", 9, 1),
    )
}
"""Table 3.2."""


@dataclass(frozen=True, slots=True)
class PathLengths:
    """Of all pairs of a publisher and a subscriber of its topic."""

    publishes: int = 0
    messages: int = 0
    pairs: int = 0
    hops: int = 0
    at_hops: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    """At index h: pairs that are h hops apart; empty where that was not asked for."""

    @property
    def mean(self) -> float:
        return self.hops / self.pairs if self.pairs else float("nan")

    @property
    def messages_per_publish(self) -> float:
        return self.messages / self.publishes if self.publishes else float("nan")

    def __add__(self, other: PathLengths) -> PathLengths:
        at_hops = np.zeros(max(len(self.at_hops), len(other.at_hops)), np.int64)
        at_hops[: len(self.at_hops)] += self.at_hops
        at_hops[: len(other.at_hops)] += other.at_hops
        return PathLengths(
            self.publishes + other.publishes,
            self.messages + other.messages,
            self.pairs + other.pairs,
            self.hops + other.hops,
            at_hops,
        )


def portions(size: int, nodes: int) -> Iterator[tuple[int, int]]:
    """First topic and the one after the last, for all topics of `size` that `nodes` make."""
    topics = nodes // size
    if not topics:
        raise ValueError(f"{nodes:,} nodes are no topic: one has {size:,} members")
    step = max(1, PORTION_NODES // size)
    for first in range(0, topics, step):
        yield first, min(first + step, topics)


def portion(
    patterns: Sequence[Pattern],
    topics: tuple[int, int],
    seed: int,
    strategy: StrategyName = "mrf",
    *,
    base: int = 2,
    by_hops: bool = False,
) -> dict[str, PathLengths]:
    """Of the topics from the one to before the other: each publisher publishes once.

    All patterns have topics of the same size: it is the same graph, in which others publish.
    """
    first, end = topics
    (size,) = {pattern.size for pattern in patterns}
    vectors = drawn_vectors(seed, first * size, end * size, base)
    graph = skip_graph(vectors, base, blocks=equal_topics(end - first, size, 0).blocks)
    lengths = {}
    for pattern in patterns:
        blocks = equal_topics(end - first, pattern.subscribers, pattern.publishers)
        publishers, of_topic = blocks.publishers()
        ranges = publishers, blocks.starts[of_topic], blocks.ends[of_topic]
        count = len(publishers)
        if by_hops:
            each = spread(graph, *ranges, strategy)
            lengths[pattern.name] = PathLengths(
                count, each.messages, each.deliveries, each.hops, each.at_hops
            )
        else:
            all_ = total_hops(graph, *ranges, strategy)
            lengths[pattern.name] = PathLengths(count, all_.messages, all_.deliveries, all_.hops)
    return lengths


def path_lengths(
    patterns: Sequence[Pattern],
    nodes: int,
    seed: int,
    strategy: StrategyName = "mrf",
    *,
    base: int = 2,
    by_hops: bool = False,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, PathLengths]:
    """Of all topics; `progress` is told how many nodes of how many are done.

    `by_hops` counts the pairs of each number of hops (Fig. 3.11), which takes longer.  `workers`
    are threads: arrays are worked on without Python's lock most of the time.
    """
    found = {pattern.name: PathLengths() for pattern in patterns}
    sizes = sorted({pattern.size for pattern in patterns})
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for number, size in enumerate(sizes):
            some = [pattern for pattern in patterns if pattern.size == size]
            parts = list(portions(size, nodes))
            one = partial(portion, some, seed=seed, strategy=strategy, base=base, by_hops=by_hops)
            for topics, lengths in zip(parts, pool.map(one, parts), strict=True):
                for name, each in lengths.items():
                    found[name] += each
                if progress is not None:
                    progress(number * nodes + topics[1] * size, len(sizes) * nodes)
    return found
