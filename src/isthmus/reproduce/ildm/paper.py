"""What the ILDM paper found, and whether it holds here.

Each row is a statement of the paper with our figure beside it.  The judgment is never finer than
the measurement:

* A limit is known as a range, from what was measured to what the next smaller interval of the grid
  would have given (at most 5 % more, ILDM §5.3).  A ratio of two limits is therefore a range as
  well, and noise between runs widens it: 5 %, or more if two experiments that differ in nothing
  are further apart (pattern A has no neighbors, so PF and SF do the same there).
* A statement is *yes* or *no* if it is so for the whole range, else *within noise*.
* Latencies are compared by mean and by median; *within noise* where these disagree or differ by
  less than a fifth.

Source: ILDM §6.3 and §6.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from isthmus.bench.report.results import Result, milliseconds
from isthmus.pipeline.count.tables import UNDER_LIMIT
from isthmus.reproduce.claims import Claim, Holds, Range, at_least

__all__ = ["compare", "noise_of"]

OVERHEAD: Final = 0.10
BEST_CASE: Final = 4.3
LEAST_NOISE: Final = 0.05
LATENCY_NOISE: Final = 0.20
ERROR_BOUND: Final = 0.05


def noise_of(results: Mapping[str, Result]) -> float:
    """How far apart two limits of the same system can be, as a share."""
    pair = _pair(results, "A-pf", "A-sf")
    less, more = sorted(result.egress for result in pair) if pair is not None else (1.0, 1.0)
    return max(LEAST_NOISE, more / less - 1)


def ratio(one: Result, other: Result, noise: float = 0.0) -> Range:
    """The limit of `one` as a multiple of `other`'s."""
    return Range(
        one.egress / other.egress,
        0.0 if math.isinf(other.most_egress) else one.egress / other.most_egress / (1 + noise),
        one.most_egress / other.egress * (1 + noise),
    )


def compare(results: Mapping[str, Result]) -> list[Claim]:
    """Every statement for which there are measurements, and by name those for which not.

    `results` by name: ``single-BROKER``, ``A-pf`` … ``D-sf``.
    """
    noise = noise_of(results)
    return [
        *_overhead(results, noise),
        *_best_case(results, noise),
        *_orders(results, noise),
        *_latencies(results),
        *_single_brokers(results),
        *_everywhere(list(results.values())),
    ]


def _overhead(results: Mapping[str, Result], noise: float) -> Iterator[Claim]:
    for algorithm in ("pf", "sf"):
        what = f"throughput that a node costs one broker: A-{algorithm}, bare Mosquitto"
        paper = "about 10 %"
        pair = _pair(results, f"A-{algorithm}", "single-mosquitto")
        if pair is None:
            yield Claim("§6.4", what, paper, "", "not measured")
            continue
        kept = ratio(*pair, noise)
        cost = Range(1 - kept.measured, 1 - kept.most, 1 - kept.least)
        shown = f"{cost.measured:.1%} ({cost.least:.1%} to {cost.most:.1%})"
        yield Claim("§6.4", what, paper, shown, at_least(kept, 1 - OVERHEAD))


def _best_case(results: Mapping[str, Result], noise: float) -> Iterator[Claim]:
    what = "five brokers against one at best: C-sf / bare Mosquitto"
    pair = _pair(results, "C-sf", "single-mosquitto")
    yield _ratio_claim(pair, noise, what, f"{BEST_CASE}", BEST_CASE)


def _orders(results: Mapping[str, Result], noise: float) -> Iterator[Claim]:
    for pattern in ("B", "C", "D"):
        for algorithm in ("pf", "sf"):
            name = f"{pattern}-{algorithm}"
            what = f"five brokers give more than one: {name} / bare Mosquitto"
            pair = _pair(results, name, "single-mosquitto")
            yield _ratio_claim(pair, noise, what, "> 1")
    for pattern in ("A", "B", "C", "D"):
        what = f"SF gives as much as PF: {pattern}-sf / {pattern}-pf"
        pair = _pair(results, f"{pattern}-sf", f"{pattern}-pf")
        yield _ratio_claim(pair, noise, what, "≥ 1")
    for algorithm in ("sf", "pf"):
        for more, less in (("C", "D"), ("D", "B")):
            what = f"locality gives more: {more}-{algorithm} / {less}-{algorithm}"
            pair = _pair(results, f"{more}-{algorithm}", f"{less}-{algorithm}")
            yield _ratio_claim(pair, noise, what, "> 1")


def _latencies(results: Mapping[str, Result]) -> Iterator[Claim]:
    for longer, shorter, what, paper in (
        ("C-pf", "C-sf", "latency: SF below PF in C", "SF < PF"),
        ("D-pf", "D-sf", "latency: SF below PF in D", "SF < PF"),
        ("B-sf", "B-pf", "latency: SF a little above PF in B", "SF > PF"),
        ("A-sf", "single-mosquitto", "latency: a node adds some", "A > bare"),
        ("C-sf", "A-sf", "latency: more hops add more", "C > A"),
    ):
        pair = _pair(results, longer, shorter)
        if pair is None or any(result.latency_mean_ms is None for result in pair):
            yield Claim("§6.4", what, paper, "", "not measured")
            continue
        yield _latency_claim(what, paper, *pair)


def _single_brokers(results: Mapping[str, Result]) -> Iterator[Claim]:
    of_paper = ("mosquitto", "moquette", "rabbitmq", "activemq")
    singles = {name: results.get(f"single-{name}") for name in of_paper}
    known = {name: result for name, result in singles.items() if result is not None}
    most = "most throughput of the paper's four brokers, small server"
    quick = "shortest latency of the paper's four brokers, small server"
    if len(known) < len(of_paper):
        yield Claim("§6.3", most, "ActiveMQ, Mosquitto", "", "not measured")
        yield Claim("§6.3", quick, "Mosquitto", "", "not measured")
        return
    top = sorted(known, key=lambda name: -known[name].egress)
    shown = ", ".join(f"{name} {known[name].egress:,.0f}/s" for name in top)
    yield Claim(
        "§6.3", most, "ActiveMQ, Mosquitto", shown, "yes" if top[0] in of_paper[::3] else "no"
    )
    timed = {name: r.latency_mean_ms for name, r in known.items() if r.latency_mean_ms is not None}
    order = sorted(timed, key=timed.__getitem__)
    shown = ", ".join(f"{name} {timed[name]:.3g} ms" for name in order)
    yield Claim("§6.3", quick, "Mosquitto", shown, "yes" if order[:1] == ["mosquitto"] else "no")


def _everywhere(results: Sequence[Result]) -> Iterator[Claim]:
    if not results:
        return
    lossy = [result for result in results if result.lost or result.latency_lost]
    shown = "; ".join(
        f"{r.name}: {r.lost + r.latency_lost:,} of {r.expected + r.latency_expected:,}"
        for r in lossy
    )
    total = sum(result.expected + result.latency_expected for result in results)
    yield Claim(
        "§6.3, §6.4",
        "messages lost at the limit, all experiments",
        "0",
        shown or f"0 of {total:,}",
        "no" if lossy else "yes",
    )
    what = "egress / (ingress times sp-ratio) at the limit"
    ratios = {result.name: result.limit_ratio or 0.0 for result in results}
    low = min(ratios, key=ratios.__getitem__)
    shown = f"{ratios[low]:.4f} at the least ({low})"
    holds = ratios[low] >= UNDER_LIMIT
    yield Claim("§5.3", what, f"≥ {UNDER_LIMIT}", shown, "yes" if holds else "no")
    errors = {result.name: result.error for result in results if result.error is not None}
    if errors:
        worst = max(errors, key=errors.__getitem__)
        # Intervals are whole nanoseconds, which can push 5 % over by as little.
        within = errors[worst] <= ERROR_BOUND + 1e-4
        shown = f"{errors[worst]:.2%} at the most ({worst})"
        yield Claim("§5.3", "error of the limit search", "≤ 5 %", shown, "yes" if within else "no")


def _ratio_claim(
    pair: tuple[Result, Result] | None, noise: float, what: str, paper: str, bound: float = 1.0
) -> Claim:
    if pair is None:
        return Claim("§6.4", what, paper, "", "not measured")
    value = ratio(*pair, noise)
    return Claim("§6.4", what, paper, str(value), at_least(value, bound))


def _latency_claim(what: str, paper: str, longer: Result, shorter: Result) -> Claim:
    def times(one: float | None, other: float | None) -> float:
        return math.nan if not one or not other else one / other

    means = times(longer.latency_mean_ms, shorter.latency_mean_ms)
    medians = times(longer.latency_p50_ms, shorter.latency_p50_ms)
    shown = "; ".join(
        f"{r.name} {milliseconds(r.latency_mean_ms)} (median {milliseconds(r.latency_p50_ms)})"
        for r in (longer, shorter)
    )
    verdict: Holds = "within noise"
    if min(means, medians) > 1 + LATENCY_NOISE:
        verdict = "yes"
    elif max(means, medians) < 1 / (1 + LATENCY_NOISE):
        verdict = "no"
    return Claim("§6.4", what, paper, shown, verdict)


def _pair(results: Mapping[str, Result], one: str, other: str) -> tuple[Result, Result] | None:
    first, second = results.get(one), results.get(other)
    return None if first is None or second is None else (first, second)
