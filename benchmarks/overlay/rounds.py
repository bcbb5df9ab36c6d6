"""One round: the fabric builds itself twice, is repaired several times, then the star.

Every round has fresh brokers and nodes.  In the shaped fabric a leaf, an inner node and the root
are killed and the root of then is stopped (SIGSTOP), one after the other; each time clients at all
others publish and count.  What was killed is started again when the tree has been repaired, and
what was stopped goes on.  Then the star: its center stands for the node that was killed as the
root.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.overlay.load import Account, account, running_load
from benchmarks.overlay.members import NAMES, Overlay, Sweep, overlay
from benchmarks.overlay.shapes import victims_of
from benchmarks.overlay.star import running_star

__all__ = ["FAULTS", "Converged", "Fault", "Plan", "Repaired", "Round", "measure_round"]

T_D_S: Final = 1.0
"""`discovery_s`, by default."""
CALM_S: Final = 1.0
AGAIN_S: Final = 1.0
"""After which the center of the star is started again."""
POLL_S: Final = 0.002
FOR_EVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Fault:
    """Who is lost, and how."""

    role: str
    killed: bool = True

    def __str__(self) -> str:
        return f"{self.role} {'killed' if self.killed else 'stopped'}"


FAULTS: Final = (Fault("leaf"), Fault("inner node"), Fault("root"), Fault("root", killed=False))


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int = 5
    faults: tuple[Fault, ...] = FAULTS
    sizes: tuple[int, ...] = (5, 10, 20, 50, 100, 200, 500, 1000)
    mesh_sizes: tuple[int, ...] = (5, 10, 20, 50)
    seeds: int = 5


@dataclass(frozen=True, slots=True)
class Converged:
    """From the start of the last node until all five use one tree that has all five."""

    since_exec_s: float
    since_listening_s: float
    """From when the last of them could be connected to."""
    depth: int
    """Links from the root to the node that is farthest away."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """One fault; times from it on, but for `rejoined_s`."""

    victim: str
    detected_s: float
    """Until all neighbors in the tree saw its link down."""
    repaired_s: float
    """Until all others used one tree without it."""
    rejoined_s: float
    """From its start, or from when it went on, until all used one tree with it."""
    account: Account

    @property
    def from_detection_s(self) -> float:
        return self.repaired_s - self.detected_s


@dataclass(frozen=True, slots=True)
class Round:
    loopback: Converged
    shaped: Converged
    repaired: Mapping[str, Repaired] = field(default_factory=dict)
    """By fault; without one for an inner node if there was none."""
    center: str = ""
    star: Account | None = None

    def line(self) -> str:
        parts = [
            f"one tree {self.loopback.since_exec_s:.2f} s after exec on loopback, "
            f"{self.shaped.since_exec_s:.2f} s on shaped links"
        ]
        for name, it in self.repaired.items():
            parts.append(
                f"{name} ({it.victim}): detected {it.detected_s:.2f}, repaired "
                f"{it.repaired_s:.2f}, gap {it.account.gap_s:.2f}, rejoined {it.rejoined_s:.2f} "
                f"(gap {it.account.later_gap_s:.2f}) s; of {it.account.expected:,} lost "
                f"{it.account.lost}, doubled {it.account.doubled}"
            )
        if self.star is not None:
            parts.append(
                f"star, center killed: flowing after {self.star.flowing_s:.2f}, gap "
                f"{self.star.gap_s:.2f} s; of {self.star.expected:,} lost {self.star.lost}, "
                f"doubled {self.star.doubled}"
            )
        return "\n".join(f"  {part}" for part in parts)


def measure_round(plan: Plan) -> Round:
    with overlay(shaped=False) as fabric:
        loopback = _converge(fabric)
    repaired: dict[str, Repaired] = {}
    center = ""
    with overlay(shaped=True) as fabric:
        shaped = _converge(fabric)
        for fault in plan.faults:
            sweep = fabric.until_one_tree()
            victim = victims_of(sweep.places).get(fault.role)
            if victim is not None:
                repaired[str(fault)] = asyncio.run(_strike(fabric, fault, victim, sweep))
                if fault == Fault("root"):
                    center = victim
    star = asyncio.run(_star([name for name in NAMES if name != center]))
    return Round(loopback, shaped, repaired, center, star)


def _converge(fabric: Overlay) -> Converged:
    members = fabric.members.values()
    for member in members:
        member.start()
    executed_s = time.monotonic()
    for member in members:
        while not member.listens():
            member.fabric()  # raises if it has ended
            time.sleep(POLL_S)
    listening_s = time.monotonic()
    found = fabric.until_one_tree()
    return Converged(
        round(found.at_s - executed_s, 3), round(found.at_s - listening_s, 3), _depth(found)
    )


def _depth(sweep: Sweep) -> int:
    def of(name: str) -> int:
        parent = sweep.places[name].parent
        return 1 + of(parent) if parent else 0

    return max(of(name) for name in sweep.places)


async def _strike(fabric: Overlay, fault: Fault, victim: str, before: Sweep) -> Repaired:
    others = [name for name in NAMES if name != victim]
    around = [name for name in before.places[victim].neighbors if name in others]
    member = fabric.members[victim]
    ports = {name: fabric.members[name].mqtt_port for name in others}
    async with running_load(ports) as load:
        await asyncio.sleep(CALM_S)
        fault_s = time.monotonic()
        member.signal(signal.SIGKILL if fault.killed else signal.SIGSTOP)
        try:
            detected_s, repaired_s = await asyncio.to_thread(_watch, fabric, others, around, victim)
            await load.until_flowing(repaired_s)
            await asyncio.sleep(CALM_S)
        finally:
            if not fault.killed:
                member.signal(signal.SIGCONT)
        if fault.killed:
            await asyncio.to_thread(member.end)
            member.start()
        back_s = time.monotonic()
        rejoined = await asyncio.to_thread(fabric.until_one_tree)
        await asyncio.sleep(CALM_S)
        await load.drain()
    return Repaired(
        victim,
        round(detected_s - fault_s, 3),
        round(repaired_s - fault_s, 3),
        round(rejoined.at_s - back_s, 3),
        account(load, fault_s, back_s),
    )


def _watch(
    fabric: Overlay, others: Sequence[str], around: Sequence[str], victim: str
) -> tuple[float, float]:
    """When it was seen that its neighbors missed it, and that the others had a tree again."""
    detected_s = 0.0

    def seen(sweep: Sweep) -> bool:
        nonlocal detected_s
        if not detected_s and all(victim not in sweep.linked[name] for name in around):
            detected_s = sweep.at_s
        return sweep.is_one_tree(others)

    repaired_s = fabric.until(others, f"the others do without {victim}", seen).at_s
    return detected_s or repaired_s, repaired_s


async def _star(leaves: Sequence[str]) -> Account:
    """The center is killed, and started again after a second."""
    with running_star(leaves) as star:
        ports = {name: broker.port for name, broker in zip(leaves, star.leaves, strict=True)}
        async with running_load(ports) as load:
            await asyncio.sleep(CALM_S)
            fault_s = time.monotonic()
            os.kill(star.center.pid, signal.SIGKILL)
            await asyncio.to_thread(star.center.kill)  # it is dead: what is left is cleared away
            await asyncio.sleep(max(0.0, fault_s + AGAIN_S - time.monotonic()))
            await asyncio.to_thread(star.center.start)
            await load.until_flowing(time.monotonic())
            await asyncio.sleep(CALM_S)
            await load.drain()
        return account(load, fault_s, FOR_EVER)
