"""Messages and path lengths, proposed method and Scribe (thesis §3.4.1 and §3.4.2, Fig. 3.7-3.11).

Networks of the thesis's sizes are simulated whole: all nodes are in one graph, whatever their
topics, so that the number of nodes could make a difference.  Larger ones are worked off in portions
of topics (`sim.bulk.patterns`), of which tests show that they are the same.

Small networks have few topics, hence few paths: of those, several are simulated, so that all sizes
together have `ROUND_NODES` nodes or more.

Scribe's trees need all nodes of the network, but not all topics: of networks beyond `SAMPLE_NODES`
so many nodes' topics are simulated, drawn from all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from isthmus.reproduce.skipgraph.points import Point, drawn_members, of_point, seed_of
from isthmus.sim.bulk.graph import skip_graph
from isthmus.sim.bulk.levels import Ints
from isthmus.sim.bulk.patterns import PATTERNS, PathLengths, portion, portions
from isthmus.sim.bulk.scribe import scribe_trees
from isthmus.sim.bulk.topics import equal_topics
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.vectors import drawn_vectors
from isthmus.simulate.tallies import Counted, Tally, amount

__all__ = [
    "ROUND_NODES",
    "SAMPLE_NODES",
    "WHOLE_NODES",
    "messages_proposed",
    "messages_scribe",
    "paths_portion",
    "paths_scribe",
    "paths_whole",
]

WHOLE_NODES: Final = 100_000
"""Networks of so many nodes or fewer are simulated whole."""
ROUND_NODES: Final = 100_000
SAMPLE_NODES: Final = 200_000
BY_HOPS: Final = "alpha"
"""The pattern of Fig. 3.11, of which every path's length is kept in any network."""


# ---- §3.4.1 ------------------------------------------------------------------------------


def messages_proposed(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """Every publisher publishes once, after so many subscribers have left."""
    (nodes,) = {point.nodes for point in points}
    most = max(point.subscribers for point in points)
    vectors = drawn_vectors(
        seed_of(seed, "messages", "proposed", nodes, part), 0, min(nodes, WHOLE_NODES)
    )
    everybody = np.arange(len(vectors))
    for point in points:
        # In the order of keys: the topic, then whoever is idle, those who have left among them.
        members = np.concatenate(
            (everybody[: point.subscribers], everybody[most : most + point.publishers])
        )
        order = np.concatenate((members, np.delete(everybody, members)))
        topic = equal_topics(1, point.subscribers, point.publishers)
        publishers, of_topic = topic.publishers()
        awake = ~topic.silent()[publishers]
        publishers, of_topic = publishers[awake], of_topic[awake]
        found = spread(
            skip_graph(vectors[order]),
            publishers,
            topic.starts[of_topic],
            topic.ends[of_topic],
            "mrf",
        )
        yield of_point(point, part, amount("messages", point.publishers, found.messages))


def messages_scribe(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """The same nodes are subscribers until they leave."""
    (nodes,) = {point.nodes for point in points}
    most = max(point.subscribers for point in points)
    drawn = seed_of(seed, "messages", "scribe", nodes, part)
    everybody = drawn_members(drawn, nodes, most + max(point.publishers for point in points))
    # The trees of all numbers of subscribers at once: several topics of one id.
    sizes = sorted({point.subscribers for point in points} - {0})
    trees = scribe_trees(
        drawn_vectors(drawn, 0, nodes),
        np.concatenate([everybody[:size] for size in sizes]),
        np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        np.repeat(drawn_vectors(drawn + 1, 0, 1), len(sizes)),
    )
    links = {0: 0, **dict(zip(sizes, trees.links.tolist(), strict=True))}
    for point in points:
        publishers = everybody[most : most + point.publishers]
        away = int((publishers != trees.roots[0]).sum())
        sent = len(publishers) * links[point.subscribers] + away
        yield of_point(point, part, amount("messages", point.publishers, sent))


# ---- §3.4.2 ------------------------------------------------------------------------------


def paths_whole(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """All topics of networks that are one graph each; `points` have topics of the same size."""
    (nodes,) = {point.nodes for point in points}
    (size,) = {point.publishers + point.subscribers for point in points}
    found = [PathLengths() for _ in points]
    for number in range(max(1, ROUND_NODES // nodes)):
        drawn = seed_of(seed, "paths", "proposed", nodes, size, number)
        graph = skip_graph(drawn_vectors(drawn, 0, nodes))
        for index, point in enumerate(points):
            topics = equal_topics(nodes // size, point.subscribers, point.publishers)
            publishers, of_topic = topics.publishers()
            each = spread(graph, publishers, topics.starts[of_topic], topics.ends[of_topic], "mrf")
            found[index] += PathLengths(
                len(publishers), each.messages, each.deliveries, each.hops, each.at_hops
            )
    for point, lengths in zip(points, found, strict=True):
        for tally in _tallies(lengths):
            yield of_point(point, part, tally)


def paths_portion(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """One portion of the topics of a network that is too large to be kept whole."""
    (nodes,) = {point.nodes for point in points}
    (size,) = {point.publishers + point.subscribers for point in points}
    drawn = seed_of(seed, "paths", "proposed", nodes, size, 0)
    topics = list(portions(size, nodes))[part]
    for by_hops in (False, True):
        some = [point for point in points if (point.pattern == BY_HOPS) is by_hops]
        patterns = [PATTERNS[point.pattern] for point in some]
        if patterns:
            lengths = portion(patterns, topics, drawn, by_hops=by_hops)
            for point in some:
                for tally in _tallies(lengths[point.pattern]):
                    yield of_point(point, part, tally)


def paths_scribe(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """All topics, or a sample of them."""
    (point,) = points
    size = point.publishers + point.subscribers
    count = min(point.nodes, SAMPLE_NODES) // size
    found = PathLengths()
    for number in range(max(1, ROUND_NODES // point.nodes)):
        drawn = seed_of(seed, "paths", "scribe", point.nodes, size, number)
        members = drawn_members(drawn, point.nodes, count * size).reshape(count, size)
        found += scribe_paths(
            point.nodes,
            drawn,
            members[:, : point.subscribers],
            members[:, point.subscribers :],
        )
    for tally in _tallies(found):
        yield of_point(point, part, tally)


def scribe_paths(nodes: int, seed: int, subscribers: Ints, publishers: Ints) -> PathLengths:
    """Of topics whose members are given, a row for each topic."""
    topics = np.arange(len(subscribers), dtype=np.int32)
    of_subscriber = np.repeat(topics, subscribers.shape[1])
    of_publisher = np.repeat(topics, publishers.shape[1])
    trees = scribe_trees(
        drawn_vectors(seed, 0, nodes),
        subscribers.ravel(),
        of_subscriber,
        drawn_vectors(seed + 1, 0, len(topics)),
    )
    at_hops = trees.hops(publishers.ravel(), of_publisher, of_subscriber)
    return PathLengths(
        publishers.size,
        int(trees.messages(publishers.ravel(), of_publisher).sum()),
        int(at_hops.sum()),
        int((at_hops * np.arange(len(at_hops))).sum()),
        at_hops,
    )


def _tallies(lengths: PathLengths) -> Iterator[Tally]:
    yield amount("messages", lengths.publishes, lengths.messages)
    if not len(lengths.at_hops):
        yield amount("hops", lengths.pairs, lengths.hops)
    for hops, pairs in enumerate(lengths.at_hops.tolist()):
        if pairs:
            yield Tally("hops", None, hops, pairs, hops * pairs)
