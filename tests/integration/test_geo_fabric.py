"""A gateway of `geo` in a fabric: over a link, and over a broker that a node shares with it.

clients ── west ┬── mosquitto  0, 3/0 ──── side (tree or pf, source = "broker") ── far ── clients
            │   ├── ejabberd   1, 3/1
            │   ├── aedes      2, 3/2
            │   └── embedded   3/3
            └─link── plain (sf) ── clients
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance.clients import Client
from conftest import BrokerFactory
from isthmus.mqtt.packets import Will
from support.gateways import ARRIVE_S, CELLS, Crowd, Site, before, started
from support.nodes import NodeProcess, free_port
from support.waiting import wait_for

FOUR = ("mosquitto", "ejabberd", "aedes", "embedded")
LINK = f"127.0.0.1:{free_port()}"
MINE = ["0/#", "3/0/#"]
"""What Mosquitto is in charge of."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("gateway")
    with ExitStack() as stack:
        yield before(stack, started(stack, FOUR), folder, listen={"link": LINK})


def publish_all(crowd: Crowd, client: Client, name: str, cells: Sequence[str]) -> set[str]:
    """At every QoS, in each of `cells`; the payloads."""
    sent = set()
    for qos in (0, 1, 2):
        for cell in cells:
            payload = f"{name} {qos} {cell}"
            assert client.publish(crowd.topic(cell), payload.encode(), qos=qos)
            sent.add(payload)
    return sent


def until_payloads(crowd: Crowd, client: Client, wanted: set[str]) -> None:
    """All of `wanted` comes, once, and nothing else.

    amqtt raises the QoS of some, and hands out retained messages that nobody asked for.
    """

    def got() -> Counter[str]:
        ours = (each for each in crowd.received(client) if each.topic.endswith("/t"))
        return Counter(each.payload.decode() for each in ours)

    wait_for(lambda: wanted <= got().keys(), ARRIVE_S, f"{len(wanted)} messages")
    assert got() == Counter(wanted)


def ends(crowd: Crowd, client: Client, name: str, cells: Sequence[str]) -> set[str]:
    """What comes after everything else, at the highest QoS, which none overtakes."""
    for cell in cells:
        assert client.publish(crowd.topic(cell), f"{name} end {cell}".encode(), qos=2)
    return {f"{name} end {cell}" for cell in cells}


def test_a_gateway_and_a_node_of_sf_are_linked(
    site: Site, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    (west,) = site.gateways
    broker = broker_factory("mosquitto")
    with (
        NodeProcess(
            tmp_path,
            f"mqtt://127.0.0.1:{broker.port}",
            id="plain",
            peers=[{"address": LINK}],
            cooperation={"algorithm": "sf"},
        ) as plain,
        site.crowd("paho", 4) as crowd,
    ):
        # Retained first: where it lives says nothing of where it was published.
        here, there = crowd.connected(west.port), crowd.connected(plain.port)
        for cell in CELLS:
            assert here.publish(crowd.topic(cell, "here"), b"kept", qos=1, retain=True)
            assert there.publish(crowd.topic(cell, "there"), b"kept", qos=1, retain=True)
        topics = {crowd.topic(cell, rest) for cell in CELLS for rest in ("here", "there")}
        for port in (west.port, plain.port):

            def has_all(port: int = port) -> bool:
                client = crowd.subscriber(port, *topics, qos=1)
                client.wait_messages(len(topics), 1)
                found = {each.topic for each in crowd.received(client) if each.retain}
                client.disconnect()
                return found == topics

            wait_for(has_all, ARRIVE_S, "what is retained")

        listeners = [
            crowd.subscriber(port, *filters)
            for port in (west.port, plain.port)
            for filters in (["+/+/+/t"], [crowd.topic(cell) for cell in CELLS])
        ]

        def settled() -> bool:
            """Both have said what they want: the one "+/+/+/t", which covers the rest."""
            return all(
                neighbor["received_filters"] == 1
                for node in (west, plain)
                for neighbor in node.fabric()["algorithm"]["neighbors"].values()
            )

        wait_for(settled, ARRIVE_S, "inter-subscriptions")
        wanted: set[str] = set()
        # Nobody's topic at the gateway is a topic at the other node, and does not hold others up.
        assert there.publish(f"x/y/{crowd.run}/t", b"outside", qos=1)
        for name, client in (("here", here), ("there", there)):
            wanted |= publish_all(crowd, client, name, CELLS)
        for node, cell in ((west, "1/0"), (plain, "2/3")):
            mortal = crowd.connected(
                node.port, will=Will(crowd.topic(cell), b"will " + cell.encode(), 1)
            )
            mortal.drop()
            wanted.add(f"will {cell}")
        for name, client in (("here", here), ("there", there)):
            wanted |= ends(crowd, client, name, CELLS)
        for listener in listeners:
            there_too = {"outside"} if listener is listeners[2] else set()
            until_payloads(crowd, listener, wanted | there_too)
        for topic in topics:
            here.publish(topic, b"", qos=1, retain=True)


@pytest.mark.parametrize("algorithm", ["tree", "pf"])
def test_a_node_of_another_algorithm_shares_a_broker(
    site: Site, broker_factory: BrokerFactory, tmp_path: Path, algorithm: str
) -> None:
    (west,) = site.gateways
    link = f"127.0.0.1:{free_port()}"
    broker = broker_factory("mosquitto")
    cooperation = {"algorithm": algorithm}
    # What is not of this broker's cells lives at another, where the gateway looks for it.  `tree`
    # has no such rules: then no client of `far` may publish it.
    rules = {"in": MINE, "out": MINE} if algorithm == "pf" else {}
    with ExitStack() as stack:
        far = NodeProcess(
            tmp_path,
            f"mqtt://127.0.0.1:{broker.port}",
            id="far",
            listen={"link": link},
            cooperation=cooperation,
        )
        side = NodeProcess(
            tmp_path,
            f"mqtt://127.0.0.1:{site.brokers['mosquitto'].port}",
            id="side",
            peers=[{"address": link, **rules}],
            node={"state_dir": tmp_path / "side"},
            broker={"source": "broker"},
            cooperation=cooperation,
        )
        for node in (far, side):
            stack.callback(node.stop)
            node.launch()
        for node in (far, side):
            node.wait_until(node.is_ready)
        crowd = stack.enter_context(site.crowd("paho", 4))
        here = [crowd.subscriber(west.port, each) for each in ("#", "+/+/#", "0/#")]
        there = [crowd.subscriber(far.port, each) for each in ("#", "+/+/#", "0/#")]
        probes = {"here": here[0], "there": there[0]}

        def joined() -> bool:
            """The link stands, and each knows what the other wants."""
            for name, client in probes.items():
                client.publish(crowd.topic("0/0", "probe"), name.encode(), qos=1)
            return all(
                {"here", "there"} <= {each.payload.decode() for each in crowd.received(client)}
                for client in (*here, *there)
            )

        wait_for(joined, ARRIVE_S, "the two sides to hear each other", every_s=0.2)
        cells = [cell for cell in CELLS if site.in_charge(cell) == "mosquitto"]
        others = [cell for cell in CELLS if cell not in cells]
        sent: dict[str, set[str]] = {}
        elsewhere: dict[str, set[str]] = {}
        for name, client in probes.items():
            elsewhere[name] = set()
            if rules or name == "here":
                elsewhere[name] |= publish_all(crowd, client, name, others)
                elsewhere[name] |= ends(crowd, client, name, others)
            sent[name] = publish_all(crowd, client, name, cells)
            sent[name] |= ends(crowd, client, name, cells)
        shared = sent["here"] | sent["there"]
        for name, listeners in (("here", here), ("there", there)):
            for listener in listeners[:2]:
                until_payloads(crowd, listener, shared | elsewhere[name])
            until_payloads(crowd, listeners[2], {each for each in shared if " 0/" in each})
