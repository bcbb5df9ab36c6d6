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
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import paho.mqtt.client as paho

__all__ = ["PROBE", "Account", "Ledger", "Reading", "SensorPlan", "SubscriberPlan"]

RECENT = 256  # latencies that the median is taken over
PROBE = "probe"
"""The key of a message that only shows that there is a way."""


class Reading(NamedTuple):
    """Which message: the sensor's name and its sequence number."""

    sensor: str
    sequence: int


class SensorPlan(NamedTuple):
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


class SubscriberPlan(NamedTuple):
    """What one subscriber asks for, and of which node."""

    node: str
    name: str
    topic_filter: str
    qos: int

    def wants(self, topic: str) -> bool:
        return paho.topic_matches_sub(self.topic_filter, topic)


@dataclass(slots=True)
class Account:
    """What one subscriber should have got, and got, from the sensors of one node."""

    publisher_node: str
    subscriber: SubscriberPlan
    expected: int = 0
    duplicates: int = 0
    latency_ms: float | None = None
    last: str = ""
    outstanding: dict[Reading, str] = field(default_factory=dict)
    arrived: set[Reading] = field(default_factory=set)
    _latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def way(self) -> str:
        return f"{self.publisher_node} → {self.subscriber.node}"

    def arrive(self, reading: Reading, latency_s: float) -> None:
        if reading in self.arrived:
            self.duplicates += 1
            return
        self.arrived.add(reading)
        self.outstanding.pop(reading, None)
        self._latencies_s.append(latency_s)
        self.latency_ms = median(self._latencies_s) * 1000


class Ledger:
    """Every account; whoever publishes and whoever receives may be another thread."""

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
                    key = subscriber.name, sensor.node
                    self._accounts.setdefault(key, Account(sensor.node, subscriber))
                    self._unprobed.add((subscriber.name, sensor.name))

    @property
    def accounts(self) -> tuple[Account, ...]:
        return tuple(self._accounts.values())

    def publish(self, sensor: SensorPlan, sequence: int) -> None:
        """Note a message that is about to be sent."""
        with self._lock:
            self.published += 1
            for subscriber in self.subscribers.values():
                if subscriber.wants(sensor.topic):
                    account = self._accounts[subscriber.name, sensor.node]
                    account.expected += 1
                    account.outstanding[Reading(sensor.name, sequence)] = sensor.topic

    def receive(self, subscriber: str, topic: str, payload: bytes) -> None:
        """Note a message that a subscriber got."""
        now_s = time.monotonic()
        place = topic.removeprefix("home/")
        with self._lock:
            try:
                content = json.loads(payload)
                if PROBE in content:
                    self._unprobed.discard((subscriber, content[PROBE]))
                    return
                account = self._accounts[subscriber, content["node"]]
                reading = Reading(content["sensor"], int(content["sequence"]))
                account.arrive(reading, now_s - float(content["sent_s"]))
                account.last = f"{content.get('value')} {content.get('unit')} {place}"
            except (KeyError, TypeError, ValueError, RecursionError):
                text = f"{payload[:40].decode(errors='replace')} {place}"
                self.others[subscriber] = (self.others.get(subscriber, (0, ""))[0] + 1, text)

    def unprobed(self) -> set[tuple[str, str]]:
        """Subscriber and sensor between whom no way has been shown yet."""
        with self._lock:
            return set(self._unprobed)

    def missing(self) -> dict[str, dict[Reading, str]]:
        """By subscriber: the messages that have not arrived, with their topics."""
        found: dict[str, dict[Reading, str]] = {}
        with self._lock:
            for (name, _), account in self._accounts.items():
                if account.outstanding:
                    found.setdefault(name, {}).update(account.outstanding)
        return found
