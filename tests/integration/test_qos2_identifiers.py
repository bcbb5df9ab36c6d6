"""QoS 2 packet identifiers as the far side sees them: no message lost, none twice.

publisher ── a ── b ── subscriber
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.brokers.mosquitto import Mosquitto
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import ConnAck, Connect, PubAck, PubComp, Publish, PubRec, PubRel
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.fabrics import FabricClient, NodeFabric
from support.nodes import NodeProcess, free_port
from support.raw import RawClient

COUNT = 25


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFabric]:
    folder = tmp_path_factory.mktemp("qos2")
    acl = folder / "acl"
    acl.write_text("topic readwrite open/#\ntopic read #\n")
    acl.chmod(0o644)
    joined = NodeFabric(folder, [("a", "b")], tapped=False)
    broker = joined.brokers["a"]
    assert isinstance(broker, Mosquitto)
    broker.extra = (f"acl_file {acl}",)
    with joined:
        yield joined


@pytest.fixture
def subscriber(fabric: NodeFabric) -> Iterator[FabricClient]:
    with fabric.client("b") as client:
        client.subscribe("#")
        fabric.settle()
        yield client


def payloads(fabric: NodeFabric, subscriber: FabricClient) -> list[bytes]:
    """What the subscriber has got, up to a message that is published now."""
    with fabric.client("a") as client:
        client.publish("open/mark", b"mark", 2)
    return [message.payload for message in subscriber.until(b"mark")]


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0\0"], ids=["4-bytes", "5-bytes", "6-bytes"])
def test_a_pubrel_of_any_length_frees_its_identifier(
    fabric: NodeFabric, subscriber: FabricClient, rest: bytes
) -> None:
    """[MQTT-4.3.3-12]; gmqtt and MQTT.js send six bytes."""
    with RawClient(fabric["a"].port) as client:
        client.connect("one-identifier")
        for number in range(5):
            client.send(Publish("open/q2", b"%d" % number, 2, packet_id=7))
            assert client.receive() == PubRec(7)
            client.send(bytes((0x62, 2 + len(rest), 0, 7)) + rest)
            assert client.receive() == PubComp(7)
    assert payloads(fabric, subscriber) == [b"%d" % number for number in range(5)]


def test_a_refusal_frees_its_identifier(fabric: NodeFabric, subscriber: FabricClient) -> None:
    """[MQTT-4.3.3-9]: after PUBREC with 0x80 or more the next PUBLISH is a new message."""
    with RawClient(fabric["a"].port) as client:
        client.connect("refused")
        for number in range(5):
            client.send(Publish("closed/q2", b"refused", 2, packet_id=7))
            assert client.receive() == PubRec(7, ReasonCode.NOT_AUTHORIZED)
            client.send(Publish("open/q2", b"%d" % number, 2, packet_id=7))
            assert client.receive() == PubRec(7)
            client.send(PubRel(7))
            assert client.receive() == PubComp(7)
    arrived = [payload for payload in payloads(fabric, subscriber) if payload != b"refused"]
    assert arrived == [b"%d" % number for number in range(5)]


def test_a_takeover_does_not_repeat_what_was_sent(
    fabric: NodeFabric, subscriber: FabricClient
) -> None:
    """[MQTT-4.3.3-10]: the publisher comes back while its old connection stands, and sends DUP."""
    messages = [Publish("open/t", b"%d" % n, 2, packet_id=n) for n in range(1, COUNT + 1)]
    with fabric.client("a") as near, RawClient(fabric["a"].port, 4) as old:
        near.subscribe("open/t")
        old.connect("taken-over", clean_start=False)
        for message in messages[:20]:  # Mosquitto takes 20 at a time
            old.send(message)
            assert old.receive() == PubRec(message.packet_id)
        with RawClient(fabric["a"].port, 4) as new:
            assert new.connect("taken-over", clean_start=False).session_present
            for message in messages:
                repeated = message.packet_id <= 20
                new.send(
                    Publish("open/t", message.payload, 2, dup=repeated, packet_id=message.packet_id)
                )
                assert new.receive() == PubRec(message.packet_id)
                new.send(PubRel(message.packet_id))
                assert new.receive() == PubComp(message.packet_id)
            assert payloads(fabric, subscriber) == [m.payload for m in messages]
        assert [near.next().payload for _ in messages] == [m.payload for m in messages]


def test_a_session_that_is_gone_does_not_hide_new_messages(
    fabric: NodeFabric, subscriber: FabricClient
) -> None:
    """The identifiers of a session that ended are free, whatever the client sent before."""
    for number in range(3):
        with RawClient(fabric["a"].port, 4) as client:
            client.connect("begins-anew", clean_start=True)
            client.send(Publish("open/n", b"%d" % number, 2, packet_id=1))
            assert client.receive() == PubRec(1)
    assert payloads(fabric, subscriber) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("level", [4, 5])
def test_a_broker_that_answers_qos_2_with_puback_frees_the_identifier(
    tmp_path: Path, level: int
) -> None:
    """RabbitMQ does, also where its CONNACK says that it does not; a broker that the test plays."""
    link = f"127.0.0.1:{free_port()}"
    hello = encode(Connect("half", clean_start=True, keep_alive=60, protocol_level=level), level)
    granted = Properties(maximum_qos=1) if level == 5 else NO_PROPERTIES
    connack = ConnAck(False, ReasonCode.SUCCESS, granted)
    with (
        socket.create_server(("127.0.0.1", 0)) as played,
        NodeFabric(tmp_path, names=["b"], tapped=False) as fabric,
        NodeProcess(
            tmp_path,
            f"mqtt://127.0.0.1:{played.getsockname()[1]}",
            peers=[{"address": f"127.0.0.1:{fabric.link_ports['b']}"}],
            listen={"link": link},
        ) as node,
        fabric.client("b") as subscriber,
        RawClient(node.port, level) as client,
    ):
        subscriber.subscribe("#")

        def knows_it() -> bool:
            neighbors = node.fabric()["algorithm"]["neighbors"]
            return "b" in neighbors and neighbors["b"]["received_filters"] == 1

        node.wait_until(knows_it)
        client.send(hello)
        while True:  # the node's own sessions and probes connect too
            session, _ = played.accept()
            session.settimeout(10)
            if session.recv(len(hello)) == hello:
                break
            session.close()
        session.sendall(encode(connack, level))
        assert isinstance(client.receive(), ConnAck)
        for number in range(5):
            frame = encode(Publish("t", b"%d" % number, 2, packet_id=7), level)
            client.send(frame)
            assert session.recv(1000) == frame
            session.sendall(encode(PubAck(7), level))
            assert client.receive() == PubAck(7)
        assert [subscriber.next().payload for _ in range(5)] == [b"%d" % n for n in range(5)]
        session.close()
