"""The comparison of retained messages waits while a link has no room."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.sim import SimFabric
from isthmus.sim.network import SimChannel


def test_a_comparison_waits_for_room_and_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = SimFabric(seed=1, algorithm="pf")
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    fabric.settle()
    link = a.exchange.links.links["b"]
    said: list[bytes] = []
    send_control = type(link).send_control

    def noted(self: Any, packet: bytes) -> bool:
        if self is link and b"$isthmus/retained" in packet:
            said.append(packet)
        return send_control(self, packet)

    monkeypatch.setattr(type(link), "send_control", noted)
    with monkeypatch.context() as full:
        full.setattr(SimChannel, "buffered_bytes", lambda self: 2 << 20)
        retention = a.exchange.retention
        retention._compare(link, retention._compared[link], alone=True)
        fabric.run(5.0)
        assert said == []
    fabric.run(5.0)
    assert said
