"""A closed loop at QoS 1: directly, through a node that may rest, and through one that never does.

    python benchmarks/bench_closed_loop.py [--rounds 5] [--quick] [--out FILE]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import parser_of, run
from benchmarks.relay.load import connect
from benchmarks.relay.processes import (
    Process,
    cpu_ns,
    machine_busy_ns,
    running_broker,
    running_node,
)
from benchmarks.relay.report import conclude, machine_facts
from benchmarks.relay.statistics import Run, Slice, Target, pool, slices_of, spread
from benchmarks.relay.verdict import Figure

from isthmus.errors import LoadError

__all__ = ["Load", "Publisher", "main"]

PATHS = ("direct", "never rests", "default")
IDS = 1000  # packet identifiers in turn; many more than may be in flight
STALLED_S = 10.0
NEVER_SLOWER = 0.95  # of the rate without resting: the spread of two equal paths is wider


@dataclass(frozen=True, slots=True)
class Load:
    """Who publishes, and for how long."""

    publishers: int = 20
    in_flight: int = 20
    warmup_s: float = 1.0
    slices: int = 4
    slice_s: float = 0.5
    patience: int = 3  # at most so many times `slices` when other processes disturb
    rounds: int = 5


class Publisher:
    """Keeps `in_flight` messages at QoS 1 unacknowledged; counts PUBACKs by their bytes."""

    def __init__(self, sock: socket.socket, number: int, in_flight: int) -> None:
        self.sock = sock
        topic = b"loop/%02d" % number
        body = len(topic).to_bytes(2, "big") + topic
        frames = [
            bytes((0x32, len(body) + 2 + 32)) + body + packet_id.to_bytes(2, "big") + bytes(32)
            for packet_id in range(1, IDS + 1)
        ]
        self._size = len(frames[0])
        self._frames = memoryview(b"".join(frames) * 2)
        self._at = 0
        self._rest = 0
        self._in_flight = in_flight

    def begin(self) -> None:
        self._send(self._in_flight)

    def turn(self) -> int:
        """Read what has come and send as many anew; the messages acknowledged."""
        data = self.sock.recv(65_536)
        if not data:
            raise LoadError("a publisher's connection was closed under load")
        if self._rest == 0 and data[0] != 0x40:
            raise LoadError(f"PUBACK expected, got {data[:4].hex(' ')}")
        count, self._rest = divmod(self._rest + len(data), 4)
        self._send(count)
        return count

    def _send(self, count: int) -> None:
        if count:
            size = self._size
            self.sock.sendall(self._frames[self._at * size : (self._at + count) * size])
            self._at = (self._at + count) % IDS


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    load = Load()
    if options.quick:
        load = replace(load, rounds=3, slices=2)
    if options.rounds is not None:
        load = replace(load, rounds=options.rounds)
    return run(
        "closed-loop", 120, lambda console: _bench(load, options.out, console), check=options.check
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    return parser_of("closed_loop", __doc__.splitlines()[0], "about 30 s").parse_args(arguments)


def _bench(load: Load, out: Path, console: Console) -> bool:
    machine = machine_facts(console)
    rounds = []
    for number in range(load.rounds):
        rounds.append(_round(load, number))
        shown = ", ".join(f"{path} {one.rate:,.0f}/s" for path, one in rounds[-1].items())
        console.print(f"round {number + 1} of {load.rounds}: {shown}")
    figures = _figures(rounds)
    ratio = figures["default / never rests"].spread.median
    targets = [
        Target(
            "closed loop, default against never resting", "x", ratio, NEVER_SLOWER, at_least=True
        )
    ]
    parts: dict[str, Any] = {
        "machine": machine,
        "plan": asdict(load),
        "rounds": [{path: asdict(one) for path, one in each.items()} for each in rounds],
    }
    return conclude(console, out, parts, figures, targets)


def _figures(rounds: Sequence[Mapping[str, Run]]) -> dict[str, Figure]:
    quiet = [each for each in rounds if all(run.quiet_slices for run in each.values())]
    used = quiet or rounds
    found: dict[str, Figure] = {}

    def add(name: str, unit: str, values: list[float]) -> None:
        found[name] = Figure(unit, len(used), spread(values))

    for path in PATHS:
        add(f"rate, {path}", "msg/s", [each[path].rate for each in used])
    for path in PATHS[1:]:
        cpu = [each[path].cpu_us_per_delivered[path] for each in used]
        add(f"node's CPU, {path}", "µs/message", cpu)
    for path, other in (
        ("default", "never rests"),
        ("default", "direct"),
        ("never rests", "direct"),
    ):
        add(f"{path} / {other}", "x", [each[path].rate / each[other].rate for each in used])
    return found


def _round(load: Load, number: int) -> dict[str, Run]:
    """Each path twice, there and back; the next round begins with the next path."""
    first = number % len(PATHS)
    order = PATHS[first:] + PATHS[:first]
    slices: dict[str, list[Slice]] = {path: [] for path in PATHS}
    with (
        running_broker() as broker,
        running_node(broker.port, "[limits]\nrest_s = 0.0") as never,
        running_node(broker.port) as default,
    ):
        processes = {"broker": broker, "never rests": never, "default": default}
        ports = {"direct": broker.port, "never rests": never.port, "default": default.port}
        for path in order + order[::-1]:
            slices[path] += _measure(load, ports[path], processes)
    return {path: pool(found) for path, found in slices.items()}


def _measure(load: Load, port: int, processes: Mapping[str, Process]) -> list[Slice]:
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        publishers = {}
        for number, sock in enumerate(connect(port, load.publishers)):
            stack.enter_context(sock).setblocking(True)
            publishers[sock.fileno()] = Publisher(sock, number, load.in_flight)
            poll.register(sock.fileno(), select.EPOLLIN)
        for publisher in publishers.values():
            publisher.begin()
        count = 0

        def push_until(end: float) -> int:
            nonlocal count
            last_s = time.perf_counter()
            while (now := time.perf_counter()) < end:
                ready = poll.poll(0.05)
                if ready:
                    last_s = now
                elif now - last_s > STALLED_S:
                    raise LoadError(f"no acknowledgment for {STALLED_S:.0f} s")
                for fd, _ in ready:
                    count += publishers[fd].turn()
            return count

        def clocks() -> dict[str, int]:
            used = {name: cpu_ns(process.pid) for name, process in processes.items()}
            return used | {"generator": time.process_time_ns(), "machine": machine_busy_ns()}

        push_until(time.perf_counter() + load.warmup_s)
        return slices_of(push_until, clocks, load.slices, load.slice_s, load.patience)


if __name__ == "__main__":
    raise SystemExit(main())
