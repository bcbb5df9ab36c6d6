"""The virtual broker and clients, on one node by itself."""

from __future__ import annotations

import pytest

from isthmus.mqtt.packets import Will
from isthmus.mqtt.properties import Properties
from isthmus.sim import SimFabric


def alone() -> SimFabric:
    fabric = SimFabric(algorithm="none")
    fabric.node("n")
    return fabric


def test_a_message_reaches_a_client_once_at_the_lower_qos() -> None:
    fabric = alone()
    client = fabric.nodes["n"].client("c")
    client.subscribe("a/#", qos=0)
    client.subscribe("a/+", qos=1)
    fabric.settle()
    client.publish("a/b", b"x", qos=2)
    client.publish("b", b"y")
    fabric.settle()
    assert [(each.payload, each.qos) for each in client.received] == [(b"x", 1)]
    assert client.acknowledged == [b"x"]


def test_retained_messages_are_kept_replaced_and_deleted() -> None:
    fabric = alone()
    node = fabric.nodes["n"]
    publisher = node.client("p")
    fabric.settle()
    publisher.publish("r", b"1", retain=True)
    publisher.publish("r", b"2", retain=True)
    fabric.settle()
    subscriber = node.client("s")
    subscriber.subscribe("r")
    fabric.settle()
    assert [(each.payload, each.retain) for each in subscriber.received] == [(b"2", True)]
    publisher.publish("r", b"", retain=True)
    fabric.settle()
    assert not node.broker.retained


@pytest.mark.parametrize("level", [4, 5])
def test_a_persistent_session_queues_what_is_not_qos_0(level: int) -> None:
    fabric = alone()
    node = fabric.nodes["n"]
    away = node.client("a", level=level, clean_start=False, session_expiry_s=100)
    away.subscribe("t", qos=1)
    publisher = node.client("p")
    fabric.settle()
    away.vanish()
    fabric.settle()
    publisher.publish("t", b"0", qos=0)
    publisher.publish("t", b"1", qos=1)
    fabric.settle()
    away.connect()
    fabric.settle()
    assert away.payloads() == [b"1"]


def test_a_session_ends_when_it_expires() -> None:
    fabric = alone()
    node = fabric.nodes["n"]
    away = node.client("a", clean_start=False, session_expiry_s=10)
    away.subscribe("t")
    fabric.settle()
    away.disconnect()
    fabric.run(9.0)
    assert "a" in node.broker.sessions
    fabric.run(2.0)
    assert "a" not in node.broker.sessions


@pytest.mark.parametrize(("delay_s", "after_s"), [(0, 0.1), (5, 5.1)])
def test_a_will_is_published_after_its_delay(delay_s: int, after_s: float) -> None:
    fabric = alone()
    node = fabric.nodes["n"]
    witness = node.client("w")
    witness.subscribe("w")
    will = Will("w", b"gone", properties=Properties(will_delay_interval=delay_s or None))
    mortal = node.client("m", will=will, clean_start=False, session_expiry_s=60)
    fabric.settle()
    mortal.vanish()
    fabric.run(after_s - 0.2 if delay_s else 0.0)
    assert witness.payloads() == []
    fabric.run(0.4)
    assert witness.payloads() == [b"gone"]


def test_no_will_after_a_goodbye_or_a_return_in_time() -> None:
    fabric = alone()
    node = fabric.nodes["n"]
    witness = node.client("w")
    witness.subscribe("w")
    polite = node.client("p", will=Will("w", b"never"))
    delayed = Will("w", b"never", properties=Properties(will_delay_interval=5))
    quick = node.client("q", will=delayed, clean_start=False, session_expiry_s=60)
    fabric.settle()
    polite.disconnect()
    quick.vanish()
    fabric.run(2.0)
    quick.connect()
    fabric.run(20.0)
    assert witness.payloads() == []


def test_a_client_id_is_taken_over() -> None:
    fabric = alone()
    node = fabric.nodes["n"]
    first = node.client("same")
    first.reconnect_s = 1e6
    fabric.settle()
    second = node.client("same")
    fabric.settle()
    assert (first.connected, second.connected) == (False, True)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_broker_that_crashes_keeps_what_it_persists(persistent: bool) -> None:
    fabric = SimFabric(algorithm="none")
    node = fabric.node("n", persistent_broker=persistent)
    client = node.client("c", clean_start=False, session_expiry_s=1000)
    client.subscribe("t")
    fabric.settle()
    client.publish("r", b"kept", retain=True)
    fabric.settle()
    fabric.crash_broker(node)
    fabric.run(1.0)
    assert not client.connected
    fabric.restart_broker(node)
    fabric.settle()
    assert client.connected
    assert bool(node.broker.retained) is persistent


def test_clients_come_back_after_a_crash_of_the_node() -> None:
    fabric = alone()
    node = fabric.nodes["n"]
    client = node.client("c")
    client.subscribe("t")
    fabric.settle()
    fabric.crash(node)
    fabric.run(2.0)
    assert not client.connected
    fabric.restart(node)
    fabric.run(2.0)
    client.publish("t", b"x")
    fabric.settle()
    assert client.payloads() == [b"x"]
