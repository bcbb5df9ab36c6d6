"""Every cooperation algorithm that Isthmus brings passes the conformance suite."""

from __future__ import annotations

import pytest

from isthmus.cooperation.registry import load
from isthmus.sim.check import TOPOLOGIES, check_algorithm, check_scenario
from isthmus.sim.scenarios import SCENARIOS

ALGORITHMS = ("pf", "sf", "tree", "routed-tree", "topic-tree", "skipgraph")


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scenario(algorithm: str, topology: str, scenario: str) -> None:
    for seed in (0, 1):
        check_scenario(load(algorithm), scenario, topology, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_suite(algorithm: str) -> None:
    check_algorithm(load(algorithm), seeds=range(10), schedules=150)
