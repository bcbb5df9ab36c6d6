"""`source = "broker"` with real brokers: what is published past the node takes part.

    mosquitto ── rabbitmq ── activemq        each node takes messages from its broker

`direct` clients connect to the broker itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from conftest import require_broker
from isthmus.brokers import create
from isthmus.brokers.activemq import ActiveMQ
from isthmus.brokers.base import Broker
from isthmus.brokers.mosquitto import Mosquitto
from isthmus.brokers.rabbitmq import RabbitMQ
from isthmus.mqtt.packets import Will
from support.fabrics import FabricClient
from support.nodes import NodeProcess, free_port
from support.waiting import wait_for

ARRIVE_S = 60.0


class Site:
    """A broker and the node before it."""

    def __init__(self, broker: Broker, node: NodeProcess) -> None:
        self.broker = broker
        self.node = node
        self.level = max(broker.protocol_levels)

    @property
    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = self.node.status()["broker"]["source"]
        return found

    def _client(self, port: int, **fields: Any) -> FabricClient:
        if self.broker.username is not None and self.broker.password is not None:
            fields |= {
                "username": self.broker.username,
                "password": self.broker.password.encode(),
            }
        client = FabricClient(port, self.level, timeout_s=ARRIVE_S)
        client.connect(f"{self.node.id}-{os.urandom(4).hex()}", **fields)
        return client

    def direct(self, **fields: Any) -> FabricClient:
        return self._client(self.broker.port, **fields)

    def through(self, **fields: Any) -> FabricClient:
        return self._client(self.node.port, **fields)


@contextmanager
def line_of(
    folder: Path,
    brokers: dict[str, Broker],
    *,
    login: Callable[[str], dict[str, Any]] | None = None,
    taking: Collection[str] | None = None,
) -> Iterator[dict[str, Site]]:
    """Nodes in a line, in the order of `brokers`; those of `taking`, or all, take from them."""
    with ExitStack() as stack:
        for broker in brokers.values():
            require_broker(broker.name)
            stack.callback(broker.stop)
        with ThreadPoolExecutor() as pool:
            list(pool.map(Broker.start, brokers.values()))
        sites: dict[str, Site] = {}
        ports = {name: free_port() for name in brokers}
        before = ""
        for name, broker in brokers.items():
            takes = taking is None or name in taking
            own = {"username": broker.username, "password": broker.password}
            if broker.username is None:
                own = {}
            process = NodeProcess(
                folder,
                f"mqtt://127.0.0.1:{broker.port}",
                id=name,
                peers=[{"address": f"127.0.0.1:{ports[before]}"}] if before else [],
                node={"state_dir": folder / f"{name}-state"},
                listen={"link": f"127.0.0.1:{ports[name]}"},
                interest=[{"filter": "to/direct/#"}] if takes else [],
                broker={
                    "source": "broker" if takes else "clients",
                    **own,
                    **(login(name) if login is not None else {}),
                },
            )
            stack.callback(process.stop)
            process.launch()
            sites[name] = Site(broker, process)
            before = name
        for site in sites.values():
            site.node.wait_until(site.node.is_ready)
        yield sites


def until_wanted(sites: dict[str, Site], *filters: str) -> None:
    """Every node is subscribed at its broker to what the others want."""
    for site in sites.values():
        wait_for(
            lambda site=site: set(filters) <= set(site.source["subscribed"]),  # type: ignore[misc]
            ARRIVE_S,
            f"{site.node.id} is subscribed to {filters}",
        )


def test_clients_past_three_makes_of_broker_talk_to_each_other(tmp_path: Path) -> None:
    rabbit, activemq = RabbitMQ(amqp=True), ActiveMQ(stomp=True)
    brokers: dict[str, Broker] = {
        "mosquitto": Mosquitto(),
        "rabbitmq": rabbit,
        "activemq": activemq,
    }
    with line_of(tmp_path, brokers) as sites, ExitStack() as stack:
        listeners = {name: stack.enter_context(site.through()) for name, site in sites.items()}
        unseen = {name: stack.enter_context(site.direct()) for name, site in sites.items()}
        for listener in listeners.values():
            listener.subscribe("t/#", "w/#")
        for listener in unseen.values():
            listener.subscribe("to/direct/#")
        take = stack.enter_context(amqp_consumer(rabbit.amqp_port, "to.direct.#"))
        until_wanted(sites, "t/#", "w/#", "to/direct/#")
        publishers = {name: stack.enter_context(site.direct()) for name, site in sites.items()}
        sent = set[bytes]()
        for name, publisher in publishers.items():
            for qos in (0, 1, 2):
                for number in range(5):
                    payload = f"{name} {qos} {number}".encode()
                    publisher.publish(f"t/{name}/{qos}", payload, qos)
                    sent.add(payload)
            publisher.publish(f"to/direct/{name}", f"to {name}".encode(), 1)
        sent.add(amqp_publish(rabbit.amqp_port, "t.amqp", b"by AMQP"))
        sent.add(stomp_publish(activemq.stomp_port, "/topic/t.stomp", b"by STOMP", text=False))
        sent.add(stomp_publish(activemq.stomp_port, "/topic/t.stomp", b"text", text=True))
        for name, site in sites.items():
            with site.direct(will=Will(f"w/{name}", f"will of {name}".encode(), 1)):
                pass  # it vanishes
            sent.add(f"will of {name}".encode())
        wait_until_taken(sites)
        for name, publisher in publishers.items():
            for topic in (f"t/end/{name}", f"to/direct/{name}"):
                publisher.publish(topic, f"end {name}".encode(), 2)
        for at, listener in listeners.items():
            got = until_ends(lambda one=listener: one.next().payload, sites)  # type: ignore[misc]
            assert got == Counter(sent), at
        to_direct = Counter(f"to {name}".encode() for name in sites)
        assert until_ends(take, sites) == to_direct, "by AMQP"
        for at, listener in unseen.items():
            assert until_ends(lambda one=listener: one.next().payload, sites) == to_direct, at  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clients_past_three_makes_talk_to_clients_of_every_make(tmp_path: Path) -> None:
    """
    mosquitto ── rabbitmq ── activemq ── ejabberd ── aedes ── moquette ── hivemq ── embedded
    └─────── source = "broker" ────┘     └─────────────── "clients" ────────────────┘
    """
    rabbit, activemq = RabbitMQ(amqp=True), ActiveMQ(stomp=True)
    taking: dict[str, Broker] = {
        "mosquitto": Mosquitto(),
        "rabbitmq": rabbit,
        "activemq": activemq,
    }
    others = ("ejabberd", "aedes", "moquette", "hivemq", "embedded")
    brokers = taking | {name: create(name) for name in others}
    with line_of(tmp_path, brokers, taking=set(taking)) as sites, ExitStack() as stack:
        sources = {name: sites[name] for name in taking}
        listeners = {name: stack.enter_context(site.through()) for name, site in sites.items()}
        unseen = {name: stack.enter_context(site.direct()) for name, site in sources.items()}
        for listener in listeners.values():
            listener.subscribe("t/#", "w/#", "r/#", qos=2)
        for listener in unseen.values():
            listener.subscribe("to/direct/#")
        take = stack.enter_context(amqp_consumer(rabbit.amqp_port, "to.direct.#"))
        until_wanted(sources, "t/#", "w/#", "r/#", "to/direct/#")
        publishers = {
            name: stack.enter_context(site.direct() if name in taking else site.through())
            for name, site in sites.items()
        }
        wait_for(
            lambda: all(knows_direct(sites[name]) for name in others),
            ARRIVE_S,
            "interest to be known",
        )
        sent = {
            amqp_publish(rabbit.amqp_port, "t.amqp", b"by AMQP"),
            stomp_publish(activemq.stomp_port, "/topic/t.stomp", b"by STOMP", text=True),
        }
        for name, publisher in publishers.items():
            for qos in (0, 1, 2):
                payload = f"{name} {qos}".encode()
                publisher.publish(f"t/{name}", payload, qos)
                sent.add(payload)
            publisher.publish(f"to/direct/{name}", f"to {name}".encode(), 1)
            publisher.publish(f"r/{name}", f"kept {name}".encode(), 1, retain=True)
            sent.add(f"kept {name}".encode())
        for name, site in sources.items():
            with site.direct(will=Will(f"w/{name}", f"will of {name}".encode(), 1)):
                pass  # it vanishes
            sent.add(f"will of {name}".encode())
        wait_until_taken(sources)
        for name, publisher in publishers.items():
            for topic in (f"t/end/{name}", f"to/direct/{name}"):
                publisher.publish(topic, f"end {name}".encode(), 2)
        for at, listener in listeners.items():
            got = until_ends(lambda one=listener: one.next().payload, sites)  # type: ignore[misc]
            assert got == Counter(sent), at
        to_direct = Counter(f"to {name}".encode() for name in sites)
        assert until_ends(take, sites) == to_direct, "by AMQP"
        for at, listener in unseen.items():
            assert until_ends(lambda one=listener: one.next().payload, sites) == to_direct, at  # type: ignore[misc]
        for at, site in sites.items():
            with site.through() as late:  # RabbitMQ finds none by a wildcard
                late.subscribe(*(f"r/{name}" for name in sites))
                found_there = {late.next().payload}
                while len(found_there) < len(sites):
                    found_there.add(late.next().payload)
            assert found_there == {f"kept {name}".encode() for name in sites}, at


def until_ends(take: Callable[[], bytes], names: Iterable[str]) -> Counter[bytes]:
    """How often each payload came before the last one of everybody."""
    got = Counter[bytes]()
    ends = {f"end {name}".encode() for name in names}
    while ends:
        payload = take()
        if payload in ends:
            ends.discard(payload)
        else:
            got[payload] += 1
    return got


def knows_direct(site: Site) -> bool:
    """It has heard, as one of four filters, what those want whom their node does not see."""
    neighbors = site.node.fabric()["algorithm"]["neighbors"].values()
    return 4 in [neighbor["received_filters"] for neighbor in neighbors]


def wait_until_taken(sites: dict[str, Site]) -> None:
    """Nothing is under way any more."""

    def counts() -> list[int]:
        return [
            site.node.fabric()["counters"].get("taken_from_broker", 0) for site in sites.values()
        ]

    last: list[list[int]] = []

    def still() -> bool:
        last.append(counts())
        return len(last) > 8 and len({tuple(each) for each in last[-8:]}) == 1

    wait_for(still, ARRIVE_S, "nothing is taken any more", every_s=0.1)


def amqp_publish(port: int, routing_key: str, body: bytes) -> bytes:
    parameters = pika.ConnectionParameters("127.0.0.1", port)
    connection = pika.BlockingConnection(parameters)
    connection.channel().basic_publish("amq.topic", routing_key, body)
    connection.close()
    return body


def stomp_publish(port: int, destination: str, body: bytes, *, text: bool) -> bytes:
    """Knows topics by their JMS names; as ActiveMQ has it, a message of `text` or of bytes."""
    length = "" if text else f"content-length:{len(body)}\n"
    send = f"SEND\ndestination:{destination}\nreceipt:1\n{length}\n"
    with socket.create_connection(("127.0.0.1", port), timeout=ARRIVE_S) as connection:
        answers = connection.makefile("rb")
        for frame, expected in (
            (b"CONNECT\naccept-version:1.2\nhost:localhost\n\n", b"CONNECTED"),
            (send.encode() + body, b"RECEIPT"),
        ):
            connection.sendall(frame + b"\0")
            answer = answers.readline()
            while answer == b"\n":  # between frames
                answer = answers.readline()
            assert answer.rstrip() == expected, answer
            while not answer.endswith(b"\0"):
                answer = answers.read(1)
                assert answer, "closed in the midst of a frame"
    return body


@contextmanager
def amqp_consumer(port: int, binding: str) -> Iterator[Callable[[], bytes]]:
    """A consumer of AMQP 0-9-1 with a queue of its own; gives the next body."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    try:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", binding)
        messages = channel.consume(queue, auto_ack=True, inactivity_timeout=ARRIVE_S)

        def take() -> bytes:
            _, _, body = next(messages)
            assert body is not None, f"nothing came within {ARRIVE_S:g} s"
            return bytes(body)

        yield take
    finally:
        connection.close()


MAKES = pytest.mark.parametrize(
    "make",
    [
        "mosquitto",
        *(
            pytest.param(make, marks=pytest.mark.slow)
            for make in ("ejabberd", "hivemq", "rabbitmq", "activemq", "aedes")
        ),
    ],
)
"""Of the table in docs/howto/take-messages-from-the-broker.md."""


@MAKES
def test_what_the_node_publishes_does_not_come_back(tmp_path: Path, make: str) -> None:
    """By No Local in MQTT 5; in 3.1.1 it comes, and is swallowed."""
    with (
        line_of(tmp_path, {"a": create(make), "b": Mosquitto()}) as sites,
        sites["a"].through() as at_a,
        sites["b"].through() as at_b,
        sites["b"].direct() as publisher,
    ):
        for listener in (at_a, at_b):
            listener.subscribe("t/#")
        until_wanted(sites, "t/#")
        sent = Counter[bytes]()
        for number in range(10):
            for qos in (0, 1, 2):
                payload = f"{qos} {number}".encode()
                publisher.publish(f"t/{qos}", payload, qos, retain=number == 5)
                sent[payload] += 1
        wait_until_taken(sites)
        publisher.publish("t/end", b"end b", 1)
        for listener in (at_a, at_b):
            assert until_ends(lambda one=listener: one.next().payload, "b") == sent  # type: ignore[misc]
        swallowed = sites["a"].node.fabric()["counters"].get("echoes_swallowed", 0)
        assert not sites["a"].source["echoing"]
        if sites["a"].level == 5:
            assert swallowed == 0
        else:
            assert swallowed >= sum(sent.values())


@MAKES
def test_retained_messages_of_direct_clients(tmp_path: Path, make: str) -> None:
    with (
        line_of(tmp_path, {"a": create(make), "b": Mosquitto()}) as sites,
        sites["a"].direct() as publisher,
        sites["b"].through() as early,
        sites["b"].direct() as late,
    ):
        publisher.publish("r/before", b"from before", 1, retain=True)
        early.subscribe("r/before")
        assert early.next().payload == b"from before"
        early.subscribe("r/#")
        until_wanted({"a": sites["a"]}, "r/#")
        publisher.publish("r/live", b"1", 1, retain=True)
        publisher.publish("r/live", b"2", 1, retain=True)
        publisher.publish("r/plain", b"not kept", 1)
        publisher.publish("r/end", b"end", 1)
        got = list[bytes]()
        while not {b"2", b"not kept", b"end"} <= set(got):
            got.append(early.next().payload)
        live = [each for each in got if each in (b"1", b"2")]
        assert live == [b"1", b"2"]
        wait_until_taken(sites)
        late.subscribe("r/live", "r/plain", "r/before")
        kept = {(late_.topic, late_.payload) for late_ in (late.next(), late.next())}
        assert kept == {("r/live", b"2"), ("r/before", b"from before")}


def test_what_mosquitto_forbids_reaches_no_other_broker(tmp_path: Path) -> None:
    rights = tmp_path / "acl"
    rights.write_text(
        "topic readwrite open/#\ntopic read closed/#\n"
        "user isthmus\ntopic readwrite #\ntopic readwrite $isthmus/#\n"
    )
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-c", "-b", passwords, "isthmus", "isthmus"], check=True)
    first = Mosquitto(extra=(f"acl_file {rights}", f"password_file {passwords}"))

    def login(name: str) -> dict[str, Any]:
        return {"username": "isthmus", "password": "isthmus"} if name == "a" else {}

    with (
        line_of(tmp_path, {"a": first, "b": Mosquitto()}, login=login) as sites,
        sites["b"].through() as listener,
        sites["a"].through() as publisher,
        sites["a"].direct() as direct,
    ):
        listener.subscribe("open/#", "closed/#")
        until_wanted({"a": sites["a"]}, "open/#", "closed/#")
        for number, each in enumerate((publisher, direct)):
            for qos in (0, 1, 2):
                each.publish("closed/t", b"forbidden", qos)
            each.publish("open/t", b"%d" % number, 1)
        assert sorted(listener.next().payload for _ in range(2)) == [b"0", b"1"]
        publisher.publish("open/t", b"end", 1)
        assert listener.until(b"end") == []


def test_a_node_that_is_killed_loses_nothing_that_its_broker_has(tmp_path: Path) -> None:
    brokers: dict[str, Broker] = {"a": Mosquitto(), "b": Mosquitto()}
    with (
        line_of(tmp_path, brokers) as sites,
        sites["b"].through() as listener,
        sites["a"].direct() as direct,
    ):
        listener.subscribe("t")
        until_wanted({"a": sites["a"]}, "t")
        sent = 0
        for _ in range(3):
            for _ in range(100):
                direct.publish("t", b"%d" % sent, 1 + sent % 2)
                sent += 1
            sites["a"].node.kill()
            for _ in range(100):
                direct.publish("t", b"%d" % sent, 1 + sent % 2)
                sent += 1
            sites["a"].node.start()
        direct.publish("t", b"end", 1)
        got = {int(message.payload) for message in listener.until(b"end")}
        assert got == set(range(sent))
