"""What a fabric does not promise: the sentences of the guarantees page, one by one.

a ── b        SF; a Mosquitto behind each
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.mqtt.packets import PubAck, Publish, PubRec, Will
from isthmus.mqtt.properties import Properties
from support.fabrics import FabricClient, NodeFabric

NO_MATCHING_SUBSCRIBERS = 0x10
LASTING = Properties(session_expiry_interval=300)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFabric]:
    with NodeFabric(tmp_path_factory.mktemp("guarantees"), [("a", "b")]) as made:
        yield made


def directly(fabric: NodeFabric, name: str) -> FabricClient:
    """A client of the broker itself, past the node."""
    client = FabricClient(fabric.brokers[name].port)
    client.connect()
    return client


def test_one_client_id_lives_at_two_nodes(fabric: NodeFabric) -> None:
    with fabric.client("a", "twin") as here, fabric.client("b", "twin") as there:
        here.subscribe("twin/#")
        there.subscribe("twin/#")
        fabric.settle()
        here.publish("twin/1", b"from a", qos=1)
        there.publish("twin/1", b"from b", qos=1)
        for client in (here, there):
            assert {client.next().payload for _ in range(2)} == {b"from a", b"from b"}
    # At one broker the second takes the place of the first.
    with fabric.client("a", "twin") as first, fabric.client("a", "twin"):
        while first.raw.receive():
            pass


def test_a_session_does_not_follow_its_client(fabric: NodeFabric) -> None:
    with fabric.client("a", "moves", properties=LASTING) as client:
        client.subscribe("moves/#")
        fabric.settle()
        client.disconnect()
    with fabric.client("b") as publisher:
        publisher.publish("moves/1", b"kept at a", qos=1)
        with FabricClient(fabric["b"].port) as client:
            assert not client.connect("moves", clean_start=False, properties=LASTING)
            client.subscribe("marker")
            publisher.publish("moves/1", b"also kept at a", qos=1)
            publisher.publish("marker", b"marker", qos=1)
            assert client.until(b"marker") == []
    with FabricClient(fabric["a"].port) as client:
        assert client.connect("moves", clean_start=False, properties=LASTING)
        assert [client.next().payload for _ in range(2)] == [b"kept at a", b"also kept at a"]
    fabric.client("a", "moves").raw.close()  # a clean start ends the session


def test_no_matching_subscribers_is_said_of_the_own_broker(fabric: NodeFabric) -> None:
    with fabric.client("a") as publisher, fabric.client("b") as subscriber:
        subscriber.subscribe("code/#")
        fabric.settle()
        publisher.raw.send(Publish("code/1", b"m", 1, packet_id=7))
        answer = publisher.raw.receive()
        assert isinstance(answer, PubAck)
        assert answer.reason_code == NO_MATCHING_SUBSCRIBERS
        assert subscriber.next().payload == b"m"


def test_a_delayed_will_is_each_brokers_own_at_home(fabric: NodeFabric) -> None:
    """A session that ends at once ends the delay [MQTT-3.1.3-9]; Mosquitto 2.0 waits all the same.

    So subscribers of the own broker have its will after the delay, those of others at once.
    """
    will = Will("late", b"gone", 1, properties=Properties(will_delay_interval=3))
    with fabric.client("a") as near, fabric.client("b") as far:
        near.subscribe("late")
        far.subscribe("late")
        fabric.settle()
        with fabric.client("a", "ends", will=will):
            closed_s = time.monotonic()
        assert far.next().payload == b"gone"
        near.publish("late", b"marker", qos=1)
        assert [near.next().payload, near.next().payload] == [b"marker", b"gone"]
        assert time.monotonic() - closed_s >= 2.0


def test_qos_2_that_is_never_released_is_at_the_far_side(fabric: NodeFabric) -> None:
    with (
        fabric.client("a") as near,
        fabric.client("b") as far,
        fabric.client("a") as other,
        fabric.client("a") as publisher,
    ):
        near.subscribe("held/#")
        far.subscribe("held/#")
        fabric.settle()
        publisher.raw.send(Publish("held/1", b"not released", 2, packet_id=7))
        assert isinstance(publisher.raw.receive(), PubRec)
        assert far.next().payload == b"not released"
        other.publish("held/1", b"marker", qos=1)
        assert near.until(b"marker") == []


def test_topics_that_begin_with_a_dollar_stay(fabric: NodeFabric) -> None:
    with (
        fabric.client("a") as near,
        fabric.client("b") as far,
        fabric.client("a") as publisher,
    ):
        for client in (near, far):
            client.subscribe("$own/#", "own/#")
        fabric.settle()
        publisher.publish("$own/1", b"stays", qos=1)
        publisher.publish("own/1", b"goes", qos=1)
        assert near.until(b"goes")[0].payload == b"stays"
        assert far.until(b"goes") == []


def test_who_goes_past_the_node_is_outside(fabric: NodeFabric) -> None:
    with (
        fabric.client("a") as publisher,
        fabric.client("b") as subscriber,
        directly(fabric, "a") as past_a,
        directly(fabric, "b") as past_b,
    ):
        subscriber.subscribe("past/#")
        past_b.subscribe("alone/#")
        fabric.settle()
        past_a.publish("past/1", b"not seen", qos=1)
        publisher.publish("past/1", b"seen", qos=1)
        assert subscriber.until(b"seen") == []
        # Nobody at b's node wants this, so it stays at a.
        publisher.publish("alone/1", b"not seen", qos=1)
        past_b.publish("alone/1", b"own", qos=1)
        assert past_b.until(b"own") == []


def test_retained_messages_from_before_stay(tmp_path: Path) -> None:
    with NodeFabric(tmp_path, [("a", "b")]) as fabric:
        with directly(fabric, "a") as before:
            before.publish("old/1", b"old", qos=1, retain=True)
        with fabric.client("a") as publisher:
            publisher.publish("old/2", b"new", qos=1, retain=True)
        with fabric.client("a") as near, fabric.client("b") as far:
            near.subscribe("old/#")
            assert {near.next().payload, near.next().payload} == {b"old", b"new"}
            far.subscribe("old/#")
            assert far.until(b"new") == []
            near.publish("old/3", b"marker", qos=1)
            assert far.until(b"marker") == []
