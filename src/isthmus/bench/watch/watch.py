"""The bottleneck watch: once a second, who uses what while a run is measured (ILDM §5.3).

What it looks at, into the log's `resources` and `links` (:mod:`isthmus.pipeline.log.schema`):

* CPU and memory of every process tree it was given, and of the machine;
* the servers' own ends of the subscribers' connections (kind ``server``), because only the end
  that sends knows how long the other's receive window held it back;
* the links between nodes (kind ``link``), asked of each node's admin address.

Two threads, so that a node too busy to answer does not delay the rest.  What cannot be seen (a
server on another machine, a process that ended, an interface without counters) is a note, never an
error; an error of the watch itself is raised by :meth:`Watching.stop`.

Memory is bounded, see :mod:`isthmus.bench.watch.samples`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from isthmus.bench.load.clock import now_ns
from isthmus.bench.watch import pause_frames, tcp_info
from isthmus.bench.watch.samples import LinkRow, ResourceRow, Series, link_row, table
from isthmus.bench.watch.tcp_info import TcpInfo
from isthmus.config.addresses import Address
from isthmus.errors import AdminError
from isthmus.fabric.admin_client import fetch_peers
from isthmus.pipeline.log.schema import LINKS, RESOURCES
from isthmus.processes.tree import Snapshot, Use

__all__ = [
    "MACHINE",
    "ServersEnd",
    "Throttled",
    "Watch",
    "Watched",
    "WatchedConnection",
    "WatchedTables",
    "Watching",
]

MACHINE: Final = "machine"
"""What the machine as a whole is called in `resources`, as a process of no node."""

CONNECTIONS_PER_S: Final = 1_000
"""More of them are looked at less often than once a second, because each costs about 10 µs."""
ADMIN_TIMEOUT_S: Final = 2.0
JOIN_S: Final = 30.0
LAST_TICK: Final = sys.maxsize


Throttled = Callable[[str, str | None], int | None]
"""Nanoseconds that a CPU quota has kept a node's process waiting, or the node as a whole; None:
there is no such quota."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A process tree and the server it belongs to; `node` is "" for the load tool."""

    node: str
    process: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WatchedConnection:
    """A client's connection to a server."""

    client: str
    node: str
    role: str
    """publisher or subscriber"""
    local: str
    """The client's end, as ``host:port``."""
    server: Address


@dataclass(frozen=True, slots=True)
class ServersEnd:
    """What a server's own end of a subscriber's connection counted from first sample to last."""

    client: str
    node: str
    grown: TcpInfo


@dataclass(frozen=True, slots=True)
class WatchedTables:
    """What was seen between start and stop."""

    resources: Any = field(default_factory=RESOURCES.empty_table)
    """A `pyarrow.Table` with the columns of `RESOURCES`."""
    links: Any = field(default_factory=LINKS.empty_table)
    """A `pyarrow.Table` with the columns of `LINKS`."""
    servers_ends: tuple[ServersEnd, ...] = ()
    pauses: Mapping[str, int] = field(default_factory=dict)
    """By ``interface counter``: the pause frames that came in."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By ``node to neighbor``: the messages that a full link dropped."""
    cores: int = 1
    """Of this machine."""
    notes: tuple[str, ...] = ()
    """What ended, and what could not be seen."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How to watch measurements, each from `start` on."""

    processes: Callable[[], Sequence[Watched]] = tuple
    """Asked at every sample, so a process that was started anew is found again."""
    admins: Mapping[str, Address] = field(default_factory=dict)
    throttled: Throttled = lambda node, process: None
    every_s: float = 1.0

    def start(
        self, load: Sequence[Watched] = (), connections: Sequence[WatchedConnection] = ()
    ) -> Watching:
        """Begin with a first sample; `load` are the load tool's processes, `connections` its
        clients'."""
        return Watching(self, load, connections)


class Watching:
    """One measurement's threads and samples."""

    def __init__(
        self, how: Watch, load: Sequence[Watched], connections: Sequence[WatchedConnection]
    ) -> None:
        self._how = how
        self._load = load
        self._by_socket = {
            (c.server.port, c.local): c for c in connections if c.role == "subscriber"
        }
        self._ends: dict[tuple[int, str], tuple[TcpInfo, TcpInfo]] = {}
        """What the server's end of a connection said first and last."""
        self._may_look = True
        """The kernel has not refused to tell of the servers' ends."""
        self._ports = sorted({port for port, _ in self._by_socket})
        self._resources = Series()
        self._sockets = Series(max(1, len(self._by_socket) // CONNECTIONS_PER_S))
        self._links = Series()
        self._notes: dict[str, None] = {}
        """Each once, in order; a dict because both threads add."""
        self._dropped: dict[str, tuple[int, int]] = {}
        self._unanswered: Counter[str] = Counter()
        self._answering: set[str] = set()
        """Nodes whose admin address answered when it was asked last."""
        self._failed: list[BaseException] = []
        self._stopping = threading.Event()

        hosts = dict.fromkeys(c.server.host for c in connections)
        towards = {host: pause_frames.interface_towards(host) for host in hosts}
        for host in (host for host, interface in towards.items() if interface is None):
            self._note(f"pause frames: no interface leads to {host}")
        self._interfaces = [interface for interface in towards.values() if interface]
        self._paused = pause_frames.take(self._interfaces)
        self._notes |= dict.fromkeys(self._paused.notes)

        self._look(0)  # here, so that all that comes after `start` is seen as growth
        self._threads = [
            threading.Thread(target=self._repeat, args=(work,), name=name, daemon=True)
            for name, work in (("watch", self._look), ("watch-links", self._ask_nodes))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> WatchedTables:
        """End with a last sample; raises what went wrong in the watch itself."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(JOIN_S)
            if thread.is_alive():
                raise RuntimeError(f"the thread {thread.name} of the watch does not end")
        if self._failed:
            raise self._failed[0]
        pauses = pause_frames.grown(self._paused, pause_frames.take(self._interfaces))
        unseen = [c.node for key, c in self._by_socket.items() if key not in self._ends]
        for node in sorted(set(unseen) if self._may_look else ()):
            self._note(
                f"{node}: its ends of some subscribers' connections are not on this machine, so "
                "how long subscribers held it back is not known from there"
            )
        for node, times in self._unanswered.items():
            self._note(f"{node}: its admin address gave no answer {times} times")
        return WatchedTables(
            resources=table([self._resources], RESOURCES),
            links=table([self._links, self._sockets], LINKS),
            servers_ends=tuple(
                ServersEnd(self._by_socket[key].client, self._by_socket[key].node, b.since(a))
                for key, (a, b) in self._ends.items()
            ),
            pauses=pauses,
            cores=os.cpu_count() or 1,
            dropped={k: last - first for k, (first, last) in self._dropped.items() if last > first},
            notes=tuple(self._notes),
        )

    def _note(self, note: str) -> None:
        self._notes[note] = None

    def _repeat(self, work: Callable[[int], None]) -> None:
        """`work` at once, then on every tick, and once more at the end."""
        begun_s, tick = time.monotonic(), 0
        try:
            work(tick)
            while True:
                # A tick that was missed is left out, not made up for.
                tick = max(tick, int((time.monotonic() - begun_s) / self._how.every_s)) + 1
                due_s = begun_s + tick * self._how.every_s
                if self._stopping.wait(max(0.0, due_s - time.monotonic())):
                    break
                work(tick)
            work(LAST_TICK)
        except BaseException as error:  # noqa: BLE001 - a thread cannot raise; `stop` does
            self._failed.append(error)

    # ---- this machine --------------------------------------------------------------------

    def _look(self, tick: int) -> None:
        if self._resources.due(tick):
            self._resources.append(self._usage())
        if self._by_socket and self._sockets.due(tick):
            self._sockets.append(self._servers_ends())

    def _usage(self) -> list[ResourceRow]:
        watched = [*self._how.processes(), *self._load]
        roots = {pid for one in watched for pid in one.pids}
        snapshot, t_ns, machine = Snapshot(), now_ns(), machine_use()
        rows = [ResourceRow(t_ns, "", MACHINE, machine.cpu_ns, machine.rss_bytes, None)]
        for one in watched:
            ended = [pid for pid in one.pids if not snapshot.alive(pid)]
            for pid in ended:
                name = f"{one.node}: {one.process}" if one.node else one.process
                self._note(f"{name} (process {pid}) ended while it was watched")
            if len(ended) == len(one.pids):
                continue
            use = snapshot.use(one.pids, roots)
            throttled_ns = self._waited_ns(one)
            rows.append(
                ResourceRow(t_ns, one.node, one.process, use.cpu_ns, use.rss_bytes, throttled_ns)
            )
        return rows

    def _waited_ns(self, one: Watched) -> int | None:
        """By the process's own quota, or by the server's where it has none of its own."""
        if not one.node:
            return None
        own_ns = self._how.throttled(one.node, one.process)
        return self._how.throttled(one.node, None) if own_ns is None else own_ns

    def _servers_ends(self) -> list[LinkRow]:
        try:
            found = tcp_info.of_connections(self._ports)
        except OSError as error:
            self._may_look = False
            self._note(f"the servers' ends of connections cannot be seen: {error}")
            return []
        t_ns = now_ns()
        rows = []
        for key, info in found.items():
            connection = self._by_socket.get(key)
            if connection is None:
                continue
            first, _ = self._ends.get(key, (info, info))
            self._ends[key] = (first, info)
            rows.append(link_row(t_ns, "server", connection.node, connection.client, info))
        return rows

    # ---- the nodes -----------------------------------------------------------------------

    def _ask_nodes(self, tick: int) -> None:
        if not self._links.due(tick):
            return
        rows: list[LinkRow] = []
        for node, address in self._how.admins.items():
            if self._stopping.is_set() and node not in self._answering:
                continue  # one that hangs does not delay the end
            try:
                peers = fetch_peers(address, ADMIN_TIMEOUT_S).get("peers", ())
            except AdminError:
                self._answering.discard(node)
                self._unanswered[node] += 1
                continue
            self._answering.add(node)
            t_ns = now_ns()
            linked = [peer for peer in peers if peer["neighbor"] and peer["sent"] is not None]
            rows += [_link(t_ns, node, peer) for peer in linked]
            for peer in linked:
                key = f"{node} to {peer['neighbor']}"
                first, _ = self._dropped.get(key, (peer["dropped"], 0))
                self._dropped[key] = (first, peer["dropped"])
        self._links.append(rows)


def _link(t_ns: int, node: str, peer: Mapping[str, Any]) -> LinkRow:
    """What a node says of a link; one of an earlier version tells no more than messages sent."""

    def both(way: str) -> int | None:
        data, control = peer.get(f"data_{way}_bytes"), peer.get(f"control_{way}_bytes")
        return None if data is None or control is None else data + control

    return LinkRow(
        t_ns,
        "link",
        node,
        peer["neighbor"],
        messages_out=peer["sent"],
        messages_in=peer.get("data_received"),
        bytes_out=both("sent"),
        bytes_in=both("received"),
        data_bytes_out=peer.get("data_sent_bytes"),
        data_bytes_in=peer.get("data_received_bytes"),
        control_packets_out=peer.get("control_sent"),
        control_packets_in=peer.get("control_received"),
        control_bytes_out=peer.get("control_sent_bytes"),
        control_bytes_in=peer.get("control_received_bytes"),
    )


def machine_use() -> Use:
    """All cores since the machine started, and the memory in use.

    Time that a hypervisor gave to others counts as used: nobody here had it.
    """
    times, memory = psutil.cpu_times(), psutil.virtual_memory()
    busy_s = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return Use(int(busy_s * 1e9), memory.total - memory.available)
