"""The servers of a scenario on this machine: brokers, nodes, CPU quotas, and lines between them.

    [[server]] ──▶ broker (and node before it) ──▶ ready and linked ──▶ under its CPU quota
                                  ▲ links
                     shaping proxy, if [emulation] gives any line a delay or a bandwidth

Five equal small servers fit on one machine, so one can be compared with five (ILDM §6.2 had five
machines).  The load tool and the proxy are outside the quotas.

Invariants:

* quotas come last: a Java broker would start for minutes within a tenth of a core; on the way out
  they go first, for the same reason;
* either all servers that were started have their quota or none has, and then a note says why;
* a link between two servers is shaped whoever dials it and why: a node's proxy is what it
  advertises, and the only address of it that others are told;
* whatever was started is stopped on every way out.

A server with an `address` runs already, and nothing is started for it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from isthmus.bench.coordinator.control import Target
from isthmus.bench.rig.cgroups import CpuQuotas, clear_abandoned, find_hierarchy
from isthmus.bench.rig.lines import Shape, Shapes
from isthmus.bench.rig.shaping_main import start_shaping
from isthmus.bench.scenario import Emulation, Scenario, Server
from isthmus.bench.watch.watch import Watched
from isthmus.config.addresses import Address
from isthmus.config.files import Cooperation, FabricConfig, FabricNode
from isthmus.errors import QuotaUnavailable
from isthmus.fabric.brokers import broker_url, create_broker, start_brokers
from isthmus.fabric.processes import Fabric
from isthmus.processes.children import end
from isthmus.processes.tree import process_tree

if TYPE_CHECKING:
    from isthmus.brokers.base import Broker

__all__ = ["Rig"]

Processes = Callable[[], Iterable[int]]


class Rig:
    """The running servers of `scenario`; a context manager.

    Files and logs of the nodes stand in `folder`, or in a temporary one.  With `quotas` False the
    servers may use the whole machine until `set_quotas` is called, to warm up.
    """

    def __init__(
        self, scenario: Scenario, *, folder: Path | None = None, quotas: bool = True
    ) -> None:
        self.scenario = scenario
        self.targets: dict[str, Target] = {}
        """Where clients connect, by server."""
        self.admins: dict[str, Address] = {}
        """Where nodes can be asked, by server; bare brokers have none."""
        self.notes: list[str] = []
        """What is not as the scenario asks for, and why."""
        self._folder = folder
        self._exit = ExitStack()
        self._processes: dict[str, dict[str, Processes]] = {}
        self._watched: list[Watched] = []
        self._quotas: CpuQuotas | None = None
        self._at_once = quotas

    def __enter__(self) -> Self:
        """Start everything; on return all is ready, linked and, with `quotas`, under its quota.

        Raises `BrokerError`, `NodeFailed` or `ShapingFailed`.
        """
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def watched(self) -> list[Watched]:
        """The processes that were started, as they were when all was ready."""
        return list(self._watched)

    def throttled_ns(self, node: str, process: str | None = None) -> int | None:
        """How long its CPU quota has kept a server waiting, or one process of it by its own.

        None if it has no such quota.
        """
        return None if self._quotas is None else self._quotas.throttled_ns(node, process)

    def _start(self) -> None:
        here: list[Server] = []
        for server in self.scenario.server:
            if server.address is None:
                here.append(server)
                continue
            self._reachable(server, server.address)
            if server.admin is not None:
                self.admins[server.id] = server.admin
        self._start_bare([server for server in here if not server.with_node])
        self._start_nodes([server for server in here if server.with_node])
        self._watched += [
            Watched(server, name, tuple(ids()))
            for server, processes in self._processes.items()
            for name, ids in processes.items()
        ]
        if self._at_once:
            self.set_quotas()

    def _start_bare(self, servers: list[Server]) -> None:
        brokers = {server.id: create_broker(server.broker) for server in servers}
        started = [broker for broker in brokers.values() if broker is not None]
        for broker in started:
            self._exit.callback(broker.stop)
        if started:
            start_brokers(started)
        for server in servers:
            made = brokers[server.id]
            url = broker_url(server.broker, made)
            self._reachable(server, Address(url.host, url.port), made)
            if made is not None:
                self._processes[server.id] = {"broker": made.process_ids}

    def _start_nodes(self, servers: list[Server]) -> None:
        if not servers:
            return
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        config = FabricConfig(
            node=tuple(
                FabricNode(
                    id=server.id,
                    broker=server.broker,
                    peers=server.peers,
                    username=server.username,
                    password=server.password,
                )
                for server in servers
            ),
            cooperation=Cooperation(algorithm=self.scenario.algorithm),
        )
        fabric = Fabric(config, folder=self._folder, proxies=self._shape_links)
        self._exit.enter_context(fabric)
        for server, node in zip(servers, fabric.nodes, strict=True):
            self._reachable(server, node.mqtt, node.broker)
            self.admins[server.id] = node.admin
            processes: dict[str, Processes] = {"node": partial(process_tree, node.process.pid)}
            if node.broker is not None:
                processes["broker"] = node.broker.process_ids
            self._processes[server.id] = processes

    def _reachable(self, server: Server, address: Address, broker: Broker | None = None) -> None:
        username, password = server.username, server.password
        if username is None and broker is not None:
            username, password = broker.username, broker.password
        self.targets[server.id] = Target(address.host, address.port, username, password)

    def _shape_links(self, listeners: Mapping[str, Address]) -> Mapping[str, Address]:
        """A proxy in front of each node, once it is known where it takes links."""
        shapes = _shapes(self.scenario.emulation)
        if shapes.plain or len(listeners) < 2:
            return {}
        folder = self._folder or Path(
            self._exit.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-"))
        )
        process, where = start_shaping(shapes, listeners, folder)
        self._exit.callback(end, process, 1.0)
        self._watched.append(Watched("", "shaping", (process.pid,)))
        return where

    def set_quotas(self) -> None:
        """Put every server that was started under its quota; without permission, a note."""
        emulation = self.scenario.emulation
        wanted = emulation.cpu is not None or emulation.cpu_per_process is not None
        if not wanted or not self._processes or self._quotas is not None:
            return
        try:
            hierarchy = find_hierarchy()
            clear_abandoned(hierarchy)
            quotas = self._exit.enter_context(
                CpuQuotas(
                    hierarchy,
                    cpu=emulation.cpu,
                    cpu_per_process=emulation.cpu_per_process,
                    period_s=emulation.period_ms / 1e3,
                )
            )
            try:
                for server, processes in self._processes.items():
                    quotas.place(server, processes)
            except QuotaUnavailable:
                quotas.release()
                raise
        except QuotaUnavailable as problem:
            self.notes.append(f"no CPU quotas, the servers share this whole machine: {problem}")
            return
        self._quotas = quotas
        self.notes += quotas.notes
        elsewhere = [id_ for id_ in self.targets if id_ not in self._processes]
        if elsewhere:
            self.notes.append(f"no CPU quota for what runs already: {', '.join(elsewhere)}")
        cores = os.cpu_count() or 1
        if emulation.cpu is not None and emulation.cpu * len(self._processes) > cores:
            self.notes.append(
                f"{len(self._processes)} servers of {emulation.cpu:g} cores are more than the "
                f"{cores} of this machine; they get in each other's way"
            )


def _shapes(emulation: Emulation) -> Shapes:
    """The lines between the servers."""
    between: dict[tuple[str, str], Shape] = {}
    for line in emulation.link:
        one, other = line.between
        delay_ms = emulation.link_delay_ms if line.delay_ms is None else line.delay_ms
        mbit_s = emulation.link_mbit_s if line.mbit_s is None else line.mbit_s
        back_delay_ms = delay_ms if line.back_delay_ms is None else line.back_delay_ms
        back_mbit_s = mbit_s if line.back_mbit_s is None else line.back_mbit_s
        between[one, other] = _shape(delay_ms, mbit_s)
        between[other, one] = _shape(back_delay_ms, back_mbit_s)
    return Shapes(_shape(emulation.link_delay_ms, emulation.link_mbit_s), between)


def _shape(delay_ms: float, mbit_s: float | None) -> Shape:
    return Shape(delay_ms / 1e3, None if mbit_s is None else max(1, round(mbit_s * 1e6 / 8)))
