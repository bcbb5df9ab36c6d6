"""What is known of one run when :mod:`isthmus.bench.watch.bottleneck` judges it.

Comes from three sides: the coordinator's counts, what each load process said of itself, and the
watch's samples within the window.  What nobody could see is None or missing, never zero.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from isthmus.bench.watch.watch import MACHINE, WatchedTables
from isthmus.pipeline.count.samples import usage

__all__ = ["Counts", "Evidence", "Flow", "LoadUse", "ServerUse", "gather"]


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages of a run."""

    offered: int
    """What the schedule asked publishers to send."""
    sent: int
    expected: int
    """Deliveries that follow from `sent` and the subscriptions."""
    received: int
    held: int = 0
    """Publishers at once whose connection took no more; the most that any report told."""
    limit_ratio: float | None = None
    """Egress by ingress and sp-ratio within the window (Definition 1), where it is known."""


@dataclass(frozen=True, slots=True)
class LoadUse:
    """What a load process says of its own headroom."""

    cpu: float
    """Cores used in its busiest second."""
    late_ms_max: float = 0.0
    late_share: float = 0.0
    """Messages sent late through its own fault, of all."""
    stalled_share: float = 0.0
    """Of the run: it read and sent nothing because its own recording was behind."""


@dataclass(frozen=True, slots=True)
class ServerUse:
    """One server's processes within the window."""

    cpu_cores: dict[str, float]
    """By process: broker, node."""
    waited: dict[str, float] = field(default_factory=dict)
    """By process that has a CPU quota: seconds of each second that this kept it waiting, summed
    over its threads that would have run."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a client's connection, as the end that sends sees it."""

    client: str
    node: str
    rwnd_limited_share: float
    """Of the time: held back by the receiver's window."""
    retransmits: int = 0
    """Without those that the other end had already: a busy machine's late timers, no loss."""
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it."""

    counts: Counts
    load: Mapping[str, LoadUse] = field(default_factory=dict)
    """By writer."""
    machine_busy: float | None = None
    """Of all cores, within the window."""
    servers: Mapping[str, ServerUse] = field(default_factory=dict)
    """By node."""
    publishers: Sequence[Flow] = ()
    """Towards the servers: what these did to publishers."""
    subscribers: Sequence[Flow] = ()
    """From the servers: what subscribers did to these."""
    closed_windows: Sequence[str] = ()
    """Subscribers whose own receive window was seen closed."""
    pauses: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By link: messages that a full queue dropped."""
    notes: Sequence[str] = ()
    """What could not be seen."""


def gather(
    tables: WatchedTables | None,
    window_ns: tuple[int, int],
    *,
    duration_s: float,
    counts: Counts,
    headroom: Mapping[str, Mapping[str, float]],
    tcp: Iterable[Mapping[str, Any]],
    subscribers: Iterable[str],
) -> Evidence:
    """Evidence from the watch (None: nobody watched) and from the load processes' reports.

    `headroom` by writer and `tcp`, the entries of all load processes, are as these say them in
    ``measured``.  CPU is of the window, what TCP counted is of the whole run, `duration_s` long.
    `subscribers` names the clients that subscribe.
    """
    tables = tables or WatchedTables(notes=("nobody watched the servers",))
    machine, servers = _usage(tables.resources, window_ns)
    subscribing = set(subscribers)
    clients = list(tcp)
    return Evidence(
        counts=counts,
        load={
            writer: LoadUse(
                said["cpu"],
                said["late_ms_max"],
                said["late_share"],
                min(1.0, said.get("stalled_ms", 0.0) / 1e3 / duration_s),
            )
            for writer, said in headroom.items()
        },
        machine_busy=None if machine is None else min(1.0, machine / tables.cores),
        servers=servers,
        publishers=[
            _flow(entry["peer"], entry, duration_s)
            for entry in clients
            if entry["peer"] not in subscribing
        ],
        subscribers=[
            _flow(end.client, {**asdict(end.grown), "node": end.node}, duration_s)
            for end in tables.servers_ends
        ],
        closed_windows=[
            entry["peer"]
            for entry in clients
            if entry["peer"] in subscribing and entry.get("receive_window_min_bytes") == 0
        ],
        pauses=tables.pauses,
        dropped=tables.dropped,
        notes=tables.notes,
    )


def _flow(client: str, grown: Mapping[str, Any], duration_s: float) -> Flow:
    # Samples go on until the last message has arrived, which is after the run: at most all of it.
    limited_s = (grown["rwnd_limited_us"] or 0) / 1e6
    return Flow(
        client=client,
        node=grown["node"],
        rwnd_limited_share=min(1.0, limited_s / duration_s),
        retransmits=(grown["retransmits"] or 0) - (grown.get("duplicate_retransmits") or 0),
        segments=grown["segments_out"] or 0,
    )


def _usage(resources: Any, window_ns: tuple[int, int]) -> tuple[float | None, dict[str, ServerUse]]:
    """Cores that the machine used, None where nobody looked, and each server's use."""
    machine: float | None = None
    servers: dict[str, ServerUse] = {}
    # A window too short for two samples is judged by the whole run.
    whole = usage(resources, (0, sys.maxsize))
    for within, all_of_it in zip(usage(resources, window_ns), whole, strict=True):
        row = all_of_it if within["cpu_cores"] is None else within
        node, process, cores = row["node"], row["process"], row["cpu_cores"]
        if node and cores is not None:
            use = servers.setdefault(node, ServerUse({}, {}))
            use.cpu_cores[process] = cores
            if row["throttled_share"] is not None:
                use.waited[process] = row["throttled_share"]
        elif process == MACHINE:
            machine = cores
    return machine, servers
