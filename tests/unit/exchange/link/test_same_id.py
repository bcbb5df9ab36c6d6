"""Two nodes of one id: what a node believes, from whom, and for how long."""

from __future__ import annotations

from typing import Any, cast

import pytest

from isthmus.exchange.host import Host
from isthmus.exchange.link.same_id import FORGET_S, IdConflict


class Surroundings:
    now_s = 0.0

    def __init__(self) -> None:
        self.logged: list[str] = []

    def now(self) -> float:
        return self.now_s

    def log(self, level: str, event: str, **fields: Any) -> None:
        self.logged.append(str(fields["cause"]))


@pytest.fixture
def host() -> Surroundings:
    return Surroundings()


@pytest.fixture
def conflict(host: Surroundings) -> IdConflict:
    return IdConflict(cast(Host, host), "a", patience_s=5.0)


def test_what_was_seen_is_forgotten_in_time_and_told_once(
    conflict: IdConflict, host: Surroundings
) -> None:
    conflict.told("refused")
    conflict.told("refused again")
    conflict.gone("b")
    host.now_s = FORGET_S - 1
    assert conflict.reason == "refused again"
    host.now_s = FORGET_S
    assert not conflict.reason
    assert host.logged == ["refused"]


def test_the_word_of_a_neighbor_ends_with_its_link(conflict: IdConflict) -> None:
    conflict.told("'x' says: I lie", by="x")
    conflict.gone("b")
    assert conflict.reason == "'x' says: I lie"
    conflict.gone("x")
    assert not conflict.reason


def test_what_was_also_seen_stays(conflict: IdConflict) -> None:
    conflict.told("'x' says: another one", by="x")
    conflict.told("refused")
    conflict.gone("x")
    assert conflict.reason == "refused"


def test_another_life_counts_only_when_it_lasts(conflict: IdConflict, host: Surroundings) -> None:
    conflict.announced(("1f",))
    host.now_s = 5.0
    conflict.announced(("1f",))
    assert not conflict.reason
    host.now_s = 6.0
    conflict.announced(("1f",))
    assert conflict.reason
