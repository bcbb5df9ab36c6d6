"""The exact simulator: production exchanges and algorithms on a virtual clock and virtual links."""

from isthmus.sim.fabric import SimFabric

__all__ = ["SimFabric"]
