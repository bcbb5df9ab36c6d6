"""What arrays say equals, hop for hop, what nodes do that have nothing but their tables."""

from __future__ import annotations

import random
from collections import Counter
from math import comb
from typing import get_args

import numpy as np
import pytest

from isthmus.cooperation.skipgraph.forwarding import STRATEGIES
from isthmus.cooperation.skipgraph.keys import Kind, subscribers_of
from isthmus.cooperation.skipgraph.rendezvous import has_subscribers, is_rendezvous_point
from isthmus.sim.bulk.graph import skip_graph
from isthmus.sim.bulk.levels import Ints, distinct_neighbors, table_sizes
from isthmus.sim.bulk.totals import total_hops
from isthmus.sim.bulk.traversal import Trace, spread
from isthmus.sim.bulk.vectors import ideal_vectors
from isthmus.sim.bulk.visits import StrategyName
from support.bulk_networks import Network, drawn_network
from support.skip_graphs import passed

NETWORKS = 300
NAMES: tuple[StrategyName, ...] = get_args(StrategyName)


def compare(network: Network, name: StrategyName) -> int:
    """All publishers of a network; returns how many there are."""
    topics = network.topics
    graph = skip_graph(network.vectors, network.base, blocks=topics.blocks)
    publishers, of_topic = topics.publishers()
    if not len(publishers):
        return 0
    ranges = publishers, topics.starts[of_topic], topics.ends[of_topic]
    traced = spread(graph, *ranges, name, trace=True, forwards=True)
    assert traced.trace is not None
    hops: list[dict[str, int]] = [{} for _ in publishers]
    for query, node, count in zip(*map(np.ndarray.tolist, _columns(traced.trace)), strict=True):
        assert network.names[node] not in hops[query]
        hops[query][network.names[node]] = count
    forwards: Counter[str] = Counter()
    expected_hops: Counter[int] = Counter()
    messages = 0
    for number, (publisher, topic) in enumerate(zip(publishers, of_topic, strict=True)):
        target = subscribers_of(network.topic_names[topic])
        found = passed(network.tables, network.names[publisher], target, STRATEGIES[name])
        assert hops[number] == found.hops
        forwards.update(found.forwards)
        expected_hops.update(found.hops.values())
        messages += found.messages
    bulk: Counter[str] = Counter()
    for node in np.flatnonzero(traced.forwards).tolist():
        bulk[network.names[node]] += int(traced.forwards[node])
    assert bulk == forwards
    # Joined and counted, it is the same.
    for each in (traced, spread(graph, *ranges, name), spread(graph, *ranges, name, forwards=True)):
        assert each.messages == messages
        assert {h: int(n) for h, n in enumerate(each.at_hops) if n} == expected_hops
    totals = total_hops(graph, *ranges, name)
    assert totals.messages == messages
    assert totals.deliveries == expected_hops.total()
    assert totals.hops == sum(h * n for h, n in expected_hops.items())
    return len(publishers)


def _columns(trace: Trace) -> list[Ints]:
    return [trace.query, trace.node, trace.hops]


@pytest.mark.parametrize("name", NAMES)
def test_hop_for_hop_on_hundreds_of_networks(name: StrategyName) -> None:
    assert sum(compare(drawn_network(random.Random(seed)), name) for seed in range(NETWORKS)) > 3000


@pytest.mark.parametrize("name", NAMES)
def test_any_range_from_any_node(name: StrategyName) -> None:
    """Not only from publishers: from the left, from inside, for nobody."""
    for seed in range(100):
        rng = random.Random(seed)
        size = rng.randint(1, 40)
        vectors = np.array(
            [rng.randrange(2 ** rng.choice([2, 64])) for _ in range(size)], np.uint64
        )
        graph = skip_graph(vectors)
        low, high = sorted(rng.choices(range(size + 1), k=2))
        start = rng.randrange(size)
        at, first, end = (np.array([each], np.int32) for each in (start, low, high))
        trace = spread(graph, at, first, end, name, trace=True).trace
        assert trace is not None
        assert sorted(trace.node) == list(range(low, high))
        assert spread(graph, at, first, end, name).deliveries == high - low


def test_suspension() -> None:
    """Publishers are silent where the rendezvous point, by its own table, sees no subscriber."""
    for seed in range(NETWORKS):
        network = drawn_network(random.Random(seed))
        topics = network.topics
        silent, points = topics.silent(), topics.rendezvous_points()
        for number, topic in enumerate(network.topic_names):
            members = [
                (node, virtual)
                for node in range(int(topics.ends[number]), int(topics.stops[number]))
                for virtual in network.tables[network.names[node]]
                if virtual.key.topic == topic and virtual.key.kind is Kind.PUBLISHER
            ]
            found = [node for node, virtual in members if is_rendezvous_point(virtual)]
            assert found == ([] if points[number] < 0 else [points[number]])
            for node, virtual in members:
                if node in found:
                    assert has_subscribers(virtual) is not bool(silent[node])
                assert silent[node] == silent[found[0]]


def test_table_sizes_are_those_of_the_nodes() -> None:
    for seed in range(NETWORKS):
        network = drawn_network(random.Random(seed))
        sizes = table_sizes(network.vectors, network.base, owners=network.owners)
        bulk: Counter[str] = Counter()
        for name, size in zip(network.names, sizes.tolist(), strict=True):
            bulk[name] += size
        assert bulk == {
            name: len(table.others)
            for name, table in network.tables.items()
            if name in set(network.names)
        }
        distinct = distinct_neighbors(network.vectors, network.owners, network.base).tolist()
        for name, owner in zip(network.names, network.owners.tolist(), strict=True):
            assert distinct[owner] == len({entry.node for entry in network.tables[name].others})


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 12, 17])
def test_average_hops_on_ideal_vectors(exponent: int) -> None:
    """§4.1.3: H_SFB = log(N) / 2 and H_MRF = log(N) - 1 + 1/N, in whole numbers; Fig. 4.5."""
    count = 2**exponent
    graph = skip_graph(ideal_vectors(0, count))
    first, end = np.zeros(1, np.int32), np.full(1, count, np.int32)
    sfb = spread(graph, first, first, end, "sfb", forwards=True)
    mrf = spread(graph, first, first, end, "mrf", forwards=True)
    assert sfb.at_hops.tolist() == [comb(exponent, depth) for depth in range(exponent + 1)]
    assert mrf.at_hops.tolist() == [1, *(2**depth for depth in range(exponent))]
    assert 2 * sfb.hops == exponent * count
    assert mrf.hops == (exponent - 1) * count + 1
    assert total_hops(graph, first, first, end, "sfb").hops == sfb.hops
    assert total_hops(graph, first, first, end, "mrf").hops == mrf.hops
    assert sfb.messages == mrf.messages == count - 1
    assert mrf.forwards.max() <= 2
    assert sfb.forwards[0] == exponent


def test_figure_4_5() -> None:
    """The depths of 131,072 nodes: SFB has most at 8 and 9, MRF at 17."""
    graph = skip_graph(ideal_vectors(0, 131_072))
    first, end = np.zeros(1, np.int32), np.full(1, 131_072, np.int32)
    sfb = spread(graph, first, first, end, "sfb").at_hops
    mrf = spread(graph, first, first, end, "mrf").at_hops
    assert sfb[8] == sfb[9] == sfb.max() == 24_310
    assert mrf.argmax() == 17
    assert mrf.max() == 65_536
