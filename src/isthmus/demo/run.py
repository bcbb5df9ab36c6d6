"""``isthmus up`` without a file: what a first look at Isthmus shows.

    sensors ─▶ garden ══════ house ══════ cloud ◀─ sensors
                 │             │            │
               broker        broker       broker       subscribers on all three

Three nodes, each in front of a broker of another make where more than one is installed, with
sensors and subscribers as real clients of the nodes, and a live table of what arrives.  The nodes
find each other by multicast on loopback and build a tree, whose shape is theirs to choose; where
there is no such multicast, two of them are told of the third, and the tree is the chain above.

The demo ends at Ctrl-C or after ``--for`` seconds: sensors stop first, then it waits for what is
still under way and exits 0 only if every message that should have arrived did.

Before any reading counts, every sensor has shown by a probe that there is a way from it to every
subscriber that wants its topic: a subscription takes a moment to reach the other nodes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from isthmus.config.addresses import Address
from isthmus.config.files import FabricConfig, FabricDiscovery
from isthmus.errors import AdminError, IsthmusError
from isthmus.fabric.admin_client import fetch_status
from isthmus.fabric.joining import no_multicast
from isthmus.fabric.processes import Fabric, RunningNode, free_address, interruptible
from isthmus.fabric.view import joined_lines

__all__ = ["run_demo"]

ARRIVAL_TIMEOUT_S = 10.0
REFRESH_S = 0.25
BROKERS = ("mosquitto", "embedded", "aedes", "moquette")
"""Kinds that start within two seconds, in the order in which they are taken."""
DISCOVERY = FabricDiscovery(group=Address("239.255.77.84", 0))


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
            problem = no_multicast(DISCOVERY)
            with Fabric(_fabric_config(finds=not problem)) as fabric:
                return _show(fabric, for_s, [_how(problem), *joined_lines(fabric.joined)])
        except KeyboardInterrupt:
            return 130  # before the sensors were running, or impatient at the end


def _fabric_config(*, finds: bool) -> FabricConfig:
    """Three nodes that find each other, or else a chain; one is on the usual ports if possible."""
    from isthmus.brokers import broker_class

    there = [kind for kind in BROKERS if broker_class(kind).missing() is None]
    house, garden, cloud, *_ = (there or ["embedded"]) * 3
    mqtt, admin = free_address(Address("127.0.0.1", 1883)), free_address(Address("127.0.0.1", 9883))
    peers = [] if finds else ["house"]
    nodes = [
        {"id": "garden", "broker": garden, "peers": peers},
        {"id": "house", "broker": house, "mqtt": mqtt, "admin": admin},
        {"id": "cloud", "broker": cloud, "peers": peers},
    ]
    algorithm = {"algorithm": "routed-tree"}
    tables = {"node": nodes, "cooperation": algorithm, "log": {"level": "warning"}}
    return FabricConfig.model_validate({**tables, **({"discovery": DISCOVERY} if finds else {})})


def _how(problem: str) -> str:
    """How the nodes came to know each other."""
    if not problem:
        return "Nobody told the nodes of each other: they found each other by multicast."
    return (
        "The nodes were told to link as garden - house - cloud: by multicast on loopback they "
        f"would not find each other here ({problem})."
    )


def _show(fabric: Fabric, for_s: float | None, how: Sequence[str]) -> int:
    """The traffic of one demo, from first connection to last arrival."""
    from isthmus.demo.traffic import DemoClients
    from isthmus.demo.view import View

    with ExitStack() as stack:
        traffic = DemoClients(fabric.nodes)
        stack.callback(traffic.close)
        traffic.connect()
        ledger, view = traffic.ledger, View(fabric.nodes, traffic.ledger, how)
        traffic.probe(ARRIVAL_TIMEOUT_S)
        crossed_before = _crossings(fabric.nodes)
        started_s = time.monotonic()
        traffic.start()
        failed: list[RunningNode] = []
        with suppress(KeyboardInterrupt), view.live():  # the usual end: as after --for
            while not failed and (for_s is None or time.monotonic() < started_s + for_s):
                view.refresh()
                time.sleep(min(REFRESH_S, for_s or REFRESH_S))
                failed = fabric.newly_dead()
        took_s = time.monotonic() - started_s
        traffic.stop()
        deadline_s = time.monotonic() + ARRIVAL_TIMEOUT_S
        while ledger.missing() and time.monotonic() < deadline_s and not failed:
            time.sleep(0.02)
        crossed = _crossings(fabric.nodes)
    for node in failed:
        print(f"isthmus: {node.death()}", file=sys.stderr)
    view.summary(
        took_s, None if crossed is None or crossed_before is None else crossed - crossed_before
    )
    return 0 if ledger.published and not ledger.missing() and not failed else 1


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
