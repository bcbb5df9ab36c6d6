"""Many schedules, one after the other: ``python -m isthmus.sim.soak --algorithm sf``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from isthmus.sim.fabric import AlgorithmFactory
from isthmus.sim.run import ScheduleFailed, run_schedule
from isthmus.sim.schedule import PROFILES, generate

__all__ = ["Soaked", "main", "soak"]


@dataclass(slots=True)
class Soaked:
    """What a soak came to."""

    schedules: int = 0
    events: int = 0
    messages: int = 0
    deliveries: int = 0
    simulated_s: float = 0.0
    failures: list[ScheduleFailed] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.schedules} schedules, {self.messages} messages, {self.deliveries} deliveries, "
            f"{self.events} events in {self.simulated_s:.0f} simulated seconds, "
            f"{len(self.failures)} failures"
        )


def soak(
    algorithm: str | AlgorithmFactory,
    seeds: Iterable[int],
    *,
    profile: str | None = None,
    max_failures: int = 10,
    progress: Callable[[Soaked], None] | None = None,
) -> Soaked:
    """Run the schedules of `seeds`; stops after `max_failures`."""
    soaked = Soaked()
    for seed in seeds:
        try:
            outcome = run_schedule(generate(seed, profile), algorithm)
        except ScheduleFailed as failure:
            soaked.failures.append(failure)
        else:
            soaked.events += outcome.events
            soaked.messages += outcome.messages
            soaked.deliveries += outcome.deliveries
            soaked.simulated_s += outcome.simulated_s
        soaked.schedules += 1
        if progress is not None:
            progress(soaked)
        if len(soaked.failures) >= max_failures:
            break
    return soaked


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m isthmus.sim.soak", description=__doc__)
    parser.add_argument("--algorithm", default="sf")
    parser.add_argument("--profile", choices=PROFILES, help="default: each seed chooses")
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule")
    parser.add_argument("--max-failures", type=int, default=10)
    given = parser.parse_args(arguments)

    def progress(soaked: Soaked) -> None:
        if soaked.schedules % 100 == 0:
            print(f"{given.algorithm}: {soaked}", file=sys.stderr, flush=True)

    soaked = soak(
        given.algorithm,
        range(given.seed, given.seed + given.schedules),
        profile=given.profile,
        max_failures=given.max_failures,
        progress=progress,
    )
    for failure in soaked.failures:
        schedule = failure.schedule
        print(
            f"FAILED --algorithm {given.algorithm} --profile {schedule.profile} "
            f"--seed {schedule.seed}: {failure.problem}"
        )
    print(f"{given.algorithm}: {soaked}")
    return 1 if soaked.failures else 0


if __name__ == "__main__":
    sys.exit(main())
