"""Makes a failing schedule smaller, so that a person can read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from isthmus.sim.fabric import AlgorithmFactory
from isthmus.sim.run import PLAIN, ScheduleFailed, Variant, run_schedule
from isthmus.sim.schedule import Action, Schedule

__all__ = ["shrink"]

_MENDS = {
    "heal": {"partition", "one-way"},
    "mend": {"cut", "cut-one-way"},
    "restart": {"crash", "stop"},
    "broker-restart": {"broker-crash"},
    "untwin": {"twin"},
}
"""What ends a fault: without it an outage would last longer than the profile promises anything."""


def shrink(
    schedule: Schedule,
    algorithm: str | AlgorithmFactory = "sf",
    options: Mapping[str, object] | None = None,
    *,
    attempts: int = 400,
    variant: Variant = PLAIN,
) -> Schedule:
    """A smaller schedule that fails in the same way: actions are left out as long as it does."""
    wanted = _kind_of_failure(schedule, algorithm, options, variant)
    if wanted is None:
        return schedule
    size = max(1, len(schedule.actions) // 2)
    while size and attempts:
        start = 0
        while start < len(schedule.actions) and attempts:
            attempts -= 1
            end = start + size
            mends = tuple(each for each in schedule.actions[start:end] if each.kind in _MENDS)
            actions = _needed(schedule.actions[:start] + mends + schedule.actions[end:])
            candidate = replace(schedule, actions=actions)
            smaller = len(actions) < len(schedule.actions)
            if smaller and _kind_of_failure(candidate, algorithm, options, variant) == wanted:
                schedule = candidate
            else:
                start += size
        size //= 2
    return schedule


def _needed(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Without what mends a fault that is not there any more."""
    kept: list[Action] = []
    for action in actions:
        faults = _MENDS.get(action.kind)
        if faults is None or any(
            each.kind in faults and (action.kind == "heal" or each.args[0] == action.args[0])
            for each in kept
        ):
            kept.append(action)
    return tuple(kept)


def _kind_of_failure(
    schedule: Schedule,
    algorithm: str | AlgorithmFactory,
    options: Mapping[str, object] | None,
    variant: Variant,
) -> str | None:
    """The problem without names and numbers; None if there is none."""
    try:
        run_schedule(schedule, algorithm, options=options, variant=variant)
    except ScheduleFailed as failure:
        words = failure.problem.split("\n", maxsplit=1)[0].split()
        return " ".join(word for word in words if word.isalpha() and len(word) > 2)[:60]
    return None
