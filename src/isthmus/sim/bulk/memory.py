"""How much memory a network takes, said before it is made.

The figures are upper bounds of what was measured (`benchmarks/bench_sim.py` compares); who knows
what is free here passes it in.
"""

from __future__ import annotations

from typing import Final

from isthmus.errors import SimulationTooLarge

__all__ = ["check_memory", "needed_bytes"]

PROGRAM_BYTES: Final = 400 << 20
"""Python, NumPy, and a portion of topics with its tables and frontier."""
BYTES_PER_NODE: Final = 76
"""While the lists of a level are made from those of the one before: vectors, order, counts and
flags of both, and the numbers of their places.  64 were measured with a hundred million nodes."""


def needed_bytes(nodes: int) -> int:
    """To make all lists of so many nodes, and to answer patterns in portions."""
    return PROGRAM_BYTES + BYTES_PER_NODE * nodes


def check_memory(nodes: int, free_bytes: int) -> int:
    """What it takes; raises `SimulationTooLarge` if that is more than what is free."""
    needed = needed_bytes(nodes)
    if needed > free_bytes:
        raise SimulationTooLarge(nodes, needed, free_bytes)
    return needed
