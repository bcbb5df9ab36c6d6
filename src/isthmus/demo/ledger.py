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

__all__ = ["PROBE", "Account", "Ledger", "SensorPlan", "SubscriberPlan"]

RECENT = 256  # latencies that the median is taken over
PROBE = b"probe"
"""What a message says that only shows that there is a way."""

Reading = tuple[str, int]
"""Which message: its topic, which has one sensor, and its number."""


class SensorPlan(NamedTuple):
    """What one sensor publishes, and on which node."""

    node: str
    topic: str
    unit: str
    rate_hz: float
    qos: int
    typical: float


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
    outstanding: set[Reading] = field(default_factory=set)
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
        self.outstanding.discard(reading)
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
        """By subscriber and topic; the topics of one node have one account."""
        self._unprobed: set[tuple[str, str]] = set()
        by_node: dict[tuple[str, str], Account] = {}
        for subscriber in subscribers:
            for sensor in sensors:
                if subscriber.wants(sensor.topic):
                    new = Account(sensor.node, subscriber)
                    account = by_node.setdefault((subscriber.name, sensor.node), new)
                    self._accounts[subscriber.name, sensor.topic] = account
                    self._unprobed.add((subscriber.name, sensor.topic))
        self.accounts = tuple(by_node.values())

    def publish(self, topic: str, number: int) -> None:
        """Note a message that is about to be sent."""
        with self._lock:
            self.published += 1
            for name in self.subscribers:
                if (account := self._accounts.get((name, topic))) is not None:
                    account.expected += 1
                    account.outstanding.add((topic, number))

    def receive(self, subscriber: str, topic: str, payload: bytes) -> None:
        """Note a message that a subscriber got."""
        now_s = time.monotonic()
        place = topic.removeprefix("home/")
        with self._lock:
            try:
                account = self._accounts[subscriber, topic]
                if payload == PROBE:
                    self._unprobed.discard((subscriber, topic))
                    return
                content = json.loads(payload)
                account.arrive((topic, int(content["number"])), now_s - float(content["sent_s"]))
                account.last = f"{content['value']} {place}"
            except (KeyError, TypeError, ValueError, RecursionError):
                text = f"{payload[:40].decode(errors='replace')} {place}"
                self.others[subscriber] = (self.others.get(subscriber, (0, ""))[0] + 1, text)

    def unprobed(self) -> set[tuple[str, str]]:
        """Subscriber and topic between whom no way has been shown yet."""
        with self._lock:
            return set(self._unprobed)

    def missing(self) -> dict[str, list[Reading]]:
        """By subscriber: the messages that have not arrived."""
        found: dict[str, list[Reading]] = {}
        with self._lock:
            for account in self.accounts:
                if account.outstanding:
                    found.setdefault(account.subscriber.name, []).extend(account.outstanding)
        return {name: sorted(readings) for name, readings in found.items()}
