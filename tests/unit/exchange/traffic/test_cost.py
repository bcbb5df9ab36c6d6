"""What queued messages take in memory, and what `queue_bytes` counts."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from isthmus.exchange.link import lane
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic import in_hand
from isthmus.exchange.traffic.in_hand import MAX_UNSAFE
from isthmus.exchange.traffic.message import from_publish
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.sim import SimFabric

MESSAGES = 8_000


@contextmanager
def measured() -> Iterator[list[int]]:
    """The bytes that are in use more at the end than at the beginning."""
    taken: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield taken
        gc.collect()
        taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def publish(fabric: SimFabric, size: int) -> None:
    frame = encode(Publish("some/topic/1", bytes(size), 1, packet_id=7), 4)
    node = fabric.nodes["a"]
    for _ in range(MESSAGES):
        topic = bytes(bytearray(b"some/topic/1"))  # each its own, as they come from a socket
        message = from_publish(frame, 4, topic, "a", float(fabric.now_s))
        node.exchange.client_publish(message, lambda: lambda: None)


@pytest.mark.parametrize("size", [16, 100, 1_000])
@pytest.mark.parametrize("where", ["link", "awaited"])
def test_what_is_counted_is_what_it_takes(where: str, size: int) -> None:
    """For a link that is down, and for a neighbor of the last life that is not back."""
    fabric = SimFabric(seed=1, algorithm="pf", link=LinkSettings(hold_s=1e6, queue_bytes=1 << 40))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    fabric.settle()
    fabric.crash(b, silent=True)
    if where == "awaited":
        fabric.crash(a)
        fabric.restart(a)
    fabric.run(10.0)
    with measured() as taken:
        publish(fabric, size)
    if where == "awaited":
        counted = a.exchange.recovery.awaited["b"].bytes
    else:
        counted = a.exchange.links.links["b"].unacked_bytes()
    assert 0.8 < taken[0] / counted < 1.2, (taken[0] / MESSAGES, counted / MESSAGES)


def test_what_is_in_hand_for_a_neighbor_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """a ── t ── b: what t keeps for b and has not acknowledged to a."""
    monkeypatch.setattr(lane, "WINDOW", 2 * MESSAGES)
    monkeypatch.setattr(lane, "MAX_BUSY", 2 * MESSAGES)
    monkeypatch.setattr(in_hand, "MAX_UNSAFE", 2 * MESSAGES)
    fabric = SimFabric(seed=1, algorithm="pf", link=LinkSettings(hold_s=1e6, queue_bytes=1 << 40))
    a, t, b = fabric.node("a"), fabric.node("t"), fabric.node("b")
    fabric.link(a, t)
    fabric.link(t, b)
    fabric.settle()
    fabric.crash(b, silent=True)
    fabric.run(10.0)
    publish(fabric, 16)
    with measured() as taken:
        fabric.run(5.0)
    link = t.exchange.links.links["b"]
    assert link.unacked() == MESSAGES
    assert 0.8 < taken[0] / link.unacked_bytes() < 1.2, taken[0] / MESSAGES


def test_what_was_let_go_takes_no_more_than_is_counted() -> None:
    """a ── t ── b: what t keeps for b and its broker, and a has had acknowledged."""
    fabric = SimFabric(seed=1, algorithm="pf", link=LinkSettings(hold_s=1e6, queue_bytes=1 << 40))
    a, t, b = fabric.node("a"), fabric.node("t"), fabric.node("b")
    fabric.link(a, t)
    fabric.link(t, b)
    fabric.settle()
    fabric.crash(b, silent=True)
    fabric.run(10.0)
    publish(fabric, 16)
    with measured() as taken:
        fabric.run(5.0)
    assert t.exchange.traffic.in_hand.only_here == MESSAGES - MAX_UNSAFE
    counted = t.exchange.links.links["b"].unacked_bytes()
    assert 0.5 < taken[0] / counted < 1.0, taken[0] / MESSAGES
