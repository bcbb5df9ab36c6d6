"""Random schedules of joins, leaves, faults and messages keep what `isthmus.sim.run` promises."""

from __future__ import annotations

import pytest

from isthmus.sim.schedule import ATTACKS, PROFILES
from isthmus.sim.soak import soak

ALGORITHMS = ("pf", "sf")
QUICK = 60
QUICK_ATTACKS = 12
LONG = 2_000


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_schedules(algorithm: str, profile: str) -> None:
    soaked = soak(algorithm, range(QUICK), profile=profile, max_failures=1)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK  # it is not all silence


@pytest.mark.parametrize("profile", ATTACKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_attacks(algorithm: str, profile: str) -> None:
    soaked = soak(algorithm, range(QUICK_ATTACKS), profile=profile, max_failures=1)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_ATTACKS


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_thousands_of_schedules(algorithm: str) -> None:
    soaked = soak(algorithm, range(10_000, 10_000 + LONG), max_failures=1)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.schedules == LONG
