"""``isthmus up`` without a file: what a first look at Isthmus shows.

    sensors ─▶ garden ══════ house ══════ cloud ◀─ sensors
                 │             │            │
               broker        broker       broker       subscribers on all three

Three nodes in a chain, each in front of a broker of another make where more than one is installed,
with sensors and subscribers as real clients of the nodes, and a live table of what arrives.  The
demo ends at Ctrl-C or after ``--for`` seconds: sensors stop first, then it waits for what is still
under way and exits 0 only if every message that should have arrived did.

Before any reading counts, every sensor has shown by a probe that there is a way from it to every
subscriber that wants its topic: a subscription takes a moment to reach the other nodes.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from isthmus.config.addresses import Address
from isthmus.config.files import FabricConfig
from isthmus.errors import AdminError, IsthmusError
from isthmus.fabric.admin_client import fetch_status
from isthmus.fabric.processes import Fabric, RunningNode, free_address, interruptible

if TYPE_CHECKING:
    from isthmus.demo.ledger import Ledger
    from isthmus.demo.traffic import Login, Sensor, Subscriber
    from isthmus.demo.view import View

__all__ = ["run_demo"]

ARRIVAL_TIMEOUT_S = 10.0
REFRESH_S = 0.25
PROBE_S = 0.05
BROKERS = ("mosquitto", "embedded", "aedes", "moquette")
"""Kinds that start within two seconds, in the order in which they are taken."""


def run_demo(for_s: float | None) -> int:
    """Show the demo until Ctrl-C or for `for_s`; 0 if all arrived, else 1."""
    try:
        import paho.mqtt.client  # noqa: F401
    except ImportError:
        raise IsthmusError(
            "the demo's sensors need paho-mqtt; install it with: pip install 'isthmus[demo]'"
        ) from None
    with interruptible():
        try:
            print("Starting three brokers and three nodes …", file=sys.stderr)
            with Fabric(_fabric_config()) as fabric:
                return _Demo(fabric).run(for_s)
        except KeyboardInterrupt:
            return 130  # before the sensors were running, or impatient at the end


def _fabric_config() -> FabricConfig:
    """A chain of three nodes; the middle one is on the usual ports when they are free."""
    mqtt, admin = free_address(Address("127.0.0.1", 1883)), free_address(Address("127.0.0.1", 9883))
    house, garden, cloud = _brokers()
    nodes = [
        {"id": "garden", "broker": garden, "peers": ["house"]},
        {"id": "house", "broker": house, "mqtt": mqtt, "admin": admin},
        {"id": "cloud", "broker": cloud, "peers": ["house"]},
    ]
    return FabricConfig.model_validate({"node": nodes, "log": {"level": "warning"}})


def _brokers() -> tuple[str, str, str]:
    """Three kinds of broker, different ones as far as they are installed."""
    from isthmus.brokers import broker_class

    there = [kind for kind in BROKERS if broker_class(kind).missing() is None]
    first, second, third, *_ = (there or ["embedded"]) * 3
    return first, second, third


class _Demo:
    """The traffic of one demo, from first connection to last arrival."""

    def __init__(self, fabric: Fabric) -> None:
        from isthmus.demo.ledger import Ledger, SensorPlan, SubscriberPlan
        from isthmus.demo.view import View

        self._fabric = fabric
        self._sensors_planned = (
            SensorPlan("garden", "home/garden/temperature", "°C", 2, 1, 14.0),
            SensorPlan("garden", "home/garden/light", "lx", 4, 0, 8000.0),
            SensorPlan("house", "home/kitchen/temperature", "°C", 2, 0, 21.0),
            SensorPlan("house", "home/kitchen/humidity", "%", 1, 1, 45.0),
            SensorPlan("house", "home/attic/temperature", "°C", 5, 0, 27.0),
            SensorPlan("cloud", "home/forecast/temperature", "°C", 1, 1, 12.0),
        )
        self._subscribers_planned = (
            SubscriberPlan("garden", "gardener", "home/garden/#", 1),
            SubscriberPlan("house", "thermostat", "home/+/temperature", 0),
            SubscriberPlan("cloud", "kitchen", "home/kitchen/#", 1),
            SubscriberPlan("cloud", "archive", "home/+/temperature", 1),
        )
        self.ledger: Ledger = Ledger(self._subscribers_planned, self._sensors_planned)
        self._view: View = View(fabric.nodes, self.ledger, len(self._sensors_planned))
        self._clients: list[Sensor | Subscriber] = []
        self._failed: list[RunningNode] = []

    def run(self, for_s: float | None) -> int:
        with ExitStack() as clients:
            # Disconnects first, all together, then joins the clients' threads one by one.
            clients.callback(lambda: [client.close() for client in self._clients])
            clients.callback(lambda: [client.disconnect() for client in self._clients])
            sensors = self._connect()
            self._probe(sensors)
            crossed_before = _crossings(self._fabric.nodes)
            started_s = time.monotonic()
            for sensor in sensors:
                sensor.start()
            try:
                self._watch(None if for_s is None else started_s + for_s)
            except KeyboardInterrupt:
                pass  # the usual end: from here on as after --for
            took_s = time.monotonic() - started_s
            self._settle(sensors)
            crossed = _crossings(self._fabric.nodes)
        for node in self._failed:
            print(f"isthmus: {node.death()}", file=sys.stderr)
        between = None if crossed is None or crossed_before is None else crossed - crossed_before
        self._view.summary(took_s, between)
        complete = self.ledger.complete() and self.ledger.published > 0
        return 0 if complete and not self._failed else 1

    def _connect(self) -> list[Sensor]:
        """Subscribers first: what is published before they subscribed is not theirs to get."""
        from isthmus.demo.traffic import Sensor, Subscriber

        nodes = {node.id: node for node in self._fabric.nodes}
        for i, wanted in enumerate(self._subscribers_planned):
            node = nodes[wanted.node]
            self._clients.append(
                Subscriber(
                    wanted, self.ledger, node.mqtt, version=_version(node, i), login=_login(node)
                )
            )
        sensors: list[Sensor] = []
        for i, plan in enumerate(self._sensors_planned):
            node = nodes[plan.node]
            sensor = Sensor(
                plan, self.ledger, node.mqtt, version=_version(node, i), login=_login(node)
            )
            self._clients.append(sensor)
            sensors.append(sensor)
        return sensors

    def _probe(self, sensors: list[Sensor]) -> None:
        """Until there is a way from every sensor to all that want its topic."""
        deadline_s = time.monotonic() + ARRIVAL_TIMEOUT_S
        while unprobed := self.ledger.unprobed():
            if time.monotonic() > deadline_s:
                subscriber, sensor_name = min(unprobed)
                raise IsthmusError(
                    f"nothing from {sensor_name} reaches {subscriber} within {ARRIVAL_TIMEOUT_S:g}"
                    f" s ({len(unprobed)} such pairs)"
                )
            waiting = {name for _, name in unprobed}
            for sensor in sensors:
                if sensor.plan.name in waiting:
                    sensor.probe()
            time.sleep(PROBE_S)

    def _watch(self, end_s: float | None) -> None:
        """Show what happens until `end_s`, or until a node dies."""
        with self._view.live():
            while end_s is None or time.monotonic() < end_s:
                self._failed = self._fabric.newly_dead()
                if self._failed:
                    return
                self._view.refresh()
                left_s = REFRESH_S if end_s is None else end_s - time.monotonic()
                time.sleep(max(0.0, min(REFRESH_S, left_s)))

    def _settle(self, sensors: list[Sensor]) -> None:
        """Stop the sensors, then wait until all arrived or the time is over."""
        deadline_s = time.monotonic() + ARRIVAL_TIMEOUT_S
        for sensor in sensors:
            sensor.stop(deadline_s)
        while not self.ledger.complete() and time.monotonic() < deadline_s and not self._failed:
            time.sleep(0.02)


def _crossings(nodes: list[RunningNode]) -> int | None:
    """How many messages all nodes together have sent to neighbors; None if one cannot tell."""
    try:
        return sum(
            int(link["sent"])
            for node in nodes
            for link in fetch_status(node.admin)["fabric"]["links"]
        )
    except (AdminError, KeyError):
        return None


def _version(node: RunningNode, i: int) -> int:
    """MQTT 3.1.1 and 5 in turn, where the broker speaks both."""
    speaks_5 = node.broker is not None and 5 in node.broker.protocol_levels
    return 5 if speaks_5 and i % 2 else 4


def _login(node: RunningNode) -> Login | None:
    from isthmus.demo.traffic import Login

    broker = node.broker
    if broker is None or not broker.username:
        return None
    return Login(broker.username, broker.password or "")
