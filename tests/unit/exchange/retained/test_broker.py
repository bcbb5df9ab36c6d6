"""What the node gave its broker lately, and what it asks for when a session is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from isthmus.exchange.host import Host
from isthmus.exchange.retained import broker as retained_broker
from isthmus.exchange.retained.broker import DOUBT_S, SLICE, BrokerCopies, _Lately
from isthmus.exchange.retained.store import RetainedStore
from isthmus.exchange.retained.values import Retained
from isthmus.exchange.traffic.message import Message
from isthmus.sim.engine import Engine, Timer

Answer = Callable[[Mapping[bytes, bytes | None] | None], None]


def test_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_broker, "MAX_LATELY", 10)
    lately = _Lately()
    for number in range(23):
        lately.note(b"%d" % number, float(number))
    lately.note(b"21", 30.0)
    assert [number for number in range(23) if lately.is_noted(b"%d" % number, 0.0)] == [
        *range(15, 23)
    ]
    assert lately.is_noted(b"21", 30.0)
    assert not lately.is_noted(b"22", 30.0)
    assert set(lately.since(20.0)) == {b"20", b"21", b"22"}


def test_a_lost_session_is_dealt_with_in_slices() -> None:
    """A neighbor brought very many at QoS 0, and the broker ends the session."""
    waiting: list[Callable[[], None]] = []

    def call_later(_delay_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        waiting.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    def inject(
        _message: Message, _key: str, done: Callable[[], None], _kept: object = None
    ) -> bool:
        done()
        return True

    host = SimpleNamespace(
        now=lambda: 1.0,
        wall_ms=lambda: 1_000,
        call_later=call_later,
        inject=inject,
        ask_retained=lambda *_: None,
    )
    store = RetainedStore("here")
    copies = BrokerCopies(cast(Host, host), store, "here", Counter())
    topics = [b"t/%d" % number for number in range(3 * SLICE)]
    for topic in topics:
        retained = store.record_local(
            topic, b"v", properties=b"", qos=0, expiry_s=None, now_ms=1_000
        )
        message = Message(topic, b"v", retain=True, version=str(retained.version))
        copies.deliver(message, "neighbor", None)
    assert len(copies) == 0
    copies.session_lost("neighbor")
    assert len(copies) == SLICE
    while len(copies) < len(topics):
        before = len(copies)
        waiting.pop(0)()
        assert len(copies) <= before + SLICE
    assert set(store.owed) == set(topics)


class Desk:
    """A host whose broker answers when the test says so."""

    def __init__(self) -> None:
        self.engine = Engine(0)
        self.injected: list[tuple[Message, Callable[[], None]]] = []
        self.asked: list[tuple[Sequence[bytes], Answer]] = []
        self.store = RetainedStore("here")
        self.copies = BrokerCopies(cast(Host, self), self.store, "here", Counter())

    def now(self) -> float:
        return self.engine.now_s

    def wall_ms(self) -> int:
        return 1_000 + int(self.engine.now_s * 1000)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self.engine.call_later(delay_s, callback)

    def inject(
        self, message: Message, _key: str, done: Callable[[], None], _kept: object = None
    ) -> bool:
        self.injected.append((message, done))
        return True

    def ask_retained(self, topics: Sequence[bytes], answer: Answer) -> None:
        self.asked.append((topics, answer))

    def store_takes(self, payload: bytes) -> Retained:
        return self.store.record_local(
            b"t", payload, properties=b"", qos=1, expiry_s=None, now_ms=self.wall_ms()
        )

    def comes_live(self, payload: bytes, key: str = "n") -> None:
        version = self.store_takes(payload).version
        message = Message(b"t", payload, qos=1, retain=True, version=str(version))
        self.copies.deliver(message, key, None)

    def run(self, seconds: float = 0.0) -> None:
        self.engine.run_until(self.engine.now_s + seconds)


@pytest.fixture
def desk() -> Desk:
    """The broker is being asked what it has on a topic."""
    desk = Desk()
    desk.copies.owe(desk.store_takes(b"old"), ask=True)
    desk.run()
    assert [topics for topics, _ in desk.asked] == [[b"t"]]
    return desk


def test_what_comes_live_while_the_broker_is_asked_is_given_once(desk: Desk) -> None:
    """The answer is of the time before it."""
    desk.comes_live(b"new")
    ((_, acknowledged),) = desk.injected
    acknowledged()
    desk.asked[0][1]({})
    desk.run(10.0)
    assert [message.payload for message, _ in desk.injected] == [b"new"]
    assert len(desk.copies) == 0


def test_a_doubt_that_is_due_while_the_broker_is_asked_is_asked_after_it(desk: Desk) -> None:
    """The answer under way does not know how two publishers at once have ended."""
    desk.comes_live(b"one", "n")
    desk.comes_live(b"two", "m")
    for _, acknowledged in desk.injected:
        acknowledged()
    desk.run(2 * DOUBT_S)
    desk.asked[0][1]({b"t": b"two"})
    desk.run(2 * DOUBT_S)
    assert [topics for topics, _ in desk.asked] == [[b"t"]] * 2
    desk.asked[1][1]({b"t": b"one"})
    desk.run()
    assert [message.payload for message, _ in desk.injected] == [b"one", b"two", b"two"]


def comes_again(desk: Desk, payload: bytes, done: list[str]) -> None:
    """The message of a neighbor that a comparison has brought already."""
    version = str(desk.store.version(b"t"))
    message = Message(b"t", payload, qos=2, retain=True, version=version)
    desk.copies.known(message, "n", lambda: done.append("done"))


def test_what_a_comparison_brought_is_given_when_it_comes_if_it_is_still_owed(desk: Desk) -> None:
    """The broker is being asked; a newer one may come before the answer."""
    done: list[str] = []
    comes_again(desk, b"old", done)
    ((message, acknowledged),) = desk.injected
    assert (message.payload, done) == (b"old", [])
    desk.asked[0][1]({})
    acknowledged()
    desk.run(10.0)
    assert done == ["done"]
    assert len(desk.injected) == 1
    assert len(desk.copies) == 0


def test_what_the_broker_took_is_not_given_again_while_it_is_to_be_asked(desk: Desk) -> None:
    """Two neighbors brought something at once; one comes again, by another way."""
    desk.comes_live(b"one", "n")
    desk.comes_live(b"two", "m")
    for _, acknowledged in desk.injected:
        acknowledged()
    done: list[str] = []
    comes_again(desk, b"two", done)
    assert done == ["done"]
    assert [message.payload for message, _ in desk.injected] == [b"one", b"two"]


def test_what_is_on_its_way_to_the_broker_is_waited_for() -> None:
    desk = Desk()
    desk.copies.owe(desk.store_takes(b"old"), ask=False)
    desk.run()
    ((_, acknowledged),) = desk.injected
    done: list[str] = []
    comes_again(desk, b"old", done)
    comes_again(desk, b"old", done)
    assert done == []
    acknowledged()
    assert done == ["done"] * 2
    comes_again(desk, b"old", done)
    assert (len(done), len(desk.injected)) == (3, 1), "the broker has it"


def test_an_answer_of_the_time_before_an_older_one_was_taken_does_not_count(desk: Desk) -> None:
    """What was deleted meanwhile must not be at the broker because it once had nothing."""
    desk.comes_live(b"older")
    ((_, acknowledged),) = desk.injected
    desk.copies.owe(desk.store_takes(b""), ask=False)
    desk.run()
    acknowledged()
    desk.run()
    desk.asked[0][1]({})
    desk.run()
    assert [topics for topics, _ in desk.asked] == [[b"t"]] * 2
    desk.asked[1][1]({b"t": b"older"})
    desk.run()
    assert [message.payload for message, _ in desk.injected] == [b"older", b""]


def test_it_is_given_when_it_comes_also_while_an_older_one_is_on_its_way(desk: Desk) -> None:
    """By the acknowledgment of that it is not safe, and a newer one may come before its turn."""
    done: list[str] = []
    comes_again(desk, b"old", done)
    newest = desk.store.record_local(
        b"t", b"new", properties=b"", qos=1, expiry_s=None, now_ms=60_000
    )
    desk.copies.owe(newest, ask=False)
    comes_again(desk, b"new", done)
    (_, older), (message, newer) = desk.injected
    assert message.payload == b"new"
    older()
    assert done == ["done"], "the older one"
    newer()
    assert done == ["done", "done"]
