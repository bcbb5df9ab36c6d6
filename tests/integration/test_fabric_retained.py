"""Thousands of retained messages over a partition, at real brokers.

    a ── b        Mosquitto behind each; the link is cut and mended by a tap

What is compared is what the two brokers would give a new subscriber.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from support.fabrics import QUICK_LINKS, FabricClient, NodeFabric
from support.waiting import wait_for

MANY = 5_000


@pytest.fixture(params=[True, False], ids=["state_dir", "no state_dir"])
def fabric(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeFabric]:
    with NodeFabric(tmp_path, [("a", "b")], state=request.param, link=QUICK_LINKS) as running:
        yield running


def publish_all(client: FabricClient, payloads: dict[str, bytes], qos: int = 1) -> None:
    """At once, and until the broker has acknowledged the last."""
    packets = [
        encode(
            Publish(topic, payload, qos, retain=True, packet_id=(at % 65_000 + 1) if qos else 0), 5
        )
        for at, (topic, payload) in enumerate(payloads.items())
    ]
    for start in range(0, len(packets), 500):
        client.raw.send(b"".join(packets[start : start + 500]))
        if qos == 1:
            for _ in packets[start : start + 500]:
                client.raw.receive()


def retained_at(fabric: NodeFabric, name: str, topic_filter: str = "r/#") -> dict[str, bytes]:
    """What the broker itself gives a new subscriber."""
    client = FabricClient(fabric.brokers[name].port)
    with client:
        client.connect()
        client.subscribe(topic_filter, qos=0)
        client.subscribe("marker")
        client.publish("marker", b"end", qos=1)
        return {m.topic: m.payload for m in client.until(b"end") if m.retain}


def partition(fabric: NodeFabric) -> None:
    fabric.taps["a", "b"].cut()
    fabric.until_linked(("a", "b"), status="down")


def heal(fabric: NodeFabric) -> None:
    fabric.taps["a", "b"].mend()
    fabric.until_linked(("a", "b"), status="active")


def until_equal(fabric: NodeFabric, wanted: dict[str, bytes] | None = None) -> dict[str, bytes]:
    def differing() -> int:
        here, there = retained_at(fabric, "a"), retained_at(fabric, "b")
        if wanted is not None and here != wanted:
            return -1
        return sum(here.get(topic) != there.get(topic) for topic in here.keys() | there.keys())

    seen: list[int] = []

    def equal() -> bool:
        seen.append(differing())
        return seen[-1] == 0

    try:
        wait_for(equal, 30, "equal retained messages", every_s=0.5)
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen[-1]} differ") from None
    return retained_at(fabric, "a")


def test_everything_that_was_deleted_during_a_partition_is_deleted(fabric: NodeFabric) -> None:
    topics = [f"r/{number}" for number in range(MANY)]
    with fabric.client("a") as publisher:
        publish_all(publisher, dict.fromkeys(topics, b"x"))
        until_equal(fabric, dict.fromkeys(topics, b"x"))
        partition(fabric)
        publish_all(publisher, dict.fromkeys(topics, b""))
        heal(fabric)
        until_equal(fabric, {})


def test_both_sides_change_the_same_topics_during_a_partition(fabric: NodeFabric) -> None:
    topics = [f"r/{number}" for number in range(2_000)]
    with fabric.client("a") as at_a, fabric.client("b") as at_b:
        publish_all(at_a, dict.fromkeys(topics, b"before"))
        until_equal(fabric, dict.fromkeys(topics, b"before"))
        partition(fabric)
        publish_all(at_a, {t: b"" if n % 3 else b"a%d" % n for n, t in enumerate(topics)}, qos=0)
        publish_all(at_b, {t: b"" if n % 5 else b"b%d" % n for n, t in enumerate(topics)}, qos=0)
        heal(fabric)
        # And they go on while the stores are compared.
        publish_all(at_a, dict.fromkeys(topics[::7], b"late a"), qos=0)
        publish_all(at_b, dict.fromkeys(topics[::7], b"late b"), qos=0)
        ended = until_equal(fabric)
        assert all(ended[topic] in (b"late a", b"late b") for topic in topics[::7])


def test_a_node_that_was_stopped_repeats_nothing_as_live(fabric: NodeFabric) -> None:
    topics = {f"r/{number}": b"%d" % number for number in range(500)}
    with fabric.client("a") as publisher:
        publish_all(publisher, topics)
        until_equal(fabric, topics)
        with FabricClient(fabric.brokers["b"].port) as watcher:
            watcher.connect()
            watcher.subscribe("r/#", qos=1, retain_handling=2)
            fabric["b"].stop()
            fabric["b"].start()
            fabric.until_linked(("a", "b"), status="active")
            publisher.publish("r/new", b"new", 1, retain=True)
            topics["r/new"] = b"new"
            until_equal(fabric, topics)
            watcher.publish("r/end", b"end", 1)
            repeated = [m.topic for m in watcher.until(b"end") if m.topic != "r/new"]
            assert repeated == []
