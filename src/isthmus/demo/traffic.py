"""The demo's clients: real ones, by paho-mqtt, that publish to the nodes and listen to them.

paho runs one thread per client and one more publishes for all sensors, so that Ctrl-C never falls
between a note in the ledger and the message that it is about.
"""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from isthmus.demo.ledger import PROBE, Ledger, SensorPlan, SubscriberPlan
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

    from isthmus.fabric.processes import RunningNode

__all__ = ["DemoClients"]

ANSWER_S = 10.0
KEEP_ALIVE_S = 30
TICK_S = 0.05
SENSORS = (
    SensorPlan("garden", "home/garden/temperature", "°C", 2, 1, 14.0),
    SensorPlan("garden", "home/garden/light", "lx", 4, 0, 8000.0),
    SensorPlan("house", "home/kitchen/temperature", "°C", 2, 0, 21.0),
    SensorPlan("house", "home/kitchen/humidity", "%", 1, 1, 45.0),
    SensorPlan("house", "home/attic/temperature", "°C", 5, 0, 27.0),
    SensorPlan("cloud", "home/forecast/temperature", "°C", 1, 1, 12.0),
)
SUBSCRIBERS = (
    SubscriberPlan("garden", "gardener", "home/garden/#", 1),
    SubscriberPlan("house", "thermostat", "home/+/temperature", 0),
    SubscriberPlan("cloud", "kitchen", "home/kitchen/#", 1),
    SubscriberPlan("cloud", "archive", "home/+/temperature", 1),
)


class _Client:
    """A paho client that is connected when its constructor returns."""

    def __init__(self, client_id: str, node: RunningNode, number: int) -> None:
        broker = node.broker
        version = 5 if broker is not None and 5 in broker.protocol_levels and number % 2 else 4
        self.client_id = client_id
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion(version)
        )
        if broker is not None and broker.username:
            self.paho.username_pw_set(broker.username, broker.password or "")
        self._answers: queue.SimpleQueue[list[ReasonCode]] = queue.SimpleQueue()
        self.paho.on_connect = lambda _client, _data, _flags, code, _p: self._answers.put([code])
        try:
            self.paho.connect(node.mqtt.host, node.mqtt.port, KEEP_ALIVE_S)
        except OSError as error:
            problem = f"{client_id} cannot connect to the node {node.mqtt}: {error}"
            raise IsthmusError(problem) from None
        self.paho.loop_start()
        self._await("CONNECT")
        self.paho.on_connect = None

    def _await(self, packet: str) -> None:
        try:
            codes = self._answers.get(timeout=ANSWER_S)
            refusal = ", ".join(str(code) for code in codes if code.is_failure)
        except queue.Empty:
            refusal = "no answer"
        if refusal:
            self.close()
            raise IsthmusError(f"{self.client_id}: {packet} was not accepted: {refusal}")

    def subscribe(self, plan: SubscriberPlan, ledger: Ledger) -> None:
        self.paho.on_message = lambda _client, _data, message: ledger.receive(
            plan.name, message.topic, bytes(message.payload)
        )
        self.paho.on_subscribe = lambda _client, _data, _id, codes, _p: self._answers.put(codes)
        # Again after every reconnection: the demo's sessions are clean.
        self.paho.on_connect = lambda client, *_: client.subscribe(plan.topic_filter, plan.qos)
        self.paho.subscribe(plan.topic_filter, plan.qos)
        self._await("SUBSCRIBE")
        self.paho.on_subscribe = None

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


class DemoClients:
    """All clients of the demo."""

    def __init__(self, nodes: Sequence[RunningNode]) -> None:
        self.ledger = Ledger(SUBSCRIBERS, SENSORS)
        self._nodes = {node.id: node for node in nodes}
        self._clients: list[_Client] = []
        self._stopping = threading.Event()
        self._publishing = threading.Thread(target=self._publish, name="sensors", daemon=True)

    def connect(self) -> None:
        """Subscribers first: what is published before they subscribed is not theirs to get."""
        for number, subscriber in enumerate(SUBSCRIBERS):
            node = self._nodes[subscriber.node]
            self._clients.append(_Client(f"demo-{subscriber.name}", node, number))
            self._clients[-1].subscribe(subscriber, self.ledger)
        for number, sensor in enumerate(SENSORS):
            client_id = f"demo-{sensor.topic.replace('/', '-')}"
            self._clients.append(_Client(client_id, self._nodes[sensor.node], number))

    @property
    def _sensors(self) -> dict[SensorPlan, paho.Client]:
        clients = self._clients[len(SUBSCRIBERS) :]
        return {plan: client.paho for plan, client in zip(SENSORS, clients, strict=True)}

    def probe(self, timeout_s: float) -> None:
        """Publish what counts for nothing but for its way, until every sensor has shown one."""
        deadline_s = time.monotonic() + timeout_s
        while unprobed := self.ledger.unprobed():
            if time.monotonic() > deadline_s:
                subscriber, topic = min(unprobed)
                raise IsthmusError(
                    f"nothing on {topic} reaches {subscriber} within {timeout_s:g} s "
                    f"({len(unprobed)} such pairs)"
                )
            for plan, client in self._sensors.items():
                if plan.topic in {topic for _, topic in unprobed}:
                    client.publish(plan.topic, PROBE)
            time.sleep(TICK_S)

    def start(self) -> None:
        self._publishing.start()

    def _publish(self) -> None:
        """Every sensor's slowly changing value at its steady rate."""
        rng = random.Random(6)
        began_s = time.monotonic()
        values = {plan: plan.typical for plan in SENSORS}
        sent = dict.fromkeys(SENSORS, 0)
        while not self._stopping.wait(TICK_S):
            for plan, client in self._sensors.items():
                if (time.monotonic() - began_s) * plan.rate_hz < sent[plan]:
                    continue
                values[plan] += rng.uniform(-0.01, 0.01) * plan.typical
                self.ledger.publish(plan.topic, sent[plan])
                content = {
                    "number": sent[plan],
                    "sent_s": time.monotonic(),
                    "value": f"{values[plan]:.1f} {plan.unit}",
                }
                # What could not even be sent stays in the ledger and is reported missing.
                client.publish(plan.topic, json.dumps(content), plan.qos)
                sent[plan] += 1

    def stop(self) -> None:
        """Publish no more."""
        self._stopping.set()
        self._publishing.join()

    def close(self) -> None:
        """Disconnects first, all together, then joins the clients' threads one by one."""
        self._stopping.set()
        for client in self._clients:
            client.paho.disconnect()
        for client in self._clients:
            client.close()
