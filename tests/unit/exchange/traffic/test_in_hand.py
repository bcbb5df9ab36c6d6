"""Messages in hand: who waits for whom, and when a message is acknowledged to whom."""

from __future__ import annotations

import json
from collections import Counter
from typing import cast

import pytest
from rich.console import Console

from isthmus.cooperation.api import SessionInfo, SessionKind, SessionStatus
from isthmus.exchange.host import Host
from isthmus.exchange.link.lane import Incoming
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.in_hand import (
    BROKER,
    HERE,
    LOOK_AGAIN_S,
    MAX_UNSAFE,
    UNSAFE_PART,
    BrokerQueue,
    InHand,
    MessagesInHand,
)
from isthmus.exchange.traffic.message import Message
from isthmus.fabric.view import fabric_tables
from isthmus.sim import SimFabric
from isthmus.sim.engine import Engine
from isthmus.sim.node import SimNode

QUEUE_BYTES = 16 << 20


class ClockHost:
    """A clock and timers."""

    def __init__(self) -> None:
        self.engine = Engine(1)
        self.call_later = self.engine.call_later

    def now(self) -> float:
        return self.engine.now_s


class Stage:
    """Messages of neighbor a, and what is answered on its lane."""

    def __init__(self) -> None:
        self.host = ClockHost()
        self.hand = MessagesInHand(
            cast("Host", self.host),
            Counter(),
            lambda message: self.room,
            node_id="here",
            queue_bytes=QUEUE_BYTES,
            hold_s=60.0,
        )
        self.room = True
        """At the links that messages went to."""
        self.incoming = Incoming()
        self.answers: list[bytes] = []
        self.incoming.answer = self.answers.append
        self.neighbor = SessionInfo(1, SessionKind.NEIGHBOR, "a")

    def arrives(
        self, packet_id: int, *, number: str = "1.1", came_from: str = "", hops: int = 1
    ) -> InHand:
        message = Message(b"t", b"x", qos=1, origin="o", number=number, hops=hops)
        message.came_from = self.neighbor
        if came_from:
            message.came_from = SessionInfo(2, SessionKind.NEIGHBOR, came_from)
        accepted = self.incoming.accept(packet_id, 1)
        assert isinstance(accepted, int)
        return InHand(self.hand, message, self.incoming, accepted, 1)

    def taken(self, packet_id: int = 1, *branches: str) -> InHand:
        in_hand = self.arrives(packet_id)
        self.hand.take(in_hand)
        for branch in branches:
            in_hand.wait_for(branch)
        in_hand.acknowledged_by(HERE)
        return in_hand


def puback(packet_id: int) -> bytes:
    return bytes((0x40, 2, 0, packet_id))


def test_it_is_acknowledged_when_everybody_has_it() -> None:
    stage = Stage()
    in_hand = stage.taken(1, "b", "c")
    in_hand.acknowledged_by("b")
    assert stage.answers == []
    assert in_hand.waits_for == ["c"]
    in_hand.acknowledged_by("c")
    assert stage.answers == [puback(1)]
    assert len(stage.hand) == 0


def test_what_nobody_wants_is_acknowledged_when_it_was_routed() -> None:
    stage = Stage()
    in_hand = stage.arrives(1)
    stage.hand.take(in_hand)
    assert (stage.answers, in_hand.waits_for) == ([], [HERE])
    in_hand.acknowledged_by(HERE)
    assert stage.answers == [puback(1)]


def test_nobody_acknowledges_twice() -> None:
    in_hand = Stage().taken(1, "b", "c")
    in_hand.acknowledged_by("b")
    with pytest.raises(ValueError, match="not in list"):
        in_hand.acknowledged_by("b")


def test_one_that_goes_another_way_waits_for_that() -> None:
    stage = Stage()
    in_hand = stage.taken(1, "b")
    in_hand.wait_for("c")
    in_hand.acknowledged_by("b")
    assert (stage.answers, in_hand.waits_for) == ([], ["c"])


def test_what_waits_for_the_broker_is_counted_until_it_has_it() -> None:
    stage = Stage()
    in_hand = stage.arrives(1)
    stage.hand.take(in_hand)
    done = in_hand.wait_for_broker()
    in_hand.acknowledged_by(HERE)
    queue = stage.hand.broker_queue(in_hand)
    assert (in_hand.waits_for, queue.bytes > 0) == ([BROKER], True)
    stage.hand.neighbor_left("a")
    assert stage.hand.broker_queue(in_hand) is queue, "it is kept while something waits"
    done()
    assert (queue.bytes, stage.answers) == (0, [puback(1)])
    assert not stage.hand._at_broker, "nothing of a neighbor that has gone is left"


def test_what_waited_for_the_broker_is_remembered_while_its_neighbor_is_there() -> None:
    stage = Stage()
    stage.neighbor.status = SessionStatus.ESTABLISHED
    in_hand = stage.arrives(1)
    stage.hand.take(in_hand)
    done = in_hand.wait_for_broker()
    in_hand.acknowledged_by(HERE)
    done()
    assert list(stage.hand._at_broker) == ["a"]
    stage.hand.neighbor_left("a")
    assert not stage.hand._at_broker


# ---- the broker --------------------------------------------------------------------------


class BrokerHost(ClockHost):
    """Gives up what waits for the broker, all but the last `retained` bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: BrokerQueue | None = None
        self.retained = 0
        self.asked: list[int] = []
        self.logged: list[str] = []

    def give_up_injected(self, key: str, size: int) -> int:
        assert self.queue is not None
        self.asked.append(size)
        lost = min(size, self.queue.bytes - self.retained)
        if lost:
            self.queue.acknowledged(lost)
        return lost

    def log(self, level: str, event: str, **fields: object) -> None:
        self.logged.append(event)


def broker_queue() -> tuple[BrokerHost, BrokerQueue, Counter[str]]:
    host, counters = BrokerHost(), Counter[str]()
    queue = BrokerQueue(cast("Host", host), "a", counters, queue_bytes=800, hold_s=60.0)
    host.queue = queue
    return host, queue, counters


def test_a_broker_that_acknowledges_is_waited_for() -> None:
    host, queue, _ = broker_queue()
    queue.put(2_000)
    for _ in range(20):
        host.engine.run_until(host.now() + 50.0)
        assert not queue.has_room()
        queue.acknowledged(50)
    assert host.asked == []
    queue.acknowledged(200)
    assert queue.has_room()


def test_what_a_silent_broker_does_not_take_is_given_up_and_told_once() -> None:
    host, queue, counters = broker_queue()
    queue.put(900)
    host.engine.run_until(59.0)
    assert not queue.has_room()
    host.engine.run_until(60.0)
    assert queue.has_room()
    assert (host.asked, queue.bytes, counters["given_up"]) == ([200], 700, 200)
    queue.put(200)
    assert queue.has_room(), "to give some up is no sign of life of the broker"
    assert (len(host.asked), len(host.logged)) == (2, 1)
    queue.acknowledged(queue.bytes)
    queue.put(900)
    assert not queue.has_room(), "it has taken something"
    host.engine.run_until(130.0)
    assert queue.has_room()
    assert len(host.logged) == 2


def test_retained_messages_that_are_kept_make_room_for_others() -> None:
    host, queue, counters = broker_queue()
    host.retained = 2_000
    queue.put(2_000)
    host.engine.run_until(60.0)
    assert queue.has_room()
    assert (counters["given_up"], host.logged) == (0, [])
    queue.put(50)
    assert queue.has_room()
    assert len(host.asked) == 1, "not for every message"
    queue.put(100)
    assert queue.has_room()
    assert len(host.asked) == 2
    queue.acknowledged(queue.bytes)
    queue.put(900)
    assert not queue.has_room(), "the bound is the former one when nothing waits"


# ---- letting go --------------------------------------------------------------------------


def many_wait(stage: Stage, count: int, size: int = 1) -> list[InHand]:
    """Messages of `size` bytes wait for b."""
    link = Link(stage.neighbor, "s", qos=1, queue_bytes=QUEUE_BYTES, round_robin=False)
    waiting = []
    for number in range(1, count + 1):
        in_hand = stage.arrives(number, number=f"1.{number:x}")
        in_hand.size = size
        stage.hand.take(in_hand)
        in_hand.wait_for("b")
        in_hand.acknowledged_by(HERE)
        stage.hand.relieve(stage.incoming, link)
        waiting.append(in_hand)
    return waiting


def test_what_was_let_go_is_not_acknowledged_again() -> None:
    """Its identifier may be another message's by then."""
    stage = Stage()
    first = many_wait(stage, MAX_UNSAFE + 1)[0]
    assert (stage.answers, first.let_go, stage.hand.only_here) == ([puback(1)], True, 1)
    first.acknowledged_by("b")
    assert (stage.answers, stage.hand.only_here) == ([puback(1)], 0)


def test_a_copy_of_what_was_let_go_is_acknowledged_at_once() -> None:
    """Like the first one; else nobody would acknowledge it when that is safe."""
    stage = Stage()
    many_wait(stage, MAX_UNSAFE + 1)
    stage.answers.clear()
    copy = stage.arrives(2_000, number="1.1")
    stage.hand.repeated(copy)
    assert len(stage.answers) == 1
    assert copy.waits_for == []


def test_of_two_in_hand_each_is_acknowledged_and_forgotten_by_itself() -> None:
    """The second was believed only later; who sends it again waits for that one."""
    stage = Stage()
    first, second = stage.taken(1, "b"), stage.taken(2, "c")
    first.acknowledged_by("b")
    assert stage.answers == [puback(1)]
    stage.hand.repeated(stage.arrives(3))
    assert stage.answers == [puback(1)]
    second.acknowledged_by("c")
    assert stage.answers == [puback(1), puback(2), puback(3)]
    assert len(stage.hand) == 0


def test_large_messages_are_let_go_sooner() -> None:
    """Else they would fill the queue of the neighbor that they come from."""
    stage = Stage()
    many_wait(stage, 3, QUEUE_BYTES // UNSAFE_PART // 2)
    assert stage.answers == [puback(1)]
    stage = Stage()
    many_wait(stage, 1, QUEUE_BYTES)
    assert stage.answers == [], "the last one stays"


def test_it_is_looked_again_whether_there_is_room() -> None:
    stage = Stage()
    stage.room = False
    many_wait(stage, MAX_UNSAFE + 3)
    assert stage.answers == []
    stage.host.engine.run_until(10 * LOOK_AGAIN_S)
    assert stage.answers == []
    stage.room = True
    stage.host.engine.run_until(12 * LOOK_AGAIN_S)
    assert stage.answers == [puback(1), puback(2), puback(3)]
    stage.room = False
    stage.host.engine.run_until(20 * LOOK_AGAIN_S)
    assert stage.host.engine.events < 30, "nothing is looked for when nothing waits"


def test_a_node_that_stops_lets_nothing_go() -> None:
    stage = Stage()
    stage.room = False
    many_wait(stage, MAX_UNSAFE + 1)
    stage.hand.stopping = stage.room = True
    stage.host.engine.run_until(10 * LOOK_AGAIN_S)
    assert (stage.answers, stage.hand.only_here) == ([], 0)


def test_a_copy_is_acknowledged_with_the_first() -> None:
    stage = Stage()
    first = stage.taken(1, "b")
    stage.hand.repeated(stage.arrives(2))
    assert stage.answers == []
    first.acknowledged_by("b")
    assert stage.answers == [puback(1), puback(2)]


def test_a_copy_of_one_that_is_safe_is_acknowledged_at_once() -> None:
    stage = Stage()
    stage.taken(1)
    stage.hand.repeated(stage.arrives(2))
    assert stage.answers == [puback(1), puback(2)]


def comes_back(stage: Stage, *, hops: int, came_from: str = "b") -> InHand:
    """A message that is one hop from its origin here comes from whom it was passed to."""
    first = stage.taken(1, came_from)
    copy = stage.arrives(2, came_from=came_from, hops=hops)
    assert copy.message.came_from is not None
    first.message.passed_to = ((copy.message.came_from, b""),)
    stage.hand.repeated(copy)
    return first


def test_who_has_it_from_here_does_not_wait_for_us() -> None:
    stage = Stage()
    comes_back(stage, hops=3)
    assert stage.answers == [puback(2)]


def test_of_two_that_have_it_from_each_other_the_nearer_to_the_origin_waits() -> None:
    """However long: else the origin would be told that it is safe, and this node alone have it."""
    stage = Stage()
    first = comes_back(stage, hops=1)
    stage.host.engine.run_until(100.0)
    assert stage.answers == []
    first.acknowledged_by("b")
    assert stage.answers == [puback(1), puback(2)]


@pytest.mark.parametrize(("name", "waits"), [("a-node", True), ("z-node", False)])
def test_of_two_that_are_equally_near_the_lower_id_waits(name: str, waits: bool) -> None:
    stage = Stage()
    comes_back(stage, hops=2, came_from=name)
    assert stage.answers == ([] if waits else [puback(2)])


def test_copies_that_wait_do_not_fill_a_lane() -> None:
    """Beyond `MAX_UNSAFE` the oldest give in; what they are copies of waits, and is not let go."""
    stage = Stage()
    link = Link(stage.neighbor, "s", qos=1, queue_bytes=QUEUE_BYTES, round_robin=False)
    lanes = Incoming(), Incoming(), stage.incoming
    firsts = []
    for number in range(1, MAX_UNSAFE + 3):
        stage.incoming = lanes[number % 2]
        firsts.append(in_hand := stage.arrives(number, number=f"1.{number:x}", hops=2))
        stage.hand.take(in_hand)
        stage.incoming = lanes[2]
        stage.hand.repeated(stage.arrives(number, number=f"1.{number:x}", hops=1))
        stage.hand.relieve(stage.incoming, link)
    assert stage.answers == [puback(1), puback(2)]
    assert stage.hand.only_here == 0
    firsts[2].acknowledged_by(HERE)
    assert stage.answers == [puback(1), puback(2), puback(3)]


def test_three_that_wait_for_each_other_give_in() -> None:
    stage = Stage()
    first = stage.taken(1, "b")
    stage.hand.repeated(stage.arrives(2, hops=3))
    stage.host.engine.run_until(20.0)
    assert stage.answers == [puback(2)]
    first.acknowledged_by("b")
    assert stage.answers == [puback(2), puback(1)]


def shown(node: SimNode) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        fabric_tables({"fabric": node.exchange.status()}, console)
    return captured.get()


def test_people_see_who_waits_for_whom() -> None:
    """a ── t ── b: b is away, and so is t's broker."""
    fabric = SimFabric(seed=1, algorithm="pf", link=LinkSettings(hold_s=600.0))
    a, t, b = fabric.node("a"), fabric.node("t"), fabric.node("b")
    fabric.link(a, t)
    fabric.link(t, b)
    fabric.settle()
    assert t.exchange.status()["in_hand"] == {"messages": 0, "only_here": 0, "waiting": []}
    fabric.partition([b], [a, t])
    fabric.crash_broker(t)
    publisher = a.client("p")
    fabric.run(5.0)
    for number in range(1_200):
        publisher.publish("t", b"%d" % number, qos=1)
    fabric.run(5.0)
    status = t.exchange.status()["in_hand"]
    assert json.loads(json.dumps(status)) == status
    assert (status["messages"], status["only_here"]) == (1_200, 200)
    assert status["waiting"] == [
        {"neighbor": "a", "waits_for": "b", "messages": 1_200},
        {"neighbor": "a", "waits_for": "the broker", "messages": 1_200},
    ]
    assert "a waits for the broker" in shown(t)
    fabric.heal()
    fabric.restart_broker(t)
    fabric.settle()
    assert t.exchange.status()["in_hand"] == {"messages": 0, "only_here": 0, "waiting": []}
