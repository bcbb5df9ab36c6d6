"""One round: three fresh sites, all messages crossing, then none; the paths take turns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from benchmarks.fabric.crossing import measure_crossing, palindrome
from benchmarks.fabric.local import Local, measure_local
from benchmarks.fabric.sites import PATHS, running_site
from benchmarks.relay.load import Shape
from benchmarks.relay.saturation import ClosedLoop
from benchmarks.relay.statistics import Run

__all__ = ["Plan", "Round", "measure_round"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run of the benchmark does."""

    rounds: int = 5
    shape: Shape = field(default_factory=Shape)
    closed: ClosedLoop = field(default_factory=ClosedLoop)
    lazy_nap_s: float = 0.004  # of the subscribers that do not wait for data
    idle_s: float = 3.0
    filters: int = 1_000_000
    topics: int = 20_000  # that are looked up among the filters, of each kind


@dataclass(frozen=True, slots=True)
class Round:
    """Every path with all messages crossing, to either kind of subscriber, and with none."""

    order: str
    waiting: Mapping[str, Run]
    lazy: Mapping[str, Run]
    local: Mapping[str, Local]

    def ratio(self, kind: str, path: str) -> float:
        """Rate of `path` over the bridge's, with ``waiting`` or ``lazy`` subscribers."""
        runs = self.runs(kind)
        return runs[path].rate / runs["bridge"].rate

    def runs(self, kind: str) -> Mapping[str, Run]:
        """The runs with ``waiting`` or ``lazy`` subscribers."""
        return self.waiting if kind == "waiting" else self.lazy

    def line(self) -> str:
        """The round on a few lines."""
        parts = []
        for path, run in self.waiting.items():
            cpu = ", ".join(f"{name} {us:.2f}" for name, us in run.cpu_us_per_delivered.items())
            parts.append(
                f"  {path:6} {run.rate:9,.0f}/s = {self.ratio('waiting', path):.3f}, lazy "
                f"{self.lazy[path].rate:9,.0f}/s = {self.ratio('lazy', path):.3f};  CPU µs: {cpu};"
                f"  limit: {run.limit};  quiet slices {run.quiet_slices}/{run.slices}"
            )
            local = self.local[path]
            far = ", ".join(
                f"{name} {local.raw_us(name):.3f} ({local.above_idle_us(name):+.3f} above idle)"
                for name in local.idle_cores
                if name.startswith("far")
            )
            crossed = "" if local.crossed is None else f", {local.crossed} crossed"
            parts.append(
                f"         local: {local.published_rate:,.0f} published/s{crossed}; "
                f"µs per published: {far}"
            )
        return "\n".join(parts)


def measure_round(plan: Plan, number: int) -> Round:
    """Round `number`, from 0."""
    turns = palindrome(PATHS, number)
    lazy = replace(plan.closed, nap_s=plan.lazy_nap_s)
    with ExitStack() as stack:
        sites = {path: stack.enter_context(running_site(path)) for path in PATHS}
        return Round(
            " ".join(turns),
            measure_crossing(sites, turns, plan.closed),
            measure_crossing(sites, turns, lazy),
            {
                path: measure_local(sites[path], plan.closed, plan.idle_s)
                for path in turns[: len(PATHS)]
            },
        )
