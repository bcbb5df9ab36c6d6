"""Random schedules: each is a function of its seed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

from isthmus.sim.attacks import AttackGenerator
from isthmus.sim.drawing import Generator
from isthmus.sim.schedule import ATTACKS, PROFILES, Schedule

__all__ = ["generate"]


def generate(seed: int, profile: str | None = None, *, mesh: bool = False) -> Schedule:
    """The schedule of that seed; without a profile, the seed chooses it too.

    In a `mesh` there is a link between any two nodes, and it stays.
    """
    rng = random.Random(f"schedule {seed}")
    rng.choice(range(4))  # so many profiles there were once: seeds stay what they are
    chosen = profile or random.Random(f"profile {seed}").choice(PROFILES)
    made_by = AttackGenerator if chosen in ATTACKS else Generator
    schedule = made_by(seed, chosen, rng).schedule()
    if not mesh or schedule.discovery:
        return schedule
    return replace(
        schedule,
        links=tuple(combinations((node.name for node in schedule.nodes), 2)),
        actions=tuple(each for each in schedule.actions if each.kind not in ("link", "unlink")),
    )
