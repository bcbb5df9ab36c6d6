"""Asking the broker what it has retained: together, again, and not for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.exchange.broker import retained_reader as module
from isthmus.exchange.broker.own_sessions import OwnSessions
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import scan
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.reason_codes import ReasonCode
from support.hosts import HandHost, MemoryWire

Found = Mapping[bytes, bytes | None] | None


class Rig:
    def __init__(self) -> None:
        self.host = HandHost()
        exchange: Any = SimpleNamespace(counters=Counter[str]())
        self.own = OwnSessions(
            self.host,
            "n",
            exchange=lambda: exchange,
            login=lambda: (None, None),
            linger_s=1.0,
            set_aside=lambda *_: None,
        )
        self.answers: list[Found] = []
        self.wire: MemoryWire

    def ask(self, *topics: bytes) -> None:
        self.own.ask_retained(topics, self.answers.append)

    def connect(self) -> None:
        session, _ = self.host.opening.popleft()
        self.wire = MemoryWire(self.host, session)
        session.connection_made(self.wire)
        (connect,) = self.sent()
        assert isinstance(connect, Connect)
        self.send(ConnAck(False, ReasonCode.SUCCESS))

    def send(self, packet: Packet) -> None:
        self.wire.feed(encode(packet, 5))

    def sent(self) -> list[Packet]:
        data = self.wire.taken()
        return [decode(data[start:stop], 5) for start, stop in pairwise(scan(data))]


@pytest.fixture
def rig() -> Rig:
    """Asked for two topics, and connected."""
    rig = Rig()
    rig.ask(b"a", b"b")
    rig.connect()
    (subscribe,) = rig.sent()
    assert isinstance(subscribe, Subscribe)
    assert [each.topic_filter for each in subscribe.subscriptions] == ["a", "b"]
    return rig


GRANTED = (ReasonCode.GRANTED_QOS_0, ReasonCode.GRANTED_QOS_0)


def test_the_answer_is_complete_when_every_topic_has_a_message(rig: Rig) -> None:
    rig.send(SubAck(1, GRANTED))
    rig.send(Publish("a", b"x", retain=True))
    assert rig.sent() == []
    rig.send(Publish("b", b"y", retain=True))
    assert rig.sent() == [Unsubscribe(2, ("a", "b"))]
    assert rig.answers == []
    rig.send(UnsubAck(2, GRANTED))
    assert rig.answers == [{b"a": b"x", b"b": b"y"}]


def test_a_topic_without_a_message_is_waited_for_a_little(rig: Rig) -> None:
    rig.send(SubAck(1, GRANTED))
    rig.send(Publish("a", b"x", retain=True))
    rig.send(Publish("b", b"live", retain=False))
    rig.host.run(module.GRACE_S + 0.01)
    assert rig.sent() == [Unsubscribe(2, ("a", "b"))]
    rig.send(UnsubAck(2, GRANTED))
    assert rig.answers == [{b"a": b"x"}]


def test_a_topic_that_may_not_be_read_is_none(rig: Rig) -> None:
    rig.send(SubAck(1, (ReasonCode.NOT_AUTHORIZED, ReasonCode.GRANTED_QOS_0)))
    rig.send(Publish("b", b"y", retain=True))
    rig.send(UnsubAck(2, GRANTED))
    assert rig.answers == [{b"a": None, b"b": b"y"}]


def test_a_question_that_the_broker_closes_on_is_given_up_after_some_tries(rig: Rig) -> None:
    for _ in range(module.MAX_TRIES - 1):
        rig.wire.feed(b"")
        rig.host.run(module.LONGEST_PAUSE_S)
        rig.connect()
        assert len(rig.sent()) == 1
    rig.wire.feed(b"")
    rig.host.run(module.LONGEST_PAUSE_S)
    assert rig.answers == [None]
    assert not rig.host.opening


def test_a_broker_that_does_not_answer_is_asked_by_another_session(rig: Rig) -> None:
    rig.host.run(module.ANSWER_S)
    assert rig.wire.closing
    rig.host.run(module.LONGEST_PAUSE_S)
    rig.connect()
    assert len(rig.sent()) == 1


def test_questions_wait_as_long_as_the_broker_is_away() -> None:
    rig = Rig()
    rig.ask(b"a")
    for _ in range(20):
        _, failed = rig.host.opening.popleft()
        failed("connection refused")
        assert not rig.host.opening
        rig.host.run(module.LONGEST_PAUSE_S)
    rig.ask(b"b")
    assert len(rig.host.opening) == 1
    rig.connect()
    assert len(rig.sent()) == 2
    assert rig.answers == []


def test_a_broker_that_knows_no_mqtt_5_is_asked_by_3_1_1() -> None:
    """Nothing has been published there, so nobody else has found out."""
    rig = Rig()
    rig.ask(b"a")
    session, _ = rig.host.opening.popleft()
    rig.wire = MemoryWire(rig.host, session)
    session.connection_made(rig.wire)
    rig.wire.feed(b"\x20\x02\x00\x01")
    assert rig.own.level == 4


def test_only_some_questions_are_asked_at_once() -> None:
    rig = Rig()
    for number in range(module.MAX_AT_ONCE + 5):
        rig.ask(b"%d" % number)
    rig.connect()
    assert len(rig.sent()) == module.MAX_AT_ONCE
    rig.send(SubAck(1, GRANTED[:1]))
    rig.send(Publish("0", b"x", retain=True))
    rig.send(UnsubAck(module.MAX_AT_ONCE + 1, GRANTED[:1]))
    assert [type(each) for each in rig.sent()] == [Unsubscribe, Subscribe]


def test_a_session_without_questions_is_closed_after_a_while(rig: Rig) -> None:
    rig.send(SubAck(1, (ReasonCode.NOT_AUTHORIZED,) * 2))
    rig.send(UnsubAck(2, GRANTED))
    rig.sent()
    rig.host.run(module.IDLE_S - 0.1)
    assert not rig.wire.closing
    rig.host.run(0.2)
    assert rig.sent() == [Disconnect()]
    assert rig.wire.closing
    rig.ask(b"c")
    assert len(rig.host.opening) == 1


def test_after_the_end_nothing_is_asked(rig: Rig) -> None:
    rig.own.close()
    rig.host.run(module.LONGEST_PAUSE_S)
    assert rig.wire.closing
    assert not rig.host.opening
    assert rig.answers == []


@pytest.mark.parametrize("first", ["failed", "lost"])
def test_an_attempt_that_ends_twice_is_one_attempt(first: str) -> None:
    rig = Rig()
    rig.ask(b"a")
    session, failed = rig.host.opening.popleft()
    wire = MemoryWire(rig.host, session)
    session.connection_made(wire)
    if first == "failed":
        failed("no answer within 5 s")
    wire.feed(b"")
    rig.host.run()
    if first == "lost":
        failed("no answer within 5 s")
    rig.host.run(module.LONGEST_PAUSE_S)
    assert len(rig.host.opening) == 1
