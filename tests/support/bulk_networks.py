"""Small random networks, both as tables of nodes and as arrays."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from isthmus.cooperation.skipgraph.keys import PLACE_BYTES, Key, Kind
from isthmus.cooperation.skipgraph.tables import NodeTable, linked
from isthmus.cooperation.skipgraph.vectors import MembershipVector
from isthmus.sim.bulk.levels import Ints
from isthmus.sim.bulk.topics import Topics
from isthmus.sim.bulk.vectors import Vectors
from support.skip_graphs import drawn_vector


@dataclass(frozen=True)
class Network:
    base: int
    names: list[str]
    """The physical node of each virtual node, in the order of keys."""
    topic_names: list[str]
    topics: Topics
    vectors: Vectors
    """Of each virtual node."""
    owners: Ints
    tables: dict[str, NodeTable]


def drawn_network(rng: random.Random) -> Network:
    """A few topics; a node may be in several of them, in each once."""
    base = rng.choice([2, 2, 2, 3, 4, 10])
    digits = rng.choice([1, 2, 4, 64])
    nodes = [f"n{number:02d}" for number in range(rng.randint(1, 30))]
    of_node: dict[str, MembershipVector] = {name: drawn_vector(rng, base, digits) for name in nodes}
    keys: dict[str, list[Key]] = {name: [] for name in nodes}
    names: list[str] = []
    subscribers, publishers = [], []
    topic_names = [f"t{number}" for number in range(rng.randint(1, 5))]
    for topic in topic_names:
        members = rng.sample(nodes, k=rng.randint(0, len(nodes)))
        count = rng.choice([0, 1, len(members) // 2, len(members)])
        count = min(count, len(members))
        subscribers.append(count)
        publishers.append(len(members) - count)
        for place, name in enumerate(members):
            kind = Kind.SUBSCRIBER if place < count else Kind.PUBLISHER
            keys[name].append(Key(topic, kind, place.to_bytes(PLACE_BYTES, "big")))
            names.append(name)
    return Network(
        base,
        names,
        topic_names,
        Topics.of(subscribers, publishers),
        np.array([of_node[name].value for name in names], np.uint64),
        np.array([nodes.index(name) for name in names], np.int32),
        linked({name: (of_node[name], keys[name]) for name in nodes}),
    )
