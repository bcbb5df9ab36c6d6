"""Lanes, double links and rings, with real nodes.

a ══ b  several lanes      a ⇄ b  both dial      a ── b
                                                  \\  /     a ring: one link stands by
                                                   c
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from support.fabrics import QUICK_LINKS, FabricClient, NodeFabric
from support.waiting import wait_for

RING = [("a", "b"), ("b", "c"), ("c", "a")]


def blocked(fabric: NodeFabric) -> list[set[str]]:
    """The links that stand by, as each node sees its own."""
    return [
        {name, link["neighbor"]}
        for name, node in fabric.nodes.items()
        for link in node.fabric()["links"]
        if link["blocked"]
    ]


def exactly_once(
    fabric: NodeFabric, publishers: dict[str, FabricClient], subscriber: FabricClient, tag: str
) -> None:
    """One message of each publisher; the subscriber has each once, and nothing else."""
    for name, publisher in publishers.items():
        publisher.publish("ring/x", f"{tag} {name}".encode(), qos=1)
        assert subscriber.next().payload == f"{tag} {name}".encode()
    for name, publisher in publishers.items():
        publisher.publish("ring/x", f"{tag} again {name}".encode(), qos=1)
    got = {subscriber.next().payload for _ in publishers}
    assert got == {f"{tag} again {name}".encode() for name in publishers}


# ---- lanes -------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", ["topic", "round-robin"])
def test_lanes(tmp_path: Path, spread: str) -> None:
    """By topic each topic has its lane and keeps its order; round-robin uses them all in turn."""
    link = {"lanes": 4, "spread": spread}
    with NodeFabric(tmp_path, [("a", "b")], link=link) as fabric:
        tap = fabric.taps["a", "b"]
        assert (tap.connections, fabric.link("b", "a")["lanes"]) == (4, 4)
        topics = [f"lane/{number}" for number in range(8)]
        with fabric.client("a") as publisher, fabric.client("b") as subscriber:
            subscriber.subscribe("lane/+")
            fabric.settle()
            for number in range(160):
                publisher.publish(topics[number % 8], b"%d" % number, qos=1)
            got = [subscriber.next() for _ in range(160)]
        used = {topic: Counter[int]() for topic in topics}
        for each in tap.passed():
            if each.kind == "publish":
                used[each.about][each.connection] += 1
        if spread == "topic":
            assert all(len(lanes) == 1 for lanes in used.values())
            assert len({lane for lanes in used.values() for lane in lanes}) > 1
            for topic in topics:
                numbers = [int(message.payload) for message in got if message.topic == topic]
                assert numbers == sorted(numbers)
        else:
            total = sum(used.values(), Counter())
            assert sorted(total.values()) == [40, 40, 40, 40]
        assert sorted(int(message.payload) for message in got) == list(range(160))


def test_a_lane_that_breaks_takes_the_link_with_it_and_nothing_is_lost(tmp_path: Path) -> None:
    link = {"lanes": 3, **QUICK_LINKS}
    with NodeFabric(tmp_path, [("a", "b")], link=link) as fabric:
        with fabric.client("a") as publisher, fabric.client("b") as subscriber:
            subscriber.subscribe("lane/+")
            fabric.settle()
            for number in range(60):
                publisher.publish(f"lane/{number % 6}", b"%d" % number, qos=1 + number % 2)
                if number == 30:
                    fabric.taps["a", "b"].break_one()
            got = sorted(int(subscriber.next().payload) for _ in range(60))
            assert got == list(range(60))
        fabric.until_linked(("a", "b"), status="active")
        assert fabric.taps["a", "b"].connections == 3


# ---- both dial ---------------------------------------------------------------------------


def dialed_by(fabric: NodeFabric) -> str:
    """Whose connections are kept: both have one link, active, and of the other's none is left."""
    seen = set()
    for here, there in (("a", "b"), ("b", "a")):
        for link in fabric[here].fabric()["links"]:
            assert link["neighbor"] == there
            seen.add((link["status"], link["lanes"], link["initiator"]))
    connections = {one: fabric.taps[one, other].connections for one, other in ("ab", "ba")}
    for one, other in ("ab", "ba"):
        if seen == {("active", 2, one)} and not connections[other]:
            return one
    return ""


def test_nodes_that_dial_each_other_have_one_link(tmp_path: Path) -> None:
    with NodeFabric(tmp_path, [("a", "b"), ("b", "a")], link={"lanes": 2}) as fabric:
        with fabric.client("a") as one, fabric.client("b") as other:
            for client in (one, other):
                client.subscribe("both")
            # Connections of the lower id replace the others, once at most, if they come later.
            for number in range(3):
                wait_for(lambda: dialed_by(fabric), 30, "one set of connections")
                kept = dialed_by(fabric)
                fabric.settle()
                unused = fabric.taps[("b", "a") if kept == "a" else ("a", "b")]
                before = unused.count("publish")
                for publisher, payload in ((one, b"x%d" % number), (other, b"y%d" % number)):
                    publisher.publish("both", payload, qos=1)
                    assert (one.next().payload, other.next().payload) == (payload, payload)
                if kept and dialed_by(fabric) == kept:
                    break
        assert dialed_by(fabric) == kept
        assert unused.count("publish") == before, "those that were not kept carry nothing"


# ---- rings -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["pf", "sf"])
def test_a_ring_has_one_link_that_stands_by(tmp_path: Path, algorithm: str) -> None:
    with NodeFabric(tmp_path, RING, algorithm=algorithm, link=QUICK_LINKS) as fabric:
        wait_for(lambda: len(blocked(fabric)) == 2, 15, "one link to be blocked at both ends")
        (standby,) = {frozenset(ends) for ends in blocked(fabric)}
        for node in fabric.nodes.values():
            node.wait_until(lambda node=node: bool(node.fabric()["topology"]["rings"]))  # type: ignore[misc]
            (ring,) = node.fabric()["topology"]["rings"]
            assert set(ring["cut"]) == standby
            assert set(ring["ring"]) == {"a", "b", "c"}
        for name in standby:
            assert "link closes a ring and is blocked" in fabric[name].log()
            assert any("ring=" in line and "a" in line for line in fabric[name].log().splitlines())
        with (
            fabric.client("a") as at_a,
            fabric.client("b") as at_b,
            fabric.client("c") as at_c,
            fabric.client("a") as subscriber,
        ):
            subscriber.subscribe("ring/#")
            fabric.settle()
            publishers = {"a": at_a, "b": at_b, "c": at_c}
            exactly_once(fabric, publishers, subscriber, "ring")
            cut_and_mend(fabric, standby, publishers, subscriber)


def cut_and_mend(
    fabric: NodeFabric,
    standby: frozenset[str],
    publishers: dict[str, FabricClient],
    subscriber: FabricClient,
) -> None:
    """Without one of the active links the standby takes over; with it back, one stands by again."""
    victim = next(tap for ends, tap in fabric.taps.items() if set(ends) != standby)
    victim.cut()
    one, other = sorted(standby)
    fabric.until_linked((one, other), status="active")
    assert blocked(fabric) == []
    fabric.settle()
    exactly_once(fabric, publishers, subscriber, "cut")
    victim.mend()
    wait_for(lambda: len(blocked(fabric)) == 2, 20, "one link to be blocked again")
    fabric.until_linked(*RING)
    fabric.settle()
    exactly_once(fabric, publishers, subscriber, "mended")


# ---- at run time -------------------------------------------------------------------------


def test_neighbors_come_and_go_at_run_time(tmp_path: Path) -> None:
    with NodeFabric(tmp_path, names=["a", "b"]) as fabric:
        address = fabric.address("a", "b")
        with fabric.client("a") as publisher, fabric.client("b") as subscriber:
            subscriber.subscribe("t")
            for round_number in range(3):
                assert fabric["a"].change("POST", "/api/peers", {"address": address})[0] == 202
                fabric.until_linked(("a", "b"), status="active")
                fabric.settle()
                publisher.publish("t", b"%d" % round_number, qos=1)
                assert subscriber.next().payload == b"%d" % round_number
                name = "b" if round_number % 2 else address
                status, answer = fabric["a"].change(
                    "DELETE", f"/api/peers/{name.replace(':', '%3A')}"
                )
                assert status == 200, answer
                wait_for(lambda: not fabric.link("b", "a"), 10, "b to let a go")
                assert fabric["a"].fabric()["peers"] == []
                publisher.publish("t", b"not to b", qos=1)
        assert fabric.taps["a", "b"].count("publish") == {"a": 3}
        assert fabric["a"].change("DELETE", "/api/peers/b")[0] == 404
