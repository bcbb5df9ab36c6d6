"""The exact simulator: production exchanges and algorithms on a virtual clock and virtual links."""

from isthmus.sim.check import AlgorithmFailed, check_algorithm
from isthmus.sim.fabric import SimFabric
from isthmus.sim.generating import generate
from isthmus.sim.network import WireSettings
from isthmus.sim.run import ScheduleFailed, run_schedule
from isthmus.sim.shrink import shrink

__all__ = [
    "AlgorithmFailed",
    "ScheduleFailed",
    "SimFabric",
    "WireSettings",
    "check_algorithm",
    "generate",
    "run_schedule",
    "shrink",
]
