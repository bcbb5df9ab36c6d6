"""One schedule with its trace: ``python -m isthmus.sim.replay --algorithm sf --seed 17``.

With ``--shrink`` actions are left out first as long as it fails in the same way.
"""

from __future__ import annotations

import argparse
import sys

from isthmus.sim.generating import generate, has_all_links
from isthmus.sim.run import ScheduleFailed, run_schedule
from isthmus.sim.schedule import EVERY_PROFILE
from isthmus.sim.shrink import shrink
from isthmus.sim.soak import called

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m isthmus.sim.replay", description=__doc__)
    parser.add_argument("--algorithm", default="sf")
    parser.add_argument("--profile", choices=EVERY_PROFILE, help="default: the seed chooses")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--shrink", action="store_true")
    given = parser.parse_args(arguments)
    named = called(given.algorithm)
    schedule = generate(given.seed, given.profile, mesh=has_all_links(named.factory, given.seed))
    if given.shrink:
        schedule = shrink(schedule, named.factory, named.options, variant=named.variant)
    print(schedule)
    try:
        outcome = run_schedule(
            schedule,
            named.factory,
            options=named.options,
            trace=True,
            variant=named.variant,
        )
    except ScheduleFailed as failure:
        print(failure.trace)
        print(f"FAILED: {failure.problem}")
        return 1
    print(f"all promises kept: {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
