"""A gateway: brokers in charge of cells of the map, one broker to its clients (Geo §II).

The gateway is a node with several brokers (`[[broker]]`) that share nothing.  This algorithm says
which of them is in charge of a topic (`cells`); the node does the rest as for any node with several
brokers: it publishes at the broker in charge and hands its acknowledgment on, splits subscriptions
over the brokers that they concern, and keeps sessions, wills and retained messages where they are.
To a broker it is an ordinary client.

Towards other nodes it is `sf`, word for word: a gateway can stand in a fabric, linked to nodes of
`sf`, and what clients of those publish reaches the broker in charge.  The paper has no such links.

Departures from the paper: topics that are not of the notation can have a broker, too (`other`);
cells can be split and merged while the gateway runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.cooperation.api import Port
from isthmus.cooperation.geo.cells import Cells, check_digits
from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding

__all__ = ["GeoGateway"]


class GeoGateway(SubscriptionFlooding):
    """Several brokers, each in charge of cells."""

    name = "geo"
    speaks = "sf"
    places_topics = True

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        others = {key: each for key, each in options.items() if key not in ("k", "cells", "other")}
        self.cells = cells_of(options)
        super().__init__(port, others)
        _check_brokers(self.cells, port.broker_names)

    def broker_of(self, topic: str) -> str:
        return self.cells.broker_of(topic)

    def brokers_of(self, topic_filter: str) -> Sequence[str]:
        return self.cells.brokers_of(topic_filter)

    def status(self) -> dict[str, object]:
        return {
            **super().status(),
            "k": self.cells.k,
            "cells": self.cells.by_broker(),
            "other": self.cells.other,
        }


def cells_of(options: Mapping[str, object]) -> Cells:
    """The tiling that the configuration describes; raises `ValueError` naming the key."""
    try:
        k = check_digits(options.get("k"))
    except ValueError as error:
        raise ValueError(f"k: {error}") from None
    other = options.get("other", "")
    if not isinstance(other, str):
        raise ValueError(f"other: {other!r} is not the name of a broker")
    cells = options.get("cells")
    if not isinstance(cells, Mapping) or not cells:
        raise ValueError(
            'cells: is required: the cells of each broker, like a = ["0", "1"], b = ["2", "3"]'
        )
    for broker, theirs in cells.items():
        if isinstance(theirs, str) or not isinstance(theirs, Sequence):
            raise ValueError(f'cells: {broker} has {theirs!r}; write a list, like ["0", "1/2"]')
    try:
        return Cells.of_brokers(k, cells, other)
    except ValueError as error:
        raise ValueError(f"cells: {error}") from None


def _check_brokers(cells: Cells, names: Sequence[str]) -> None:
    if not names:
        raise ValueError("cells: name brokers, and the node has one without a name; use [[broker]]")
    for broker in cells.brokers:
        if broker not in names:
            key = "other" if broker == cells.other else "cells"
            raise ValueError(f"{key}: there is no broker {broker!r}; there are {', '.join(names)}")
