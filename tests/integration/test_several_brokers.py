"""One node before several real brokers: two Mosquittos, and a Mosquitto and a RabbitMQ.

client ── a ┬── one (Mosquitto, the default)        a ── b ── another Mosquitto
            └── two (Mosquitto or RabbitMQ, two/#)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import BrokerFactory
from isthmus.brokers.base import Broker
from isthmus.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from support.nodes import NodeProcess, free_port
from support.raw import RawClient
from support.waiting import wait_for


def tables(one: Broker, two: Broker) -> list[dict[str, Any]]:
    def table(name: str, broker: Broker) -> dict[str, Any]:
        login = {"username": broker.username, "password": broker.password}
        url = f"mqtt://127.0.0.1:{broker.port}"
        return {"name": name, "url": url, **(login if broker.username else {})}

    return [table("one", one), {**table("two", two), "topics": ["two/#"]}]


def subscribe(client: RawClient, *filters: str, qos: int = 2) -> list[int]:
    client.send(Subscribe(9, tuple(Subscription(each, qos) for each in filters)))
    answer = client.receive()
    assert isinstance(answer, SubAck)
    return [int(code) for code in answer.reason_codes]


def take(client: RawClient, count: int) -> list[Publish]:
    """The next messages, each answered as its QoS asks for."""
    found: list[Publish] = []
    released = 0
    while len(found) < count or released < sum(each.qos == 2 for each in found):
        packet = client.receive()
        if isinstance(packet, Publish):
            found.append(packet)
            if packet.qos:
                client.send((PubAck, PubRec)[packet.qos - 1](packet.packet_id))
        elif isinstance(packet, PubRel):
            released += 1
            client.send(PubComp(packet.packet_id))
        else:
            raise AssertionError(packet)
    return found


def publish(client: RawClient, topic: str, payload: bytes, qos: int, **options: Any) -> Packet:
    """What answers it first."""
    client.send(Publish(topic, payload, qos, packet_id=5 if qos else 0, **options))
    if not qos:
        return Publish(topic)
    answer = client.receive()
    assert answer is not None
    if isinstance(answer, PubRec) and answer.reason_code < 0x80:
        client.send(PubRel(5))
        assert isinstance(client.receive(), PubComp)
    return answer


@contextmanager
def connected(port: int, client_id: str, level: int = 5, **options: Any) -> Iterator[RawClient]:
    with RawClient(port, level) as client:
        client.connect(client_id, **options)
        yield client


def test_two_brokers_behind_one_node(tmp_path: Path, broker_factory: BrokerFactory) -> None:
    one, two = broker_factory("mosquitto"), broker_factory("mosquitto")
    with ExitStack() as stack:
        node = stack.enter_context(NodeProcess(tmp_path, "", brokers=tables(one, two)))
        direct = {
            broker: stack.enter_context(connected(broker.port, "direct")) for broker in (one, two)
        }
        for client in direct.values():
            subscribe(client, "#", qos=0)
        reader = stack.enter_context(connected(node.port, "reader"))
        writer = stack.enter_context(connected(node.port, "writer"))
        assert subscribe(reader, "#") == [2]
        sent = [(topic, qos) for topic in ("x", "two/x") for qos in (0, 1, 2)]
        for topic, qos in sent:
            publish(writer, topic, f"{topic} {qos}".encode(), qos)
        got = take(reader, len(sent))
        assert sorted((each.topic, each.qos) for each in got) == sorted(sent)
        assert {each.topic for each in take(direct[one], 3)} == {"x"}
        assert {each.topic for each in take(direct[two], 3)} == {"two/x"}

        two.kill()
        wait_for(
            lambda: [each["away"] != "" for each in node.status()["brokers"]] == [False, True],
            15,
            "the node to notice that a broker is away",
        )
        assert not node.is_ready()
        assert 'isthmus_broker_reachable{broker="two"} 0.0' in node.get("/metrics")
        refused = publish(writer, "two/x", b"lost", 1)
        assert isinstance(refused, PubAck)
        assert refused.reason_code == 0x83
        publish(writer, "two/x", b"dropped", 0)
        assert isinstance(publish(writer, "x", b"here", 1), PubAck)
        assert [each.payload for each in take(reader, 1)] == [b"here"]

        two.start()
        wait_for(node.is_ready, 15, "the node to be ready again")
        wait_for(
            lambda: [each["sessions"] for each in node.status()["brokers"]] == [2, 2],
            15,
            "subscriptions to be restored",
        )
        assert publish(writer, "two/x", b"again", 1) == PubAck(5)
        assert [each.payload for each in take(reader, 1)] == [b"again"]


@pytest.mark.parametrize(("make", "level"), [("mosquitto", 5), ("rabbitmq", 4)])
def test_brokers_of_two_makes_in_a_fabric(
    tmp_path: Path, broker_factory: BrokerFactory, make: str, level: int
) -> None:
    one, two, other = (broker_factory(each) for each in ("mosquitto", make, "mosquitto"))
    link = f"127.0.0.1:{free_port()}"
    login: dict[str, Any] = {}
    if two.username is not None and two.password is not None:
        login = {"username": two.username, "password": two.password.encode()}
    with ExitStack() as stack:
        a = stack.enter_context(
            NodeProcess(tmp_path, "", id="a", brokers=tables(one, two), listen={"link": link})
        )
        b = stack.enter_context(
            NodeProcess(
                tmp_path, f"mqtt://127.0.0.1:{other.port}", id="b", peers=[{"address": link}]
            )
        )
        here = stack.enter_context(connected(a.port, "here", level, **login))
        there = stack.enter_context(connected(b.port, "there"))
        assert subscribe(here, "+", "two/#", qos=1) == [1, 1]
        subscribe(there, "#", qos=1)
        for node, filters in ((a, 1), (b, 2)):
            wait_for(
                lambda node=node, filters=filters: (
                    [  # type: ignore[misc]
                        each["received_filters"]
                        for each in node.fabric()["algorithm"]["neighbors"].values()
                    ]
                    == [filters]
                ),
                15,
                "the inter-subscriptions",
            )
        for client, topic in ((here, "two/1"), (here, "1"), (there, "two/2"), (there, "2")):
            client.send(Publish(topic, topic.encode(), 1, packet_id=3))
        for client in (here, there):
            seen: list[str] = []
            acknowledged = 0
            while len(seen) < 4 or acknowledged < 2:
                packet = client.receive()
                if isinstance(packet, PubAck):
                    acknowledged += packet.reason_code < 0x80
                else:
                    assert isinstance(packet, Publish)
                    seen.append(packet.topic)
                    client.send(PubAck(packet.packet_id))
            assert sorted(seen) == ["1", "2", "two/1", "two/2"]
        # What is retained is at the broker in charge, wherever it was published.
        publish(there, "two/kept", b"kept", 1, retain=True)
        wait_for(
            lambda: a.fabric()["retained"]["topics"] == 1 and a.fabric()["retained"]["owed"] == 0,
            15,
            "the retained message at its broker",
        )
        with RawClient(two.port, level) as late:
            late.connect("late", **login)
            late.send(Subscribe(1, (Subscription("two/kept", 0),)))
            got = {type(late.receive()) for _ in range(2)}
            assert got == {SubAck, Publish}
        # The will is its broker's, and goes to the other node as well.
        with RawClient(a.port, level) as mortal:
            mortal.connect("mortal", will=Will("two/will", b"gone", 1), **login)
        for client in (here, there):
            payloads = set()
            while b"gone" not in payloads:
                packet = client.receive()
                if isinstance(packet, Publish):
                    payloads.add(packet.payload)
