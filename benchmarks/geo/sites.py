"""What is compared: a plain node and a gateway before one broker, gateways before one and four.

    relay     clients ── node ── broker                    [broker]
    gateway   clients ── node ── broker                    [[broker]], in charge of all cells
    one       clients ── node ── slow broker
    four      clients ── node ┬─ slow broker  0
                              ├─ slow broker  1
                              ├─ slow broker  2
                              └─ slow broker  3

A slow broker is an emulated server: Mosquitto with a quota of CPU, small enough that four of them
together take less than the node and the load are able to give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.relay.processes import Process, configured_node, node_file, running_broker

from isthmus.bench.rig.cgroups import CpuQuotas, clear_abandoned, find_hierarchy
from isthmus.processes.ports import free_port

__all__ = ["Paths", "gateway_file", "slow_paths", "unlimited_paths"]

PERIOD_S = 0.02
QUARTERS = ("0", "1", "2", "3")


@dataclass(frozen=True, slots=True)
class Paths:
    """Where clients connect on each path, and the processes that are of any."""

    ports: Mapping[str, int]
    pids: Mapping[str, Mapping[str, int]]
    """Of each path."""


def gateway_file(node_id: str, brokers: Sequence[Process], mqtt: int) -> str:
    """A gateway before `brokers`, among whom the four quarters are divided."""
    names = [f"b{at}" for at in range(len(brokers))]
    cells = {
        name: [each for at, each in enumerate(QUARTERS) if at % len(names) == number]
        for number, name in enumerate(names)
    }
    lines = [node_file(node_id, 0, mqtt=mqtt).replace(_ONE_BROKER, "")]
    for name, broker in zip(names, brokers, strict=True):
        lines.append(f'[[broker]]\nname = "{name}"\nurl = "mqtt://127.0.0.1:{broker.port}"')
    lines.append('[cooperation]\nalgorithm = "geo"\nk = 2\n[cooperation.cells]')
    lines += [f"{name} = {theirs!r}" for name, theirs in cells.items()]
    return "\n".join(lines) + "\n"


_ONE_BROKER = '[broker]\nurl = "mqtt://127.0.0.1:0"\n'


@contextmanager
def _gateway(name: str, brokers: Sequence[Process]) -> Iterator[Process]:
    port = free_port()
    with configured_node(gateway_file(name, brokers, port), port) as node:
        yield node


@contextmanager
def unlimited_paths() -> Iterator[Paths]:
    """`relay` and `gateway`, before the same broker."""
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker())
        port = free_port()
        relay = stack.enter_context(
            configured_node(node_file("relay", broker.port, mqtt=port), port)
        )
        gateway = stack.enter_context(_gateway("gateway", [broker]))
        yield Paths(
            {"relay": port, "gateway": gateway.port},
            {
                "relay": {"broker": broker.pid, "node": relay.pid},
                "gateway": {"broker": broker.pid, "node": gateway.pid},
            },
        )


@contextmanager
def slow_paths(cpu: float) -> Iterator[Paths]:
    """`direct`, at the first broker, `one` and `four`; brokers of `cpu` cores each.

    Raises `QuotaUnavailable` where that cannot be had.
    """
    with ExitStack() as stack:
        hierarchy = find_hierarchy()
        clear_abandoned(hierarchy)
        quotas = stack.enter_context(CpuQuotas(hierarchy, cpu=cpu, period_s=PERIOD_S))
        brokers = [stack.enter_context(running_broker()) for _ in QUARTERS]
        one = stack.enter_context(_gateway("one", brokers[:1]))
        four = stack.enter_context(_gateway("four", brokers))
        for number, broker in enumerate(brokers):
            quotas.place(f"b{number}", {"broker": lambda pid=broker.pid: [pid]})  # type: ignore[misc]
        yield Paths(
            {"direct": brokers[0].port, "one": one.port, "four": four.port},
            {
                "direct": {"broker": brokers[0].pid},
                "one": {"broker": brokers[0].pid, "node": one.pid},
                "four": {
                    **{f"broker {number}": each.pid for number, each in enumerate(brokers)},
                    "node": four.pid,
                },
            },
        )
