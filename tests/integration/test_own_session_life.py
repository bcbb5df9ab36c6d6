"""When the node's own sessions with its broker begin and end, and whose they are.

a ── b        PF; b's broker is a stand-in that tells who connects
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import BrokerFactory
from isthmus.mqtt.reason_codes import ReasonCode
from support.fabrics import FabricClient
from support.nodes import NodeProcess, free_port
from support.picky_broker import PickyBroker
from support.raw import RawClient
from support.waiting import wait_for


@contextmanager
def pair(folder: Path, port_a: int, port_b: int) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    link = f"127.0.0.1:{free_port()}"
    pf = {"algorithm": "pf"}
    b = NodeProcess(
        folder, f"mqtt://127.0.0.1:{port_b}", id="b", listen={"link": link}, cooperation=pf
    )
    a = NodeProcess(
        folder, f"mqtt://127.0.0.1:{port_a}", id="a", peers=[{"address": link}], cooperation=pf
    )
    with b, a:
        a.wait_until(lambda: [link["status"] for link in a.fabric()["links"]] == ["active"])
        yield a, b


def test_the_session_is_opened_with_the_link_and_closed_with_the_neighbor(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    with (
        PickyBroker() as broker,
        pair(tmp_path, broker_factory("mosquitto").port, broker.port) as (a, b),
    ):
        wait_for(
            lambda: "isthmus-b-a" in [name for _, name in broker.connected],
            10,
            "the session, before any message",
        )
        b.wait_until(lambda: b.status()["broker"]["own_sessions"] == 1)
        with FabricClient(a.port) as publisher:
            publisher.connect("publisher")
            publisher.publish("t", b"x", 1)
            wait_for(lambda: broker.payloads() == [b"x"], 10, "the message")
        assert [name for _, name in broker.connected].count("isthmus-b-a") == 1
        code, _ = b.change("DELETE", "/api/peers/a")
        assert code == 200
        b.wait_until(lambda: b.status()["broker"]["own_sessions"] == 0)


def test_the_first_messages_are_not_lost(tmp_path: Path, broker_factory: BrokerFactory) -> None:
    """The broker takes its time to accept the session; meanwhile 20,000 messages at QoS 0 come."""
    with (
        PickyBroker(connack_delay_s=3.0) as broker,
        pair(tmp_path, broker_factory("mosquitto").port, broker.port) as (a, b),
        FabricClient(a.port) as publisher,
    ):
        publisher.connect("publisher")
        for number in range(20_000):
            publisher.publish("t", b"%d" % number)
        wait_for(lambda: len(broker.published) >= 20_000, 20, "all of them")
        assert broker.payloads() == [b"%d" % number for number in range(20_000)]
        assert b.fabric()["counters"].get("inject_dropped", 0) == 0


@pytest.mark.parametrize("level", [4, 5])
def test_a_client_cannot_take_the_nodes_own_session_over(
    tmp_path: Path, broker_factory: BrokerFactory, level: int
) -> None:
    with (
        PickyBroker() as broker,
        pair(tmp_path, broker_factory("mosquitto").port, broker.port) as (_, b),
    ):
        b.wait_until(lambda: b.status()["broker"]["own_sessions"] == 1)
        with RawClient(b.port, level) as client:
            answer = client.connect("isthmus-b-a")
            assert answer.reason_code == (
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID if level == 5 else 2
            )
            assert client.receive() is None
        assert [name for _, name in broker.connected].count("isthmus-b-a") == 1
        assert b.status()["refusals"]["reserved-client-id"] == 1
        with RawClient(b.port, level) as other:
            assert other.connect("isthmus-c-a").reason_code == 0


def test_a_node_before_a_broker_that_hangs_is_not_ready(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    """Its connections stand and its port accepts more: the kernel does both."""
    broker = broker_factory("mosquitto")
    with pair(tmp_path, broker_factory("mosquitto").port, broker.port) as (a, b):
        b.wait_until(lambda: b.status()["broker"]["own_sessions"] == 1)
        assert b.is_ready()
        assert broker.pid is not None
        with FabricClient(b.port) as subscriber, FabricClient(a.port) as publisher:
            subscriber.connect("subscriber")
            subscriber.subscribe("t", qos=1)
            publisher.connect("publisher")
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                publisher.publish("t", b"x", 1)
                wait_for(lambda: not b.is_ready(), 20, "b to say that it is not ready")
                assert b.status()["broker"]["problem"] == "does not answer"
                assert "isthmus_broker_reachable 0.0" in b.get("/metrics")
                assert a.is_ready()
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            assert subscriber.next().payload == b"x"
            wait_for(b.is_ready, 10, "b to be ready again")
        assert b.log().count("broker does not answer") == 1
