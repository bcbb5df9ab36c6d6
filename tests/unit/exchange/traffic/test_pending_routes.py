"""Very many messages whose path is being set up: no turn is long, whatever the algorithm says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from isthmus.cooperation.api import Route, SessionInfo, SessionKind
from isthmus.exchange.host import Host
from isthmus.exchange.traffic.message import Message
from isthmus.exchange.traffic.pending_routes import AGAIN_S, STEP, PendingRoutes
from isthmus.sim.engine import Engine, Timer

HOLD_S = 20.0
MANY = 5 * STEP
TOPICS = [b"t/%d" % number for number in range(MANY)]


class Rig:
    """What waits, and an algorithm that says where it goes; also the host of what waits."""

    def __init__(self) -> None:
        self.engine = Engine(1)
        self.logged: list[dict[str, object]] = []
        self.counters: Counter[str] = Counter()
        self.asked: list[bytes] = []
        self.most = 0
        """The most that was asked or given up in a turn."""
        self.sent: list[Message] = []
        self.there: set[bytes] = set()
        self.neighbors: tuple[SessionInfo, ...] = ()
        self.reached: dict[str, bool] = {}
        self.when_asked: Callable[[], None] = lambda: None
        self.pending = PendingRoutes(
            cast(Host, self),
            self.counters,
            present=self._present,
            send=lambda message, _route, _in_hand: self.sent.append(message),
            settled=lambda _topic: None,
            reaches=self.reached.get,
            queue_bytes=1 << 30,
            hold_s=HOLD_S,
            holds_qos0=False,
        )

    def now(self) -> float:
        return self.engine.now_s

    def log(self, _level: str, _event: str, **fields: object) -> None:
        self.logged.append(fields)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        def turn() -> None:
            asked, given_up = len(self.asked), self.counters["given_up"]
            callback()
            done = len(self.asked) - asked + self.counters["given_up"] - given_up
            self.most = max(self.most, done)

        return self.engine.call_later(delay_s, turn)

    def _present(self, message: Message) -> Route:
        self.asked.append(message.topic)
        assert len(self.asked) <= 100 * MANY, "it is asked for ever"
        self.when_asked()
        return Route(self.neighbors, pending=message.topic not in self.there)

    def put(self, topic: bytes, arrived_s: float = 0.0) -> None:
        self.pending.put(Message(topic, b"x", qos=1, arrived_s=arrived_s), None)

    def run(self, seconds: float) -> None:
        self.engine.run_until(self.engine.now_s + seconds)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for topic in TOPICS:
        rig.put(topic)
    return rig


@pytest.mark.parametrize("filters", [None, ["t/+", "+/1"]], ids=["all", "filters"])
def test_topics_whose_paths_are_still_pending_are_asked_for_in_steps(
    rig: Rig, filters: list[str] | None
) -> None:
    rig.pending.routes_changed(filters)
    rig.run(0.5)
    assert set(rig.asked) == set(TOPICS)
    assert len(rig.asked) <= MANY + MANY // STEP
    assert rig.most == STEP
    rig.there.update(TOPICS)
    rig.pending.routes_changed(None)
    rig.run(0.5)
    assert [message.topic for message in rig.sent] == TOPICS
    assert rig.most == STEP
    assert len(rig.pending) == rig.pending.bytes == 0


def test_only_topics_whose_routes_have_changed_are_asked_for(rig: Rig) -> None:
    rig.there.add(TOPICS[7])
    rig.pending.routes_changed(["t/7", "elsewhere", "else/#"])
    rig.run(0.5)
    assert rig.asked == [TOPICS[7]]
    assert [message.topic for message in rig.sent] == [TOPICS[7]]


def test_routes_that_change_while_they_are_asked_for_do_not_hold_the_loop(rig: Rig) -> None:
    rig.when_asked = lambda: rig.pending.routes_changed(None)
    rig.pending.routes_changed(None)
    rig.run(10 * AGAIN_S)
    assert rig.most == STEP
    assert set(rig.asked) == set(TOPICS)
    rig.there.update(TOPICS)
    rig.run(10 * AGAIN_S)
    assert len(rig.pending) == 0


def test_giving_up_takes_several_turns_and_is_told_once(rig: Rig) -> None:
    for topic in TOPICS:
        rig.put(topic)
    rig.run(HOLD_S / 2)
    rig.put(b"later")
    rig.run(HOLD_S / 2 + 2.0)
    assert rig.most == STEP
    assert rig.counters["given_up"] == 2 * MANY
    assert rig.logged == [{"messages": 2 * MANY}]
    assert len(rig.pending) == 1
    rig.run(HOLD_S)
    assert rig.logged == [{"messages": 2 * MANY}, {"messages": 1}]
    assert rig.pending.bytes == 0


def test_what_was_on_its_way_elsewhere_is_rerouted_or_given_up() -> None:
    rig = Rig()
    one, other = (SessionInfo(number, SessionKind.NEIGHBOR, f"n{number}") for number in (1, 2))
    for number in range(3):
        message = Message(b"t", b"%d" % number, qos=1)
        message.passed_to = ((one, b""), (other, b""))[: number + 1]
        rig.pending.put(message, None, missed="gone" if number else "")
    rig.neighbors = (one, other)
    rig.there.add(b"t")
    rig.pending.routes_changed(None)
    rig.run(1.0)
    assert rig.counters == {"given_up": 2}
    message = Message(b"t", b"3", qos=1)
    message.passed_to = ((one, b""),)
    rig.pending.put(message, None, missed="gone")
    rig.pending.routes_changed(None)
    rig.run(1.0)
    assert rig.counters == {"given_up": 2, "rerouted": 1}
    assert rig.logged == [{"messages": 2}]


@pytest.mark.parametrize("reached", [False, True])
def test_what_goes_to_others_is_given_up_unless_the_neighbor_is_reached(reached: bool) -> None:
    rig = Rig()
    rig.reached["gone"] = reached
    rig.pending.put(Message(b"t", b"1", qos=1), None, missed="gone")
    rig.neighbors = (SessionInfo(1, SessionKind.NEIGHBOR, "n1"),)
    rig.there.add(b"t")
    rig.pending.routes_changed(None)
    rig.run(1.0)
    assert rig.counters == ({"rerouted": 1} if reached else {"rerouted": 1, "given_up": 1})


class Counted(float):
    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < float(other)

    def __gt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) > float(other)


def test_what_comes_late_finds_its_place_quickly() -> None:
    rig = Rig()
    for number in range(MANY):
        rig.put(b"t", Counted(MANY + number))
    for number in range(MANY):
        rig.put(b"t", Counted(number))
    assert Counted.compared < 2 * MANY * 16
    rig.there.add(b"t")
    rig.pending.routes_changed(["t"])
    rig.run(1.0)
    assert [message.arrived_s for message in rig.sent] == list(range(2 * MANY))
