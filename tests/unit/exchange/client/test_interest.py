"""How many local clients want each filter, and what is told of it."""

from __future__ import annotations

from typing import cast

import pytest

from isthmus.exchange.client.interest import SLICE, LocalInterest
from isthmus.exchange.host import Host
from support.algorithm_network import FakePort

Changes = list[tuple[tuple[str, ...], tuple[str, ...]]]


@pytest.fixture
def port() -> FakePort:
    return FakePort()


@pytest.fixture
def changes() -> Changes:
    return []


@pytest.fixture
def interest(port: FakePort, changes: Changes) -> LocalInterest:
    return LocalInterest(
        cast("Host", port), lambda added, removed: changes.append((added, removed))
    )


def test_only_the_first_and_the_last_are_told(interest: LocalInterest, changes: Changes) -> None:
    for step in (interest.hold, interest.hold, interest.release, interest.release):
        step("a")
        interest.report()
    assert changes == [(("a",), ()), ((), ("a",))]
    assert not interest.filters


def test_what_comes_and_goes_before_a_report_is_not_told(
    interest: LocalInterest, changes: Changes
) -> None:
    interest.hold("a")
    interest.release("a")
    interest.report()
    assert changes == []
    interest.hold("a")
    interest.report()
    interest.release("a")
    interest.hold("a")
    interest.report()
    assert changes == [(("a",), ())]


def test_what_has_ended_is_released_in_slices(
    interest: LocalInterest, port: FakePort, changes: Changes
) -> None:
    sets = [[f"{client}/{each}" for each in range(size)] for client, size in enumerate((3, 2500))]
    for filters in sets:
        for each in filters:
            interest.hold(each)
    interest.report()
    changes.clear()
    for filters in sets:
        interest.release_soon(filters)
    assert len(interest.filters) == 2503
    interest.hold("0/0")  # wanted again before the old set is through
    left = []
    while port.timers:
        (timer,) = port.timers
        port.fire(timer, print)
        left.append(len(interest.filters))
    assert left == [2504 - SLICE, 2504 - 2 * SLICE, 1]
    assert list(interest.filters) == ["0/0"]
    assert sum(len(removed) for _, removed in changes) == 2502
    assert max(len(removed) for _, removed in changes) <= SLICE
    interest.release_soon(["0/0"])
    assert len(port.timers) == 1, "it begins again"
