"""Random schedules of joins, leaves, faults and messages keep what `isthmus.sim.run` promises."""

from __future__ import annotations

import pytest

from isthmus.sim.schedule import ATTACKS, PROFILES
from isthmus.sim.soak import Soaked, soak
from support.examples import EXAMPLES

ALGORITHMS = ("pf", "sf")
TREES = ("tree", "routed-tree", "topic-tree", "skipgraph")
STARS = "isthmus_stars:StarPerTopic"
QUICK = 30
QUICK_ATTACKS = 12
QUICK_SEVERAL = 3
QUICK_MESHES = 10
QUICK_APART = 8
LONG = 2_000
CHECKED = ("statuses of publishers", "ways of a publisher's topic")


def was_checked(soaked: Soaked, algorithm: str) -> bool:
    """Whether what `skipgraph` promises of a graph was looked at, and most of the time.

    Without all links there is none, which costs nothing to promise.
    """
    if algorithm.partition("?")[0] != "skipgraph":
        return True
    return soaked.checked["graphs"] >= 0.75 * soaked.schedules and all(
        soaked.checked[what] > 0 for what in CHECKED
    )


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


@pytest.mark.parametrize("profile", PROFILES + ATTACKS)
@pytest.mark.parametrize("algorithm", TREES)
def test_trees(algorithm: str, profile: str) -> None:
    """Of nodes that build them: over full meshes, and over other graphs."""
    soaked = soak(algorithm, range(QUICK_MESHES), profile=profile, max_failures=1)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_MESHES
    assert was_checked(soaked, algorithm), soaked.checked


@pytest.mark.parametrize("profile", ["outages", "kills", "double", "brokers", "expiry"])
@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree", "skipgraph"])
def test_confirmed(algorithm: str, profile: str) -> None:
    """What a publisher has an acknowledgment for is at every broker that wanted it."""
    soaked = soak(f"{algorithm}?confirm=fabric", range(QUICK_ATTACKS), profile=profile)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_ATTACKS
    assert was_checked(soaked, algorithm), soaked.checked


@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree", "topic-tree", "skipgraph"])
def test_forgetful(algorithm: str) -> None:
    """The same where nodes that keep nothing are killed, whatever they are."""
    soaked = soak(f"{algorithm}?confirm=fabric", range(QUICK_ATTACKS), profile="forgetful")
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_ATTACKS


@pytest.mark.parametrize("profile", ["outages", "kills", "double", "clocks"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rules(algorithm: str, profile: str) -> None:
    """Of links that not everything may cross, nor under the same name."""
    soaked = soak(f"{algorithm}?rules=drawn", range(QUICK_ATTACKS), profile=profile)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_ATTACKS


@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree"])
def test_set_apart(algorithm: str) -> None:
    """Brokers hang, nodes are away for long, disks fill: all arrives, and nobody waits for ever."""
    soaked = soak(algorithm, range(QUICK_APART), profile="apart", max_failures=1)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_APART


def test_set_apart_and_confirmed() -> None:
    """What waits on disk is not confirmed before it is at the broker."""
    soaked = soak("sf?confirm=fabric", range(QUICK_APART), profile="apart", max_failures=1)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_APART


@pytest.mark.parametrize("profile", ["outages", "kills", "churn", "chaos", "double", "clocks"])
def test_routed_retained(profile: str) -> None:
    """Retained messages are where they are wanted, also by who comes late."""
    soaked = soak("sf?retained=routed", range(QUICK_ATTACKS), profile=profile)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_ATTACKS


@pytest.mark.parametrize("profile", ["outages", "kills", "churn", "double", "brokers", "chaos"])
@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree"])
def test_from_brokers(algorithm: str, profile: str) -> None:
    """Nodes take messages from their brokers, half of them of clients past the nodes."""
    soaked = soak(f"{algorithm}?source=broker", range(QUICK_ATTACKS), profile=profile)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_ATTACKS


@pytest.mark.parametrize("confirm", ["local", "fabric"])
@pytest.mark.parametrize("profile", PROFILES + ATTACKS)
@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree", "skipgraph"])
def test_schedules_with_several_brokers(algorithm: str, profile: str, confirm: str) -> None:
    """Two brokers behind each node, of which one at a time crashes."""
    named = f"{algorithm}?brokers=2&confirm={confirm}"
    soaked = soak(named, range(QUICK_SEVERAL), profile=profile)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_SEVERAL


@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree", "skipgraph"])
def test_forgetful_with_several_brokers(algorithm: str) -> None:
    named = f"{algorithm}?brokers=2&confirm=fabric"
    soaked = soak(named, range(QUICK_SEVERAL), profile="forgetful")
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_SEVERAL


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["pf?brokers=3", "sf?brokers=2", "sf?brokers=2&confirm=fabric"]
)
def test_thousands_of_schedules_with_several_brokers(algorithm: str) -> None:
    soaked = soak(algorithm, range(1_000, 2_000))
    assert not soaked.failures, soaked.failures[0]


@pytest.fixture
def stars(monkeypatch: pytest.MonkeyPatch) -> str:
    """A star for every topic, over full meshes."""
    monkeypatch.syspath_prepend(EXAMPLES / "isthmus-stars" / "src")
    return STARS


@pytest.mark.parametrize("profile", PROFILES + ATTACKS)
def test_meshes(stars: str, profile: str) -> None:
    soaked = soak(stars, range(QUICK_MESHES), profile=profile, max_failures=1)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.deliveries > QUICK_MESHES


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_thousands_of_meshes(stars: str) -> None:
    soaked = soak(stars, range(10_000, 10_000 + LONG), max_failures=1)
    assert not soaked.failures, soaked.failures[0]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree", "topic-tree", "skipgraph"])
def test_thousands_of_confirmed_schedules(algorithm: str) -> None:
    soaked = soak(f"{algorithm}?confirm=fabric", range(10_000, 10_000 + LONG), max_failures=1)
    assert not soaked.failures, soaked.failures[0]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, *TREES, "topic-tree?roots=balance"])
def test_thousands_of_schedules(algorithm: str) -> None:
    soaked = soak(algorithm, range(10_000, 10_000 + LONG), max_failures=1)
    assert not soaked.failures, soaked.failures[0]
    assert soaked.schedules == LONG
    assert was_checked(soaked, algorithm), soaked.checked
