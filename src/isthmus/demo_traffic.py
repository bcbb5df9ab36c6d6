"""The demo's sensors and subscribers: real MQTT clients, and a ledger of who should get what.

Sensors publish JSON readings that carry the sensor's name, a sequence number and the time of
sending.  Before each publish the ledger notes it for every subscriber whose filter matches, so
that "everything arrived" is a comparison of sets, not of totals.

Threads: paho-mqtt runs one per client and each sensor has one of its own; what they share is the
ledger, which takes its lock for every change.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from isthmus.addresses import Address
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

__all__ = [
    "Account",
    "Ledger",
    "Login",
    "Reading",
    "Row",
    "Sensor",
    "SensorPlan",
    "Subscriber",
    "SubscriberPlan",
]

RECENT = 256  # latencies and arrivals that rate and median are taken over
KEEP_ALIVE_S = 30


class Reading(NamedTuple):
    """Which message: the sensor's name and its sequence number."""

    sensor: str
    sequence: int


@dataclass(frozen=True, slots=True)
class SensorPlan:
    """What one sensor publishes."""

    topic: str
    unit: str
    rate_hz: float
    qos: int
    typical: float


@dataclass(frozen=True, slots=True)
class SubscriberPlan:
    """What one subscriber asks for."""

    name: str
    topic_filter: str
    qos: int


@dataclass(frozen=True, slots=True)
class Row:
    """One subscriber's line in the table, at one moment."""

    subscriber: str
    topic_filter: str
    received: int
    expected: int
    duplicates: int
    rate_per_s: float
    latency_ms: float | None
    last: str


class Account:
    """What one subscriber should have got, and got."""

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter = topic_filter
        self.expected = 0
        self.received = 0
        self.duplicates = 0
        self.others = 0
        """Messages that no sensor of the demo sent: the user's own."""
        self.outstanding: dict[Reading, str] = {}
        self.last = ""
        self._seen: set[Reading] = set()
        self._latencies_s: deque[float] = deque(maxlen=RECENT)
        self._arrivals_s: deque[float] = deque(maxlen=RECENT)

    def expect(self, reading: Reading, topic: str) -> None:
        self.expected += 1
        self.outstanding[reading] = topic

    def arrive(self, reading: Reading, latency_s: float, now_s: float) -> None:
        if reading in self._seen:
            self.duplicates += 1
            return
        self._seen.add(reading)
        self.outstanding.pop(reading, None)
        self.received += 1
        self._latencies_s.append(latency_s)
        self._arrivals_s.append(now_s)

    def row(self, subscriber: str, now_s: float, window_s: float = 5.0) -> Row:
        """The account as it stands."""
        return Row(
            subscriber=subscriber,
            topic_filter=self.topic_filter,
            received=self.received,
            expected=self.expected,
            duplicates=self.duplicates,
            rate_per_s=sum(1 for at in self._arrivals_s if at > now_s - window_s) / window_s,
            latency_ms=median(self._latencies_s) * 1000 if self._latencies_s else None,
            last=self.last,
        )


class Ledger:
    """Every subscriber's account."""

    def __init__(self, plans: Sequence[SubscriberPlan]) -> None:
        self.accounts = {plan.name: Account(plan.topic_filter) for plan in plans}
        self.published = 0
        self._lock = threading.Lock()

    def publish(self, reading: Reading, topic: str) -> None:
        """Note a message that is about to be sent."""
        with self._lock:
            self.published += 1
            for account in self.accounts.values():
                if paho.topic_matches_sub(account.topic_filter, topic):
                    account.expect(reading, topic)

    def receive(self, subscriber: str, topic: str, payload: bytes) -> None:
        """Note a message that a subscriber got."""
        now_s = time.monotonic()
        parsed = _parse(payload)
        place = topic.removeprefix("home/")
        with self._lock:
            account = self.accounts[subscriber]
            if parsed is None:
                account.others += 1
                account.last = f"{payload[:40].decode(errors='replace')} {place}"
                return
            reading, sent_s, value = parsed
            account.arrive(reading, now_s - sent_s, now_s)
            account.last = f"{value} {place}"

    def rows(self) -> list[Row]:
        """Every account as it stands now, for showing."""
        now_s = time.monotonic()
        with self._lock:
            return [account.row(name, now_s) for name, account in self.accounts.items()]

    def complete(self) -> bool:
        """Whether all that should have arrived did."""
        with self._lock:
            return not any(account.outstanding for account in self.accounts.values())

    def missing(self) -> dict[str, dict[Reading, str]]:
        """By subscriber: the messages that have not arrived, with their topics."""
        with self._lock:
            return {n: dict(a.outstanding) for n, a in self.accounts.items() if a.outstanding}


def _parse(payload: bytes) -> tuple[Reading, float, str] | None:
    try:
        data = json.loads(payload)
        reading = Reading(str(data["sensor"]), int(data["sequence"]))
        return reading, float(data["sent_s"]), f"{data['value']} {data['unit']}"
    except (ValueError, KeyError, TypeError):
        return None


class _Client:
    """A paho client that is connected when its constructor returns."""

    def __init__(self, client_id: str, node: Address, version: int, login: Login | None) -> None:
        self.client_id = client_id
        self.version = version
        self._acknowledged = threading.Event()
        self._refusal = "no answer"
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion(version)
        )
        if login is not None:
            self.paho.username_pw_set(login.username, login.password)
        self.paho.on_connect = self._on_connect
        try:
            self.paho.connect(node.host, node.port, KEEP_ALIVE_S)
        except OSError as error:
            raise IsthmusError(f"{client_id} cannot connect to the node {node}: {error}") from None
        self.paho.loop_start()
        self._wait("CONNECT")

    def _on_connect(
        self, client: paho.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if code.is_failure:
            self._refusal = str(code)
        else:
            self._acknowledged.set()

    def _wait(self, packet: str, timeout_s: float = 10.0) -> None:
        if not self._acknowledged.wait(timeout_s):
            self.close()
            raise IsthmusError(f"{self.client_id}: {packet} was not accepted: {self._refusal}")
        self._acknowledged.clear()

    def disconnect(self) -> None:
        self.paho.disconnect()

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


class Login(NamedTuple):
    """What a broker asks its clients for."""

    username: str
    password: str


class Subscriber(_Client):
    """One client with one subscription; subscribed when its constructor returns."""

    def __init__(
        self,
        plan: SubscriberPlan,
        ledger: Ledger,
        node: Address,
        *,
        version: int = 4,
        login: Login | None = None,
    ) -> None:
        super().__init__(f"demo-{plan.name}", node, version, login)
        self.plan = plan
        self.paho.on_message = lambda _client, _userdata, message: ledger.receive(
            plan.name, message.topic, bytes(message.payload)
        )
        self.paho.on_subscribe = self._on_subscribe
        # Again after every reconnection: the demo's sessions are clean.
        self.paho.on_connect = lambda client, *_: client.subscribe(plan.topic_filter, plan.qos)
        self.paho.subscribe(plan.topic_filter, plan.qos)
        self._wait("SUBSCRIBE")

    def _on_subscribe(
        self,
        client: paho.Client,
        userdata: Any,
        packet_id: int,
        codes: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        failed = [str(code) for code in codes if code.is_failure]
        if failed:
            self._refusal = ", ".join(failed)
        else:
            self._acknowledged.set()


class Sensor(_Client):
    """One client that publishes a slowly changing value at a steady rate."""

    def __init__(
        self,
        plan: SensorPlan,
        ledger: Ledger,
        node: Address,
        *,
        version: int = 4,
        login: Login | None = None,
    ) -> None:
        name = plan.topic.replace("/", "-")
        super().__init__(f"demo-{name}", node, version, login)
        self.plan = plan
        self._ledger = ledger
        self._random = random.Random(name)
        self._value = plan.typical
        self._stop = threading.Event()
        self._unacknowledged: deque[paho.MQTTMessageInfo] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        due_s = time.monotonic()
        sequence = 0
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            self._publish(sequence)
            sequence += 1
            due_s += 1 / self.plan.rate_hz

    def _publish(self, sequence: int) -> None:
        self._value += self._random.uniform(-0.01, 0.01) * self.plan.typical
        reading = Reading(self.client_id, sequence)
        self._ledger.publish(reading, self.plan.topic)
        payload = json.dumps(
            {
                "sensor": reading.sensor,
                "sequence": reading.sequence,
                "sent_s": time.monotonic(),
                "value": round(self._value, 1),
                "unit": self.plan.unit,
            }
        )
        info = self.paho.publish(self.plan.topic, payload, self.plan.qos)
        # A publish that could not even be sent stays in the ledger and is reported missing.
        if info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._unacknowledged.append(info)
        while self._unacknowledged and _settled(self._unacknowledged[0]):
            self._unacknowledged.popleft()

    def stop(self, deadline_s: float) -> None:
        """Publish no more, and wait until `deadline_s` for what was sent to be acknowledged."""
        self._stop.set()
        self._thread.join()
        for info in self._unacknowledged:
            if not _settled(info):
                info.wait_for_publish(max(0.0, deadline_s - time.monotonic()))


def _settled(info: paho.MQTTMessageInfo) -> bool:
    """Whether nothing more is to come: acknowledged, or lost with its connection."""
    try:
        return info.is_published()
    except (RuntimeError, ValueError):  # paho's way to say that it will never be sent
        return True
