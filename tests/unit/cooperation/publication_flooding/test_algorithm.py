"""PF: ILDM §3.1 and Fig. 6.

I1 ── I2 ── I3 ── I5        C1 at I2, C2 at I3, C3 at I5
      │
      I4
"""

from __future__ import annotations

import pytest

from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from support.algorithm_network import FakeNetwork

FIG_6 = [("1", "2"), ("2", "3"), ("2", "4"), ("3", "5")]


@pytest.fixture
def network() -> FakeNetwork:
    network = FakeNetwork(PublicationFlooding, "12345")
    for a, b in FIG_6:
        network.connect(a, b)
    return network


def test_figure_6(network: FakeNetwork) -> None:
    network.client("2", "C1").subscribe("t")  # step 1
    network.client("3", "C2").subscribe("t")  # step 2
    assert network.sent == []  # subscriptions stay with their broker

    delivery = network.publish("5", "t")  # step 3: C3 publishes

    assert delivery.links == {("5", "3"): 1, ("3", "2"): 1, ("2", "1"): 1, ("2", "4"): 1}
    assert delivery.brokers == {"1": 1, "2": 1, "3": 1, "4": 1}


@pytest.mark.parametrize("publisher", list("12345"))
@pytest.mark.parametrize("retain", [False, True])
def test_every_other_broker_gets_it_once(
    network: FakeNetwork, publisher: str, retain: bool
) -> None:
    delivery = network.publish(publisher, "any/topic", retain=retain)
    assert delivery.brokers == dict.fromkeys(set("12345") - {publisher}, 1)
    assert delivery.links.total() == 4


def test_what_starts_with_a_dollar_stays(network: FakeNetwork) -> None:
    delivery = network.publish("5", "$SYS/uptime")
    assert not delivery.links
    assert not delivery.brokers


def test_a_link_that_is_down_is_kept_and_a_removed_one_is_not(network: FakeNetwork) -> None:
    network.cut("2", "3")
    assert network.publish("5", "t").links == {("5", "3"): 1, ("3", "2"): 1}
    network.remove("2", "3")
    assert network.publish("5", "t").links == {("5", "3"): 1}
    network.connect("2", "3")
    assert network.publish("5", "t").links.total() == 4


def test_routes_are_forgotten_when_neighbors_change(network: FakeNetwork) -> None:
    changed = network.ports["3"].changed_routes
    assert changed == [None, None]
    network.cut("2", "3")
    network.connect("2", "3")
    assert len(changed) == 2  # the same neighbor again
    network.remove("2", "3")
    assert changed == [None, None, None]
    assert network.algorithms["3"].status() == {"neighbors": ["5"]}
