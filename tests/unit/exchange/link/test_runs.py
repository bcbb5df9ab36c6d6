"""Messages in runs go out, and are acknowledged, as those that have an object each.

Whatever happens to a lane is done to two of them, of which one gets runs and the other single
messages: packets, what is unacknowledged, what it takes, and what becomes of everything in the end
must be the same at every step.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cooperation.api import SessionInfo, SessionKind
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link.lane import WINDOW, Outgoing, OutgoingLane, packet_id_of
from isthmus.exchange.link.runs import Batch, Run
from isthmus.exchange.traffic.message import (
    Message,
    from_link,
    number_of,
    numbered_block,
    numbered_to_link,
    to_link,
)
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.publish_layout import PUBACK, PUBREC, packet_id_at, topic_bounds

LIFE = "00c0ffee"


def batch_of(count: int, first: int = 1, arrived_s: float = 0.0) -> Batch:
    numbers = range(first, first + count)
    return Batch(
        [b"t/%d" % (number % 3) for number in numbers],
        [b"%d" % number for number in numbers],
        (),
        origin="a",
        incarnation=LIFE,
        first=first,
        arrived_s=arrived_s,
    )


def counts(packets: list[bytes]) -> list[int]:
    return [int(from_link(packet, 0.0)[0].payload) for packet in packets]


@given(
    topic=st.text(min_size=1, max_size=200).map(str.encode).filter(lambda name: len(name) < 65_000),
    payload=st.binary(max_size=300),
    label=st.binary(max_size=20),
    numbers=st.tuples(st.integers(1, IDENTIFIERS), st.integers(1, 0xFFFFFFFFFFFF)),
    origin=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
)
def test_the_packet_is_the_one_that_a_single_message_has(
    topic: bytes, payload: bytes, label: bytes, numbers: tuple[int, int], origin: str
) -> None:
    packet_id, count = numbers
    message = Message(topic, payload, qos=1, origin=origin, number=number_of(LIFE, count))
    block = numbered_block(origin, label, LIFE)
    fast = numbered_to_link(topic, packet_id, block, count, payload)
    assert fast == to_link(message, 1, packet_id, 0.0, label)


class Pair:
    """Two lanes to which the same happens."""

    def __init__(self) -> None:
        self.runs, self.singles = OutgoingLane("b"), OutgoingLane("b")
        self.count = 0
        self.now_s = 0.0
        self.sent: list[bytes] = []

    def batch(self, size: int, label: bytes, indexes: list[int] | None = None) -> None:
        batch = batch_of(size, self.count + 1, self.now_s)
        self.count += size
        chosen = range(size) if indexes is None else indexes
        self.runs.put_run(Run(batch, chosen, label))
        for at in chosen:
            self.singles.put(Outgoing(batch.message(at), 1, None, label))

    def single(self, *, again: bool, arrived_s: float) -> None:
        self.count += 1
        number = self.count if not again else max(1, self.count // 2)
        for lane in (self.runs, self.singles):
            message = Message(
                b"t",
                b"%d" % number,
                qos=1,
                origin="a",
                number=number_of(LIFE, number),
                arrived_s=arrived_s,
            )
            lane.put(Outgoing(message, 1, None, b"new"), again=again)

    def transmit(self) -> None:
        packets = self.runs.transmit(self.now_s)
        assert packets == self.singles.transmit(self.now_s)
        self.sent += packets
        self.look()

    def acknowledge(self, packet_ids: list[int]) -> None:
        self.runs.all_acknowledged(packet_ids)
        for packet_id in packet_ids:
            self.singles.acknowledged(PUBACK, packet_id)
        self.look()

    def look(self) -> None:
        assert len(self.runs) == len(self.singles)
        assert self.runs.unacked_bytes == self.singles.unacked_bytes
        assert self.runs.all_sent == self.singles.all_sent

    def left(self) -> tuple[list[tuple[bytes, str, bytes]], ...]:
        return tuple(
            [(each.message.payload, each.message.number, each.label) for each in found]
            for found in (self.runs.unacknowledged(), self.singles.unacknowledged())
        )


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_runs_do_as_single_messages_do(seed: int) -> None:
    draw = random.Random(seed)
    pair = Pair()
    for _ in range(60):
        pair.now_s += draw.random()
        action = draw.choices(
            ("batch", "part", "single", "older", "again", "ack", "send", "cut", "drop", "look"),
            (30, 8, 8, 2, 2, 30, 30, 3, 2, 1),
        )[0]
        if action == "batch":
            pair.batch(draw.randint(1, 64), draw.choice((b"", b"", b"label")))
        elif action == "part":
            size = draw.randint(2, 64)
            pair.batch(size, b"", sorted(draw.sample(range(size), draw.randint(1, size))))
        elif action in ("single", "older", "again"):
            ago_s = draw.random() * 3 if action == "older" else 0.0
            pair.single(again=action == "again", arrived_s=pair.now_s - ago_s)
        elif action == "ack":
            known = list(dict.fromkeys(map(id_of, pair.sent)))
            chosen = known[: draw.randint(0, 100)]
            draw.shuffle(chosen)
            pair.acknowledge(chosen)
            pair.sent = [each for each in pair.sent if id_of(each) not in set(chosen)]
        elif action == "send":
            pair.transmit()
        elif action == "cut":
            pair.runs.connection_lost()
            pair.singles.connection_lost()
            pair.sent.clear()
        elif action == "drop":
            # Between two connections: some are not to be carried by the next one.
            for lane in (pair.runs, pair.singles):
                lane.connection_lost()
                lane.drop(lambda message: message.payload.endswith(b"7"))
            pair.sent.clear()
        else:
            runs, singles = pair.left()
            assert runs == singles
        pair.look()
    runs, singles = pair.left()
    assert runs == singles
    taken = [[each.message.payload for each in lane.take()] for lane in (pair.runs, pair.singles)]
    assert taken[0] == taken[1]
    pair.look()


def id_of(packet: bytes) -> int:
    return packet_id_at(packet, topic_bounds(packet)[1])


def test_a_run_waits_for_room_in_the_window_and_goes_on_where_it_was() -> None:
    lane = OutgoingLane("b")
    for first in range(1, WINDOW, 64):
        lane.put_run(Run(batch_of(64, first), range(64), b""))
    lane.put_run(Run(batch_of(64, WINDOW + 49), range(64), b""))
    sent = lane.transmit(0.0)
    assert len(sent) == WINDOW
    assert not lane.transmit(0.0)
    lane.all_acknowledged([packet_id_of(number) for number in range(10)])
    more = lane.transmit(0.0)
    assert len(more) == 10
    assert counts(more) == list(range(WINDOW + 1, WINDOW + 11))


def test_numbers_go_on_when_identifiers_begin_anew() -> None:
    lane = OutgoingLane("b")
    first = 1
    seen: list[int] = []
    while first < IDENTIFIERS + 500:
        lane.put_run(Run(batch_of(50, first), range(50), b""))
        first += 50
        packets = lane.transmit(0.0)
        seen += counts(packets)
        lane.all_acknowledged([id_of(each) for each in packets])
    assert seen == list(range(1, first))
    assert (len(lane), lane.unacked_bytes) == (0, 0)


def test_what_does_not_fit_a_message_at_qos_1_is_refused() -> None:
    lane = OutgoingLane("b")
    lane.put_run(Run(batch_of(3), range(3), b""))
    lane.transmit(0.0)
    with pytest.raises(RemoteProtocolError, match="PUBREC"):
        lane.acknowledged(PUBREC, 1)
    with pytest.raises(RemoteProtocolError, match="reason"):
        lane.acknowledged(PUBACK, 2, 0x10)


def test_a_message_is_one_object_for_all_links() -> None:
    """So each of them sees to whom it was passed on meanwhile."""
    hops = ((SessionInfo(1, SessionKind.NEIGHBOR, "b"), b""),)
    batch = batch_of(2)
    batch.hops = hops
    lanes = [OutgoingLane(name) for name in "bc"]
    for lane in lanes:
        lane.put_run(Run(batch, range(2), b""))
    first, second = ([each.message for each in lane.unacknowledged()] for lane in lanes)
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert first[0].passed_to == hops


def test_what_everybody_has_takes_no_memory_while_others_of_its_batch_wait() -> None:
    hops = tuple((SessionInfo(at, SessionKind.NEIGHBOR, name), b"") for at, name in enumerate("bc"))
    batch = batch_of(3)
    batch = Batch(
        batch.topics, batch.payloads, hops, origin="a", incarnation=LIFE, first=1, arrived_s=0.0
    )
    lanes = [OutgoingLane(name) for name in "bc"]
    for lane in lanes:
        lane.put_run(Run(batch, range(3), b""))
        lane.transmit(0.0)
    lanes[0].all_acknowledged([1, 2])
    assert batch.payloads == [b"1", b"2", b"3"]
    lanes[1].all_acknowledged([2, 3])
    assert batch.payloads == [b"1", b"", b"3"]
    assert [each.message.payload for each in lanes[0].unacknowledged()] == [b"3"]
    assert [each.message.payload for each in lanes[1].unacknowledged()] == [b"1"]
