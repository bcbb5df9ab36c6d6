"""Scribe on a Skip-Graph DHT: what the thesis compares with (§3.1.1, §3.4).

A subscriber's JOIN goes towards the id of the topic, by numeric id, until it comes to a node of the
topic's tree.  Messages go the other way: from the publisher, which has the root's address from its
first message on, to the root in one hop, and down the tree.  Publishers cannot know that there is
no subscriber: that one hop is made in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isthmus.sim.bulk.levels import Ints
from isthmus.sim.bulk.numeric import Longs, numeric_ways
from isthmus.sim.bulk.vectors import Vectors

__all__ = ["ScribeTrees", "scribe_trees"]


@dataclass(frozen=True, slots=True)
class ScribeTrees:
    """Of all topics."""

    depth: Ints
    """Of each subscriber, below the root."""
    roots: Ints
    """Of each topic."""
    links: Longs
    """Of each topic's tree."""
    forwards: Longs
    """Of each node: messages it sends down trees when each topic has its number of publishes."""

    def hops(self, publishers: Ints, topics: Ints, subscriber_topics: Ints) -> Longs:
        """How many pairs of a publisher and a subscriber of its topic are how many hops apart."""
        away = self.messages_to_root(publishers, topics)
        near = np.bincount(topics[~away], minlength=len(self.roots))
        far = np.bincount(topics[away], minlength=len(self.roots))
        size = int(self.depth.max(initial=0)) + 2
        found = np.zeros(size, np.int64)
        np.add.at(found, self.depth, near[subscriber_topics])
        np.add.at(found, self.depth + 1, far[subscriber_topics])
        return found

    def messages_to_root(self, publishers: Ints, topics: Ints) -> npt.NDArray[np.bool_]:
        """Whether the publisher is not the root itself."""
        return np.not_equal(publishers, self.roots[topics])

    def messages(self, publishers: Ints, topics: Ints) -> Longs:
        """That one publish of each publisher takes."""
        return self.links[topics] + self.messages_to_root(publishers, topics)


def scribe_trees(
    vectors: Vectors,
    subscribers: Ints,
    topics: Ints,
    ids: Vectors,
    base: int = 2,
    *,
    publishes: Longs | None = None,
) -> ScribeTrees:
    """`topics` are those of `subscribers`, `ids` those of all topics.

    Nodes are counted in the order of keys, which has nothing to do with topics here: draw
    subscribers from all of them.  Roots of topics without subscriber are found as well.
    """
    weight = np.ones(len(ids), np.int64) if publishes is None else publishes
    ways = numeric_ways(vectors, subscribers, topics, ids, base, weight=weight)
    roots = ways.roots.copy()
    without = np.flatnonzero(roots < 0).astype(np.int32)
    if len(without):
        none = np.zeros(len(without), np.int32)
        roots[without] = numeric_ways(vectors, none, without, ids, base).roots[without]
    return ScribeTrees(ways.hops, roots, ways.edges, ways.children)
