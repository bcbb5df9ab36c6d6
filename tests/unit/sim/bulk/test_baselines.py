"""Scribe, Bayeux and CAN-MC: against naive twins, and by the growth laws of Table 3.1."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from isthmus.cooperation.skipgraph.vectors import MembershipVector, digits_of
from isthmus.sim.bulk.bayeux import bayeux_paths
from isthmus.sim.bulk.can import can_of, flood
from isthmus.sim.bulk.numeric import numeric_ways
from isthmus.sim.bulk.scribe import scribe_trees
from isthmus.sim.bulk.vectors import drawn_vectors


class Dht:
    """Nodes in rings, one hop after the other: each knows its right neighbor in each level."""

    def __init__(self, vectors: list[MembershipVector]) -> None:
        self.vectors = vectors

    def ring(self, prefix: int, level: int) -> list[int]:
        return [at for at, one in enumerate(self.vectors) if one.prefix(level) == prefix]

    def root(self, target: MembershipVector) -> int:
        level = max(one.common_digits(target) for one in self.vectors)
        top = self.ring(target.prefix(level), level)
        return min(
            top, key=lambda at: (abs(self.number(self.vectors[at]) - self.number(target)), at)
        )

    def number(self, vector: MembershipVector) -> int:
        digits = digits_of(vector.base)
        return sum(
            vector.digit(place) * vector.base ** (digits - 1 - place) for place in range(digits)
        )

    def way(self, node: int, target: MembershipVector) -> list[int]:
        """All nodes on it, both ends included."""
        root, way = self.root(target), [node]
        while way[-1] != root:
            at = way[-1]
            level = self.vectors[at].common_digits(target)
            ring = self.ring(target.prefix(level), level)
            way.append(ring[(ring.index(at) + 1) % len(ring)])
        return way


def test_scribe_hop_for_hop_on_hundreds_of_networks() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        base, digits = rng.choice([2, 2, 3, 10]), rng.choice([2, 5, 64])
        size = rng.randint(1, 25)

        def drawn(base: int = base, digits: int = digits, rng: random.Random = rng) -> int:
            return rng.randrange(base ** min(digits, digits_of(base)))

        vectors = [MembershipVector(drawn(), base) for _ in range(size)]
        dht = Dht(vectors)
        ids = [MembershipVector(drawn(), base) for _ in range(rng.randint(1, 5))]
        publishes = [rng.randint(1, 9) for _ in ids]
        members = [
            (node, topic)
            for topic in range(len(ids))
            for node in rng.sample(range(size), k=rng.randint(0, size))
        ]
        trees = scribe_trees(
            np.array([one.value for one in vectors], np.uint64),
            np.array([node for node, _ in members], np.int32),
            np.array([topic for _, topic in members], np.int32),
            np.array([one.value for one in ids], np.uint64),
            base,
            publishes=np.array(publishes, np.int64),
        )
        links: list[set[tuple[int, int]]] = [set() for _ in ids]
        for number, (node, topic) in enumerate(members):
            way = dht.way(node, ids[topic])
            assert trees.depth[number] == len(way) - 1
            links[topic] |= set(pairwise(way))
        assert trees.links.tolist() == list(map(len, links))
        assert trees.roots.tolist() == [dht.root(one) for one in ids]
        forwards = np.zeros(size, np.int64)
        for topic, some in enumerate(links):
            for _, parent in some:
                forwards[parent] += publishes[topic]
        assert (trees.forwards == forwards).all()


def test_scribe_pairs_and_messages() -> None:
    vectors = drawn_vectors(1, 0, 500)
    subscribers = np.array([3, 77, 140, 9], np.int32)
    topics = np.array([0, 0, 1, 1], np.int32)
    ids = drawn_vectors(2, 0, 2)
    trees = scribe_trees(vectors, subscribers, topics, ids)
    publishers = np.array([trees.roots[0], 100, 200], np.int32)
    of_topic = np.array([0, 0, 1], np.int32)
    assert trees.messages(publishers, of_topic).tolist() == [
        trees.links[0],
        trees.links[0] + 1,
        trees.links[1] + (trees.roots[1] != 200),
    ]
    pairs = trees.hops(publishers, of_topic, topics)
    assert pairs.sum() == 6


def test_nobody_subscribes_and_scribe_sends_all_the_same() -> None:
    nobody = np.zeros(0, np.int32)
    trees = scribe_trees(drawn_vectors(1, 0, 100), nobody, nobody, drawn_vectors(2, 0, 3))
    publishers = np.array([(root + 1) % 100 for root in trees.roots], np.int32)
    assert trees.messages(publishers, np.arange(3, dtype=np.int32)).tolist() == [1, 1, 1]
    assert trees.links.tolist() == [0, 0, 0]


def test_bayeux_is_as_long_and_notes_each_subscriber_on_its_way() -> None:
    rng = random.Random(4)
    vectors = [MembershipVector(rng.randrange(2**64)) for _ in range(60)]
    dht = Dht(vectors)
    subscribers = rng.sample(range(60), k=20)
    target = MembershipVector(rng.randrange(2**64))
    paths = bayeux_paths(
        np.array([one.value for one in vectors], np.uint64),
        np.array(subscribers, np.int32),
        np.zeros(20, np.int32),
        np.array([target.value], np.uint64),
    )
    root = dht.root(target)
    assert paths.roots.tolist() == [root]
    for depth, node in zip(paths.depth.tolist(), subscribers, strict=True):
        way = dht.way(root, vectors[node])
        assert way[-1] == node
        assert depth == len(way) - 1


@pytest.mark.parametrize("nodes", [1_000, 10_000, 100_000])
def test_the_way_in_the_dht_is_as_long_as_log_of_all_nodes(nodes: int) -> None:
    vectors = drawn_vectors(1, 0, nodes)
    starts = np.arange(0, nodes, nodes // 500, dtype=np.int32)
    ids = drawn_vectors(9, 0, len(starts))
    ways = numeric_ways(vectors, starts, np.arange(len(starts), dtype=np.int32), ids)
    assert float(ways.hops.mean()) == pytest.approx(np.log2(nodes) - 1, abs=0.5)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("members", [1, 2, 30, 300])
def test_can_floods_everybody_in_d_nth_roots(members: int, dimensions: int) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        can = can_of(members, dimensions, rng)
        found = flood(can, rng.randrange(members))
        assert found.hops.min() == 0
        assert found.messages >= members - 1
        assert found.hops.max() <= dimensions * members ** (1 / dimensions) + 2
        assert can.entries == sum(
            node in beside
            for ways in can.neighbors
            for node in range(members)
            for beside in [{other for some in ways.values() for other in some}]
        )


def test_zones_fill_the_torus() -> None:
    can = can_of(200, 3, random.Random(1))
    sides = (can.high - can.low).astype(object)
    assert sum(a * b * c for a, b, c in sides) == (1 << 40) ** 3


def test_can_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="0 members"):
        can_of(0, 2, random.Random(1))
