"""The vectorized parser against a plain one, for any mix of frames and any chunking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.bench.load import receiving
from isthmus.bench.load.frames import LEVEL, Template, template
from isthmus.bench.load.receiving import (
    NOT_OURS,
    OTHER_RUN,
    OTHER_SIZE,
    OTHER_TOPIC,
    READ_BYTES,
    READS,
    Columns,
    Inbox,
    LoadSubscription,
    Parser,
)
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import scan
from isthmus.mqtt.packets import PingResp, Publish, PubRel
from isthmus.pipeline.log.payload import LAYOUT, MAGIC, run_tag

TAG = run_tag("this")
OTHER_TAG = run_tag("other")

Row = tuple[int, int, int, int, int, int]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a nanosecond after the last."""
    ticks = count(1_700_000_000_000_000_000)
    monkeypatch.setattr(receiving, "now_ns", lambda: next(ticks))


def reading(chunk: bytes) -> Callable[[memoryview], int]:
    """A socket that has `chunk`."""

    def recv_into(view: memoryview) -> int:
        view[: len(chunk)] = chunk
        return len(chunk)

    return recv_into


def payload(publisher: int, message: int, size: int, *, tag: int = TAG) -> bytes:
    fields = LAYOUT.pack(MAGIC, publisher, 5_000 + message, message, 0, tag)
    return fields + bytes(size - LAYOUT.size)


def publish(
    of: Template,
    topic: str,
    data: bytes,
    packet_id: int = 7,
    *,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    packet_id = packet_id if of.qos else 0
    return encode(Publish(topic, data, of.qos, retain, dup, packet_id), LEVEL)


@dataclass(frozen=True)
class Subscriber:
    client: int
    topic: int
    topic_name: str
    template: Template

    @property
    def subscription(self) -> LoadSubscription:
        return LoadSubscription(self.client, self.topic, self.template)


def rows(columns: Columns) -> list[Row]:
    assert list(columns) == [
        "subscriber", "publisher", "message", "topic", "t_send_ns", "t_receive_ns",
    ]  # fmt: skip
    return list(zip(*(values.tolist() for values in columns.values()), strict=True))


def plain_parse(
    subscriber: Subscriber, chunks: Sequence[tuple[int, bytes]], strays: Counter[str]
) -> Iterator[Row]:
    """Frame by frame, with the general decoder; `chunks` are times and bytes."""
    stream = b"".join(chunk for _, chunk in chunks)
    bounds = scan(stream)
    for begin, end in pairwise(bounds):
        packet = decode(stream[begin:end], LEVEL)
        if not isinstance(packet, Publish):
            continue
        data = packet.payload
        if packet.topic != subscriber.topic_name:
            strays[OTHER_TOPIC] += 1
            continue
        if len(data) < LAYOUT.size or LAYOUT.unpack_from(data)[0] != MAGIC:
            strays[NOT_OURS] += 1
            continue
        if len(data) != subscriber.template.payload_bytes:
            strays[OTHER_SIZE] += 1
            continue
        _, publisher, t_send_ns, message, _, tag = LAYOUT.unpack_from(data)
        if tag != TAG:
            strays[OTHER_RUN] += 1
            continue
        yield (
            subscriber.client, publisher, message, subscriber.topic, t_send_ns,
            arrival_ns(chunks, end),
        )  # fmt: skip


def arrival_ns(chunks: Sequence[tuple[int, bytes]], end: int) -> int:
    """When the byte before `end` came."""
    seen = accumulate(len(chunk) for _, chunk in chunks)
    return next(t_ns for (t_ns, _), until in zip(chunks, seen, strict=True) if until >= end)


KINDS = ("ours",) * 12 + (
    "other run", "foreign", "empty", "long", "other topic", "retained", "dup", "ping", "pubrel",
)  # fmt: skip


def frame(kind: str, of: Subscriber, number: int) -> bytes:
    size = of.template.payload_bytes
    ours = payload(number % 3, number, size)
    match kind:
        case "other run":
            data = payload(1, number, size, tag=OTHER_TAG)
        case "foreign":
            data = bytes((number % 251,)) * size
        case "empty":
            data = b""
        case "long":
            data = ours + b"+"
        case "other topic":
            return publish(of.template, of.topic_name[::-1] + "x", ours)
        case "retained":
            return publish(of.template, of.topic_name, ours, retain=True)
        case "dup":
            return publish(of.template, of.topic_name, ours, dup=of.template.qos > 0)
        case "ping":
            return encode(PingResp(), LEVEL)
        case "pubrel":
            return encode(PubRel(number % 65_535 + 1), LEVEL)
        case _:
            data = ours
    return publish(of.template, of.topic_name, data, number % 65_535 + 1)


def subscriber(client: int, topic: int, qos: int, size: int) -> Subscriber:
    name = ("topic1", "topic2", "a/longer/one")[topic]
    return Subscriber(client, topic, name, template(name, qos, size))


subscribers = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from((0, 0, 1, 2)), st.sampled_from((32, 33, 200))),
    min_size=1,
    max_size=4,
).map(lambda drawn: [subscriber(10 + number, *one) for number, one in enumerate(drawn)])


@settings(max_examples=150, deadline=None)
@given(subscribers, st.data(), st.randoms(use_true_random=True), st.integers(1, 400))
def test_equals_a_plain_parse_for_any_frames_and_any_chunks(
    players: list[Subscriber], data: st.DataObject, random: Random, largest: int
) -> None:
    rest = []
    for one in players:
        kinds = data.draw(st.lists(st.sampled_from(KINDS), max_size=25))
        rest.append(b"".join(frame(kind, one, n) for n, kind in enumerate(kinds)))
    parser, inbox = Parser([one.subscription for one in players]), Inbox()
    chunks: list[list[tuple[int, bytes]]] = [[] for _ in players]
    got: list[Row] = []
    while any(rest):
        number = random.choice([n for n, left in enumerate(rest) if left])
        size = random.randint(1, largest)
        chunk, rest[number] = rest[number][:size], rest[number][size:]
        assert inbox.read(number, reading(chunk)) == len(chunk)
        chunks[number].append((int(inbox.notes["t_ns"][-1]), chunk))
        if random.random() < 0.2:
            got += rows(parser.parse(inbox, TAG))
    got += rows(parser.parse(inbox, TAG))

    strays: Counter[str] = Counter()
    for number, one in enumerate(players):
        expected = list(plain_parse(one, chunks[number], strays))
        assert [row for row in got if row[0] == one.client] == expected
        assert parser.received[number] == len(expected)
    assert parser.strays == strays
    assert not parser.broken


def test_equal_frames_of_many_subscribers_in_large_reads() -> None:
    players = [subscriber(100 + n, n % 2, 0, 32) for n in range(50)]
    parser, inbox = Parser([one.subscription for one in players]), Inbox()
    per_read = READ_BYTES // players[0].template.size
    blocks = [b"".join(frame("ours", one, n) for n in range(per_read)) for one in players]
    got: list[Row] = []
    for number in range(50):
        inbox.read(number, reading(blocks[number]))
        if inbox.full:
            got += rows(parser.parse(inbox, TAG))
    got += rows(parser.parse(inbox, TAG))
    expected = [(one.client, n % 3, n) for one in players for n in range(per_read)]
    assert sorted(row[:3] for row in got) == sorted(expected)
    assert [row[2] for row in got if row[0] == 100] == list(range(per_read))
    assert not parser.strays


def test_the_inbox_is_full_before_a_read_could_overflow_it() -> None:
    inbox = Inbox()
    reads = 0
    while not inbox.full:
        assert inbox.read(0, len) == READ_BYTES
        reads += 1
    assert reads == receiving.ARENA_BYTES // READ_BYTES
    inbox.clear()
    for _ in range(READS):
        assert not inbox.full
        inbox.read(0, lambda view: 1)
    assert inbox.full
    assert inbox.notes["size"].sum() == READS


def test_the_end_of_a_stream_is_no_read() -> None:
    inbox = Inbox()
    assert inbox.read(0, lambda view: 0) == 0
    assert len(inbox.notes) == 0


def test_outside_of_a_run_everything_is_a_stray() -> None:
    one = subscriber(1, 0, 0, 32)
    parser, inbox = Parser([one.subscription]), Inbox()
    inbox.read(0, reading(frame("ours", one, 0) + frame("foreign", one, 1)))
    assert rows(parser.parse(inbox, None)) == []
    assert parser.strays == {OTHER_RUN: 1, NOT_OURS: 1}
    assert rows(parser.parse(inbox, TAG)) == []


def test_bytes_that_are_not_mqtt_break_that_connection_alone() -> None:
    good, bad = subscriber(1, 0, 0, 32), subscriber(2, 0, 0, 32)
    parser, inbox = Parser([good.subscription, bad.subscription]), Inbox()
    inbox.read(1, reading(frame("ours", bad, 0) + b"\x30\xff\xff\xff\xff\x01"))
    inbox.read(0, reading(frame("ours", good, 0)))
    assert [row[0] for row in rows(parser.parse(inbox, TAG))] == [1, 2]
    assert list(parser.broken) == [1]
    assert "remaining length" in parser.broken[1]


def test_a_packet_beyond_all_measure_breaks_the_connection() -> None:
    one = subscriber(1, 0, 0, 32)
    parser, inbox = Parser([one.subscription]), Inbox()
    inbox.read(0, reading(b"\x30\xff\xff\xff\x7f"))
    parser.parse(inbox, TAG)
    assert "268435460 bytes" in parser.broken[0]


def test_what_came_before_the_first_read_counts_too() -> None:
    one = subscriber(1, 0, 0, 32)
    parser, inbox = Parser([one.subscription]), Inbox()
    parser.preload(0, frame("ours", one, 0))
    inbox.read(0, reading(frame("ours", one, 1)))
    got = rows(parser.parse(inbox, TAG))
    assert [row[2] for row in got] == [0, 1]


def test_columns_have_the_types_of_the_schema() -> None:
    one = subscriber(1, 0, 0, 32)
    parser, inbox = Parser([one.subscription]), Inbox()
    inbox.read(0, reading(frame("ours", one, 0)))
    types = {name: values.dtype for name, values in parser.parse(inbox, TAG).items()}
    assert types == {
        "subscriber": np.uint32,
        "publisher": np.uint32,
        "message": np.uint32,
        "topic": np.uint32,
        "t_send_ns": np.int64,
        "t_receive_ns": np.int64,
    }
