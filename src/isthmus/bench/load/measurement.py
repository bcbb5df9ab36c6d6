"""One run as one load process plays it: from the order to measure until its files are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from isthmus.bench.load.clock import now_ns
from isthmus.bench.load.headroom import SAMPLES_PER_SECOND, Headroom
from isthmus.bench.load.population import Population
from isthmus.bench.load.recording import Recorder
from isthmus.bench.load.sending import SendSchedule, SentLog
from isthmus.bench.watch.link_samples import LinkSamples
from isthmus.pipeline.log.payload import run_tag
from isthmus.pipeline.log.schema import Table

__all__ = ["Measurement", "Order"]

TICK_NS: Final = 1_000_000_000 // SAMPLES_PER_SECOND
END_REPORT_NS: Final = 100_000_000
"""Between reports when nothing more is sent: the coordinator waits for what is on its way."""
SHOWN_LOSSES: Final = 20


@dataclass(frozen=True, slots=True)
class Order:
    """What the coordinator wants measured; `interval_ns` by kind of client."""

    run: str
    log: Path
    start_ns: int
    duration_ns: int
    interval_ns: Mapping[str, int]


class Measurement:
    """Between ``measure`` and ``finish``."""

    def __init__(self, order: Order, writer: str, population: Population) -> None:
        self._order = order
        self._population = population
        self._headroom = Headroom()
        self._losses, self._returns = len(population.losses), len(population.returns)
        tables: list[Table] = ["links"]
        if population.publishers:
            tables.append("publishes")
        if population.subscribers:
            tables.append("deliveries")
        self._recorder = Recorder(order.log, order.run, writer, tables)
        self._sent_log = SentLog(lambda columns: self._recorder.add("publishes", columns))
        self._samples = LinkSamples(
            population.connections, lambda columns: self._recorder.add_rows("links", columns)
        )
        tag = run_tag(order.run)
        self._schedules = [
            self._schedule(kind, interval_ns, tag)
            for kind, interval_ns in order.interval_ns.items()
        ]
        self._ticks = 0
        self._next_tick_ns = self._next_report_ns = now_ns() + TICK_NS
        population.begin(tag, self._recorder)

    def _schedule(self, kind: str, interval_ns: int, tag: int) -> SendSchedule:
        publishers = self._population.publishers
        return SendSchedule(
            [one.publisher for one in publishers if one.client.kind == kind],
            start_ns=self._order.start_ns,
            duration_ns=self._order.duration_ns,
            interval_ns=interval_ns,
            tag=tag,
            log=self._sent_log,
            headroom=self._headroom,
        )

    def next_ns(self) -> int:
        """When `serve` has something to do."""
        next_ns = min(self._next_tick_ns, self._next_report_ns)
        for schedule in self._schedules:
            wake_ns = schedule.next_wake_ns()
            if wake_ns is not None and wake_ns < next_ns:
                next_ns = wake_ns
        return next_ns

    def serve(self, at_ns: int) -> dict[str, Any] | None:
        """Send what is due; twice a second, and more often at the end, what there is to report."""
        for schedule in self._schedules:
            schedule.wake(at_ns)
        if at_ns >= self._next_tick_ns:
            self._next_tick_ns = at_ns + TICK_NS
            self._ticks += 1
            self._headroom.sample()
            if self._ticks % SAMPLES_PER_SECOND == 0:
                self._samples.sample(at_ns)
        if at_ns < self._next_report_ns:
            return None
        sending = not all(schedule.over(at_ns) for schedule in self._schedules)
        soon_ns, over_ns = at_ns + END_REPORT_NS, self._order.start_ns + self._order.duration_ns
        self._next_report_ns = min(at_ns + TICK_NS, max(soon_ns, over_ns)) if sending else soon_ns
        self._population.parse()
        return {
            "is": "progress",
            **self._counts(),
            "held": sum(schedule.held for schedule in self._schedules),
            "sending": sending,
            "closed": len(self._population.losses),
        }

    def finish(self) -> dict[str, Any]:
        """Write the files of this run; what becomes of them and of the run."""
        self._headroom.sample()
        tcp = self._samples.growth()
        self._samples.sample(now_ns())
        strays = self._population.end()
        counts = self._counts()
        for schedule in self._schedules:
            schedule.end()
        self._sent_log.flush()
        self._samples.flush()
        files = self._recorder.close()
        return {
            "is": "measured",
            "run": self._order.run,
            "files": [{"table": table, "rows": rows} for table, rows in files.items()],
            "strays": [{"reason": reason, "rows": rows} for reason, rows in strays.items()],
            **counts,
            "offered": sum(schedule.offered - schedule.left_out for schedule in self._schedules),
            "left_out": sum(schedule.left_out for schedule in self._schedules),
            "lost_clients": len(self._population.away),
            "returned": self._returned(),
            "headroom": self._headroom.summary(self._recorder.stalled_ns),
            "tcp": tcp,
            "notes": self._notes(),
        }

    def abandon(self) -> None:
        """Nobody will ask for this run any more."""
        self._population.end()
        self._recorder.close()

    def _counts(self) -> dict[str, Any]:
        by_topic = [0] * len(self._population.topics)
        for one in self._population.publishers:
            by_topic[one.client.topic] += one.publisher.message
        received = self._recorder.rows("deliveries") if self._population.subscribers else 0
        return {"sent": sum(by_topic), "sent_by_topic": by_topic, "received": received}

    def _notes(self) -> list[str]:
        back = [client.client for client, _ in self._population.returns[self._returns :]]
        lost = [
            loss
            for loss in self._population.losses[self._losses :]
            if loss.client.client not in back
        ]
        notes = [
            f"{loss.client.name} at {loss.client.node}: connection {loss.problem}, "
            f"{(loss.t_ns - self._order.start_ns) / 1e9:.3f} s after the start"
            for loss in lost[:SHOWN_LOSSES]
        ]
        if len(lost) > SHOWN_LOSSES:
            notes.append(f"{len(lost) - SHOWN_LOSSES} more connections were lost")
        return notes

    def _returned(self) -> dict[str, dict[str, Any]]:
        """By node: how often a client came back to it, and how long after the start the last."""
        found: dict[str, dict[str, Any]] = {}
        for client, t_ns in self._population.returns[self._returns :]:
            before = found.get(client.node, {"times": 0})
            last_s = (t_ns - self._order.start_ns) / 1e9
            found[client.node] = {"times": before["times"] + 1, "last_s": last_s}
        return found
