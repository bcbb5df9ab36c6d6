"""The simulated fabric: the same seed, the same run; faults do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import ClassVar

import pytest

from isthmus.cooperation.api import Port, Route, SessionInfo
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.exchange.link.life import LinkEvent
from isthmus.exchange.link.links import LinkSettings
from isthmus.sim import ScheduleFailed, SimFabric, generate, run_schedule, shrink
from isthmus.sim.client import SimClient
from isthmus.sim.invariants import Violation, check_algorithms, check_topology
from isthmus.sim.replay import main as replay
from isthmus.sim.run import Variant
from isthmus.sim.schedule import PROFILES
from isthmus.sim.soak import main as soak_main
from isthmus.sim.soak import soak

TRACE = (
    "import hashlib; from isthmus.sim.run import _Run\n"
    "from isthmus.sim.generating import generate\n"
    "for seed, profile in ((3, 'churn'), (5, 'chaos'), (7, 'kills')):\n"
    "    run = _Run(generate(seed, profile), 'sf', None, None, trace=True)\n"
    "    run.run()\n"
    "    print(hashlib.sha256(run.fabric.trace.text().encode()).hexdigest())\n"
)


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    """Also with other hashes of strings: nothing depends on the order of a set."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", TRACE],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(printed) == 1


def test_another_seed_gives_another_schedule() -> None:
    assert generate(1, "chaos") == generate(1, "chaos")
    assert generate(1, "chaos").actions != generate(2, "chaos").actions


def test_every_profile_is_drawn() -> None:
    assert {generate(seed).profile for seed in range(30)} == set(PROFILES)


def two_nodes(**link: float) -> SimFabric:
    fabric = SimFabric(seed=2, algorithm="sf", link=LinkSettings(**link))  # type: ignore[arg-type]
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    b.client("s").subscribe("t/#")
    a.client("p")
    fabric.settle()
    return fabric


def test_a_message_crosses_a_link() -> None:
    fabric = two_nodes()
    fabric.nodes["a"].clients["p"].publish("t/1", b"x", qos=1)
    fabric.settle()
    assert fabric.nodes["b"].clients["s"].payloads() == [b"x"]


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_dead_peer_is_noticed_within_the_configured_time(after_s: float) -> None:
    fabric = two_nodes(dead_after_s=1.5, hold_s=1000.0)
    a, b = fabric.nodes["a"], fabric.nodes["b"]
    fabric.run(after_s)
    fabric.partition([a], [b])
    fabric.run(0.9)
    assert fabric.active_links() == {"a": {"b"}, "b": {"a"}}
    fabric.run(0.61)
    assert fabric.active_links() == {"a": set(), "b": set()}


@pytest.mark.parametrize(("paused", "stays"), [(True, True), (False, False)])
def test_a_pause_of_the_node_itself_is_no_silence_of_its_neighbors(
    *, paused: bool, stays: bool
) -> None:
    """After it the timers come first: what was sent meanwhile is not read yet."""
    fabric = two_nodes(dead_after_s=1.5)
    links = fabric.nodes["a"].exchange.links
    (connection,) = links._connections
    connection.heard_s -= 1.4
    if paused:
        links._tick_due_s -= 1.4
    fabric.run(5.0)
    assert (connection in links._connections) is stays


def test_a_neighbor_is_let_go_when_its_hold_time_is_over() -> None:
    fabric = two_nodes(hold_s=10.0)
    a, b = fabric.nodes["a"], fabric.nodes["b"]
    fabric.crash(b)
    fabric.run(9.0)
    assert "b" in a.exchange.links.links
    fabric.run(2.0)
    assert "b" not in a.exchange.links.links


def test_interest_of_an_absent_client_survives_a_crash_with_a_state_dir() -> None:
    fabric = SimFabric(seed=3, algorithm="sf")
    a, b = fabric.node("a"), fabric.node("b", state_dir=True)
    fabric.link(a, b)
    away = b.client("away", clean_start=False, session_expiry_s=10_000)
    away.subscribe("t", qos=1)
    publisher = a.client("p")
    fabric.settle()
    away.disconnect()
    fabric.settle()
    fabric.crash(b)
    fabric.run(1.0)
    fabric.restart(b)
    fabric.settle()
    publisher.publish("t", b"x", qos=1)
    fabric.settle()
    away.connect()
    fabric.settle()
    assert away.payloads() == [b"x"]


def test_a_slow_link_holds_publishers_back_instead_of_dropping() -> None:
    """QoS 1 applies back-pressure; nothing is lost and the queue stays near its limit."""
    fabric = SimFabric(seed=4, algorithm="pf", link=LinkSettings(queue_bytes=4_000, qos=1))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b, bytes_per_s=20_000)
    subscriber, publisher = b.client("s"), a.client("p")
    subscriber.subscribe("t")
    fabric.settle()
    payloads = [b"%03d" % number + bytes(500) for number in range(100)]
    largest_queue = 0
    for payload in payloads:
        publisher.publish("t", payload, qos=1)
        fabric.run(0.002)
        link = a.exchange.links.links["b"]
        largest_queue = max(largest_queue, link.unacked_bytes())
    fabric.settle()
    assert subscriber.payloads() == payloads
    assert a.exchange.counters["publishers_held"] > 0
    assert largest_queue < 6_000


def flooded_with_retained() -> tuple[SimFabric, SimClient, SimClient]:
    """A client of a publishes far more retained messages than the link to b carries at once.

    On a simulated wire what was written at once arrives at once, here after 2 s.
    """
    fabric = SimFabric(seed=4, algorithm="pf", link=LinkSettings(dead_after_s=3.0))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b, bytes_per_s=100_000)
    subscriber, flooder, publisher = b.client("s"), a.client("flooder"), a.client("p")
    subscriber.subscribe("live")
    fabric.settle()
    for number in range(10_000):
        flooder.publish(f"retained/{number}", bytes(50), retain=True)
    fabric.run(0.5)
    return fabric, subscriber, publisher


def test_a_flood_of_retained_messages_does_not_fill_the_link() -> None:
    """At QoS 0, too: others' messages do not wait until all of them have gone."""
    fabric, subscriber, publisher = flooded_with_retained()
    a, b = fabric.nodes["a"], fabric.nodes["b"]
    began_s = fabric.now_s
    publisher.publish("live", b"x")
    while not subscriber.payloads():
        fabric.run(0.05)
        assert fabric.now_s < began_s + 4.0
    assert len(b.exchange.retention.store) < 7_000
    while len(b.exchange.retention.store) < 10_000:
        fabric.run(0.1)
        assert fabric.now_s < began_s + 20.0
    assert a.exchange.counters["publishers_held"] > 0


def test_who_floods_with_retained_messages_is_not_held_by_a_link_that_is_down() -> None:
    fabric, _, _ = flooded_with_retained()
    a = fabric.nodes["a"]
    assert len(a.exchange.retention.store) < 10_000
    fabric.crash(fabric.nodes["b"])
    fabric.run(1.0)
    assert len(a.exchange.retention.store) == 10_000


def test_the_invariants_can_fail() -> None:
    fabric = two_nodes()
    a = fabric.nodes["a"]
    neighbor = a.algorithm._neighbors[a.exchange.links.links["b"].info]  # type: ignore[attr-defined]
    neighbor.received["stale"] = None
    with pytest.raises(Violation, match=r"a has \['stale', 't/#'\]"):
        check_algorithms(fabric)
    a.exchange.links.links["b"].happens(LinkEvent.RING)
    with pytest.raises(Violation, match="active at b alone"):
        check_topology(fabric)


def test_a_failing_schedule_is_shrunk_and_can_be_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    schedule = generate(1, "outages")
    with pytest.raises(ScheduleFailed, match="--algorithm none --profile outages --seed 1"):
        run_schedule(schedule, "none")
    assert len(schedule.actions) > 10
    assert [action.kind for action in shrink(schedule, "none").actions] == ["publish"]
    assert replay(["--algorithm", "none", "--profile", "outages", "--seed", "1"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: " in printed
    assert "client publish" in printed
    assert replay(["--algorithm", "pf", "--profile", "outages", "--seed", "1"]) == 0


def test_a_schedule_is_shrunk_with_the_nodes_with_which_it_fails() -> None:
    schedule = generate(1, "outages")
    assert any(action.kind == "publish" for action in schedule.actions)

    class WithOneBroker(PublicationFlooding):
        """Where there are several, messages go nowhere."""

        def route(
            self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
        ) -> Route:
            if len(self.port.broker_names) > 1:
                return Route()
            return super().route(topic, arrived_on, label, retain=retain)

    assert shrink(schedule, WithOneBroker) == schedule
    shrunk = shrink(schedule, WithOneBroker, variant=Variant(brokers=2))
    assert len(shrunk.actions) < len(schedule.actions)


def test_soak_counts_and_names_failures(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--profile", "outages", "--schedules", "3", "--seed", "1"]
    assert soak_main([*arguments, "--algorithm", "none"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED --algorithm none --profile outages --seed 1" in printed
    assert "3 schedules" in printed
    assert soak_main([*arguments, "--algorithm", "pf"]) == 0
    assert " 0 failures" in capsys.readouterr().out


class Asked(PublicationFlooding):
    """Remembers its options."""

    seen: ClassVar[list[dict[str, object]]] = []

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        self.seen.append(dict(options))
        super().__init__(port, {})


def test_soak_gives_an_algorithm_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--profile", "outages", "--schedules", "1", "--algorithm"]
    with pytest.raises(SystemExit):
        soak_main([*arguments, "topic-tree?roots=none"])
    assert "roots: 'none' is neither" in capsys.readouterr().err
    Asked.seen.clear()
    assert soak(f"{__name__}:Asked?roots=balance&gamma=0.5", [1]).failures == []
    assert Asked.seen
    assert all(each == {"roots": "balance", "gamma": 0.5} for each in Asked.seen)
