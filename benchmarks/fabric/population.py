"""The relay benchmark's clients, publishers on the near side and subscribers where they are wanted.

A subscription at the far side takes its time to reach the near one, and a bridge to connect.  The
*probe* waits for it: a subscriber that comes after all others, and a message that is published on
the near side again and again until one arrives.  Links are in order, so what was subscribed before
the probe's topic is known there too.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.fabric.sites import Site
from benchmarks.relay.clients import LoadError, connected, subscribe_clients
from benchmarks.relay.population import Population, Publisher, Shape, Subscriber
from benchmarks.relay.wire import publish, topic

__all__ = ["populate_site", "probe"]

PROBE_EVERY_S = 0.02
PROBE_S = 30.0


@contextmanager
def populate_site(site: Site, shape: Shape, tag: str, *, across: bool) -> Iterator[Population]:
    """Publishers at the near side, subscribers at the far one (`across`) or at the near one too."""
    sub_ids = [f"{tag}-s{i}" for i in range(shape.subscribers)]
    pub_ids = [f"{tag}-p{i}" for i in range(shape.publishers)]
    sub_port = site.far_port if across else site.near_port
    with connected(sub_port, sub_ids) as sub_socks, connected(site.near_port, pub_ids) as pub_socks:
        subscribers = [Subscriber(i % shape.topics) for i in range(shape.subscribers)]
        subscribe_clients(sub_socks, [topic(s.topic_number) for s in subscribers])
        publishers = [Publisher(i, i % shape.topics, s) for i, s in enumerate(pub_socks)]
        if across:
            probe(site, tag)
        yield Population(shape, publishers, subscribers, sub_socks)


def probe(site: Site, tag: str) -> None:
    """Wait until a message from the near side arrives at the far one."""
    name = f"probe/{tag}"
    with (
        connected(site.far_port, [f"{tag}-probe-s"]) as (receiver,),
        connected(site.near_port, [f"{tag}-probe-p"]) as (sender,),
        select.epoll() as poll,
    ):
        subscribe_clients([receiver], [name])
        poll.register(receiver.fileno(), select.EPOLLIN)
        deadline = time.monotonic() + PROBE_S
        while not poll.poll(PROBE_EVERY_S):
            if time.monotonic() > deadline:
                raise LoadError(f"no message crossed within {PROBE_S:.0f} s; are they joined?")
            sender.send(publish(name, 0, 0, 0))
