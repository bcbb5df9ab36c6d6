"""Many schedules, on every core: ``python -m isthmus.sim.soak --algorithm pf sf``.

An algorithm is named as in a configuration, or as ``module:Class``, and may have options:
``topic-tree?roots=balance``; with ``confirm=fabric`` publishers wait for all brokers, with
``rules=drawn`` links have rules of what may cross them, in profiles with a tree that stays, with
``retained=routed`` retained messages go only where they are wanted, with ``source=broker`` nodes
take messages from their brokers, some of them of clients that connect there directly, and with
``brokers=2`` (or 3) each node has so many.
Without ``--profile`` the profiles take turns, seed by seed.  ``--record FILE`` writes what the run
came to as a small JSON file, from which the figures in the documentation are made.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path

from isthmus.cooperation.api import CooperationAlgorithm
from isthmus.cooperation.registry import check_options, load
from isthmus.errors import AlgorithmError
from isthmus.sim.fabric import AlgorithmFactory
from isthmus.sim.generating import generate, has_all_links
from isthmus.sim.provenance import provenance
from isthmus.sim.run import PLAIN, ScheduleFailed, ScheduleOutcome, Variant, run_schedule
from isthmus.sim.schedule import ATTACKS, CONFIRMED, EVERY_PROFILE, PROFILES

__all__ = ["SOAKED", "Called", "Soaked", "called", "main", "profile_of", "soak"]

SOAKED = PROFILES + ATTACKS
"""The profiles that take turns; with `confirm`, also those of `CONFIRMED`."""
CHUNK = 50


@dataclass(slots=True)
class Soaked:
    """What a soak came to."""

    schedules: int = 0
    events: int = 0
    messages: int = 0
    deliveries: int = 0
    simulated_s: float = 0.0
    profiles: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """Actions by kind, those of failed schedules left out."""
    checked: Counter[str] = field(default_factory=Counter)
    """What the algorithm had to check at the ends of schedules (`AtRest.checked`)."""
    failures: list[tuple[str, int, str]] = field(default_factory=list)
    """Profile, seed and what was wrong."""

    def __str__(self) -> str:
        return (
            f"{self.schedules} schedules, {self.messages} messages, {self.deliveries} deliveries, "
            f"{self.events} events in {self.simulated_s:.0f} simulated seconds, "
            f"{len(self.failures)} failures"
        )

    def add(self, other: Soaked | ScheduleOutcome) -> None:
        for name in (each.name for each in fields(other)):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def record(self) -> dict[str, object]:
        return {
            "schedules": self.schedules,
            "failures": len(self.failures),
            "messages": self.messages,
            "deliveries": self.deliveries,
            "events": self.events,
            "simulated_s": round(self.simulated_s),
            "profiles": dict(sorted(self.profiles.items())),
            "actions": dict(sorted(self.faults.items())),
            "checked": dict(sorted(self.checked.items())),
            "failed": [f"--profile {p} --seed {seed}" for p, seed, _ in self.failures[:20]],
        }


@dataclass(frozen=True, slots=True)
class Called:
    """An algorithm and its options."""

    factory: type[CooperationAlgorithm]
    options: Mapping[str, object]
    variant: Variant = PLAIN


def called(name: str) -> Called:
    """What ``NAME?key=value&…`` names; instead of a name ``module:Class`` need not be installed."""
    name, _, query = name.partition("?")
    options: dict[str, object] = {}
    for pair in query.split("&") if query else ():
        key, _, value = pair.partition("=")
        try:
            options |= tomllib.loads(f"{key} = {value}")
        except tomllib.TOMLDecodeError:
            options[key] = value
    brokers = options.pop("brokers", 1)
    if brokers not in (1, 2, 3):
        raise ValueError(f"brokers: {brokers!r} must be 1, 2 or 3")
    variant = Variant(
        confirm=options.pop("confirm", "local") == "fabric",
        rules=options.pop("rules", "") == "drawn",
        routes_retained=options.pop("retained", "everywhere") == "routed",
        from_broker=options.pop("source", "clients") == "broker",
        brokers=brokers,
    )
    module, colon, attribute = name.partition(":")
    if not colon:
        check_options(name, options)
        return Called(load(name), options, variant)
    return Called(getattr(import_module(module), attribute), options, variant)


def profile_of(seed: int, *, confirm: bool = False) -> str:
    """Whose turn it is."""
    taking_turns = SOAKED + CONFIRMED if confirm else SOAKED
    return taking_turns[seed % len(taking_turns)]


def soak(
    algorithm: str | AlgorithmFactory,
    seeds: Iterable[int],
    *,
    profile: str | None = None,
    max_failures: int = 10,
) -> Soaked:
    """Run the schedules of `seeds`; stops after `max_failures`.

    Those of an algorithm of the topology ``any`` are of full meshes: all of them if it needs that,
    most if it does little without, else every second one (`has_all_links`).
    """
    soaked = Soaked()
    options: Mapping[str, object] | None = None
    variant = PLAIN
    if isinstance(algorithm, str):
        named = called(algorithm)
        factory: AlgorithmFactory = named.factory
        options, variant = named.options, named.variant
    else:
        factory = algorithm
    for seed in seeds:
        chosen = profile or profile_of(seed, confirm=variant.confirm)
        soaked.schedules += 1
        soaked.profiles[chosen] += 1
        try:
            mesh = has_all_links(factory, seed)
            schedule = generate(seed, chosen, mesh=mesh)
            outcome = run_schedule(schedule, factory, options=options, variant=variant)
        except ScheduleFailed as failure:
            soaked.failures.append((chosen, seed, failure.problem))
            if len(soaked.failures) >= max_failures:
                break
        else:
            soaked.add(outcome)
    return soaked


def soak_on_every_core(
    algorithm: str,
    seeds: Sequence[int],
    *,
    profile: str | None,
    max_failures: int,
    processes: int,
    progress: Callable[[Soaked], None],
) -> Soaked:
    """The same, in chunks of seeds; which failures are found first is up to the cores."""
    soaked = Soaked()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    work = partial(soak, algorithm, profile=profile, max_failures=max_failures)
    with ProcessPoolExecutor(processes) as pool:
        for done in as_completed(pool.submit(work, chunk) for chunk in chunks):
            part = done.result()
            soaked.add(part)
            for profile_, seed, problem in part.failures:
                print(f"FAILED --profile {profile_} --seed {seed}: {problem}", file=sys.stderr)
            progress(soaked)
            if len(soaked.failures) >= max_failures:
                pool.shutdown(cancel_futures=True)
                break
    soaked.failures.sort()
    return soaked


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m isthmus.sim.soak", description=__doc__)
    parser.add_argument("--algorithm", nargs="+", default=["sf"])
    parser.add_argument("--profile", choices=EVERY_PROFILE, help="default: they take turns")
    parser.add_argument("--schedules", type=int, default=1000, help="for each algorithm")
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule")
    parser.add_argument("--max-failures", type=int, default=10)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, help="write what it came to as JSON")
    given = parser.parse_args(arguments)
    for algorithm in given.algorithm:
        try:
            called(algorithm)
        except (ValueError, AlgorithmError) as error:
            parser.error(f"--algorithm {algorithm}: {error}")
    began_s = time.monotonic()
    seeds = range(given.seed, given.seed + given.schedules)
    results: dict[str, Soaked] = {}
    for algorithm in given.algorithm:

        def progress(soaked: Soaked, algorithm: str = algorithm) -> None:
            print(f"{algorithm}: {soaked}", file=sys.stderr, flush=True)

        results[algorithm] = soaked = soak_on_every_core(
            algorithm,
            seeds,
            profile=given.profile,
            max_failures=given.max_failures,
            processes=given.processes,
            progress=progress,
        )
        for profile, seed, problem in soaked.failures:
            print(f"FAILED --algorithm {algorithm} --profile {profile} --seed {seed}: {problem}")
        print(f"{algorithm}: {soaked}")
    if given.record is not None:
        record = {
            **provenance("python -m isthmus.sim.soak", time.monotonic() - began_s),
            "seeds": [seeds[0], seeds[-1]],
            "algorithms": {name: soaked.record() for name, soaked in results.items()},
        }
        given.record.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(soaked.failures for soaked in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
