"""SF: ILDM §3.2, §3.2.1, §4.4, and Fig. 7 and 8 with every message counted.

Fig. 7:    I1 ── I2 ── I3 ── I5        C1 at I2, C2 at I3, C3 at I5
                 │
                 I4

Fig. 8:    I1 ── I2 ── I3              C1 at I1 (t1), C2 at I3 (t2), C3 at I4 (t3)
                 ┊
                 I4
"""

from __future__ import annotations

import pytest

from isthmus.cooperation.api import ReceivedPacket, Route, SessionInfo, SessionKind
from isthmus.cooperation.subscription_flooding import neighbor as inter_subscriptions
from isthmus.cooperation.subscription_flooding.algorithm import SYNC_TOPIC, SubscriptionFlooding
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Packet,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.reason_codes import ReasonCode
from support.algorithm_network import FakeNetwork

FIG_7 = [("1", "2"), ("2", "3"), ("2", "4"), ("3", "5")]


def fabric(nodes: str, links: list[tuple[str, str]]) -> FakeNetwork:
    network = FakeNetwork(SubscriptionFlooding, nodes)
    for a, b in links:
        network.connect(a, b)
    network.settle()
    network.sent.clear()
    return network


def sf(network: FakeNetwork, node: str) -> SubscriptionFlooding:
    algorithm = network.algorithms[node]
    assert isinstance(algorithm, SubscriptionFlooding)
    return algorithm


def received(network: FakeNetwork, node: str, neighbor: str) -> list[str]:
    """What `neighbor` has inter-subscribed on `node`."""
    return sorted(sf(network, node).received_from(network.session(node, neighbor)))


def step(network: FakeNetwork) -> dict[tuple[str, str], list[str]]:
    """Let everything settle; the inter-subscribes of this step; then count anew."""
    network.settle()
    told = network.told(Subscribe)
    assert not network.told(Unsubscribe)
    network.sent.clear()
    return told


def test_figure_7() -> None:
    network = fabric("12345", FIG_7)

    network.client("2", "C1").subscribe("t")  # step 1
    assert step(network) == {
        ("2", "1"): ["t"],
        ("2", "3"): ["t"],
        ("2", "4"): ["t"],
        ("3", "5"): ["t"],
    }

    network.client("3", "C2").subscribe("t")  # step 2
    assert step(network) == {("3", "2"): ["t"]}

    delivery = network.publish("5", "t")  # step 3
    assert delivery.links == {("5", "3"): 1, ("3", "2"): 1}
    assert delivery.brokers == {"2": 1, "3": 1}


def test_figure_8() -> None:
    network = fabric("1234", [("1", "2"), ("2", "3")])
    network.client("1", "C1").subscribe("t1")
    network.client("3", "C2").subscribe("t2")
    network.client("4", "C3").subscribe("t3")
    network.settle()
    before = {("1", "2"): received(network, "2", "1"), ("3", "2"): received(network, "2", "3")}
    assert before == {("1", "2"): ["t1"], ("3", "2"): ["t2"]}
    network.sent.clear()

    network.connect("2", "4")
    assert step(network) == {
        ("2", "4"): ["t1", "t2"],
        ("4", "2"): ["t3"],
        ("2", "1"): ["t3"],
        ("2", "3"): ["t3"],
    }
    assert network.publish("4", "t1").links == {("4", "2"): 1, ("2", "1"): 1}
    assert network.publish("1", "t3").links == {("1", "2"): 1, ("2", "4"): 1}

    network.remove("2", "4")  # §4.4: leaves the state that §3.2.1 gives
    network.settle()
    assert network.told(Subscribe) == {}
    assert network.told(Unsubscribe) == {("2", "1"): ["t3"], ("2", "3"): ["t3"]}
    assert received(network, "1", "2") == ["t2"]
    assert received(network, "3", "2") == ["t1"]


def test_unsubscribing_follows_the_rule_of_3_2_1() -> None:
    network = fabric("12345", FIG_7)
    c1 = network.client("2", "C1").subscribe("t")
    c2 = network.client("3", "C2").subscribe("t")
    network.settle()
    network.sent.clear()

    c1.unsubscribe("t")  # I3 still wants it: I2 keeps it on all but I3
    network.settle()
    assert network.told(Unsubscribe) == {("2", "3"): ["t"]}
    network.sent.clear()

    c2.unsubscribe("t")
    network.settle()
    assert network.told(Unsubscribe) == {
        ("3", "2"): ["t"],
        ("3", "5"): ["t"],
        ("2", "1"): ["t"],
        ("2", "4"): ["t"],
    }
    for node in "12345":
        assert network.publish(node, "t").links == {}


def test_nothing_is_inter_subscribed_before_the_suback() -> None:
    network = fabric("12", [("1", "2")])
    client = network.client("1")
    client.says(Subscribe(9, (Subscription("a"), Subscription("b"))))
    assert network.sent == []
    client.hears(SubAck(9, (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED)))
    assert step(network) == {("1", "2"): ["a"]}


def test_a_covered_filter_is_not_sent_and_is_restored() -> None:
    network = fabric("123", [("1", "2"), ("2", "3")])
    client = network.client("1").subscribe("a/#")
    assert step(network) == {("1", "2"): ["a/#"], ("2", "3"): ["a/#"]}
    client.subscribe("a/b", "a/+/c")
    assert step(network) == {}
    client.unsubscribe("a/#")
    network.settle()
    kinds = [type(packet) for sender, _, packet in network.sent if sender == "1"]
    assert kinds == [Subscribe, Unsubscribe]  # in one packet each, and never without either
    assert sorted(network.told(Subscribe)["1", "2"]) == ["a/+/c", "a/b"]
    assert network.told(Unsubscribe) == {("1", "2"): ["a/#"], ("2", "3"): ["a/#"]}
    assert received(network, "3", "2") == ["a/+/c", "a/b"]


def test_a_covering_filter_replaces_what_it_covers() -> None:
    network = fabric("12", [("1", "2")])
    client = network.client("1").subscribe("a/b", "a/c", "d")
    network.settle()
    network.sent.clear()
    client.subscribe("a/+")
    network.settle()
    assert network.told(Subscribe) == {("1", "2"): ["a/+"]}
    assert sorted(network.told(Unsubscribe)["1", "2"]) == ["a/b", "a/c"]
    assert received(network, "2", "1") == ["a/+", "d"]


def test_retained_messages_go_everywhere() -> None:
    network = fabric("12345", FIG_7)
    delivery = network.publish("5", "t", retain=True)
    assert delivery.brokers == {"1": 1, "2": 1, "3": 1, "4": 1}
    assert network.publish("5", "$SYS/t", retain=True).links == {}


def test_what_starts_with_a_dollar_stays() -> None:
    network = fabric("12", [("1", "2")])
    network.client("1").subscribe("$SYS/#", "#")
    assert step(network) == {("1", "2"): ["#"]}
    assert network.publish("2", "$SYS/load").links == {}
    assert network.publish("2", "load").brokers == {"1": 1}


def test_a_link_that_was_down_is_brought_up_to_date() -> None:
    network = fabric("123", [("1", "2"), ("2", "3")])
    client = network.client("1").subscribe("old", "kept")
    network.settle()
    network.cut("1", "2")
    client.unsubscribe("old").subscribe("new")
    assert received(network, "2", "1") == ["kept", "old"]  # nothing is forgotten meanwhile
    assert network.publish("3", "old").links == {("3", "2"): 1, ("2", "1"): 1}
    network.sent.clear()

    network.connect("1", "2")
    network.settle()
    ones = [packet for sender, _, packet in network.sent if sender == "1"]
    begin, end = Publish(SYNC_TOPIC, b"begin"), Publish(SYNC_TOPIC, b"end")
    assert [ones[0], ones[2]] == [begin, end]
    assert received(network, "2", "1") == ["kept", "new"]
    assert received(network, "3", "2") == ["kept", "new"]
    # The far node hears of the difference only.
    assert network.told(Subscribe)["2", "3"] == ["new"]
    assert network.told(Unsubscribe) == {("2", "3"): ["old"]}


def test_a_synchronization_that_is_cut_off_begins_anew() -> None:
    network = fabric("12", [("1", "2")])
    client = network.client("1").subscribe("a")
    network.settle()
    network.cut("1", "2")
    client.unsubscribe("a").subscribe("b")
    network.connect("1", "2")
    network.deliver("1", "2")  # begin
    network.deliver("1", "2")  # b
    network.cut("1", "2")
    assert received(network, "2", "1") == ["a", "b"]
    network.connect("1", "2")
    network.settle()
    assert received(network, "2", "1") == ["b"]


def test_an_end_that_was_given_up_on_one_side_only() -> None:
    network = fabric("12", [("1", "2")])
    network.client("1").subscribe("a")
    network.client("2").subscribe("b")
    network.settle()
    network.cut("1", "2")
    network.give_up("1", "2")
    assert network.publish("1", "b").links == {}
    network.connect("1", "2")
    network.settle()
    assert received(network, "1", "2") == ["b"]
    assert received(network, "2", "1") == ["a"]


def test_routes_touched_by_a_change_are_forgotten() -> None:
    network = fabric("12", [("1", "2")])
    here, there = network.ports["1"].changed_routes, network.ports["2"].changed_routes
    here.clear()
    there.clear()
    client = network.client("1").subscribe("a/+")
    network.settle()
    assert (here, there) == ([["a/+"]], [["a/+"]])
    client.unsubscribe("a/+")
    network.settle()
    assert (here[1:], there[1:]) == ([["a/+"]], [["a/+"]])
    network.remove("1", "2")
    assert here[2:] == [None]  # of retained messages, on every topic


def test_a_large_synchronization_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inter_subscriptions, "BATCH_FILTERS", 3)
    monkeypatch.setattr(SubscriptionFlooding, "window", 2)
    network = FakeNetwork(SubscriptionFlooding, "123")
    wanted = [f"t/{number}" for number in range(20)]
    client = network.client("1").subscribe(*wanted)
    network.connect("2", "3")
    network.connect("1", "2")
    ones = [packet for sender, _, packet in network.sent if sender == "1"]
    assert [type(packet) for packet in ones] == [Publish, Subscribe, Subscribe]
    client.unsubscribe("t/0", "t/19").subscribe("t/20")  # one is told already, one is not
    network.settle()
    assert received(network, "2", "1") == sorted({*wanted[1:19], "t/20"})
    assert received(network, "3", "2") == received(network, "2", "1")
    assert max(len(each) for each in _batches(network)) == 3
    assert "t/19" not in network.told(Subscribe)["1", "2"]
    status = sf(network, "1").status()["neighbors"]
    assert status == {
        "2": {
            "established": True,
            "synchronizing": False,
            "received_filters": 0,
            "announced_filters": 19,
            "uncompared_filters": 0,
            "waiting_filters": 0,
            "unacknowledged_packets": 0,
        }
    }


def _batches(network: FakeNetwork) -> list[tuple[Subscription, ...]]:
    return [packet.subscriptions for *_, packet in network.sent if isinstance(packet, Subscribe)]


def test_a_packet_stays_below_its_size() -> None:
    network = fabric("12", [("1", "2")])
    long = [f"{number}/" + "x" * 10_000 for number in range(7)]
    network.client("1").subscribe(*long, "y" * 65_535)
    network.settle()
    sizes = [len(encode(packet, 5)) for *_, packet in network.sent if isinstance(packet, Subscribe)]
    assert len(sizes) == 4
    assert sorted(sizes)[-2] <= inter_subscriptions.BATCH_BYTES + 16
    assert len(received(network, "2", "1")) == 8


def test_what_does_not_exist_is_unsubscribed_without_harm() -> None:
    network = fabric("12", [("1", "2")])
    arrives(network, Unsubscribe(5, ("nothing",)))
    assert network.sent[-1] == ("1", "2", UnsubAck(5, (ReasonCode.NO_SUBSCRIPTION_EXISTED,)))


def arrives(network: FakeNetwork, packet: Packet) -> None:
    """A packet from node 2 at node 1, as if sent."""
    sf(network, "1").mqtt_message_arrived(
        network.session("1", "2"), ReceivedPacket(encode(packet, 5))
    )


@pytest.mark.parametrize(
    "packet",
    [
        Publish(SYNC_TOPIC, b"middle"),
        Publish(SYNC_TOPIC, b"end"),  # without a begin
        Publish("$isthmus/sf/other", b"begin"),
        Subscribe(1, (Subscription("fine"), Subscription("$SYS/#"))),
        Subscribe(1, (Subscription("$share/g/t"),)),
        SubAck(77, (ReasonCode.SUCCESS,)),  # to nothing that was sent
        UnsubAck(77, (ReasonCode.SUCCESS,)),
    ],
)
def test_control_packets_that_mean_nothing_are_the_peers_fault(packet: Packet) -> None:
    network = fabric("12", [("1", "2")])
    with pytest.raises(RemoteProtocolError):
        arrives(network, packet)
    assert received(network, "1", "2") == []


def test_bytes_that_mean_nothing_are_the_peers_fault() -> None:
    network = fabric("12", [("1", "2")])
    broken = encode(Subscribe(1, (Subscription("a/b"),)), 5).replace(b"a/b", b"a#b")
    with pytest.raises(RemoteProtocolError):
        sf(network, "1").mqtt_message_arrived(network.session("1", "2"), ReceivedPacket(broken))


def test_a_refused_inter_subscription_is_the_peers_fault() -> None:
    network = fabric("12", [("1", "2")])
    network.client("1").subscribe("a", "b")
    packet = network.sent[-1][2]
    assert isinstance(packet, Subscribe)
    with pytest.raises(RemoteProtocolError, match="87"):
        arrives(network, SubAck(packet.packet_id, (ReasonCode(0), ReasonCode.NOT_AUTHORIZED)))


def test_control_of_a_neighbor_that_means_nothing_is_refused() -> None:
    network = fabric("12", [("1", "2")])
    with pytest.raises(RemoteProtocolError):
        arrives(network, Publish("$isthmus/link/else", b"x"))


def test_kept_subscriptions_are_inter_subscribed_after_a_restart() -> None:
    network = FakeNetwork(SubscriptionFlooding, "12")
    port = network.ports["1"]
    for client_id, clean_start in (("kept", False), ("clean", True)):
        client = network.new_client("1", level=4).connect(client_id, clean_start=clean_start)
        client.subscribe(f"{client_id}/#")
    port.clients.stop()

    kept = port.files
    network.add_node("1")
    network.ports["1"].files = kept
    network.ports["1"].clients.start()
    network.connect("1", "2")
    network.settle()
    assert received(network, "2", "1") == ["kept/#"]


def test_the_node_is_told_what_neighbors_want_and_clients_do_not_count() -> None:
    network = fabric("123", [])
    assert sf(network, "2").follow_wanted()
    network.connect("1", "2")
    network.connect("2", "3")
    wanted = network.ports["2"].wanted
    network.client("2", "here").subscribe("local")
    first, second = network.client("1", "C1"), network.client("3", "C2")
    first.subscribe("a/b", "c")
    second.subscribe("a/b", "local")
    network.settle()
    assert set(wanted) == {"a/b", "c", "local"}
    first.subscribe("a/#")
    network.settle()
    assert set(wanted) == {"a/#", "c", "local"}, "what is covered need not be subscribed to"
    first.unsubscribe("a/#")
    second.unsubscribe("local")
    network.settle()
    assert set(wanted) == {"a/b", "c"}
    network.remove("1", "2")
    network.settle()
    assert set(wanted) == {"a/b"}
    network.remove("2", "3")
    network.settle()
    assert not wanted


def test_all_topics_are_alike_where_everybody_wants_everything_or_nothing() -> None:
    """1 ── 2 ── 3, and 4 at 2."""
    network = fabric("1234", [("1", "2"), ("2", "3"), ("2", "4")])
    client = SessionInfo(-1, SessionKind.LOCAL_CLIENT, "any")
    to = {name: network.session("2", name) for name in "134"}

    def alike(source: SessionInfo) -> Route | None:
        network.settle()
        return sf(network, "2").route_of_all(source)

    assert alike(client) == alike(to["1"]) == Route()
    archive = network.client("3", "archive")
    archive.subscribe("#")
    assert alike(client) == alike(to["1"]) == Route((to["3"],))
    assert alike(to["3"]) == Route()
    here = network.client("2", "here")
    here.subscribe("a/b")
    assert alike(client) == Route((to["3"],))
    assert alike(to["1"]) is None, "it depends on the topic who wants it here"
    here.subscribe("#")
    assert alike(to["1"]) == Route((to["3"],), to_local_broker=True)
    here.unsubscribe("a/b")
    here.unsubscribe("#")
    assert alike(to["1"]) == Route((to["3"],))
    someone = network.client("4", "someone")
    someone.subscribe("a/+")
    assert alike(client) is alike(to["1"]) is None
    assert alike(to["4"]) == Route((to["3"],))
    archive.unsubscribe("#")
    assert alike(to["4"]) == Route()
