"""The experiments as tasks: which there are, what they count, the same every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from isthmus.errors import ReproduceError
from isthmus.reproduce.skipgraph import growth, paths, storage
from isthmus.reproduce.skipgraph.experiments import (
    FIGURES,
    KERNELS,
    LARGEST,
    Extent,
    Task,
    chosen_figures,
    tasks,
)
from isthmus.reproduce.skipgraph.jobs import JOBS
from isthmus.reproduce.skipgraph.points import EXPERIMENTS, Point, drawn_members, seed_of
from isthmus.reproduce.skipgraph.tables import TITLES
from isthmus.sim.bulk.levels import table_sizes
from isthmus.sim.bulk.patterns import PATTERNS, portions
from isthmus.sim.bulk.vectors import drawn_vectors
from isthmus.simulate.tallies import Counted

QUICK = Extent.of(quick=True, up_to=LARGEST[0])
FULL = Extent.of(quick=False, up_to=LARGEST[-1])


def sums(counted: Iterable[Counted], what: str) -> dict[str, tuple[int, int]]:
    """By run: how many things, and the sum of their values."""
    found: Counter[tuple[str, str]] = Counter()
    for run, _, tally in counted:
        if tally.what == what:
            found[run, "things"] += tally.things
            found[run, "total"] += tally.total
    return {run: (found[run, "things"], found[run, "total"]) for run, _ in found}


def test_every_figure_has_its_job_and_its_table() -> None:
    assert FIGURES.keys() == JOBS.keys() == TITLES.keys()
    assert set(FIGURES.values()) == set(EXPERIMENTS)
    assert chosen_figures([]) == list(FIGURES)
    assert chosen_figures(["fig4.9", "fig3.7"]) == ["fig3.7", "fig4.9"]
    with pytest.raises(ReproduceError, match=r"no 'fig9.9'; there are table3.1, fig3.7"):
        chosen_figures(["fig9.9"])


def test_sizes_that_there_are_not() -> None:
    with pytest.raises(ReproduceError, match="up to 5 nodes: choose one of 100,000, 1,000,000"):
        Extent.of(quick=False, up_to=5)
    assert Extent.of(quick=False, up_to=100_000).networks() == [1_000, 10_000, 100_000]
    assert FULL.large() == list(LARGEST)
    assert QUICK.networks() == [1_000, 10_000]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("extent", [QUICK, FULL])
def test_each_part_of_a_run_is_one_task(experiment: str, extent: Extent) -> None:
    """The thesis's points do not change when there are larger ones: a folder can be added to."""
    all_ = tasks(experiment, extent, 1)  # type: ignore[arg-type]
    parts = Counter((point.run, task.part) for task in all_ for point in task.points)
    assert set(parts.values()) == {1}
    for task in all_:
        assert (task.points[0].experiment, task.points[0].method) in KERNELS
        assert task.cost > 0
        assert task.memory_bytes > 0
    if extent is FULL:
        some = tasks(experiment, Extent(), 1)  # type: ignore[arg-type]
        assert set(some) <= set(all_)


def test_a_hundred_million_nodes_fit_into_sixteen_gib() -> None:
    """What needs all nodes at once ends earlier."""
    every = [task for name in EXPERIMENTS for task in tasks(name, FULL, 1)]
    assert max(point.nodes for task in every for point in task.points) == 100_000_000
    two = sorted((task.memory_bytes for task in every), reverse=True)[:2]
    assert sum(two) < 10 << 30


def test_names_and_labels_of_runs() -> None:
    point = Point("messages", "scribe", 100_000, 10, 0)
    assert point.run == "messages-scribe-n100000-p10-s0"
    assert point.labels(7)["seed"] == "7"
    assert point.labels(7)["subscribers"] == "0"
    assert seed_of(1, "a") != seed_of(2, "a") != seed_of(1, "b")
    assert seed_of(1, "a", 2) == seed_of(1, "a", 2)


@pytest.mark.parametrize(("nodes", "count"), [(1000, 1000), (1000, 10), (1_000_000, 500)])
def test_members_are_different_nodes(nodes: int, count: int) -> None:
    members = drawn_members(3, nodes, count)
    assert len(set(members.tolist())) == count
    assert members.min() >= 0
    assert members.max() < nodes
    assert (members == drawn_members(3, nodes, count)).all()


def test_a_network_in_portions_is_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hop sums, messages and pairs of both ways to simulate a network, to the last digit."""
    nodes = 300_000
    monkeypatch.setattr(paths, "ROUND_NODES", 0)
    for size in (10, 1000):
        points = tuple(
            Point("paths", "proposed", nodes, p.publishers, p.subscribers, pattern=p.name)
            for p in PATTERNS.values()
            if p.size == size and p.name not in ("beta", "gamma")
        )
        whole = list(paths.paths_whole(points, 0, 5))
        parts = range(len(list(portions(size, nodes))))
        assert len(parts) > 1
        portioned = [each for part in parts for each in paths.paths_portion(points, part, 5)]
        for what in ("hops", "messages"):
            assert sums(whole, what) == sums(portioned, what)


def test_the_last_portion_of_a_hundred_million_nodes() -> None:
    point = Point("paths", "proposed", 100_000_000, 1, 9, pattern="delta")
    last = len(list(portions(10, 100_000_000))) - 1
    ((pairs, hops),) = sums(paths.paths_portion([point], last, 1), "hops").values()
    assert pairs == 9 * (10_000_000 % (2**17 // 10))
    assert hops / pairs == pytest.approx(3.36, abs=0.15)


def test_the_number_of_nodes_makes_a_difference_to_scribe_alone() -> None:
    def hops(method: str, nodes: int) -> float:
        point = Point("paths", method, nodes, 1, 9, pattern="delta")  # type: ignore[arg-type]
        kernel = KERNELS["paths", method]  # type: ignore[index]
        ((pairs, total),) = sums(kernel([point], 0, 1), "hops").values()
        assert pairs >= 9 * 1000
        return total / pairs

    assert hops("proposed", 10_000) == pytest.approx(hops("proposed", 1_000), rel=0.03)
    assert hops("scribe", 10_000) > hops("scribe", 1_000) + 2.5


def test_messages_without_and_with_subscribers() -> None:
    points = [Point("messages", "proposed", 2_000, 10, size) for size in (1000, 10, 0)]
    ours = sums(paths.messages_proposed(points, 0, 1), "messages")
    assert ours["messages-proposed-n2000-p10-s0"] == (10, 0)
    assert 10_000 <= ours["messages-proposed-n2000-p10-s1000"][1] < 10_050
    others = [Point("messages", "scribe", 2_000, 10, size) for size in (1000, 10, 0)]
    scribe = sums(paths.messages_scribe(others, 0, 1), "messages")
    assert scribe["messages-scribe-n2000-p10-s0"] in ((10, 10), (10, 9))
    ((_, few), (_, ours_few)) = (
        scribe["messages-scribe-n2000-p10-s10"],
        ours["messages-proposed-n2000-p10-s10"],
    )
    assert few > 3 * ours_few


def test_rings_have_two_neighbors_in_each_level() -> None:
    vectors = drawn_vectors(1, 0, 500)
    entries, pairs = storage.ring_tables(vectors, distinct=True)
    naive = np.zeros(500, np.int64)
    near: set[tuple[int, int]] = set()
    for level in range(64):
        prefix = vectors & np.uint64((1 << level) - 1)
        for value in np.unique(prefix):
            ring = np.flatnonzero(prefix == value).tolist()
            if len(ring) > 1:
                naive[ring] += 2
                for left, right in zip(ring, ring[1:] + ring[:1], strict=True):
                    near |= {(left, right), (right, left)}
    assert (entries == naive).all()
    assert {divmod(int(pair), 500) for pair in pairs} == near
    assert (entries >= table_sizes(vectors)).all()  # lists have ends


def test_tables_grow_with_topics_and_scribes_less() -> None:
    def mean(method: str, topics: int, what: str = "entries") -> float:
        point = Point("tables", method, 2_000, topics=topics)  # type: ignore[arg-type]
        ((nodes, total),) = sums(KERNELS["tables", method]([point], 0, 1), what).values()  # type: ignore[index]
        assert nodes == 2_000
        return total / nodes

    assert mean("proposed", 4) == pytest.approx(2 * mean("proposed", 2), rel=0.05)
    assert mean("scribe", 2) < mean("scribe", 4) < mean("proposed", 4)
    assert mean("proposed", 4, "distinct_entries") < mean("proposed", 4)
    # A child is a neighbor in the DHT: only the roots that publishers have noted are new.
    more = mean("scribe", 4, "distinct_entries") - mean("scribe", 2, "distinct_entries")
    assert 0.7 < more < 1.3


def test_all_nodes_have_another_number_of_subscriptions() -> None:
    point = Point("shares", "proposed", 200, topics=200)
    found = [tally for _, _, tally in storage.shares_proposed([point], 0, 1)]
    assert sorted(tally.given or 0 for tally in found) == list(range(1, 201))
    low = sum(tally.total for tally in found if (tally.given or 0) <= 100)
    high = sum(tally.total for tally in found if (tally.given or 0) > 100)
    assert high > 2.5 * low


def test_growth_counts_every_pair_and_every_entry() -> None:
    members = growth.topics_of(1_000, 100)
    assert members == 20
    for method in ("proposed", "scribe", "bayeux"):
        point = Point("growth", method, 1_000, 10, 90, members)
        found = list(KERNELS["growth", method]([point], 0, 1))
        assert sums(found, "hops")[point.run][0] == 20 * 10 * 90
        nodes, entries = sums(found, "entries")[point.run]
        assert nodes == 1_000
        assert entries > 1_000
        assert (sums(found, "idle_messages")[point.run][1] == 0) is (method == "proposed")
    point = Point("growth", "can-mc", 1_000, 10, 90, members, 2)
    found = list(growth.growth_can_mc([point], 0, 1))
    missed = sums(found, "missed")[point.run]
    assert sums(found, "hops")[point.run][0] == missed[0] - missed[1]
    assert sums(found, "idle_messages")[point.run][1] > 10


@pytest.mark.parametrize("experiment", ["messages", "depths", "assignment", "growth"])
def test_the_same_seed_counts_the_same(experiment: str) -> None:
    some = tasks(experiment, QUICK, 3)[:2]  # type: ignore[arg-type]
    again = tasks(experiment, QUICK, 3)[:2]  # type: ignore[arg-type]
    assert [list(task.counted()) for task in some] == [list(task.counted()) for task in again]
    if experiment in ("messages", "growth"):
        other = Task(some[0].points, 4, some[0].part)
        assert list(other.counted()) != list(some[0].counted())
