"""Many topics that go the same way, and then do not: nothing goes by what was true before.

a ── b ── c        a publishes on a topic for each message
"""

from __future__ import annotations

from itertools import count, pairwise

import pytest

from isthmus.exchange.traffic import plain, routes
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import check_at_rest
from isthmus.sim.node import SimNode

FEW = 5


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plain, routes):
        monkeypatch.setattr(module, "FEW", FEW)


def line(algorithm: str) -> tuple[SimFabric, list[SimNode]]:
    fabric = SimFabric(algorithm=algorithm, seed=5)
    nodes = [fabric.node(name) for name in "abc"]
    for one, other in pairwise(nodes):
        fabric.link(one, other)
    fabric.settle()
    return fabric, nodes


def remembered(node: SimNode) -> list[int]:
    """Of how many topics something is: those of clients, of links, and on the hot path."""
    traffic = node.exchange.traffic
    of_links = traffic.routes._of_links.values()
    return [
        traffic.client_routes.total,
        sum(table.total for table in of_links),
        sum(found.total for found in traffic.plain._found.values()),
    ]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("algorithm", ["pf", "sf"])
def test_routes_change_while_all_topics_are_alike(algorithm: str, qos: int) -> None:
    fabric, (a, b, c) = line(algorithm)
    publisher, numbers = a.client("p"), count()
    archive, other = c.client("archive"), b.client("other")

    def publish(prefix: str) -> list[bytes]:
        """What it was: on topics of their own, all of which begin with `prefix`."""
        payloads = []
        for _ in range(10 * FEW):
            payloads.append(b"%d" % next(numbers))
            publisher.publish(f"{prefix}/{payloads[-1].decode()}", payloads[-1], qos=qos)
        fabric.settle()
        return payloads

    def new(client: SimClient) -> list[bytes]:
        taken = client.payloads()[seen[client] :]
        seen[client] += len(taken)
        return taken

    seen = {archive: 0, other: 0}
    archive.subscribe("#")
    fabric.settle()
    everything = publish("x")
    assert new(archive) == everything
    for node in (a, b, c):
        assert max(remembered(node)) <= FEW, node
    other.subscribe("y/#")
    fabric.settle()
    both, neither = publish("y"), publish("x")
    assert new(archive) == both + neither
    assert new(other) == both
    archive.unsubscribe("#")
    archive.subscribe("z/+")
    fabric.settle()
    for prefix, reached in (("x", []), ("y", [other]), ("z", [archive]), ("z/w", [])):
        payloads = publish(prefix)
        for client in (archive, other):
            assert new(client) == (payloads if client in reached else [])
    other.unsubscribe("y/#")
    archive.unsubscribe("z/+")
    archive.subscribe("#")
    fabric.settle()
    publish("$nobody")
    everything = publish("z")
    assert new(archive) == everything
    assert new(other) == []
    check_at_rest(fabric)
