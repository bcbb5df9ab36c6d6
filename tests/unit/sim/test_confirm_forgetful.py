"""Nodes that keep nothing are killed: what they confirm, all brokers have nevertheless.

s ── h ── b        s publishes, b subscribes; s and b dial h, none has a `state_dir`
"""

from __future__ import annotations

import pytest

from isthmus.exchange.client.confirming import ConfirmSettings
from isthmus.exchange.client.returning import Returning
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.recovery import UNKNOWN, YOUNG_S, Recovery
from isthmus.sim import SimFabric
from isthmus.sim.client import SimClient
from isthmus.sim.node import SimNode
from isthmus.sim.soak import soak

BACK_S = 30.0
FOR_EVER = 0xFFFF_FFFF


def line(
    algorithm: str = "sf", *, confirm: str = "fabric", within_s: float = 600.0, hold_s: float = 60.0
) -> tuple[SimFabric, SimNode, SimNode, SimNode]:
    fabric = SimFabric(
        seed=1,
        algorithm=algorithm,
        link=LinkSettings(hold_s=hold_s, queue_bytes=1 << 20),
        confirm=ConfirmSettings.of(confirm, {}, within_s, BACK_S),
    )
    s, h, b = (fabric.node(name, state_dir=False) for name in "shb")
    fabric.link(s, h)
    fabric.link(b, h)
    return fabric, s, h, b


def subscriber(node: SimNode, *, subscribes_again: bool = True) -> SimClient:
    client = node.client(
        f"at-{node.name}",
        clean_start=False,
        session_expiry_s=FOR_EVER,
        subscribes_again=subscribes_again,
    )
    client.subscribe("t/#")
    return client


def publisher_at(node: SimNode) -> SimClient:
    return node.client(
        "p", clean_start=False, session_expiry_s=FOR_EVER, repeats_qos1=True, reconnect_s=0.05
    )


@pytest.mark.parametrize("algorithm", ["pf", "sf", "tree", "topic-tree", "skipgraph"])
@pytest.mark.parametrize("victim", ["s", "h", "b"])
@pytest.mark.parametrize("away_s", [0.1, 3.0])
def test_nothing_acknowledged_is_missing(algorithm: str, victim: str, away_s: float) -> None:
    fabric, s, _, b = line(algorithm)
    at_b, publisher = subscriber(b), publisher_at(s)
    fabric.settle()
    node = fabric.nodes[victim]
    node.crash()
    for number in range(100):
        publisher.publish("t/1", b"%d" % number, qos=1)
        fabric.run(0.1)
        if not node.running and number >= away_s * 10:
            node.start()
        assert set(publisher.acknowledged) <= set(b.broker.published)
    fabric.settle()
    fabric.run(30.0)
    assert len(publisher.acknowledged) > 50
    assert set(publisher.acknowledged) <= set(at_b.payloads())


@pytest.mark.parametrize("algorithm", ["pf", "sf"])
def test_a_young_node_confirms_when_its_youth_is_over(algorithm: str) -> None:
    fabric, s, h, b = line(algorithm)
    subscriber(b)
    publisher = publisher_at(s)
    fabric.settle()
    h.crash()
    h.start()
    started_s = fabric.now_s
    fabric.run(2.0)
    publisher.publish("t/1", b"1", qos=1)
    fabric.run(YOUNG_S - 3.0)
    assert b"1" in b.broker.published, "who is there has it at once"
    assert publisher.acknowledged == []
    fabric.run(2.0)
    assert publisher.acknowledged == [b"1"]
    assert fabric.now_s - started_s < YOUNG_S + 2.0


def test_what_is_not_to_be_confirmed_waits_for_nobody() -> None:
    fabric, s, h, b = line(confirm="local")
    subscriber(b)
    publisher = publisher_at(s)
    fabric.settle()
    h.crash()
    h.start()
    assert not h.exchange.recovery.active
    assert not h.exchange.local_filters
    fabric.run(2.0)
    publisher.publish("t/1", b"1", qos=1)
    fabric.run(1.0)
    assert publisher.acknowledged == [b"1"]


def test_a_configured_peer_that_is_away_for_longer_is_waited_for() -> None:
    """And one that dials this node is not, who nobody has told it of."""
    fabric, s, h, b = line()
    fabric.link(h, b)
    at_b, publisher = subscriber(b), publisher_at(s)
    fabric.settle()
    h.crash()
    b.crash()
    h.start()
    fabric.run(YOUNG_S + 4.0)
    publisher.publish("t/1", b"1", qos=1)
    fabric.run(4.0)
    assert publisher.acknowledged == []
    b.start()
    fabric.settle()
    assert publisher.acknowledged == [b"1"]
    assert at_b.payloads() == [b"1"]


def test_a_configured_peer_that_never_comes_is_waited_for_as_long_as_a_neighbor_is_kept() -> None:
    fabric, s, h, b = line(hold_s=20.0)
    fabric.link(h, b)
    publisher = publisher_at(s)
    fabric.settle()
    h.crash()
    b.crash()
    fabric.run(1.0)
    h.start()
    fabric.run(5.0)
    publisher.publish("t/1", b"1", qos=1)
    fabric.run(10.0)
    assert publisher.acknowledged == []
    fabric.run(30.0)
    assert publisher.acknowledged == [b"1"]


def test_a_node_that_has_forgotten_its_subscribers_gets_everything_until_they_are_back() -> None:
    fabric, s, _, b = line()
    at_b, publisher = subscriber(b), publisher_at(s)
    fabric.settle()
    at_b.vanish()
    fabric.run(1.0)
    b.crash()
    b.start()
    fabric.run(YOUNG_S + 1.0)
    publisher.publish("t/1", b"1", qos=1)
    publisher.publish("u", b"2", qos=1)
    fabric.run(2.0)
    assert publisher.acknowledged == [b"1", b"2"]
    assert set(b.broker.published) == {b"1", b"2"}
    at_b.connect()
    fabric.run(BACK_S)
    assert at_b.payloads() == [b"1"]
    publisher.publish("u", b"3", qos=1)
    fabric.run(2.0)
    assert b"3" not in b.broker.published, "that is over"


def test_who_comes_back_to_its_session_need_not_subscribe_again() -> None:
    fabric, s, _, b = line()
    at_b, publisher = subscriber(b, subscribes_again=False), publisher_at(s)
    fabric.settle()
    b.crash()
    b.start()
    fabric.run(2 * BACK_S)
    publisher.publish("t/1", b"1", qos=1)
    fabric.run(2.0)
    assert publisher.acknowledged == [b"1"]
    assert at_b.payloads() == [b"1"]
    at_b.subscribe("t/1")
    fabric.run(1.0)
    publisher.publish("u", b"2", qos=1)
    fabric.run(2.0)
    assert b"2" not in b.broker.published, "it has said what it wants"
    at_b.clean_start = True
    at_b.disconnect()
    at_b.connect()
    fabric.run(1.0)
    assert not set(b.exchange.local_filters) - {"t/#", "t/1"}


def test_more_than_may_wait_is_refused_and_not_confirmed() -> None:
    """`queue_bytes` of it, in a node that is young."""
    fabric, s, h, b = line()
    at_b = subscriber(b)
    fabric.settle()
    s.crash()
    s.start()
    fabric.run(1.0)
    publisher = s.client("flooder")
    fabric.run(0.5)
    for number in range(60):
        publisher.publish("t/1", b"%d " % number + bytes(50_000), qos=1)
    fabric.run(1.0)
    awaited = s.exchange.recovery.awaited[UNKNOWN]
    assert 900_000 < awaited.bytes <= 1 << 20
    fabric.run(YOUNG_S + 5.0)
    assert len(publisher.acknowledged) + len(publisher.refused) == 60
    assert 15 < len(publisher.acknowledged) < 25
    assert set(publisher.acknowledged) <= set(at_b.payloads())
    assert not s.exchange.recovery.active
    assert h.exchange.counters["given_up"] == 0


def _nothing(*_: object, **__: object) -> None:
    """What is left out."""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Recovery, "_await_unknown"),
        (Returning, "start"),
        (Returning, "is_back"),
    ],
)
def test_the_profile_finds_what_is_left_out(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, _nothing)
    found = soak("sf?confirm=fabric", range(1, 13), profile="forgetful", max_failures=1)
    assert found.failures
    assert "is confirmed, not at" in found.failures[0][2]
