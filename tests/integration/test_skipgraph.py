"""Five real brokers and nodes, all linked with each other, with `skipgraph`.

    a ─ b ─ c ─ d ─ e     a full mesh; at each node a client publishes, together 1,000 messages
    └───┴───┴───┴───┘     per second, whether anybody wants them or not

With no subscriber no message at all goes over the links; the first one has messages of all nodes
within a second of its SUBACK; and when it has gone the links are silent again.  What is retained
comes to every broker all the same, in order with what is not; wills come to who wants them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations, count
from pathlib import Path

import pytest

from isthmus.mqtt.packets import Will
from support.fabrics import FabricClient, NodeFabric
from support.waiting import wait_for

NODES = "abcde"
RATE_PER_S = 1_000
TICK_S = 0.01
FIRST_S = 1.0
SILENT_S = 2.0
TOPIC = "plant/7/temperature"


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[NodeFabric]:
    links = list(combinations(NODES, 2))
    with NodeFabric(tmp_path, links, algorithm="skipgraph", tapped=False) as made:
        wait_for(lambda: are_settled(made), 30, "the graph to settle")
        yield made


def are_settled(fabric: NodeFabric) -> bool:
    said = [fabric[name].fabric()["algorithm"] for name in NODES]
    return {each["graph"] for each in said} == {"SETTLED"} and len(
        {each["epoch"] for each in said}
    ) == 1


def data_on_links(fabric: NodeFabric) -> int:
    """Messages that links have carried, all together."""
    return sum(link["data_sent"] for name in NODES for link in fabric[name].fabric()["links"])


class _Publishing(threading.Thread):
    """At an even pace, each time from all of them."""

    def __init__(self, clients: dict[str, FabricClient]) -> None:
        super().__init__(daemon=True)
        self._clients = clients
        self._end = threading.Event()
        self.sent = 0

    def run(self) -> None:
        each = round(RATE_PER_S * TICK_S / len(self._clients))
        begun_s = time.monotonic()
        for tick in count(1):
            for name, client in self._clients.items():
                for _ in range(each):
                    client.publish(TOPIC, name.encode(), qos=0)
                    self.sent += 1
            if self._end.wait(max(begun_s + tick * TICK_S - time.monotonic(), 0)):
                return

    def stop(self) -> None:
        self._end.set()
        self.join()


@contextmanager
def publishing(fabric: NodeFabric) -> Iterator[_Publishing]:
    with ExitStack() as stack:
        clients = {name: stack.enter_context(fabric.client(name)) for name in NODES}
        load = _Publishing(clients)
        load.start()
        try:
            yield load
        finally:
            load.stop()


def test_publishers_are_silent_while_nobody_listens(fabric: NodeFabric) -> None:
    with publishing(fabric) as load, fabric.client("c") as subscriber:
        begun_s, before = time.monotonic(), load.sent
        time.sleep(4.0)
        rate = (load.sent - before) / (time.monotonic() - begun_s)
        assert rate > 0.8 * RATE_PER_S, "the load was not what it should be"
        assert data_on_links(fabric) == 0

        subscriber.subscribe(TOPIC, qos=0)
        granted_s = time.monotonic()
        waiting = set(NODES)
        while waiting:
            waiting.discard(subscriber.next().payload.decode())
            assert time.monotonic() - granted_s < FIRST_S, f"nothing from {waiting} for a second"

        subscriber.unsubscribe(TOPIC)
        time.sleep(SILENT_S)
        carried = data_on_links(fabric)
        time.sleep(2.0)
        assert data_on_links(fabric) == carried


def test_what_a_subscriber_gets(fabric: NodeFabric) -> None:
    """By name, by wildcard and at the publisher's own node: everything, once, in order."""
    with ExitStack() as stack:
        publishers = {name: stack.enter_context(fabric.client(name)) for name in NODES}
        by_name = stack.enter_context(fabric.client("b"))
        by_wildcard = stack.enter_context(fabric.client("d"))
        by_name.subscribe(TOPIC, qos=1)
        by_wildcard.subscribe("plant/+/temperature", qos=1)
        time.sleep(FIRST_S)
        published = []
        for number in range(200):
            for name, publisher in publishers.items():
                published.append(b"%s %d" % (name.encode(), number))
                publisher.publish(TOPIC, published[-1], qos=1)
        for subscriber in (by_name, by_wildcard):
            got = [subscriber.next().payload for _ in published]
            assert sorted(got) == sorted(published)
            for name in NODES:
                of_one = [int(each.split()[1]) for each in got if each.startswith(name.encode())]
                assert of_one == sorted(of_one)


def test_what_is_retained_is_at_every_broker_and_in_order_with_the_rest(
    fabric: NodeFabric,
) -> None:
    with fabric.client("a") as publisher, fabric.client("d") as subscriber:
        subscriber.subscribe(TOPIC, qos=1)
        time.sleep(FIRST_S)
        payloads = [b"%d" % number for number in range(40)]
        for number, payload in enumerate(payloads):
            publisher.publish(TOPIC, payload, qos=1, retain=number % 10 == 5)
        got = [subscriber.next() for _ in payloads]
        assert [each.payload for each in got] == payloads
        assert not any(each.retain for each in got)  # they are live
    for name in NODES:

        def retained(name: str = name) -> list[bytes]:
            with fabric.client(name) as late:
                late.subscribe(TOPIC, "marker", qos=1)
                late.publish("marker", b"end", qos=1)
                return [each.payload for each in late.until(b"end") if each.retain]

        wait_for(lambda: retained() == [b"35"], 20, f"the latest at {name}", every_s=0.2)


def test_a_will_comes_to_who_wants_it_and_no_other_crosses_a_link(fabric: NodeFabric) -> None:
    """Nobody has ever published on its topic."""
    with fabric.client("e") as subscriber:
        subscriber.subscribe("gone/b", qos=1)
        for name in "ac":  # nobody wants these
            vanish(fabric, name)
        vanish(fabric, "b")
        will = subscriber.next()
        assert (will.topic, will.payload) == ("gone/b", b"b has gone")
        time.sleep(SILENT_S)
        assert data_on_links(fabric) == 1


def vanish(fabric: NodeFabric, name: str) -> None:
    """A client whose connection breaks, without DISCONNECT."""
    client = fabric.client(name, will=Will(f"gone/{name}", f"{name} has gone".encode(), qos=1))
    client.raw.close()


def test_a_node_is_killed_and_the_others_go_on(fabric: NodeFabric) -> None:
    with fabric.client("a") as publisher, fabric.client("e") as subscriber:
        subscriber.subscribe("t/#", qos=1)
        time.sleep(FIRST_S)
        fabric["c"].kill()
        published = []
        for number in range(100):
            published.append(b"%d" % number)
            publisher.publish("t/1", published[-1], qos=1)
            time.sleep(0.02)
        assert [subscriber.next().payload for _ in published] == published
