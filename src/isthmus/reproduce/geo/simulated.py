"""The three systems in the exact simulator: the packets that pass, counted.

    Systems 1, 2   cell's clients ──▶ node + broker ══ links ══ node + broker ◀── clients
    Proposed       clients ──▶ gateway ──▶ 4^k brokers, each in charge of a cell

What is counted where:

* In Systems 1 and 2 a *broker* of the paper is a node with its broker: PUBLISH and SUBSCRIBE that
  the pair receives from clients and neighbors, and transmits to them.  What its two halves say to
  each other is not counted.  On links the packets are counted as they are written, with clients
  when a client sends or receives one.
* In the proposed system it is the broker behind the gateway: every PUBLISH and SUBSCRIBE in the
  bytes of all its connections.
* UNSUBSCRIBE is counted apart: a change is one message in the paper, here it is two packets.
  Acknowledgments, connecting and what nodes tell each other beside are not counted.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from isthmus.exchange.split.brokers import BrokersSettings
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packets import Packet, Publish
from isthmus.mqtt.primitives import PacketType
from isthmus.reproduce.geo.expected import Counts, Shape, parents
from isthmus.reproduce.geo.experiments import Contender
from isthmus.reproduce.geo.one_hop import InterestAtItsCell
from isthmus.reproduce.geo.workload import Change, Listener, Workload, prefix
from isthmus.sim.broker import BrokerConnection, SimBroker
from isthmus.sim.client import Received, SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.network import WireSettings
from isthmus.sim.node import SimNode
from isthmus.sim.stream import StreamEnd

__all__ = [
    "Counted",
    "Packets",
    "broker_name",
    "difference",
    "geo_options",
    "simulate",
]

LINK_S: Final = 0.001
STEP_S: Final = 0.1
"""From one step to the next; anything is done long before."""
GATEWAYS: Final = 4
"""The proposed system's clients come by one of so many, that of their quarter of the area."""


@dataclass(slots=True)
class Counted:
    """What was counted within the window, by cell."""

    counts: list[Counts]
    unsubscribes: int = 0
    """Received by all brokers."""
    took_s: float = 0.0


def broker_name(cell: int, k: int) -> str:
    """A cell's broker, or its node."""
    return prefix(cell, k).replace("/", "-")


def geo_options(k: int) -> dict[str, Any]:
    """What `geo` is configured with: every cell of k digits has a broker of its own."""
    cells = {broker_name(cell, k): [prefix(cell, k)] for cell in range(4**k)}
    return {"k": k, "cells": cells}


def simulate(contender: Contender, workload: Workload, shape: Shape = "star") -> Counted:
    """Run a window and count."""
    began_s = time.perf_counter()
    made = _Gateways(workload) if contender == "geo" else _Pairs(contender, workload, shape)
    made.connect()
    before = made.so_far()
    for step in workload.steps():
        if isinstance(step, Change):
            made.change(step.listener)
        else:
            made.publish(step.topic.cell, step.topic.text(workload.of.k))
        made.fabric.run(STEP_S)
    made.fabric.settle()
    counted = difference(made.so_far(), before, workload.of.areas)
    counted.took_s = time.perf_counter() - began_s
    return counted


Packets = Counter[tuple[int, str]]
"""By cell and what it is: ``received SUBSCRIBE``."""


def difference(after: Packets, before: Packets, cells: int) -> Counted:
    found = after - before
    return Counted(
        [
            Counts(
                found[cell, "received PUBLISH"],
                found[cell, "received SUBSCRIBE"],
                found[cell, "transmitted PUBLISH"],
                found[cell, "transmitted SUBSCRIBE"],
            )
            for cell in range(cells)
        ],
        sum(found[cell, "received UNSUBSCRIBE"] for cell in range(cells)),
    )


class _Clients:
    """A publisher in each cell, which sends in the name of all of them, and all listeners."""

    def __init__(self, workload: Workload, fabric: SimFabric) -> None:
        self.workload = workload
        self.fabric = fabric
        fabric.engine.max_events = float("inf")
        self.packets: Packets = Counter()
        """Between clients and who they are connected to."""
        self._publishers: list[SimClient] = []
        self._listeners: dict[tuple[int, int], SimClient] = {}

    def entrance(self, cell: int) -> SimNode:
        """Where clients of a cell connect."""
        raise NotImplementedError

    def so_far(self) -> Packets:
        """What the paper's brokers have received and transmitted until now."""
        raise NotImplementedError

    def connect(self) -> None:
        k = self.workload.of.k
        for cell in range(self.workload.of.areas):
            publisher = self.entrance(cell).client(f"{broker_name(cell, k)}-p")
            self._publishers.append(publisher)
        for each in self.workload.listeners:
            client = self.entrance(each.cell).client(f"{broker_name(each.cell, k)}-s{each.number}")
            client.on_received = self._delivered_to(each.cell)
            client.subscribe(each.before.text(k), qos=0)
            self._listeners[each.cell, each.number] = client
        self.fabric.settle()

    def _delivered_to(self, cell: int) -> Any:
        def delivered(received: Received) -> None:
            self.packets[cell, "transmitted PUBLISH"] += 1

        return delivered

    def publish(self, cell: int, topic: str) -> None:
        if not self._publishers[cell].publish(topic, b"m"):
            raise RuntimeError(f"the publisher of cell {cell} is not connected")
        self.packets[cell, "received PUBLISH"] += 1

    def change(self, listener: Listener) -> None:
        client = self._listeners[listener.cell, listener.number]
        k = self.workload.of.k
        client.unsubscribe(listener.before.text(k))
        self.packets[listener.cell, "received UNSUBSCRIBE"] += 1
        self.fabric.run(STEP_S)
        client.subscribe(listener.after.text(k), qos=0)
        self.packets[listener.cell, "received SUBSCRIBE"] += 1


class _Pairs(_Clients):
    """Systems 1 and 2: in each cell a node with its broker."""

    def __init__(self, contender: Contender, workload: Workload, shape: Shape) -> None:
        one_hop = contender == "one-hop"
        k = workload.of.k
        fabric = SimFabric(
            seed=workload.seed,
            algorithm=InterestAtItsCell if one_hop else contender,
            options={"k": k} if one_hop else None,
            wire=WireSettings(delay_s=LINK_S),
            remembers=False,
        )
        super().__init__(workload, fabric)
        self._nodes = [
            fabric.node(broker_name(cell, k), state_dir=False) for cell in range(workload.of.areas)
        ]
        self._cell_of = {node.name: cell for cell, node in enumerate(self._nodes)}
        for one, other in self._links_by_interest() if one_hop else enumerate(parents(k, shape)):
            if one != other:
                fabric.link(self._nodes[one], self._nodes[other])
        fabric.settle()

    def _links_by_interest(self) -> list[tuple[int, int]]:
        """One hop between any two of which one ever listens to the other."""
        pairs = [
            (max(each.cell, topic.cell), min(each.cell, topic.cell))
            for each in self.workload.listeners
            for topic in (each.before, each.after)
        ]
        return list(dict.fromkeys(pairs))

    def entrance(self, cell: int) -> SimNode:
        return self._nodes[cell]

    def so_far(self) -> Packets:
        found = Counter(self.packets)
        for (source, target), kinds in self.fabric.network.counts.items():
            for kind in ("PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"):
                found[self._cell_of[source], f"transmitted {kind}"] += kinds[kind]
                found[self._cell_of[target], f"received {kind}"] += kinds[kind]
        return found


class _CountingConnection(BrokerConnection):
    def __init__(self, broker: _CountingBroker, end: StreamEnd) -> None:
        super().__init__(broker, end)
        self._kinds = broker.kinds
        self._seen = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        seen = self._seen.push(data)
        offsets = scan(seen)
        for start, _ in pairwise(offsets):
            self._kinds[f"received {PacketType(seen[start] >> 4).name}"] += 1
        self._seen.keep(seen[offsets[-1] :])
        super().data_received(data)

    def send(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._kinds["transmitted PUBLISH"] += 1
        super().send(packet)


class _CountingBroker(SimBroker):
    """Counts what passes all its connections."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds: Counter[str] = Counter()

    def accept(self, end: StreamEnd) -> BrokerConnection | None:
        return _CountingConnection(self, end) if self.up else None


class _Gateways(_Clients):
    """The proposed system: nodes without links between them, before the same brokers."""

    def __init__(self, workload: Workload) -> None:
        k = workload.of.k
        fabric = SimFabric(
            seed=workload.seed, algorithm="geo", options=geo_options(k), remembers=False
        )
        super().__init__(workload, fabric)
        names = [broker_name(cell, k) for cell in range(workload.of.areas)]
        self._brokers = {
            name: _CountingBroker(
                name,
                fabric.engine,
                fabric.trace,
                level=5,
                delay_s=0.001,
                persistent=True,
                remembers=False,
            )
            for name in names
        }
        self._gateways = []
        for number in range(GATEWAYS):
            gateway = SimNode(
                fabric,
                f"gateway-{number}",
                brokers=self._brokers,
                broker_settings=BrokersSettings(tuple(names)),
                state_dir=False,
                clock_ahead_ms=0,
            )
            fabric.nodes[gateway.name] = gateway
            gateway.start()
            self._gateways.append(gateway)
        fabric.settle()

    def entrance(self, cell: int) -> SimNode:
        return self._gateways[cell * GATEWAYS // self.workload.of.areas]

    def so_far(self) -> Packets:
        return Counter(
            {
                (cell, kind): count
                for cell, broker in enumerate(self._brokers.values())
                for kind, count in broker.kinds.items()
            }
        )
