"""What clients do keeps to the model's assumptions."""

from __future__ import annotations

from collections import Counter

import pytest

from isthmus.reproduce.geo.model import Parameters
from isthmus.reproduce.geo.workload import Change, Publication, Topic, Workload, prefix


def test_cells_are_counted_in_z_order() -> None:
    assert [prefix(cell, 1) for cell in range(4)] == ["0", "1", "2", "3"]
    assert prefix(27, 3) == "1/2/3"
    assert len({prefix(cell, 3) for cell in range(64)}) == 64
    assert Topic(6, 1).text(2) == "1/2/p1"


@pytest.mark.parametrize(("k", "publishers", "subscribers"), [(1, 2, 5), (2, 5, 10), (3, 2, 20)])
def test_every_listener_has_one_publisher_and_changes_once(
    k: int, publishers: int, subscribers: int
) -> None:
    of = Parameters(k, publishers, subscribers)
    workload = Workload(of)
    assert len(workload.listeners) == of.areas * subscribers
    for cell in range(of.areas):
        ours = [each for each in workload.listeners if each.cell == cell]
        remote = [each for each in ours if each.before.cell != cell]
        assert len(ours) == subscribers
        assert len(remote) == of.remote * subscribers
        for each in ours:
            assert each.before != each.after
            assert (each.before.cell == cell) == (each.after.cell == cell)
        elsewhere = [topic for each in remote for topic in (each.before, each.after)]
        assert len(elsewhere) == len(set(elsewhere))
    changes = Counter(each.listener for each in workload.steps() if isinstance(each, Change))
    assert changes == Counter(workload.listeners)
    sent = Counter(each.topic for each in workload.steps() if isinstance(each, Publication))
    assert sent == Counter(dict.fromkeys(workload.topics, 3))


def test_the_seed_decides() -> None:
    of = Parameters(2, 5, 5)
    assert Workload(of, 1).listeners == Workload(of, 1).listeners
    assert Workload(of, 1).listeners != Workload(of, 2).listeners


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        (Parameters(1, 1, 5), "takes two of them"),
        (Parameters(0, 2, 5), "takes two of them"),
        (Parameters(1, 2, 4), "no whole number"),
        (Parameters(1, 2, 5, subscribe_every_s=25), "no multiple"),
        (Parameters(1, 2, 20), "too few publishers"),
    ],
)
def test_what_the_model_does_not_have_is_refused(of: Parameters, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Workload(of)
