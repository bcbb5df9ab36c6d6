"""How path length and storage grow, of four methods (thesis §3.2.2, Table 3.1).

Every topic has a tenth publishers, nobody is both; nodes are members of `MEMBERSHIPS` topics on
average.  Paths are those from each publisher to each subscriber of its topic.  Of large networks
not all topics are simulated for paths: `PATH_NODES` members.

Storage is what Table 3.1 counts:

* proposed: neighbors of all virtual nodes;
* Scribe: children in all trees, and each publisher's root; Bayeux: the subscribers that each node
  on the ways to them has noted, and each publisher's root; neither the DHT's own tables;
* CAN-MC: neighbors in the small CANs, and in the CAN of everybody.  The latter is made of
  `CAN_NODES` nodes at most: a node has as many neighbors in a larger one.

Flooding by the rules of §3.1.1 can miss a member: who is first reached along a lower dimension
drops what comes along a higher one, and does not send it on there.  `missed` says how many pairs.

`idle_messages` are those of all publishers of a topic that nobody subscribes to, one publish each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from isthmus.reproduce.skipgraph.points import Point, drawn_members, of_point, seed_of
from isthmus.sim.bulk.bayeux import bayeux_paths
from isthmus.sim.bulk.can import can_of, flood
from isthmus.sim.bulk.graph import skip_graph
from isthmus.sim.bulk.levels import Ints, table_sizes
from isthmus.sim.bulk.scribe import scribe_trees
from isthmus.sim.bulk.topics import Topics, equal_topics
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.vectors import drawn_vectors
from isthmus.sim.bulk.visits import Counts
from isthmus.simulate.tallies import Counted, Tally, amount

__all__ = [
    "growth_bayeux",
    "growth_can_mc",
    "growth_proposed",
    "growth_scribe",
    "topics_of",
]

MEMBERSHIPS: Final = 2
"""Topics of each node, on average."""
PATH_NODES: Final = 20_000
CAN_NODES: Final = 1_000
CAN_TOPICS: Final = 6
"""Small CANs that are made and flooded, by every publisher up to `CAN_PUBLISHERS`."""
CAN_PUBLISHERS: Final = 10


def growth_proposed(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    (point,) = points
    drawn, owners, _ = _drawn(point, part, seed)
    vectors = drawn_vectors(drawn, 0, point.nodes)[owners]
    entries = int(table_sizes(vectors, owners=owners).sum(dtype=np.int64))
    some = equal_topics(_path_topics(point), point.subscribers, point.publishers)
    graph = skip_graph(vectors[: some.size], blocks=some.blocks)
    publishers, of_topic = some.publishers()
    ranges = some.starts[of_topic], some.ends[of_topic]
    yield from _hops(point, part, spread(graph, publishers, *ranges, "mrf").at_hops)
    yield of_point(point, part, amount("entries", point.nodes, entries))
    silent = Topics.of([0], [point.publishers]).silent()
    awake = int((~silent).sum())
    yield of_point(point, part, amount("idle_messages", point.publishers, awake))


def growth_scribe(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    (point,) = points
    drawn, owners, topics = _drawn(point, part, seed)
    subscribers, of_subscriber, publishers, of_publisher = _roles(topics, owners)
    trees = scribe_trees(
        drawn_vectors(drawn, 0, point.nodes),
        subscribers,
        of_subscriber,
        drawn_vectors(drawn + 1, 0, len(topics)),
    )
    yield from _hops(point, part, trees.hops(publishers, of_publisher, of_subscriber))
    entries = int(trees.links.sum()) + len(publishers)
    yield of_point(point, part, amount("entries", point.nodes, entries))
    yield of_point(point, part, _to_root(point, publishers, of_publisher, trees.roots))


def growth_bayeux(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    (point,) = points
    drawn, owners, topics = _drawn(point, part, seed)
    subscribers, of_subscriber, publishers, of_publisher = _roles(topics, owners)
    paths = bayeux_paths(
        drawn_vectors(drawn, 0, point.nodes),
        subscribers,
        of_subscriber,
        drawn_vectors(drawn + 1, 0, len(topics)),
    )
    away = publishers != paths.roots[of_publisher]
    to_root = np.bincount(of_publisher[away], minlength=len(topics))
    at_root = np.bincount(of_publisher[~away], minlength=len(topics))
    at_hops = np.zeros(int(paths.depth.max()) + 2, np.int64)
    np.add.at(at_hops, paths.depth, at_root[of_subscriber])
    np.add.at(at_hops, paths.depth + 1, to_root[of_subscriber])
    yield from _hops(point, part, at_hops)
    entries = int(paths.entries.sum()) + len(publishers)
    yield of_point(point, part, amount("entries", point.nodes, entries))
    yield of_point(point, part, _to_root(point, publishers, of_publisher, paths.roots))


def growth_can_mc(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    (point,) = points
    members = point.publishers + point.subscribers
    rng = random.Random(seed_of(seed, "growth", "can-mc", point.run, part))
    at_hops = np.zeros(members + 1, np.int64)
    own = pairs = 0
    for _ in range(CAN_TOPICS):
        can = can_of(members, point.dimensions, rng)
        own += can.entries
        for publisher in range(min(point.publishers, CAN_PUBLISHERS)):
            reached = flood(can, publisher).hops[point.publishers :]
            np.add.at(at_hops, reached[reached >= 0], 1)
            pairs += len(reached)
    yield from _hops(point, part, at_hops)
    missed = pairs - int(at_hops.sum())
    yield of_point(point, part, amount("missed", pairs, missed))
    everybody = can_of(min(point.nodes, CAN_NODES), point.dimensions, rng)
    entries = own / CAN_TOPICS * point.topics
    entries += everybody.entries / len(everybody.neighbors) * point.nodes
    yield of_point(point, part, amount("entries", point.nodes, round(entries)))
    alone = can_of(point.publishers, point.dimensions, rng)
    idle = sum(flood(alone, publisher).messages for publisher in range(point.publishers))
    yield of_point(point, part, amount("idle_messages", point.publishers, idle))


def _drawn(point: Point, part: int, seed: int) -> tuple[int, Ints, Topics]:
    """Topics as blocks, and whose each virtual node is: all nodes, in any order, several times."""
    drawn = seed_of(seed, "growth", point.nodes, point.publishers, point.subscribers, part)
    topics = equal_topics(point.topics, point.subscribers, point.publishers)
    at_once = topics.size // MEMBERSHIPS
    owners = [
        drawn_members(seed_of(drawn, number), point.nodes, at_once) for number in range(MEMBERSHIPS)
    ]
    return drawn, np.concatenate(owners), topics


def topics_of(nodes: int, members: int) -> int:
    """So many that each node is in `MEMBERSHIPS` of them, but for a rest."""
    return MEMBERSHIPS * (nodes // members)


def _path_topics(point: Point) -> int:
    return min(point.topics, max(3, PATH_NODES // (point.publishers + point.subscribers)))


def _roles(topics: Topics, owners: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Subscribers and the topic of each, publishers and the topic of each."""
    publishers, of_publisher = topics.publishers()
    subscribed = np.ones(topics.size, bool)
    subscribed[publishers] = False
    return owners[subscribed], topics.blocks[subscribed], owners[publishers], of_publisher


def _to_root(point: Point, publishers: Ints, of_publisher: Ints, roots: Ints) -> Tally:
    """They cannot know that nobody listens: one hop each, unless they are the root themselves."""
    sent = int((publishers != roots[of_publisher]).sum())
    return amount("idle_messages", len(publishers), sent)


def _hops(point: Point, part: int, at_hops: Counts) -> Iterator[Counted]:
    for hops, pairs in enumerate(at_hops.tolist()):
        if pairs:
            yield of_point(point, part, Tally("hops", None, hops, pairs, hops * pairs))
