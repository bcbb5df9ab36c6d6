"""SF does nothing long in one turn of the event loop, whatever clients and neighbors send.

A ── B ── C
"""

from __future__ import annotations

from itertools import product

import pytest

from isthmus.cooperation.api import MAX_LEVELS, CooperationAlgorithm, ReceivedPacket
from isthmus.cooperation.subscription_flooding.algorithm import (
    SLICE,
    SYNC_TOPIC,
    SubscriptionFlooding,
)
from isthmus.cooperation.subscription_flooding.neighbor import BATCH_FILTERS, MAX_INBOX
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.interest import SLICE as RELEASED
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.filters.cover_table import MAX_CREDIT
from isthmus.mqtt.packets import Packet, Publish, Subscribe, Subscription, Unsubscribe
from support.algorithm_network import FakeNetwork

LONGEST_STEP = MAX_CREDIT + 4 * BATCH_FILTERS


class Counted(SubscriptionFlooding):
    """Remembers how much it did in its longest turn."""

    longest = 0
    turns = 0

    def on_timer(self, key: object) -> None:
        self.longest = max(self.longest, self.slice_steps - self._left)
        self.turns += 1
        super().on_timer(key)


def line() -> FakeNetwork:
    network = FakeNetwork(Counted, "ABC")
    network.connect("A", "B")
    network.connect("B", "C")
    network.settle()
    return network


def counted(network: FakeNetwork, node: str) -> Counted:
    algorithm = network.algorithms[node]
    assert isinstance(algorithm, Counted)
    return algorithm


def received(network: FakeNetwork, node: str, neighbor: str) -> set[str]:
    return set(counted(network, node).received_from(network.session(node, neighbor)))


def arrives(network: FakeNetwork, packet: Packet) -> None:
    """A packet from node A at node B, as if sent; A does not hear the answer."""
    network.algorithms["A"] = CooperationAlgorithm(network.ports["A"], {})
    counted(network, "B").mqtt_message_arrived(
        network.session("B", "A"), ReceivedPacket(encode(packet, 5))
    )


def subscribe(packet_id: int, *filters: str) -> Subscribe:
    return Subscribe(packet_id, tuple(Subscription(each, qos=2) for each in filters))


def test_a_client_with_hard_filters_hangs_up() -> None:
    """Each level ``+`` or ``a``: 8,191 of them held the loop for 114 s."""
    network = line()
    filters = ["/".join(chosen) + "/#" for chosen in product("+a", repeat=13)][:0:-1]
    client = network.client("A", "hostile")
    for at in range(0, len(filters), 1000):
        client.subscribe(*filters[at : at + 1000])
    network.client("A", "other").subscribe("a/a/a")
    network.settle()
    largest = {each for each in filters if each.count("a") == 1}
    assert received(network, "C", "B") == {*largest, "a/a/a"}
    client.drop()
    assert network.turn()
    assert len(network.ports["A"].local_filters) == len(filters) + 1 - RELEASED
    assert counted(network, "A").working
    network.settle()
    assert received(network, "C", "B") == {"a/a/a"}
    for node in "ABC":
        assert counted(network, node).longest <= SLICE + LONGEST_STEP


def test_many_clients_hang_up_together() -> None:
    """30 with 10,000 filters each held the loop for 0.7 s."""
    network = line()
    clients = [network.client("A", f"client-{number}") for number in range(20)]
    for number, client in enumerate(clients):
        client.subscribe(*(f"{number}/{each}/x" for each in range(1_000)))
    network.settle()
    assert len(received(network, "C", "B")) == 20_000
    for client in clients:
        client.drop()
    assert len(network.ports["A"].local_filters) == 20_000
    assert network.turn()
    assert len(network.ports["A"].local_filters) == 20_000 - RELEASED
    assert network.turn()
    assert counted(network, "A").working
    # Who is back before its old set is through has what it wants now, and loses none of it.
    network.client("A", "client-19").subscribe("19/0/x", "19/new")
    while network.turn() or network.pending():
        assert network.publish("A", "19/0/x").brokers == {}
        assert network.publish("C", "19/0/x").brokers["A"] == 1
        for direction in network.pending():
            network.deliver(*direction)
    assert set(network.ports["A"].local_filters) == {"19/0/x", "19/new"}
    assert received(network, "C", "B") == {"19/0/x", "19/new"}
    assert network.ports["A"].clients.status() == {
        "clients": 1,
        "persistent_clients": 0,
        "filters": 2,
    }
    assert counted(network, "A").longest <= SLICE + LONGEST_STEP


def test_many_inter_subscriptions_of_one_neighbor() -> None:
    """In order and acknowledged packet by packet, but not in one turn."""
    network = line()
    turns = counted(network, "B").turns
    arrives(network, Publish(SYNC_TOPIC, b"begin"))
    for number in range(20):
        filters = [f"site/{number}/{each}/+" for each in range(BATCH_FILTERS)]
        arrives(network, subscribe(number + 1, *filters))
    assert counted(network, "B").working
    assert len(received(network, "B", "A")) < 20 * BATCH_FILTERS
    network.settle()
    assert counted(network, "B").turns - turns > 20
    assert counted(network, "B").longest <= SLICE + LONGEST_STEP
    assert len(received(network, "B", "A")) == 20 * BATCH_FILTERS
    assert len(received(network, "C", "B")) == 20 * BATCH_FILTERS
    assert network.publish("C", "site/19/999/x").links["C", "B"] == 1
    network.remove("A", "B")
    assert network.publish("C", "site/19/999/x").links == {("C", "B"): 1}  # not yet that far
    network.settle()
    assert received(network, "C", "B") == set()
    assert counted(network, "B").longest <= SLICE + LONGEST_STEP


def test_the_end_comes_after_all_that_was_wanted() -> None:
    network = line()
    client = network.client("A")
    filters = [f"t/{number}" for number in range(5_000)]
    for at in range(0, len(filters), 1000):
        client.subscribe(*filters[at : at + 1000])
    network.settle()
    network.cut("A", "B")
    client.unsubscribe("t/0")
    network.ports["B"].synchronized_with.clear()
    network.connect("A", "B")
    while network.session("B", "A") not in network.ports["B"].synchronized_with:
        assert received(network, "B", "A") >= set(filters[1:])
        if pending := network.pending():
            network.deliver(*pending[0])
        else:
            assert network.turn()
    assert received(network, "B", "A") == set(filters[1:])


@pytest.mark.parametrize(
    "packet",
    [
        subscribe(1, *(str(number) for number in range(BATCH_FILTERS + 1))),
        Unsubscribe(1, tuple(str(number) for number in range(BATCH_FILTERS + 1))),
        subscribe(1, *(str(number) * 1000 for number in range(10, 50))),
        subscribe(1, "x" * 60_000, "y"),
        subscribe(1, "/" * MAX_LEVELS),
    ],
    ids=["filters", "ended filters", "bytes", "bytes of two", "levels"],
)
def test_packets_larger_than_the_limits_are_the_peers_fault(packet: Packet) -> None:
    network = line()
    with pytest.raises(RemoteProtocolError):
        arrives(network, packet)
    assert received(network, "B", "A") == set()


def test_one_long_filter_is_no_fault() -> None:
    network = line()
    arrives(network, subscribe(1, "x" * 65_535))
    assert received(network, "B", "A") == {"x" * 65_535}


def test_a_neighbor_that_does_not_wait_for_answers_is_cut_off() -> None:
    network = line()
    busy = [f"a/{number}/+" for number in range(BATCH_FILTERS)]
    while not counted(network, "B").working:
        arrives(network, subscribe(1, *busy))
    for number in range(MAX_INBOX):
        arrives(network, subscribe(number + 2, *busy))
    with pytest.raises(RemoteProtocolError, match="without waiting"):
        arrives(network, subscribe(1, *busy))


def test_what_is_found_wrong_later_closes_the_session_all_the_same() -> None:
    network = line()
    for number in range(10):
        arrives(network, subscribe(number + 1, *(f"{number}/{at}" for at in range(BATCH_FILTERS))))
    arrives(network, subscribe(99, "$SYS/#"))
    arrives(network, subscribe(100, "never/looked/at"))
    assert network.ports["B"].refused == []
    network.settle()
    [(session, error)] = network.ports["B"].refused
    assert session is network.session("B", "A")
    assert "$SYS" in str(error)
    assert "never/looked/at" not in received(network, "B", "A")


def test_of_a_filter_with_many_levels_the_beginning_is_announced() -> None:
    network = line()
    deep = "/".join(f"{level}" for level in range(1_000))
    network.client("A").subscribe(deep)
    network.settle()
    (announced,) = received(network, "B", "A")
    assert announced == "/".join(f"{level}" for level in range(MAX_LEVELS - 1)) + "/#"
    assert network.publish("C", deep).brokers == {"A": 1}


def test_a_topic_that_takes_too_long_goes_everywhere() -> None:
    network = line()
    client = network.client("A", "hostile")
    filters = ["/".join(chosen) + "/x" for chosen in product("+a", repeat=14)]
    filters = [each for each in filters if each.count("+") == 7]
    for at in range(0, len(filters), 1000):
        client.subscribe(*filters[at : at + 1000])
    network.settle()
    topic = "/".join("a" * 14) + "/y"
    for _ in range(50):
        links = network.publish("B", topic).links
        assert links in ({}, {("B", "A"): 1, ("B", "C"): 1})
    assert links
    assert counted(network, "B").status()["topics_sent_everywhere"]
    assert network.publish("B", "/".join("a" * 14) + "/x").brokers["A"] == 1
    assert network.publish("B", "other").links == {}
