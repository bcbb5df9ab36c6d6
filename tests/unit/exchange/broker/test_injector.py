"""The node's own session with a broker that hangs, refuses, or closes on a message."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.cooperation.api import SessionInfo, SessionKind
from isthmus.exchange.broker import injector as module
from isthmus.exchange.broker.injection import TRIES
from isthmus.exchange.broker.own_sessions import MAX_SESSIONS, OwnSessions
from isthmus.exchange.session import Session
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import scan
from isthmus.mqtt.packets import ConnAck, Connect, Disconnect, PingReq, PubAck, Publish
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from support.hosts import HandHost, MemoryWire


class Broker:
    """Answers everything, or nothing; takes connections, or does not."""

    def __init__(self, host: HandHost) -> None:
        self.host = host
        self.takes = self.answers = True
        self.level = 5
        self.refuses = False
        self.poison = b""
        self.wires: list[MemoryWire] = []
        self.connects: list[Connect] = []
        self.published: list[bytes] = []

    def turn(self, seconds: float = 0.1) -> None:
        """What happens in a short time."""
        while self.host.opening:
            session, failed = self.host.opening.popleft()
            if self.takes:
                self._accept(session)
            else:
                failed("connection refused")
        for wire in self.wires:
            if data := wire.taken():
                for start, stop in pairwise(scan(data)):
                    if not wire.closing:
                        self._packet(wire, data[start:stop])
        self.host.run(seconds)

    def run(self, seconds: float) -> None:
        until_s = self.host.now() + seconds
        while self.host.now() < until_s:
            self.turn()

    def _accept(self, session: Session) -> None:
        wire = MemoryWire(self.host, session)
        self.wires.append(wire)
        session.connection_made(wire)

    def _packet(self, wire: MemoryWire, frame: bytes) -> None:
        packet = decode(frame, 5)
        if isinstance(packet, Connect):
            self.connects.append(packet)
        if not self.answers:
            return
        match packet:
            case Connect(protocol_level=5) if self.level == 4:
                wire.feed(b"")
            case Connect(protocol_level=level):
                code = ReasonCode.NOT_AUTHORIZED if self.refuses else ReasonCode.SUCCESS
                if self.refuses and level == 4:
                    wire.feed(encode(ConnAck(False, ConnectReturnCode.NOT_AUTHORIZED), 4))
                else:
                    wire.feed(encode(ConnAck(False, code), level))
            case PingReq():
                wire.feed(b"\xd0\x00")
            case Publish(payload=payload) if payload == self.poison:
                wire.feed(b"")
            case Publish(packet_id=packet_id, payload=payload):
                self.published.append(payload)
                if packet_id:
                    wire.feed(encode(PubAck(packet_id), 5))


class Rig:
    def __init__(self) -> None:
        self.host = HandHost()
        self.broker = Broker(self.host)
        self.lost: list[str] = []
        self.aside: list[tuple[bytes, str, str]] = []
        retained = SimpleNamespace(broker=SimpleNamespace(session_lost=self.lost.append))
        exchange: Any = SimpleNamespace(
            counters=Counter[str](),
            retention=retained,
            spools=SimpleNamespace(open=lambda _: None),
        )
        self.own = OwnSessions(
            self.host,
            "b",
            exchange=lambda: exchange,
            login=lambda: ("user", b"word"),
            linger_s=1.0,
            set_aside=lambda *what: self.aside.append((what[0].payload, *what[1:])),
        )
        self.done: list[bytes] = []

    def inject(self, payload: bytes, qos: int = 1) -> None:
        def done() -> None:
            self.done.append(payload)

        assert self.own.inject(Message(b"t", payload, qos=qos), "a", done)


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.own.neighbor_joined("a")
    made.broker.run(0.5)
    return made


def test_a_session_says_who_it_is(rig: Rig) -> None:
    (connect,) = rig.broker.connects
    assert (connect.client_id, connect.username, connect.password) == (
        "isthmus-b-a",
        "user",
        b"word",
    )
    assert rig.own.standing == 1


def test_a_neighbor_that_goes_while_the_broker_is_greeted_leaves_no_session() -> None:
    rig = Rig()
    rig.broker.answers = False
    rig.own.neighbor_joined("a")
    rig.broker.turn()
    (wire,) = rig.broker.wires
    rig.own.neighbor_left("a")
    assert not rig.own.injectors
    wire.feed(encode(ConnAck(), 5))
    assert wire.closing
    assert wire.taken() == encode(Disconnect(), 5)
    rig.broker.run(60.0)
    assert len(rig.broker.wires) == 1


def test_a_broker_that_hangs_is_noticed_and_nothing_is_blamed(rig: Rig) -> None:
    rig.broker.answers = False
    rig.inject(b"x")
    rig.broker.run(module.PING_S + module.ANSWER_S)
    assert rig.own.silent
    rig.broker.run(module.SILENT_S + 3 * module.GREETING_S)
    assert len(rig.broker.connects) >= 3
    assert rig.own.silent
    assert rig.own.standing == 0
    rig.broker.answers = True
    rig.broker.run(2 * module.GREETING_S)
    assert rig.own.standing == 1
    assert not rig.own.silent
    assert rig.done == [b"x"]
    # Not taken for a broker that knows only MQTT 3.1.1.
    assert {each.protocol_level for each in rig.broker.connects} == {5}
    assert rig.broker.published == [b"x"]
    assert rig.lost == ["a"]


def test_a_broker_that_hangs_on_a_machine_that_lives_is_waited_for(rig: Rig) -> None:
    rig.host.machine_silent_s = 1.0
    rig.broker.answers = False
    rig.inject(b"x")
    rig.broker.run(20 * module.SILENT_S)
    assert rig.own.silent
    assert rig.own.standing == 1
    assert len(rig.broker.connects) == 1
    rig.host.machine_silent_s = module.GONE_S
    rig.broker.run(2 * module.PING_S)
    assert rig.own.standing == 0


def test_a_broker_that_is_away_is_tried_again_less_and_less_often() -> None:
    rig = Rig()
    rig.broker.takes = False
    rig.inject(b"x")
    rig.broker.run(10.0)
    assert rig.done == []
    rig.broker.takes = True
    rig.broker.run(module.LONGEST_PAUSE_S + 1.0)
    assert rig.done == [b"x"]
    assert len(rig.broker.connects) == 1


@pytest.mark.parametrize("reason_bytes", [0, 122, 123, 300])
def test_an_acknowledgment_of_any_length_is_one(rig: Rig, reason_bytes: int) -> None:
    rig.broker.answers = False
    rig.inject(b"x")
    rig.broker.turn()
    rig.broker.turn()
    said = Properties(reason_string="r" * reason_bytes)
    code = ReasonCode.NO_MATCHING_SUBSCRIBERS
    rig.broker.wires[0].feed(encode(PubAck(1, code, said), 5))
    assert rig.done == [b"x"]


@pytest.mark.parametrize("ack", [b"\x40\x00", b"\x50\x01\x00", b"\x70\x81\x00\x01"])
def test_an_acknowledgment_of_nothing_ends_the_session(rig: Rig, ack: bytes) -> None:
    rig.inject(b"x")
    rig.broker.wires[0].feed(ack)
    assert ("warning", "broker sent bad bytes") in rig.host.logged
    rig.broker.run(5.0)
    assert rig.done == [b"x"]


def test_an_older_broker_is_spoken_to_as_it_wants() -> None:
    rig = Rig()
    rig.broker.level = 4
    rig.own.neighbor_joined("a")
    rig.broker.run(2.0)
    assert [each.protocol_level for each in rig.broker.connects] == [5, 4, 5, 4]
    assert rig.own.level == 4
    assert rig.own.standing == 1


def test_a_broker_that_comes_back_newer_is_spoken_to_as_it_wants() -> None:
    rig = Rig()
    rig.broker.level = 4
    rig.own.neighbor_joined("a")
    rig.broker.run(2.0)
    assert rig.own.level == 4
    rig.broker.takes, rig.broker.level = False, 5
    rig.broker.wires[-1].feed(b"")
    rig.broker.run(1.0)
    rig.broker.takes = True
    rig.broker.run(3.0)
    assert rig.own.level == 5
    assert rig.own.standing == 1


def test_a_broker_that_says_that_it_is_older_is_believed() -> None:
    rig = Rig()
    rig.broker.answers = False
    rig.own.neighbor_joined("a")
    rig.broker.turn()
    rig.broker.answers = True
    rig.broker.wires[0].feed(encode(ConnAck(False, ConnectReturnCode(1)), 4))
    rig.broker.run(2.0)
    assert [each.protocol_level for each in rig.broker.connects] == [5, 4]
    assert rig.own.standing == 1


@pytest.mark.parametrize("falls", [1, 2, 3, 4])
def test_a_broker_that_falls_during_the_greeting_is_not_taken_for_an_older_one(falls: int) -> None:
    """Or a proxy takes connections, and closes them, before the broker is up."""
    rig = Rig()
    rig.broker.answers = False
    for key in ("a", "b"):
        rig.own.neighbor_joined(key)
    for _ in range(falls):
        rig.broker.run(2.5)
        for wire in rig.broker.wires:
            wire.feed(b"")
    rig.broker.answers = True
    rig.broker.run(5.0)
    assert rig.own.level == 5
    assert rig.own.standing == 2
    assert {each.protocol_level for each in rig.broker.connects[-2:]} == {5}


def test_a_broker_that_refuses_is_named_as_the_problem() -> None:
    rig = Rig()
    rig.broker.refuses = True
    rig.own.neighbor_joined("a")
    rig.broker.run(1.0)
    assert rig.own.problem == "not authorized"
    rig.broker.refuses = False
    rig.broker.run(5.0)
    assert rig.own.problem == ""
    assert [event for level, event in rig.host.logged if level == "error"] == [
        "broker refuses the node's own session, so nothing from other nodes reaches it; "
        "see [broker] username and password"
    ]


def test_what_a_broker_closes_on_is_set_aside_while_a_witness_stands(rig: Rig) -> None:
    rig.broker.poison = b"bad"
    for payload in (b"one", b"bad", b"two"):
        rig.inject(payload)
    rig.broker.run(10.0)
    assert rig.aside == [(b"bad", "a", f"{TRIES} sessions fell with it: {_CLOSED}")]
    assert rig.done[-2:] == [b"bad", b"two"]
    assert rig.broker.published.count(b"two") == 1
    assert rig.own.standing == 1
    rig.broker.run(module.WITNESS_AGAIN_S * 3)
    assert sum(not wire.closing for wire in rig.broker.wires) == 1  # the witness is dismissed


_CLOSED = "the broker closed the connection"


def test_the_session_of_a_neighbor_that_left_is_closed_when_all_is_acknowledged(rig: Rig) -> None:
    rig.broker.answers = False
    rig.inject(b"x")
    rig.own.neighbor_left("a")
    rig.broker.run(3.0)
    assert rig.own.standing == 1
    rig.broker.wires[0].feed(encode(PubAck(1), 5))
    rig.broker.run(1.0)
    assert rig.done == [b"x"]
    assert rig.own.standing == 0
    assert rig.own.injectors == {}
    assert all(wire.closing for wire in rig.broker.wires)


def test_a_connection_that_is_made_after_the_end_is_closed() -> None:
    rig = Rig()
    rig.own.neighbor_joined("a")
    rig.own.close()
    rig.broker.run(1.0)
    assert all(wire.closing for wire in rig.broker.wires)
    assert rig.broker.connects == []
    assert rig.own.level == 5


def test_an_attempt_that_ends_twice_is_one_attempt() -> None:
    """It timed out in the very moment in which the connection was made."""
    rig = Rig()
    rig.own.neighbor_joined("a")
    session, failed = rig.host.opening.popleft()
    wire = MemoryWire(rig.host, session)
    session.connection_made(wire)
    failed("no answer within 5 s")
    wire.feed(b"")
    rig.host.run(module.LONGEST_PAUSE_S)
    assert len(rig.host.opening) == 1


# ---- very many neighbors -----------------------------------------------------------------


def inject_for(rig: Rig, neighbor: str, payload: bytes, qos: int = 1) -> None:
    message = Message(b"t", payload, qos=qos, origin=neighbor)
    assert rig.own.inject(message, neighbor, lambda: rig.done.append(payload))


def test_very_many_neighbors_share_a_few_sessions() -> None:
    rig = Rig()
    names = [f"n{number}" for number in range(10 * MAX_SESSIONS)]
    for name in names:
        rig.own.neighbor_joined(name)
    rig.broker.run(2.0)
    assert rig.own.standing == len(rig.broker.connects) == MAX_SESSIONS
    expected = [b"%s %d" % (name.encode(), n) for n in range(3) for name in names]
    for payload in expected:
        inject_for(rig, payload.split()[0].decode(), payload)
    rig.broker.run(3.0)
    assert sorted(rig.broker.published) == sorted(expected) == sorted(rig.done)
    for name in names:
        mine = [each for each in rig.broker.published if each.split()[0] == name.encode()]
        assert mine == sorted(mine), "in order"
    for name in names[:-1]:
        rig.own.neighbor_left(name)
    rig.broker.run(2.0)
    assert rig.own.standing == 1
    rig.own.neighbor_left(names[-1])
    rig.broker.run(2.0)
    assert (rig.own.standing, rig.own.injectors, rig.own._used) == (0, {}, {})


def test_who_comes_back_is_not_taken_for_who_has_its_session() -> None:
    rig = Rig()
    names = [f"n{number}" for number in range(MAX_SESSIONS + 1)]
    for name in names:
        rig.own.neighbor_joined(name)
    shared = rig.own._places[names[-1]]
    rig.own.neighbor_left(shared.key)
    rig.own.neighbor_left(next(name for name in names if name != shared.key))
    rig.broker.run(2.0)
    assert rig.own.standing == MAX_SESSIONS - 1
    rig.own.neighbor_joined(shared.key)
    rig.broker.run(1.0)
    assert rig.own._places[shared.key] is not shared
    ids = [connect.client_id for connect in rig.broker.connects]
    assert len(set(ids)) == len(ids), "one would take the other over"


def test_all_who_used_a_session_are_told_that_it_is_lost() -> None:
    rig = Rig()
    names = [f"n{number}" for number in range(MAX_SESSIONS + 2)]
    for name in names:
        rig.own.neighbor_joined(name)
    rig.broker.run(1.0)
    first = rig.own._places[names[0]]
    assert first is rig.own._places[names[MAX_SESSIONS]]
    rig.own.neighbor_left(names[0])
    rig.broker.run(1.0)
    rig.broker.wires[0].feed(b"")
    rig.broker.run(1.0)
    assert sorted(rig.lost) == sorted((names[0], names[MAX_SESSIONS]))


def test_of_those_who_share_a_session_only_the_one_that_is_too_much_is_given_up() -> None:
    rig = Rig()
    rig.broker.takes = False
    names = [f"n{number}" for number in range(MAX_SESSIONS + 1)]
    for name in names:
        rig.own.neighbor_joined(name)
    session = {name: SessionInfo(1, SessionKind.NEIGHBOR, name) for name in names}
    for name, count in ((names[0], 5), (names[-1], 50)):
        for number in range(count):
            message = Message(b"t", b"%s %d" % (name.encode(), number), qos=1)
            message.came_from = session[name]
            rig.own.inject(message, name, partial(rig.done.append, message.payload))
    assert rig.own._places[names[0]] is rig.own._places[names[-1]]
    assert rig.own.give_up_injected(names[-1], 1 << 20) == 50
    assert {payload.split()[0] for payload in rig.done} == {names[-1].encode()}
    assert rig.own.give_up_injected(names[0], 1 << 20) == 5
