"""A node before two brokers: clients see what they see at one.

The scenarios of the broker matrix, each with its topics spread over two Mosquittos; and before a
Mosquitto and a RabbitMQ, where clients see what the make does that is in charge.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from conformance.matrix import Cell, all_cells, run_cells
from conformance.sites import split_site
from conftest import BrokerFactory
from isthmus.brokers.base import Broker

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1_200)]

DIFFERENT = {(5, "takeover"), (5, "keep-alive-runs-out")}
"""The node says DISCONNECT to who is taken over (0x8E) [MQTT-3.1.4-3] or silent for too long (0x8D)
[MQTT-4.13]; Mosquitto just closes."""
TOPICS = ("+/t/#", "+/b/#", "+/will/#", "+/1/#")
"""What lives at the second broker; every scenario's topics begin with a level of its own."""
ALL = ("+/#",)
"""All topics of the scenarios but those that begin with `$`."""
WHO_COMES_IN = {"wrong-password", "user-name-without-password", "mqtt-5-to-a-broker-without-it"}
"""The first broker decides, whoever is in charge of topics."""
AT_RABBITMQ = {
    "will-2",
    "persistent-session-2",
    "qos-0-to-2",
    "qos-1-to-2",
    "qos-2-to-2",
    "order-of-a-burst-2",
    "overlapping-subscriptions",
    "retained-2",
}
"""Of those whose topics are spread, where it matters that some live at RabbitMQ."""
MIXED = {
    # The filters find what RabbitMQ has by its rules and what Mosquitto has by its own.
    "retained-found-by-wildcards",
    # RabbitMQ says nothing to a PUBREL, and to a PINGREQ the node answers.
    "handshake-of-qos-2",
}
"""Neither make alone does the same."""
PART = pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
"""The cells that run every time, and the others."""


def cells_of(make: str, *, quick: bool, level: int = 0) -> list[Cell]:
    return [
        cell
        for cell in all_cells()
        if cell.broker == make and cell.quick is quick and level in (0, cell.level)
    ]


def judge(
    folder: Path, cells: Sequence[Cell], direct: Broker, behind: Mapping[Broker, Collection[str]]
) -> None:
    """Through the node before the brokers `behind` clients see what they see at `direct`."""
    site = partial(split_site, direct, {each: [*topics] for each, topics in behind.items()}, folder)
    outcomes = run_cells(direct.name, cells, site)
    wrong = {
        str(cell): outcome.error or outcome.difference
        for cell, outcome in outcomes.items()
        if outcome.error is not None or not outcome.agrees
    }
    assert wrong == {}
    assert len(outcomes) == len(cells) > 0


@PART
def test_several_brokers_make_no_difference(
    broker_factory: BrokerFactory, tmp_path: Path, *, quick: bool
) -> None:
    direct, one, two = (broker_factory("mosquitto") for _ in range(3))
    cells = [
        cell
        for cell in cells_of("mosquitto", quick=quick)
        if (cell.level, cell.name) not in DIFFERENT
    ]
    judge(tmp_path, cells, direct, {one: (), two: TOPICS})


@pytest.mark.slow
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("make", ["mosquitto", "rabbitmq"])
def test_of_two_makes_the_one_in_charge_is_seen(
    broker_factory: BrokerFactory, tmp_path: Path, make: str, *, quick: bool
) -> None:
    """It has all topics, and the other one lets clients in."""
    direct, charge = broker_factory(make), broker_factory(make)
    other = broker_factory("rabbitmq" if make == "mosquitto" else "mosquitto")
    different = set(WHO_COMES_IN)
    if make == "rabbitmq":
        # `$`-topics are Mosquitto's, which does not match them by wildcards.
        different |= {"handshake-of-qos-2", "dollar-is-not-matched-by-a-wildcard"}
    cells = [c for c in cells_of(make, quick=quick, level=4) if c.name not in different]
    judge(tmp_path, cells, direct, {other: (), charge: ALL})


@PART
@pytest.mark.parametrize("make", ["mosquitto", "rabbitmq"])
def test_topics_spread_over_two_makes(
    broker_factory: BrokerFactory, tmp_path: Path, make: str, *, quick: bool
) -> None:
    direct = broker_factory(make)
    mosquitto, rabbitmq = broker_factory("mosquitto"), broker_factory("rabbitmq")
    cells = [
        cell
        for cell in cells_of(make, quick=quick, level=4)
        if cell.name not in MIXED and (cell.name in AT_RABBITMQ) is (make == "rabbitmq")
    ]
    judge(tmp_path, cells, direct, {mosquitto: (), rabbitmq: TOPICS})
