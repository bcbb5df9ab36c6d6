"""Messages whose path is being set up, in the simulator."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest

from isthmus.cooperation.api import Route, SessionInfo, SessionKind
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.exchange.link.links import LinkSettings
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.node import SimNode
from isthmus.sim.soak import soak

SETTINGS = LinkSettings(hold_s=20.0, queue_bytes=200_000)
OPEN_S = 5.0


class Slow(PublicationFlooding):
    """The path of a topic is there `OPEN_S` after it was asked for first; that of never/… never."""

    name = "slow"

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        route = super().route(topic, arrived_on, retain=retain)
        opened = self.__dict__.setdefault("opened", {})
        if topic not in opened:
            opened[topic] = False
            self.port.set_timer(OPEN_S, topic)
        return replace(route, pending=not opened[topic])

    def on_timer(self, key: Hashable) -> None:
        assert isinstance(key, str)
        if not key.startswith("never/"):
            self.__dict__["opened"][key] = True
            self.port.routes_changed([key])


def line(
    settings: LinkSettings = SETTINGS, algorithm: AlgorithmFactory = Slow
) -> tuple[SimFabric, list[SimNode], list[SimClient]]:
    """a - b - c, with a subscriber at each."""
    fabric = SimFabric(seed=1, algorithm=algorithm, link=settings, trace=True)
    a, b, c = nodes = [fabric.node(name) for name in "abc"]
    fabric.link(a, b)
    fabric.link(b, c)
    subscribers = [node.client(f"at-{node.name}") for node in nodes]
    for each in subscribers:
        each.subscribe("#")
    fabric.settle()
    return fabric, nodes, subscribers


def numbers(client: SimClient) -> list[int]:
    return [int(payload) for payload in client.payloads()]


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_and_go_in_order(qos: int) -> None:
    fabric, (a, b, c), subscribers = line()
    publisher = a.client("p")
    fabric.run(0.1)
    for number in range(600):
        publisher.publish("t/1", b"%d" % number, qos=qos)
        fabric.run(0.05)
    fabric.run(2 * OPEN_S)
    for each in subscribers:
        assert numbers(each) == list(range(600))
    for node in (a, b, c):
        assert node.exchange.status()["pending"] == {"messages": 0, "bytes": 0}
        assert node.exchange.counters["given_up"] == 0
        assert node.exchange.unacknowledged() == 0


def test_the_local_broker_does_not_wait() -> None:
    fabric, (a, b, _), (at_a, at_b, at_c) = line()
    publisher = a.client("p")
    fabric.run(0.1)
    publisher.publish("t/1", b"0", qos=1)
    fabric.run(OPEN_S + 1.0)
    assert [len(each.payloads()) for each in (at_a, at_b, at_c)] == [1, 1, 0]
    assert b.exchange.status()["in_hand"]["waiting"] == [
        {"neighbor": "a", "waits_for": "the path", "messages": 1}
    ]
    fabric.run(OPEN_S)
    assert [len(each.payloads()) for each in (at_a, at_b, at_c)] == [1, 1, 1]


@pytest.mark.parametrize(("retain", "dropped"), [(False, 10), (True, 0)])
def test_at_qos_0_they_are_dropped_and_counted_unless_retained(retain: bool, dropped: int) -> None:
    fabric, (a, b, _), (_, at_b, _) = line()
    publisher = a.client("p")
    fabric.run(0.1)
    for number in range(10):
        publisher.publish("t/1", b"%d" % number, retain=retain)
    fabric.run(4 * OPEN_S)
    publisher.publish("t/1", b"10", retain=retain)
    fabric.run(4 * OPEN_S)
    assert a.exchange.counters["pending_dropped"] == dropped
    assert b.exchange.counters["pending_dropped"] <= 1
    assert numbers(at_b)[-1] == 10
    assert len(numbers(at_b)) >= 1 + 10 - dropped


def test_at_qos_0_they_wait_if_that_is_configured() -> None:
    fabric, _, subscribers = line(replace(SETTINGS, holds_pending_qos0=True))
    publisher = fabric.nodes["a"].client("p")
    fabric.run(0.1)
    for number in range(100):
        publisher.publish("t/1", b"%d" % number, qos=number % 3)
        fabric.run(0.1)
    fabric.run(3 * OPEN_S)
    for each in subscribers:
        assert sorted(numbers(each)) == list(range(100))


def test_what_waits_for_too_long_is_given_up_and_counted() -> None:
    fabric, (a, *_), (_, at_b, _) = line()
    publisher = a.client("p")
    fabric.run(0.1)
    for number in range(10):
        publisher.publish("never/1", b"%d" % number, qos=1)
    publisher.publish("t/1", b"99", qos=1)
    fabric.run(SETTINGS.hold_s / 2)
    assert a.exchange.status()["pending"]["messages"] == 10
    fabric.run(SETTINGS.hold_s)
    assert a.exchange.counters["given_up"] == 10
    assert a.exchange.unacknowledged() == 0
    assert numbers(at_b) == [99]
    assert "no path was set up for them messages=10" in fabric.trace.text()


def test_too_many_hold_their_publisher() -> None:
    fabric, (a, *_), subscribers = line()
    publisher = a.client("p")
    fabric.run(0.1)
    sent = 0
    while a.exchange.counters["publishers_held"] == 0:
        assert publisher.publish("t/1", b"%d" % sent, qos=1)
        sent += 1
        fabric.run(0.001)
        assert sent < 2_000
    for _ in range(100):
        publisher.publish("t/1", b"%d" % sent, qos=1)
        sent += 1
    fabric.run(1.0)
    assert a.exchange.traffic.pending.bytes < 2 * SETTINGS.queue_bytes
    fabric.run(4 * OPEN_S)
    for each in subscribers:
        assert numbers(each) == list(range(sent))


class Settling(PublicationFlooding):
    """Paths are there a second after the last neighbor has come, or gone."""

    name = "settling"

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        route = super().route(topic, arrived_on, retain=retain)
        if getattr(self, "there", False):
            return route
        return Route(pending=True, to_local_broker=route.to_local_broker)

    def on_session_established(self, session: SessionInfo) -> None:
        super().on_session_established(session)
        self._settle(session)

    def on_session_closed(self, session: SessionInfo) -> None:
        super().on_session_closed(session)
        self._settle(session)

    def on_tcp_down(self, session: SessionInfo) -> None:
        self._settle(session)

    def _settle(self, session: SessionInfo) -> None:
        if session.kind is SessionKind.NEIGHBOR:
            self.there = False
            self.port.routes_changed()
            self.port.set_timer(1.0, "there")

    def on_timer(self, key: Hashable) -> None:
        self.there = True
        self.port.routes_changed()


@pytest.mark.parametrize("profile", ["outages", "oneway", "kills", "double"])
def test_schedules_with_paths_that_take_their_time(profile: str) -> None:
    soaked = soak(Settling, range(12), profile=profile, max_failures=1)
    assert not soaked.failures, soaked.failures[0]


def test_what_was_for_a_neighbor_that_is_given_up_is_counted_whatever_its_path() -> None:
    """b gives c up, its algorithm thinks about it, and then there is nobody else."""
    settings = replace(SETTINGS, hold_s=5.0)
    fabric, (a, b, c), (_, _, at_c) = line(settings, Settling)
    publisher = a.client("p")
    fabric.run(2.0)
    fabric.partition([b], [c])
    for number in range(10):
        publisher.publish("t/1", b"%d" % number, qos=1)
    while b.exchange.links.links.get("c"):
        fabric.run(0.1)
    fabric.run(0.2)
    assert b.exchange.status()["pending"]["messages"] == 10
    fabric.run(20.0)
    assert b.exchange.status()["pending"]["messages"] == 0
    assert b.exchange.counters["given_up"] == 10
    assert numbers(at_c) == []
    assert "there is no other messages=10" in fabric.trace.text()


def test_a_retained_message_whose_path_is_pending_reaches_the_broker() -> None:
    fabric, (a, b, _), (_, at_b, _) = line()
    publisher = a.client("p")
    fabric.run(0.1)
    publisher.publish("t/1", b"0", qos=1, retain=True)
    fabric.run(OPEN_S + 1.0)
    assert numbers(at_b) == [0]
    assert b.broker.retained["t/1"].payload == b"0"


def test_clients_that_publish_once_and_go_fill_nothing() -> None:
    fabric, (a, *_), _ = line()
    for number in range(300):
        client = a.client(f"c{number}")
        fabric.run(0.01)
        client.publish("never/1", bytes(10_000), qos=1)
        fabric.run(0.01)
        client.vanish()
    assert a.exchange.traffic.pending.bytes < 3 * SETTINGS.queue_bytes


def test_sweeping_begins_once() -> None:
    fabric, (a, *_), _ = line()
    pending = a.exchange.traffic.pending
    publisher = a.client("p")
    fabric.run(0.1)
    sweeps = 0
    sweep = pending._sweep

    def counted() -> None:
        nonlocal sweeps
        sweeps += 1
        sweep()

    pending._sweep = counted  # type: ignore[method-assign]
    for _ in range(600):
        publisher.publish("never/1", bytes(2_000), qos=1)
        fabric.run(0.1)
    assert sweeps <= 62


def test_a_node_that_stops_counts_what_waits() -> None:
    fabric, (a, *_), _ = line()
    publisher = a.client("p")
    fabric.run(0.1)
    for number in range(7):
        publisher.publish("never/1", b"%d" % number, qos=1)
    fabric.run(0.1)
    exchange = a.exchange
    fabric.stop(a)
    assert exchange.counters["given_up"] == 7


def test_a_neighbors_message_is_not_acknowledged_before_it_is_passed_on() -> None:
    """b is killed while it holds messages: a has them still."""
    fabric, (a, b, _), (_, _, at_c) = line()
    publisher = a.client("p")
    fabric.run(0.1)
    publisher.publish("t/1", b"0", qos=1)
    fabric.run(OPEN_S + 1.0)
    assert b.exchange.status()["pending"]["messages"] == 1
    fabric.crash(b)
    fabric.run(1.0)
    fabric.restart(b)
    fabric.run(3 * OPEN_S)
    assert numbers(at_c) == [0]
