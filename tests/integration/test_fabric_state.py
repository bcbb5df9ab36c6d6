"""What outlives a connection, a link or a node: retained messages and persistent sessions.

    a ── b ── c ┄┄ d (joins later)        SF, Mosquitto behind each, every node with a state_dir

ILDM §4.5.2 and §4.5.4; that retained messages reach a node that joins later is beyond the paper.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from isthmus.exchange import kept_records
from isthmus.mqtt.packets import Will
from isthmus.mqtt.properties import Properties
from support.fabrics import FabricClient, NodeFabric
from support.waiting import wait_for

CHAIN = [("a", "b"), ("b", "c")]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFabric]:
    with NodeFabric(
        tmp_path_factory.mktemp("state"),
        CHAIN,
        names=["a", "b", "c", "d"],
        state=True,
        broker_options={"persistence": True},
    ) as running:
        yield running


def retained_at(fabric: NodeFabric, name: str, topic_filter: str) -> dict[str, bytes]:
    """What a new subscriber at node `name` is given as retained."""
    with fabric.client(name) as client:
        client.subscribe(topic_filter)
        client.subscribe("marker/" + name)
        client.publish("marker/" + name, b"end", qos=1)
        return {
            message.topic: message.payload for message in client.until(b"end") if message.retain
        }


def until_retained(
    fabric: NodeFabric, name: str, topic_filter: str, wanted: dict[str, bytes]
) -> None:
    wait_for(
        lambda: retained_at(fabric, name, topic_filter) == wanted,
        20,
        f"{topic_filter} at {name} to be {wanted}",
        every_s=0.05,
    )


def test_retained_messages_are_the_same_everywhere(fabric: NodeFabric) -> None:
    with fabric.client("a") as publisher:
        for number in range(3):
            publisher.publish(f"r/{number}", b"%d" % number, number, retain=True)
        publisher.publish("r/1", b"newer", 1, retain=True)
        publisher.publish("r/2", b"", 1, retain=True)
    for name in ("a", "b", "c"):
        until_retained(fabric, name, "r/#", {"r/0": b"0", "r/1": b"newer"})
    # One that joins later has them too, and what is deleted while it is away is deleted there.
    join(fabric)
    until_retained(fabric, "d", "r/#", {"r/0": b"0", "r/1": b"newer"})
    assert fabric["d"].change("DELETE", "/api/peers/c")[0] == 200
    wait_for(lambda: not fabric.link("c", "d"), 10, "c to let d go")
    with fabric.client("a") as publisher:
        publisher.publish("r/0", b"", 1, retain=True)
        publisher.publish("r/3", b"missed", 1, retain=True)
    with fabric.client("d") as publisher:
        publisher.publish("r/4", b"of d", 1, retain=True)
    until_retained(fabric, "c", "r/#", {"r/1": b"newer", "r/3": b"missed"})
    join(fabric)
    for name in ("d", "a"):
        until_retained(fabric, name, "r/#", {"r/1": b"newer", "r/3": b"missed", "r/4": b"of d"})


def join(fabric: NodeFabric) -> None:
    status, answer = fabric["d"].change("POST", "/api/peers", {"address": fabric.address("d", "c")})
    assert status == 202, answer
    fabric.until_linked(("d", "c"), status="active")


def test_a_deletion_survives_a_restart_of_the_node_that_knows_it(fabric: NodeFabric) -> None:
    """The broker has forgotten the topic; the node must not, or the message would come back."""
    with fabric.client("c") as publisher:
        publisher.publish("gone", b"x", 1, retain=True)
        until_retained(fabric, "a", "gone", {"gone": b"x"})
        fabric.taps["b", "c"].cut()
        fabric.until_linked(("b", "c"), status="down")
        publisher.publish("gone", b"", 1, retain=True)
    assert retained_at(fabric, "a", "gone") == {"gone": b"x"}
    fabric["c"].stop()
    fabric.taps["b", "c"].mend()
    fabric["c"].start()
    fabric.until_linked(("b", "c"), status="active")
    until_retained(fabric, "a", "gone", {})
    assert retained_at(fabric, "c", "gone") == {}


# ---- persistent sessions -----------------------------------------------------------------


def persistent(fabric: NodeFabric, level: int, expiry_s: int = 300) -> FabricClient:
    properties = Properties(session_expiry_interval=expiry_s) if level == 5 else Properties()
    return fabric.client("c", f"stays-{level}", level, clean_start=False, properties=properties)


def interest(fabric: NodeFabric) -> int:
    """How many filters a knows of, from the rest of the fabric."""
    count: int = fabric["a"].fabric()["algorithm"]["neighbors"]["b"]["received_filters"]
    return count


def written_at_c(fabric: NodeFabric) -> set[str]:
    """The clients whose filters stand in the state file of node c."""
    state = fabric.folder / "c-state" / "client-sessions.state"
    if not state.exists():
        return set()
    return {json.loads(record)["id"] for record in kept_records.read(state.read_bytes()).records}


def arrived_at_c(fabric: NodeFabric) -> int:
    count: int = fabric["c"].fabric()["counters"].get("received_from_links", 0)
    return count


@pytest.mark.parametrize(("end", "level"), [("away", 4), ("away", 5), ("stop", 4), ("kill", 5)])
def test_a_session_keeps_its_inter_subscription(fabric: NodeFabric, end: str, level: int) -> None:
    """While the client is away, and after its node was stopped or killed meanwhile."""
    client = persistent(fabric, level)
    client.subscribe("kept/#", qos=1)
    fabric.settle()
    if end == "away":
        client.disconnect()
    else:
        # It is written with a short delay; of what came later a crash brings back the older state.
        wait_for(lambda: written_at_c(fabric) == {f"stays-{level}"}, 10, "the state file")
        if end == "kill":
            fabric["c"].kill()
        else:
            fabric["c"].stop()
        client.raw.close()
        fabric["c"].start()
        fabric.until_linked(("b", "c"), status="active")
        fabric.settle()
    assert interest(fabric) == 1
    with fabric.client("a") as publisher:
        before = arrived_at_c(fabric)
        publisher.publish("kept/1", b"while away", qos=1)
        wait_for(lambda: arrived_at_c(fabric) > before, 10, "the message at c")
        with persistent(fabric, level) as back:
            assert back.next().payload == b"while away"
            publisher.publish("kept/2", b"while here", qos=1)
            assert back.next().payload == b"while here"
            back.unsubscribe("kept/#")
    wait_for(lambda: interest(fabric) == 0, 10, "the inter-subscription to end")


def test_session_expiry_ends_the_inter_subscription(fabric: NodeFabric) -> None:
    with persistent(fabric, 5, expiry_s=1) as client:
        client.subscribe("short")
        fabric.settle()
        assert interest(fabric) == 1
    wait_for(lambda: interest(fabric) == 0, 10, "the session to expire")


def test_a_clean_start_ends_the_inter_subscription(fabric: NodeFabric) -> None:
    with persistent(fabric, 5) as client:
        client.subscribe("until/clean")
        fabric.settle()
    assert interest(fabric) == 1
    with fabric.client("c", "stays-5", 5, clean_start=True):
        wait_for(lambda: interest(fabric) == 0, 10, "the session to end")


def test_a_will_survives_the_crash_of_its_node(fabric: NodeFabric) -> None:
    """The node that comes back sends it; its broker has published it long before."""
    with fabric.client("c") as watcher:
        watcher.subscribe("will/crash")
        fabric.settle()
        client = fabric.client("a", "doomed", will=Will("will/crash", b"gone", 1))
        state = fabric.folder / "a-state" / "wills.state"
        wait_for(lambda: state.exists() and b"doomed" in state.read_bytes(), 10, "the state file")
        fabric["a"].kill()
        client.raw.close()
        fabric["a"].start()
        message = watcher.next()
        assert (message.topic, message.payload) == ("will/crash", b"gone")
