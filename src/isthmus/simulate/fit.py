"""Which tasks of a bulk simulation may run at once, so that they fit into memory.

Told before anything begins (`check_memory`): the program itself, and for each worker the largest
task that it may get.  If the largest tasks of all workers do not fit side by side, the *large* ones
go through fewer *lanes*: one after the other on each, while the other workers do the small ones.
It is refused if not even one of the largest fits by itself.

What is free elsewhere, on a cluster, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from isthmus.errors import SimulationTooLarge
from isthmus.simulate.tallies import BulkTask

__all__ = ["Fit", "check_memory"]

PROGRAM_BYTES: Final = 200 << 20
"""A Python worker with NumPy and PyArrow."""
SPARK_BYTES: Final = 1 << 30
"""The JVM and this process."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How tasks are to be run, and what they take then."""

    needed_bytes: int
    lanes: int
    """So many large tasks run at once."""
    large_bytes: int
    """Tasks that take more are large."""

    def is_large(self, task: BulkTask) -> bool:
        return task.memory_bytes > self.large_bytes


def check_memory(nodes: int, tasks: Sequence[BulkTask], workers: int, free_bytes: int) -> Fit:
    """About what it takes; raises `SimulationTooLarge` if that is more than what is free.

    `nodes` are those of the largest network, for the message.
    """
    sizes = sorted((task.memory_bytes for task in tasks), reverse=True)
    program = SPARK_BYTES + workers * PROGRAM_BYTES
    all_ = program + sum(sizes[:workers])
    if all_ <= free_bytes:
        return Fit(all_, workers, max(sizes, default=0))
    for lanes in range(workers - 1, 0, -1):
        room = free_bytes - program - sum(sizes[:lanes])
        if room >= 0:
            small = room // (workers - lanes)
            beside = [size for size in sizes if size <= small][: workers - lanes]
            return Fit(program + sum(sizes[:lanes]) + sum(beside), lanes, small)
    raise SimulationTooLarge(nodes, program + sum(sizes[:1]), free_bytes)
