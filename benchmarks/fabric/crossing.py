"""Publishers on the near side, every subscriber on the far one: how much a path carries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.fabric.population import load_site, probe
from benchmarks.fabric.sites import Site
from benchmarks.relay.processes import cpu_ns, machine_busy_ns
from benchmarks.relay.saturation import ClosedLoop, saturate
from benchmarks.relay.statistics import Run, Slice, pool

__all__ = ["clocks_of", "measure_crossing", "palindrome"]


def clocks_of(site: Site) -> Callable[[], Mapping[str, int]]:
    """Reads the CPU clocks in ns of the site's processes, the generator and the machine."""

    def read() -> Mapping[str, int]:
        clocks = {name: cpu_ns(pid) for name, pid in site.pids.items()}
        clocks["generator"] = time.process_time_ns()
        clocks["machine"] = machine_busy_ns()
        return clocks

    return read


def palindrome(paths: Sequence[str], number: int) -> tuple[str, ...]:
    """The turns of round `number`: there and back, beginning with another path each time.

    A drift of the machine, as long as it is even, then touches all paths alike.
    """
    first = number % len(paths)
    there = (*paths[first:], *paths[:first])
    return (*there, *there[::-1])


def measure_crossing(
    sites: Mapping[str, Site], turns: Sequence[str], closed: ClosedLoop
) -> dict[str, Run]:
    """Each path at saturation, in the order of `turns`; its slices pooled."""
    slices: dict[str, list[Slice]] = {path: [] for path in sites}
    for path in turns:
        site = sites[path]
        with load_site(site, across=True) as load:
            probe(site)
            slices[path] += saturate(load, closed, clocks_of(site))
    return {path: pool(parts) for path, parts in slices.items()}
