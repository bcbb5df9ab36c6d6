"""Every link that is up is the algorithm's."""

from __future__ import annotations

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.topology.guard import Reach, TopologyGuard
from isthmus.exchange.topology.open import OpenTopology


class Actions:
    def __init__(self) -> None:
        self.done: list[str] = []

    def send(self, neighbor: str, payload: bytes) -> None:
        self.done.append(f"send {neighbor}")

    def activate(self, neighbor: str) -> None:
        self.done.append(f"activate {neighbor}")

    def block(self, neighbor: str, ring: tuple[str, ...]) -> None:
        self.done.append(f"block {neighbor}")

    def pause(self, pause_s: float) -> None:
        self.done.append("pause")

    def topology_changed(self) -> None:
        self.done.append("changed")


@pytest.fixture
def actions() -> Actions:
    return Actions()


@pytest.fixture
def topology(actions: Actions) -> OpenTopology:
    return OpenTopology("here", "1f", actions, lambda: 0)


def test_a_link_is_active_as_soon_as_it_is_up(topology: OpenTopology, actions: Actions) -> None:
    for name in "abc":
        topology.link_up(name)
    topology.link_down("b")
    assert actions.done == [*(f for n in "abc" for f in (f"activate {n}", "changed")), "changed"]


def test_only_neighbors_are_known(topology: OpenTopology) -> None:
    topology.link_up("a")
    assert topology.reach() == {"a": Reach("a", ("here", "a"))}
    assert topology.ways() is topology.ways()
    assert topology.other_lives() == ()


def test_the_status_has_the_form_of_the_guards(topology: OpenTopology, actions: Actions) -> None:
    topology.link_up("a")
    status, guards = topology.status(), TopologyGuard("here", "1f", actions).status()
    assert status.keys() == guards.keys()
    assert status["nodes"] == ["a", "here"]
    assert status["links"] == [{"ends": ["a", "here"], "birth": 0, "state": "active"}]
    assert status["paths"] == {"a": ["here", "a"]}


def test_messages_may_come_from_anywhere_but_our_own(topology: OpenTopology) -> None:
    assert topology.is_primary("x", "a")
    assert not topology.is_primary("here", "a")


def test_the_size_is_what_the_algorithm_says_or_more(actions: Actions) -> None:
    said = 0
    topology = OpenTopology("here", "1f", actions, lambda: said)
    topology.link_up("a")
    assert topology.size == 2
    said = 100
    assert topology.size == 100


def test_announcements_are_an_error(topology: OpenTopology) -> None:
    with pytest.raises(RemoteProtocolError, match="a announces its links"):
        topology.message_arrived("a", b"{}")
