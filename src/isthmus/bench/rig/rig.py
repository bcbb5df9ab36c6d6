"""The servers of a scenario on this machine: brokers, nodes, CPU quotas, and lines between them.

    [[node]] ──▶ broker (and node before it) ──▶ ready and joined ──▶ under its CPU quota
                                  ▲ links
                     shaping proxy, if any line has a delay or a bandwidth, or is to be cut

A server is a broker with its node, or a bare broker.  Five equal small ones fit on one machine, so
one can be compared with five (ILDM §6.2 had five machines).  The load tool and the proxy are
outside the quotas.

Invariants:

* quotas come last: a Java broker would start for minutes within a tenth of a core; on the way out
  they go first, for the same reason;
* either all servers that were started have their quota or none has, and then a note says why;
* a link between two servers is shaped whoever dials it and why: a node's proxy is what it
  advertises, and the only address of it that others are told;
* a node that is killed comes back with its file, ports and `state_dir`, and under its quota when it
  is ready;
* whatever was started is stopped on every way out.

One with an `address` runs already, and nothing is started for it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from isthmus.bench.coordinator.control import Target
from isthmus.bench.rig.cgroups import CpuQuotas, clear_abandoned, find_hierarchy
from isthmus.bench.rig.lines import Shape, Shapes
from isthmus.bench.rig.shaping_main import order, start_shaping
from isthmus.bench.scenario import Emulation, Scenario, ScenarioNode
from isthmus.bench.watch.watch import Watched
from isthmus.config.addresses import Address
from isthmus.errors import QuotaUnavailable, ShapingFailed
from isthmus.fabric.brokers import broker_url, create_broker, start_brokers
from isthmus.fabric.processes import Fabric, RunningNode
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
        self._fabric: Fabric | None = None
        self._shaping: tuple[subprocess.Popen[bytes], Path] | None = None
        self._at_once = quotas

    def __enter__(self) -> Self:
        """Start everything; on return all is ready, joined and, with `quotas`, under its quota.

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
        """The processes that were started, as they were when all was ready, or ready again."""
        return list(self._watched)

    # ---- faults --------------------------------------------------------------------------

    def kill(self, node: str) -> None:
        """SIGKILL of a node that was started; its broker stays."""
        self._watched = [w for w in self._watched if (w.node, w.process) != (node, "node")]
        self._started.kill(node)

    def start_again(self, node: str) -> None:
        """A node that was killed, with its file, its ports and what it had stored."""
        self._started.start_again(node)

    def is_ready(self, node: str) -> bool:
        """Whether a node that was started again is; then it is watched, and has its quota again.

        Raises `NodeFailed` if it ended.
        """
        if not self._started.is_ready(node):
            return False
        ids = self._processes[node]["node"]
        self._watched = [*self._watched, Watched(node, "node", tuple(ids()))]
        if self._quotas is not None:
            self._quotas.replace(node, "node", ids)
        return True

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        """From now on no byte passes, for each of `ways`, from the one node to the other."""
        self._order("cut", ways)

    def heal(self, ways: Iterable[tuple[str, str]]) -> None:
        self._order("heal", ways)

    def _order(self, what: Literal["cut", "heal"], ways: Iterable[tuple[str, str]]) -> None:
        if self._shaping is None:
            raise ShapingFailed("does not run: the scenario has no cut and no line", "")
        order(*self._shaping, what, ways)

    @property
    def _started(self) -> Fabric:
        if self._fabric is None:
            raise RuntimeError("no node was started")
        return self._fabric

    # ---- start ---------------------------------------------------------------------------

    def throttled_ns(self, node: str, process: str | None = None) -> int | None:
        """How long its CPU quota has kept a server waiting, or one process of it by its own.

        None if it has no such quota.
        """
        return None if self._quotas is None else self._quotas.throttled_ns(node, process)

    def _start(self) -> None:
        here: list[ScenarioNode] = []
        for node in self.scenario.node:
            if node.address is None:
                here.append(node)
                continue
            self._reachable(node, node.address)
            if node.admin.port:
                self.admins[node.id] = node.admin
        self._start_bare([node for node in here if not node.with_node])
        self._start_nodes([node for node in here if node.with_node])
        self._watched += [
            Watched(node, name, tuple(ids()))
            for node, processes in self._processes.items()
            for name, ids in processes.items()
        ]
        if self._at_once:
            self.set_quotas()

    def _start_bare(self, nodes: list[ScenarioNode]) -> None:
        brokers = {node.id: create_broker(node.broker) for node in nodes}
        started = [broker for broker in brokers.values() if broker is not None]
        for broker in started:
            self._exit.callback(broker.stop)
        if started:
            start_brokers(started)
        for node in nodes:
            made = brokers[node.id]
            url = broker_url(node.broker, made)
            self._reachable(node, Address(url.host, url.port), made)
            if made is not None:
                self._processes[node.id] = {"broker": made.process_ids}

    def _start_nodes(self, nodes: list[ScenarioNode]) -> None:
        if not nodes:
            return
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        fabric = Fabric(
            self.scenario.fabric,
            folder=self._folder,
            proxies=self._shape_links,
            keeps_state=bool(self.scenario.crash),
        )
        self._fabric = self._exit.enter_context(fabric)
        for node, running in zip(nodes, fabric.nodes, strict=True):
            self._reachable(node, running.mqtt, running.broker)
            self.admins[node.id] = running.admin
            processes: dict[str, Processes] = {"node": partial(_tree, running)}
            if running.broker is not None:
                processes["broker"] = running.broker.process_ids
            self._processes[node.id] = processes

    def _reachable(
        self, node: ScenarioNode, address: Address, broker: Broker | None = None
    ) -> None:
        username, password = node.username, node.password
        if node.password_file is not None:
            password = node.password_file.read_bytes().rstrip(b"\r\n").decode()
        if username is None and broker is not None:
            username, password = broker.username, broker.password
        self.targets[node.id] = Target(address.host, address.port, username, password)

    def _shape_links(self, listeners: Mapping[str, Address]) -> Mapping[str, Address]:
        """A proxy in front of each node, once it is known where it takes links."""
        shapes = _shapes(self.scenario.emulation)
        if (shapes.plain and not self.scenario.cut) or len(listeners) < 2:
            return {}
        folder = self._folder or Path(
            self._exit.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-"))
        )
        process, where = start_shaping(shapes, listeners, folder)
        self._exit.callback(end, process, 1.0)
        self._shaping = process, folder
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


def _tree(node: RunningNode) -> Iterable[int]:
    """All that belongs to the process that a node is now."""
    return process_tree(node.process.pid)


def _shapes(emulation: Emulation) -> Shapes:
    """The lines between the nodes."""
    between = {way: _shape(*shape) for way, shape in emulation.ways.items()}
    return Shapes(_shape(emulation.link_delay_ms, emulation.link_mbit_s), between)


def _shape(delay_ms: float, mbit_s: float | None) -> Shape:
    return Shape(delay_ms / 1e3, None if mbit_s is None else max(1, round(mbit_s * 1e6 / 8)))
