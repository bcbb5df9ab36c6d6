"""Cells that are split and merged while clients use them: nothing acknowledged lost, or doubled.

publisher ─┐            ┌─ old     (cell 1, then none)
           ├─ gateway ──┼─ rest    (cells 0, 2 and 3)
reader ────┘            └─ a b c d (the quarters of 1, afterwards)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from isthmus.exchange.split.brokers import BrokersSettings
from isthmus.mqtt.packets import Will
from isthmus.sim import SimFabric
from isthmus.sim.client import SimClient
from isthmus.sim.moving_cells import run_moving_cells
from isthmus.sim.node import SimNode

NAMES = ("rest", "old", "a", "b", "c", "d")
CELLS = {"rest": ["0", "2", "3"], "old": ["1"]}
SPLIT = {"split": "1", "brokers": ["a", "b", "c", "d"]}
MERGE = {"merge": "1", "broker": "old"}
QUARTERS = tuple(f"1/{digit}/t" for digit in "0123")


def gateway(level: int = 5, seed: int = 1) -> tuple[SimFabric, SimNode]:
    fabric = SimFabric(
        seed=seed,
        algorithm="geo",
        options={"k": 2, "cells": CELLS, "other": "rest"},
        brokers=BrokersSettings(NAMES),
    )
    return fabric, fabric.node("g", broker_level=level)


def move(fabric: SimFabric, node: SimNode, request: Mapping[str, object]) -> None:
    node.algorithm.on_request(request)
    fabric.run(5)
    assert node.exchange.brokers is not None
    last = node.exchange.brokers.last_move
    assert last is not None
    assert last.status()["state"] == "moved", last.status()


def received(client: SimClient) -> Counter[bytes]:
    return Counter(client.payloads())


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("topic_filter", ["#", "1/#", "+/+/t", "1/2/t"])
def test_a_stream_goes_on(level: int, topic_filter: str) -> None:
    """Before, during and after a split and a merge, at every QoS that is acknowledged."""
    fabric, node = gateway(level)
    reader = SimClient(node, "reader", level=level)
    writer = SimClient(node, "writer", level=level)
    for client in (reader, writer):
        client.connect()
    reader.subscribe(topic_filter)
    fabric.run(1)
    sent = []
    for step in range(120):
        for topic in (*QUARTERS, "0/1/t"):
            payload = f"{topic} {step}".encode()
            if reader.wanted and (topic_filter != "1/2/t" or topic == "1/2/t"):
                sent.append((topic, payload))
            writer.publish(topic, payload, qos=1 + step % 2)
        if step == 20:
            node.algorithm.on_request(SPLIT)
        if step == 80:
            node.algorithm.on_request(MERGE)
        fabric.run(0.1)
    fabric.settle()
    wanted = {p for t, p in sent if topic_filter != "1/#" or t.startswith("1")}
    assert set(writer.acknowledged) >= wanted
    assert received(reader) == dict.fromkeys(wanted, 1)
    for topic in QUARTERS:
        mine = [p for p in reader.payloads(topic) if p in wanted]
        for parity in (0, 1):
            steps = [int(p.split()[1]) for p in mine if int(p.split()[1]) % 2 == parity]
            assert steps == sorted(steps)
    assert node.algorithm.status()["as_configured"]


@pytest.mark.parametrize("level", [4, 5])
def test_retained_messages_move_and_nobody_gets_them_again(level: int) -> None:
    fabric, node = gateway(level)
    reader, everything = (SimClient(node, each, level=level) for each in ("reader", "everything"))
    writer = SimClient(node, "writer", level=level)
    for client in (reader, writer, everything):
        client.connect()
    reader.subscribe("1/#")
    everything.subscribe("#")
    fabric.run(1)
    for topic in (*QUARTERS, "0/0/t", "1/0/deleted"):
        writer.publish(topic, b"kept", qos=1, retain=True)
    writer.publish("1/0/deleted", b"", qos=1, retain=True)
    fabric.run(1)
    move(fabric, node, SPLIT)
    fabric.settle()
    for name, topic in zip("abcd", QUARTERS, strict=True):
        assert set(node.brokers[name].retained) == {topic}
    assert received(reader) == {b"kept": 5, b"": 1}
    assert received(everything) == {b"kept": 6, b"": 1}
    writer.publish(QUARTERS[0], b"", qos=1, retain=True)
    writer.publish(QUARTERS[1], b"newer", qos=1, retain=True)
    fabric.run(1)
    move(fabric, node, MERGE)
    fabric.settle()
    there = {topic: publish.payload for topic, publish in node.brokers["old"].retained.items()}
    assert there == {QUARTERS[1]: b"newer", QUARTERS[2]: b"kept", QUARTERS[3]: b"kept"}
    assert received(reader) == {b"kept": 5, b"": 2, b"newer": 1}
    late = SimClient(node, "late", level=level)
    late.connect()
    late.subscribe("1/#")
    fabric.settle()
    assert received(late) == {b"newer": 1, b"kept": 2}


@pytest.mark.parametrize("level", [4, 5])
def test_a_session_of_who_is_away_gets_what_comes_meanwhile(level: int) -> None:
    fabric, node = gateway(level)
    away = SimClient(node, "away", level=level, clean_start=False, session_expiry_s=3600)
    away.subscribes_again = False  # or what is retained would come again
    writer = SimClient(node, "writer", level=level)
    for client in (away, writer):
        client.connect()
    away.subscribe("1/1/#")
    fabric.run(1)
    away.disconnect()
    fabric.run(1)
    writer.publish("1/1/t", b"before", qos=1, retain=True)
    fabric.run(1)
    move(fabric, node, SPLIT)
    writer.publish("1/1/t", b"after", qos=1)
    fabric.run(1)
    away.connect()
    fabric.settle()
    assert received(away) == {b"before": 1, b"after": 1}
    writer.publish("1/1/t", b"later", qos=1)
    fabric.settle()
    assert received(away)[b"later"] == 1


def test_a_will_at_the_broker_that_was_left() -> None:
    fabric, node = gateway()
    reader, dying = SimClient(node, "reader"), SimClient(node, "dying")
    dying.will = Will("1/3/will", b"gone", 1)
    for client in (reader, dying):
        client.connect()
    reader.subscribe("1/#")
    fabric.run(1)
    move(fabric, node, SPLIT)
    fabric.run(10)
    dying.vanish()
    fabric.settle()
    assert received(reader) == {b"gone": 1}


def test_a_broker_that_is_away_ends_the_move_and_all_is_as_before() -> None:
    fabric, node = gateway()
    reader, writer = SimClient(node, "reader"), SimClient(node, "writer")
    for client in (reader, writer):
        client.connect()
    reader.subscribe("1/#")
    fabric.run(1)
    node.brokers["c"].crash()
    fabric.run(0.01)
    node.algorithm.on_request(SPLIT)
    fabric.run(2)
    assert node.exchange.brokers is not None
    assert node.exchange.brokers.last_move is not None
    assert node.exchange.brokers.last_move.status()["state"] == "failed"
    assert "broker 'c'" in str(node.algorithm.status()["problem"])
    with pytest.raises(ValueError, match="broker 'c' is away"):
        node.algorithm.on_request(SPLIT)
    writer.publish("1/2/t", b"still here", qos=1)
    fabric.run(1)
    assert received(reader) == {b"still here": 1}
    node.brokers["c"].restart()
    fabric.run(2)
    move(fabric, node, SPLIT)
    writer.publish("1/2/t", b"there", qos=1)
    fabric.settle()
    assert received(reader) == {b"still here": 1, b"there": 1}


def test_the_tiling_outlives_a_restart() -> None:
    fabric, node = gateway()
    fabric.run(1)
    move(fabric, node, SPLIT)
    fabric.run(1)
    node.crash()
    node.start()
    fabric.run(1)
    assert node.algorithm.broker_of("1/2/t") == "c"
    node.crash()
    fabric.options = {"k": 2, "cells": {"rest": ["0", "1", "2"], "old": ["3"]}, "other": ""}
    node.start()
    fabric.run(1)
    assert node.algorithm.broker_of("1/2/t") == "rest"


@pytest.mark.parametrize(
    "seed",
    [
        14,
        64,
        65,
        69,
        77,
        100,
        133,
        148,
        164,
        282,
        315,
        345,
        1221,
        1273,
        1317,
        1431,
        10021,
        10283,
        10694,
        10761,
        701064,
        40993,
    ],
)
def test_schedules_that_have_failed(seed: int) -> None:
    run_moving_cells(seed)


@pytest.mark.parametrize("first", range(5001, 5121, 30))
def test_more_schedules(first: int) -> None:
    for seed in range(first, first + 30):
        run_moving_cells(seed)
