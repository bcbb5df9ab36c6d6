"""Eight brokers of eight makes in one fabric, as `isthmus up` starts it.

                mosquitto
              /     |     \\
      rabbitmq  activemq  ejabberd
                          /     \\
                      aedes    moquette
                      /   \\
                 hivemq   embedded

A message from a client of each reaches a client of every other: at QoS 0, 1 and 2, retained (and
the deletion), and as a will.  Clients speak MQTT 5 where the broker does, else 3.1.1.

What brokers themselves do otherwise (docs/reference/brokers.md) is allowed for: RabbitMQ grants at
most QoS 1 and finds no retained message by a wildcard, Moquette delivers retained messages without
their flag and closes the connection of who subscribes while one is deleted
(tests/conformance/moquette_retained.py shows it without a node), and amqtt delivers them twice.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import require_broker
from isthmus.brokers import broker_class, create
from isthmus.config.addresses import Address
from isthmus.fabric.admin_client import fetch_status
from isthmus.mqtt.packets import Will
from support.fabrics import Closed, FabricClient
from support.waiting import wait_for

LINKS = {
    "mosquitto": [],
    "rabbitmq": ["mosquitto"],
    "activemq": ["mosquitto"],
    "ejabberd": ["mosquitto"],
    "aedes": ["ejabberd"],
    "moquette": ["ejabberd"],
    "hivemq": ["aedes"],
    "embedded": ["aedes"],
}
NAMES = list(LINKS)
CLOSES_WHILE_DELETING = {"moquette"}
START_S = 240.0
ARRIVE_S = 60.0


@dataclass(frozen=True, slots=True)
class Site:
    """One node of the fabric, as a client sees it."""

    name: str
    port: int
    admin: Address
    level: int

    def client(self, **fields: Any) -> FabricClient:
        broker = create(self.name)
        client = FabricClient(self.port, self.level, timeout_s=ARRIVE_S)
        if broker.username is not None and broker.password is not None:
            fields |= {"username": broker.username, "password": broker.password.encode()}
        try:
            client.connect(f"{self.name}-{os.urandom(4).hex()}", **fields)
        except BaseException:
            client.raw.close()
            raise
        return client


@contextmanager
def fabric_of_all(folder: Path, algorithm: str) -> Iterator[dict[str, Site]]:
    """`isthmus up` with one node for each make; stopped with SIGTERM, which must succeed."""
    file = folder / "fabric.toml"
    nodes = [
        f'[[node]]\nid = "{name}"\nbroker = "{name}"\npeers = {peers!r}\n'
        for name, peers in LINKS.items()
    ]
    file.write_text("\n".join([*nodes, f'[cooperation]\nalgorithm = "{algorithm}"\n']))
    output = folder / "output"
    with output.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "isthmus", "up", str(file)],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    try:
        wait_for(
            lambda: process.poll() is not None or "Ctrl-C ends the fabric" in output.read_text(),
            START_S,
            "eight brokers and nodes to start",
            every_s=0.1,
        )
        assert process.poll() is None, output.read_text()
        yield sites_in(output.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert process.returncode == 0, output.read_text()


def sites_in(output: str) -> dict[str, Site]:
    sites = {}
    for name, port, admin in re.findall(
        r"^([\w-]+): mqtt 127\.0\.0\.1:(\d+), .*admin http://([\d.:]+)/", output, re.MULTILINE
    ):
        level = max(broker_class(name).protocol_levels)
        sites[name] = Site(name, int(port), Address.parse(admin), level)
    assert set(sites) == set(NAMES), output
    return sites


def everywhere(work: Callable[[str], Any]) -> dict[str, Any]:
    """`work` for each site at the same time."""
    with ThreadPoolExecutor(len(NAMES)) as pool:
        return dict(zip(NAMES, pool.map(work, NAMES), strict=True))


def until_settled(sites: dict[str, Site], filters: int) -> None:
    """SF: until every node has heard from each neighbor about the one common filter."""

    def heard(site: Site) -> bool:
        algorithm = fetch_status(site.admin)["fabric"]["algorithm"]
        return algorithm["name"] != "sf" or all(
            neighbor["received_filters"] >= filters for neighbor in algorithm["neighbors"].values()
        )

    wait_for(lambda: all(map(heard, sites.values())), 30, "inter-subscriptions", every_s=0.1)


def all_of(kinds: list[str]) -> set[str]:
    return {f"{kind} {name}" for kind in kinds for name in NAMES}


def check_live(sites: dict[str, Site]) -> None:
    """QoS 0, 1 and 2, and wills: each of the 32 messages arrives at all 8 clients, once."""
    kinds = ["qos0", "qos1", "qos2", "will"]
    with ExitStack() as stack:
        subscribers = everywhere(lambda name: sites[name].client())
        for subscriber in subscribers.values():
            stack.enter_context(subscriber)
        everywhere(lambda name: subscribers[name].subscribe("all/#", qos=2))
        until_settled(sites, 1)

        def publish(name: str) -> None:
            will = Will(f"all/{name}", f"will {name}".encode(), 1)
            with sites[name].client(will=will) as client:
                for qos in (0, 1, 2):
                    client.publish(f"all/{name}", f"qos{qos} {name}".encode(), qos)
                # and the connection breaks

        def collect(name: str) -> Counter[str]:
            return Counter(
                subscribers[name].next().payload.decode() for _ in range(len(kinds) * len(NAMES))
            )

        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(everywhere, publish)
            got = everywhere(collect)
            publishing.result()
    for name, messages in got.items():
        assert set(messages) == all_of(kinds), (name, all_of(kinds) - set(messages))
        assert set(messages.values()) == {1}, (name, messages)


def check_retained(sites: dict[str, Site]) -> None:
    """A retained message of each is at every broker; and none any more after the deletion."""

    def publish(name: str) -> None:
        with sites[name].client() as client:
            client.publish(f"kept/{name}", f"kept {name}".encode(), 1, retain=True)

    def read(name: str) -> set[str]:
        """What a new subscriber is given, topic by topic, before a marker of its own."""
        with sites[name].client() as client:
            marker = f"marker {name} {os.urandom(4).hex()}"
            for topic in (*(f"kept/{each}" for each in NAMES), f"marker/{name}"):
                client.subscribe(topic, qos=1)
            client.publish(f"marker/{name}", marker.encode(), 1)
            return {message.payload.decode() for message in client.until(marker.encode())}

    def has(name: str, wanted: set[str]) -> bool:
        try:
            return read(name) == wanted
        except Closed:
            if name in CLOSES_WHILE_DELETING and not wanted:
                return False
            raise

    def until_read(wanted: set[str]) -> None:
        everywhere(
            lambda name: wait_for(
                lambda: has(name, wanted), ARRIVE_S, f"{wanted} at {name}", every_s=0.3
            )
        )

    everywhere(publish)
    until_read(all_of(["kept"]))
    # Each is deleted by a client of another broker than the one it came from.
    after = dict(zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True))

    def delete(name: str) -> None:
        with sites[name].client() as client:
            client.publish(f"kept/{after[name]}", b"", 1, retain=True)

    everywhere(delete)
    until_read(set())


@pytest.mark.parametrize("algorithm", ["sf", pytest.param("pf", marks=pytest.mark.slow)])
def test_every_broker_reaches_every_other(tmp_path: Path, algorithm: str) -> None:
    for name in NAMES:
        require_broker(name)
    with fabric_of_all(tmp_path, algorithm) as sites:
        check_live(sites)
        check_retained(sites)
