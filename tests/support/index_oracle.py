"""The indexes, computed the plain way: the definitions of `docs/reference/indexes.md` in Python.

Dictionaries, lists and fractions; no NumPy, and nothing of the code that it checks.  Slow, and
written to be compared with the definitions line by line.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import ceil
from typing import Any

from support.generated_logs import GeneratedRun

__all__ = ["oracle_tables"]

Row = dict[str, Any]
S = 1_000_000_000


def oracle_tables(generated: GeneratedRun) -> dict[str, list[Row]]:
    """Every table of indexes of `generated`."""
    return _Oracle(generated).tables()


class _Oracle:
    def __init__(self, generated: GeneratedRun) -> None:
        self.row = generated.row
        self.raw = generated.tables
        self.run = self.row["run"]
        self.clients = {client["client"]: client for client in self.row["clients"]}
        self.offset = {clock["writer"]: clock["offset_ns"] for clock in self.row["clocks"]}
        self.rejected: dict[str, Counter[str]] = {
            "publishes": Counter(),
            "deliveries": Counter(),
            "hops": Counter(),
            "links": Counter(),
            "resources": Counter(),
            "tallies": Counter(),
        }
        self.publishes = self._used_publishes()
        self.deliveries = self._used_deliveries()
        self._mark_deliveries()
        self.hop_rows = self._used_hops()

    def tables(self) -> dict[str, list[Row]]:
        return {
            "summary": [self.summary()],
            "per_second": self.per_second(),
            "latency": self.latency(),
            "losses": self.losses(),
            "hops": self.hops(),
            "usage": self.usage(),
            "traffic": self.traffic(),
            "rows": self.rows(),
        }

    # which rows are used

    def _used_publishes(self) -> list[Row]:
        used, known = [], set()
        for writer, rows in self.raw["publishes"].items():
            for row in rows:
                client = self.clients.get(row["publisher"])
                key = (row["publisher"], row["message"])
                if client is None:
                    reason = "unknown publisher"
                elif client["role"] != "publisher":
                    reason = "publish by a client that is no publisher"
                elif client["topic"] != row["topic"]:
                    reason = "publish to a topic that is not the publisher's"
                elif key in known:
                    reason = "message published twice"
                else:
                    known.add(key)
                    time = row["t_send_ns"] + self.offset[writer]
                    used.append(row | {"kind": client["kind"], "sent": time})
                    continue
                self.rejected["publishes"][reason] += 1
        return used

    def _used_deliveries(self) -> list[Row]:
        published = {(row["publisher"], row["message"], row["topic"]) for row in self.publishes}
        used = []
        for writer, rows in self.raw["deliveries"].items():
            for row in rows:
                to = self.clients.get(row["subscriber"])
                by = self.clients.get(row["publisher"])
                if to is None or to["role"] != "subscriber":
                    reason = "unknown subscriber"
                elif by is None or by["role"] != "publisher":
                    reason = "unknown publisher"
                elif to["topic"] != row["topic"]:
                    reason = "topic not subscribed"
                elif (row["publisher"], row["message"], row["topic"]) not in published:
                    reason = "delivery of a message nobody published"
                else:
                    sent = row["t_send_ns"] + self.offset[by["writer"]]
                    received = row["t_receive_ns"] + self.offset[writer]
                    used.append(row | {"kind": to["kind"], "sent": sent, "received": received})
                    continue
                self.rejected["deliveries"][reason] += 1
        return used

    def _mark_deliveries(self) -> None:
        """Whether each is the first of its message, and whether it came out of order."""
        arrived: dict[tuple[int, int], list[int]] = {}
        for row in self.deliveries:
            earlier = arrived.setdefault((row["subscriber"], row["publisher"]), [])
            row["first"] = row["message"] not in earlier
            row["violates"] = row["first"] and any(row["message"] < one for one in earlier)
            earlier.append(row["message"])

    def _used_hops(self) -> list[Row]:
        published = {(row["publisher"], row["message"], row["topic"]) for row in self.publishes}
        used = []
        for rows in self.raw["hops"].values():
            for row in rows:
                if (row["publisher"], row["message"], row["topic"]) in published:
                    writer = self.clients[row["publisher"]]["writer"]
                    used.append(row | {"sent": row["t_send_ns"] + self.offset[writer]})
                else:
                    self.rejected["hops"]["hop of a message nobody published"] += 1
        return used

    def in_window(self, time: int) -> bool:
        return bool(self.row["window_start_ns"] <= time < self.row["window_end_ns"])

    # the tables

    def summary(self) -> Row:
        window = Fraction(self.row["window_end_ns"] - self.row["window_start_ns"], S)
        ingress = sum(row["kind"] == "t" and self.in_window(row["sent"]) for row in self.publishes)
        egress = sum(
            row["kind"] == "t" and self.in_window(row["received"]) for row in self.deliveries
        )
        sp_ratio = self.sp_ratio()
        due = ingress * sp_ratio
        ratio = Fraction(egress) / due if due else None
        latency = self.latency_of([row for row in self.deliveries if row["kind"] == "l"])
        return {
            "run": self.run,
            "scenario": self.row["scenario"],
            "labels": sorted(self.row["labels"]),
            "interval_ns": self.row["interval_ns"],
            "window_s": float(window),
            "ingress": float(ingress / window),
            "egress": float(egress / window),
            "sp_ratio": float(sp_ratio),
            "limit_ratio": None if ratio is None else float(ratio),
            "under_limit": ratio is not None and ratio >= Fraction(99, 100),
            **self.losses_of(self.subscribers("t")),
            **{f"latency_{name}": value for name, value in latency.items()},
            "limited_by": self.row["limited_by"],
            "notes": self.row["notes"],
        }

    def sp_ratio(self) -> Fraction:
        publishers = [c for c in self.clients.values() if (c["kind"], c["role"][0]) == ("t", "p")]
        fan_out = [
            sum(sub["topic"] == pub["topic"] for sub in self.subscribers("t")) for pub in publishers
        ]
        return Fraction(sum(fan_out), len(fan_out)) if fan_out else Fraction(0)

    def subscribers(self, kinds: str) -> list[Row]:
        return [
            client
            for client in self.row["clients"]
            if client["role"] == "subscriber" and client["kind"] in kinds
        ]

    def per_second(self) -> list[Row]:
        start = self.row["started_ns"]
        sent = Counter((r["sent"] - start) // S for r in self.publishes if r["kind"] == "t")
        received = Counter(
            (r["received"] - start) // S for r in self.deliveries if r["kind"] == "t"
        )
        length = ceil(Fraction(self.row["ended_ns"] - start, S))
        return [
            {
                "run": self.run,
                "second": second,
                "in_window": start + second * S >= self.row["window_start_ns"]
                and start + (second + 1) * S <= self.row["window_end_ns"],
                "ingress": sent[second],
                "egress": received[second],
            }
            for second in sorted({*range(length), *sent, *received})
        ]

    def latency(self) -> list[Row]:
        rows = []

        def add(kind: str, scope: str, name: str, deliveries: list[Row]) -> None:
            row = {"run": self.run, "kind": kind, "scope": scope, "name": name}
            rows.append(row | self.latency_of(deliveries))

        for kind in "tl":
            to_kind = [row for row in self.deliveries if row["kind"] == kind]
            subscribers = self.subscribers(kind)
            if subscribers:
                add(kind, "all", "", to_kind)
            for topic in {sub["topic"] for sub in subscribers}:
                name = self.row["topics"][topic]
                add(kind, "topic", name, [row for row in to_kind if row["topic"] == topic])
            for sub in subscribers if kind == "l" else []:
                own = [row for row in to_kind if row["subscriber"] == sub["client"]]
                add(kind, "subscriber", f"{sub['name']}@{sub['node']}", own)
        return rows

    def latency_of(self, deliveries: list[Row]) -> Row:
        latencies = [
            row["received"] - row["sent"]
            for row in deliveries
            if row["first"] and self.in_window(row["sent"])
        ]
        in_us = sorted(latency // 1000 for latency in latencies)
        count = len(in_us)

        def nearest_rank(share: Fraction) -> int | None:
            return in_us[ceil(share * count) - 1] if count else None

        return {
            "count": count,
            "mean_us": float(Fraction(sum(latencies), 1000 * count)) if count else None,
            "p50_us": nearest_rank(Fraction(1, 2)),
            "p99_us": nearest_rank(Fraction(99, 100)),
            "p999_us": nearest_rank(Fraction(999, 1000)),
            "max_us": max(in_us, default=None),
        }

    def losses(self) -> list[Row]:
        rows = []
        for index, name in enumerate(self.row["topics"]):
            of_topic = [sub for sub in self.subscribers("tl") if sub["topic"] == index]
            rows.append(
                {"run": self.run, "scope": "topic", "name": name, **self.losses_of(of_topic)}
            )
        for sub in self.subscribers("tl"):
            name = f"{sub['name']}@{sub['node']}"
            rows.append(
                {"run": self.run, "scope": "subscriber", "name": name, **self.losses_of([sub])}
            )
        return rows

    def losses_of(self, subscribers: list[Row]) -> Row:
        expected = sum(
            row["topic"] == sub["topic"] and self.in_window(row["sent"])
            for sub in subscribers
            for row in self.publishes
        )
        numbers = {sub["client"] for sub in subscribers}
        own = [
            row
            for row in self.deliveries
            if row["subscriber"] in numbers and self.in_window(row["sent"])
        ]
        delivered = sum(row["first"] for row in own)
        return {
            "expected": expected,
            "delivered": delivered,
            "lost": expected - delivered,
            "loss_rate": float(Fraction(expected - delivered, expected)) if expected else None,
            "duplicates": sum(not row["first"] for row in own),
            "order_violations": sum(row["violates"] for row in own),
        }

    def hops(self) -> list[Row]:
        if not self.raw["hops"]:
            return []
        topics = list(range(len(self.row["topics"])))
        rows = [self.hops_of("all", "", topics)]
        for topic in topics:
            rows.append(self.hops_of("topic", self.row["topics"][topic], [topic]))
        return rows

    def hops_of(self, scope: str, name: str, topics: list[int]) -> Row:
        subscribers = [sub for sub in self.subscribers("tl") if sub["topic"] in topics]
        sent = sum(r["topic"] in topics and self.in_window(r["sent"]) for r in self.publishes)
        delivered = self.losses_of(subscribers)["delivered"]
        hops = [r for r in self.hop_rows if r["topic"] in topics and self.in_window(r["sent"])]
        first: dict[tuple[Any, ...], Row] = {}
        for hop in hops:
            first.setdefault((hop["target"], hop["publisher"], hop["message"]), hop)
        paths = [
            hop["hops"]
            for hop in first.values()
            for sub in subscribers
            if (sub["node"], sub["topic"]) == (hop["target"], hop["topic"])
        ]
        return {
            "run": self.run,
            "scope": scope,
            "name": name,
            "sent": sent,
            "delivered": delivered,
            "hops": len(hops),
            "hop_bytes": sum(hop["bytes"] for hop in hops),
            "repeated": len(hops) - len(first),
            "hops_per_message": float(Fraction(len(hops), sent)) if sent else None,
            "hops_per_delivery": float(Fraction(len(hops), delivered)) if delivered else None,
            "reached": len(paths),
            "path_mean": float(Fraction(sum(paths), len(paths))) if paths else None,
            "path_max": max(paths, default=None),
        }

    def samples(self, table: str, *keys: str) -> list[tuple[Row, list[Row]]]:
        """Per writer and `keys`: the samples that count, with their time as `at`."""
        grouped: dict[tuple[str, ...], list[Row]] = {}
        for writer, rows in self.raw[table].items():
            for row in rows:
                named = (writer, *(row[key] for key in keys))
                grouped.setdefault(named, []).append(
                    row | {"at": row["t_ns"] + self.offset[writer]}
                )
        found = []
        for named, rows in grouped.items():
            rows.sort(key=lambda row: row["at"])
            before = [row for row in rows if row["at"] <= self.row["window_start_ns"]]
            after = [row for row in rows if row["at"] > self.row["window_start_ns"]]
            inside = [row for row in after if row["at"] <= self.row["window_end_ns"]]
            key = {"run": self.run, **dict(zip(("writer", *keys), named, strict=True))}
            found.append((key, before[-1:] + inside))
        return found

    @staticmethod
    def growth(samples: list[Row], counter: str) -> list[tuple[int, int]]:
        known = [row for row in samples if row.get(counter) is not None]
        steps = []
        for index in range(1, len(known)):
            step = known[index][counter] - known[index - 1][counter]
            if step < 0:
                step = known[index][counter]
            steps.append((step, known[index]["at"] - known[index - 1]["at"]))
        return steps

    def usage(self) -> list[Row]:
        rows = []
        for key, samples in self.samples("resources", "node", "process"):
            cpu, throttled = (self.growth(samples, name) for name in ("cpu_ns", "throttled_ns"))
            rss = [sample["rss_bytes"] for sample in samples]
            rows.append(
                key
                | {
                    "samples": len(samples),
                    "cpu_cores": _per_time(cpu),
                    "cpu_cores_max": max(
                        (float(Fraction(step, time)) for step, time in cpu if time), default=None
                    ),
                    "rss_mean_bytes": float(Fraction(sum(rss), len(rss))) if rss else None,
                    "rss_max_bytes": max(rss, default=None),
                    "throttled_share": _per_time(throttled),
                }
            )
        return rows

    def traffic(self) -> list[Row]:
        rows = []
        for key, samples in self.samples("links", "node", "peer", "kind"):
            row = key | {"samples": len(samples), "span_s": None}
            if samples:
                row["span_s"] = float(Fraction(samples[-1]["at"] - samples[0]["at"], S))
            ways = ("messages", "bytes", "data_bytes", "control_packets", "control_bytes")
            for counter in (f"{what}_{way}" for what in ways for way in ("out", "in")):
                steps = self.growth(samples, counter)
                row[counter] = sum(step for step, _ in steps) if steps else None
            rows.append(row)
        return rows

    def rows(self) -> list[Row]:
        rows = []
        for table, rejected in self.rejected.items():
            read = sum(len(by_writer) for by_writer in self.raw.get(table, {}).values())
            used = read - rejected.total()
            if table == "publishes":
                assert used == len(self.publishes)
            if table == "deliveries":
                assert used == len(self.deliveries)
                for stray in self.row["strays"]:
                    rejected[stray["reason"]] += stray["rows"]
                    read += stray["rows"]
            found = [("read", "", read), ("used", "", used)]
            found += [("rejected", reason, count) for reason, count in rejected.items()]
            rows += [
                {
                    "run": self.run,
                    "table": table,
                    "outcome": outcome,
                    "reason": reason,
                    "rows": count,
                }
                for outcome, reason, count in found
            ]
        return rows


def _per_time(steps: list[tuple[int, int]]) -> float | None:
    time = sum(step_time for _, step_time in steps)
    return float(Fraction(sum(step for step, _ in steps), time)) if time else None
