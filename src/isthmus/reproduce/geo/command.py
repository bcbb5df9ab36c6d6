"""``isthmus reproduce geo``: the evaluation of the Geo paper on this machine.

    OUT/measured/NAME.json   a measurement that is whole
    OUT/report.html          the paper's statements, tables and figures beside ours
    OUT/results.json         all figures

In a folder that holds measurements already, those are read back and the others are made.  One that
fails is reported by name and reason, the others are made all the same, and the exit code says so.

Source: Geo §III and §IV.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from rich.console import Console

from isthmus.brokers import broker_class, names
from isthmus.errors import IsthmusError, ReproduceError
from isthmus.fabric.processes import interruptible
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.folder import check_kind
from isthmus.reproduce.geo.delay import Delays
from isthmus.reproduce.geo.experiments import (
    DelayPoint,
    Point,
    choose,
    delay_points,
    points,
)
from isthmus.reproduce.geo.measuring import (
    Measured,
    measure,
    measure_delay,
    read_delays,
    read_measured,
)
from isthmus.reproduce.geo.paper import compare
from isthmus.reproduce.geo.report import Reproduced, Settings, write_report
from isthmus.reproduce.narration import clock, print_claims, tried_again

__all__ = ["Reproduced", "Settings", "reproduce", "run_geo"]

Result = TypeVar("Result")


def run_geo(settings: Settings) -> int:
    """The command: 0 if everything that was asked for was measured, else 1."""
    with interruptible():
        return 1 if reproduce(settings).failed else 0


def reproduce(
    settings: Settings,
    *,
    console: Console | None = None,
    measure: Callable[..., Measured] = measure,
    measure_delay: Callable[..., Delays] = measure_delay,
    write: Callable[[Reproduced, Sequence[Claim]], None] = write_report,
) -> Reproduced:
    """Measure and write the report; the last three are seams for tests."""
    console = console or Console(highlight=False)
    began_s = time.monotonic()
    known, delays = points(quick=settings.quick), delay_points(quick=settings.quick)
    counted, timed = choose(known, delays, settings.only)
    if timed or any(each.where == "live" for each in counted):
        _check_broker(settings.broker)
    kind = {
        "what": "isthmus reproduce geo",
        "quick": settings.quick,
        "broker": settings.broker,
        "seed": settings.seed,
    }
    check_kind(settings.out, kind)
    done = Reproduced(settings)
    some: list[Point | DelayPoint] = [*counted, *timed]
    left_s = sum(each.forecast_s for each in some)
    console.print(f"{len(some)} measurements, about {clock(left_s)}", soft_wrap=True)
    out = settings.out
    for each in counted:
        found = read_measured(out, each) or _one(
            console, done, each.name, partial(measure, out, each, settings.seed, settings.broker)
        )
        if found is not None:
            done.measured.append(found)
            console.print(
                f"{found.name}: {found.different} of {found.of.areas} brokers not as derived; "
                f"took {found.took_s:.1f} s",
                markup=False,
                soft_wrap=True,
            )
    for network in timed:
        delayed = read_delays(out, network) or _one(
            console, done, network.name, partial(measure_delay, out, network, settings.broker)
        )
        if delayed is not None:
            done.delays[delayed.network.name] = delayed
            medians = ", ".join(
                f"{kind} {delayed.median_s(kind) * 1e3:.1f}" for kind in delayed.series
            )
            console.print(f"{network.name}: medians in ms: {medians}", markup=False, soft_wrap=True)
    if not done.measured and not done.delays:
        reasons = "; ".join(f"{name}: {why}" for name, why in done.failed.items())
        raise ReproduceError(f"nothing could be measured: {reasons}")
    done.took_s = time.monotonic() - began_s
    claims = compare(done.found)
    claims = [each for each in claims if not settings.only or each.verdict != "not measured"]
    write(done, claims)
    print_claims(console, claims)
    took = clock(done.took_s)
    console.print(f"took {took}; the report is {out / 'report.html'}", soft_wrap=True)
    return done


def _check_broker(broker: str) -> None:
    if broker not in names():
        raise ReproduceError(f"there is no broker {broker}; there are {', '.join(names())}")
    if (missing := broker_class(broker).missing()) is not None:
        raise missing


def _one(
    console: Console, done: Reproduced, name: str, attempt: Callable[[], Result]
) -> Result | None:
    """One measurement; a failure is noted, and None."""
    try:
        return tried_again(console, attempt)
    except IsthmusError as error:
        done.failed[name] = str(error)
        console.print(f"{name} failed: {error}", markup=False)
        return None
