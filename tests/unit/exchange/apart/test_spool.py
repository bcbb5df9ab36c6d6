"""A queue on disk: order, what is safe, crashes in the middle of a write, disks that are full."""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.exchange.apart import spool as module
from isthmus.exchange.apart.kept_message import read_kept, write_kept
from isthmus.exchange.apart.spool import FULL, Record, Spool, Spools
from isthmus.exchange.traffic.message import Message
from isthmus.sim.disk import Disk
from isthmus.sim.engine import Engine, Timer

LIMIT = 1 << 30


class DiskHost:
    """One life of a node with a disk; writes are done when the test says so."""

    keeps_state = True

    def __init__(self, disk: Disk, seed: int = 0) -> None:
        self.disk = disk
        self.engine = Engine(seed)
        self.rng = random.Random(seed)
        self.todo: deque[Any] = deque()
        self.logged: list[str] = []
        self.call_later = self.engine.call_later

    def token_bytes(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    def log(self, level: str, event: str, **fields: object) -> None:
        self.logged.append(event)

    def spools(self) -> dict[str, int]:
        return {file: len(data) for file, data in self.disk.spools.items()}

    def load_spool(self, file: str, size: int) -> bytes:
        return bytes(self.disk.spools[file][:size])

    def write_spool(self, file: str, offset: int, data: bytes, done: Any) -> None:
        self.disk.writing.append((file, offset, data))
        self.todo.append(lambda: done(self.disk.write_spool(self.rng)))

    def read_spool(self, file: str, offset: int, size: int, done: Any) -> None:
        self.todo.append(lambda: done(bytes(self.disk.spools[file][offset : offset + size])))

    def drop_spool(self, file: str) -> None:
        self.todo.append(lambda: self.disk.spools.pop(file, None))

    def run(self, seconds: float = 0.0) -> Timer | None:
        """All that is due, and all that the disk has to do for it."""
        self.engine.run_until(self.engine.now_s + seconds)
        while self.todo:
            self.todo.popleft()()
            self.engine.run_until(self.engine.now_s)
        return None


class Queue:
    """A destination's queue: numbers, of which a few are in memory."""

    def __init__(self, spool: Spool, most: int = 5) -> None:
        self.spool = spool
        self.most = most
        self.memory: deque[tuple[bytes, Record | None]] = deque()
        self.safe: set[bytes] = set()
        spool.attach(self)
        spool.on_room = self.refill

    def put(self, body: bytes) -> None:
        resident = not self.spool.behind and len(self.memory) < self.most
        record = self.spool.keep(body, len(body), resident=resident)
        if resident:
            self.memory.append((body, record))

    def take(self) -> bytes | None:
        """The destination has the first."""
        if not self.memory:
            return None
        body, record = self.memory.popleft()
        if record is not None:
            record.over()
        self.refill()
        return body

    def refill(self) -> None:
        if len(self.memory) < 2:
            self.spool.load()

    def form(self, entry: bytes) -> bytes:
        return entry

    def written(self, record: Record) -> None:
        self.safe.add(record.entry)

    def loaded(self, records: list[tuple[Record, bytes]], unwritten: list[bytes]) -> None:
        self.memory.extend((body, record) for record, body in records)
        self.memory.extend((body, None) for body in unwritten)


def open_queue(disk: Disk, *, seed: int = 0, limit: int = LIMIT) -> tuple[DiskHost, Queue]:
    host = DiskHost(disk, seed)
    spools = Spools(host, limit)  # type: ignore[arg-type]
    spools.start()
    spool = spools.open("link-b")
    assert spool is not None
    return host, Queue(spool)


def bodies(count: int, begin: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(begin, begin + count)]


def drain(host: DiskHost, queue: Queue) -> list[bytes]:
    got = []
    queue.refill()
    host.run()
    while (body := queue.take()) is not None:
        got.append(body)
        host.run()
    return got


def test_what_is_put_comes_out_in_order_and_leaves_nothing() -> None:
    host, queue = open_queue(Disk())
    for body in bodies(3_000):
        queue.put(body)
    host.run()
    assert queue.safe == set(bodies(3_000))
    assert len(queue.memory) == 5
    assert drain(host, queue) == bodies(3_000)
    host.run(1.0)
    assert not queue.spool.apart
    assert not host.disk.spools


def test_what_gathers_while_a_write_goes_on_is_the_next_one() -> None:
    host, queue = open_queue(Disk())
    for body in bodies(100):
        queue.put(body)
    host.engine.run_until(0.0)
    assert len(host.disk.writing) == 1
    for body in bodies(200, 100):
        queue.put(body)
    host.engine.run_until(0.0)
    assert len(host.disk.writing) == 1
    host.run()
    assert queue.safe == set(bodies(300))


def test_segments_that_are_acknowledged_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1_000)
    monkeypatch.setattr(module, "STEP", 10)
    host, queue = open_queue(Disk())
    for body in bodies(500):
        queue.put(body)
    host.run()
    most = len(host.disk.spools)
    assert most > 5
    for _ in range(250):
        queue.take()
        host.run()
    assert 1 < len(host.disk.spools) <= most * 0.6
    assert queue.spool.bytes == sum(map(len, host.disk.spools.values()))


def test_one_that_waits_keeps_neither_disk_nor_memory_of_those_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A neighbor has it, and does not say that it is safe."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1_000)
    disk = Disk()
    host, queue = open_queue(disk)
    queue.put(b"000000")
    waits = queue.memory.popleft()[1]
    assert waits is not None
    for body in bodies(500, 1):
        queue.put(body)
        host.run()
        assert queue.take() == body
    host.run(1.0)
    assert queue.spool.messages == 1
    assert len(disk.spools) <= 2
    assert len(queue.spool._acknowledged._begins) == 1
    assert queue.spool.bytes == sum(map(len, disk.spools.values()))
    host, queue = open_queue(disk, seed=1)
    assert drain(host, queue)[0] == b"000000"
    host.run(1.0)
    assert not disk.spools


@given(st.permutations(range(20)), st.integers(0, 20))
def test_ordinals_that_are_acknowledged_in_any_order(order: list[int], count: int) -> None:
    ordinals, first, known = module._Ordinals(), 0, set[int]()
    for ordinal in order[:count]:
        ordinals.add(ordinal)
        known.add(ordinal)
        first = ordinals.take_from(first)
        while min(known, default=20) < first:
            known.remove(min(known))
        assert first not in known
        assert ordinals.count == len(known)
        for begin in range(first, 20):
            assert ordinals.has_all(begin, begin + 1) == (begin in known)
            assert ordinals.has_all(begin, begin + 3) == ({begin, begin + 1, begin + 2} <= known)


def test_a_full_disk_is_told_and_tried_again() -> None:
    host, queue = open_queue(Disk())
    host.disk.full = True
    for body in bodies(50):
        queue.put(body)
    host.run()
    assert queue.spool.problem == "No space left on device"
    assert queue.spool.unwritten_bytes == 45 * 6
    assert not queue.safe
    host.disk.full = False
    host.run(2.0)
    assert not queue.spool.problem
    assert queue.safe == set(bodies(50))
    assert drain(host, queue) == bodies(50)


def test_who_goes_on_gets_what_a_full_disk_does_not_take() -> None:
    host, queue = open_queue(Disk())
    for body in bodies(20):
        queue.put(body)
    host.run()
    host.disk.full = True
    for body in bodies(20, 20):
        queue.put(body)
    host.run()
    assert drain(host, queue) == bodies(40)
    assert not queue.spool.apart


def test_the_limit_holds_and_is_left_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(module, "STEP", 10)
    host, queue = open_queue(Disk(), limit=2_000)
    for body in bodies(200):
        queue.put(body)
    host.run()
    assert queue.spool.problem == FULL
    assert sum(map(len, host.disk.spools.values())) <= 2_000
    assert drain(host, queue) == bodies(200)


def test_a_crash_repeats_only_what_was_acknowledged_just_before() -> None:
    disk = Disk()
    host, queue = open_queue(disk)
    for body in bodies(100):
        queue.put(body)
    host.run()
    for _ in range(40):
        queue.take()
        host.run()
    host.run(1.0)  # it is noted
    for _ in range(3):
        queue.take()
    host, queue = open_queue(disk, seed=1)
    assert queue.spool.behind == queue.spool.messages == 60
    for body in bodies(5, 100):
        queue.put(body)
    assert drain(host, queue) == bodies(65, 40)
    host.run(1.0)
    assert not disk.spools


def test_an_orderly_stop_writes_all_and_how_far_it_has_come() -> None:
    disk = Disk()
    host, queue = open_queue(disk)
    for body in bodies(100):
        queue.put(body)
    host.run()
    for _ in range(4):
        queue.take()
    for body in bodies(10, 100):
        queue.put(body)
    queue.spool.stop()
    disk.finish(host.rng)
    host, queue = open_queue(disk, seed=1)
    assert drain(host, queue) == bodies(106, 4)


def test_a_damaged_place_costs_what_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 10)
    disk = Disk()
    host, queue = open_queue(disk)
    for body in bodies(100):
        queue.put(body)
    host.run()
    (content,) = disk.spools.values()
    at = content.index(b"000050")
    content[at + 3] ^= 1
    host, queue = open_queue(disk, seed=1)
    got = drain(host, queue)
    assert got == [body for body in bodies(100) if body != b"000050"]
    host.run(1.0)
    assert not disk.spools


def test_damage_to_what_is_acknowledged_costs_nothing() -> None:
    disk = Disk()
    host, queue = open_queue(disk)
    for body in bodies(100):
        queue.put(body)
    host.run()
    for _ in range(40):
        queue.take()
        host.run()
    host.run(1.0)  # it is noted
    (content,) = disk.spools.values()
    content[content.index(b"000007")] ^= 1
    host, queue = open_queue(disk, seed=1)
    assert drain(host, queue) == bodies(60, 40)
    host.run(1.0)
    assert not disk.spools


def test_what_a_full_disk_took_a_part_of_costs_nothing_that_is_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Remains of a write that failed are behind what was written in its place."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 300)
    disk = Disk()
    host, queue = open_queue(disk)
    queue.most = 1
    queue.put(b"000000")
    host.run()
    disk.full = True
    monkeypatch.setattr(host.rng, "randint", lambda _, most: most)
    for body in bodies(9, 1):
        queue.put(body)
    host.run()
    assert len(queue.memory) == 10, "the disk does not take them, and the destination goes on"
    disk.full = False
    queue.spool.on_room = lambda: None  # now it does not
    for body in bodies(20, 10):
        queue.put(body)
        host.run()
    assert len(disk.spools) > 2
    host, queue = open_queue(disk, seed=1)
    got = drain(host, queue)
    assert {b"000000", *bodies(20, 10)} <= set(got)
    assert [each for each in got if each >= b"000010"] == bodies(20, 10)
    host.run(1.0)
    assert not disk.spools


@pytest.mark.parametrize("damaged", [False, True])
def test_what_looks_like_records_in_a_message_takes_no_time(damaged: bool) -> None:
    """A client wrote it so that for each six bytes of it very many more would be looked at."""
    disk = Disk()
    host, queue = open_queue(disk)
    made = b"\xf5\xa7\x00\x10\x00\x00" * 300_000
    for body in (made, *bodies(10)):
        queue.put(body)
    host.run()
    (content,) = disk.spools.values()
    if damaged:
        content[content.index(made)] ^= 1
    began_s = time.process_time()
    host, queue = open_queue(disk, seed=1)
    got = drain(host, queue)
    assert time.process_time() - began_s < 5.0
    if damaged:
        assert made not in got
    else:
        assert got == [made, *bodies(10)]


def test_foreign_and_damaged_files_stop_nothing_and_are_told() -> None:
    disk = Disk()
    host, queue = open_queue(disk)
    for body in bodies(20):
        queue.put(body)
    host.run()
    (name,) = disk.spools
    foreign = {
        "notes.txt": bytearray(b"mine"),
        "link-b.1": bytearray(b"no number of ours"),
        "link-b@c@d.0000000001": bytearray(b"no name of ours"),
        f"link-{'x' * 81}.0000000001": bytearray(b"too long"),
        ".link-b.0000000001.swp": bytearray(b"an editor's"),
    }
    damaged = {
        "link-b.0000000000": bytearray(b"\xff" * 5_000),
        "link-b.9999999998": bytearray(),
        "broker-a@one.0000000003": bytearray(disk.spools[name][:20]),
        "link-c.0000000001": bytearray(b"isthmus retained 1\n"),
    }
    disk.spools |= foreign | damaged
    host, queue = open_queue(disk, seed=1)
    assert host.logged.count("what waits cannot be read and is removed") == 3
    assert drain(host, queue) == bodies(20)
    host.run(1.0)
    assert disk.spools == foreign


def test_a_neighbor_that_is_made_anew_has_files_of_its_own() -> None:
    host = DiskHost(Disk())
    spools = Spools(host, LIMIT)  # type: ignore[arg-type]
    older = Queue(spools.open("link-b"))  # type: ignore[arg-type]
    for body in bodies(20):
        older.put(body)
    host.run()
    spools.leaves(older.spool)
    newer = Queue(spools.open("link-b"))  # type: ignore[arg-type]
    newer.put(b"newer")
    host.run()
    assert drain(host, older) == bodies(20)
    assert drain(host, newer) == [b"newer"]


def test_what_is_kept_for_a_neighbor_that_is_made_anew_outlives_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 300)
    disk = Disk()
    host = DiskHost(disk)
    spools = Spools(host, LIMIT)  # type: ignore[arg-type]
    older = Queue(spools.open("link-b"))  # type: ignore[arg-type]
    for body in bodies(20):
        older.put(body)
        host.run()
        if body < b"000008":
            older.take()
    spools.leaves(older.spool)
    newer = Queue(spools.open("link-b"))  # type: ignore[arg-type]
    for body in bodies(10, 20):
        newer.put(body)
    host.run()
    host, queue = open_queue(disk, seed=1)
    assert [each for each in drain(host, queue) if each >= b"000020"] == bodies(10, 20)
    host.run(1.0)
    assert not disk.spools


def test_a_file_that_is_gone_or_too_short_keeps_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 300)
    disk = Disk()
    host, queue = open_queue(disk)
    for body in bodies(60):
        queue.put(body)
        host.run()
    files = sorted(disk.spools)
    assert len(files) > 4
    disk.spools[files[2]].clear()
    del disk.spools[files[3]][-1]
    lost = 60 - len(drain(host, queue))
    assert 2 <= lost < 40
    host.run(1.0)
    assert not queue.spool.apart


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 40)),
        st.tuples(st.just("take"), st.integers(1, 40)),
        st.tuples(st.just("work"), st.integers(0, 3)),
        st.tuples(st.just("full"), st.integers(0, 1)),
        st.tuples(st.just("crash"), st.integers(0, 1_000)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(0, 1_000))
def test_nothing_that_is_safe_is_lost_whatever_happens(
    operations: list[tuple[str, int]], seed: int
) -> None:
    """Without a crash all comes once, in order; over crashes all that was safe, in order."""
    small = pytest.MonkeyPatch()
    small.setattr(module, "SEGMENT_BYTES", 400)
    small.setattr(module, "STEP", 7)
    try:
        _act(operations, seed)
    finally:
        small.undo()


def _act(operations: list[tuple[str, int]], seed: int) -> None:
    disk = Disk()
    host, queue = open_queue(disk, seed=seed)
    put, crashed = 0, False
    got: list[bytes] = []
    safe: set[bytes] = set()
    for what, many in operations:
        if what == "put":
            for body in bodies(many, put):
                queue.put(body)
            put += many
        elif what == "take":
            for _ in range(many):
                if (taken := queue.take()) is not None:
                    got.append(taken)
        elif what == "work":
            host.engine.run_until(host.engine.now_s + 0.3)
            for _ in range(min(many, len(host.todo))):
                host.todo.popleft()()
                host.engine.run_until(host.engine.now_s)
        elif what == "full":
            disk.full = bool(many)
        else:
            crashed = True
            safe |= queue.safe
            disk.killed(random.Random(many))
            host, queue = open_queue(disk, seed=many)
    disk.full = False
    host.run(5.0)
    got += drain(host, queue)
    host.run(1.0)
    safe |= queue.safe
    assert not disk.spools
    if not crashed:
        assert got == bodies(put)
    first = list(dict.fromkeys(got))
    assert first == sorted(first)
    assert safe <= set(got)


def test_what_is_read_has_its_place_among_what_was_always_in_memory() -> None:
    """The disk was full, so it was written long after it had come."""
    messages = [
        Message(b"t", b"", qos=1, origin="a", number=f"1.{number:012x}", arrived_s=50.0 + number)
        for number in range(3)
    ]
    kept = read_kept(write_kept(messages[1], b"", 60.0, 20_000), 70.0, 30_000)
    assert kept is not None
    assert messages[0].place < kept.message.place < messages[2].place
    assert write_kept(messages[1], b"", 60.0, 1_000).startswith(bytes(8)), "no clock was set"


def test_the_form_of_a_message() -> None:
    message = Message(
        b"t/a",
        b"payload",
        qos=2,
        retain=True,
        properties=b"\x01\x01",
        expiry_s=100,
        origin="a",
        hops=3,
        number="1f.00000000000a",
        version="5-1",
        arrived_s=50.0,
        confirm=True,
    )
    body = write_kept(message, b"\x07", 60.0, 1_000_000)
    kept = read_kept(body, 5.0, 1_020_000)  # after a restart, 20 s later
    assert kept is not None
    found = kept.message
    assert (kept.label, kept.came_from, kept.passed_to) == (b"\x07", "", ())
    assert found.content == message.content
    assert (found.origin, found.hops, found.number, found.version) == (
        "a",
        3,
        "1f.00000000000a",
        "5-1",
    )
    assert found.confirm
    assert not found.expired(5.0 + 69.0)
    assert found.expired(5.0 + 70.0)
