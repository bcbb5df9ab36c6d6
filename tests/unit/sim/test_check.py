"""`check_algorithm` finds algorithms that are wrong, and says how."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from isthmus.cooperation.api import Route, SessionInfo, SessionKind
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.cooperation.registry import Alone
from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding
from isthmus.sim.check import AlgorithmFailed, check_algorithm, check_scenario
from isthmus.sim.footprint import footprint


class Doubling(PublicationFlooding):
    """Sends everything twice."""

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        route = super().route(topic, arrived_on, retain=retain)
        return Route(route.neighbors * 2, route.to_local_broker)


class Forgetful(PublicationFlooding):
    """Forgets a neighbor whose connection is lost, although it is kept."""

    def on_tcp_down(self, session: SessionInfo) -> None:
        if session.kind is SessionKind.NEIGHBOR:
            self.on_session_closed(session)


class Clinging(SubscriptionFlooding):
    """Never takes an inter-subscription back."""

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        super().on_local_interest(added, ())


class Raising(PublicationFlooding):
    """Breaks down when a neighbor is lost."""

    def on_session_closed(self, session: SessionInfo) -> None:
        raise RuntimeError("a bug in a hook")


class Generalizing(SubscriptionFlooding):
    """Says of all topics what is true of one."""

    def route_of_all(self, arrived_on: SessionInfo) -> Route | None:
        return self.route("nobody/has/this", arrived_on, retain=False)


class Exaggerating(SubscriptionFlooding):
    """Says that everybody wants everything."""

    def route_of_all(self, arrived_on: SessionInfo) -> Route | None:
        others = (each for each in self._neighbors if each is not arrived_on)
        return Route(tuple(others), to_local_broker=arrived_on.kind is SessionKind.NEIGHBOR)


@pytest.mark.parametrize(
    ("algorithm", "scenario", "topology", "message"),
    [
        (Alone, "delivery", "pair", "should reach"),
        (Doubling, "delivery", "line", r"should reach .* once each; it reached .*8"),
        (Forgetful, "partition", "line", "'late' should reach"),
        (Clinging, "nothing-left", "pair", "grows with every turn"),
        (Raising, "neighbors", "pair", "a bug in a hook"),
        (Generalizing, "delivery", "pair", "should reach"),
    ],
)
def test_a_wrong_algorithm_is_found(
    algorithm: type[PublicationFlooding], scenario: str, topology: str, message: str
) -> None:
    with pytest.raises(AlgorithmFailed, match=message) as found:
        check_scenario(algorithm, scenario, topology)
    text = str(found.value)
    assert f"{scenario} on {topology}, seed 0" in text
    assert len(text.partition("the end of its trace:\n")[2].splitlines()) > 10


def test_what_is_said_of_all_topics_must_be_true_of_each() -> None:
    with pytest.raises(AlgorithmFailed, match=r"route_of_all\('any client'\) gives .* and route"):
        check_scenario(Exaggerating, "delivery", "pair")


def test_the_whole_suite_stops_at_the_first_failure() -> None:
    with pytest.raises(AlgorithmFailed, match="none: delivery on pair, seed 0"):
        check_algorithm(Alone)


def test_random_schedules_are_part_of_it() -> None:
    with pytest.raises(AlgorithmFailed, match=r"random schedule: .*\n\nto see it happen: python"):
        check_algorithm(Doubling, seeds=(), schedules=10)


def test_footprint_counts_entries_and_leaves_the_port_out() -> None:
    class Port:
        def __init__(self) -> None:
            self.large = list(range(1000))

    class Holder:
        __slots__ = ("inner", "port")

        def __init__(self) -> None:
            self.port = Port()
            self.inner = {"a": [1, 2, 3], "b": {4}}

    assert footprint(Holder()) == 2 + 3 + 1
