"""How fast and how large a `FilterIndex` of a million filters is, and a `CoverTable`.

Run ``python benchmarks/bench_filter_index.py``.  It prints a summary and writes all figures to
``benchmarks/results/filter_index.json``.  Half of the filters are exact and half have wildcards,
in five shapes (see `make_filter`); topics are drawn that hit none, one, or ten of them.  Memory is
the growth of the resident set while the index is filled, the texts of the filters included.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from isthmus.mqtt.filters.cover_table import CoverTable
from isthmus.mqtt.filters.index import FilterIndex

RESULTS = Path(__file__).parent / "results" / "filter_index.json"
SESSIONS = 10_000
HOT_TOPICS = 1_000
DEVICES_PER_SITE = 100
TARGET_MATCH_US = 20.0
TARGET_MEMORY_MIB = 1024.0


def device(number: int) -> str:
    site, position = divmod(number, DEVICES_PER_SITE)
    return f"site-{site:05d}/hall/device-{position:03d}"


def make_filter(number: int) -> str:
    """Five exact filters of ten; of the others, one each of five shapes."""
    shape = number % 10
    if shape < 5:
        return f"{device(number)}/sensor/temperature"
    if shape == 5:
        return f"{device(number)}/sensor/+"
    if shape == 6:
        return f"{device(number)}/state/#"
    if shape == 7:
        return f"site-{number // DEVICES_PER_SITE:05d}/+/device-{number:07d}/alarm"
    if shape == 8:
        return f"+/{number:07d}/a{number:07d}/b{number:07d}/c"
    return f"tenant-{number:07d}/x{number:07d}/+/y{number:07d}/z{number:07d}"


def hot_filters(number: int) -> list[str]:
    """Ten filters that all match `hot_topic`."""
    a, b, c, d = f"hot-{number}/line/cell-{number}/temperature".split("/")
    return [
        f"{a}/{b}/{c}/{d}",
        f"{a}/{b}/{c}/+",
        f"{a}/{b}/+/{d}",
        f"{a}/+/{c}/{d}",
        f"+/{b}/{c}/{d}",
        f"{a}/#",
        f"{a}/{b}/#",
        f"{a}/{b}/{c}/#",
        f"{a}/+/+/{d}",
        f"+/+/{c}/+",
    ]


def hot_topic(number: int) -> str:
    return f"hot-{number}/line/cell-{number}/temperature"


def all_filters(count: int) -> Iterator[str]:
    for number in range(HOT_TOPICS):
        yield from hot_filters(number)
    for number in range(count - 10 * HOT_TOPICS):
        yield make_filter(number)


def topics_by_hits(count: int, rng: random.Random) -> dict[int, Callable[[], str]]:
    """Makers of random topics, by the number of filters that match."""
    plain = count - 10 * HOT_TOPICS

    def none() -> str:
        # The beginning is that of filters held, so that the search does not end at once.
        return f"{device(rng.randrange(plain))}/sensor/pressure/raw"

    def one() -> str:
        shape = rng.randrange(10)
        number = 10 * rng.randrange(plain // 10) + shape
        if shape == 5:
            return f"{device(number)}/sensor/humidity"
        if shape == 6:
            return f"{device(number)}/state/battery/level"
        return make_filter(number).replace("+", "anything")

    def ten() -> str:
        return hot_topic(rng.randrange(HOT_TOPICS))

    return {0: none, 1: one, 10: ten}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def percentile(ordered: list[int], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000


def time_matches(
    index: FilterIndex[int], make_topic: Callable[[], str], hits: int, rounds: int
) -> dict[str, float]:
    """Time of single matches in microseconds; every result is checked for its size."""
    topics = [make_topic() for _ in range(rounds)]
    for topic in topics:
        assert len(index.match(topic)) == hits, topic
    clock = time.perf_counter_ns
    took_ns = []
    for topic in topics:
        begin = clock()
        index.match(topic)
        took_ns.append(clock() - begin)
    took_ns.sort()
    return {
        "median_us": percentile(took_ns, 0.5),
        "p99_us": percentile(took_ns, 0.99),
        "mean_us": sum(took_ns) / len(took_ns) / 1000,
    }


def bench_index(count: int, rounds: int, rng: random.Random) -> dict[str, object]:
    gc.collect()
    before_mib = resident_mib()
    index: FilterIndex[int] = FilterIndex()
    begin = time.perf_counter()
    for number, topic_filter in enumerate(all_filters(count)):
        index.add(topic_filter, number % SESSIONS)
    fill_s = time.perf_counter() - begin
    assert len(index) == count
    grown_mib = resident_mib() - before_mib
    process_mib = resident_mib()
    matches = {
        str(hits): time_matches(index, make_topic, hits, rounds)
        for hits, make_topic in topics_by_hits(count, rng).items()
    }
    begin = time.perf_counter()
    for number, topic_filter in enumerate(all_filters(count)):
        index.discard(topic_filter, number % SESSIONS)
    empty_s = time.perf_counter() - begin
    assert len(index) == 0
    return {
        "filters": count,
        "add_us": fill_s / count * 1e6,  # the making of the filter's text included
        "discard_us": empty_s / count * 1e6,
        "resident_growth_mib": grown_mib,
        "process_resident_mib": process_mib,
        "bytes_per_filter": grown_mib * 2**20 / count,
        "match_by_hits": matches,
    }


def bench_cover_table(count: int) -> dict[str, object]:
    gc.collect()
    before_mib = resident_mib()
    table = CoverTable()
    begin = time.perf_counter()
    for topic_filter in all_filters(count):
        table.add(topic_filter)
    table.settle()
    fill_s = time.perf_counter() - begin
    grown_mib = resident_mib() - before_mib
    announced = len(table.announced)
    begin = time.perf_counter()
    table.add("#")
    table.settle()
    assert len(table.announced) == 1
    table.remove("#")
    table.settle()
    everything_s = time.perf_counter() - begin
    assert len(table.announced) == announced
    begin = time.perf_counter()
    for topic_filter in all_filters(count):
        table.remove(topic_filter)
    table.settle()
    empty_s = time.perf_counter() - begin
    assert not table.announced
    return {
        "filters": count,
        "announced": announced,
        "add_us": fill_s / count * 1e6,
        "remove_us": empty_s / count * 1e6,
        "hide_and_restore_all_s": everything_s,
        "resident_growth_mib": grown_mib,
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--filters", type=int, default=1_000_000)
    parser.add_argument("--cover-filters", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    smallest = 20 * HOT_TOPICS
    if min(arguments.filters, arguments.cover_filters) < smallest:
        parser.error(f"at least {smallest} filters are needed")

    index = bench_index(arguments.filters, arguments.rounds, random.Random(arguments.seed))
    result = {
        "schema": 1,
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "seed": arguments.seed,
        "filter_index": index,
        "cover_table": bench_cover_table(arguments.cover_filters),
        "targets": {"match_us": TARGET_MATCH_US, "process_memory_mib": TARGET_MEMORY_MIB},
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
