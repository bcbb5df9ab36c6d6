"""Not to decide before one knows: what a node does after a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from isthmus.exchange.host import Host
from isthmus.exchange.recovery import RECOVERY_S, Recovery


class FakeHost:
    keeps_state = True

    def __init__(self, kept: list[str] | None = None) -> None:
        self.state = {} if kept is None else {"neighbors": json.dumps(kept).encode()}
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def load_state(self, name: str) -> bytes | None:
        return self.state.get(name)

    def save_state(self, name: str, state: bytes) -> None:
        self.state[name] = state

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.timers.append((delay_s, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def log(self, *_: object, **__: object) -> None:
        """Nobody reads it."""

    def kept(self) -> list[str]:
        return cast("list[str]", json.loads(self.state["neighbors"]))


def recovery(host: FakeHost) -> tuple[Recovery, list[str]]:
    events: list[str] = []
    made = Recovery(
        cast("Host", host), lambda: events.append("progress"), lambda: events.append("over")
    )
    made.start()
    return made, events


def test_a_first_start_waits_for_nobody() -> None:
    made, events = recovery(FakeHost())
    assert not made.active
    assert events == []


def test_every_neighbour_of_the_last_life_is_awaited() -> None:
    made, events = recovery(FakeHost(["a", "b"]))
    assert made.active
    assert made.awaits_others("a")
    made.joined("a")
    assert made.active, "being there is not enough"
    made.ready("a")
    assert events == ["progress"]
    assert not made.awaits_others("b")
    assert made.awaits_others("a")
    made.left("b")
    assert events == ["progress", "progress", "over"]
    assert not made.active


def test_it_does_not_wait_for_ever() -> None:
    host = FakeHost(["gone"])
    made, events = recovery(host)
    ((delay_s, fire),) = host.timers
    assert delay_s == RECOVERY_S
    fire()
    assert events == ["progress", "over"]
    assert not made.active


def test_who_is_a_neighbour_is_kept_over_stops_too() -> None:
    host = FakeHost()
    made, _ = recovery(host)
    made.joined("a")
    made.joined("b")
    assert host.kept() == ["a", "b"]
    made.left("a")
    assert host.kept() == ["b"]
    made.stop()
    assert host.kept() == ["b"]


def test_damaged_state_is_not_believed() -> None:
    host = FakeHost()
    host.state["neighbors"] = b"\xff"
    made, events = recovery(host)
    assert not made.active
    assert events == []
