"""Measurements of the Geo paper's systems that were never made, just as they must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from isthmus.reproduce.geo.delay import KINDS, Delays, Network
from isthmus.reproduce.geo.expected import expected, mean_rates
from isthmus.reproduce.geo.experiments import CONTENDERS, DelayPoint, Point
from isthmus.reproduce.geo.measuring import Measured
from isthmus.reproduce.geo.model import Rates
from isthmus.reproduce.geo.workload import Workload

__all__ = ["ALONE_S", "as_derived", "as_predicted", "measure", "measure_delay"]

ALONE_S: Mapping[str, float] = {
    "direct": 0.0002,
    "direct again": 0.0002,
    "open": 0.0004,
    "first": 0.0006,
}


def as_derived(point: Point, **changes: float) -> Measured:
    """Of each broker what it must count; `changes` are added to the average."""
    workload = Workload(point.of)
    counts = expected(CONTENDERS[point.contender].way, workload, point.shape)
    rates = mean_rates(counts, workload.window_s)
    each = [mean_rates([one], workload.window_s) for one in counts]
    return Measured(
        name=point.name,
        where=point.where,
        contender=point.contender,
        shape=point.shape,
        case=point.case,
        of=point.of,
        rates=rates._replace(**{name: getattr(rates, name) + by for name, by in changes.items()}),
        expected=rates,
        least=Rates(*map(min, zip(*each, strict=True))),
        most=Rates(*map(max, zip(*each, strict=True))),
        different=len(counts) if changes else 0,
        unsubscribes=rates.received_subscribe,
        took_s=0.1,
    )


def as_predicted(network: Network, times: int = 5, **late_s: float) -> Delays:
    """What the round trips take; some kinds later than that."""
    series = {
        kind: [
            ALONE_S[kind] + network.round_trips_s(kind) + late_s.get(kind, 0.0) + number * 1e-6
            for number in range(times)
        ]
        for kind in KINDS
    }
    return Delays(network, series)


def measure(out: Path, point: Point, seed: int, broker: str) -> Measured:
    """In place of the one that measures; keeps nothing."""
    return replace(as_derived(point), took_s=0.0)


def measure_delay(out: Path, point: DelayPoint, broker: str) -> Delays:
    """The same of the delay experiment."""
    return as_predicted(point.network, point.times)
