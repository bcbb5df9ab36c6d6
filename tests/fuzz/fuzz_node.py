"""Fuzz target for the whole node: random packet sequences against a model of what may come of them.

    python tests/fuzz/fuzz_node.py --packets 10000000 --seed 1

Clients send sequences of packets, valid, nearly valid and not at all, cut anywhere, through the
production relay and exchange (`node_rig`), in front of a broker that does what it likes
(`node_script`).  For every episode the bytes that reach broker and clients and the messages that
reach the fabric must be exactly the model's (`node_model`); nothing but the product's own errors
may be raised; and when all clients have left, nothing of them may be held.

A failure prints the seed and the number of its episode, and the operations that are left after
leaving out whatever is not needed for it.  ``--record FILE`` writes what the run came to.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.node_model import Model, ModelClient, normal_properties
from fuzz.node_rig import Operation, Rig
from fuzz.node_script import Script
from isthmus.mqtt.primitives import PacketType, Reader, write_variable_byte_integer
from isthmus.mqtt.properties import read_properties
from isthmus.sim.provenance import provenance

__all__ = ["Failure", "Report", "fuzz", "run_episode", "shrink"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode in which something else came out than the model says."""

    seed: int
    episode: int
    problem: str
    operations: list[Operation]

    def __str__(self) -> str:
        shown = "\n".join(
            f"  {kind} {client} {data.hex()}" for kind, client, data in self.operations
        )
        return f"seed {self.seed}, episode {self.episode}: {self.problem}\n{shown}"


@dataclass(slots=True)
class Report:
    """What a run did."""

    packets: int = 0
    episodes: int = 0
    operations: int = 0
    publishes: int = 0
    messages: int = 0
    """To the fabric."""
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    """What became of connections."""
    failure: Failure | None = None

    def __str__(self) -> str:
        rate = self.packets / self.seconds if self.seconds else 0.0
        return (
            f"{self.packets} packets in {self.episodes} episodes, {self.seconds:.0f} s "
            f"({rate:.0f} a second): {self.publishes} messages relayed, {self.messages} to the "
            f"fabric; {dict(sorted(self.ends.items()))}"
        )

    def record(self) -> dict[str, object]:
        return {
            "packets": self.packets,
            "packets_per_s": round(self.packets / self.seconds) if self.seconds else 0,
            "episodes": self.episodes,
            "operations": self.operations,
            "messages_relayed": self.publishes,
            "messages_to_the_fabric": self.messages,
            "connections": dict(sorted(self.ends.items())),
            "failures": int(self.failure is not None),
        }


class Bench:
    """A rig and a model, side by side."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.model = Model()
        self._blocks: dict[bytes, bytes] = {b"": b""}

    def run(self, operations: list[Operation]) -> str:
        """What went wrong; empty if nothing did."""
        try:
            self._do_all(operations)
        except Exception:  # noqa: BLE001  whatever it is, finding it is the purpose
            return traceback.format_exc()
        return self._compare() or self._left_over()

    def _do_all(self, operations: list[Operation]) -> None:
        rig, model = self.rig, self.model
        for operation in operations:
            rig.do(operation)
            model.do(operation)
        for number in list(rig.clients):
            for kind in ("lost", "broker-close"):
                rig.do((kind, number, b""))
                model.do((kind, number, b""))
        rig.settle()
        for client in model.clients.values():
            model.time_out(client)
        for operation in [("relieve", 0, b""), *Script.farewell(model.client_ids())]:
            rig.do(operation)
            model.do(operation)

    def _compare(self) -> str:
        rig, model = self.rig, self.model
        sent = [(*message[:4], self._normal(message[4])) for message in rig.far.sent]
        if sent != model.sent:
            at = next(
                (i for i, (a, b) in enumerate(zip(sent, model.sent, strict=False)) if a != b),
                min(len(sent), len(model.sent)),
            )
            return (
                f"message {at} to the fabric is {str(sent[at : at + 1])[:200]}, "
                f"should be {str(model.sent[at : at + 1])[:200]}"
            )
        for number, client in model.clients.items():
            if problem := self._compare_client(number, client):
                return f"client {number}: {problem}"
        return ""

    def _compare_client(self, number: int, client: ModelClient) -> str:
        rig = self.rig
        broker = bytes(rig.brokers[number].written) if number in rig.brokers else b""
        if broker != client.to_broker:
            return f"the broker got {_differing(broker, bytes(client.to_broker))}"
        got, expected = bytes(rig.clients[number].written), bytes(client.to_client)
        own_word = got[len(expected) :]
        if not got.startswith(expected) or (own_word and own_word[0] not in (0x20, 0xE0)):
            return f"the client got {_differing(got, expected)}"
        return ""

    def _normal(self, block: bytes) -> bytes:
        """Properties in one order."""
        normal = self._blocks.get(block)
        if normal is None:
            whole = write_variable_byte_integer(len(block), 5, "length") + block
            properties = read_properties(Reader(whole, 0, len(whole), 5), PacketType.PUBLISH)
            normal = self._blocks[block] = normal_properties(properties)
        return normal

    def _left_over(self) -> str:
        left = self.rig.left_over()
        return f"all clients are gone, and the node holds {left}" if left else ""

    def reset(self) -> None:
        self.rig.reset()
        self.model.reset()
        if len(self._blocks) > 50_000:
            self._blocks = {b"": b""}


def _differing(got: bytes, expected: bytes) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b),
        min(len(got), len(expected)),
    )
    return (
        f"{len(got)} bytes, should get {len(expected)}; "
        f"at {at}: {got[at : at + 40].hex()}, should be {expected[at : at + 40].hex()}"
    )


def run_episode(operations: list[Operation]) -> str:
    """One episode on a node of its own."""
    return Bench().run(operations)


def shrink(operations: list[Operation], problem: str, attempts: int = 600) -> list[Operation]:
    """Fewer operations that fail in the same way."""
    wanted = _kind(problem)
    size = max(1, len(operations) // 2)
    while size and attempts:
        start = 0
        while start < len(operations) and attempts:
            attempts -= 1
            fewer = operations[:start] + operations[start + size :]
            if _kind(run_episode(fewer)) == wanted:
                operations = fewer
            else:
                start += size
        size //= 2
    return operations


def _kind(problem: str) -> str:
    last = problem.strip().splitlines()[-1:] or [""]
    return " ".join(word for word in last[0].split() if word.isalpha())[:50]


def fuzz(packets: int, seed: int, *, shrinks: bool = True) -> Report:
    """Go on until so many packets were judged, or up to the first episode that fails."""
    report = Report()
    script, bench = Script(seed), Bench()
    started_s = time.perf_counter()
    while bench.model.packets < packets:
        operations = script.episode()
        problem = bench.run(operations)
        report.episodes += 1
        report.operations += len(operations)
        report.messages += len(bench.model.sent)
        for client in bench.model.clients.values():
            report.ends[_end_of(client)] += 1
        if problem:
            if shrinks and run_episode(operations):
                problem = run_episode(operations)
                operations = shrink(operations, problem)
                problem = run_episode(operations)
            report.failure = Failure(seed, report.episodes, problem, operations)
            break
        bench.reset()
    report.seconds = time.perf_counter() - started_s
    report.packets = bench.model.packets
    report.publishes = bench.model.publishes
    return report


def _end_of(client: ModelClient) -> str:
    if client.accepted:
        return "accepted"
    return "refused or never answered" if client.connect is not None else "no CONNECT"


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the whole node.")
    parser.add_argument("--packets", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    report = fuzz(given.packets, given.seed)
    print(f"seed {given.seed}: {report}")
    if given.record is not None:
        record = {**provenance("make fuzz-node", report.seconds), "seed": given.seed}
        given.record.write_text(json.dumps({**record, **report.record()}, indent=1) + "\n")
    if report.failure is None:
        return 0
    print(report.failure)
    return 1


if __name__ == "__main__":
    sys.exit(main())
