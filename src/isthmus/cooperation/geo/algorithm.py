"""A gateway: brokers in charge of cells of the map, one broker to its clients (Geo §II).

The gateway is a node with several brokers (`[[broker]]`) that share nothing.  This algorithm says
which of them is in charge of a topic (`cells`); the node does the rest as for any node with several
brokers: it publishes at the broker in charge and hands its acknowledgment on, splits subscriptions
over the brokers that they concern, and keeps sessions, wills and retained messages where they are.
To a broker it is an ordinary client.

Towards other nodes it is `sf`, word for word: a gateway can stand in a fabric, linked to nodes of
`sf`, and what clients of those publish reaches the broker in charge.  The paper has no such links.

Cells can be split and merged while the gateway runs; the paper has a fixed table.  The node moves
what lives in them (`Port.move_topics`).  With a `state_dir` the tiling outlives a restart, as long
as the configuration has the cells that it had: who edits them has the last word.

Departures from the paper: topics that are not of the notation can have a broker, too (`other`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from isthmus.cooperation.api import Moving, Port, TopicMove
from isthmus.cooperation.geo.cells import Cells, digits_of
from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding

__all__ = ["GeoGateway"]

STATE: Final = "cells"
STATE_VERSION: Final = 1


class GeoGateway(SubscriptionFlooding):
    """Several brokers, each in charge of cells."""

    name = "geo"
    speaks = "sf"
    places_topics = True

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        others = {key: each for key, each in options.items() if key not in ("k", "cells", "other")}
        self.cells = self._configured = cells_of(options)
        self._next: Cells | None = None
        """What the tiling will be, while topics move."""
        self._move: Moving | None = None
        self._problem = ""
        """Why the last change of the tiling failed."""
        super().__init__(port, others)
        _check_brokers(self.cells, port.broker_names)

    def on_node_start(self) -> None:
        super().on_node_start()
        kept = self.port.load_state(STATE, STATE_VERSION)
        if kept:
            self._take_up(json.loads(kept[-1]))

    # ---- several brokers ---------------------------------------------------------------------

    def broker_of(self, topic: str) -> str:
        return self.cells.broker_of(topic)

    def brokers_of(self, topic_filter: str) -> Sequence[str]:
        return self.cells.brokers_of(topic_filter)

    # ---- split and merge ---------------------------------------------------------------------

    def on_request(self, request: Mapping[str, object]) -> Mapping[str, object]:
        """``{"split": CELL, "brokers": [four]}`` or ``{"merge": CELL, "broker": NAME}``.

        Of several gateways, ``"copies": false`` for all but one, and ``"waits": true``; then
        ``{"go": STEP}``, or ``{"abort": WHY}``.
        """
        asked = dict(request)
        copies, waits = asked.pop("copies", True), asked.pop("waits", False)
        match asked:
            case {"go": str(step), **rest} if not rest:
                self._moving().go(step)
                return {"asked": step, "moving": True}
            case {"abort": str(why), **rest} if not rest:
                self._moving().fail(why)
                return {"asked": "abort", "moving": False}
            case {"split": str(cell), "brokers": [*brokers], **rest} if not rest:
                after = self.cells.split(cell, [str(each) for each in brokers])
                name = f"split {cell}"
            case {"merge": str(cell), "broker": str(broker), **rest} if not rest:
                after = self.cells.merge(cell, broker)
                name = f"merge {cell}"
            case _:
                raise ValueError(
                    'ask for {"split": "1/0", "brokers": ["a", "b", "c", "d"]} or '
                    '{"merge": "1/0", "broker": "a"}'
                )
        if self._next is not None:
            raise ValueError("a cell is being split or merged; one at a time")
        _check_brokers(after, self.port.broker_names)
        parts = self._parts(cell, after)
        if parts or waits:
            move = TopicMove(
                name,
                parts,
                after.broker_of,
                after.brokers_of,
                copies=copies is not False,
                waits=waits is True,
            )
            self._move = self.port.move_topics(move)
            self._next, self._problem = after, ""
        else:
            self._is_now(after)
        return {"asked": name, "moving": self._next is not None}

    def _moving(self) -> Moving:
        if self._move is None or self._next is None:
            raise ValueError("no cell is being split or merged")
        return self._move

    def _parts(self, cell: str, after: Cells) -> tuple[tuple[str, str, str], ...]:
        """Which cells change hands: as filters, each with the broker before and after."""
        finest = {**self.cells.within(cell), **after.within(cell)}
        found = []
        for each in sorted(finest):
            if any(other != each and other.startswith(f"{each}/") for other in finest):
                continue
            topic = each + "/0" * (self.cells.k - each.count("/") - 1)
            ends = self.cells.broker_of(topic), after.broker_of(topic)
            if ends[0] != ends[1]:
                found.append((f"{each}/#", *ends))
        return tuple(found)

    def on_topics_moved(self, move: TopicMove, problem: str) -> None:
        after, self._next = self._next, None
        self._problem = problem and f"{move.name}: {problem}"
        if not problem and after is not None:
            self._is_now(after)

    def _is_now(self, after: Cells) -> None:
        self.cells = after
        self.port.routes_changed()
        self._save()

    # ---- over a restart ----------------------------------------------------------------------

    def _save(self) -> None:
        tilings = (self._configured, self.cells)
        record = json.dumps([[each.k, each.other, each.by_broker()] for each in tilings])
        self.port.save_state(STATE, [record.encode()], STATE_VERSION)

    def _take_up(self, kept: list[list[object]]) -> None:
        """The tiling of the last life, if nobody has edited the configuration since."""
        configured, cells = (
            Cells.of_brokers(k, by_broker, other)  # type: ignore[arg-type]
            for k, other, by_broker in kept
        )
        if configured == self._configured and set(cells.brokers) <= set(self.port.broker_names):
            self.cells = cells
            self.port.routes_changed()

    def on_state_lost(self, name: str) -> None:
        if name == STATE:
            self._save()
        else:
            super().on_state_lost(name)

    def status(self) -> dict[str, object]:
        return {
            **super().status(),
            "k": self.cells.k,
            "cells": self.cells.by_broker(),
            "other": self.cells.other,
            "as_configured": self.cells == self._configured,
            "changing": self._next is not None,
            "problem": self._problem,
        }


def cells_of(options: Mapping[str, object]) -> Cells:
    """The tiling that the configuration describes; raises `ValueError` naming the key."""
    try:
        k = digits_of(options.get("k"))
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
