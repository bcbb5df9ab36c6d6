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
            queue_bytes=QUEUE_BYTES,
            hold_s=60.0,
        )
        self.room = True
        """At the links that messages went to."""
        self.incoming = Incoming()
        self.answers: list[bytes] = []
        self.incoming.answer = self.answers.append
        self.neighbor = SessionInfo(1, SessionKind.NEIGHBOR, "a")

    def arrives(self, packet_id: int, *, number: str = "1.1", came_from: str = "") -> InHand:
        message = Message(b"t", b"x", qos=1, origin="o", number=number)
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


def test_who_has_it_from_here_does_not_wait_for_us() -> None:
    stage = Stage()
    first = stage.taken(1, "b")
    copy = stage.arrives(2, came_from="b")
    assert copy.message.came_from is not None
    first.message.passed_to = (copy.message.came_from,)
    stage.hand.repeated(copy)
    assert stage.answers == [puback(2)]


def test_three_that_wait_for_each_other_give_in() -> None:
    stage = Stage()
    first = stage.taken(1, "b")
    stage.hand.repeated(stage.arrives(2))
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
