"""The same load directly and through a node, in one run: rate, CPU, latency, start, memory.

    python benchmarks/bench_relay.py [--rounds 5] [--quick] [--out FILE]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import parser_of, run
from benchmarks.relay.idle import Idle, measure_idle
from benchmarks.relay.load import connect
from benchmarks.relay.processes import raise_file_limit, running_broker, running_node
from benchmarks.relay.report import conclude, machine_facts
from benchmarks.relay.rounds import Plan, Round, measure_round
from benchmarks.relay.verdict import doubts, figures_of, round_document, targets_of

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from exec until the port accepted, and until the first CONNACK."""

    listens_s: float
    first_connack_s: float


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    plan = _plan(options)
    return run(
        "relay",
        120,
        lambda console: _bench(plan, options.out, options.page, console),
        check=options.check,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("relay", __doc__.splitlines()[0], "about 40 s", "relay-performance.md")
    parser.add_argument("--nap-us", type=float, help="pause of the generator between its turns")
    parser.add_argument("--idle-clients", type=int, help="default 5000")
    parser.add_argument(
        "--pin", action="store_true", help="broker on the first core, node and load on the second"
    )
    return parser.parse_args(arguments)


def _plan(options: argparse.Namespace) -> Plan:
    plan = Plan(pin=options.pin)
    if options.quick:
        plan = replace(
            plan,
            rounds=3,
            starts=5,
            closed=replace(plan.closed, warmup_s=0.2, slices=2, slice_s=0.3, patience=2),
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


def _bench(plan: Plan, out: Path, page: Path | None, console: Console) -> bool:
    machine = machine_facts(console)
    file_limit = raise_file_limit()
    gc.disable()  # a collection in the generator would be taken for a delay of the path
    began = time.perf_counter()
    starts = _starts(plan, console)
    rounds: list[Round] = []
    for number in range(plan.rounds):
        rounds.append(measure_round(plan, number))
        console.print(f"round {number + 1} of {plan.rounds}: {rounds[-1].line()}")
    idle = _idle(plan, file_limit, console)
    figures = figures_of(rounds)
    targets = targets_of(figures, [start.listens_s for start in starts], idle)
    parts = {
        "machine": machine,
        "plan": asdict(plan),
        "took_s": round(time.perf_counter() - began, 1),
        "doubts": doubts(rounds),
        "rounds": [round_document(one) for one in rounds],
        "starts": [asdict(start) for start in starts],
        "idle": None if idle is None else asdict(idle) | {"per_client": idle.bytes_per_client},
    }
    return conclude(console, out, parts, figures, targets, page=page)


def _starts(plan: Plan, console: Console) -> list[Start]:
    starts = []
    with running_broker() as broker:
        for _ in range(plan.starts):
            with running_node(broker.port) as node:
                listening = time.perf_counter()
                connect(node.port, 1)[0].close()
                connack_s = node.start_s + time.perf_counter() - listening
                starts.append(Start(node.start_s, connack_s))
    shown = " ".join(f"{start.listens_s:.3f}" for start in starts)
    console.print(f"start: listens after {shown} s")
    return starts


def _idle(plan: Plan, file_limit: int, console: Console) -> Idle | None:
    needed = 2 * plan.idle_clients + 100  # the node holds two sockets per client
    if file_limit < needed:
        console.print(
            f"idle clients not measured: {needed} open files are needed, {file_limit} are "
            f"allowed; raise the hard limit (ulimit -Hn {needed})"
        )
        return None
    with running_broker() as broker, running_node(broker.port) as node:
        idle = measure_idle(node, plan.idle_clients)
    looks = {
        "before": idle.before,
        f"{idle.clients} connected": idle.connected,
        "subscribed": idle.subscribed,
        "after": idle.after,
    }
    rss = ", ".join(f"{name} {used.rss_bytes / 2**20:.1f}" for name, used in looks.items())
    console.print(f"node RSS in MiB: {rss}; {idle.bytes_per_client:,.0f} B per client")
    return idle


if __name__ == "__main__":
    raise SystemExit(main())
