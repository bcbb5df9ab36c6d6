"""The demo's sensors and subscribers: real MQTT clients of the nodes.

Sensors publish JSON readings that carry the sensor's name and node, a sequence number and the time
of sending; each is noted in the :mod:`isthmus.demo.ledger` before it is sent.

Threads: paho-mqtt runs one per client and each sensor has one of its own; what they share is the
ledger, which takes its lock for every change.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from isthmus.config.addresses import Address
from isthmus.demo.ledger import PROBE, Ledger, Reading, SensorPlan, SubscriberPlan
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

__all__ = ["Login", "Sensor", "Subscriber"]

KEEP_ALIVE_S = 30


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
        super().__init__(plan.name, node, version, login)
        self.plan = plan
        self._ledger = ledger
        self._random = random.Random(plan.name)
        self._value = plan.typical
        self._stop = threading.Event()
        self._unacknowledged: deque[paho.MQTTMessageInfo] = deque()
        self._thread = threading.Thread(target=self._run, name=plan.name, daemon=True)

    def probe(self) -> None:
        """Publish something that counts for nothing but for the way it takes."""
        self.paho.publish(self.plan.topic, json.dumps({PROBE: self.plan.name}), 0)

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
        reading = Reading(self.plan.name, sequence)
        self._ledger.publish(reading, self.plan)
        payload = json.dumps(
            {
                "sensor": reading.sensor,
                "node": self.plan.node,
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
