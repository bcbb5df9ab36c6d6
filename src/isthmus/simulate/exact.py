"""A run of the exact simulator, recorded in the one log.

    fabric, clients ──▶ publishes, hops, deliveries, counters of links ──▶ row groups ──▶ `runs`

Everything up to the first message is set-up: nodes are linked, clients are connected, and it is
waited until the fabric is at rest.  Then publishers send for `duration_s`, which is the run's
window, and it is waited once more, so that what is under way arrives.  Counters of links are read
at the window's two ends and every second between.

Invariants:

* What is recorded is what a client sent, what a client received, and what was written to a link;
  nothing is read from the nodes but the counters of their links.
* Times are those of the virtual clock.  The same simulation gives the same rows.
* A run that fails leaves no file.  Memory does not grow with the number of messages, unless
  `remembers` asks clients to keep what they received.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from isthmus.cooperation.api import LinkTraffic
from isthmus.errors import IsthmusError, SimulationFailed
from isthmus.exchange.discovery.discovery import DiscoverySettings
from isthmus.pipeline.log.payload import LAYOUT, MAGIC, SIZE, run_tag
from isthmus.pipeline.log.reading import LoggedClient, LoggedFile
from isthmus.pipeline.log.run_files import check_run, remove_run
from isthmus.pipeline.log.schema import SCHEMA_VERSION, Table
from isthmus.pipeline.log.writing import RowWriter, write_table
from isthmus.sim.client import Received, SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.host import EPOCH_MS
from isthmus.sim.network import DatagramSettings, HopRecord, WireSettings
from isthmus.sim.shapes import links_of
from isthmus.simulate.file import Simulation, node_name

__all__ = ["WRITER", "ExactRun"]

WRITER: Final = "s0"
SAMPLE_S: Final = 1.0
NOT_OURS: Final = "not a message of this run"

_EPOCH_NS: Final = EPOCH_MS * 1_000_000


def _ns(at_s: float) -> int:
    """A time of the virtual clock as the log has it."""
    return _EPOCH_NS + round(at_s * 1e9)


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a payload says."""

    publisher: int
    message: int
    t_send_ns: int


class _Rows:
    """What happens in the fabric, as rows of the log."""

    def __init__(self, writer: RowWriter, run: str, topics: Iterable[str]) -> None:
        self._writer = writer
        self._tag = run_tag(run)
        self._topics = {topic: index for index, topic in enumerate(topics)}
        self.strays: Counter[str] = Counter()

    def payload(self, sent: _Sent, size: int) -> bytes:
        """What a message carries, so that whoever sees it knows which one it is."""
        fields = (MAGIC, sent.publisher, sent.t_send_ns, sent.message, 0, self._tag)
        return LAYOUT.pack(*fields).ljust(size, b"\0")

    def _read(self, payload: bytes) -> _Sent | None:
        if len(payload) >= SIZE:
            magic, publisher, t_send_ns, message, _, tag = LAYOUT.unpack_from(payload)
            if (magic, tag) == (MAGIC, self._tag):
                return _Sent(publisher, message, t_send_ns)
        return None

    def published(self, sent: _Sent, topic: int) -> None:
        self._writer.add("publishes", (sent.publisher, sent.message, topic, sent.t_send_ns))

    def received(self, subscriber: int, received: Received) -> None:
        sent, topic = self._read(received.payload), self._topics.get(received.topic)
        if sent is None or topic is None:
            self.strays[NOT_OURS] += 1
            return
        what = (sent.publisher, sent.message, topic, sent.t_send_ns)
        self._writer.add("deliveries", (subscriber, *what, _ns(received.at_s)))

    def hop(self, hop: HopRecord) -> None:
        sent = self._read(hop.payload)
        known = (None, None) if sent is None else (sent.publisher, sent.message)
        self._writer.add(
            "hops",
            (
                _ns(hop.at_s),
                hop.source,
                hop.target,
                hop.origin,
                hop.number,
                hop.label,
                hop.qos,
                hop.hops,
                hop.size,
                *known,
                self._topics.get(hop.topic),
                None if sent is None else sent.t_send_ns,
            ),
        )

    def link(self, at_s: float, node: str, neighbor: str, seen: LinkTraffic) -> None:
        self._writer.add(
            "links",
            (
                _ns(at_s),
                "link",
                node,
                neighbor,
                seen.data_sent,
                seen.data_received,
                seen.data_sent_bytes + seen.control_sent_bytes,
                seen.data_received_bytes + seen.control_received_bytes,
                *(None,) * 4,  # what only TCP knows
                seen.data_sent_bytes,
                seen.data_received_bytes,
                seen.control_sent,
                seen.control_received,
                seen.control_sent_bytes,
                seen.control_received_bytes,
            ),
        )


class ExactRun:
    """A simulation, from its first node to its row in the log."""

    def __init__(
        self, simulation: Simulation, log: Path, run: str, *, remembers: bool = False
    ) -> None:
        """Nothing is written yet."""
        self.simulation = simulation
        self.run = run
        self.phase = "waiting"
        """What it is doing, for whoever watches from another thread."""
        self.started_s: float | None = None
        """When the first message was due, on the virtual clock."""
        self.missed = 0
        """Messages that were due while their publisher was not connected."""
        self.set_up = (0, 0)
        """Control packets on all links before the first message, and all bytes until then."""
        self._log = log
        shape, network = simulation.simulation, simulation.network
        self.fabric = SimFabric(
            seed=shape.seed,
            algorithm=simulation.cooperation.algorithm,
            options=simulation.cooperation.options,
            wire=WireSettings(network.delay_ms / 1000, network.bytes_per_s),
            settle_s=shape.settle_s,
            discovery=DiscoverySettings() if network.discovery else None,
            datagrams=DatagramSettings(loss=network.datagram_loss),
            remembers=remembers,
        )
        self.fabric.engine.max_events = float("inf")
        rng = self.fabric.engine.random_for("shape")
        self.links = links_of(shape.topology, shape.nodes, rng, shape.graph_links)
        self.topics = tuple(f"topic{number + 1}" for number in range(simulation.load.topics))
        self.clients = self._clients()
        self.playing: dict[int, SimClient] = {}
        """The simulator's clients by their number in the log."""

    def _clients(self) -> tuple[LoggedClient, ...]:
        load, rng = self.simulation.load, self.fabric.engine.random_for("clients")
        nodes = self.simulation.simulation.nodes
        found: list[LoggedClient] = []

        def add(number: int, role: Any) -> None:
            name = f"t-{role[:3]}-{len(found)}"
            node, topic = node_name(rng.randrange(nodes)), number % load.topics
            found.append(LoggedClient(len(found), name, "t", role, topic, node, WRITER))

        for number in range(load.publishers):
            add(number, "publisher")
        for number in range(load.subscribers):
            add(number, "subscriber")
        return tuple(found)

    def record(self) -> None:
        """Run it and write it; raises `SimulationFailed`, or `RunRefused` for a name in use."""
        check_run(self._log, self.run)
        tables: tuple[Table, ...] = ("publishes", "deliveries", "hops", "links")
        writer = RowWriter(self._log, self.run, WRITER, tables)
        try:
            self._rows = _Rows(writer, self.run, self.topics)
            self.fabric.network.on_hop = self._rows.hop
            self._simulate()
            row = self._row(writer.close())
            write_table(self._log, "runs", self.run, WRITER, [row])
        except BaseException as error:
            writer.discard()
            remove_run(self._log, self.run)
            if isinstance(error, Exception) and not isinstance(error, IsthmusError):
                raise _failed(self.fabric.now_s, error) from error
            raise
        self.phase = "written"

    # ---- its course ----------------------------------------------------------------------

    def _simulate(self) -> None:
        fabric, shape = self.fabric, self.simulation.simulation
        self.phase = "linking nodes"
        for number in range(shape.nodes):
            fabric.node(node_name(number))
        for a, b in self.links:
            fabric.link(fabric.nodes[node_name(a)], fabric.nodes[node_name(b)])
        fabric.settle()
        self.phase = "connecting clients"
        for client in self.clients:
            self._connect(client)
        fabric.settle()
        self.phase = "publishing"
        self.started_s = begin_s = fabric.now_s
        end_s = begin_s + shape.duration_s
        self._window_ns = (_ns(begin_s), _ns(end_s))
        self._plan_faults(begin_s)
        self._plan_messages(begin_s)
        self.set_up = self._sample()
        at_s = begin_s
        while at_s < end_s:
            at_s = min(at_s + SAMPLE_S, end_s)
            fabric.engine.run_until(at_s)
            self._sample()
        self.phase = "waiting for what is under way"
        fabric.settle()
        self._sample()
        self.phase = "writing"

    def _connect(self, client: LoggedClient) -> None:
        self.playing[client.client] = played = self.fabric.nodes[client.node].client(client.name)
        if client.role == "subscriber":
            played.on_received = partial(self._rows.received, client.client)
            played.subscribe(self.topics[client.topic], qos=self.simulation.load.qos)

    def _plan_messages(self, begin_s: float) -> None:
        engine, load = self.fabric.engine, self.simulation.load
        rng = engine.random_for("messages")
        for client in self.clients:
            if client.role == "publisher":
                first_s = begin_s + rng.random() * load.interval_ms / 1000
                self._due(first_s, partial(self._publish, client, first_s, 0, 0))

    def _due(self, at_s: float, publish: Callable[[], None]) -> None:
        if _ns(at_s) < self._window_ns[1]:
            self.fabric.engine.call_at(at_s, publish)

    def _publish(self, client: LoggedClient, first_s: float, turn: int, message: int) -> None:
        load, topic = self.simulation.load, self.topics[client.topic]
        sent = _Sent(client.client, message, _ns(self.fabric.now_s))
        payload = self._rows.payload(sent, load.payload_bytes)
        if self.playing[client.client].publish(topic, payload, qos=load.qos):
            self._rows.published(sent, client.topic)
            message += 1
        else:
            self.missed += 1
        due_s = first_s + (turn + 1) * load.interval_ms / 1000
        self._due(due_s, partial(self._publish, client, first_s, turn + 1, message))

    def _plan_faults(self, begin_s: float) -> None:
        fabric = self.fabric
        for cut in self.simulation.cut:
            sides = [[fabric.nodes[name] for name in side] for side in (cut.source, cut.target)]
            pairs = [(a.name, b.name) for a in sides[0] for b in sides[1]]
            pairs += [] if cut.one_way else [(b, a) for a, b in pairs]
            begins = partial(fabric.partition, *sides, one_way=cut.one_way)
            fabric.engine.call_at(begin_s + cut.at_s, begins)
            fabric.engine.call_at(begin_s + cut.at_s + cut.for_s, partial(fabric.heal, pairs))
        for crash in self.simulation.crash:
            node = fabric.nodes[crash.node]
            fabric.engine.call_at(begin_s + crash.at_s, partial(fabric.crash, node))
            back_s = begin_s + crash.at_s + crash.for_s
            fabric.engine.call_at(back_s, partial(fabric.restart, node))

    def _sample(self) -> tuple[int, int]:
        """The counters of every end of a link; all control packets, and all bytes."""
        packets = sent_bytes = 0
        for node in self.fabric.nodes.values():
            if node.host is not None:
                for link in node.host.exchange.links:
                    seen = link.traffic()
                    self._rows.link(self.fabric.now_s, node.name, link.info.name, seen)
                    packets += seen.control_sent
                    sent_bytes += seen.control_sent_bytes + seen.data_sent_bytes
        return packets, sent_bytes

    # ---- its row -------------------------------------------------------------------------

    def _row(self, files: Iterable[LoggedFile]) -> dict[str, Any]:
        shape, (begin_ns, end_ns) = self.simulation.simulation, self._window_ns
        labels = {
            "simulator": "exact",
            "algorithm": self.simulation.cooperation.algorithm,
            "topology": shape.topology,
            "nodes": str(shape.nodes),
            "links": str(len(self.links)),
            "seed": str(shape.seed),
        }
        notes = []
        if self.missed:
            notes.append(f"{self.missed} messages were due while their publisher was cut off")
        return {
            "run": self.run,
            "schema_version": SCHEMA_VERSION,
            "scenario": f"{shape.topology}-{shape.nodes}",
            "scenario_json": self.simulation.model_dump_json(),
            "labels": list(labels.items()),
            "started_ns": begin_ns,
            "ended_ns": _ns(self.fabric.now_s),
            "window_start_ns": begin_ns,
            "window_end_ns": end_ns,
            "interval_ns": round(self.simulation.load.interval_ms * 1e6),
            "topics": list(self.topics),
            "clients": [asdict(client) for client in self.clients],
            "clocks": [{"writer": WRITER, "machine": "virtual", "offset_ns": 0, "error_ns": 0}],
            "files": [asdict(file) for file in files],
            "strays": [
                {"writer": WRITER, "reason": reason, "rows": rows}
                for reason, rows in self._rows.strays.items()
            ],
            "limited_by": "",
            "notes": notes,
        }


def _failed(at_s: float, error: Exception) -> SimulationFailed:
    """With the end of its traceback: it may be an algorithm of the user's own."""
    tail = "".join(traceback.format_exception(error, limit=-4)).rstrip()
    return SimulationFailed(at_s, str(error) or type(error).__name__, tail)
