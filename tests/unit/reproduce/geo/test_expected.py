"""The counts that follow from workload and graph: by hand, and against a naive oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from isthmus.reproduce.geo.expected import (
    Counts,
    Fabric,
    Shape,
    Way,
    expected,
    mean_rates,
    parents,
)
from isthmus.reproduce.geo.experiments import CONTENDERS, ContenderOf
from isthmus.reproduce.geo.model import Parameters, consistent
from isthmus.reproduce.geo.workload import Change, Topic, Workload

# star                z-tree of k = 2
#
#      0                    0
#   /  |  \        / / |  |    |    \
#  1   2   …      1 2  3  4    8     12
#                       / | \  …     …
#                      5  6  7


def test_the_tree_of_cells() -> None:
    assert parents(2, "star") == [0] * 16
    assert parents(1, "z-tree") == [0, 0, 0, 0]
    assert parents(2, "z-tree") == [0, 0, 0, 0, 0, 4, 4, 4, 0, 8, 8, 8, 0, 12, 12, 12]
    fabric = Fabric(parents(2, "z-tree"))
    assert fabric.way(5, 9) == [(5, 4), (4, 0), (0, 8), (8, 9)]
    assert fabric.way(5, 6) == [(5, 4), (4, 6)]
    assert fabric.way(0, 5) == [(0, 4), (4, 5)]
    assert fabric.way(7, 7) == []
    assert len(fabric.away(6)) == 15
    assert fabric.away(6)[0] == (6, 4)


@pytest.mark.parametrize("contender", CONTENDERS.values(), ids=lambda each: each.way)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_on_average_the_assumptions_give_the_same(k: int, contender: ContenderOf) -> None:
    workload = Workload(Parameters(k, 5, 10))
    rates = mean_rates(expected(contender.way, workload), workload.window_s)
    ours = consistent(contender.system, workload.of)
    if contender.way == "interest-tree":
        assert rates.received_publish > ours.received_publish
        assert rates.transmitted_subscribe > ours.transmitted_subscribe
    else:
        assert rates == pytest.approx(ours)


@pytest.mark.parametrize("shape", ["star", "z-tree"])
@pytest.mark.parametrize("way", ["broadcast", "interest-tree", "interest-one-hop"])
def test_what_one_sends_another_receives(way: Way, shape: Shape) -> None:
    workload = Workload(Parameters(2, 5, 10))
    counts = expected(way, workload, shape)
    clients = 16 * 5 * 3, 16 * 10, 16 * 10 * 3
    sums = [sum(getattr(each, name) for each in counts) for name in Counts.__dataclass_fields__]
    assert sums[0] - clients[0] == sums[2] - clients[2]
    assert sums[1] - clients[1] == sums[3]


class Oracle:
    """SF on a tree by its definition: what is announced over each link, computed anew each time."""

    def __init__(self, fabric: Fabric, cells: int) -> None:
        self.links = [(a, b) for a in range(cells) for b in fabric.neighbors[a]]
        self.sides = {
            (a, b): {cell for cell in range(cells) if (a, b) in fabric.way(cell, b)}
            for a, b in self.links
        }
        """The cells on the near side of each link."""

    def announced(
        self, listening: Mapping[tuple[int, Topic], int]
    ) -> set[tuple[tuple[int, int], Topic]]:
        """Over which link which topic is wanted."""
        return {
            ((a, b), topic)
            for (cell, topic), count in listening.items()
            if count
            for a, b in self.links
            if cell in self.sides[a, b]
        }


@pytest.mark.parametrize("shape", ["star", "z-tree"])
@pytest.mark.parametrize("size", [(2, 5), (2, 20), (10, 5)])
def test_changes_on_a_tree_are_what_the_definition_gives(
    shape: Shape, size: tuple[int, int]
) -> None:
    workload = Workload(Parameters(2, *size))
    fabric = Fabric(parents(2, shape))
    oracle = Oracle(fabric, 16)
    sent, received = Counter[int](), Counter[int]()
    listening = Counter((each.cell, each.before) for each in workload.listeners)
    for step in workload.steps():
        if isinstance(step, Change):
            listener = step.listener
            listening[listener.cell, listener.before] -= 1
            before = oracle.announced(listening)
            listening[listener.cell, listener.after] += 1
            for (source, target), _ in oracle.announced(listening) - before:
                sent[source] += 1
                received[target] += 1
    counts = expected("interest-tree", workload, shape)
    assert [each.transmitted_subscribe for each in counts] == [sent[cell] for cell in range(16)]
    assert [each.received_subscribe - size[1] for each in counts] == [
        received[cell] for cell in range(16)
    ]
