"""What arrays say equals what nodes do that join, leave and signal by messages.

`test_traversal` compares with nodes whose tables were made for them.  Here the nodes are those of
the algorithm (`cooperation.skipgraph.graph`): each has its table from its neighbors, and whether it
is suspended from their signals, which take their time and overtake each other.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from isthmus.cooperation.skipgraph.forwarding import STRATEGIES
from isthmus.cooperation.skipgraph.keys import Key, Kind, key_of, subscribers_of
from isthmus.cooperation.skipgraph.rendezvous import is_rendezvous_point
from isthmus.cooperation.skipgraph.vectors import vector_of
from isthmus.sim.bulk.graph import skip_graph
from isthmus.sim.bulk.topics import Topics
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.visits import StrategyName
from support.skip_graphs import passed
from support.skip_network import SkipNetwork

TOPICS = ("a", "b", "c")
NETWORKS = 50
LOOKS = 4
"""How often each network comes to rest and is compared."""


def stir(net: SkipNetwork, rng: random.Random) -> None:
    """Some nodes join and leave, most of them before the one before is done."""
    for _ in range(rng.randint(3, 25)):
        name, topic = rng.choice(sorted(net.graphs)), rng.choice(TOPICS)
        own = sorted(key for key in net.wanted[name] if key.topic == topic)
        if own:
            net.unwant(name, own[0])
        else:
            kind = Kind.SUBSCRIBER if rng.random() < 0.4 else Kind.PUBLISHER
            net.want(name, topic, kind)
        if rng.random() < 0.5:
            net.run(net.now_s + rng.uniform(0, 2))
    net.run()
    net.check_tables()


def bulk_of(net: SkipNetwork) -> tuple[list[tuple[Key, str]], Topics]:
    """All virtual nodes in the order of keys, and the topics as blocks of that order."""
    standing = sorted((key, name) for name, keys in net.wanted.items() for key in keys)

    def count(topic: str, kind: Kind) -> int:
        return sum(key.topic == topic and key.kind is kind for key, _ in standing)

    return standing, Topics.of(
        [count(topic, Kind.SUBSCRIBER) for topic in TOPICS],
        [count(topic, Kind.PUBLISHER) for topic in TOPICS],
    )


def compare_suspension(net: SkipNetwork) -> tuple[int, int]:
    """Of every publisher; returns how many are suspended, and how many are not."""
    standing, topics = bulk_of(net)
    silent, points = topics.silent(), topics.rendezvous_points()
    found = [0, 0]
    for place, (key, name) in enumerate(standing):
        if key.kind is not Kind.PUBLISHER:
            assert not silent[place]
            continue
        graph = net.graphs[name]
        resumed = graph.suspension.is_resumed(key)
        assert resumed is not bool(silent[place]), (key, name)
        assert is_rendezvous_point(graph.lists.table[key]) is (place in points)
        found[resumed] += 1
    return found[0], found[1]


def test_suspension_is_what_the_signals_leave_behind() -> None:
    suspended = resumed = 0
    for seed in range(NETWORKS):
        rng = random.Random(seed)
        net = SkipNetwork(seed, rng.choice((2, 3, 5, 8, 13)), base=rng.choice((2, 2, 3)))
        for _ in range(LOOKS):
            stir(net, rng)
            some, others = compare_suspension(net)
            suspended, resumed = suspended + some, resumed + others
    assert suspended > 200
    assert resumed > 200


@pytest.mark.parametrize("name", ["mrf", "sfb"])
def test_hop_for_hop_over_the_tables_that_nodes_have_made(name: StrategyName) -> None:
    """From every publisher that is not suspended; who is sends nothing, in both."""
    messages = 0
    for seed in range(NETWORKS):
        rng = random.Random(seed)
        net = SkipNetwork(seed, rng.choice((3, 5, 8, 13, 21)), base=rng.choice((2, 2, 3)))
        for _ in range(LOOKS // 2):
            stir(net, rng)
            messages += compare_hops(net, name)
    assert messages > 1_000


def compare_hops(net: SkipNetwork, name: StrategyName) -> int:
    """How many messages there were."""
    standing, topics = bulk_of(net)
    vectors = np.array([vector_of(node, net.base).value for _, node in standing], np.uint64)
    graph = skip_graph(vectors, net.base, blocks=topics.blocks)
    publishers, of_topic = topics.publishers()
    awake = ~topics.silent()[publishers]
    publishers, of_topic = publishers[awake], of_topic[awake]
    if not len(publishers):
        return 0
    bulk = spread(
        graph, publishers, topics.starts[of_topic], topics.ends[of_topic], name, trace=True
    )
    assert bulk.trace is not None
    hops: list[dict[str, int]] = [{} for _ in publishers]
    rows = zip(bulk.trace.query, bulk.trace.node, bulk.trace.hops, strict=True)
    for query, node, count in rows:
        hops[query][standing[node][1]] = int(count)
    tables = {node: each.lists.table for node, each in net.graphs.items()}
    sent = 0
    for number, (place, topic) in enumerate(zip(publishers, of_topic, strict=True)):
        node = standing[place][1]
        assert net.graphs[node].suspension.is_resumed(key_of(TOPICS[topic], Kind.PUBLISHER, node))
        found = passed(tables, node, subscribers_of(TOPICS[topic]), STRATEGIES[name])
        assert hops[number] == found.hops
        sent += found.messages
    assert bulk.messages == sent
    return sent
