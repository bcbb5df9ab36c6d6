"""How long it takes to cover a city by filters: circles around cities, k = 12."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.cooperation.geo import WORLD, Area, Circle, smallest_filters

__all__ = ["Covering", "measure_covering"]

K = 12
RADIUS_M = 15_000.0
CITIES = {
    "Tokyo": (35.68, 139.77),
    "Seoul": (37.57, 126.98),
    "Sydney": (-33.87, 151.21),
    "Oregon": (45.52, -122.68),
    "Quito": (-0.18, -78.47),
    "Tromsø": (69.65, 18.96),
    "Suva": (-18.14, 178.44),
}
AROUND_DEGREES = 0.5
"""Half the width of an area of its own around a city, whose cells of k digits are 27 m wide."""


@dataclass(frozen=True, slots=True)
class Covering:
    """Milliseconds for one circle and its filters: the median over cities and the slowest."""

    world_ms: float
    world_slowest_ms: float
    world_filters: int
    own_area_ms: float
    own_area_slowest_ms: float
    own_area_filters: int


def measure_covering(turns: int = 5) -> Covering:
    """Of each city the median of so many turns."""
    world = [_ms(WORLD, each, turns) for each in CITIES.values()]
    around = AROUND_DEGREES
    own = [
        _ms(Area(lon - around, lat - around, lon + around, lat + around), (lat, lon), turns)
        for lat, lon in CITIES.values()
    ]
    return Covering(*_summary(world), *_summary(own))


def _summary(found: Sequence[tuple[float, int]]) -> tuple[float, float, int]:
    times = [ms for ms, _ in found]
    return statistics.median(times), max(times), max(filters for _, filters in found)


def _ms(area: Area, center: tuple[float, float], turns: int) -> tuple[float, int]:
    taken = []
    for _ in range(turns):
        started = time.perf_counter()
        filters = smallest_filters(Circle(center, RADIUS_M).cells(area, K), K)
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken), len(filters)
