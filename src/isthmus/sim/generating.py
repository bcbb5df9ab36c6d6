"""Random schedules: each is a function of its seed."""

from __future__ import annotations

import random

from isthmus.sim.attacks import AttackGenerator
from isthmus.sim.drawing import Generator
from isthmus.sim.schedule import ATTACKS, PROFILES, Schedule

__all__ = ["generate"]


def generate(seed: int, profile: str | None = None) -> Schedule:
    """The schedule of that seed; without a profile, the seed chooses it too."""
    rng = random.Random(f"schedule {seed}")
    drawn = rng.choice(PROFILES)
    chosen = profile or drawn
    made_by = AttackGenerator if chosen in ATTACKS else Generator
    return made_by(seed, chosen, rng).schedule()
