"""The outcomes of the broker matrix, run once for each broker.

All the cells of a broker that this session selected run together when the first of them is
asked for; the tests then look at one outcome each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from conformance.matrix import FRAGILE, Cell, OpenSite, Outcome, run_cells
from conformance.sites import private_site, shared_site
from conftest import SharedBroker, require_broker

__all__ = ["Outcomes"]

Outcomes = Callable[[Cell], Outcome]

_SEEN: dict[Cell, Outcome] = {}


@pytest.fixture(scope="session")
def outcome_of(
    request: pytest.FixtureRequest,
    shared_broker: SharedBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcomes:
    """`outcome_of(cell)`: what was seen directly and through the node."""

    def selected(broker: str) -> list[Cell]:
        parameters = (getattr(item, "callspec", None) for item in request.session.items)
        cells = [each.params.get("cell") for each in parameters if each is not None]
        return [cell for cell in cells if isinstance(cell, Cell) and cell.broker == broker]

    def get(cell: Cell) -> Outcome:
        if cell not in _SEEN:
            name = cell.broker
            require_broker(name)
            folder = tmp_path_factory.mktemp(name)
            open_site: OpenSite
            if name in FRAGILE:
                open_site = partial(private_site, name, folder)
            else:
                open_site = partial(shared_site, shared_broker(name), folder)
            _SEEN.update(run_cells(name, selected(name), open_site))
        return _SEEN[cell]

    return get
