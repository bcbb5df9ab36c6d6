"""kill -9 of nodes and brokers in a running fabric under QoS 1 load; what is promised is asserted.

    source ── hub ── relay ── sink        SF, a Mosquitto with persistence behind each
               │
              side

Publishers at `source` and `side`; persistent subscribers at `sink`, `side`, `hub` and `source`.
One process after the other is killed and started again, as a supervisor would.  For every fault
the account says what was published and acknowledged around it, what is missing where, what came
twice, and how long it took until messages passed again.

What is promised stands in docs/explanation/guarantees.md.  The figures there are those of
docs/explanation/kill.json, which `make kill` writes: the slow test here records where the variable
``KILL_RECORD`` says.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.fabrics import NodeFabric
from support.recording import recorded
from support.steady_load import WINDOW, LoadPublisher, LoadSubscriber

LINKS = [("source", "hub"), ("relay", "hub"), ("sink", "relay"), ("side", "hub")]
RATE_PER_S = 50.0
CALM_S = 1.0
DOWN_S = 0.5
DRAIN_S = 40.0
CONFIRMED_WINDOW = 2_000
"""Acknowledgments of all brokers take seconds while a node is young."""
QUIET_S = 8.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is killed: a node, or the broker behind it; a node can also be stopped in order."""

    what: str
    name: str
    role: str

    def __str__(self) -> str:
        return f"{self.what} {self.name} ({self.role})"


TRANSIT = Fault("node", "relay", "transit")
HUB = Fault("node", "hub", "transit")
EGRESS = Fault("node", "sink", "egress")
INGRESS = Fault("node", "source", "ingress")
EGRESS_BROKER = Fault("broker", "sink", "egress")
INGRESS_BROKER = Fault("broker", "source", "ingress")
STOPPED_TRANSIT = Fault("stopped", "relay", "transit")
STOPPED_EGRESS = Fault("stopped", "sink", "egress")
EVERY = [TRANSIT, HUB, EGRESS, INGRESS, EGRESS_BROKER, INGRESS_BROKER]
PLANNED = [STOPPED_TRANSIT, STOPPED_EGRESS]


@dataclass(frozen=True, slots=True)
class Struck:
    fault: Fault
    killed_s: float
    back_s: float


@dataclass(slots=True)
class Account:
    """What one fault did; deliveries are counted for each message and subscriber."""

    fault: str
    acknowledged: int = 0
    """Messages that their publisher had acknowledged."""
    expected: int = 0
    lost: int = 0
    lost_on: dict[str, int] = field(default_factory=dict)
    lost_published_s: tuple[float, float] | None = None
    """When the first and the last of them were published, seconds after the kill."""
    duplicated: int = 0
    duplicated_by_publisher: int = 0
    """Those whose publisher had itself sent them twice, which MQTT allows."""
    down_s: float = 0.0
    recovery_s: float = 0.0
    """From the kill until every subscriber had something that was published after the restart."""


class Load:
    """The clients of one run."""

    def __init__(self, fabric: NodeFabric, window: int) -> None:
        self.publishers = [
            LoadPublisher(name, fabric[name].port, f"load/{name}", RATE_PER_S, window=window)
            for name in ("source", "side")
        ]
        self.subscribers = [
            LoadSubscriber(name, fabric[name].port, "load/#")
            for name in ("sink", "side", "hub", "source")
        ]

    def ways(self) -> Iterator[tuple[LoadPublisher, LoadSubscriber]]:
        for publisher in self.publishers:
            for subscriber in self.subscribers:
                yield publisher, subscriber

    def complete(self) -> bool:
        """Whether whatever was acknowledged has arrived everywhere."""
        return all(
            f"{publisher.name}:{number}" in subscriber.got
            for publisher, subscriber in self.ways()
            for number, sent in enumerate(publisher.sent)
            if sent.acknowledged_s is not None
        )

    def flowing(self, since_s: float) -> bool:
        """Whether every subscriber has a message of every publisher from after `since_s`."""
        return all(first_after(*way, since_s) for way in self.ways())

    async def drain(self) -> None:
        """Let everything arrive: until nothing is missing, or nothing has come for a while."""
        for publisher in self.publishers:
            publisher.stopping = True
        arrived, since_s = -1, time.monotonic()
        deadline_s = since_s + DRAIN_S
        while time.monotonic() < deadline_s:
            await asyncio.sleep(0.1)
            count = sum(len(times) for s in self.subscribers for times in s.got.values())
            if count != arrived:
                arrived, since_s = count, time.monotonic()
            if all(publisher.done for publisher in self.publishers) and (
                self.complete() or time.monotonic() - since_s > QUIET_S
            ):
                return


async def until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {timeout_s:g} s in vain for {what}"
        await asyncio.sleep(0.02)


def first_after(
    publisher: LoadPublisher, subscriber: LoadSubscriber, since_s: float
) -> float | None:
    """When the first message that was published after `since_s` arrived."""
    for number, sent in enumerate(publisher.sent):
        if sent.sent_s > since_s and (times := subscriber.got.get(f"{publisher.name}:{number}")):
            return times[0]
    return None


async def strike(fabric: NodeFabric, fault: Fault) -> Struck:
    """Kill it, leave it down for a moment, start it again."""
    victim = fabric.brokers[fault.name] if fault.what == "broker" else fabric[fault.name]
    killed_s = time.monotonic()
    await asyncio.to_thread(victim.stop if fault.what == "stopped" else victim.kill)
    await asyncio.sleep(DOWN_S)
    await asyncio.to_thread(victim.start)
    return Struck(fault, killed_s, time.monotonic())


async def under_load(
    fabric: NodeFabric, faults: list[Fault], *, confirms: bool = False
) -> list[Account]:
    load = Load(fabric, CONFIRMED_WINDOW if confirms else WINDOW)
    struck: list[Struck] = []
    tasks = [asyncio.ensure_future(client.run()) for client in load.subscribers]
    try:
        for subscriber in load.subscribers:
            await asyncio.wait_for(subscriber.subscribed.wait(), 20)
        if not confirms:
            await asyncio.to_thread(fabric.settle)
        tasks += [asyncio.ensure_future(client.run()) for client in load.publishers]
        for fault in faults:
            await asyncio.sleep(2 * CALM_S)
            struck.append(await strike(fabric, fault))
            await until(
                partial(load.flowing, struck[-1].back_s), 60, f"messages to flow after {fault}"
            )
        await asyncio.sleep(CALM_S)
        await load.drain()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # To a fault belongs what was published from shortly before it until shortly before the next.
    ends_s = [*(each.killed_s - CALM_S for each in struck[1:]), time.monotonic()]
    return [account(load, each, end_s) for each, end_s in zip(struck, ends_s, strict=True)]


def account(load: Load, struck: Struck, end_s: float) -> Account:
    result = Account(str(struck.fault), down_s=round(struck.back_s - struck.killed_s, 2))
    begin_s = struck.killed_s - CALM_S
    lost_s: list[float] = []
    lost_on: Counter[str] = Counter()
    for publisher, subscriber in load.ways():
        for number, sent in enumerate(publisher.sent):
            if sent.acknowledged_s is None or not begin_s <= sent.sent_s < end_s:
                continue
            result.expected += 1
            result.acknowledged += subscriber is load.subscribers[0]
            times = subscriber.got.get(f"{publisher.name}:{number}", [])
            if not times:
                lost_on[f"{publisher.name} → {subscriber.name}"] += 1
                lost_s.append(round(sent.sent_s - struck.killed_s, 2))
            elif sent.repeated:
                result.duplicated_by_publisher += len(times) - 1
            else:
                result.duplicated += len(times) - 1
    result.lost, result.lost_on = len(lost_s), dict(lost_on)
    result.lost_published_s = (min(lost_s), max(lost_s)) if lost_s else None
    flowing_s = [first_after(*way, struck.back_s) or end_s for way in load.ways()]
    result.recovery_s = round(max(flowing_s) - struck.killed_s, 2)
    return result


def run(
    folder: Path,
    faults: list[Fault],
    algorithm: str = "sf",
    *,
    state: bool = True,
    cooperation: Mapping[str, Any] | None = None,
) -> list[Account]:
    """With `cooperation` publishers wait for all brokers, and nothing else is waited for."""
    with NodeFabric(
        folder,
        LINKS,
        algorithm=algorithm,
        state=state,
        tapped=False,
        # What a client that is away is to get is not bounded: Mosquitto keeps 1,000 by default.
        broker_options={"persistence": True, "extra": ("max_queued_messages 0",)},
        cooperation=cooperation,
    ) as fabric:
        try:
            accounts = asyncio.run(under_load(fabric, faults, confirms=cooperation is not None))
        except BaseException:
            for node in fabric.nodes.values():
                print(f"---- {node.id}\n{node.log()}")
            raise
    for each in accounts:
        print(json.dumps(asdict(each), ensure_ascii=False))
    return accounts


def check(accounts: list[Account]) -> None:
    """What docs/explanation/guarantees.md promises of nodes with a state_dir."""
    for each in accounts:
        if "broker" in each.fault:
            # A broker may forget what it had acknowledged; only its own clients miss it.
            killed = each.fault.split()[1]
            assert {way.split()[-1] for way in each.lost_on} <= {killed}, each
        elif "ingress" in each.fault:
            # What the node had in hand and not passed on: nothing that came after the restart.
            assert each.lost_published_s is None or each.lost_published_s[1] <= 0.05, each
        else:
            assert each.lost == 0, each


def test_a_transit_node_an_egress_node_and_a_broker_are_killed(tmp_path: Path) -> None:
    check(run(tmp_path, [TRANSIT, EGRESS, EGRESS_BROKER, STOPPED_TRANSIT]))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kind_of_victim_several_times(tmp_path: Path) -> None:
    runs: list[dict[str, Any]] = []
    for algorithm, state, rounds, faults in (
        ("sf", True, 5, EVERY),
        ("pf", True, 3, EVERY),
        ("sf", False, 2, EVERY),
        ("sf", True, 2, PLANNED),
    ):
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        accounts = run(folder, faults * rounds, algorithm, state=state)
        runs.append(
            {
                "algorithm": algorithm,
                "state_dir": state,
                "rounds": rounds,
                "faults": [asdict(each) for each in accounts],
            }
        )
        if state:
            check(accounts)
    if "KILL_RECORD" in os.environ:
        plan = {
            "nodes": 5,
            "links": LINKS,
            "publishers": ["source", "side"],
            "subscribers": ["sink", "side", "hub", "source"],
            "qos": 1,
            "messages_per_s_and_publisher": RATE_PER_S,
            "restart_after_s": DOWN_S,
        }
        Path(os.environ["KILL_RECORD"]).write_text(recorded(plan, runs))
