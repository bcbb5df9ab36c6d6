"""A real node with a million inter-subscriptions: a match, its memory, and how long they take.

A neighbor inter-subscribes over TCP to the filters of `benchmarks.bench_filter_index`, half of
them exact and half with wildcards.  Then a client publishes on topics never used before, so that
each asks the algorithm once; the node's algorithm is SF that notes the time (``timed-sf``).  How
many filters match is known of each topic, and where the message has to go is checked.

The filters of hot topics cover one another, so an SF neighbor would keep most of them back; here
all are sent, to have topics that ten filters match.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_filter_index import HOT_TOPICS, all_filters, topics_by_hits
from benchmarks.fabric.neighbor import Announcer, Neighbor, running_neighbor
from benchmarks.fabric.sites import fabric_status
from benchmarks.fabric.timed import plug_in
from benchmarks.relay.load import connect
from benchmarks.relay.processes import (
    Memory,
    configured_node,
    cpu_ns,
    memory,
    node_file,
    peak_bytes,
    running_broker,
)
from benchmarks.relay.statistics import percentile

from isthmus.bench.load.frames import LEVEL
from isthmus.errors import LoadError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.processes.ports import free_port

__all__ = ["Million", "Routes", "distinct_topics", "measure_million", "routes_of"]

TAKE_IN_S = 900.0
PUBLISH_S = 60.0
LOOK_S = 0.05
NODE = "many"


@dataclass(frozen=True, slots=True)
class Routes:
    """The times of single decisions about topics that so many filters match."""

    hits: int
    topics: int
    median_us: float
    p99_us: float
    mean_us: float


@dataclass(frozen=True, slots=True)
class Million:
    """What the filters cost the node."""

    filters: int
    take_in_s: float  # until all were acknowledged
    take_in_cpu_s: float  # the node's own part of it
    let_go_s: float  # from the neighbor's goodbye until nothing of it was left
    before: Memory
    after: Memory
    peak_bytes: int  # resident, at any time
    routes: tuple[Routes, ...]

    @property
    def bytes_per_filter(self) -> float:
        """Growth of resident memory per filter."""
        return (self.after.rss_bytes - self.before.rss_bytes) / self.filters


def measure_million(filters: int, topics: int, seed: int = 1) -> Million:
    """A fresh node and a neighbor with so many filters; `topics` of each kind are routed."""
    mqtt, link, admin = free_port(), free_port(), free_port()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-bench-"))
        broker = stack.enter_context(running_broker())
        algorithm = f'[cooperation]\nalgorithm = "{Announcer.name}"'
        config = node_file(NODE, broker.port, algorithm, mqtt=mqtt, link=link, admin=admin)
        node = stack.enter_context(configured_node(config, mqtt, plug_in(Path(folder))))
        _wait(lambda: not _neighbors(admin), PUBLISH_S, "the node's status")
        before, cpu_before, began = memory(node.pid), cpu_ns(node.pid), time.perf_counter()
        with running_neighbor("announcer", f"127.0.0.1:{link}", all_filters(filters)) as neighbor:
            _wait(_taken_in(neighbor, filters), TAKE_IN_S, "acknowledgment of all filters")
            take_in_s = time.perf_counter() - began
            take_in_cpu_s = (cpu_ns(node.pid) - cpu_before) / 1e9
            after = memory(node.pid)
            by_hits = distinct_topics(filters, topics, random.Random(seed))
            routes = _route_all(mqtt, admin, by_hits)
        left = time.perf_counter()
        _wait(lambda: not _neighbors(admin), TAKE_IN_S, "the neighbor's filters to go")
        let_go_s = time.perf_counter() - left
        peak = peak_bytes(node.pid)
    return Million(filters, take_in_s, take_in_cpu_s, let_go_s, before, after, peak, tuple(routes))


def distinct_topics(filters: int, topics: int, rng: random.Random) -> dict[int, list[str]]:
    """Topics by the number of filters that match, none twice: the node remembers its answers.

    Of each kind at most half of those that there are, so that drawing finds enough of them.
    """
    found = {}
    for hits, make in topics_by_hits(filters, rng).items():
        there_are = HOT_TOPICS if hits == 10 else filters - 10 * HOT_TOPICS
        wanted = min(topics, there_are // 2)
        chosen: dict[str, None] = {}
        while len(chosen) < wanted:
            chosen[make()] = None
        found[hits] = list(chosen)
    return found


def _taken_in(neighbor: Neighbor, filters: int) -> Callable[[], bool]:
    def look() -> bool:
        if neighbor.problem:
            raise LoadError(f"the neighbor failed: {neighbor.problem}")
        return neighbor.announcer.acknowledged >= filters

    return look


def _route_all(mqtt: int, admin: int, by_hits: dict[int, list[str]]) -> list[Routes]:
    """Publish once on every topic, through one client; the times that the node noted."""
    expected = sum(map(len, by_hits.values()))
    with connect(mqtt, 1)[0] as client:
        client.settimeout(PUBLISH_S)
        for topics in by_hits.values():
            for first in range(0, len(topics), 500):
                frames = [encode(Publish(t, bytes(32)), LEVEL) for t in topics[first : first + 500]]
                client.sendall(b"".join(frames))
        _wait(lambda: len(_noted(admin)[0]) >= expected, PUBLISH_S, "all topics to be routed")
    return routes_of(by_hits, *_noted(admin))


def routes_of(
    by_hits: dict[int, list[str]], took_ns: Sequence[int], sent_to: Sequence[int]
) -> list[Routes]:
    """Summaries by the number of filters hit, from what the node noted in the order of topics."""
    if len(took_ns) != sum(map(len, by_hits.values())):
        raise LoadError(f"{len(took_ns)} routes for {sum(map(len, by_hits.values()))} topics")
    found = []
    first = 0
    for hits, topics in by_hits.items():
        last = first + len(topics)
        if any(neighbors != min(hits, 1) for neighbors in sent_to[first:last]):
            raise LoadError(f"a topic that {hits} filters match was routed wrongly")
        times = sorted(ns / 1000 for ns in took_ns[first:last])
        found.append(
            Routes(
                hits,
                len(times),
                statistics.median(times),
                percentile(times, 99),
                statistics.fmean(times),
            )
        )
        first = last
    return found


def _noted(admin: int) -> tuple[list[int], list[int]]:
    routes = fabric_status(admin)["algorithm"]["routes"]
    return routes["took_ns"], routes["sent_to"]


def _neighbors(admin: int) -> dict[str, object]:
    try:
        neighbors: dict[str, object] = fabric_status(admin)["algorithm"]["neighbors"]
    except OSError:  # busy, or not listening yet
        return {"unknown": None}
    return neighbors


def _wait(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise LoadError(f"waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(LOOK_S)
