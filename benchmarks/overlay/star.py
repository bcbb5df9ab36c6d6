"""Five Mosquittos joined by their own bridges: one is the center, and the others connect to it.

The bridges are given what spares them a loss: QoS 1, persistent sessions, queues without a limit,
and a center that stores its sessions every second.  (After every change, as it could as well, it
needs many times as long for what has gathered, and it is a gap of another kind.)  How often they
try to connect again is Mosquitto's default, 5 to 30 seconds.  Their links are bare loopback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.overlay.members import started_brokers

from isthmus.brokers import create
from isthmus.brokers.base import Broker

__all__ = ["Star", "bridge_lines", "running_star"]

QUEUES = "max_queued_messages 0"
STORED = ("persistence true", "autosave_on_changes false", "autosave_interval 1")


@dataclass(frozen=True, slots=True)
class Star:
    center: Broker
    leaves: Sequence[Broker]


def bridge_lines(name: str, center_port: int) -> list[str]:
    """`try_private` has the center not send back what came over the bridge."""
    return [
        QUEUES,
        f"connection {name}",
        f"address 127.0.0.1:{center_port}",
        "topic # both 1",
        "bridge_protocol_version mqttv311",
        "try_private true",
        "cleansession false",
        "notifications false",
    ]


@contextmanager
def running_star(leaves: Sequence[str]) -> Iterator[Star]:
    """A center, and a leaf of each of these names."""
    with ExitStack() as stack:
        center = create("mosquitto", extra=[QUEUES, *STORED])
        started_brokers(stack, [center])
        around = [create("mosquitto", extra=bridge_lines(name, center.port)) for name in leaves]
        started_brokers(stack, around)
        yield Star(center, around)
