"""MQTT's functions across brokers (ILDM §4.5): QoS, properties, options, wills.

    a ── b ── c        SF, a Mosquitto behind each; publishers at a, subscribers at c

Absence is seen by a marker that is published behind what must not come: one publisher's messages
on one link stay in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from isthmus.mqtt.packets import Disconnect, Publish, Will
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.fabrics import NodeFabric
from support.waiting import wait_for

CHAIN = [("a", "b"), ("b", "c")]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFabric]:
    with NodeFabric(tmp_path_factory.mktemp("mqtt"), CHAIN) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(fabric: NodeFabric) -> Iterator[None]:
    """Each test leaves no inter-subscription behind: state empties when clients have gone."""
    yield
    wait_for(
        lambda: (
            not any(
                neighbor["received_filters"]
                for node in fabric.nodes.values()
                for neighbor in node.fabric()["algorithm"]["neighbors"].values()
            )
        ),
        20,
        "the inter-subscriptions of clients that are gone to end",
    )


# ---- QoS and order -----------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_qos_holds_from_publisher_to_subscriber(fabric: NodeFabric, qos: int) -> None:
    topic = f"qos/{qos}"
    with fabric.client("a") as publisher, fabric.client("c") as subscriber:
        subscriber.subscribe(topic)
        fabric.settle()
        for number in range(50):
            publisher.publish(topic, b"%d" % number, qos)
        got = [subscriber.next() for _ in range(50)]
        assert [message.payload for message in got] == [b"%d" % n for n in range(50)]
        assert {message.qos for message in got} == {qos}


def test_a_subscriber_may_want_less_than_the_publisher_gave(fabric: NodeFabric) -> None:
    with fabric.client("a") as publisher, fabric.client("c") as subscriber:
        subscriber.subscribe("less", qos=0)
        fabric.settle()
        publisher.publish("less", b"x", qos=2)
        assert subscriber.next().qos == 0


@pytest.mark.parametrize("levels", [(4, 5), (5, 4), (4, 4)], ids=str)
def test_versions_of_mqtt_mix(fabric: NodeFabric, levels: tuple[int, int]) -> None:
    with (
        fabric.client("a", level=levels[0]) as publisher,
        fabric.client("c", level=levels[1]) as subscriber,
    ):
        subscriber.subscribe("mixed/+")
        fabric.settle()
        publisher.publish("mixed/1", b"x" * 70_000, qos=1)
        assert subscriber.next() == Publish("mixed/1", b"x" * 70_000, 1, packet_id=1)


# ---- properties --------------------------------------------------------------------------


def test_properties_arrive_unchanged(fabric: NodeFabric) -> None:
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain; charset=utf-8",
        response_topic="answers/β",
        correlation_data=bytes(range(256)),
        user_properties=(("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("$i", "not ours")),
    )
    with fabric.client("a") as publisher, fabric.client("c") as subscriber:
        subscriber.subscribe("properties")
        fabric.settle()
        for qos in (0, 1, 2):
            publisher.publish("properties", "naïve".encode(), qos, properties=properties)
            assert subscriber.next().properties == properties


def test_expiry_counts_down_on_the_way(fabric: NodeFabric) -> None:
    """While a link is cut the message waits, and the time it waits is taken off."""
    tap = fabric.taps["b", "c"]
    with fabric.client("a") as publisher, fabric.client("c") as subscriber:
        subscriber.subscribe("expiry/#")
        fabric.settle()
        tap.cut()
        fabric.until_linked(("b", "c"), status="down")
        published_s = time.monotonic()
        for topic, expiry_s in (("long", 100), ("short", 1), ("none", None)):
            publisher.publish(
                f"expiry/{topic}",
                b"",
                qos=1,
                properties=Properties(message_expiry_interval=expiry_s),
            )
        wait_for(lambda: time.monotonic() > published_s + 2.1, 5, "two seconds to pass")
        tap.mend()
        got = [subscriber.next(), subscriber.next()]
        waited_s = time.monotonic() - published_s
        assert [message.topic for message in got] == ["expiry/long", "expiry/none"]
        left_s = got[0].properties.message_expiry_interval
        assert left_s is not None
        # Each of the three nodes and the broker counts whole seconds.
        assert 100 - waited_s - 1 <= left_s <= 98
        assert got[1].properties.message_expiry_interval is None
    fabric.until_linked(*CHAIN, status="active")


# ---- subscription options ----------------------------------------------------------------


def test_no_local(fabric: NodeFabric) -> None:
    with fabric.client("a") as one, fabric.client("c") as other:
        one.subscribe("chat", no_local=True)
        other.subscribe("chat", no_local=True)
        fabric.settle()
        one.publish("chat", b"from one", qos=1)
        assert other.next().payload == b"from one"
        other.publish("chat", b"from other", qos=1)
        # Its own message did not come back to it, neither from its broker nor around the fabric.
        assert one.next().payload == b"from other"


def test_retain_as_published(fabric: NodeFabric) -> None:
    with (
        fabric.client("a") as publisher,
        fabric.client("c") as as_published,
        fabric.client("c") as plain,
    ):
        as_published.subscribe("rap", retain_as_published=True)
        plain.subscribe("rap")
        fabric.settle()
        publisher.publish("rap", b"kept", qos=1, retain=True)
        publisher.publish("rap", b"live", qos=1)
        assert [as_published.next().retain for _ in range(2)] == [True, False]
        assert [plain.next().retain for _ in range(2)] == [False, False]
        publisher.publish("rap", b"", qos=1, retain=True)
        assert plain.next().payload == b""


# ---- will --------------------------------------------------------------------------------


def test_will_when_the_connection_breaks(fabric: NodeFabric) -> None:
    with fabric.client("c") as watcher:
        watcher.subscribe("will/#")
        fabric.settle()
        for qos in (0, 1, 2):
            will = Will(f"will/{qos}", b"gone", qos, properties=Properties(content_type="x"))
            with fabric.client("a", will=will):
                pass  # closes without DISCONNECT
            message = watcher.next()
            assert (message.topic, message.payload, message.qos) == (f"will/{qos}", b"gone", qos)
            assert message.properties.content_type == "x"


def test_wills_of_many_who_hang_up_together(fabric: NodeFabric) -> None:
    """More than fit into one turn of the node's event loop."""
    topics = {f"will/many/{number}" for number in range(100)}
    with fabric.client("c") as watcher:
        watcher.subscribe("will/many/#", qos=1)
        fabric.settle()
        with ExitStack() as clients:
            for topic in topics:
                clients.enter_context(fabric.client("a", will=Will(topic, bytes(50_000), 1)))
        assert {watcher.next().topic for _ in topics} == topics


def test_will_when_the_broker_misses_the_keep_alive(fabric: NodeFabric) -> None:
    with fabric.client("c") as watcher:
        watcher.subscribe("will/silent")
        fabric.settle()
        # MQTT: one and a half times the keep-alive [MQTT-3.1.2-22].
        with fabric.client("a", will=Will("will/silent", b"gone", 1), keep_alive=1):
            assert watcher.next().payload == b"gone"


def test_no_will_after_a_clean_disconnect(fabric: NodeFabric) -> None:
    with fabric.client("c") as watcher, fabric.client("a") as publisher:
        watcher.subscribe("will/clean")
        fabric.settle()
        with fabric.client("a", will=Will("will/clean", b"gone", 1)) as client:
            client.disconnect()
        publisher.publish("will/clean", b"marker", qos=1)
        assert watcher.until(b"marker") == []


def test_will_after_disconnect_with_will_message(fabric: NodeFabric) -> None:
    with fabric.client("c") as watcher:
        watcher.subscribe("will/asked")
        fabric.settle()
        with fabric.client("a", will=Will("will/asked", b"gone", 1)) as client:
            client.raw.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
            assert watcher.next().payload == b"gone"


def test_will_delay(fabric: NodeFabric) -> None:
    """The will waits for its delay; a client that is back in time has none (MQTT 5 §3.1.3.2.2)."""
    delayed = Will("will/delay", b"gone", 1, properties=Properties(will_delay_interval=2))
    stays: dict[str, Any] = {"will": delayed, "properties": Properties(session_expiry_interval=60)}
    with fabric.client("c") as watcher, fabric.client("a") as publisher:
        watcher.subscribe("will/delay")
        fabric.settle()
        fabric.client("a", "returns", **stays).raw.close()
        with fabric.client("a", "returns", clean_start=False, **stays):
            closed_s = time.monotonic()
        publisher.publish("will/delay", b"not yet", qos=1)
        assert watcher.next().payload == b"not yet"
        assert watcher.next().payload == b"gone"
        # The node's clock starts when it sees the end, which is after `closed_s`.
        assert time.monotonic() - closed_s >= 2
        # Only the second connection's will was due.
        publisher.publish("will/delay", b"marker", qos=1)
        assert watcher.until(b"marker") == []
    with fabric.client("a", "returns"):
        pass  # a clean start ends the session


def test_a_will_is_due_when_its_node_loses_the_broker_session(fabric: NodeFabric) -> None:
    """A client that is thrown out by its broker, here by a takeover, has ended unexpectedly."""
    with fabric.client("c") as watcher:
        watcher.subscribe("will/taken")
        fabric.settle()
        with (
            fabric.client("a", "twin", will=Will("will/taken", b"first", 1)),
            fabric.client("a", "twin") as second,
        ):
            assert watcher.next().payload == b"first"
            second.publish("will/taken", b"marker", qos=1)
            assert watcher.until(b"marker") == []
