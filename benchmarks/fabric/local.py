"""Publishers and subscribers all on the near side: what the far side pays although nothing has to
cross.

Far processes are never quite idle: links and brokers keep each other alive.  So their CPU is first
measured with everybody connected and nobody talking, and given raw and less this.  For the nodes
there is an exact count as well: how many messages the near node sent over its link.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.fabric.crossing import clocks_of
from benchmarks.fabric.population import load_site
from benchmarks.fabric.sites import Site
from benchmarks.relay.processes import cpu_ns
from benchmarks.relay.saturation import ClosedLoop, saturate
from benchmarks.relay.statistics import Run, pool

from isthmus.errors import LoadError

__all__ = ["FAR", "Local", "measure_local"]

FAR = ("far broker", "far node")
SETTLED_NS = 2_000_000  # less CPU than that within `LOOK_S`: what the arrival caused is over
LOOK_S = 0.2
SETTLE_S = 20.0


@dataclass(frozen=True, slots=True)
class Local:
    """One path in one round while nothing has to cross."""

    run: Run
    fan_out: int
    idle_cores: Mapping[str, float]  # just before, nobody talking
    crossed: int | None  # messages sent over the link; None: not known of the bridge

    @property
    def published_rate(self) -> float:
        """Messages published per second."""
        return self.run.rate / self.fan_out

    def raw_us(self, process: str) -> float:
        """CPU of `process` per published message; 0 if the path has no such process."""
        return self.run.cores.get(process, 0.0) / self.published_rate * 1e6

    def above_idle_us(self, process: str) -> float:
        """The same, less what the process uses when nobody talks."""
        idle = self.idle_cores.get(process, 0.0)
        return (self.run.cores.get(process, 0.0) - idle) / self.published_rate * 1e6


def measure_local(site: Site, closed: ClosedLoop, idle_s: float) -> Local:
    """Saturate the near side; `idle_s` is how long the silence before is measured."""
    with load_site(site, across=False) as load:
        _settle(site)
        idle_cores = _idle(site, idle_s)
        before = site.crossed()
        slices = saturate(load, closed, clocks_of(site))
        after = site.crossed()
    crossed = None if before is None or after is None else after - before
    return Local(pool(slices), load.shape.fan_out, idle_cores, crossed)


def _settle(site: Site) -> None:
    """Wait until the far processes have dealt with the clients' arrival."""
    far = [pid for name, pid in site.pids.items() if name in FAR]
    deadline = time.monotonic() + SETTLE_S
    last = sum(map(cpu_ns, far))
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        now = sum(map(cpu_ns, far))
        if now - last < SETTLED_NS:
            return
        last = now
    raise LoadError(f"the far side did not become idle within {SETTLE_S:.0f} s")


def _idle(site: Site, idle_s: float) -> dict[str, float]:
    before, began = {name: cpu_ns(pid) for name, pid in site.pids.items()}, time.perf_counter()
    time.sleep(idle_s)  # the silence is what is measured
    elapsed_s = time.perf_counter() - began
    return {name: (cpu_ns(pid) - before[name]) / elapsed_s / 1e9 for name, pid in site.pids.items()}
