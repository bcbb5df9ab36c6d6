"""Retained messages on their way, on a virtual clock: versions, comparisons, and their bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isthmus.cooperation.api import SessionInfo, SessionKind
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.host import Host
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.life import LinkEvent
from isthmus.exchange.link.link import MAX_UNWRITTEN_BYTES, Link
from isthmus.exchange.retained import sync
from isthmus.exchange.retained.service import (
    ANSWER_S,
    CLOCK_SET_MS,
    DROPPED_S,
    MAX_INBOX,
    RESYNC_S,
    RETAINED_TOPIC,
    TELL_AGAIN_S,
    Retention,
)
from isthmus.exchange.retained.store import SLICE, RetainedLimits, RetainedStore
from isthmus.exchange.retained.sync import WINDOW, RetainedSync
from isthmus.exchange.retained.values import Version
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.packets import Publish
from isthmus.sim import SimFabric
from isthmus.sim.engine import Engine, Timer
from isthmus.sim.network import SimChannel
from support.hosts import HandHost

DELAY_S = 0.01
START_MS = 1_700_000_000_000
LIMITS = RetainedLimits()
DAY_MS = 86_400_000


class Surroundings(HandHost):
    """A host whose broker takes everything at once and has nothing of its own."""

    keeps_state = False

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.clock_ms = START_MS
        self.turn_s = 0.0
        """How long what is to be done at once takes to be done."""
        self.injected: list[Message] = []
        self.kept: bytes | None = None
        self.loaded: list[str] = []

    def wall_ms(self) -> int:
        return self.clock_ms + int(self.engine.now_s * 1000)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self.engine.call_later(delay_s or self.turn_s, callback)

    def token_bytes(self, size: int) -> bytes:
        return bytes(size)

    def load_state(self, name: str, _version: int) -> bytes | None:
        self.loaded.append(name)
        return self.kept

    def inject(
        self, message: Message, _key: str, done: Callable[[], None], _kept: object = None
    ) -> bool:
        self.injected.append(message)
        done()
        return True

    def ask_retained(
        self, _: Sequence[bytes], answer: Callable[[Mapping[bytes, bytes | None] | None], None]
    ) -> None:
        self.engine.call_later(DELAY_S, lambda: answer({}))


class Line(Link):
    """One end of a link that stands; what it is given to send arrives at the other end, if any."""

    def __init__(self, engine: Engine, neighbor: str) -> None:
        info = SessionInfo(1, SessionKind.NEIGHBOR, neighbor)
        super().__init__(info, "s", qos=1, queue_bytes=1 << 20, round_robin=False)
        self.engine = engine
        self.waiting = 0
        self.connections[0] = cast(Connection, SimpleNamespace(waiting_bytes=lambda: self.waiting))
        self.happens(LinkEvent.COMPLETE)
        self.happens(LinkEvent.AGREED)
        self.said: list[bytes] = []
        self.messages: list[Message] = []
        self.arrives: Callable[[bytes], None] = lambda _: None

    def send_control(self, packet: bytes) -> bool:
        published = decode(packet, 5)
        assert isinstance(published, Publish)
        assert published.topic == RETAINED_TOPIC
        self.said.append(published.payload)
        self.engine.call_later(DELAY_S, lambda: self.arrives(published.payload))
        return True

    def send(
        self,
        message: Message,
        now_s: float,
        in_hand: object,
        label: bytes = b"",
        *,
        again: bool = False,
    ) -> None:
        self.messages.append(message)


class Node:
    """A node's retention, with what it asks of the data plane."""

    def __init__(self, engine: Engine, name: str, limits: RetainedLimits = LIMITS) -> None:
        self.host = Surroundings(engine)
        self.name = name
        self.counters: Counter[str] = Counter()
        self.lines: list[Line] = []
        self.troubles: list[str] = []
        self.retention = Retention(cast(Host, self.host), name, self, self.counters, limits)

    def other_links(self, link: Link) -> list[Link]:
        return [line for line in self.lines if line is not link]

    def number(self, message: Message) -> None:
        """Not in a tree."""

    def broke_rules(self, link: Link, name: str) -> None:
        self.troubles.append(name)

    def retained_trouble(self, link: Link, error: RemoteProtocolError) -> None:
        self.troubles.append(str(error))

    def line(self, neighbor: str) -> Line:
        """A link to somebody who is the test."""
        made = Line(self.host.engine, neighbor)
        self.lines.append(made)
        return made

    def publish(self, topic: bytes, payload: bytes, **more: int) -> Message:
        message = Message(topic, payload, retain=True, **more)  # type: ignore[arg-type]
        self.retention.published(message)
        return message

    def has(self, topic: bytes) -> bytes | None:
        found = self.retention.store.get(topic, self.host.wall_ms())
        return None if found is None else found.payload

    def given(self) -> dict[bytes, bytes]:
        """What the broker was given last, of each topic."""
        return {each.topic: each.payload for each in self.host.injected if each.retain}


@pytest.fixture
def engine() -> Engine:
    return Engine(0)


@pytest.fixture
def node(engine: Engine) -> Node:
    return Node(engine, "a")


def link(one: Node, two: Node) -> tuple[Line, Line]:
    """The two find out what the other has."""
    ends = one.line(two.name), two.line(one.name)
    ends[0].arrives = lambda payload: two.retention.sync_arrived(ends[1], payload)
    ends[1].arrives = lambda payload: one.retention.sync_arrived(ends[0], payload)
    one.retention.neighbor_joined(ends[0])
    two.retention.neighbor_joined(ends[1])
    return ends


def stranger(engine: Engine, topics: int = 0) -> RetainedSync:
    """The other end of a comparison, by hand."""
    store = RetainedStore("b")
    for number in range(topics):
        store.record_local(b"t/%d" % number, b"of b", now_ms=START_MS)
    made = RetainedSync(store)
    made.start()
    return made


def says(other: RetainedSync) -> bytes:
    payload = other.next_payload(START_MS)
    assert payload is not None
    return payload


# ---- messages ----------------------------------------------------------------------------


def test_a_local_clients_message_gets_a_version_and_is_stored(node: Node) -> None:
    first = node.publish(b"t", b"one")
    second = node.publish(b"t", b"two")
    assert Version.parse(first.version) < Version.parse(second.version)
    assert Version.parse(second.version).origin == "a"
    assert node.has(b"t") == b"two"


def test_the_broker_is_asked_what_it_has_when_a_local_client_and_a_neighbor_publish_at_once(
    engine: Engine, node: Node
) -> None:
    """In which order it took the two, only it knows."""
    node.publish(b"t", b"local")
    message = node.retention.arrived(arriving(START_MS + 1))
    assert message is not None
    node.retention.broker.deliver(message, "b", None)
    assert [each.payload for each in node.host.injected] == [b"x"]
    engine.run_until(10.0)
    assert [each.payload for each in node.host.injected] == [b"x", b"x"]  # it said: nothing


def arriving(wall_ms: int, payload: bytes = b"x", counter: int = 0) -> Message:
    return Message(
        b"t",
        payload,
        qos=1,
        retain=True,
        properties=b"\x03\x00\x01p",
        expiry_s=60,
        origin="b",
        hops=3,
        number="1.2",
        version=str(Version(wall_ms, counter, "b")),
        arrived_s=0.5,
    )


def test_a_neighbors_newer_message_goes_to_the_broker_as_it_is(node: Node) -> None:
    message = arriving(START_MS)
    assert node.retention.arrived(message) is message
    assert node.has(b"t") == b"x"


def test_a_neighbors_older_message_goes_to_the_broker_without_retain(node: Node) -> None:
    node.retention.arrived(arriving(START_MS, b"new", 1))
    old = arriving(START_MS, b"old")
    passed = node.retention.arrived(old)
    assert passed is not None
    assert not passed.retain
    assert passed.version == ""
    for name in Message.__slots__:
        if name not in ("retain", "version", "came_from", "passed_to"):
            assert getattr(passed, name) == getattr(old, name), name
    assert node.has(b"t") == b"new"


def test_the_very_same_message_by_another_way_is_dropped(node: Node) -> None:
    node.retention.arrived(arriving(START_MS))
    assert node.retention.arrived(arriving(START_MS)) is None


def test_a_message_without_a_version_is_the_neighbors_fault(node: Node) -> None:
    with pytest.raises(RemoteProtocolError, match="is not the version"):
        node.retention.arrived(Message(b"t", b"x", retain=True))


def test_a_message_from_the_future_is_passed_on_but_not_kept_and_that_is_told_now_and_then(
    node: Node,
) -> None:
    def comes() -> None:
        passed = node.retention.arrived(arriving(node.host.wall_ms() + DAY_MS))
        assert passed is not None
        assert not passed.retain

    for _ in range(3):
        comes()
    assert node.has(b"t") is None
    assert node.counters["retained_from_future"] == 3
    assert [level for level, _ in node.host.logged] == ["error"]
    node.host.run(TELL_AGAIN_S)
    comes()
    assert [level for level, _ in node.host.logged] == ["error"] * 2


# ---- comparing ---------------------------------------------------------------------------


@pytest.mark.parametrize("slice_topics", [SLICE, 1])
def test_neighbors_that_meet_have_the_same_afterwards_and_so_have_their_brokers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, slice_topics: int
) -> None:
    monkeypatch.setattr(sync, "SLICE", slice_topics)
    both = {b"both/%d" % number: b"newer" for number in range(5)}
    a, b = Node(engine, "a"), Node(engine, "b")
    for number in range(300):
        a.publish(b"a/%d" % number, b"of a", qos=1)
        b.publish(b"b/%d" % number, b"of b")
    for topic in both:
        a.publish(topic, b"older")
    engine.run_until(1.0)
    for topic in both:
        b.publish(topic, b"newer")
    link(a, b)
    engine.run_until(60.0)
    assert a.retention.store.branch_digests() == b.retention.store.branch_digests()
    assert a.counters["retained_synchronized"] == 305
    assert b.counters["retained_synchronized"] == 300
    assert a.given() == both | {b"b/%d" % at: b"of b" for at in range(300)}
    assert b.given() == {b"a/%d" % at: b"of a" for at in range(300)}


def test_neighbors_that_have_the_same_say_little(engine: Engine) -> None:
    a, b = Node(engine, "a"), Node(engine, "b")
    ends = link(a, b)
    engine.run_until(60.0)
    assert [len(end.said) for end in ends] == [2, 2]  # a digest, and the answer to the other's


def test_what_a_comparison_brings_goes_on_to_the_other_neighbors(engine: Engine) -> None:
    """A ── B ── C"""
    a, b, c = (Node(engine, name) for name in "abc")
    link(b, c)
    engine.run_until(10.0)
    a.publish(b"t", b"x", qos=1)
    _, to_a = link(a, b)
    engine.run_until(20.0)
    assert c.has(b"t") == b"x"
    assert c.given() == {b"t": b"x"}
    assert to_a.messages == []


def test_what_there_is_no_room_for_goes_on_as_a_message(engine: Engine) -> None:
    """A ── B ── C, and B remembers nothing but versions."""
    a, c = Node(engine, "a"), Node(engine, "c")
    b = Node(engine, "b", RetainedLimits(max_bytes=300))
    to_c, _ = link(b, c)
    engine.run_until(10.0)
    a.publish(b"t", bytes(1_000), qos=1)
    link(a, b)
    engine.run_until(20.0)
    (message,) = to_c.messages
    assert (message.topic, message.payload, message.retain) == (b"t", bytes(1_000), True)
    assert Version.parse(message.version) == a.retention.store.version(b"t")
    assert b.given() == {b"t": bytes(1_000)}


def test_a_link_that_stands_again_is_compared_again(engine: Engine) -> None:
    a, b = Node(engine, "a"), Node(engine, "b")
    ends = link(a, b)
    engine.run_until(10.0)
    a.publish(b"t", b"while it was down")
    a.retention.neighbor_joined(ends[0])
    b.retention.neighbor_joined(ends[1])
    engine.run_until(20.0)
    assert b.has(b"t") == b"while it was down"


def test_what_came_on_an_earlier_connection_is_not_answered(engine: Engine, node: Node) -> None:
    node.host.turn_s = 1.0
    line, other = node.line("b"), stranger(engine)
    node.retention.neighbor_joined(line)
    node.retention.sync_arrived(line, says(other))
    node.retention.neighbor_joined(line)
    engine.run_until(5.0)
    answers = [said for said in line.said if RetainedSync(RetainedStore("c")).is_answer(said)]
    assert answers == []


# ---- one thing at a time -----------------------------------------------------------------


def test_one_payload_of_a_neighbor_is_dealt_with_in_a_turn(engine: Engine, node: Node) -> None:
    node.host.turn_s = 1.0
    line = node.line("b")
    node.retention.neighbor_joined(line)
    payload = says(stranger(engine))
    for _ in range(3):
        node.retention.sync_arrived(line, payload)
    answer = stranger(engine).answer(payload)
    for turn in range(5):
        engine.run_until(float(turn))
        assert line.said.count(answer) == min(turn, 3)


def test_a_neighbor_that_does_not_wait_for_answers_is_at_fault(engine: Engine, node: Node) -> None:
    line, payload = node.line("b"), says(stranger(engine))
    node.retention.neighbor_joined(line)
    for _ in range(MAX_INBOX):
        node.retention.sync_arrived(line, payload)
    with pytest.raises(RemoteProtocolError, match="does not wait for answers"):
        node.retention.sync_arrived(line, payload)
    engine.run_until(1.0)
    node.retention.sync_arrived(line, payload)  # there is room again


def test_bytes_that_are_no_comparison_are_the_neighbors_trouble_and_nobody_elses(
    engine: Engine, node: Node
) -> None:
    line, good = node.line("b"), node.line("c")
    node.retention.neighbor_joined(line)
    node.retention.neighbor_joined(good)
    node.retention.sync_arrived(line, b"\x02\x63\x00\x00\x00\x00")
    node.retention.sync_arrived(line, says(stranger(engine)))
    node.retention.sync_arrived(good, says(stranger(engine)))
    before = len(line.said)
    engine.run_until(1.0)
    assert len(node.troubles) == 1
    assert "unknown kind" in node.troubles[0]
    assert len(line.said) == before  # nothing behind it is answered
    assert len(good.said) == 2


def test_a_neighbor_is_not_told_more_at_once_than_it_answers(engine: Engine, node: Node) -> None:
    for number in range(2_000):
        node.publish(b"t/%d" % number, bytes(100))
    line = node.line("b")
    node.retention.neighbor_joined(line)
    node.retention.sync_arrived(line, says(stranger(engine)))
    engine.run_until(ANSWER_S / 2)
    said = len(line.said)
    assert WINDOW <= said <= WINDOW + 1  # and the answer to what came
    other = stranger(engine)
    node.retention.sync_arrived(line, other.answer(line.said[0]))
    engine.run_until(ANSWER_S / 2 + 0.1)
    assert len(line.said) == said + 1


def test_a_link_that_is_full_is_told_nothing_until_it_has_room(engine: Engine, node: Node) -> None:
    line = node.line("b")
    line.waiting = MAX_UNWRITTEN_BYTES + 1
    node.retention.neighbor_joined(line)
    engine.run_until(ANSWER_S - 1.0)
    assert line.said == []
    line.waiting = MAX_UNWRITTEN_BYTES
    line.look_for_room()
    engine.run_until(ANSWER_S)
    assert len(line.said) == 1


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


def test_a_link_without_a_connection_is_told_nothing(engine: Engine, node: Node) -> None:
    line = node.line("b")
    line.connections[0] = None
    node.retention.neighbor_joined(line)
    engine.run_until(10.0)
    assert line.said == []


def test_a_link_that_is_not_the_algorithms_is_told_nothing(engine: Engine, node: Node) -> None:
    line = node.line("b")
    line.happens(LinkEvent.RING)
    node.retention.neighbor_joined(line)
    engine.run_until(10.0)
    assert line.said == []


# ---- when it begins anew -----------------------------------------------------------------


def kinds(line: Line) -> list[int]:
    """1 is a digest, 7 an answer, 8 asks for a digest."""
    return [payload[1] for payload in line.said]


def test_what_is_not_answered_is_said_anew_and_the_other_end_is_asked_to(
    engine: Engine, node: Node
) -> None:
    line = node.line("b")
    node.retention.neighbor_joined(line)
    engine.run_until(ANSWER_S - 0.1)
    assert kinds(line) == [1]
    engine.run_until(ANSWER_S + 0.1)
    assert sorted(kinds(line)) == [1, 1, 8]


def test_what_is_answered_in_time_is_not_said_anew(engine: Engine, node: Node) -> None:
    line, other = node.line("b"), stranger(engine)
    node.retention.neighbor_joined(line)
    engine.run_until(1.0)
    node.retention.sync_arrived(line, other.answer(line.said[0]))
    engine.run_until(10 * ANSWER_S)
    assert kinds(line) == [1]


@pytest.fixture
def pair(engine: Engine) -> tuple[Node, Node]:
    """Two neighbors that have compared, and hear no messages of each other."""
    a, b = Node(engine, "a"), Node(engine, "b")
    a.retention.start()
    b.retention.start()
    link(a, b)
    engine.run_until(1.0)
    return a, b


def test_neighbors_compare_now_and_then(engine: Engine, pair: tuple[Node, Node]) -> None:
    a, b = pair
    a.publish(b"t", b"missed")
    engine.run_until(RESYNC_S - 1.0)
    assert b.has(b"t") is None
    engine.run_until(RESYNC_S + 1.0)
    assert b.has(b"t") == b"missed"
    a.publish(b"t", b"missed again")
    engine.run_until(2 * RESYNC_S + 1.0)
    assert b.has(b"t") == b"missed again"


@pytest.mark.parametrize("where", [0, 1])
def test_neighbors_compare_soon_when_a_link_has_dropped_something(
    engine: Engine, pair: tuple[Node, Node], where: int
) -> None:
    a, b = pair
    a.publish(b"t", b"dropped")
    pair[where].lines[0].dropped += 1
    engine.run_until(2 * DROPPED_S)
    assert b.has(b"t") == b"dropped"
    said = len(a.lines[0].said)
    engine.run_until(10 * DROPPED_S)
    assert len(a.lines[0].said) == said  # once for what was dropped


def test_neighbors_compare_soon_when_a_clock_was_set(engine: Engine) -> None:
    """What was refused as of the future can come together then."""
    a, b = Node(engine, "a"), Node(engine, "b")
    for node in (a, b):
        node.retention.start()
    b.host.clock_ms -= DAY_MS
    engine.run_until(2 * DROPPED_S)
    a.publish(b"t", b"x")
    link(a, b)
    engine.run_until(4 * DROPPED_S)
    assert b.has(b"t") is None
    b.host.clock_ms += DAY_MS
    engine.run_until(6 * DROPPED_S)
    assert b.has(b"t") == b"x"


def test_a_clock_that_is_only_corrected_is_no_reason_to_compare(
    engine: Engine, pair: tuple[Node, Node]
) -> None:
    a, _ = pair
    said = len(a.lines[0].said)
    for _ in range(4):
        a.host.clock_ms += CLOCK_SET_MS - 1_000
        engine.run_until(engine.now_s + 2 * DROPPED_S)
    assert len(a.lines[0].said) == said


# ---- ends --------------------------------------------------------------------------------


def test_who_has_left_is_neither_told_nor_heard(engine: Engine, node: Node) -> None:
    node.retention.start()
    line = node.line("b")
    node.retention.neighbor_joined(line)
    node.retention.sync_arrived(line, says(stranger(engine)))
    said = len(line.said)
    node.retention.neighbor_left(line)
    node.retention.sync_arrived(line, b"whatever it is")
    engine.run_until(2 * RESYNC_S)
    assert len(line.said) == said
    assert node.troubles == []


def test_after_stop_nothing_more_is_said(engine: Engine, node: Node) -> None:
    node.retention.start()
    line = node.line("b")
    node.retention.neighbor_joined(line)
    said = len(line.said)
    node.retention.stop()
    engine.run_until(2 * RESYNC_S)
    assert len(line.said) == said


def test_the_start_gives_the_broker_what_it_was_owed_when_the_last_life_ended(
    engine: Engine, node: Node
) -> None:
    kept = RetainedStore("a", journal=True)
    for topic in (b"owed", b"given"):
        kept.record_local(topic, b"kept", now_ms=START_MS)
    kept.owe(b"owed")
    node.host.kept = b"".join(kept.snapshot())
    for _ in node.retention.loading():
        pass
    engine.run_until(10.0)
    assert node.given() == {}
    node.retention.start()
    engine.run_until(20.0)
    assert node.given() == {b"owed": b"kept"}


def test_what_was_kept_is_read_once_before_the_start_or_with_it(engine: Engine) -> None:
    kept = RetainedStore("a", journal=True)
    for number in range(1_200):
        kept.record_local(b"t/%d" % number, b"kept", now_ms=START_MS)
    for in_slices in (True, False):
        node = Node(engine, "a")
        node.host.kept = b"".join(kept.snapshot())
        if in_slices:
            assert sum(1 for _ in node.retention.loading()) >= 2
        node.retention.start()
        assert len(node.retention.store) == 1_200
        assert node.host.loaded == ["retained"]
