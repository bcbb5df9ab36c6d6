"""A node before two Mosquittos: clients see what they see at one.

The scenarios of the broker matrix, each with its topics spread over both.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from conformance.matrix import all_cells, run_cells
from conformance.sites import split_site
from conftest import BrokerFactory

pytestmark = pytest.mark.alone

DIFFERENT = {(5, "takeover")}
"""The node says DISCONNECT 0x8E to who is taken over [MQTT-3.1.4-3]; Mosquitto just closes."""
TOPICS = ("+/t/#", "+/b/#", "+/will/#", "+/1/#")
"""What lives at the second broker; every scenario's topics begin with a level of its own."""


def test_several_brokers_make_no_difference(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    direct, one, two = (broker_factory("mosquitto") for _ in range(3))
    cells = [
        cell
        for cell in all_cells()
        if cell.broker == "mosquitto" and cell.quick and (cell.level, cell.name) not in DIFFERENT
    ]
    site = partial(split_site, direct, {one: (), two: TOPICS}, tmp_path)
    outcomes = run_cells("mosquitto", cells, site)
    wrong = {
        str(cell): outcome.error or outcome.difference
        for cell, outcome in outcomes.items()
        if outcome.error is not None or not outcome.agrees
    }
    assert wrong == {}
    assert len(outcomes) > 50
