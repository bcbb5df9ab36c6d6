"""What a node does after a crash: it decides nothing before its neighbors are back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from isthmus.exchange import kept_records
from isthmus.exchange.host import Host
from isthmus.exchange.link.lane import Outgoing
from isthmus.exchange.traffic.message import Message
from isthmus.exchange.traffic.recovery import (
    RECOVERY_S,
    UNKNOWN,
    YOUNG_S,
    Awaited,
    Recovery,
)
from support.held import Held


class FakeTimer:
    def __init__(self, host: FakeHost, delay_s: float, callback: Callable[[], None]) -> None:
        self._host = host
        self._entry = (delay_s, callback)

    def cancel(self) -> None:
        if self._entry in self._host.timers:
            self._host.timers.remove(self._entry)


class FakeHost:
    keeps_state = True

    def __init__(self, kept: list[str] | None = None) -> None:
        self.state: dict[str, bytes] = {}
        if kept is not None:
            names = (name.encode() for name in kept)
            self.state["neighbors"] = kept_records.write("neighbors", 1, names)
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return 0.0

    def load_state(self, name: str, version: int) -> bytes | None:
        return self.state.get(name)

    def save_state(self, name: str, state: bytes) -> None:
        self.state[name] = state

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        timer = FakeTimer(self, delay_s, callback)
        self.timers.append((delay_s, callback))
        return timer

    def log(self, *_: object, **__: object) -> None:
        """Nobody reads it."""

    def kept(self) -> list[str]:
        return [each.decode() for each in kept_records.read(self.state["neighbors"]).records]


class Owner:
    recovery: Recovery

    def __init__(self) -> None:
        self.events: list[str] = []
        self.waited: dict[str, list[bytes]] = {}

    def neighbor_back(self, awaited: Awaited) -> None:
        self._over(f"back {awaited.name}", awaited.name, awaited.take_all())
        self.recovery.settled(awaited)

    def neighbor_missed(self, neighbor: str, waited: list[Outgoing]) -> None:
        self._over(f"missed {neighbor}", neighbor, waited)

    def _over(self, event: str, neighbor: str, waited: list[Outgoing]) -> None:
        self.events.append(event)
        self.waited[neighbor] = [entry.message.payload for entry in waited]
        for entry in waited:
            entry.finish(neighbor)

    def awaits_changed(self) -> None:
        self.events.append("changed")

    def unknown_are_back(self, awaited: Awaited) -> None:
        self._over("unknown", awaited.name, awaited.take_all())


def recovery(host: FakeHost, hold_s: float = 60.0) -> tuple[Recovery, Owner]:
    owner = Owner()
    made = Recovery(cast("Host", host), owner, hold_s=hold_s)
    owner.recovery = made
    made.start()
    return made, owner


def entry(number: int, done: Callable[[], None] | None = None, topic: bytes = b"t") -> Outgoing:
    message = Message(topic, b"%d" % number, qos=1)
    return Outgoing(message, 1, Held(message, done) if done is not None else None)


def test_a_first_start_waits_for_nobody() -> None:
    made, owner = recovery(FakeHost())
    assert not made.active
    assert owner.events == []


def test_every_neighbor_of_the_last_life_is_awaited() -> None:
    made, owner = recovery(FakeHost(["a", "b"]))
    assert made.active
    assert made.awaits_others("a")
    made.joined("a")
    assert made.active, "being there is not enough"
    made.ready("a")
    assert owner.events == ["back a", "changed"]
    assert not made.awaits_others("b")
    assert made.awaits_others("a")
    made.left("b")
    assert owner.events[2:] == ["missed b", "changed"]
    assert not made.active


@pytest.mark.parametrize(("hold_s", "waits_s"), [(60.0, 60.0), (1.0, RECOVERY_S)])
def test_it_waits_as_long_as_neighbors_are_kept(hold_s: float, waits_s: float) -> None:
    host = FakeHost(["gone", "late"])
    made, owner = recovery(host, hold_s)
    assert [delay_s for delay_s, _ in host.timers] == [waits_s, waits_s]
    host.timers[0][1]()
    assert owner.events == ["missed gone", "changed"]
    assert made.active, "the other has its own time"
    host.timers[0][1]()
    assert not made.active
    assert host.kept() == []


def test_one_that_is_there_and_does_not_tell_all_stays_a_neighbor() -> None:
    host = FakeHost(["slow"])
    made, owner = recovery(host)
    made.came("slow")
    made.joined("slow")
    ((delay_s, fire),) = host.timers
    assert delay_s == 60.0 + RECOVERY_S
    fire()
    assert owner.events == ["missed slow", "changed"]
    assert host.kept() == ["slow"]


def test_one_that_leaves_while_it_is_sent_what_waited_misses_the_rest() -> None:
    """What waits there is somebody's to finish: the neighbor that it came from waits for it."""
    finished: list[int] = []
    made, owner = recovery(FakeHost(["a"]))
    owner.neighbor_back = lambda awaited: None  # type: ignore[method-assign]  # the first slice
    awaited = made.awaited["a"]
    for number in range(3):
        awaited.wait(entry(number, lambda number=number: finished.append(number)))  # type: ignore[misc]
    made.joined("a")
    made.ready("a")
    awaited.take(b"t", 1)
    assert made.active
    made.left("a")
    assert (owner.events, owner.waited) == (["changed", "missed a"], {"a": [b"1", b"2"]})
    assert finished == [1, 2]
    assert not made.active


def test_what_waits_is_taken_in_order_and_counted() -> None:
    made, owner = recovery(FakeHost(["a"]))
    awaited = made.awaited["a"]
    for number in range(4):
        awaited.wait(entry(number, topic=b"t" if number % 2 else b"u"))
    assert awaited.bytes == sum(entry(number).message.cost for number in range(4))
    assert made.only_here() == 4
    assert [each.message.payload for each in awaited.take(b"t", 9)] == [b"1", b"3"]
    assert made.only_here() == 2
    made.ready("a")
    assert owner.waited == {"a": [b"0", b"2"]}
    assert awaited.bytes == 0


def test_who_is_a_neighbor_is_kept_over_stops_too() -> None:
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
    made, owner = recovery(host)
    assert not made.active
    assert owner.events == []


def test_a_flipped_bit_costs_one_neighbor() -> None:
    host = FakeHost(["aaaa", "bbbb", "cccc"])
    assert b"bbbb" in host.state["neighbors"]
    host.state["neighbors"] = host.state["neighbors"].replace(b"bbbb", b"bbbc")
    made, _ = recovery(host)
    assert sorted(made.awaited) == ["aaaa", "cccc"]


def test_a_node_that_keeps_nothing_awaits_whoever_comes_while_it_is_young() -> None:
    host, owner = FakeHost(), Owner()
    made = owner.recovery = Recovery(cast("Host", host), owner, hold_s=60.0)
    made.start(forgot=True)
    unknown = made.awaited[UNKNOWN]
    waits_for: list[str] = []
    for number in (1, 2):
        unknown.wait(entry(number, lambda: waits_for.append("over")))
    made.came("a")
    assert made.awaits_others("a"), "whoever else there was"
    unknown.wait(entry(3))
    made.joined("a")
    made.ready("a")
    assert owner.waited == {"a": [b"1", b"2"]}, "what had waited until it came"
    made.came("a")
    assert "a" not in made.awaited, "it is known"
    delay_s, over = host.timers[0]
    assert delay_s == YOUNG_S
    over()
    assert owner.waited[UNKNOWN] == [b"1", b"2", b"3"]
    assert waits_for == ["over", "over"]
    assert not made.active
    made.came("b")
    assert not made.active


def test_peers_that_are_not_linked_are_waited_for_as_long_as_neighbors_are_kept() -> None:
    host, owner = FakeHost(), Owner()
    back = False
    made = owner.recovery = Recovery(
        cast("Host", host), owner, hold_s=60.0, peers_are_back=lambda: back
    )
    made.start(forgot=True)
    host.timers[-1][1]()
    assert made.active
    back = True
    host.timers[-1][1]()
    assert not made.active
