"""One round: a fresh broker and node, both paths at saturation and at a fixed rate.

The paths take turns as A B B A, and the next round begins with the other one, so that a drift of
the machine touches both alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from benchmarks.relay.latency import OpenLoop, measure_latency
from benchmarks.relay.load import HERE, Load, Shape, clients_of, loopback
from benchmarks.relay.processes import (
    Process,
    cpu_ns,
    machine_busy_ns,
    running_broker,
    running_node,
)
from benchmarks.relay.saturation import ClosedLoop, saturate
from benchmarks.relay.statistics import QUIET_CORES, Run, Slice, pool

from isthmus.errors import LoadError

__all__ = ["PATHS", "Pace", "Plan", "Round", "measure_round"]

PATHS = ("direct", "node")
CORES = sorted(os.sched_getaffinity(0))  # before anything is pinned
Clocks = Callable[[], Mapping[str, int]]  # CPU time in ns by process


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run of the benchmark does."""

    rounds: int = 5
    starts: int = 7
    idle_clients: int = 5000
    shape: Shape = field(default_factory=Shape)
    closed: ClosedLoop = field(default_factory=ClosedLoop)
    lazy_nap_s: float = 0.004  # of the subscribers that do not wait for data
    open: OpenLoop = field(default_factory=OpenLoop)
    pin: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """Latency of one path in one round."""

    median_us: float
    p99_us: float
    max_us: float
    deliveries: int
    achieved_rate: float  # messages per second in
    others_cores: float

    @property
    def quiet(self) -> bool:
        """Whether nobody else disturbed."""
        return self.others_cores <= QUIET_CORES


@dataclass(frozen=True, slots=True)
class Round:
    """Both paths at saturation, with either kind of subscriber, and at a fixed rate."""

    order: str
    saturated: Mapping[str, Run]
    lazy: Mapping[str, Run]
    latency: Mapping[str, Pace]

    @property
    def rate_ratio(self) -> float:
        """Rate through the node over the direct rate."""
        return self.saturated["node"].rate / self.saturated["direct"].rate

    @property
    def lazy_rate_ratio(self) -> float:
        """The same with subscribers that are never woken up."""
        return self.lazy["node"].rate / self.lazy["direct"].rate

    def cpu_ratio(self, against: str) -> float:
        """Node's CPU per delivered message over Mosquitto's, through the node or direct."""
        node_us = self.saturated["node"].cpu_us_per_delivered["node"]
        return node_us / self.saturated[against].cpu_us_per_delivered["broker"]

    @property
    def added_median_ms(self) -> float:
        """What the node adds to the median latency."""
        return (self.latency["node"].median_us - self.latency["direct"].median_us) / 1000

    def line(self) -> str:
        """The round on one line."""
        direct, node = self.saturated["direct"], self.saturated["node"]
        return (
            f"direct {direct.rate:,.0f}/s, node {node.rate:,.0f}/s = {self.rate_ratio:.3f}, "
            f"lazy subscribers {self.lazy_rate_ratio:.3f};  "
            f"CPU µs: broker {direct.cpu_us_per_delivered['broker']:.2f} direct, "
            f"{node.cpu_us_per_delivered['broker']:.2f} behind node; "
            f"node {node.cpu_us_per_delivered['node']:.2f} = {self.cpu_ratio('node'):.3f}; "
            f"generator {direct.cpu_us_per_delivered['generator']:.2f}, "
            f"{node.cpu_us_per_delivered['generator']:.2f};  "
            f"added {self.added_median_ms * 1000:.0f} µs;  limit: {direct.limit}, {node.limit};  "
            f"quiet slices {direct.quiet_slices}/{direct.slices}, "
            f"{node.quiet_slices}/{node.slices}"
        )


def measure_round(plan: Plan, number: int) -> Round:
    """Round `number`, from 0: saturation with waiting and with lazy subscribers, then latency."""
    first, second = PATHS if number % 2 == 0 else PATHS[::-1]
    with running_broker() as broker, running_node(broker.port) as node:
        if plan.pin:
            _pin(broker, node)
        ports = {"direct": broker.port, "node": node.port}
        clocks = _clocks(broker, node)

        def abba(closed: ClosedLoop) -> dict[str, Run]:
            slices: dict[str, list[Slice]] = {path: [] for path in PATHS}
            for path in (first, second, second, first):
                with _load(ports[path]) as load:
                    slices[path] += saturate(load, closed, clocks)
            return {path: pool(slices[path]) for path in PATHS}

        waiting = abba(plan.closed)
        lazy = abba(replace(plan.closed, nap_s=plan.lazy_nap_s))
        latency = {path: _quietest_pace(plan, ports[path], clocks) for path in (first, second)}
    return Round(f"{first} {second} {second} {first}", waiting, lazy, latency)


def _load(port: int) -> Load:
    return Load(clients_of(), {HERE: loopback(port)})


def _quietest_pace(plan: Plan, port: int, clocks: Clocks) -> Pace:
    """Latency at the fixed rate, again if others disturbed, at most as patience allows."""
    best = _pace(plan, port, clocks)
    for _ in range(1, plan.closed.patience):
        if best.quiet:
            break
        best = min(best, _pace(plan, port, clocks), key=lambda pace: pace.others_cores)
    return best


def _pace(plan: Plan, port: int, clocks: Clocks) -> Pace:
    before, began = clocks(), time.perf_counter()
    with _load(port) as load:
        measured = measure_latency(load, plan.open)
    after, elapsed_s = clocks(), time.perf_counter() - began
    used = Slice(elapsed_s, 0, {name: after[name] - before[name] for name in after})
    ordered = measured.latencies_us
    return Pace(
        median_us=float(np.percentile(ordered, 50)),
        p99_us=float(np.percentile(ordered, 99)),
        max_us=float(ordered[-1]),
        deliveries=len(ordered),
        achieved_rate=measured.achieved_rate,
        others_cores=used.others_cores,
    )


def _clocks(broker: Process, node: Process) -> Clocks:
    def read() -> Mapping[str, int]:
        return {
            "broker": cpu_ns(broker.pid),
            "node": cpu_ns(node.pid),
            "generator": time.process_time_ns(),
            "machine": machine_busy_ns(),
        }

    return read


def _pin(broker: Process, node: Process) -> None:
    if len(CORES) < 2:
        raise LoadError("--pin needs two cores; this process may use only one")
    first, second = CORES[:2]
    for pid, core in ((broker.pid, first), (node.pid, second), (0, second)):
        os.sched_setaffinity(pid, {core})
