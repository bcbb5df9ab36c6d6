"""The tables of indexes of a run, from the partial counts of its files.

:data:`INDEXES` are their columns, ``docs/reference/indexes.md`` their meaning.  Every number is an
integer count, or one division of two of them, so that it comes out the same wherever and in
whatever order the partial counts are added up.

Source: ILDM §5.1 (the four indexes), §5.2 (how they are calculated), §5.3 (Definition 1).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from isthmus.pipeline.count.histogram import Block, Distribution
from isthmus.pipeline.count.partials import REASONS, Partial
from isthmus.pipeline.count.samples import TRAFFIC_COUNTERS
from isthmus.pipeline.log.reading import LoggedClient, Run
from isthmus.pipeline.log.schema import TABLES, columns_of

__all__ = ["INDEXES", "UNDER_LIMIT", "index_tables", "summary_row"]

UNDER_LIMIT: Final = 0.99
"""Definition 1: from this ratio on the performance is under the limit."""

Row = dict[str, Any]

_LATENCY = "mean_us float, {0}p50_us int, {0}p99_us int, {0}p999_us int, {0}max_us int"
_LOSSES = "expected int!, delivered int!, lost int!, loss_rate float, duplicates int!"

INDEXES: Final[dict[str, pa.Schema]] = {
    "summary": columns_of(
        "run text!, scenario text!, labels labels!, interval_ns int, window_s float!, "
        "ingress float!, egress float!, sp_ratio float!, limit_ratio float, under_limit bool!, "
        f"{_LOSSES}, order_violations int!, "
        f"latency_count int!, latency_{_LATENCY.format('latency_')}, limited_by text!, notes texts!"
    ),
    "per_second": columns_of("run text!, second int!, in_window bool!, ingress int!, egress int!"),
    "latency": columns_of(
        f"run text!, kind text!, scope text!, name text!, count int!, {_LATENCY.format('')}"
    ),
    "losses": columns_of(f"run text!, scope text!, name text!, {_LOSSES}, order_violations int!"),
    "hops": columns_of(
        "run text!, scope text!, name text!, sent int!, delivered int!, hops int!, "
        "hop_bytes int!, repeated int!, hops_per_message float, hops_per_delivery float, "
        "reached int!, path_mean float, path_max int"
    ),
    "usage": columns_of(
        "run text!, writer text!, node text!, process text!, samples int!, cpu_cores float, "
        "cpu_cores_max float, rss_mean_bytes float, rss_max_bytes int, throttled_share float"
    ),
    "traffic": columns_of(
        "run text!, writer text!, node text!, peer text!, kind text!, samples int!, span_s float, "
        + ", ".join(f"{counter} int" for counter in TRAFFIC_COUNTERS)
    ),
    "rows": columns_of("run text!, table text!, outcome text!, reason text!, rows int!"),
}


def index_tables(run: Run, partials: Iterable[Partial]) -> dict[str, list[Row]]:
    """Every table of :data:`INDEXES`; `partials` are those of all files of `run`."""
    counts = _Counts(run, partials)
    return {
        "summary": [counts.summary()],
        "per_second": list(counts.per_second()),
        "latency": list(counts.latency()),
        "losses": list(counts.losses()),
        "hops": list(counts.hops()),
        "rows": list(counts.rows()),
        **counts.ready,
    }


def summary_row(run: Run, partials: Iterable[Partial]) -> Row:
    """The row of `summary` alone; for it, the files of `links` and `resources` are not needed."""
    return _Counts(run, partials).summary()


def _by_topic(clients: Iterable[LoggedClient]) -> dict[int, list[LoggedClient]]:
    found: dict[int, list[LoggedClient]] = {}
    for client in clients:
        found.setdefault(client.topic, []).append(client)
    return found


def _name(client: LoggedClient) -> str:
    return f"{client.name}@{client.node}"


class _Counts:
    """The partial counts of a run, added up."""

    def __init__(self, run: Run, partials: Iterable[Partial]) -> None:
        self.run = run
        self.sums: Counter[tuple[str, str, int]] = Counter()
        self.blocks: dict[tuple[str, int], list[Block]] = {}
        self.paths: dict[int, Counter[int]] = {}
        """By topic: how many subscribers messages reached over so many links."""
        self.ready: dict[str, list[Row]] = {"usage": [], "traffic": []}
        for partial in partials:
            if partial.what in self.ready:
                self.ready[partial.what].append(json.loads(partial.data))
            elif partial.what == "path":
                of_topic = self.paths.setdefault(partial.number, Counter())
                of_topic[partial.part] += partial.amount
            elif partial.what == "latency":
                block = Block(partial.number, partial.part, partial.amount, partial.data)
                self.blocks.setdefault((partial.item, partial.number), []).append(block)
            else:
                self.sums[partial.what, partial.item, partial.number] += partial.amount
        self.subscribers = [client for client in run.clients if client.role == "subscriber"]
        self.publishers = [client for client in run.clients if client.role == "publisher"]
        self.sent_to: Counter[int] = Counter()
        for publisher in self.publishers:
            self.sent_to[publisher.topic] += self.of("sent", publisher.client)

    def of(self, what: str, number: int = 0) -> int:
        return self.sums[what, "", number]

    def summary(self) -> Row:
        run = self.run
        window_ns = run.window_end_ns - run.window_start_ns
        ingress = sum(self.of("sent", pub.client) for pub in self.publishers if pub.kind == "t")
        egress = self.of("received")
        publishers, pairs = self._sp_ratio()
        due = ingress * pairs  # sp-ratio is pairs / publishers
        ratio = egress * publishers / due if due else None
        latency = self._latency("l", [sub for sub in self.subscribers if sub.kind == "l"])
        return {
            "run": run.run,
            "scenario": run.scenario,
            "labels": sorted(run.labels.items()),
            "interval_ns": run.interval_ns,
            "window_s": window_ns / 10**9,
            "ingress": ingress * 10**9 / window_ns,
            "egress": egress * 10**9 / window_ns,
            "sp_ratio": pairs / publishers if publishers else 0.0,
            "limit_ratio": ratio,
            "under_limit": ratio is not None and ratio >= UNDER_LIMIT,
            **self._losses([sub for sub in self.subscribers if sub.kind == "t"]),
            **{f"latency_{name}": value for name, value in latency.items()},
            "limited_by": run.limited_by,
            "notes": list(run.notes),
        }

    def _sp_ratio(self) -> tuple[int, int]:
        """Of the t-clients: the number of publishers, and that of pairs with a subscriber."""
        publish, subscribe = (
            Counter(client.topic for client in clients if client.kind == "t")
            for clients in (self.publishers, self.subscribers)
        )
        return publish.total(), sum(publish[topic] * subscribe[topic] for topic in publish)

    def per_second(self) -> Iterator[Row]:
        """Every second of the run, and any other that something was sent or received in."""
        run = self.run
        seconds = set(range(-(-(run.ended_ns - run.started_ns) // 10**9)))
        seconds |= {second for what, _, second in self.sums if what.endswith(" second")}
        for second in sorted(seconds):
            start_ns = run.started_ns + second * 10**9
            yield {
                "run": run.run,
                "second": second,
                "in_window": run.window_start_ns <= start_ns
                and start_ns + 10**9 <= run.window_end_ns,
                "ingress": self.of("sent second", second),
                "egress": self.of("received second", second),
            }

    def latency(self) -> Iterator[Row]:
        for kind in ("t", "l"):
            subscribers = [sub for sub in self.subscribers if sub.kind == kind]
            scopes = [("all", "", subscribers)] if subscribers else []
            for topic, of_topic in sorted(_by_topic(subscribers).items()):
                scopes.append(("topic", self.run.topics[topic], of_topic))
            if kind == "l":
                scopes += [("subscriber", _name(sub), [sub]) for sub in subscribers]
            for scope, name, chosen in scopes:
                row = {"run": self.run.run, "kind": kind, "scope": scope, "name": name}
                yield row | self._latency(kind, chosen)

    def _latency(self, kind: str, subscribers: list[LoggedClient]) -> Row:
        """Count, mean, percentiles and maximum over what `subscribers`, all of `kind`, received."""
        series = {sub.topic if kind == "t" else sub.client for sub in subscribers}
        found = Distribution(block for one in series for block in self.blocks.get((kind, one), ()))
        rest_ns = sum(self.sums["latency rest", kind, one] for one in series)
        count = found.values
        return {
            "count": count,
            "mean_us": (found.sum_us * 1000 + rest_ns) / (1000 * count) if count else None,
            "p50_us": found.percentile(50, 100),
            "p99_us": found.percentile(99, 100),
            "p999_us": found.percentile(999, 1000),
            "max_us": found.max_us,
        }

    def losses(self) -> Iterator[Row]:
        by_topic = _by_topic(self.subscribers)
        for topic, name in enumerate(self.run.topics):
            row = {"run": self.run.run, "scope": "topic", "name": name}
            yield row | self._losses(by_topic.get(topic, []))
        for sub in self.subscribers:
            row = {"run": self.run.run, "scope": "subscriber", "name": _name(sub)}
            yield row | self._losses([sub])

    def _losses(self, subscribers: list[LoggedClient]) -> Row:
        expected = sum(self.sent_to[sub.topic] for sub in subscribers)
        delivered, duplicates, violations = (
            sum(self.of(what, sub.client) for sub in subscribers)
            for what in ("delivered", "duplicates", "order violations")
        )
        return {
            "expected": expected,
            "delivered": delivered,
            "lost": expected - delivered,
            "loss_rate": (expected - delivered) / expected if expected else None,
            "duplicates": duplicates,
            "order_violations": violations,
        }

    def hops(self) -> Iterator[Row]:
        """Of all topics together and of each; nothing where nobody recorded hops."""
        if not self.run.files_of("hops"):
            return
        topics = range(len(self.run.topics))
        by_topic = _by_topic(self.subscribers)
        yield self._hops("all", "", topics, self.subscribers)
        for topic in topics:
            yield self._hops("topic", self.run.topics[topic], [topic], by_topic.get(topic, []))

    def _hops(
        self, scope: str, name: str, topics: Sequence[int], subscribers: list[LoggedClient]
    ) -> Row:
        hops, hop_bytes, repeated = (
            sum(self.of(what, topic) for topic in topics)
            for what in ("hops", "hop bytes", "repeated hops")
        )
        sent = sum(self.sent_to[topic] for topic in topics)
        delivered = sum(self.of("delivered", sub.client) for sub in subscribers)
        paths: Counter[int] = Counter()
        for topic in topics:
            paths.update(self.paths.get(topic, {}))
        reached = paths.total()
        return {
            "run": self.run.run,
            "scope": scope,
            "name": name,
            "sent": sent,
            "delivered": delivered,
            "hops": hops,
            "hop_bytes": hop_bytes,
            "repeated": repeated,
            "hops_per_message": hops / sent if sent else None,
            "hops_per_delivery": hops / delivered if delivered else None,
            "reached": reached,
            "path_mean": sum(links * count for links, count in paths.items()) / reached
            if reached
            else None,
            "path_max": max(paths, default=None),
        }

    def rows(self) -> Iterator[Row]:
        """For every table: read = used + rejected.  Strays were received and could not be rows."""
        for table in TABLES:
            if table == "runs":
                continue
            rejected: Counter[str] = Counter()
            for number, reason in enumerate(REASONS):
                rejected[reason] += self.sums["rejected", table, number]
            strays = self.run.strays if table == "deliveries" else ()
            for stray in strays:
                rejected[stray.reason] += stray.rows
            read = self.sums["read", table, 0] + sum(stray.rows for stray in strays)
            counted = [("read", "", read), ("used", "", read - rejected.total())]
            counted += [
                ("rejected", reason, rows) for reason, rows in sorted(rejected.items()) if rows
            ]
            for outcome, reason, rows in counted:
                yield {
                    "run": self.run.run,
                    "table": table,
                    "outcome": outcome,
                    "reason": reason,
                    "rows": rows,
                }
