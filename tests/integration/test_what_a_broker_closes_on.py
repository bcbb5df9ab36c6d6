"""What the broker behind a node does not take stops nothing else.

a ── b        PF; a's broker takes everything, b's closes its session on some messages
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import BrokerFactory
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish, PubRec
from isthmus.mqtt.properties import Properties
from support.fabrics import FabricClient
from support.nodes import NodeProcess, free_port
from support.picky_broker import PickyBroker
from support.raw import RawClient
from support.waiting import wait_for


class Pair:
    """Node a, before a broker that takes everything, linked to node b, before the given port."""

    def __init__(self, folder: Path, port_a: int, port_b: int, *, state: bool = False) -> None:
        link = f"127.0.0.1:{free_port()}"
        pf = {"algorithm": "pf"}
        self.b = NodeProcess(
            folder,
            f"mqtt://127.0.0.1:{port_b}",
            id="b",
            listen={"link": link},
            cooperation=pf,
            node={"state_dir": folder / "b-state"} if state else {},
        )
        self.a = NodeProcess(
            folder,
            f"mqtt://127.0.0.1:{port_a}",
            id="a",
            peers=[{"address": link}],
            cooperation=pf,
            limits={"topic_levels": 300},
        )

    def link(self) -> dict[str, Any]:
        links: list[dict[str, Any]] = self.a.fabric()["links"]
        return links[0] if links else {}

    def counter(self, name: str) -> int:
        found: int = self.b.fabric()["counters"].get(name, 0)
        return found

    def settled(self) -> bool:
        return int(self.link()["unacknowledged"]) == 0


@contextmanager
def linked(
    folder: Path, port_a: int, port_b: int, *, state: bool = False
) -> Iterator[tuple[Pair, FabricClient]]:
    pair = Pair(folder, port_a, port_b, state=state)
    with ExitStack() as stack:
        stack.enter_context(pair.b)
        stack.enter_context(pair.a)
        pair.a.wait_until(lambda: pair.link().get("status") == "active")
        publisher = stack.enter_context(FabricClient(pair.a.port))
        publisher.connect("publisher")
        yield pair, publisher


def is_poison(publish: Publish) -> bool:
    return publish.payload.startswith(b"poison")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_ends_every_session_is_set_aside(
    tmp_path: Path, broker_factory: BrokerFactory, qos: int
) -> None:
    a = broker_factory("mosquitto").port
    with (
        PickyBroker(closes_on=is_poison) as broker,
        linked(tmp_path, a, broker.port, state=True) as (pair, publisher),
    ):
        publisher.publish("t", b"before", qos)
        publisher.publish("t", b"poison", qos)
        began_s = time.monotonic()
        publisher.publish("t", b"after", qos)
        wait_for(lambda: b"after" in broker.payloads(), 10, "what is behind the poison")
        blocked_s = time.monotonic() - began_s
        print(f"blocked for {blocked_s:.2f} s")
        for number in range(50):
            publisher.publish("t", b"%d" % number, qos)
        wait_for(lambda: broker.payloads()[-1] == b"49", 10, "everything else")
        pair.a.wait_until(pair.settled)
        assert [p for p in broker.payloads() if p.isdigit()] == [b"%d" % n for n in range(50)]
        assert pair.counter("set_aside") == 1
        # Four sessions fell with it; then one stands.
        assert broker.sessions_since(began_s) <= 5
        assert pair.b.log().count("message set aside") == 1
        (record,) = pair.b.status()["broker"]["set_aside"]
        assert record["topic"] == "t"
        assert "sessions fell" in record["cause"]
        (line,) = (tmp_path / "b-state" / "set-aside.jsonl").read_text().splitlines()
        assert json.loads(line)["payload_base64"] == "cG9pc29u"


def test_the_poison_is_found_among_many(tmp_path: Path, broker_factory: BrokerFactory) -> None:
    """Published without waiting, so that hundreds are in flight when the session falls."""
    a = broker_factory("mosquitto").port
    with (
        PickyBroker(closes_on=is_poison, connack_delay_s=1.0) as broker,
        linked(tmp_path, a, broker.port) as (pair, publisher),
    ):
        names = [b"%d" % n for n in range(500)]
        names[250] = b"poison"
        publisher.raw.send(
            b"".join(_publish(f"t/{n % 7}", name, n + 1) for n, name in enumerate(names))
        )
        wait_for(lambda: b"499" in broker.payloads(), 20, "the last")
        pair.a.wait_until(pair.settled)
        assert set(broker.payloads()) == set(names) - {b"poison"}
        assert pair.counter("set_aside") == 1
        per_topic = [p for p in broker.published if p.topic == "t/3"]
        firsts = list(dict.fromkeys(int(p.payload) for p in per_topic))
        assert firsts == sorted(firsts)


def _publish(topic: str, payload: bytes, packet_id: int) -> bytes:
    return encode(Publish(topic, payload, 1, packet_id=packet_id), 5)


@pytest.mark.parametrize("times", [1, 8])
def test_a_broker_that_crashes_makes_nobody_guilty(
    tmp_path: Path, broker_factory: BrokerFactory, times: int
) -> None:
    """It goes down whenever it is given this message, as by chance: a whole process, not a session.

    After that it takes it.  Had each fall counted, three would have been enough.
    """
    a = broker_factory("mosquitto").port
    broker = PickyBroker()
    broker.crashes_on = lambda publish: publish.payload == b"innocent" and broker.crashes < times
    broker.away_s = 0.05
    with broker, linked(tmp_path, a, broker.port) as (pair, publisher):
        publisher.publish("t", b"innocent", 1)
        publisher.publish("t", b"after", 1)
        wait_for(lambda: b"after" in broker.payloads(), 40, "all of it")
        pair.a.wait_until(pair.settled)
        assert broker.crashes == times
        assert broker.payloads()[-2:] == [b"innocent", b"after"]
        assert pair.counter("set_aside") == 0


def test_poison_at_qos_0_does_not_make_the_node_hammer_its_broker(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    a = broker_factory("mosquitto").port
    with (
        PickyBroker(closes_on=is_poison) as broker,
        linked(tmp_path, a, broker.port) as (pair, publisher),
    ):
        began_s = time.monotonic()
        sent = 0
        while time.monotonic() - began_s < 4:
            publisher.publish("t/0", b"poison")
            publisher.publish("t/1", b"good %d" % sent, 1)
            sent += 1
        # 0.1 + 0.2 + 0.25 + 0.25 s and so on: a few a second, and the others do not wait long.
        wait_for(lambda: b"good %d" % (sent - 1) in broker.payloads(), 20, "QoS 1 in the end")
        took_s = time.monotonic() - began_s
        print(f"{broker.sessions_since(began_s)} sessions in {took_s:.1f} s")
        assert broker.sessions_since(began_s) <= 6 * took_s
        assert pair.counter("set_aside") == 0


def test_a_topic_that_a_broker_closes_on_costs_a_few_sessions_at_qos_0_too(tmp_path: Path) -> None:
    """However often a client repeats it."""
    with (
        PickyBroker(closes_on=lambda publish: "\x01" in publish.topic) as broker,
        PickyBroker() as takes_all,
        linked(tmp_path, takes_all.port, broker.port) as (pair, publisher),
    ):
        began_s = time.monotonic()
        for number in range(30):
            publisher.publish("p/\x01", b"poison")
            publisher.publish("good", b"%d" % number, 1)
        wait_for(lambda: b"29" in broker.payloads(), 20, "the others")
        pair.b.wait_until(lambda: pair.counter("set_aside") == 30)
        assert broker.sessions_since(began_s) <= 5


def test_what_the_connack_says_is_obeyed(tmp_path: Path, broker_factory: BrokerFactory) -> None:
    a = broker_factory("mosquitto").port
    terms = Properties(maximum_packet_size=200, retain_available=False, maximum_qos=1)
    with (
        PickyBroker(grants=terms) as broker,
        linked(tmp_path, a, broker.port) as (pair, publisher),
    ):
        began_s = time.monotonic()
        publisher.publish("t", bytes(300), 1)
        publisher.publish("t", bytes(300), 0)
        publisher.publish("t", b"kept", 1, retain=True)
        publisher.publish("t", b"end", 2)
        wait_for(lambda: b"end" in broker.payloads(), 10, "the end")
        pair.a.wait_until(pair.settled)
        assert [(p.payload, p.qos, p.retain) for p in broker.published] == [
            (b"kept", 1, False),
            (b"end", 1, False),
        ]
        assert broker.sessions_since(began_s) == 0
        assert pair.counter("set_aside") == 2
        assert pair.counter("retain_unavailable") == 1


def test_a_real_broker_closes_and_the_fabric_goes_on(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    """Mosquitto: control characters, more than 200 levels, and more than its packet size."""
    b = broker_factory("mosquitto", extra=["max_packet_size 100000"]).port
    with (
        PickyBroker() as takes_all,
        linked(tmp_path, takes_all.port, b) as (pair, publisher),
        FabricClient(pair.b.port) as subscriber,
    ):
        subscriber.connect("subscriber")
        subscriber.subscribe("#", qos=1)
        poisons = ["control/\x01", "/".join("x" * 250), "non-character/\uffff"]
        for number, topic in enumerate(poisons):
            publisher.publish(topic, b"poison", 1)
            began_s = time.monotonic()
            publisher.publish("good", b"%d" % number, 1)
            while subscriber.next().payload != b"%d" % number:
                pass
            print(f"{topic[:12]!r}: blocked for {time.monotonic() - began_s:.2f} s")
        publisher.publish("large", bytes(150_000), 1)
        publisher.publish("good", b"end", 1)
        subscriber.until(b"end")
        pair.a.wait_until(pair.settled)
        aside = [record["topic"] for record in pair.b.status()["broker"]["set_aside"]]
        assert {"control/\x01", "large"} <= set(aside), aside
        assert len(aside) >= 3


@pytest.mark.parametrize("level", [4, 5])
def test_a_pubrec_does_not_mean_that_a_message_is_safe(
    broker_factory: BrokerFactory, level: int
) -> None:
    """Mosquitto forgets it with a clean session, so what has no PUBCOMP is published again."""
    broker = broker_factory("mosquitto")
    with FabricClient(broker.port) as subscriber:
        subscriber.connect("subscriber")
        subscriber.subscribe("#", qos=2)
        with RawClient(broker.port, level) as publisher:
            publisher.connect("publisher")
            publisher.send(Publish("t", b"no PUBREL", 2, packet_id=1))
            assert isinstance(publisher.receive(), PubRec)
        with FabricClient(broker.port) as another:
            another.connect("another")
            another.publish("t", b"end", 2)
        assert subscriber.next().payload == b"end"
