"""What must still arrive, and when it is no use to wait any longer.

How many deliveries a run should have follows from its plan: each message sent to a topic goes to
every subscriber of that topic (ILDM §5.2 derives the loss rate so).  A measurement is over when

* ``complete``: nobody sends any more, all of that has arrived and nothing came since the last
  report of each load process;
* ``quiet``: nobody sends any more and nothing has arrived for `quiet_s`: the rest is lost;
* ``drained``: `drain_s` have passed since the end of sending.

Only reports and the time they came at go in, so this is tested without any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from isthmus.bench.coordinator.control import ControlMessage, item
from isthmus.bench.load.plan import Plan
from isthmus.errors import LoadFailed
from isthmus.pipeline.log.reading import ClientKind

__all__ = ["QUIET_S", "Arrivals", "Ending", "Report", "Totals", "fan_out"]

QUIET_S: Final = 1.0

Ending = Literal["complete", "quiet", "drained"]


def fan_out(plan: Plan, kind: ClientKind | None = None) -> tuple[int, ...]:
    """The number of subscribers of each topic, of one kind or of both."""
    counts = [0] * len(plan.topics)
    for client in plan.clients:
        if client.role == "subscriber" and kind in (None, client.kind):
            counts[client.topic] += 1
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class Report:
    """What one load process has said last of the measurement that runs; counts since its start."""

    sent: int = 0
    received: int = 0
    held: int = 0
    """Publishers whose connection takes nothing at the moment."""
    sending: bool = True
    sent_by_topic: tuple[int, ...] = ()

    @classmethod
    def read(cls, message: ControlMessage, name: str, topics: int) -> Report:
        """From a ``progress`` message of the load process `name`."""
        by_topic = item(message, "sent_by_topic", list, name)
        if len(by_topic) != topics or not all(isinstance(count, int) for count in by_topic):
            raise LoadFailed(name, f"said sent_by_topic={by_topic!r} of {topics} topics")
        return cls(
            sent=item(message, "sent", int, name),
            received=item(message, "received", int, name),
            held=item(message, "held", int, name),
            sending=item(message, "sending", bool, name),
            sent_by_topic=tuple(by_topic),
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """All load processes together."""

    sent: int
    received: int
    expected: int
    held: int

    @property
    def missing(self) -> int:
        return max(0, self.expected - self.received)


class Arrivals:
    """The reports of one measurement; times are seconds on any one clock."""

    def __init__(
        self,
        fan_out: Sequence[int],
        writers: Iterable[str],
        drain_s: float,
        *,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._fan_out = tuple(fan_out)
        self._reports = dict.fromkeys(writers, Report())
        self._drain_s = drain_s
        self._quiet_s = quiet_s
        self.most_held = 0
        """The most publishers that were held back at once."""
        self._sent_until_s: float | None = None
        self._received = 0
        self._changed_s = 0.0
        self._heard: set[str] = set()
        """Who has reported since anything arrived last."""

    def report(self, writer: str, report: Report, now_s: float) -> None:
        """Take note of what `writer` said at `now_s`."""
        self._reports[writer] = report
        received = sum(one.received for one in self._reports.values())
        if received != self._received:
            self._received, self._changed_s = received, now_s
            self._heard.clear()
        else:
            self._heard.add(writer)
        self.most_held = max(self.most_held, sum(one.held for one in self._reports.values()))
        if self._sent_until_s is None and not any(one.sending for one in self._reports.values()):
            self._sent_until_s = self._changed_s = now_s
            self._heard.clear()

    @property
    def totals(self) -> Totals:
        """What all have sent and received so far."""
        reports = self._reports.values()
        return Totals(
            sent=sum(one.sent for one in reports),
            received=self._received,
            expected=self.expected(self._fan_out),
            held=sum(one.held for one in reports),
        )

    def expected(self, fan_out: Sequence[int]) -> int:
        """The deliveries that what was sent so far should bring."""
        return sum(
            sent * subscribers
            for one in self._reports.values()
            for sent, subscribers in zip(one.sent_by_topic, fan_out, strict=False)
        )

    def ending(self, now_s: float) -> Ending | None:
        """Why the measurement is over, or None while it is not."""
        if self._sent_until_s is None:
            return None
        if self._heard == self._reports.keys():
            if self._received >= self.expected(self._fan_out):
                return "complete"
            if now_s - self._changed_s >= self._quiet_s:
                return "quiet"
        return "drained" if now_s - self._sent_until_s >= self._drain_s else None
