"""What comes twice or not at all because of what a client does is no fault of the fabric's."""

from __future__ import annotations

import pytest

from isthmus.exchange.client.confirming import ConfirmSettings
from isthmus.sim import SimFabric, generate
from isthmus.sim.client import SimClient
from isthmus.sim.invariants import Violation
from isthmus.sim.network import WireSettings
from isthmus.sim.promises import KNOWN_S, Promises
from isthmus.sim.schedule import CONFIRMED

FOR_EVER = 0xFFFF_FFFF


def of_two_nodes(profile: str, *, brokers: int = 1) -> Promises:
    fabric = SimFabric(
        seed=1,
        wire=WireSettings(0.2),
        confirm=ConfirmSettings.of("fabric", {}, 600.0, 30.0),
        brokers=brokers,
    )
    fabric.link(fabric.node("n0"), fabric.node("n1"))
    return Promises(generate(1, profile), fabric)


def client_of(promises: Promises, name: str, node: str, *, kept: bool, level: int = 5) -> SimClient:
    client = promises.fabric.nodes[node].client(
        name,
        level=level,
        clean_start=not kept,
        session_expiry_s=FOR_EVER if kept else 0,
        repeats_qos1=True,
    )
    promises.clients[name] = client
    client.on_acknowledged = promises.acknowledged
    return client


def test_who_loses_its_connection_after_a_broker_has_gone_sends_again_what_others_have() -> None:
    """One of two brokers is back before its node has asked it, and the client has published to the
    other meanwhile."""
    assert "forgetful" in CONFIRMED
    promises = of_two_nodes("forgetful", brokers=2)
    fabric = promises.fabric
    publisher = client_of(promises, "p", "n0", kept=True)
    subscriber = client_of(promises, "s", "n1", kept=True)
    publisher.subscribe("t/b", "u/a")
    subscriber.subscribe("#")
    fabric.settle()
    fabric.run(KNOWN_S)
    node = fabric.nodes["n0"]
    assert node.broker_of("u/a") is not node.broker
    promises.ends_s.append(fabric.now_s)
    fabric.crash_broker(node)
    fabric.restart_broker(node)
    fabric.run(0.15)
    assert publisher.connected
    assert promises.publish(publisher, "u/a", "m", qos=1)
    fabric.settle()
    assert subscriber.payloads().count(b"m") == 2
    assert publisher.repeated[b"m"] == 1
    promises.check_at_most_once()

    subscriber.received.append(subscriber.received[-1])
    with pytest.raises(Violation, match="3 times"):
        promises.check_at_most_once()


def test_what_nobody_has_sent_again_comes_once() -> None:
    promises = of_two_nodes("forgetful")
    fabric = promises.fabric
    publisher = client_of(promises, "p", "n0", kept=True)
    subscriber = client_of(promises, "s", "n1", kept=True)
    subscriber.subscribe("#")
    fabric.settle()
    assert promises.publish(publisher, "u/a", "m", qos=1)
    fabric.settle()
    promises.check_at_most_once()
    subscriber.received.append(subscriber.received[-1])
    with pytest.raises(Violation, match="2 times"):
        promises.check_at_most_once()


@pytest.mark.parametrize("kept", [False, True])
def test_who_was_away_without_a_session_has_missed_something_that_nobody_gave_up(
    kept: bool,
) -> None:
    """As one whose connection was closed because nobody confirms what it has published."""
    promises = of_two_nodes("outlast")
    fabric = promises.fabric
    publisher = client_of(promises, "p", "n0", kept=True)
    subscriber = client_of(promises, "s", "n0", kept=kept, level=4)
    subscriber.subscribe("u/a")
    fabric.settle()
    fabric.run(KNOWN_S)
    subscriber.vanish()
    fabric.run(0.1)
    assert promises.publish(publisher, "u/a", "m", qos=1)
    fabric.run(1.0)
    subscriber.connect()
    fabric.settle()
    assert (b"m" in subscriber.payloads()) == kept
    promises.check_counted()

    fabric.run(KNOWN_S)
    assert promises.publish(publisher, "u/a", "n", qos=1)
    fabric.settle()
    assert b"n" in subscriber.payloads()
    subscriber.received = [each for each in subscriber.received if each.payload != b"n"]
    with pytest.raises(Violation, match=r"1 messages are lost and 0 given up: \['n'\]"):
        promises.check_counted()
