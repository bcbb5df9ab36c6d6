"""The hot path remembers only what is plain, and forgets when told."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.cooperation.api import Route, SessionInfo, SessionKind
from isthmus.exchange.traffic.message import Message, plain_to_link, to_link
from isthmus.exchange.traffic.plain import MAX_RUN, PlainMessage, PlainMessages
from isthmus.exchange.traffic.routes import MAX_TOPICS

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
    known, payload = found
    assert (known.topic, known.to_broker, payload) == (b"t", True, b"other payload")
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


def test_what_is_remembered_is_bounded() -> None:
    plain = PlainMessages("here")
    for number in range(MAX_TOPICS + 10):
        topic = b"t/%d" % number
        message = Message(topic, b"", origin="there")
        plain.remember(NEIGHBOR, to_link(message, 0, 0, 0.0), message, ROUTE)
        plain.to_link([topic], [b""])
    assert sum(len(found) for found in plain._found.values()) <= MAX_TOPICS
    assert len(plain._prefixes) <= MAX_TOPICS


def test_with_numbers_the_count_and_the_payload_are_the_rest() -> None:
    plain = PlainMessages("here", "1f")
    message = Message(b"t", b"first", origin="there", hops=1, number="2e.00000000000a", label=b"x")
    route = Route.labeled([(NEIGHBOR, b""), (NEIGHBOR, b"y")], to_local_broker=True)
    plain.remember(NEIGHBOR, to_link(message, 0, 0, 0.0, b"x"), message, route)
    second = Message(b"t", b"second", origin="there", hops=0, number="2e.0000000000ff")
    found = find(plain, to_link(second, 0, 0, 0.0, b"x"))
    assert found is None, "another number of hops"
    second.hops = 1
    known, rest = find(plain, to_link(second, 0, 0, 0.0, b"x")) or pytest.fail("unknown")
    assert rest == b"0000000000ff" + b"second"
    assert (known.origin, known.incarnation, known.label) == ("there", "2e", b"x")
    assert [sessions for _, sessions in known.prefixes] == [(NEIGHBOR,), (NEIGHBOR,)]
    for (prefix, _), label in zip(known.prefixes, (b"", b"y"), strict=True):
        assert plain_to_link(prefix, rest) == to_link(second, 0, 0, 0.0, label)
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
    assert [(known.topic, len(payload)) for known, payload in run] == [
        (b"t/a", 1), (b"t/a", 1), (b"t/a", 200), (b"t/b", 1), (b"t/a", 1)
    ]  # fmt: skip
    assert [known.topic for known, _ in plain.run(NEIGHBOR, came, 7)] == [b"t/a"]
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
    assert [rest for _, rest in run] == [b"00000000000ax"] * 2
