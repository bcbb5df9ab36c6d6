"""Which messages are retained, at a broker that does not say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from isthmus.exchange.broker import retain_flags
from isthmus.exchange.broker.echoes import MAX_REMEMBERED
from isthmus.exchange.broker.retain_flags import AGAIN_S, GIVE_UP_S, NOTED_S, RetainFlags
from isthmus.exchange.traffic.message import Message
from isthmus.sim.engine import Engine

Told = Callable[[Mapping[bytes, bytes | None] | None], None]


class Broker:
    """Is asked, and answers when it is told to."""

    def __init__(self) -> None:
        self.engine = Engine(1)
        self.asked: list[tuple[Sequence[bytes], Told]] = []
        self.gone_on: list[tuple[bytes, bool]] = []
        self.found: list[tuple[bytes, bytes]] = []
        self.known: set[bytes] = set()
        self.unasked = 0
        self.core = RetainFlags(
            self,  # type: ignore[arg-type]
            lambda topics, told: self.asked.append((topics, told)),
            go_on=lambda message, retain: self.gone_on.append((message.payload, retain)),
            found=lambda topic, payload: self.found.append((topic, payload)),
            is_known=self.known.__contains__,
            unasked=self._not_asked,
        )

    def _not_asked(self) -> None:
        self.unasked += 1

    def now(self) -> float:
        return self.engine.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        return self.engine.call_later(delay_s, callback)

    def run(self, for_s: float) -> None:
        self.engine.run_until(self.engine.now_s + for_s)

    def publish(self, payload: bytes, topic: bytes = b"t") -> bool | None:
        """Whether it is retained; None if it waits."""
        message = Message(topic, payload)
        return message.retain if self.core.judge(message) else None

    def answer(self, **found: bytes) -> list[tuple[bytes, bool]]:
        self.run(0.1)
        topics, told = self.asked.pop(0)
        assert not self.asked
        told({each.encode(): payload for each, payload in found.items() if each.encode() in topics})
        gone_on, self.gone_on = self.gone_on, []
        return gone_on


def test_a_topic_that_is_new_is_asked_for_and_others_wait_behind() -> None:
    broker = Broker()
    assert [broker.publish(each) for each in (b"1", b"2", b"1")] == [None, None, None]
    assert not broker.core.is_plain(b"t")
    assert broker.answer() == [(b"1", False), (b"2", False), (b"1", False)]
    assert broker.core.is_plain(b"t")
    assert broker.publish(b"3") is False
    assert not broker.asked


def test_the_last_with_the_payload_that_is_found_is_retained() -> None:
    broker = Broker()
    for each in (b"1", b"2", b"1", b"3"):
        broker.publish(each)
    assert broker.answer(t=b"1") == [(b"1", False), (b"2", False), (b"1", True), (b"3", False)]
    assert broker.publish(b"4") is None, "there is something retained: it is asked each time"
    assert broker.answer(t=b"1") == [(b"4", False)]
    assert broker.found == [(b"t", b"1")], "by somebody else, or before"


def test_what_went_through_the_node_need_not_be_asked_for() -> None:
    broker = Broker()
    broker.core.note(b"t", b"1")
    assert broker.publish(b"1") is True
    broker.core.note(b"t", b"2")
    broker.run(NOTED_S + 1)
    assert broker.publish(b"2") is None, "that was too long ago"


def test_an_empty_one_deletes_only_what_there_was() -> None:
    broker = Broker()
    broker.publish(b"")
    assert broker.answer() == [(b"", False)]
    broker.known.add(b"u")
    broker.publish(b"", b"u")
    assert broker.answer() == [(b"", True)]


def test_a_topic_is_looked_at_again_beside() -> None:
    broker = Broker()
    broker.publish(b"1")
    broker.answer()
    broker.run(AGAIN_S + 1)
    assert broker.publish(b"2") is False
    assert broker.answer(t=b"2") == []
    assert broker.found == [(b"t", b"2")]
    assert broker.publish(b"3") is None


def test_there_is_a_limit() -> None:
    broker = Broker()
    for number in range(retain_flags.MAX_ASKED):
        assert broker.publish(b"1", b"%d" % number) is None
    assert broker.publish(b"1", b"beyond") is False
    assert broker.unasked == 1
    large = bytes(retain_flags.MAX_WAITING_BYTES)
    assert broker.publish(large, b"0") is False
    assert broker.unasked == 2


def test_what_is_noted_in_vain_is_bounded_and_forgotten() -> None:
    broker = Broker()
    for _ in range(MAX_REMEMBERED + 10):
        broker.core.note(b"t", b"1")  # which the broker does not take
    assert len(broker.core._noted._order) == MAX_REMEMBERED
    broker.publish(b"", b"u")
    broker.answer()
    assert not broker.core.is_plain(b"u")
    broker.run(NOTED_S / 2)
    broker.core.note(b"t", b"1")
    broker.run(NOTED_S / 2 + 1)
    assert broker.publish(b"1") is True, "the last one was noted lately"
    broker.run(AGAIN_S / 2)
    broker.publish(b"", b"u")
    broker.answer()
    broker.run(NOTED_S / 2)
    broker.publish(b"", b"u")
    assert broker.core.is_plain(b"u")


def test_a_broker_that_does_not_answer_is_not_waited_for() -> None:
    broker = Broker()
    assert broker.publish(b"1") is None
    broker.run(1.0)
    assert broker.publish(b"2") is None
    assert broker.publish(b"3", b"u") is None
    broker.run(GIVE_UP_S - 1.0)
    assert broker.gone_on == [(b"1", False), (b"2", False)]
    assert broker.unasked == 2
    assert broker.publish(b"4") is False
    broker.run(1.0)
    assert broker.gone_on[2:] == [(b"3", False)]
    for _ in range(3):
        broker.run(AGAIN_S + 1)
        assert broker.publish(b"5") is False
    assert [list(topics) for topics, _ in broker.asked] == [[b"t"], [b"u"]], "once"
    broker.asked.pop(0)[1]({b"t": b"5"})
    assert broker.found == [(b"t", b"5")]
    assert broker.publish(b"6") is None
