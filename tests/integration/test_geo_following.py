"""Somebody moves through cells in which others publish all the time, behind a gateway.

    publishers ──▶ gateway ┬─ tap ─ mosquitto  0, 1
    who moves  ◀══         └─ tap ─ mosquitto  2, 3

Counted at the brokers: only what a step changes is sent there.
"""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance.clients import Client
from conftest import require_broker
from isthmus.brokers import create
from isthmus.cooperation.geo import Area, CellSet, Circle, Following
from isthmus.mqtt.packets import Subscription
from support.filter_taps import FilterTap
from support.gateways import Crowd, Login, gateway
from support.waiting import wait_for

K = 4
PLANE = Area.plane(0, 0, 16, 16)
RADIUS = 2.5
STEPS = 16
MESSAGES_A_STEP = 6


class Load(threading.Thread):
    """Publishes in cells around who moves, at QoS 1; notes in which steps each was under way."""

    def __init__(self, client: Client, crowd: Crowd, number: int) -> None:
        super().__init__(daemon=True)
        self._client, self._crowd, self._number = client, crowd, number
        self._random = random.Random(number)
        self.position = (0.0, 0.0)
        self.step = 0
        self.end = threading.Event()
        self.sent: list[tuple[str, str, int, int]] = []
        """Cell, payload, and the steps in which it was sent and acknowledged."""

    def run(self) -> None:
        while not self.end.is_set():
            x, y = (min(max(at + self._random.uniform(-4, 4), 0), 15.9) for at in self.position)
            cell, payload = PLANE.cell((x, y), K), f"{self._number}-{len(self.sent)}"
            begun = self.step
            assert self._client.publish(self._crowd.topic(cell), payload.encode(), qos=1)
            self.sent.append((cell, payload, begun, self.step))


@pytest.mark.parametrize("slack", [0.0, 0.3])
def test_only_differences_are_sent_and_nothing_near_is_missed(tmp_path: Path, slack: float) -> None:
    require_broker("mosquitto")
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(create("mosquitto")) for name in ("north", "south")}
        taps = {name: stack.enter_context(FilterTap(each.port)) for name, each in brokers.items()}
        cells = {"north": ["0", "1"], "south": ["2", "3"]}
        node = stack.enter_context(
            gateway(tmp_path, taps, "g", cooperation={"k": K, "cells": cells})  # type: ignore[arg-type]
        )
        node.wait_until(node.is_ready)
        crowd = stack.enter_context(Crowd("paho", 5, Login()))
        mover = crowd.connected(node.port)
        loads = [Load(crowd.connected(node.port), crowd, number) for number in range(2)]
        following = Following(PLANE, K, K, f"{crowd.run}/t", slack=slack)
        wanted: list[CellSet] = []
        told: list[str] = []
        taken: list[str] = []
        for step in range(STEPS):
            position = 1.0 + 0.9 * step, 6.0 + 0.25 * step
            before = set(following.filters)
            change = following.follow(position, RADIUS)
            assert set(change.added) == set(following.filters) - before
            assert set(change.removed) == before - set(following.filters)
            told += change.added
            taken += change.removed
            if change.added:
                asked = [Subscription(each, 1) for each in change.added]
                assert mover.subscribe(asked) == (1,) * len(asked)
            wanted.append(Circle(position, RADIUS).cells(PLANE, K))
            for load in loads:
                load.position, load.step = position, step
                if not step:
                    load.start()
            for each in change.removed:
                assert mover.unsubscribe(each)
            enough = [len(load.sent) + MESSAGES_A_STEP for load in loads]
            wait_for(
                lambda: all(len(load.sent) >= n for load, n in zip(loads, enough, strict=True)),  # noqa: B023
                30,
                "messages of this step to be acknowledged",
            )
        for load in loads:
            load.end.set()
            load.join(30)
            assert not load.is_alive()

        sent = [each for load in loads for each in load.sent]
        due = {
            payload
            for cell, payload, begun, ended in sent
            if all(cell in wanted[step] for step in range(begun, ended + 1))
        }
        assert STEPS < len(due) < len(sent)

        def missing() -> set[str]:
            return due - {each.payload.decode() for each in crowd.received(mover)}

        wait_for(lambda: not missing(), 30, "what was published near to arrive")
        for noted, said in (("subscribed", told), ("unsubscribed", taken)):
            for name, quarters in cells.items():
                its = [each for each in said if each[0] in (*quarters, "+", "#")]
                assert sorted(getattr(taps[name], noted)) == sorted(its), (name, noted)
