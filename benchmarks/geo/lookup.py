"""Which broker a topic lives at: a table with 100,000 cells, asked as the node asks it.

*Hot*: `Brokers.of`, which remembers topics, for topics that it knows, in an order that no cache of
the processor likes.  *Cold*: `Cells.broker_of`, which it asks for the others.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.cooperation.geo.cells import Cells
from isthmus.exchange.split.brokers import MAX_TOPICS, Brokers, BrokersSettings
from isthmus.sim.fabric import SimFabric

__all__ = ["CELLS", "Lookup", "Table", "measure_lookup", "tiling"]

CELLS = 100_000
BROKERS = 64
K = 12
ASKED = 50_000
"""Topics, fewer than the node remembers."""
TURNS = 8

assert ASKED < MAX_TOPICS


@dataclass(frozen=True, slots=True)
class Table:
    """What the table of cells costs."""

    cells: int
    build_s: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Lookup:
    """Of one round."""

    hot_us: float
    cold_us: float
    first_us: float
    """What a topic costs when it is asked for the first time, remembering it included."""
    table: Table


def tiling(cells: int, seed: int) -> dict[str, str]:
    """So many cells at least, of different size, that tile the square; of `BROKERS` in turn."""
    rng = random.Random(seed)
    found = ["0", "1", "2", "3"]
    while len(found) < cells:
        at = rng.randrange(len(found))
        cell, found[at] = found[at], found[-1]
        found.pop()
        if len(cell) >= 2 * K - 1:
            found.append(cell)
            continue
        found += [f"{cell}/{digit}" for digit in "0123"]
    return {cell: f"b{number % BROKERS}" for number, cell in enumerate(sorted(found))}


def measure_lookup(seed: int) -> Lookup:
    """A new table and new topics."""
    of = tiling(CELLS, seed)
    started = time.perf_counter()
    cells = Cells(K, of)
    build_s = time.perf_counter() - started
    tracemalloc.start()
    again = Cells(K, of)
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    table = Table(len(again), build_s, memory / 2**20)
    rng = random.Random(seed)
    topics = ["/".join(rng.choices("0123", k=K)) + f"/sensor/{at}" for at in range(ASKED)]
    brokers = _brokers(cells)
    asked = [topic.encode() for topic in topics]
    first_us = _us(brokers.of, asked)
    rng.shuffle(asked)
    hot_us = min(_us(brokers.of, asked) for _ in range(TURNS))
    cold_us = min(_us(cells.broker_of, topics) for _ in range(3))
    assert all(brokers.of(topic.encode()) == cells.broker_of(topic) for topic in topics[:1000])
    return Lookup(hot_us, cold_us, first_us, table)


def _brokers(cells: Cells) -> Brokers:
    """The node's, which asks `cells` through the algorithm."""
    from isthmus.cooperation.geo.algorithm import GeoGateway

    host = SimFabric(algorithm="geo").engine  # only its clock is asked for
    names = tuple(f"b{number}" for number in range(BROKERS))
    brokers = Brokers(host, BrokersSettings(names), Counter())  # type: ignore[arg-type]
    algorithm = GeoGateway.__new__(GeoGateway)
    algorithm.cells = cells
    brokers.algorithm = algorithm
    return brokers


def _us(ask: Callable[[Any], object], topics: Sequence[object]) -> float:
    """Microseconds for each of `topics`, those of the loop included."""
    started = time.perf_counter_ns()
    for topic in topics:
        ask(topic)
    return (time.perf_counter_ns() - started) / len(topics) / 1000
