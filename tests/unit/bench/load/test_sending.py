"""Schedules, publishers and the log of what was sent, without sockets and on a clock of ours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.bench.load import acknowledging, sending
from isthmus.bench.load.frames import template
from isthmus.bench.load.headroom import LATE_NS, Headroom
from isthmus.bench.load.plan import phase_ns
from isthmus.bench.load.receiving import Columns
from isthmus.bench.load.returning import KeptInFlight
from isthmus.bench.load.sending import (
    WAKE_NS,
    WRITE_BYTES,
    Outbox,
    Publisher,
    SendSchedule,
    SentLog,
)
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import scan
from isthmus.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from isthmus.pipeline.log.payload import LAYOUT, MAGIC

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
S = 1_000 * MS
TAG = 77


class Connection:
    """Takes `room` bytes in all, which a test may raise."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room
        self.data = b""
        self.writes = 0

    def send(self, data: memoryview) -> int:
        taken = bytes(data[: self.room])
        self.writes += 1
        self.room -= len(taken)
        self.data += taken
        return len(taken)

    def packets(self) -> list[Publish]:
        bounds = scan(self.data)
        assert bounds[-1] == len(self.data), "the last frame is not whole"
        packets = [decode(self.data[a:b], 4) for a, b in pairwise(bounds)]
        return [packet for packet in packets if isinstance(packet, Publish)]

    def payloads(self) -> list[tuple[int, ...]]:
        return [LAYOUT.unpack_from(packet.payload) for packet in self.packets()]


class Stage:
    """Publishers on connections of ours, a schedule, and a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = START_NS
        monkeypatch.setattr(sending, "now_ns", lambda: self.now_ns)
        self.rows: list[Columns] = []
        self.log = SentLog(self.rows.append)
        self.headroom = Headroom()
        self.connections: list[Connection] = []
        self.publishers: list[Publisher] = []

    def populate(
        self, count: int, *, qos: int = 0, size: int = 32, kept: KeptInFlight | None = None
    ) -> None:
        outbox = Outbox(template("topic1", qos, size))
        for client in range(count):
            self.connections.append(Connection())
            send = self.connections[-1].send
            self.publishers.append(Publisher(client, client % 3, outbox, send, kept=kept))

    def schedule(self, *, interval_ns: int, duration_ns: int) -> SendSchedule:
        return SendSchedule(
            self.publishers,
            start_ns=START_NS,
            duration_ns=duration_ns,
            interval_ns=interval_ns,
            tag=TAG,
            log=self.log,
            headroom=self.headroom,
        )

    def play(self, schedule: SendSchedule, until_ns: int | None = None) -> int:
        """Wake whenever the schedule asks for it; how often that was."""
        wakes = 0
        while (wake_ns := schedule.next_wake_ns()) is not None:
            if until_ns is not None and wake_ns > until_ns:
                break
            self.now_ns = wake_ns
            schedule.wake(wake_ns)
            wakes += 1
        return wakes

    def columns(self) -> dict[str, np.ndarray]:
        self.log.flush()
        return {name: np.concatenate([part[name] for part in self.rows]) for name in self.rows[0]}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_everybody_sends_all_messages_at_their_times(stage: Stage) -> None:
    stage.populate(7)
    schedule = stage.schedule(interval_ns=10 * MS, duration_ns=S)
    stage.play(schedule)
    assert schedule.offered == 700
    for publisher, connection in zip(stage.publishers, stage.connections, strict=True):
        phase = phase_ns(publisher.client, 10 * MS)
        payloads = connection.payloads()
        assert [fields[3] for fields in payloads] == list(range(100))
        for magic, client, t_send_ns, message, reserved, tag in payloads:
            assert (magic, client, reserved, tag) == (MAGIC, publisher.client, 0, TAG)
            assert 0 <= t_send_ns - (START_NS + phase + message * 10 * MS) <= WAKE_NS
    assert schedule.over(stage.now_ns)
    assert stage.headroom.due == 700
    assert stage.headroom.late == 0
    assert stage.headroom.late_ns_max <= WAKE_NS


def test_the_log_has_what_was_sent(stage: Stage) -> None:
    stage.populate(5)
    stage.play(stage.schedule(interval_ns=3 * MS, duration_ns=200 * MS))
    columns = stage.columns()
    assert [values.dtype for values in columns.values()] == [
        np.uint32, np.uint32, np.uint32, np.int64,
    ]  # fmt: skip
    logged = list(zip(*(values.tolist() for values in columns.values()), strict=True))
    sent = [
        (client, message, client % 3, t_ns)
        for connection in stage.connections
        for _, client, t_ns, message, _, _ in connection.payloads()
    ]
    assert sorted(logged) == sorted(sent)


def test_phases_lie_evenly_in_the_interval() -> None:
    for count in (2, 10, 50, 333):
        phases = sorted(phase_ns(client, S) for client in range(count))
        gaps = [b - a for a, b in pairwise([*phases, phases[0] + S])]
        assert max(gaps) < 3 * S / count


def test_at_a_high_rate_one_wake_serves_many_with_one_write_each(stage: Stage) -> None:
    stage.populate(50)
    schedule = stage.schedule(interval_ns=MS, duration_ns=100 * MS)
    wakes = stage.play(schedule)
    assert schedule.offered == 5_000
    assert wakes <= 201  # every half millisecond, both ends included
    assert all(connection.writes <= wakes for connection in stage.connections)
    assert sum(len(connection.packets()) for connection in stage.connections) == 5_000


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5), st.integers(1, 40), st.integers(1, 200), st.lists(st.integers(0, 50 * MS))
)
def test_offered_is_what_falls_due_before_the_end(
    publishers: int, interval_ms: int, duration_ms: int, wakes_after_ns: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(patch)
        stage.populate(publishers)
        interval_ns, duration_ns = interval_ms * MS, duration_ms * MS
        schedule = stage.schedule(interval_ns=interval_ns, duration_ns=duration_ns)
        due = {
            client: len(range(phase_ns(client, interval_ns), duration_ns, interval_ns))
            for client in range(publishers)
        }
        assert schedule.offered == sum(due.values())
        for after_ns in wakes_after_ns:  # however irregular the wakes are
            stage.now_ns += after_ns
            schedule.wake(stage.now_ns)
        stage.play(schedule)
        assert {p.client: p.message for p in stage.publishers} == due
        assert stage.headroom.due == schedule.offered


def test_a_late_wake_is_noted_and_caught_up_in_one_write(stage: Stage) -> None:
    stage.populate(1)
    schedule = stage.schedule(interval_ns=MS, duration_ns=S)
    stage.now_ns = START_NS + 100 * MS
    schedule.wake(stage.now_ns)
    assert stage.publishers[0].message == 101
    assert stage.connections[0].writes == 1
    assert stage.headroom.late_ns_max == 100 * MS
    assert stage.headroom.late == (100 * MS - LATE_NS) // MS
    assert stage.headroom.due == 101


def test_a_held_publisher_queues_one_frame_at_most_and_catches_up(stage: Stage) -> None:
    stage.populate(2)
    size = template("topic1", 0, 32).size
    held, free = stage.publishers
    stage.connections[0].room = 2 * size + 5
    schedule = stage.schedule(interval_ns=10 * MS, duration_ns=S)
    stage.play(schedule, START_NS + 500 * MS)
    assert held.held
    assert held.message == 3  # the third is on its way in part
    assert not free.held
    assert schedule.held == 1
    assert len(stage.connections[0].data) == 2 * size + 5

    stage.connections[0].room = 1 << 30
    stage.now_ns = START_NS + 600 * MS
    held.writable()
    assert not held.held
    assert held.message == 61 - (phase_ns(held.client, 10 * MS) > 0)
    payloads = stage.connections[0].payloads()
    assert {fields[2] for fields in payloads[3:]} == {stage.now_ns}  # when they were really sent
    assert [fields[3] for fields in payloads] == list(range(held.message))
    assert stage.headroom.late == 0  # held is not late


def test_what_a_held_publisher_cannot_send_before_the_end_is_not_sent(stage: Stage) -> None:
    stage.populate(1)
    stage.connections[0].room = 0
    schedule = stage.schedule(interval_ns=10 * MS, duration_ns=S)
    stage.play(schedule)
    assert not schedule.over(START_NS + S - 1)
    assert schedule.over(START_NS + S)
    stage.connections[0].room = 1 << 30
    stage.now_ns = START_NS + S
    stage.publishers[0].writable()
    assert stage.connections[0].data == b""
    assert stage.publishers[0].message == 0
    assert schedule.offered == 100


def test_one_write_is_bounded_and_more_follow_at_once(stage: Stage) -> None:
    stage.populate(1, size=1000)
    schedule = stage.schedule(interval_ns=MS, duration_ns=S)
    stage.now_ns = START_NS + 99 * MS
    schedule.wake(stage.now_ns)
    most = WRITE_BYTES // template("topic1", 0, 1000).size
    assert stage.connections[0].writes == -(-100 // most)
    assert [len(packet.payload) for packet in stage.connections[0].packets()] == [1000] * 100


@pytest.mark.parametrize("qos", [1, 2])
def test_packet_ids_are_not_used_again_before_they_are_free(
    stage: Stage, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledging, "MAX_IN_FLIGHT", 500)
    stage.populate(1, qos=qos)
    (publisher,), (connection,) = stage.publishers, stage.connections
    schedule = stage.schedule(interval_ns=MS, duration_ns=S)
    stage.play(schedule, START_NS + 700 * MS)
    assert publisher.held
    assert publisher.message == 500
    assert [packet.packet_id for packet in connection.packets()] == list(range(1, 501))

    if qos == 2:
        publisher.answered(encode(PubRec(1), 4))
        assert connection.data.endswith(encode(PubRel(1), 4))
        assert publisher.held
        publisher.answered(encode(PubComp(1), 4))
    else:
        publisher.answered(encode(PubAck(1), 4))
    assert publisher.message == 501
    assert connection.packets()[-1].packet_id == 1
    assert publisher.held  # more is due than that one


def test_a_pubrel_waits_behind_the_rest_of_a_frame(stage: Stage) -> None:
    stage.populate(1, qos=2)
    (publisher,), (connection,) = stage.publishers, stage.connections
    connection.room = template("topic1", 2, 32).size + 7
    stage.play(stage.schedule(interval_ns=10 * MS, duration_ns=S), START_NS + 30 * MS)
    assert publisher.message == 2
    publisher.answered(encode(PubRec(1), 4))
    connection.room = 1 << 30
    publisher.writable()
    bounds = scan(connection.data)
    packets = [decode(connection.data[a:b], 4) for a, b in pairwise(bounds)]
    assert [type(packet) for packet in packets[:3]] == [Publish, Publish, PubRel]
    assert publisher.message == 3 + (phase_ns(0, 10 * MS) == 0)


def test_numbers_begin_at_0_in_the_next_run_and_the_connections_count_goes_on(
    stage: Stage,
) -> None:
    stage.populate(1)
    stage.play(stage.schedule(interval_ns=10 * MS, duration_ns=100 * MS))
    first = stage.schedule(interval_ns=10 * MS, duration_ns=100 * MS)
    stage.now_ns = START_NS
    stage.play(first)
    assert [fields[3] for fields in stage.connections[0].payloads()] == [*range(10), *range(10)]
    assert stage.publishers[0].message == 10
    assert stage.publishers[0].messages_out == 20


def test_the_log_hands_over_when_it_is_full() -> None:
    rows: list[Columns] = []
    log = SentLog(rows.append)
    for number in range(sending.SENT_NOTES):
        log.note(1, 2 * number, 2, 4, number)
    assert len(rows) == 1
    assert rows[0]["message"].tolist() == list(range(2 * sending.SENT_NOTES))
    log.flush()
    assert len(rows) == 1


def test_the_busiest_second_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cpu = 0, 0
    monkeypatch.setattr("isthmus.bench.load.headroom.time.monotonic_ns", lambda: clock)
    monkeypatch.setattr("isthmus.bench.load.headroom.time.process_time_ns", lambda: cpu)
    headroom = Headroom()
    headroom.sample()
    for used_ms in (400, 20, 450, 300, 50, 0):  # in half seconds
        clock, cpu = clock + 500 * MS, cpu + used_ms * MS
        headroom.sample()
    assert headroom.cpu == pytest.approx(0.75)
    headroom.served(10, 1, 12 * MS)
    assert headroom.summary(stalled_ns=5 * MS) == {
        "cpu": 0.75,
        "late_ms_max": 12.0,
        "late_share": 0.1,
        "stalled_ms": 5.0,
    }


# ---- cut off, and back -------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_due_while_it_is_cut_off_is_left_out(stage: Stage, qos: int) -> None:
    stage.populate(1, qos=qos, kept=KeptInFlight() if qos else None)
    (publisher,), (connection,) = stage.publishers, stage.connections
    schedule = stage.schedule(interval_ns=10 * MS, duration_ns=S)
    stage.play(schedule, START_NS + 295 * MS)
    publisher.cut_off()
    stage.play(schedule, START_NS + 695 * MS)
    assert (publisher.message, publisher.left_out) == (30, 40)
    connection.data = b""
    publisher.back()
    again = connection.packets()
    assert len(again) == (30 if qos else 0)  # nothing was acknowledged
    assert all(packet.dup for packet in again)
    stage.play(schedule)
    assert (publisher.message, schedule.left_out) == (60, 40)
    numbers = [fields[3] for fields in connection.payloads()]
    assert numbers == list(range(0 if qos else 30, 60))
    assert stage.columns()["message"].tolist() == list(range(60))  # what is repeated is sent once


def test_what_was_acknowledged_is_not_sent_again(stage: Stage) -> None:
    stage.populate(1, qos=2, kept=KeptInFlight())
    (publisher,), (connection,) = stage.publishers, stage.connections
    publisher.publish(4, TAG, stage.log)
    sent = connection.packets()
    ids = [packet.packet_id for packet in sent]
    publisher.answered(b"".join(encode(PubRec(each), 4) for each in ids[:3]))
    publisher.answered(encode(PubComp(ids[0]), 4) + encode(PubRec(ids[3]), 4)[:2])
    publisher.cut_off()  # the last PUBREC has not come
    connection.data = b""
    publisher.back()
    repeated = [decode(connection.data[a:b], 4) for a, b in pairwise(scan(connection.data))]
    assert repeated[:2] == [PubRel(ids[1]), PubRel(ids[2])]
    (last,) = connection.packets()
    assert (last.payload, last.packet_id, last.dup) == (sent[3].payload, ids[3], True)
    publisher.answered(b"".join(encode(PubComp(each), 4) for each in ids[1:]))
    connection.data = b""
    publisher.cut_off()
    publisher.back()
    assert connection.data == b""


def test_cut_off_in_the_middle_of_a_write(stage: Stage) -> None:
    stage.populate(1, qos=1, kept=KeptInFlight())
    (publisher,), (connection,) = stage.publishers, stage.connections
    schedule = stage.schedule(interval_ns=10 * MS, duration_ns=S)
    connection.room = 70  # one frame and a part of the next
    stage.play(schedule, START_NS + 45 * MS)
    assert publisher.held
    publisher.cut_off()
    connection.room, connection.data = 1 << 40, b""
    publisher.back()
    stage.play(schedule, START_NS + 55 * MS)
    numbers = [fields[3] for fields in connection.payloads()]
    assert numbers == list(range(publisher.message))
