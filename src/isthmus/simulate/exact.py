"""A run of the exact simulator, recorded in the one log.

    fabric, clients ──▶ publishes, hops, deliveries, counters of links ──▶ row groups ──▶ `runs`

Everything up to the first message is set-up: nodes are linked, clients are connected, and it is
waited until the fabric is at rest.  Then publishers send for `duration_s`, which is the run's
window but for what a scenario cuts off at both ends, and it is waited once more, so that what is
under way arrives.  Counters of links are read
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
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from isthmus.bench.coordinator.faults import MadeFault
from isthmus.config.faults import Crash, Cut
from isthmus.cooperation.api import LinkTraffic
from isthmus.errors import IsthmusError, LogError, SimulationFailed
from isthmus.pipeline.log.payload import LAYOUT, MAGIC, SIZE, run_tag
from isthmus.pipeline.log.reading import LoggedClient, LoggedFile
from isthmus.pipeline.log.run_files import check_run, remove_run
from isthmus.pipeline.log.schema import SCHEMA_VERSION, Table
from isthmus.pipeline.log.writing import RowWriter, write_table
from isthmus.sim.client import Received, SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.host import EPOCH_MS
from isthmus.sim.network import DatagramSettings, HopRecord
from isthmus.simulate.plan import WRITER, Plan

__all__ = ["ExactRun"]

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

    def __init__(self, plan: Plan, log: Path, run: str, *, remembers: bool = False) -> None:
        """Nothing is written yet."""
        self.plan = plan
        self.run = run
        self.phase = "waiting"
        """What it is doing, for whoever watches from another thread."""
        self.started_s: float | None = None
        """When the first message was due, on the virtual clock."""
        self.missed = 0
        """Messages that were due while their publisher was not connected."""
        self.faults: list[MadeFault] = []
        """In the order in which they began."""
        self.set_up = (0, 0)
        """Control packets on all links before the first message, and all bytes until then."""
        self._log = log
        self._cuts: Counter[tuple[str, str]] = Counter()
        """How many cuts keep somebody from sending to another now."""
        self.fabric = SimFabric(
            seed=plan.seed,
            algorithm=plan.algorithm,
            options=plan.options,
            link=plan.link,
            wire=plan.wire,
            settle_s=plan.settle_s,
            discovery=plan.discovery,
            datagrams=DatagramSettings(loss=plan.datagram_loss),
            remembers=remembers,
            confirm=plan.confirm,
            routes_retained=plan.routes_retained,
        )
        self.fabric.engine.max_events = float("inf")
        for (source, target), wire in plan.ways.items():
            self.fabric.network.set_way(source, target, wire)
        self.playing: dict[int, SimClient] = {}
        """The simulator's clients by their number in the log."""

    def record(self) -> None:
        """Run it and write it.

        Raises `SimulationFailed`, `RunRefused` for a name in use, or `LogError` if the log cannot
        be written.
        """
        check_run(self._log, self.run)
        tables: tuple[Table, ...] = ("publishes", "deliveries", "hops", "links")
        writer: RowWriter | None = None
        try:
            writer = RowWriter(self._log, self.run, WRITER, tables)
            self._rows = _Rows(writer, self.run, self.plan.topics)
            self.fabric.network.on_hop = self._rows.hop
            self._simulate()
            row = self._row(writer.close())
            write_table(self._log, "runs", self.run, WRITER, [row])
        except BaseException as error:
            if writer is not None:
                writer.discard()
            remove_run(self._log, self.run)
            if isinstance(error, OSError):
                raise LogError(self._log, f"cannot be written: {error}") from error
            if isinstance(error, Exception) and not isinstance(error, IsthmusError):
                raise _failed(self.fabric.now_s, error) from error
            raise
        self.phase = "written"

    # ---- its course ----------------------------------------------------------------------

    def _simulate(self) -> None:
        fabric, plan = self.fabric, self.plan
        self.phase = "linking nodes"
        for name in plan.nodes:
            fabric.node(
                name, from_broker=name in plan.from_broker, interest=plan.interest.get(name, ())
            )
        for a, b in plan.links:
            fabric.link(fabric.nodes[a], fabric.nodes[b])
        fabric.settle()
        self.phase = "connecting clients"
        for client in plan.clients:
            self._connect(client)
        fabric.settle()
        self.phase = "publishing"
        self.started_s = begin_s = fabric.now_s
        end_s = begin_s + plan.duration_s
        self._end_ns = _ns(end_s)
        self._window_ns = (_ns(begin_s + plan.trim_s), _ns(end_s - plan.trim_s))
        faults: list[Cut | Crash] = [*plan.cut, *plan.crash]
        for fault in faults:
            fabric.engine.call_at(begin_s + fault.at_s, partial(self._begin, fault, begin_s))
        for client in plan.clients:
            if client.role == "publisher":
                self._due(client, 0, 0)
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
        plan, qos = self.plan, self.plan.messages[client.kind].qos
        options = dict(plan.client_options)
        if qos and client.node in plan.returning:
            options |= {"clean_start": False, "repeats_qos1": True}
        node = self.fabric.nodes[client.node]
        self.playing[client.client] = played = node.client(client.name, **options)
        if client.role == "subscriber":
            played.on_received = partial(self._rows.received, client.client)
            played.subscribe(plan.topics[client.topic], qos=qos)

    def _due(self, client: LoggedClient, turn: int, message: int) -> None:
        """Have the publisher send when its `turn` comes, unless that is after the end."""
        assert self.started_s is not None
        interval_ns = self.plan.messages[client.kind].interval_ns
        at_s = self.started_s + (self.plan.first_ns[client.client] + turn * interval_ns) / 1e9
        if _ns(at_s) < self._end_ns:
            self.fabric.engine.call_at(at_s, partial(self._publish, client, turn, message))

    def _publish(self, client: LoggedClient, turn: int, message: int) -> None:
        load, topic = self.plan.messages[client.kind], self.plan.topics[client.topic]
        sent = _Sent(client.client, message, _ns(self.fabric.now_s))
        payload = self._rows.payload(sent, load.payload_bytes)
        if self.playing[client.client].publish(topic, payload, qos=load.qos):
            self._rows.published(sent, client.topic)
            message += 1
        else:
            self.missed += 1
        self._due(client, turn + 1, message)

    def _begin(self, fault: Cut | Crash, begin_s: float) -> None:
        fabric, number = self.fabric, len(self.faults)
        if isinstance(fault, Crash):
            fabric.crash(fabric.nodes[fault.node])
        else:
            self._cuts.update(fault.ways)
            sides = [[fabric.nodes[name] for name in side] for side in (fault.source, fault.target)]
            fabric.partition(*sides, one_way=fault.one_way)
        self.faults.append(MadeFault(fault, _ns(fabric.now_s)))
        fabric.engine.call_at(begin_s + fault.end_s, partial(self._over, number))

    def _over(self, number: int) -> None:
        fabric, made = self.fabric, self.faults[number]
        now_ns = _ns(fabric.now_s)
        if isinstance(made.fault, Crash):
            fabric.restart(fabric.nodes[made.fault.node])
            self.faults[number] = replace(made, ended_ns=now_ns, ready_ns=now_ns)
            return
        self._cuts.subtract(made.fault.ways)
        fabric.heal([way for way in made.fault.ways if not self._cuts[way]])
        self.faults[number] = replace(made, ended_ns=now_ns)

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
        plan = self.plan
        assert self.started_s is not None
        started_ns = _ns(self.started_s)
        notes = [fault.in_words(started_ns) for fault in self.faults]
        if self.missed:
            notes.append(f"{self.missed} messages were due while their publisher was cut off")
        return {
            "run": self.run,
            "schema_version": SCHEMA_VERSION,
            "scenario": plan.name,
            "scenario_json": plan.source_json,
            "labels": list(plan.labels.items()),
            "started_ns": started_ns,
            "ended_ns": _ns(self.fabric.now_s),
            "window_start_ns": self._window_ns[0],
            "window_end_ns": self._window_ns[1],
            "interval_ns": plan.messages["t"].interval_ns,
            "topics": list(plan.topics),
            "clients": [asdict(client) for client in plan.clients],
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
