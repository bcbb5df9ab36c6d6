"""Every broker, directly and through a node: clients see the same.

One test is one scenario with one library at one broker.  It fails where the node makes a
difference.  Where the broker itself departs from the standard, both sides do, and the test says
so: in its properties, and so in the summary at the end of the session.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import cycle

import pytest

from conformance.conftest import Outcomes
from conformance.matrix import AGAIN, CROWD, DIRECT_RUNS, Cell, Site, all_cells, observe, run_cells
from conformance.observation import Observation
from conformance.stage import Address
from conftest import BROKER_FAULT, BROKER_VARIES, SharedBroker

pytestmark = pytest.mark.alone


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
        record_property(BROKER_FAULT, f"{cell}: {outcome.direct.departure}")
    assert outcome.agrees, f"through the node: {outcome.difference}"
    for line in outcome.varieties() if len(outcome.direct_runs) > 1 else ():
        record_property(BROKER_VARIES, f"{cell}: {line}")


CELL = Cell("mosquitto", 4, "paho", "overlapping-subscriptions")
"""Something that Mosquitto and aedes are known to do differently."""


def test_a_difference_is_found(shared_broker: SharedBroker) -> None:
    """In place of the node another make of broker."""
    direct, other = (Address(shared_broker(name).port) for name in ("mosquitto", "aedes"))
    outcome = run_cells("mosquitto", [CELL], lambda: nullcontext(Site(direct, other)))[CELL]
    assert not outcome.agrees
    assert outcome.difference.startswith("messages [t 'm' qos0], not [t 'm' qos1]")


def test_a_difference_in_every_second_run_is_found(shared_broker: SharedBroker) -> None:
    """In place of the node one broker and another make in turn, beginning with the wrong one."""
    direct, other = (Address(shared_broker(name).port) for name in ("mosquitto", "aedes"))
    turns = cycle([other, direct])

    def observed(cell: Cell, address: Address, patience_s: float) -> Observation:
        return observe(cell, direct if address == direct else next(turns), patience_s)

    node = Address(0)
    site = Site(direct, node)
    outcome = run_cells("mosquitto", [CELL], lambda: nullcontext(site), observed)[CELL]
    assert not outcome.agrees
    assert len(outcome.unexplained) == (AGAIN + 2) // 2
    assert [runs for _, runs in outcome.variants] == [len(outcome.direct_runs)]
    assert len(outcome.direct_runs) > DIRECT_RUNS + CROWD
