"""In the simulator every broker counts what workload and graph say, packet for packet."""

from __future__ import annotations

import pytest

from isthmus.reproduce.geo.expected import Shape, expected
from isthmus.reproduce.geo.experiments import CONTENDERS, Contender
from isthmus.reproduce.geo.model import Parameters
from isthmus.reproduce.geo.simulated import simulate
from isthmus.reproduce.geo.workload import Workload


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize(("k", "size", "seed"), [(1, (2, 5), 1), (1, (6, 10), 7), (2, (3, 5), 3)])
def test_counts_are_as_derived(
    contender: Contender, k: int, size: tuple[int, int], seed: int
) -> None:
    workload = Workload(Parameters(k, *size), seed)
    counted = simulate(contender, workload)
    assert counted.counts == expected(CONTENDERS[contender].way, workload), f"seed {seed}"
    assert counted.unsubscribes >= len(workload.listeners)


@pytest.mark.parametrize("contender", ["pf", "sf"])
@pytest.mark.parametrize("shape", ["star", "z-tree"])
def test_on_other_trees_too(contender: Contender, shape: Shape) -> None:
    workload = Workload(Parameters(2, 2, 10), 2)
    counted = simulate(contender, workload, shape)
    assert counted.counts == expected(CONTENDERS[contender].way, workload, shape)
