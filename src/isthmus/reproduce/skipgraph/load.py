"""How much nodes forward, against what they send and receive (thesis §3.4.3, Fig. 3.12 and 3.13).

100 topics with one publisher and 1,000 subscribers each; the publisher of topic i sends i messages.
The thesis's three numbers for each node:

* *sending*: messages that a publisher made;
* *receiving*: messages of its topic that a subscriber got;
* *forwarding*: messages that a node handed to others, the first hop of its own included.

Tallies: `publisher_forwards` and `subscriber_forwards`, `given` what was sent or received.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from isthmus.reproduce.skipgraph.points import Point, drawn_members, of_point, seed_of
from isthmus.sim.bulk.graph import skip_graph
from isthmus.sim.bulk.scribe import scribe_trees
from isthmus.sim.bulk.topics import equal_topics
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.vectors import drawn_vectors
from isthmus.simulate.tallies import Counted, histogram

__all__ = ["load_proposed", "load_scribe"]


def load_proposed(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """By MRF, in one graph of all nodes."""
    (point,) = points
    drawn = seed_of(seed, "load", "proposed", part)
    topics = equal_topics(point.topics, point.subscribers, point.publishers)
    publishers, of_topic = topics.publishers()
    sent = of_topic.astype(np.int64) + 1
    found = spread(
        skip_graph(drawn_vectors(drawn, 0, topics.size)),
        publishers,
        topics.starts[of_topic],
        topics.ends[of_topic],
        "mrf",
        weight=sent,
        forwards=True,
    )
    subscribed = np.ones(topics.size, bool)
    subscribed[publishers] = False
    received = topics.blocks[subscribed].astype(np.int64) + 1
    by_publisher = histogram("publisher_forwards", found.forwards[publishers], sent)
    by_subscriber = histogram("subscriber_forwards", found.forwards[subscribed], received)
    for tally in chain(by_publisher, by_subscriber):
        yield of_point(point, part, tally)


def load_scribe(points: Sequence[Point], part: int, seed: int) -> Iterator[Counted]:
    """The same topics on a DHT."""
    (point,) = points
    drawn = seed_of(seed, "load", "scribe", part)
    members = drawn_members(drawn, point.nodes, point.nodes)
    publishers = members[: point.topics]
    subscribers = members[point.topics :]
    topics = np.arange(point.topics, dtype=np.int32)
    of_subscriber = np.repeat(topics, point.subscribers)
    sent = topics.astype(np.int64) + 1
    trees = scribe_trees(
        drawn_vectors(drawn, 0, point.nodes),
        subscribers,
        of_subscriber,
        drawn_vectors(drawn + 1, 0, point.topics),
        publishes=sent,
    )
    forwards = trees.forwards.copy()
    away = trees.messages_to_root(publishers, topics)
    np.add.at(forwards, publishers[away], sent[away])
    by_publisher = histogram("publisher_forwards", forwards[publishers], sent)
    by_subscriber = histogram("subscriber_forwards", forwards[subscribers], sent[of_subscriber])
    for tally in chain(by_publisher, by_subscriber):
        yield of_point(point, part, tally)
