"""How large routing tables are, and whose (thesis §3.4.4, Fig. 3.14 and 3.15).

Fig. 3.14: half of the nodes publish on, the other half subscribe to so many topics each, drawn from
1,000.  Fig. 3.15: 1,000 nodes subscribe to 1, 2, … 1,000 topics, each to another number.

What is counted of a node:

* proposed: the neighbors of all its virtual nodes in all levels; not its own virtual nodes;
* Scribe: its neighbors in the DHT, which are rings here (`sim.bulk.numeric`), its children in every
  topic's tree, and the roots of the topics that it publishes on;
* without redundancy (`distinct_entries`): how many different nodes that are.  A child in a tree is
  a neighbor in the DHT, whatever the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from isthmus.reproduce.skipgraph.points import Point, drawn_members, of_point, seed_of
from isthmus.sim.bulk.levels import Ints, distinct_neighbors, each_once, level_lists, table_sizes
from isthmus.sim.bulk.scribe import scribe_trees
from isthmus.sim.bulk.vectors import Vectors, drawn_vectors
from isthmus.sim.bulk.visits import Counts
from isthmus.simulate.tallies import Counted, histogram

__all__ = [
    "DISTINCT_NODES",
    "TOPICS",
    "ring_tables",
    "shares_proposed",
    "shares_scribe",
    "tables_proposed",
    "tables_scribe",
]

TOPICS: Final = 1_000
DISTINCT_NODES: Final = 100_000
"""Different nodes are counted in networks of so many nodes or fewer."""


def tables_proposed(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    (point,) = points
    drawn = seed_of(seed, "tables", point.nodes, point.topics, part)
    topics = _drawn_topics(drawn, point.nodes, point.topics)
    owners = np.repeat(np.arange(point.nodes, dtype=np.int32), point.topics)
    order = _key_order(drawn, topics, owners % 2)  # the odd ones publish
    owners = owners[order]
    vectors = drawn_vectors(drawn, 0, point.nodes)[owners]
    entries = _per_owner(table_sizes(vectors, owners=owners), owners, point.nodes)
    for tally in histogram("entries", entries):
        yield of_point(point, part, tally)
    if point.nodes <= DISTINCT_NODES:
        for tally in histogram("distinct_entries", distinct_neighbors(vectors, owners)):
            yield of_point(point, part, tally)


def tables_scribe(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    (point,) = points
    drawn = seed_of(seed, "tables", point.nodes, point.topics, part)
    topics = _drawn_topics(drawn, point.nodes, point.topics).reshape(point.nodes, point.topics)
    vectors = drawn_vectors(drawn, 0, point.nodes)
    subscribers = np.arange(0, point.nodes, 2, dtype=np.int32)
    publishers = np.arange(1, point.nodes, 2, dtype=np.int32)
    trees = scribe_trees(
        vectors,
        np.repeat(subscribers, point.topics),
        topics[subscribers].ravel(),
        drawn_vectors(drawn + 1, 0, TOPICS),
    )
    entries, different = ring_tables(vectors, distinct=point.nodes <= DISTINCT_NODES)
    entries += trees.forwards
    entries[publishers] += point.topics
    for tally in histogram("entries", entries):
        yield of_point(point, part, tally)
    if point.nodes <= DISTINCT_NODES:
        roots = trees.roots[topics[publishers]]
        own = np.repeat(publishers, point.topics).astype(np.int64) * point.nodes
        cached = own + roots.ravel()
        cached = cached[roots.ravel() != np.repeat(publishers, point.topics)]
        different = each_once(np.concatenate((different, cached)))
        count = np.bincount(different // point.nodes, minlength=point.nodes)
        for tally in histogram("distinct_entries", count.astype(np.int64)):
            yield of_point(point, part, tally)


def shares_proposed(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    (point,) = points
    owners, topics, subscribed = _drawn_shares(seed, point, part)
    drawn = seed_of(seed, "shares", part)
    order = _key_order(drawn, topics, np.zeros(len(topics), np.int32))
    owners = owners[order]
    vectors = drawn_vectors(drawn, 0, point.nodes)[owners]
    entries = _per_owner(table_sizes(vectors, owners=owners), owners, point.nodes)
    for tally in histogram("entries", entries, subscribed):
        yield of_point(point, part, tally)


def shares_scribe(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    (point,) = points
    owners, topics, subscribed = _drawn_shares(seed, point, part)
    drawn = seed_of(seed, "shares", part)
    vectors = drawn_vectors(drawn, 0, point.nodes)
    trees = scribe_trees(vectors, owners, topics, drawn_vectors(drawn + 1, 0, point.topics))
    entries, _ = ring_tables(vectors)
    for tally in histogram("entries", entries + trees.forwards, subscribed):
        yield of_point(point, part, tally)


def _drawn_topics(seed: int, nodes: int, count: int) -> Ints:
    """Of each node `count` different ones, one node after the other."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, TOPICS, (nodes, count), dtype=np.int32)
    while True:
        ordered = np.sort(found, axis=1)
        again = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if not len(again):
            return found.ravel()
        found[again] = rng.integers(0, TOPICS, (len(again), count), dtype=np.int32)


def _drawn_shares(seed: int, point: Point, part: int) -> tuple[Ints, Ints, Counts]:
    """Subscriptions: node and topic of each; and how many each node has."""
    drawn = seed_of(seed, "shares", part)
    subscribed = drawn_members(drawn, point.topics, point.nodes).astype(np.int64) + 1
    rng = np.random.default_rng(drawn)
    chosen = [rng.permutation(point.topics)[:count] for count in subscribed.tolist()]
    owners = np.repeat(np.arange(point.nodes, dtype=np.int32), subscribed)
    return owners, np.concatenate(chosen).astype(np.int32), subscribed


def _key_order(seed: int, topics: Ints, kinds: Ints) -> Counts:
    """By topic, subscribers first, then by a digest of node and topic: any order (§3.2.1)."""
    digests = drawn_vectors(seed + 2, 0, len(topics))
    return np.lexsort((digests, kinds, topics))


def _per_owner(sizes: np.ndarray[tuple[int], np.dtype[np.uint8]], owners: Ints, n: int) -> Counts:
    found = np.bincount(owners, weights=sizes, minlength=n)
    return found.astype(np.int64)


def ring_tables(vectors: Vectors, *, distinct: bool = False) -> tuple[Counts, Counts]:
    """Entries of each node of the DHT; and its pairs, node · size + neighbor, each once.

    In a ring everybody has two neighbors; of two nodes each is both of the other's.
    """
    size = len(vectors)
    entries = np.zeros(size, np.int64)
    pairs: list[Counts] = [np.zeros(0, np.int64)]
    for level in level_lists(vectors):
        follows = level.follows[:-1]
        first = np.flatnonzero(~np.concatenate((np.zeros(1, bool), follows)))
        last = np.append(first[1:] - 1, size if not len(first) else len(level.order) - 1)
        rings = last > first
        left, right = level.pairs()
        one = np.concatenate((left, level.order[last[rings]]))
        two = np.concatenate((right, level.order[first[rings]]))
        entries += np.bincount(one, minlength=size) + np.bincount(two, minlength=size)
        if distinct:
            near, far = one.astype(np.int64), two.astype(np.int64)
            pairs += [near * size + far, far * size + near]
    return entries, each_once(np.concatenate(pairs))
