"""Outages that a fabric rides out, and what it does when it cannot: the page on guarantees.

a ── b        SF; the link is cut, frozen or congested, or a process stops answering
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.fabrics import QUICK_LINKS, FabricClient, NodeFabric
from support.nodes import NodeProcess
from support.waiting import wait_for

PAIR = [("a", "b")]


@contextmanager
def subscribed(
    fabric: NodeFabric, topic_filter: str
) -> Iterator[tuple[FabricClient, FabricClient]]:
    """A publisher at a and a subscriber at b whose interest a knows."""
    with fabric.client("a") as publisher, fabric.client("b") as subscriber:
        subscriber.subscribe(topic_filter)
        fabric.settle()
        yield publisher, subscriber


def counter(node: NodeProcess, name: str) -> int:
    found: int = node.fabric()["counters"].get(name, 0)
    return found


# ---- a peer that goes silent -------------------------------------------------------------


@pytest.mark.parametrize("how", ["process stopped", "line frozen"])
def test_a_silent_peer_is_missed_and_taken_back(tmp_path: Path, how: str) -> None:
    with NodeFabric(tmp_path, PAIR, link={"dead_after_s": 1.0}) as fabric:
        tap = fabric.taps["a", "b"]
        with subscribed(fabric, "silent/#") as (publisher, subscriber):
            silent_s = time.monotonic()
            tap.freeze() if how == "line frozen" else fabric["b"].pause()
            try:
                fabric["a"].wait_until(lambda: fabric.link("a", "b")["status"] == "down", 10)
                noticed_s = time.monotonic() - silent_s
                # Missed within `dead_after_s` of its last word; and not on suspicion.
                assert 0.6 < noticed_s < 4, noticed_s
                for number in range(20):
                    publisher.publish("silent/1", b"%d" % number, qos=1)
                publisher.publish("silent/0", b"dropped", qos=0)
            finally:
                tap.thaw() if how == "line frozen" else fabric["b"].resume()
            assert [int(subscriber.next().payload) for _ in range(20)] == list(range(20))
        fabric.until_linked(*PAIR, status="active")
        assert fabric.link("a", "b")["dropped"] == 1
        assert "silent for" in fabric["a"].log()


# ---- a link that is cut ------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_a_cut_shorter_than_hold_loses_and_repeats_nothing(tmp_path: Path, qos: int) -> None:
    """Also of what was on the wire when it broke; QoS 0 is dropped and counted.

    One QoS at a time: Mosquitto 2.0.11 delivers a mixture of both out of the order in which it
    has numbered it when its queue for a client is longer than its window.
    """
    with (
        NodeFabric(tmp_path, PAIR, link={"qos": 2, **QUICK_LINKS}) as fabric,
        subscribed(fabric, "cut/#") as (publisher, subscriber),
    ):
        tap = fabric.taps["a", "b"]
        for number in range(200):
            publisher.publish("cut/1", b"%d" % number, qos)
            if number in (50, 100):
                tap.cut()
            if number == 75:
                publisher.publish("cut/0", b"dropped", qos=0)
            if number in (80, 150):
                tap.mend()
        assert [int(subscriber.next().payload) for _ in range(200)] == list(range(200))
        publisher.publish("cut/1", b"end", qos=1)
        assert subscriber.until(b"end") == []
        assert fabric.link("a", "b")["dropped"] == 1
        assert counter(fabric["a"], "given_up") == 0


def test_a_cut_longer_than_hold_gives_up_what_waits_and_says_so(tmp_path: Path) -> None:
    with (
        NodeFabric(tmp_path, PAIR, link={"hold_s": 1.0, **QUICK_LINKS}) as fabric,
        subscribed(fabric, "hold/#") as (publisher, subscriber),
    ):
        tap = fabric.taps["a", "b"]
        tap.cut()
        fabric.until_linked(*PAIR, status="down")
        for number in range(10):
            publisher.publish("hold/1", b"lost %d" % number, qos=1)
        fabric["a"].wait_until(lambda: not fabric.link("a", "b"))
        assert counter(fabric["a"], "given_up") == 10
        assert "messages given up neighbor=b messages=10" in fabric["a"].log()
        # It is no neighbor now: nobody is known there to want this.
        publisher.publish("hold/1", b"lost too", qos=1)
        tap.mend()
        fabric.until_linked(*PAIR, status="active")
        fabric.settle()
        publisher.publish("hold/1", b"after", qos=1)
        assert subscriber.until(b"after") == []


# ---- queues ------------------------------------------------------------------------------


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def publish_many(publisher: FabricClient, count: int) -> None:
    for number in range(count):
        publisher.publish("queue/1", b"%d " % number + bytes(4000), qos=1)


def test_a_full_queue_holds_publishers_back_while_the_link_is_up(tmp_path: Path) -> None:
    """The far broker has stopped, so nothing is acknowledged; then it goes on and all arrives."""
    with (
        NodeFabric(tmp_path, PAIR, link={"queue_bytes": 65_536}) as fabric,
        subscribed(fabric, "queue/#") as (publisher, subscriber),
    ):
        pid = fabric.brokers["b"].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            publishing = in_background(lambda: publish_many(publisher, 100))
            fabric["a"].wait_until(lambda: counter(fabric["a"], "publishers_held") > 0)
            # A node that is late may hold him sooner, and let him go on for a while.
            unacknowledged: list[int] = []

            def is_full() -> bool:
                unacknowledged.append(fabric.link("a", "b")["unacknowledged_bytes"])
                return unacknowledged[-1] > 65_536

            fabric["a"].wait_until(is_full)
            assert max(unacknowledged) < 65_536 + 2 * 4100
            # Only this publisher is held: others who send nothing there go on.
            with fabric.client("a") as other:
                other.publish("elsewhere", b"x", qos=1)
        finally:
            os.kill(pid, signal.SIGCONT)
        got = [int(subscriber.next().payload.split()[0]) for _ in range(100)]
        publishing.join(20)
        assert not publishing.is_alive()
        assert got == list(range(100))
        assert counter(fabric["a"], "given_up") == 0


def test_a_full_queue_of_a_link_that_is_down_gives_the_neighbor_up(tmp_path: Path) -> None:
    with (
        NodeFabric(tmp_path, PAIR, link={"queue_bytes": 65_536, **QUICK_LINKS}) as fabric,
        subscribed(fabric, "queue/#") as (publisher, subscriber),
    ):
        fabric.taps["a", "b"].cut()
        fabric.until_linked(*PAIR, status="down")
        publish_many(publisher, 40)  # all acknowledged by the local broker: nobody is held
        assert counter(fabric["a"], "given_up") > 10
        assert "its queue is full and it does not come back" in fabric["a"].log()
        fabric.taps["a", "b"].mend()
        fabric.until_linked(*PAIR, status="active")
        fabric.settle()
        publisher.publish("queue/1", b"after", qos=1)
        assert subscriber.until(b"after") == []


# ---- brokers -----------------------------------------------------------------------------


def test_a_broker_that_refuses_a_message_harms_no_other(tmp_path: Path) -> None:
    """MQTT 5 says so in the PUBACK; the message is over, counted and logged."""
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite allowed/#\ntopic read forbidden/#\n")
    with NodeFabric(tmp_path, PAIR, broker_options={"extra": [f"acl_file {rules}"]}) as fabric:
        # The publisher's own broker is to allow what the other refuses.
        with fabric.client("b") as subscriber:
            subscriber.subscribe("allowed/#")
            subscriber.subscribe("forbidden/#")
            fabric.settle()
            with fabric.client("a") as publisher:
                for number in range(5):
                    publisher.publish("forbidden/1", b"%d" % number, qos=1)
                    publisher.publish("allowed/1", b"%d" % number, qos=1)
                assert [int(subscriber.next().payload) for _ in range(5)] == list(range(5))
        wait_for(lambda: counter(fabric["b"], "inject_refused") == 5, 10, "the refusals")
        assert "broker refused a message from another node" in fabric["b"].log()
        # For the nodes it is over: nothing is sent again.
        wait_for(lambda: fabric.link("a", "b")["unacknowledged"] == 0, 10, "acknowledgments")


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """Messages wait unacknowledged at the node before it, and reach it in order when it is back."""
    with NodeFabric(tmp_path, PAIR, broker_options={"persistence": True}) as fabric:
        stays: dict[str, Any] = {"level": 4, "clean_start": False}
        with fabric.client("b", "stays", **stays) as subscriber:
            subscriber.subscribe("away/#", qos=1)
            fabric.settle()
            subscriber.disconnect()
        fabric.brokers["b"].kill()
        with fabric.client("a") as publisher:
            for number in range(50):
                publisher.publish("away/1", b"%d" % number, qos=1)
            wait_for(
                lambda: fabric.link("a", "b")["unacknowledged"] == 50, 10, "all of them to wait"
            )
        fabric.brokers["b"].start()
        fabric["b"].wait_until(fabric["b"].is_ready)
        with fabric.client("b", "stays", **stays) as subscriber:
            assert [int(subscriber.next().payload) for _ in range(50)] == list(range(50))
        wait_for(lambda: fabric.link("a", "b")["unacknowledged"] == 0, 10, "the acknowledgments")
