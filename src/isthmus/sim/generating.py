"""Random schedules: each is a function of its seed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from typing import Final

from isthmus.sim.aparts import ApartGenerator
from isthmus.sim.attacks import AttackGenerator
from isthmus.sim.drawing import Generator
from isthmus.sim.forgetting import ForgetfulGenerator
from isthmus.sim.schedule import ATTACKS, CONFIRMED, PROFILES, Schedule
from isthmus.sim.storms import StormGenerator

__all__ = ["generate", "has_all_links"]

MOST: Final = 0.85


def has_all_links(algorithm: object, seed: int) -> bool:
    """Whether the schedule of that seed is one of a full mesh, for an algorithm.

    All are if it needs that, most if it does little without, every second one if it can do with it.
    """
    if getattr(algorithm, "full_mesh", False):
        return True
    can_do = getattr(algorithm, "topology", "tree") == "any"
    share = MOST if getattr(algorithm, "mostly_full_mesh", False) else 0.5
    return can_do and random.Random(f"mesh {seed}").random() < share


def generate(seed: int, profile: str | None = None, *, mesh: bool = False) -> Schedule:
    """The schedule of that seed; without a profile, the seed chooses it too.

    In a `mesh` there is a link between any two nodes, and it stays.
    """
    rng = random.Random(f"schedule {seed}")
    rng.choice(range(4))  # so many profiles there were once: seeds stay what they are
    chosen = profile or random.Random(f"profile {seed}").choice(PROFILES)
    made_by = AttackGenerator if chosen in ATTACKS else Generator
    if chosen == "storms":
        made_by = StormGenerator
    elif chosen in CONFIRMED:
        made_by = ForgetfulGenerator
    elif chosen == "apart":
        made_by = ApartGenerator
    schedule = made_by(seed, chosen, rng).schedule()
    if not mesh or schedule.discovery:
        return schedule
    return replace(
        schedule,
        links=tuple(combinations((node.name for node in schedule.nodes), 2)),
        actions=tuple(each for each in schedule.actions if each.kind not in ("link", "unlink")),
    )
