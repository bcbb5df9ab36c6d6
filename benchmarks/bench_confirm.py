"""What it costs to wait for all brokers: ``confirm = "fabric"`` against ``"local"``, over one link.

    python benchmarks/bench_confirm.py [--rounds 5] [--quick] [--out FILE]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import parser_of, run
from benchmarks.confirm.loops import puback_times_s, throughput
from benchmarks.confirm.sites import MODES, running_site
from benchmarks.fabric.crossing import palindrome
from benchmarks.relay.report import conclude, machine_facts
from benchmarks.relay.statistics import Run, Slice, Target, pool, spread
from benchmarks.relay.verdict import Figure

__all__ = ["Answers", "ConfirmPlan", "ConfirmRound", "figures_of", "main", "targets_of"]

LEAST_RATE = 0.7
MOST_ROUND_TRIPS = 3.0


@dataclass(frozen=True, slots=True)
class ConfirmPlan:
    """Who publishes, over what, and for how long."""

    publishers: int = 20
    in_flight: int = 20
    messages: int = 1_500
    """Of each publisher, in each of the two runs of a round."""
    link_delay_s: float = 0.005
    answers: int = 300
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class Answers:
    """How long PUBACKs took over a link whose round trip takes `rtt_s`."""

    median_s: float
    p99_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class ConfirmRound:
    rates: Mapping[str, Run]
    answers: Mapping[str, Answers]
    at_once: Mapping[str, Answers]
    """Over a link without a delay."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    plan = ConfirmPlan()
    if options.quick:
        plan = replace(plan, rounds=3, messages=200, answers=100)
    if options.rounds is not None:
        plan = replace(plan, rounds=options.rounds)
    return run(
        "confirm",
        120,
        lambda console: _bench(plan, options.out, options.page, console),
        check=options.check,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    first = __doc__.splitlines()[0]
    parser = parser_of("confirm", first, "about 1 minute", "confirm-performance.md", loops=False)
    return parser.parse_args(arguments)


def _bench(plan: ConfirmPlan, out: Path, page: Path | None, console: Console) -> bool:
    machine = machine_facts(console)
    rounds: list[ConfirmRound] = []
    for number in range(plan.rounds):
        rounds.append(_round(plan, number))
        shown = ", ".join(
            f"{mode} {rounds[-1].rates[mode].rate:,.0f}/s, PUBACK "
            f"{rounds[-1].answers[mode].median_s * 1000:.1f} ms"
            for mode in MODES
        )
        console.print(f"round {number + 1} of {plan.rounds}: {shown}")
    figures = figures_of(rounds)
    parts: dict[str, Any] = {
        "machine": machine,
        "plan": asdict(plan),
        "doubts": _doubts(rounds),
        "rounds": [asdict(each) for each in rounds],
    }
    return conclude(console, out, parts, figures, targets_of(figures), page=page)


def _round(plan: ConfirmPlan, number: int) -> ConfirmRound:
    """All four sites at once, of which one is busy; the modes there and back."""
    turns = palindrome(MODES, number)
    slices: dict[str, list[Slice]] = {mode: [] for mode in MODES}
    with running_site("local") as local, running_site("fabric") as fabric:
        direct = {"local": local, "fabric": fabric}
        for mode in turns:
            slices[mode].append(
                throughput(
                    direct[mode],
                    publishers=plan.publishers,
                    in_flight=plan.in_flight,
                    messages=plan.messages,
                )
            )
        at_once = {mode: _answers(direct[mode], plan.answers) for mode in turns[: len(MODES)]}
    delay_s = plan.link_delay_s
    with running_site("local", delay_s) as local, running_site("fabric", delay_s) as fabric:
        far = {"local": local, "fabric": fabric}
        answers = {mode: _answers(far[mode], plan.answers) for mode in turns[: len(MODES)]}
    return ConfirmRound({mode: pool(found) for mode, found in slices.items()}, answers, at_once)


def _answers(site: Any, count: int) -> Answers:
    times_s = puback_times_s(site, count)
    return Answers(median(times_s), quantiles(times_s, n=100)[98], site.rtt_s())


def figures_of(rounds: Sequence[ConfirmRound]) -> dict[str, Figure]:
    """Ratios are taken within each round."""
    found: dict[str, Figure] = {}

    def add(name: str, unit: str, values: Sequence[float]) -> None:
        found[name] = Figure(unit, len(values), spread(list(values)))

    for mode in MODES:
        add(f"rate, {mode}", "msg/s", [each.rates[mode].rate for each in rounds])
    add(
        "rate, fabric / local",
        "x",
        [each.rates["fabric"].rate / each.rates["local"].rate for each in rounds],
    )
    for mode in MODES:
        for part in ("near node", "far node"):
            cpu = [each.rates[mode].cpu_us_per_delivered[part] for each in rounds]
            add(f"CPU {part}, {mode}", "µs/message", cpu)
    for shown, of in (("", "answers"), (", link without delay", "at_once")):
        for mode in MODES:
            taken = [getattr(each, of)[mode] for each in rounds]
            add(f"PUBACK, {mode}{shown}", "ms", [each.median_s * 1000 for each in taken])
            if not shown:
                add(f"PUBACK p99, {mode}", "ms", [each.p99_s * 1000 for each in taken])
    add("round trip of the link", "ms", [each.answers["fabric"].rtt_s * 1000 for each in rounds])
    add(
        "PUBACK, fabric / round trip",
        "x",
        [each.answers["fabric"].median_s / each.answers["fabric"].rtt_s for each in rounds],
    )
    return found


def targets_of(figures: Mapping[str, Figure]) -> list[Target]:
    ratio = figures["rate, fabric / local"].spread.median
    trips = figures["PUBACK, fabric / round trip"].spread.median
    return [
        Target('throughput, "fabric" against "local"', "x", ratio, LEAST_RATE, at_least=True),
        Target(
            "median PUBACK, in round trips of the link",
            "x",
            trips,
            MOST_ROUND_TRIPS,
            at_least=False,
        ),
    ]


def _doubts(rounds: Sequence[ConfirmRound]) -> list[str]:
    runs = [run for each in rounds for run in each.rates.values()]
    disturbed = sum(not run.quiet_slices for run in runs)
    if not disturbed:
        return []
    return [f"In {disturbed} of {len(runs)} runs other processes took part of the machine."]


if __name__ == "__main__":
    raise SystemExit(main())
