"""Every broker, directly and through a node: clients see the same.

One test is one scenario with one library at one broker.  It fails where the node makes a
difference.  Where the broker itself departs from the standard, both sides do, and the test says
so: in its properties (`broker_fault`) and in the summary at the end of the session.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from conftest import SharedBroker

from .conftest import Outcomes
from .matrix import Cell, Site, all_cells, run_cells
from .stage import Address


def _parameters() -> list[object]:
    return [
        pytest.param(cell, id=str(cell), marks=() if cell.quick else pytest.mark.slow)
        for cell in all_cells()
    ]


@pytest.mark.parametrize("cell", _parameters())
def test_the_node_makes_no_difference(
    cell: Cell, outcome_of: Outcomes, record_property: Callable[[str, object], None]
) -> None:
    outcome = outcome_of(cell)
    if outcome.error is not None:
        raise outcome.error
    if outcome.direct.departure:
        record_property("broker_fault", outcome.direct.departure)
    if outcome.runs > 1:
        record_property("differed_at_first", outcome.earlier)
    assert outcome.agrees, f"through the node: {outcome.difference} (in {outcome.runs} runs)"


def test_a_difference_is_found(shared_broker: SharedBroker) -> None:
    """In place of the node another make of broker, which is known to do it otherwise."""
    direct, other = (Address(shared_broker(name).port) for name in ("mosquitto", "aedes"))
    cell = Cell("mosquitto", 4, "paho", "overlapping-subscriptions")
    outcome = run_cells("mosquitto", [cell], lambda: nullcontext(Site(direct, other)))[cell]
    assert not outcome.agrees
    assert outcome.runs > 1
    assert outcome.difference == "messages [t 'm' qos0], not [t 'm' qos1]"
