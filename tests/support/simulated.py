"""Simulated runs for tests, and what they did, counted from what the simulator's clients hold."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.simulate.exact import ExactRun
from isthmus.simulate.file import Simulation, simulation_of
from isthmus.simulate.plan import planned

__all__ = ["Counted", "counted", "simulated"]


def simulated(log: Path, run: str, **tables: Any) -> ExactRun:
    """A run that is in the log, and whose clients remember; `tables` are those of a file."""
    faults = {key: tables.pop(key) for key in ("cut", "crash") if key in tables}
    wanted = simulation_of(tables, Simulation.model_validate(faults))
    exact = ExactRun(planned(wanted), log, run, remembers=True)
    exact.record()
    return exact


@dataclass(frozen=True, slots=True)
class Counted:
    """What a summary says too, by other means."""

    expected: int
    delivered: int
    duplicates: int
    order_violations: int


def counted(exact: ExactRun, sent: Counter[int]) -> Counted:
    """From the payloads that subscribers hold; `sent` is how much each publisher has sent."""
    topics = {client.client: client.topic for client in exact.plan.clients}
    expected = delivered = duplicates = violations = 0
    for client in exact.plan.clients:
        if client.role != "subscriber":
            continue
        expected += sum(n for publisher, n in sent.items() if topics[publisher] == client.topic)
        seen: dict[int, list[int]] = {}
        for received in exact.playing[client.client].received:
            publisher, _, message = struct.unpack_from("<IqI", received.payload, 4)
            earlier = seen.setdefault(publisher, [])
            if message in earlier:
                duplicates += 1
            else:
                delivered += 1
                violations += any(message < one for one in earlier)
            earlier.append(message)
    return Counted(expected, delivered, duplicates, violations)
