"""Schedules of gateways whose cells are split and merged: ``python -m isthmus.sim.moving_cells``.

One gateway, or two before the same brokers; clients that stay, come and go, and leave sessions
behind; retained messages; cells that change hands all the time; in some schedules brokers or
gateways crash.  What is promised of it:

    every schedule     what was acknowledged reaches everybody who had subscribed before and has a
                       session that lasts, or stayed; each publisher has its answer; the broker in
                       charge of a topic retains what was retained there last
    without crashes    exactly once; nothing that was retained comes again; to who stays, in the
                       order in which each client published it on a topic at one QoS
    with two gateways  a message for whichever gateway it is published at

    python -m isthmus.sim.moving_cells --schedules 1000 [--seed N] [--record FILE]
    python -m isthmus.sim.moving_cells --seed N --schedules 1 --trace
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from isthmus.cooperation.geo.algorithm import GeoGateway
from isthmus.cooperation.geo.cells import Cells
from isthmus.exchange.split.brokers import BrokersSettings
from isthmus.exchange.split.moving import STEPS
from isthmus.mqtt.filters.topics import matches
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import Violation
from isthmus.sim.node import SimNode
from isthmus.sim.provenance import provenance
from isthmus.sim.run import ScheduleOutcome
from isthmus.sim.soak import Soaked

__all__ = ["main", "run_moving_cells"]

NAMES: Final = ("a", "b", "c", "d", "e", "f")
TOPICS: Final = ("0/0/t", "0/1/t", "0/1/u", "1/0/t", "1/2/u", "1/3/t", "2/2/t", "3/0/t", "3/3/u")
FILTERS: Final = ("#", "0/#", "1/#", "+/0/t", "0/1/+", "1/2/u", "1/+/#", "3/3/u", "+/+/t")
STEP_S: Final = 0.25
CHUNK: Final = 20


@dataclass(slots=True)
class _Sent:
    publisher: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    at_s: float


@dataclass(slots=True)
class _Run:
    """One schedule; everything that happens follows from its seed."""

    seed: int
    trace: bool = False
    sent: list[_Sent] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    granted: dict[tuple[str, str], float] = field(default_factory=dict)
    """By client and filter, since when it has that."""
    crashed_s: float = math.inf
    """When the first crash was: what is subscribed to later may not be known to a broker that is
    away."""
    fabric: SimFabric = field(init=False)
    nodes: list[SimNode] = field(init=False)
    rng: random.Random = field(init=False)
    writers: list[SimClient] = field(init=False)
    staying: list[SimClient] = field(init=False)
    lasting: list[SimClient] = field(init=False)
    crashes: bool = field(init=False)

    def run(self) -> ScheduleOutcome:
        self._build()
        rng = self.rng
        for _ in range(rng.randint(40, 160)):
            self._act()
            self.fabric.run(rng.expovariate(1 / STEP_S))
        self._heal()
        self.fabric.settle()
        for client in self.lasting:
            client.connect()
        self.fabric.run(40)
        self.fabric.settle()
        self._check()
        engine = self.fabric.engine
        deliveries = sum(len(each.received) for each in (*self.staying, *self.lasting))
        return ScheduleOutcome(
            engine.events, self.fabric.now_s, len(self.sent), deliveries, self.faults
        )

    def _build(self) -> None:
        rng = self.rng = random.Random(f"moving cells {self.seed}")
        cells: dict[str, list[str]] = defaultdict(list)
        for digit in "0123":
            cells[rng.choice(NAMES)].append(digit)
        self.fabric = SimFabric(
            seed=self.seed,
            algorithm="geo",
            options={"k": 2, "cells": dict(cells), "other": rng.choice(["", "a"])},
            brokers=BrokersSettings(NAMES),
            trace=self.trace,
        )
        level = rng.choice([4, 5, 5])
        first = self.fabric.node("g1", broker_level=level)
        for broker in first.brokers.values():
            broker.delay_s = rng.choice([0.001, 0.001, 0.005, 0.05, 0.2])
        self.nodes = [first]
        if rng.random() < 0.4:
            self.nodes.append(self.fabric.node("g2", shares=first))
        self.crashes = rng.random() < 0.35
        levels = [4] if level == 4 else [4, 5, 5]

        def client(name: str, **options: object) -> SimClient:
            found = SimClient(
                rng.choice(self.nodes),
                name,
                level=rng.choice(levels),
                **options,  # type: ignore[arg-type]
            )
            found.subscribes_again = False
            found.connect()
            return found

        self.writers = [client(f"w{n}") for n in range(rng.randint(1, 3))]
        self.staying = [client(f"s{n}") for n in range(rng.randint(1, 3))]
        self.lasting = [
            client(f"l{n}", clean_start=False, session_expiry_s=100_000)
            for n in range(rng.randint(1, 3))
        ]
        self.fabric.run(1)
        for each in (*self.staying, *self.lasting):
            self._subscribe(each)
        self.fabric.run(2)

    def _subscribe(self, client: SimClient) -> None:
        if not client.connected:
            return
        client.subscribe(self.rng.choice(FILTERS), qos=self.rng.choice([1, 2]))

    def _act(self) -> None:
        rng = self.rng
        for client in (*self.staying, *self.lasting):
            for topic_filter in client.granted:
                self.granted.setdefault((client.client_id, topic_filter), self.fabric.now_s)
        kind = rng.choices(
            ("publish", "retain", "move", "leave", "come", "subscribe", "crash", "restart"),
            (60, 12, 8, 5, 8, 3, 2 * self.crashes, 6 * self.crashes),
        )[0]
        if kind in ("publish", "retain"):
            self._publish(retain=kind == "retain")
        elif kind == "move":
            self._move()
        elif kind == "leave":
            rng.choice(self.lasting).disconnect()
        elif kind == "come":
            rng.choice(self.lasting).connect()
        elif kind == "subscribe":
            self._subscribe(rng.choice([*self.staying, *self.lasting]))
        elif kind == "crash":
            self._crash()
        else:
            self._heal()
        self.faults[kind] += 1

    def _publish(self, *, retain: bool) -> None:
        rng = self.rng
        for _ in range(rng.choice([1, 1, 3, 10])):
            writer, topic = rng.choice(self.writers), rng.choice(TOPICS)
            qos = rng.choice([1, 2])
            payload = f"m{len(self.sent)}".encode()
            if writer.publish(topic, payload, qos=qos, retain=retain):
                now = self.fabric.now_s
                self.sent.append(_Sent(writer.client_id, topic, payload, qos, retain, now))

    def _crash(self) -> None:
        self.crashed_s = min(self.crashed_s, self.fabric.now_s)
        if self.rng.random() < 0.6:
            self.nodes[0].crash_broker()
        else:
            self.fabric.crash(self.rng.choice(self.nodes))

    def _heal(self) -> None:
        self.nodes[0].restart_broker()
        for node in self.nodes:
            if not node.running:
                self.fabric.restart(node)

    # ---- splitting and merging ---------------------------------------------------------------

    def _move(self) -> None:
        """At all gateways in step, as `isthmus geo` does."""
        rng = self.rng
        if not all(node.running for node in self.nodes):
            return
        cells: Cells = _gateway(self.nodes[0]).cells
        cell, broker = rng.choice(list(cells.items()))
        request: dict[str, object]
        if "/" not in cell and rng.random() < 0.6:
            request = {"split": cell, "brokers": rng.choices(NAMES, k=4)}
        elif "/" in cell and rng.random() < 0.7:
            request = {"merge": cell[0], "broker": rng.choice(NAMES)}
        else:
            request = {
                "merge": cell,
                "broker": rng.choice([each for each in NAMES if each != broker]),
            }
        waits = len(self.nodes) > 1
        begun: list[SimNode] = []
        for number, node in enumerate(self.nodes):
            try:
                asked = {**request, "copies": number == 0, "waits": waits}
                _gateway(node).on_request(asked)
                begun.append(node)
            except ValueError:
                self._abort(begun)
                return
        if waits:
            self._in_step(0)

    def _in_step(self, step: int) -> None:
        """Go on with the next step when all of them are there; end it if one of them failed."""
        if step == len(STEPS):
            return
        moves = [node.exchange.brokers.last_move for node in self.nodes if node.running]  # type: ignore[union-attr]
        states = [move.status() if move is not None else {"state": "gone"} for move in moves]
        if len(moves) < len(self.nodes) or any(
            each["state"] in ("failed", "gone") for each in states
        ):
            self._abort([node for node in self.nodes if node.running])
            return
        if all(each.get("next") == STEPS[step] for each in states):
            for node in self.nodes:
                _gateway(node).on_request({"go": STEPS[step]})
            step += 1
        self.fabric.engine.call_later(0.05, lambda: self._in_step(step))

    def _abort(self, nodes: Sequence[SimNode]) -> None:
        for node in nodes:
            try:
                _gateway(node).on_request({"abort": "another one failed"})
            except ValueError:
                continue

    # ---- what is promised --------------------------------------------------------------------

    @property
    def has_crashed(self) -> bool:
        """Something has, and not only could."""
        return self.crashed_s < math.inf

    def _check(self) -> None:
        for writer in self.writers:
            if writer.unanswered:
                raise Violation(f"{writer.client_id} waits for answers to {writer.unanswered}")
        acknowledged = {p for writer in self.writers for p in writer.acknowledged}
        tilings = {tuple(_gateway(node).cells.items()) for node in self.nodes}
        if len(tilings) > 1:
            raise Violation(f"the gateways have different tilings: {tilings}")
        for client in (*self.staying, *self.lasting):
            if client in self.staying and self.has_crashed:
                continue  # its session ends with its connection, at the node or at a broker
            self._check_received(client, acknowledged)
        self._check_retained(acknowledged)

    def _check_received(self, client: SimClient, acknowledged: set[bytes]) -> None:
        got = Counter(client.payloads())
        retained_only = Counter(each.payload for each in client.received if each.retain)
        for each in self.sent:
            wanted = any(matches(topic_filter, each.topic) for topic_filter in client.wanted)
            since = min(
                (
                    at_s
                    for (name, topic_filter), at_s in self.granted.items()
                    if name == client.client_id and matches(topic_filter, each.topic)
                ),
                default=math.inf,
            )
            is_due = since < min(each.at_s, self.crashed_s) and each.payload in acknowledged
            count = got[each.payload]
            if is_due and not count:
                raise Violation(f"{client.client_id} did not get {each}")
            if count and not wanted:
                raise Violation(f"{client.client_id} got {each}, which it does not want")
            live = count - retained_only[each.payload]
            asked = sum(each.at_s <= at_s for at_s in client.asked_until_s)
            if not self.has_crashed and (live > 1 or count > 1 + asked):
                raise Violation(f"{client.client_id} got {each} {count} times")
        if not self.has_crashed and client in self.staying:
            self._check_order(client)

    def _check_order(self, client: SimClient) -> None:
        number = {each.payload: at for at, each in enumerate(self.sent)}
        last: dict[tuple[str, str, int], int] = defaultdict(lambda: -1)
        for received in client.received:
            if received.retain:
                continue
            sent = self.sent[number[received.payload]]
            key = sent.publisher, sent.topic, sent.qos
            if number[received.payload] < last[key]:
                raise Violation(f"{client.client_id} got {sent} after a newer one")
            last[key] = number[received.payload]

    def _check_retained(self, acknowledged: set[bytes]) -> None:
        if self.has_crashed or len(self.writers) > 1:
            return  # which one was the last is not for us to know
        last = {each.topic: each.payload for each in self.sent if each.retain}
        for topic, payload in last.items():
            broker = self.nodes[0].broker_of(topic)
            found = broker.retained.get(topic)
            there = found.payload if found is not None else b""
            if there != payload and payload in acknowledged:
                raise Violation(f"{broker.name} retains {there!r} on {topic}, and not {payload!r}")


def _gateway(node: SimNode) -> GeoGateway:
    found = node.algorithm
    assert isinstance(found, GeoGateway)
    return found


def run_moving_cells(seed: int, *, trace: bool = False) -> ScheduleOutcome:
    """Raises `Violation` if a promise is not kept."""
    run = _Run(seed, trace)
    try:
        return run.run()
    finally:
        if trace:
            print(run.fabric.trace.text())


def _some(seeds: Sequence[int]) -> Soaked:
    soaked = Soaked()
    for seed in seeds:
        soaked.schedules += 1
        try:
            soaked.add(run_moving_cells(seed))
        except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
            soaked.failures.append(("moving cells", seed, f"{type(error).__name__}: {error}"))
    return soaked


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m isthmus.sim.moving_cells", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument("--record", type=Path, help="write what it came to as JSON")
    given = parser.parse_args(arguments)
    if given.trace:
        print(run_moving_cells(given.seed, trace=True))
        return 0
    began_s = time.monotonic()
    seeds = range(given.seed, given.seed + given.schedules)
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    soaked = Soaked()
    with ProcessPoolExecutor(given.processes) as pool:
        for done in as_completed(pool.submit(_some, chunk) for chunk in chunks):
            part = done.result()
            soaked.add(part)
            for _, seed, problem in part.failures:
                print(f"FAILED --seed {seed}: {problem}", file=sys.stderr)
            print(f"moving cells: {soaked}", file=sys.stderr, flush=True)
    if given.record is not None:
        record = {
            **provenance("python -m isthmus.sim.moving_cells", time.monotonic() - began_s),
            "seeds": [seeds[0], seeds[-1]],
            "algorithms": {"geo": soaked.record()},
        }
        given.record.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if soaked.failures else 0


if __name__ == "__main__":
    sys.exit(main())
