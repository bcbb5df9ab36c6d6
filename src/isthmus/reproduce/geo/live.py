"""The three systems as processes on this machine, with real brokers: packets counted by taps.

    Systems 1, 2   clients ──▶ tap ──▶ node ──▶ broker        nodes dial each other by way of taps
    Proposed       clients ──▶ gateway ──▶ tap ──▶ broker     a tap before each of the 4^k brokers

The same workload as in the simulator, by clients of paho-mqtt, and the same definition of what is
counted (`simulated`).  After each change, and after all have published, it is waited until nothing
has passed any tap for `QUIET_S`.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from isthmus.config.addresses import Address
from isthmus.config.files import Cooperation, FabricConfig, FabricNode
from isthmus.errors import LoadError
from isthmus.fabric.processes import Fabric
from isthmus.reproduce.geo.clients import PahoClient
from isthmus.reproduce.geo.expected import Shape, parents
from isthmus.reproduce.geo.experiments import Contender
from isthmus.reproduce.geo.gateway import running_brokers, running_gateway
from isthmus.reproduce.geo.simulated import (
    Counted,
    Packets,
    broker_name,
    difference,
    geo_options,
)
from isthmus.reproduce.geo.taps import Taps
from isthmus.reproduce.geo.workload import Change, Workload

__all__ = ["measure_live"]

QUIET_S: Final = 0.1
LIMIT_S: Final = 30.0
READY_S: Final = 90.0
KINDS: Final = ("PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE")


def measure_live(
    contender: Contender, workload: Workload, broker: str, shape: Shape = "star"
) -> Counted:
    """Start it, run a window and count; raises `IsthmusError` if that fails."""
    began_s = time.monotonic()
    of = workload.of
    with ExitStack() as exit_:
        folder = Path(exit_.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-")))
        taps = exit_.enter_context(Taps())
        system = _System(contender, of.k, broker, shape)
        entrances = exit_.enter_context(system.started(taps, folder))
        publishers = []
        for cell in range(of.areas):
            publishers.append(PahoClient(f"{broker_name(cell, of.k)}-p", entrances[cell]))
            exit_.callback(publishers[-1].close)
        listeners = {}
        for each in workload.listeners:
            name = f"{broker_name(each.cell, of.k)}-s{each.number}"
            client = listeners[each.cell, each.number] = PahoClient(name, entrances[each.cell])
            exit_.callback(client.close)
            client.subscribe(each.before.text(of.k))
        _rest(taps)
        before = _so_far(taps, of.k)
        changed = True
        for step in workload.steps():
            if isinstance(step, Change):
                listener = step.listener
                client = listeners[listener.cell, listener.number]
                if not changed:
                    _rest(taps)
                client.unsubscribe(listener.before.text(of.k))
                _rest(taps)
                client.subscribe(listener.after.text(of.k))
                _rest(taps)
                changed = True
            else:
                publishers[step.topic.cell].publish(step.topic.text(of.k), b"m")
                changed = False
        _rest(taps)
        counted = difference(_so_far(taps, of.k), before, of.areas)
    counted.took_s = time.monotonic() - began_s
    return counted


def _rest(taps: Taps) -> None:
    try:
        taps.rest(QUIET_S, LIMIT_S)
    except TimeoutError as error:
        raise LoadError(str(error)) from None


def _so_far(taps: Taps, k: int) -> Packets:
    """What the paper's brokers have received and transmitted until now."""
    cell_of = {broker_name(cell, k): cell for cell in range(4**k)}
    found: Packets = Counter()
    for seen, count in taps.so_far().items():
        if seen.kind not in KINDS:
            continue
        there = cell_of[seen.tap.partition(" ")[0]]
        found[there, f"{'received' if seen.inwards else 'transmitted'} {seen.kind}"] += count
        if seen.tap.endswith(" links"):
            here = cell_of[seen.node]
            found[here, f"{'transmitted' if seen.inwards else 'received'} {seen.kind}"] += count
    return found


class _System:
    """What is started for a run."""

    def __init__(self, contender: Contender, k: int, broker: str, shape: Shape) -> None:
        self.contender = contender
        self.k = k
        self.broker = broker
        self.shape = shape
        self.names = [broker_name(cell, k) for cell in range(4**k)]

    @contextmanager
    def started(self, taps: Taps, folder: Path) -> Iterator[list[Address]]:
        """Where clients of each cell connect."""
        start = self._gateway if self.contender == "geo" else self._pairs
        with start(taps, folder) as entrances:
            yield entrances

    @contextmanager
    def _pairs(self, taps: Taps, folder: Path) -> Iterator[list[Address]]:
        """Nodes with a broker each."""
        above = [self.names[cell] for cell in parents(self.k, self.shape)]
        config = FabricConfig(
            node=tuple(
                FabricNode(id=name, broker=self.broker, peers=(peer,) if peer != name else ())
                for name, peer in zip(self.names, above, strict=True)
            ),
            cooperation=Cooperation(algorithm=self.contender),
        )

        def proxies(links: Mapping[str, Address]) -> Mapping[str, Address]:
            return {name: taps.add(f"{name} links", address) for name, address in links.items()}

        with Fabric(config, folder=folder, proxies=proxies, ready_timeout_s=READY_S) as fabric:
            yield [taps.add(f"{node.id} clients", node.mqtt) for node in fabric.nodes]

    @contextmanager
    def _gateway(self, taps: Taps, folder: Path) -> Iterator[list[Address]]:
        """A gateway before all brokers, which is where everybody connects."""
        with running_brokers(self.broker, len(self.names)) as brokers:
            addresses = {
                name: taps.add(f"{name} broker", Address(each.host, each.port))
                for name, each in zip(self.names, brokers, strict=True)
            }
            cells = geo_options(self.k)["cells"]
            with running_gateway("gateway", addresses, cells, self.k, folder) as entrance:
                yield [entrance] * len(self.names)
