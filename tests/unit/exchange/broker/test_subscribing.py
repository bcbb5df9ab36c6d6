"""What the node is subscribed to at its own broker."""

from __future__ import annotations

from isthmus.exchange.broker.subscribing import BATCH, BrokerSubscriptions
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import SubAck, Subscribe, UnsubAck, Unsubscribe
from isthmus.mqtt.reason_codes import ReasonCode


class Broker:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Subscribe | Unsubscribe] = []
        self.granted: list[str] = []
        self.refused: list[tuple[str, int]] = []
        self.saved: list[str] = []
        self.core = BrokerSubscriptions(
            self.asked.append,
            granted=lambda filters, _qos: self.granted.extend(filters),
            refused=lambda topic_filter, code: self.refused.append((topic_filter, code)),
            save=self._save,
            always=("$here",),
        )

    def _save(self, filters: object) -> None:
        assert isinstance(filters, tuple)
        self.saved = sorted(filters)

    def answer(self, refuses: str = "", codes_said: int = BATCH) -> tuple[str, ...]:
        """Answer the packet that waits; the filters in it."""
        packet = self.asked.pop(0)
        assert not self.asked, "one at a time"
        if isinstance(packet, Unsubscribe):
            self.core.answered(UnsubAck(packet.packet_id, ()))
            return ("-", *packet.topic_filters)
        filters = tuple(each.topic_filter for each in packet.subscriptions)
        codes = (
            ReasonCode.NOT_AUTHORIZED if each == refuses else ReasonCode.GRANTED_QOS_2
            for each in filters
        )
        self.core.answered(SubAck(packet.packet_id, tuple(codes)[:codes_said]))
        return filters

    def answer_all(self) -> list[tuple[str, ...]]:
        answered = []
        while self.asked:
            answered.append(self.answer())
        return answered


def test_what_is_new_is_asked_for_before_what_it_covers_is_given_back() -> None:
    broker = Broker()
    broker.core.want(["a/b", "c"], [])
    assert not broker.asked, "there is no session"
    broker.core.opened(5)
    subscribe = broker.asked[0]
    assert isinstance(subscribe, Subscribe)
    options = {(e.no_local, e.retain_as_published, e.qos) for e in subscribe.subscriptions}
    assert options == {(True, True, 2)}
    assert not broker.core.granted
    assert broker.answer() == ("$here", "a/b", "c")
    assert set(broker.core.granted) == {"a/b", "c"}
    broker.core.want(["a/#"], ["a/b"])
    assert broker.saved == ["a/#", "a/b", "c"]
    assert broker.core.changing
    assert not broker.core.is_second(b"a/b", b"1")
    assert broker.core.is_second(b"a/b", b"1")
    assert not broker.core.is_second(b"a/c", b"1"), "the old one does not match it"
    assert not broker.core.is_second(b"a/c", b"1")
    assert broker.answer_all() == [("a/#",), ("-", "a/b")]
    assert broker.saved == ["a/#", "c"]
    assert set(broker.core.granted) == {"a/#", "c"}
    assert not broker.core.changing
    assert broker.core.matches(b"a/b")
    assert not broker.core.matches(b"b")


def test_many_are_asked_for_in_packets() -> None:
    broker = Broker()
    broker.core.opened(4)
    broker.core.want([f"t/{number}" for number in range(2 * BATCH)], [])
    assert sum(map(len, broker.answer_all())) == 1 + 2 * BATCH


def test_a_filter_that_is_refused_is_told_and_listed() -> None:
    broker = Broker()
    broker.core.want(["secret/#", "t"], [])
    broker.core.opened(5)
    broker.answer(refuses="secret/#")
    assert broker.refused == [("secret/#", 0x87)]
    assert broker.core.refused == {"secret/#": 0x87}
    assert broker.granted == ["$here", "t"]
    assert not broker.core.matches(b"secret/1")
    broker.core.want([], ["secret/#"])
    assert not broker.core.refused


def test_what_was_kept_is_wanted_until_it_is_forgotten() -> None:
    broker = Broker()
    broker.core.keep(["old", "both"])
    broker.core.opened(5)
    broker.core.want(["both", "new"], [])
    assert broker.answer_all()[-1] == ("new",)
    broker.core.want([], ["both"])
    assert set(broker.core.filters) == {"old", "both", "new"}
    broker.core.want(["both"], [])
    broker.core.forget_kept()
    assert broker.answer_all() == [("-", "old")]
    assert set(broker.core.filters) == {"both", "new"}


def test_a_session_that_falls_is_told_everything_again() -> None:
    broker = Broker()
    broker.core.opened(5)
    broker.core.want(["a", "b"], [])
    broker.answer_all()
    broker.core.want([], ["b"])
    broker.core.lost()
    broker.asked.clear()
    broker.core.opened(5)
    assert broker.answer_all() == [("$here", "a"), ("-", "b")]


def test_a_session_that_is_resumed_has_its_filters_before_it_is_asked() -> None:
    broker = Broker()
    broker.core.keep([f"t/{number}" for number in range(2 * BATCH)])
    broker.core.opened(4, resumed=True)
    assert all(broker.core.matches(b"t/%d" % number) for number in range(2 * BATCH))


def test_a_filter_that_is_refused_takes_nothing_along() -> None:
    broker = Broker()
    broker.core.want(["a/+", "b"], [])
    broker.core.opened(5)
    broker.answer()
    broker.core.want(["#"], [])
    assert broker.answer(refuses="#") == ("#",)
    assert not broker.asked, "what it was to take the place of stays"
    assert set(broker.core.granted) == {"a/+", "b"}
    assert broker.core.refused == {"#": 0x87}
    assert not broker.core.changing
    broker.core.want(["+/b"], [])
    assert broker.answer(refuses="+/+") == ("+/+",)
    broker.core.want(["c"], [])
    assert broker.answer_all() == [("c",)]
    assert set(broker.core.granted) == {"a/+", "b", "c"}
    broker.core.lost()
    broker.core.opened(5)
    assert broker.answer(refuses="#") == ("$here", "#"), "the next session may have it"
    assert set(broker.answer(refuses="+/+")) == {"+/+", "b", "c"}
    assert broker.answer_all() == [("a/+",)]
    assert broker.core.refused == {"#": 0x87, "+/+": 0x87}
    broker.core.want([], ["#", "+/b"])
    assert not broker.core.refused
    assert set(broker.core.granted) == {"a/+", "b", "c"}


def test_what_a_broker_says_nothing_of_is_refused() -> None:
    broker = Broker()
    broker.core.want(["a", "b"], [])
    broker.core.opened(5)
    broker.answer(codes_said=2)
    assert broker.refused == [("b", 0x80)]
    assert broker.granted == ["$here", "a"]
    assert not broker.core.matches(b"b")


def test_what_the_last_life_had_not_given_back_is_given_back() -> None:
    broker = Broker()
    broker.core.keep(["a/#", "a/b", "+/c"])
    broker.core.want(["+/d"], [])
    broker.core.opened(5, resumed=True)
    assert broker.core.changing
    asked = broker.answer_all()
    assert asked[0] == ("$here", "#")
    assert {each for packet in asked[1:] for each in packet} == {"-", "a/#", "a/b", "+/c"}
    assert broker.saved == ["#"]


def test_a_filter_of_a_resumed_session_is_given_back_before_it_is_asked_for_again() -> None:
    broker = Broker()
    topics = [f"t/{number}" for number in range(2 * BATCH)]
    broker.core.want(topics, [])
    broker.core.opened(5)
    broker.answer_all()
    broker.core.lost()
    broker.core.opened(5, resumed=True)
    broker.core.want([], topics[-1:])
    assert broker.answer_all()[-1] == ("-", topics[-1])


def test_a_filter_that_a_broker_closes_on_takes_nothing_along() -> None:
    broker = Broker()
    topics = [f"t/{number}" for number in range(2 * BATCH)]
    broker.core.want([*topics[:BATCH], "bad/#", *topics[BATCH:]], [])
    sessions = 0
    while broker.core.refused == {}:
        sessions += 1
        assert sessions < 20
        broker.core.opened(5, resumed=True)
        while broker.asked:
            packet = broker.asked[0]
            assert isinstance(packet, Subscribe)
            if any(each.topic_filter == "bad/#" for each in packet.subscriptions):
                broker.asked.clear()
                broker.core.lost()
            else:
                broker.answer()
    assert broker.refused == [("bad/#", 0x80)]
    for _ in range(2):
        broker.core.opened(5, resumed=True)
        assert len(broker.answer_all()) <= 3
        assert set(broker.core.granted) == set(topics)
        assert broker.core.refused == {"bad/#": 0x80}
        broker.core.lost()
    broker.core.want([], ["bad/#"])
    assert broker.core.refused == {}
    broker.core.want(["bad/#"], [])
    broker.core.opened(5, resumed=True)
    assert ("bad/#",) not in broker.answer_all()
    assert "bad/#" in broker.core.granted, "the broker may have changed its mind"


def test_a_session_that_falls_for_another_reason_makes_no_filter_suspect() -> None:
    broker = Broker()
    broker.core.want(["a", "b"], [])
    for _ in range(20):
        broker.core.opened(5, resumed=True)
        broker.answer_all()
        broker.core.want(["c"], [])
        broker.core.want([], ["c"])
        broker.core.lost()
        broker.asked.clear()
        assert not broker.refused


def test_packets_are_not_long() -> None:
    broker = Broker()
    broker.core.want([f"{number}/{'x' * 1000}" for number in range(50)], [])
    broker.core.opened(5)
    while broker.asked:
        assert len(encode(broker.asked[0], 5)) < 10_000
        broker.answer()
    assert len(broker.core.granted) == 50


def test_what_one_that_is_refused_covers_is_wanted_though_nobody_says_so() -> None:
    broker = Broker()
    broker.core.want(["a/b", "c"], [])
    broker.core.opened(5)
    broker.answer()
    broker.core.want(["#"], ["a/b", "c"])  # as a neighbor does that sums up
    assert broker.answer(refuses="#") == ("#",)
    assert not broker.asked
    assert set(broker.core.granted) == {"a/b", "c"}
    broker.core.want(["c"], [])
    broker.core.want([], ["c"])
    assert broker.saved == ["a/b", "c"]
    broker.core.want(["a/b", "d"], ["#"])
    assert broker.answer_all() == [("d",), ("-", "c")]
    assert broker.saved == ["a/b", "d"]
    assert not broker.core.refused
