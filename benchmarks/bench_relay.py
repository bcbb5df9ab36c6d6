"""The same load directly and through a node, in one run: rate, CPU, latency, start, memory.

    python benchmarks/bench_relay.py [--rounds 5] [--quick] [--out FILE]

Each round starts a fresh Mosquitto and a fresh node and measures direct, node, node, direct (the
next round the other way round), so that a drift of the machine cancels out.  What is measured and
how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.relay.clients import LoadError, connect_clients, disconnect
from benchmarks.relay.idle import Idle, measure_idle
from benchmarks.relay.latency import OpenLoop, measure_latency
from benchmarks.relay.population import Shape, populate
from benchmarks.relay.processes import (
    Process,
    cpu_ns,
    machine_busy_ns,
    raise_file_limit,
    running_broker,
    running_node,
)
from benchmarks.relay.report import document_of, machine_facts, print_report, write_json
from benchmarks.relay.saturation import ClosedLoop, saturate
from benchmarks.relay.statistics import Run, Slice, Spread, Target, percentile, pool, spread

from isthmus.errors import IsthmusError

__all__ = ["main"]

TIMES = "x"
PATHS = ("direct", "node")
DEFAULT_OUT = Path(__file__).parent / "results" / "relay.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run of the benchmark does."""

    rounds: int = 5
    starts: int = 7
    idle_clients: int = 5000
    shape: Shape = field(default_factory=Shape)
    closed: ClosedLoop = field(default_factory=ClosedLoop)
    open: OpenLoop = field(default_factory=OpenLoop)
    pin: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """Latency of one path in one round, in µs."""

    median_us: float
    p99_us: float
    max_us: float
    deliveries: int
    achieved_rate: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round: both paths at saturation and at the fixed rate."""

    order: str
    saturated: Mapping[str, Run]
    latency: Mapping[str, Pace]

    @property
    def rate_ratio(self) -> float:
        """Rate through the node over the direct rate."""
        return self.saturated["node"].rate / self.saturated["direct"].rate

    def cpu_ratio(self, against: str) -> float:
        """Node's CPU per delivered message over Mosquitto's, through the node or direct."""
        node_us = self.saturated["node"].cpu_us_per_delivered["node"]
        return node_us / self.saturated[against].cpu_us_per_delivered["broker"]

    @property
    def added_median_ms(self) -> float:
        """What the node adds to the median latency."""
        return (self.latency["node"].median_us - self.latency["direct"].median_us) / 1000


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from exec until the port accepted, and until the first CONNACK."""

    listens_s: float
    first_connack_s: float


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, _interrupt)  # so that everything started is stopped too
    try:
        met = _bench(_plan(options), options.out, console)
    except (LoadError, IsthmusError) as error:
        console.print(f"bench-relay failed: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; nothing was written")
        return 130
    return 0 if met or not options.check else 1


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_relay", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="at least 3; default 5, with --quick 3")
    parser.add_argument("--quick", action="store_true", help="about 30 s, for a first look")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--window", type=int, help="outstanding messages in the closed loop")
    parser.add_argument("--batch", type=int, help="messages per send in the closed loop")
    parser.add_argument("--nap-us", type=float, help="pause of the generator between its turns")
    parser.add_argument("--idle-clients", type=int, help="default 5000")
    parser.add_argument(
        "--pin", action="store_true", help="broker on the first core, node and load on the second"
    )
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 3:
        parser.error("--rounds must be at least 3")
    return options


def _plan(options: argparse.Namespace) -> Plan:
    plan = Plan(pin=options.pin)
    if options.quick:
        plan = replace(
            plan,
            rounds=3,
            starts=5,
            closed=replace(plan.closed, warmup_s=0.3, slices=2, slice_s=0.4),
            open=replace(plan.open, warmup_s=0.2, measure_s=1.0),
        )
    closed = {
        "window": options.window,
        "batch": options.batch,
        "nap_s": None if options.nap_us is None else options.nap_us / 1e6,
    }
    closed = {key: value for key, value in closed.items() if value is not None}
    plan = replace(plan, closed=replace(plan.closed, **closed))
    top = {"rounds": options.rounds, "idle_clients": options.idle_clients}
    return replace(plan, **{key: value for key, value in top.items() if value is not None})


def _bench(plan: Plan, out: Path, console: Console) -> bool:
    machine = machine_facts()
    console.print("  ".join(f"{key} {value}" for key, value in machine.items()))
    file_limit = raise_file_limit()
    gc.disable()  # a collection in the generator would be taken for a delay of the path
    began = time.perf_counter()
    starts = _starts(plan, console)
    rounds = [_round(plan, number, console) for number in range(plan.rounds)]
    idle = _idle(plan, file_limit, console)
    figures = _figures(rounds)
    targets = _targets(figures, starts, idle)
    parts = {
        "machine": machine,
        "plan": asdict(plan),
        "took_s": round(time.perf_counter() - began, 1),
        "rounds": [_round_as_dict(one) for one in rounds],
        "summary": {
            name: asdict(figure) | {"unit": unit} for name, (figure, unit) in figures.items()
        },
        "starts": [asdict(start) for start in starts],
        "idle": None if idle is None else asdict(idle) | {"per_client": idle.bytes_per_client},
    }
    write_json(document_of(parts, targets), out)
    print_report(console, figures, targets)
    _warn(rounds, console)
    console.print(f"written to {out}")
    return all(target.met for target in targets)


def _starts(plan: Plan, console: Console) -> list[Start]:
    starts = []
    with running_broker() as broker:
        for _ in range(plan.starts):
            with running_node(broker.port) as node:
                listening = time.perf_counter()
                disconnect(connect_clients(node.port, ["first"]))
                connack_s = node.start_s + time.perf_counter() - listening
                starts.append(Start(node.start_s, connack_s))
    shown = " ".join(f"{start.listens_s:.3f}" for start in starts)
    console.print(f"start: listens after {shown} s")
    return starts


def _round(plan: Plan, number: int, console: Console) -> Round:
    """A fresh broker and node; A B B A at saturation, then A B at the fixed rate."""
    first, second = PATHS if number % 2 == 0 else PATHS[::-1]
    slices: dict[str, list[Slice]] = {path: [] for path in PATHS}
    latency: dict[str, Pace] = {}
    with running_broker() as broker, running_node(broker.port) as node:
        if plan.pin:
            _pin(broker, node)
        ports = {"direct": broker.port, "node": node.port}
        clocks = _clocks(broker, node)
        for part, path in enumerate((first, second, second, first)):
            with populate(ports[path], plan.shape, f"{path}{part}") as population:
                slices[path] += saturate(population, plan.closed, clocks)
        for path in (first, second):
            with populate(ports[path], plan.shape, f"{path}-pace") as population:
                measured = measure_latency(population, plan.open)
            ordered = [ns / 1000 for ns in measured.latencies_ns]
            latency[path] = Pace(
                percentile(ordered, 50),
                percentile(ordered, 99),
                ordered[-1],
                len(ordered),
                measured.achieved_rate,
            )
    saturated = {path: pool(slices[path]) for path in PATHS}
    done = Round(f"{first} {second} {second} {first}", saturated, latency)
    console.print(f"round {number + 1} of {plan.rounds}: {_round_line(done)}")
    return done


def _round_line(done: Round) -> str:
    direct, node = done.saturated["direct"], done.saturated["node"]
    return (
        f"direct {direct.rate:,.0f}/s, node {node.rate:,.0f}/s = {done.rate_ratio:.3f};  "
        f"CPU µs: broker {direct.cpu_us_per_delivered['broker']:.2f} direct, "
        f"{node.cpu_us_per_delivered['broker']:.2f} behind node; "
        f"node {node.cpu_us_per_delivered['node']:.2f} = {done.cpu_ratio('node'):.3f}; "
        f"generator {direct.cpu_us_per_delivered['generator']:.2f}, "
        f"{node.cpu_us_per_delivered['generator']:.2f};  "
        f"added {done.added_median_ms * 1000:.0f} µs;  limit: {direct.limit}, {node.limit};  "
        f"quiet slices {direct.quiet_slices}/{direct.slices}, {node.quiet_slices}/{node.slices}"
    )


def _clocks(broker: Process, node: Process) -> Callable[[], Mapping[str, int]]:
    def read() -> Mapping[str, int]:
        return {
            "broker": cpu_ns(broker.pid),
            "node": cpu_ns(node.pid),
            "generator": time.process_time_ns(),
            "machine": machine_busy_ns(),
        }

    return read


def _pin(broker: Process, node: Process) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    for pid, core in ((broker.pid, first), (node.pid, second), (0, second)):
        os.sched_setaffinity(pid, {core})


def _idle(plan: Plan, file_limit: int, console: Console) -> Idle | None:
    needed = 2 * plan.idle_clients + 100  # the node holds two sockets per client
    if file_limit < needed:
        console.print(
            f"idle clients not measured: {file_limit} open files allowed, {needed} needed"
        )
        return None
    with running_broker() as broker, running_node(broker.port) as node:
        idle = measure_idle(node, plan.idle_clients)
    rss = [
        f"{name} {used.rss_bytes / 2**20:.1f}"
        for name, used in (
            ("before", idle.before),
            (f"{idle.clients} connected", idle.connected),
            ("subscribed", idle.subscribed),
            ("after", idle.after),
        )
    ]
    console.print(f"node RSS in MiB: {', '.join(rss)}; {idle.bytes_per_client:,.0f} B per client")
    return idle


def _figures(rounds: list[Round]) -> dict[str, tuple[Spread, str]]:
    """Median and spread over the rounds of all that the rounds measured."""
    read: dict[str, tuple[Callable[[Round], float], str]] = {
        "rate direct": (lambda r: r.saturated["direct"].rate, "msg/s"),
        "rate through node": (lambda r: r.saturated["node"].rate, "msg/s"),
        "rate ratio": (lambda r: r.rate_ratio, TIMES),
    }
    for path in PATHS:
        for name in (
            ("broker", "generator") if path == "direct" else ("broker", "node", "generator")
        ):

            def cpu(r: Round, path: str = path, name: str = name) -> float:
                return r.saturated[path].cpu_us_per_delivered[name]

            read[f"CPU {name}, {path}"] = (cpu, "µs/delivered")
    read["node CPU / broker CPU, same run"] = (lambda r: r.cpu_ratio("node"), TIMES)
    read["node CPU / broker CPU, direct"] = (lambda r: r.cpu_ratio("direct"), TIMES)
    for path in PATHS:

        def median(r: Round, path: str = path) -> float:
            return r.latency[path].median_us / 1000

        def p99(r: Round, path: str = path) -> float:
            return r.latency[path].p99_us / 1000

        read[f"latency median, {path}"] = (median, "ms")
        read[f"latency p99, {path}"] = (p99, "ms")
    read["added median latency"] = (lambda r: r.added_median_ms, "ms")
    return {
        name: (spread([figure(one) for one in rounds]), unit)
        for name, (figure, unit) in read.items()
    }


def _targets(
    figures: Mapping[str, tuple[Spread, str]], starts: list[Start], idle: Idle | None
) -> list[Target]:
    against_direct = figures["node CPU / broker CPU, direct"][0].median
    slowest = max(start.listens_s for start in starts)
    median_s = spread([start.listens_s for start in starts]).median
    rss_mib = None if idle is None else idle.connected.rss_bytes / 2**20
    clients = "5000" if idle is None else str(idle.clients)
    return [
        Target("highest rate, node / direct", TIMES, figures["rate ratio"][0].median, 0.95, True),
        Target(
            "CPU per delivered, node / Mosquitto",
            TIMES,
            figures["node CPU / broker CPU, same run"][0].median,
            0.6,
            note=f"{against_direct:.3f} against the direct run's Mosquitto",
        ),
        Target("listens after", "s", slowest, 1.0, note=f"slowest; median {median_s:.3f} s"),
        Target("added median latency", "ms", figures["added median latency"][0].median, 0.3),
        Target(
            f"RSS with {clients} idle clients",
            "MiB",
            rss_mib,
            80.0,
            note="" if idle is None else f"{idle.bytes_per_client:,.0f} B per client",
        ),
    ]


def _round_as_dict(done: Round) -> dict[str, Any]:
    limits = {path: run.limit for path, run in done.saturated.items()}
    ratios = {
        "rate_ratio": done.rate_ratio,
        "cpu_ratio_same_run": done.cpu_ratio("node"),
        "cpu_ratio_direct": done.cpu_ratio("direct"),
        "added_median_ms": done.added_median_ms,
    }
    return asdict(done) | {"limit": limits, "lost": 0} | ratios


def _warn(rounds: list[Round], console: Console) -> None:
    """Say what makes the figures doubtful."""
    runs = [run for one in rounds for run in one.saturated.values()]
    if any("generator" in run.limit for run in runs):
        console.print("[yellow]the load generator was at its limit: rates are lower bounds[/]")
    noisy = sum(not run.quiet_slices for run in runs)
    if noisy:
        console.print(
            f"[yellow]other processes disturbed {noisy} of {len(runs)} runs throughout[/]"
        )


if __name__ == "__main__":
    raise SystemExit(main())
