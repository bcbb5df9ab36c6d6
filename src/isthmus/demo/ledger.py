"""The demo's ledger: who should get which message, and who got it.

Before each publish the ledger notes it for every subscriber whose filter matches, so that
"everything arrived" is a comparison of sets, not of totals.  There is one account for each
subscriber and each node that it should hear from.

Messages without a sensor's mark are somebody's own, published by hand: shown, and counted apart.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import paho.mqtt.client as paho

__all__ = ["PROBE", "Account", "Ledger", "Reading", "Row", "SensorPlan", "SubscriberPlan"]

RECENT = 256  # latencies that the median is taken over
PROBE = "probe"
"""The key of a message that only shows that there is a way."""


class Reading(NamedTuple):
    """Which message: the sensor's name and its sequence number."""

    sensor: str
    sequence: int


@dataclass(frozen=True, slots=True)
class SensorPlan:
    """What one sensor publishes, and on which node."""

    node: str
    topic: str
    unit: str
    rate_hz: float
    qos: int
    typical: float

    @property
    def name(self) -> str:
        return f"demo-{self.topic.replace('/', '-')}"


@dataclass(frozen=True, slots=True)
class SubscriberPlan:
    """What one subscriber asks for, and of which node."""

    node: str
    name: str
    topic_filter: str
    qos: int

    def wants(self, topic: str) -> bool:
        return paho.topic_matches_sub(self.topic_filter, topic)


@dataclass(frozen=True, slots=True)
class Row:
    """One account's line in the table, at one moment."""

    publisher_node: str
    subscriber_node: str
    subscriber: str
    topic_filter: str
    received: int
    expected: int
    duplicates: int
    latency_ms: float | None
    last: str


class Account:
    """What one subscriber should have got, and got, from the sensors of one node."""

    def __init__(self) -> None:
        self.expected = 0
        self.received = 0
        self.duplicates = 0
        self.outstanding: dict[Reading, str] = {}
        self.last = ""
        self._seen: set[Reading] = set()
        self._latencies_s: deque[float] = deque(maxlen=RECENT)

    def expect(self, reading: Reading, topic: str) -> None:
        self.expected += 1
        self.outstanding[reading] = topic

    def arrive(self, reading: Reading, latency_s: float) -> None:
        if reading in self._seen:
            self.duplicates += 1
            return
        self._seen.add(reading)
        self.outstanding.pop(reading, None)
        self.received += 1
        self._latencies_s.append(latency_s)

    @property
    def latency_ms(self) -> float | None:
        return median(self._latencies_s) * 1000 if self._latencies_s else None


class Ledger:
    """Every account."""

    def __init__(
        self, subscribers: Sequence[SubscriberPlan], sensors: Sequence[SensorPlan]
    ) -> None:
        self.subscribers = {plan.name: plan for plan in subscribers}
        self.published = 0
        self.others: dict[str, tuple[int, str]] = {}
        """By subscriber: how many messages of somebody's own came, and the last of them."""
        self._lock = threading.Lock()
        self._accounts: dict[tuple[str, str], Account] = {}
        self._unprobed: set[tuple[str, str]] = set()
        for subscriber in subscribers:
            for sensor in sensors:
                if subscriber.wants(sensor.topic):
                    self._accounts.setdefault((subscriber.name, sensor.node), Account())
                    self._unprobed.add((subscriber.name, sensor.name))

    def publish(self, reading: Reading, sensor: SensorPlan) -> None:
        """Note a message that is about to be sent."""
        with self._lock:
            self.published += 1
            for subscriber in self.subscribers.values():
                if subscriber.wants(sensor.topic):
                    account = self._accounts[subscriber.name, sensor.node]
                    account.expect(reading, sensor.topic)

    def receive(self, subscriber: str, topic: str, payload: bytes) -> None:
        """Note a message that a subscriber got."""
        now_s = time.monotonic()
        content = _parsed(payload)
        place = topic.removeprefix("home/")
        with self._lock:
            if PROBE in content:
                self._unprobed.discard((subscriber, str(content[PROBE])))
                return
            account = self._accounts.get((subscriber, str(content.get("node"))))
            try:
                reading = Reading(str(content["sensor"]), int(str(content["sequence"])))
                latency_s = now_s - float(str(content["sent_s"]))
            except (KeyError, ValueError):
                account = None
            if account is None:
                text = f"{payload[:40].decode(errors='replace')} {place}"
                self.others[subscriber] = (self.others.get(subscriber, (0, ""))[0] + 1, text)
                return
            account.arrive(reading, latency_s)
            account.last = f"{content.get('value')} {content.get('unit')} {place}"

    def rows(self) -> list[Row]:
        """Every account as it stands now, for showing."""
        with self._lock:
            return [
                Row(
                    publisher_node=node,
                    subscriber_node=self.subscribers[name].node,
                    subscriber=name,
                    topic_filter=self.subscribers[name].topic_filter,
                    received=account.received,
                    expected=account.expected,
                    duplicates=account.duplicates,
                    latency_ms=account.latency_ms,
                    last=account.last,
                )
                for (name, node), account in self._accounts.items()
            ]

    def unprobed(self) -> set[tuple[str, str]]:
        """Subscriber and sensor between whom no way has been shown yet."""
        with self._lock:
            return set(self._unprobed)

    def complete(self) -> bool:
        """Whether all that should have arrived did."""
        with self._lock:
            return not any(account.outstanding for account in self._accounts.values())

    def missing(self) -> dict[str, dict[Reading, str]]:
        """By subscriber: the messages that have not arrived, with their topics."""
        found: dict[str, dict[Reading, str]] = {}
        with self._lock:
            for (name, _), account in self._accounts.items():
                if account.outstanding:
                    found.setdefault(name, {}).update(account.outstanding)
        return found


def _parsed(payload: bytes) -> dict[str, object]:
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
