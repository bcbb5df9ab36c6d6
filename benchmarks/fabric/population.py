"""The relay benchmark's load, publishers on the near side and subscribers where they are wanted.

A subscription at the far side takes its time to reach the near one, and a bridge to connect.  The
*probe* waits for it: a subscriber that comes after all others, and a message that is published on
the near side again and again until one arrives.  Links are in order, so what was subscribed before
the probe's topic is known there too.
"""

from __future__ import annotations

import select
import time

from benchmarks.fabric.sites import Site
from benchmarks.relay.load import HERE, Load, clients_of, connect, loopback

from isthmus.bench.load.frames import LEVEL
from isthmus.errors import LoadError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish

__all__ = ["load_site", "probe"]

PROBE_EVERY_S = 0.02
PROBE_S = 30.0
FAR = "n2"


def load_site(site: Site, *, across: bool) -> Load:
    """Publishers at the near side, subscribers at the far one (`across`) or at the near one too."""
    targets = {HERE: loopback(site.near_port), FAR: loopback(site.far_port)}
    return Load(clients_of(FAR if across else HERE), targets)


def probe(site: Site) -> None:
    """Wait until a message from the near side arrives at the far one."""
    [receiver], [sender] = connect(site.far_port, 1, ["probe"]), connect(site.near_port, 1)
    with receiver, sender, select.epoll() as poll:
        poll.register(receiver.fileno(), select.EPOLLIN)
        deadline = time.monotonic() + PROBE_S
        while not poll.poll(PROBE_EVERY_S):
            if time.monotonic() > deadline:
                raise LoadError(f"no message crossed within {PROBE_S:.0f} s; are they joined?")
            sender.send(encode(Publish("probe", b""), LEVEL))
