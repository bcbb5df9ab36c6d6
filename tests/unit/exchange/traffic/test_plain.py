"""The hot path remembers only what is plain, and forgets when told."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.cooperation.api import Route, SessionInfo, SessionKind
from isthmus.exchange.traffic import plain as hot_path
from isthmus.exchange.traffic.message import Message, plain_to_link, to_link
from isthmus.exchange.traffic.plain import MAX_RUN, MAX_TAILS, PlainMessage, PlainMessages
from isthmus.exchange.traffic.routes import FEW

NEIGHBOR = SessionInfo(1, SessionKind.NEIGHBOR, "n")
ROUTE = Route((), to_local_broker=True)


def find(plain: PlainMessages, frame: bytes) -> PlainMessage | None:
    run = plain.run(NEIGHBOR, [frame], 0)
    return run[0] if run else None


@pytest.mark.parametrize("size", [3, 200])
def test_the_next_message_like_it_is_known(size: int) -> None:
    plain = PlainMessages("here")
    message = Message(b"t", bytes(size), origin="there", hops=1)
    frame = to_link(message, 0, 0, 0.0)
    assert find(plain, frame) is None
    plain.remember(NEIGHBOR, frame, message, ROUTE)
    another = to_link(Message(b"t", b"other payload", origin="there", hops=1), 0, 0, 0.0)
    found = find(plain, another)
    assert found is not None
    known, topic, payload = found
    assert (topic, known.to_broker, payload) == (b"t", True, b"other payload")
    plain.forget()
    assert find(plain, another) is None


@pytest.mark.parametrize(
    "other",
    [
        Message(b"t2", b"x", origin="there", hops=1),
        Message(b"t", b"x", origin="elsewhere", hops=1),
        Message(b"t", b"x", origin="there", hops=2),
        Message(b"t", b"x", origin="there", hops=1, retain=True),
        Message(b"t", b"x", origin="there", hops=1, properties=b"\x03\x00\x01c"),
        Message(b"t", b"x", origin="there", hops=1, expiry_s=5),
    ],
)
def test_a_message_that_differs_is_not_taken_for_it(other: Message) -> None:
    plain = PlainMessages("here")
    message = Message(b"t", b"x", origin="there", hops=1)
    plain.remember(NEIGHBOR, to_link(message, 0, 0, 0.0), message, ROUTE)
    frame = to_link(other, 0, 0, 0.0)
    assert find(plain, frame) is None
    if other.topic == b"t" and other.origin == "there" and other.hops == 1:
        plain.forget()
        plain.remember(NEIGHBOR, frame, other, ROUTE)
        assert find(plain, frame) is None, "only plain messages are remembered"


@pytest.mark.parametrize("topic", ["p/\x01", "p/\x9f", "\ufdd0", "p/\U0010ffff"])
def test_a_topic_that_a_broker_may_close_on_gets_a_closer_look_every_time(topic: str) -> None:
    plain = PlainMessages("here")
    message = Message(topic.encode(), b"x", origin="there", hops=1)
    frame = to_link(message, 0, 0, 0.0)
    plain.remember(NEIGHBOR, frame, message, ROUTE)
    assert find(plain, frame) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes, which all neighbors share; those that come again are found again."""
    monkeypatch.setattr(hot_path, "MAX_BYTES", 100_000)
    plain = PlainMessages("here")
    others = [SessionInfo(n, SessionKind.NEIGHBOR, f"n{n}") for n in range(2, 6)]
    frames = []
    for number in range(2_000):
        message = Message(b"t/%d" % number, b"", origin="there")
        frames.append(to_link(message, 0, 0, 0.0))
        for neighbor in (NEIGHBOR, *others):
            plain.remember(neighbor, frames[-1], message, ROUTE)
        plain.run(NEIGHBOR, frames[:1], 0)
        plain.to_link_labeled(b"t", b"", b"%d" % number)
    found = plain._found
    assert 100 < sum(each.total for each in found.values()) < 200
    assert find(plain, frames[0]) is not None, "it came all the time"
    assert find(plain, frames[1]) is None
    assert len(plain._tails) <= MAX_TAILS
    plain.forget(NEIGHBOR)
    assert set(found) == set(others)
    assert not any(each.total for each in found.values())


def test_where_all_topics_are_alike_every_ordinary_one_is_known() -> None:
    plain = PlainMessages("here")
    message = Message(b"t", b"x", origin="there", hops=1)
    plain.remember(NEIGHBOR, to_link(message, 0, 0, 0.0), message, ROUTE, alike=True)

    def known(topic: bytes, origin: str = "there", hops: int = 1) -> PlainMessage | None:
        found = Message(topic, b"payload", origin=origin, hops=hops)
        return find(plain, to_link(found, 0, 0, 0.0))

    for topic in (b"t", b"another/one", b"a $/~", b"t" * 200):
        found = known(topic)
        assert found is not None
        assert (found[1], found[2], found[0].to_broker) == (topic, b"payload", True)
    for topic in (b"$t", b"+", b"a/#", b"a+", "\u00fc".encode(), b"\xff", b"a\0", b"a\x7f", b""):
        assert known(topic) is None, topic
    assert known(b"t", "elsewhere") is None
    assert known(b"t", hops=2) is None
    for number in range(2 * FEW):
        assert known(b"t/%d" % number) is not None
    assert plain._found[NEIGHBOR].total == FEW
    plain.ask_each()
    assert known(b"t/%d" % (2 * FEW)) is None
    assert known(b"t/0") is not None, "what is known of one topic holds"
    plain.forget()
    assert known(b"t/0") is None


@pytest.mark.parametrize("size", [1, 60, 80, 100, 20_000])
def test_a_client_s_message_is_the_same_packet_on_the_hot_path(size: int) -> None:
    plain = PlainMessages("here")
    topics = [b"t" * length for length in (1, 50, 127, 128, 300)]
    frames = plain.to_link(topics, [bytes(size)] * len(topics))
    whole = [to_link(Message(topic, bytes(size), origin="here"), 0, 0, 0.0) for topic in topics]
    assert frames == whole


def test_with_numbers_the_count_and_the_payload_are_the_rest() -> None:
    plain = PlainMessages("here", "1f")
    message = Message(b"t", b"first", origin="there", hops=1, number="2e.00000000000a", label=b"x")
    route = Route.labeled([(NEIGHBOR, b""), (NEIGHBOR, b"y")], to_local_broker=True)
    plain.remember(NEIGHBOR, to_link(message, 0, 0, 0.0, b"x"), message, route)
    second = Message(b"t", b"second", origin="there", hops=0, number="2e.0000000000ff")
    found = find(plain, to_link(second, 0, 0, 0.0, b"x"))
    assert found is None, "another number of hops"
    second.hops = 1
    known, topic, rest = find(plain, to_link(second, 0, 0, 0.0, b"x")) or pytest.fail("unknown")
    assert rest == b"0000000000ff" + b"second"
    assert (known.origin, known.incarnation, known.label) == ("there", "2e", b"x")
    assert [sessions for _, sessions in known.tails] == [(NEIGHBOR,), (NEIGHBOR,)]
    for (tail, _), label in zip(known.tails, (b"", b"y"), strict=True):
        assert plain_to_link(topic, tail, rest) == to_link(second, 0, 0, 0.0, label)
    assert find(plain, to_link(second, 0, 0, 0.0)) is None, "another label"


def test_what_has_no_number_where_all_have_one_is_not_remembered() -> None:
    plain = PlainMessages("here", "1f")
    message = Message(b"t", b"x", origin="there", hops=1)
    frame = to_link(message, 0, 0, 0.0)
    plain.remember(NEIGHBOR, frame, message, ROUTE)
    assert find(plain, frame) is None


def test_a_run_ends_before_the_first_that_is_not_known() -> None:
    plain = PlainMessages("here")
    messages = {
        name: Message(topic, b"x", origin="there", hops=1)
        for name, topic in {"a": b"t/a", "b": b"t/b", "other": b"t/o"}.items()
    }
    frames = {name: to_link(message, 0, 0, 0.0) for name, message in messages.items()}
    frames["long"] = to_link(Message(b"t/a", bytes(200), origin="there", hops=1), 0, 0, 0.0)
    frames["longer topic"] = to_link(Message(b"t/ab", b"x", origin="there", hops=1), 0, 0, 0.0)
    for name in ("a", "b"):
        plain.remember(NEIGHBOR, frames[name], messages[name], ROUTE)
    came = [frames[name] for name in ("other", "a", "a", "long", "b", "a", "longer topic", "a")]
    assert plain.run(NEIGHBOR, came, 0) == []
    run = plain.run(NEIGHBOR, came, 1)
    assert [(topic, len(payload)) for _, topic, payload in run] == [
        (b"t/a", 1), (b"t/a", 1), (b"t/a", 200), (b"t/b", 1), (b"t/a", 1)
    ]  # fmt: skip
    assert [topic for _, topic, _ in plain.run(NEIGHBOR, came, 7)] == [b"t/a"]
    assert plain.run(NEIGHBOR, came, 8) == []


def test_a_run_is_bounded_however_much_one_read_brings() -> None:
    """Of each frame that is none of a run, as many next to it are looked at in vain."""
    plain = PlainMessages("here")
    message = Message(b"t", b"x", origin="there", hops=1)
    frame = to_link(message, 0, 0, 0.0)
    plain.remember(NEIGHBOR, frame, message, ROUTE)

    class Frames(list[bytes]):
        most = 0

        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            self.most = max(self.most, len(found))
            return found

    frames = Frames([frame] * (3 * MAX_RUN))
    assert len(plain.run(NEIGHBOR, frames, 5)) == MAX_RUN
    assert frames.most == MAX_RUN


@pytest.mark.parametrize("bad", [b"0x00000000ff", b"00000000000A", b"12345"])
def test_a_run_ends_before_a_count_that_is_none(bad: bytes) -> None:
    plain = PlainMessages("here", "1f")
    message = Message(b"t", b"x", origin="there", hops=1, number="2e.00000000000a")
    frame = to_link(message, 0, 0, 0.0)
    plain.remember(NEIGHBOR, frame, message, ROUTE)
    wrong = frame.replace(b"00000000000a", bad)
    run = plain.run(NEIGHBOR, [frame, frame, wrong, frame], 0)
    assert [rest for *_, rest in run] == [b"00000000000ax"] * 2
