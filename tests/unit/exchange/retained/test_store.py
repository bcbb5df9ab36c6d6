"""The last retained message of each topic: versions, deletions, limits, sync, journal."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest

from isthmus.errors import IsthmusError, RemoteProtocolError
from isthmus.exchange import kept_records
from isthmus.exchange.retained import store as retained
from isthmus.exchange.retained import sync as retained_sync
from isthmus.exchange.retained.store import SLICE, RetainedLimits, RetainedStore
from isthmus.exchange.retained.sync import CHUNK_BYTES, RetainedSync
from isthmus.exchange.retained.values import Retained, Version, leaf_of

NOW = 1_760_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR


def a_version(wall_ms: int = NOW, counter: int = 0, origin: str = "b") -> Version:
    return Version(wall_ms, counter, origin)


def a_message(
    topic: bytes = b"t", payload: bytes = b"x", version: Version | None = None
) -> Retained:
    return Retained(topic, payload, b"", 0, version or a_version())


def payload_of(store: RetainedStore, topic: bytes, now_ms: int = NOW) -> bytes | None:
    found = store.get(topic, now_ms)
    return found.payload if found is not None else None


def synchronize(left: RetainedStore, right: RetainedStore, now_ms: int = NOW) -> list[bytes]:
    """Both directions to the end; returns every payload that was exchanged."""
    ends = (RetainedSync(left, chunk_bytes=512), RetainedSync(right, chunk_bytes=512))
    ends[0].start()
    ends[1].start()
    said: list[bytes] = []
    while ends[0].has_more or ends[1].has_more:
        for speaker, listener in (ends, ends[::-1]):
            payload = speaker.next_payload(now_ms)
            if payload is not None:
                said.append(payload)
                listener.receive(payload, now_ms)
    return said


def head(kind: int) -> bytes:
    return bytes((2, kind, 0, 0, 0, 0))


# ---- versions ----


def test_a_version_has_one_compact_text() -> None:
    version = Version(0x198F3C2B1A0, 17, "edge-1.x_Y")
    assert str(version) == "198f3c2b1a0-11-edge-1.x_Y"
    assert Version.parse(str(version)) == version
    assert Version.parse("0-0-a") == Version(0, 0, "a")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-2",
        "1-2-",
        "-1-2-a",
        "01-2-a",
        "1-02-a",
        "1_0-2-a",
        "A-2-a",
        "1-2-a b",
        "1-2-ä",
        "1-2-a\n",
        "٣-2-a",
        "1000000000000-0-a",
        "1-100000000-a",
        f"1-2-{'a' * 65}",
    ],
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        Version.parse(text)


def test_versions_are_ordered_by_time_then_counter_then_origin() -> None:
    in_order = [Version(1, 0, "z"), Version(1, 1, "a"), Version(1, 1, "b"), Version(2, 0, "a")]
    assert all(left < right for left, right in pairwise(in_order))


def test_an_origin_must_fit_the_wire() -> None:
    with pytest.raises(ValueError, match="origin"):
        RetainedStore("not an id")


# ---- the clock ----


def test_the_clock_runs_on_when_time_does_not() -> None:
    store = RetainedStore("a")
    stamps = [store.stamp(now) for now in (NOW, NOW, NOW - 5, NOW + 1, NOW + 1)]
    assert stamps == sorted(set(stamps))
    assert stamps[1] == Version(NOW, 1, "a")
    assert stamps[3] == Version(NOW + 1, 0, "a")


def test_the_clock_runs_ahead_of_what_it_has_seen() -> None:
    store = RetainedStore("a")
    assert store.observe(a_version(NOW + 1000, 7, "z"), NOW)
    assert store.stamp(NOW) == Version(NOW + 1000, 8, "a")


def test_a_counter_that_is_used_up_takes_the_next_millisecond() -> None:
    store = RetainedStore("a")
    store.observe(a_version(NOW, 0xFFFF_FFFF), NOW)
    assert store.stamp(NOW) == Version(NOW + 1, 0, "a")


def test_a_version_far_in_the_future_is_refused_and_moves_no_clock() -> None:
    store = RetainedStore("a", RetainedLimits(max_ahead_ms=HOUR))
    assert not store.offer(a_message(version=a_version(NOW + HOUR + 1)), NOW)
    assert store.version(b"t") is None
    assert store.stamp(NOW).wall_ms == NOW
    assert store.status()["refused_as_future"] == 1
    assert store.offer(a_message(version=a_version(NOW + HOUR)), NOW)


def test_a_clock_that_was_ahead_and_is_set_right_does_not_win_for_ever() -> None:
    broken, right = RetainedStore("a"), RetainedStore("b")
    broken.record_local(b"t", b"from the future", now_ms=NOW + 365 * DAY)
    broken.record_local(b"u", b"only here", now_ms=NOW + 365 * DAY)
    right.record_local(b"t", b"right", now_ms=NOW)
    synchronize(broken, right, NOW)  # the broken one's clock has been set right
    assert payload_of(right, b"u") == payload_of(broken, b"u") == b"only here"
    assert right.version(b"t") == broken.version(b"t")
    late = right.record_local(b"t", b"last", now_ms=NOW + 1)
    assert broken.offer(late, NOW + 1)
    assert broken.status()["clock_set_back"] == 1
    assert broken.stamp(NOW + 2).wall_ms == NOW + 2


# ---- the last writer wins ----


@pytest.mark.parametrize(
    ("offered", "news"),
    [
        (a_version(NOW + 1, 0, "a"), True),
        (a_version(NOW, 6, "a"), True),
        (a_version(NOW, 5, "n"), True),
        (a_version(NOW, 5, "m"), False),  # the same one again
        (a_version(NOW, 5, "l"), False),
        (a_version(NOW, 4, "z"), False),
        (a_version(NOW - 1, 9, "z"), False),
    ],
)
def test_only_a_newer_one_replaces(offered: Version, news: bool) -> None:
    store = RetainedStore("x")
    assert store.offer(a_message(payload=b"stored", version=a_version(NOW, 5, "m")), NOW)
    assert store.offer(a_message(payload=b"offered", version=offered), NOW) is news
    assert payload_of(store, b"t") == (b"offered" if news else b"stored")


def test_a_local_message_is_newer_than_all_that_was_seen() -> None:
    store = RetainedStore("a")
    store.offer(a_message(version=a_version(NOW + 60_000, 3)), NOW)
    recorded = store.record_local(
        b"t", b"local", properties=b"\x01\x01", qos=2, expiry_s=9, now_ms=NOW
    )
    assert recorded == Retained(b"t", b"local", b"\x01\x01", 2, Version(NOW + 60_000, 4, "a"), 9)
    assert store.get(b"t", NOW) == recorded


def test_live_lists_messages_without_deletions() -> None:
    store = RetainedStore("a")
    store.record_local(b"t", b"1", now_ms=NOW)
    store.record_local(b"u", b"2", now_ms=NOW)
    store.record_local(b"u", b"", now_ms=NOW)
    assert [found.topic for found in store.live(NOW)] == [b"t"]
    assert len(store) == 1


# ---- deletions ----


def test_a_deletion_keeps_an_older_message_from_coming_back() -> None:
    store = RetainedStore("a")
    old = store.record_local(b"t", b"old", now_ms=NOW)
    deletion = store.record_local(b"t", b"", now_ms=NOW + 1)
    assert deletion.deleted
    assert not store.offer(old, NOW + 2)
    assert store.get(b"t", NOW + 2) == deletion
    assert len(store) == 0


def test_a_deletion_of_what_was_never_seen_is_kept_too() -> None:
    store = RetainedStore("a")
    assert store.offer(a_message(payload=b"", version=a_version(NOW, 1)), NOW)
    assert not store.offer(a_message(version=a_version(NOW, 0)), NOW)


def test_a_tombstone_is_dropped_by_the_age_of_its_version() -> None:
    store = RetainedStore("a", RetainedLimits(tombstone_ms=DAY))
    store.record_local(b"t", b"", now_ms=NOW)
    store.sweep(NOW + DAY - 1)
    assert store.version(b"t") is not None
    store.sweep(NOW + DAY)
    assert store.version(b"t") is None
    assert store.status()["bytes"] == 0


def test_a_tombstone_does_not_live_on_by_being_passed_around() -> None:
    limits = RetainedLimits(tombstone_ms=DAY)
    store = RetainedStore("a", limits)
    late = NOW + DAY
    assert not store.offer(a_message(payload=b"", version=a_version(NOW)), late)
    assert store.version(b"t") is None


def test_a_late_deletion_still_deletes_an_older_message() -> None:
    store = RetainedStore("a", RetainedLimits(tombstone_ms=DAY))
    store.record_local(b"t", b"old", now_ms=NOW)
    assert store.offer(a_message(payload=b"", version=a_version(NOW + 1)), NOW + 2 * DAY)
    assert store.version(b"t") is None
    assert len(store) == 0


def test_too_many_tombstones_are_dropped_the_oldest_first() -> None:
    store = RetainedStore("a", RetainedLimits(max_tombstones=2))
    for number in (3, 1, 2):
        deletion = a_message(b"t%d" % number, b"", a_version(NOW + number))
        assert store.offer(deletion, NOW)
    assert store.version(b"t1") is None
    assert store.version(b"t2") is not None
    assert store.version(b"t3") is not None
    assert store.status()["tombstones_dropped"] == 1


def test_deleting_over_and_over_does_not_fill_the_memory() -> None:
    store = RetainedStore("a")
    for number in range(2000):
        store.record_local(b"t", b"" if number % 2 else b"x", expiry_s=5, now_ms=NOW + number)
    assert len(store._drop_times) < 100
    assert len(store._expiry_times) < 100


def test_a_deletion_that_cannot_be_kept_is_news_once_and_not_at_every_synchronization() -> None:
    store = RetainedStore("a", RetainedLimits(max_tombstones=0))
    deletion = a_message(payload=b"")
    assert store.offer(deletion, NOW)
    assert not store.offer(deletion, NOW, must_store=True)
    store.record_local(b"t", b"x", now_ms=NOW)
    assert store.offer(a_message(payload=b"", version=a_version(NOW + 1)), NOW, must_store=True)
    assert len(store) == 0


# ---- message expiry ----


def test_an_expiry_interval_counts_down_and_ends_in_a_tombstone() -> None:
    store = RetainedStore("a")
    old = a_message(payload=b"old", version=a_version(NOW - 1))
    recorded = store.record_local(b"t", b"x", expiry_s=10, now_ms=NOW)
    found = store.get(b"t", NOW + 3500)
    assert found is not None
    assert found.expiry_s == 7
    assert store.get(b"t", NOW + 10_000) is None
    store.sweep(NOW + 10_000)
    assert len(store) == 0
    assert store.version(b"t") == recorded.version
    assert not store.offer(old, NOW + 10_000)


def test_an_overwritten_message_does_not_expire_its_successor() -> None:
    store = RetainedStore("a")
    store.record_local(b"t", b"short", expiry_s=1, now_ms=NOW)
    store.record_local(b"t", b"for ever", now_ms=NOW)
    store.sweep(NOW + DAY)
    assert payload_of(store, b"t", NOW + DAY) == b"for ever"


# ---- limits ----


def test_when_topics_are_full_new_ones_are_counted_and_not_stored() -> None:
    store = RetainedStore("a", RetainedLimits(max_topics=1))
    store.record_local(b"t", b"1", now_ms=NOW)
    assert store.record_local(b"u", b"2", now_ms=NOW).payload == b"2"
    assert store.version(b"u") is None
    news = a_message(b"v", b"3")
    assert store.offer(news, NOW)  # it still has to reach the broker
    assert not store.offer(news, NOW, must_store=True)
    assert store.status()["not_stored"] == 3
    store.record_local(b"t", b"4", now_ms=NOW)
    assert payload_of(store, b"t") == b"4"
    store.record_local(b"t", b"", now_ms=NOW)
    assert store.offer(news, NOW, must_store=True)
    assert payload_of(store, b"v") == b"3"


def test_an_older_tombstone_goes_when_its_successor_cannot_be_stored() -> None:
    store = RetainedStore("a", RetainedLimits(max_topics=1))
    store.record_local(b"u", b"", now_ms=NOW)
    store.record_local(b"t", b"1", now_ms=NOW)
    store.record_local(b"u", b"2", now_ms=NOW)
    assert store.version(b"u") is None


def test_when_bytes_are_full_the_version_is_kept_without_the_body() -> None:
    store = RetainedStore("a", RetainedLimits(max_bytes=2000))
    store.record_local(b"t", b"x" * 100, now_ms=NOW)
    recorded = store.record_local(b"t", b"x" * 5000, now_ms=NOW)
    assert store.version(b"t") == recorded.version
    assert store.get(b"t", NOW) is None
    assert not store.offer(a_message(version=a_version(NOW - 1)), NOW)
    assert store.status()["bodies_left_out"] == 1
    store.record_local(b"t", b"fits", now_ms=NOW)
    assert payload_of(store, b"t") == b"fits"


def test_no_number_of_topics_takes_more_than_the_bytes() -> None:
    store = RetainedStore("a", RetainedLimits(max_bytes=4000))
    for number in range(100):
        store.record_local(b"t%d" % number, b"x" * 50, now_ms=NOW)
        store.record_local(b"d%d" % number, b"", now_ms=NOW)
        used = store.status()["bytes"]
        assert isinstance(used, int)
        assert used <= 4000
    assert store.status()["not_stored"] != 0


def test_tombstones_make_room_for_messages_but_not_in_vain() -> None:
    store = RetainedStore("a", RetainedLimits(max_bytes=1000))
    store.record_local(b"gone", b"", now_ms=NOW)
    store.record_local(b"huge", b"x" * 5000, now_ms=NOW)
    assert store.version(b"gone") is not None
    store.record_local(b"t", b"x" * 400, now_ms=NOW)
    assert payload_of(store, b"t") is not None
    assert store.version(b"gone") is None


# ---- synchronization ----


def test_equal_stores_exchange_one_digest_each() -> None:
    left, right = RetainedStore("a"), RetainedStore("b")
    for number in range(500):
        right.offer(left.record_local(b"t/%d" % number, b"x", now_ms=NOW), NOW)
    said = synchronize(left, right)
    assert [len(payload) for payload in said] == [2054, 2054]


def test_a_node_that_joins_gets_all_messages_and_deletions() -> None:
    left, right = RetainedStore("a"), RetainedStore("b")
    for number in range(300):
        left.record_local(b"t/%d" % number, b"%d" % number, qos=number % 3, now_ms=NOW)
    left.record_local(b"t/7", b"", now_ms=NOW)
    old = a_message(b"t/7", b"7", a_version(NOW - 1, 0, "z"))
    right.offer(old, NOW)
    synchronize(left, right)
    assert {found.topic: found for found in right.live(NOW)} == {
        found.topic: found for found in left.live(NOW)
    }
    assert right.version(b"t/7") == left.version(b"t/7")
    assert len(right) == 299


def test_few_differences_among_many_topics_cost_little() -> None:
    left, right = RetainedStore("a"), RetainedStore("b")
    for number in range(5000):
        right.offer(left.record_local(b"some/topic/%d" % number, b"x", now_ms=NOW), NOW)
    left.record_local(b"some/topic/17", b"left", now_ms=NOW)
    right.record_local(b"some/topic/18", b"right", now_ms=NOW + 1)
    size = sum(map(len, synchronize(left, right, NOW + 1)))
    assert left.branch_digests() == right.branch_digests()
    assert payload_of(right, b"some/topic/17") == b"left"
    assert payload_of(left, b"some/topic/18") == b"right"
    assert size < 10_000  # of which the two digests take 4100


def test_what_is_news_is_reported_once() -> None:
    left, right = RetainedStore("a"), RetainedStore("b")
    recorded = left.record_local(b"t", b"x", now_ms=NOW)
    speaker, listener = RetainedSync(left), RetainedSync(right)
    speaker.receive(empty_digest(), NOW)
    payload = speaker.next_payload(NOW)
    assert payload is not None
    assert listener.receive(payload, NOW) == [(recorded, True)]
    assert listener.receive(payload, NOW) == []
    assert not speaker.has_more
    assert speaker.next_payload(NOW) is None


def test_a_full_store_takes_nothing_new_from_a_synchronization() -> None:
    """It could not tell next time that it has been taken, and would publish it again and again."""
    left, full = RetainedStore("a"), RetainedStore("b", RetainedLimits(max_topics=0))
    left.record_local(b"t", b"x", now_ms=NOW)
    speaker, listener = RetainedSync(left), RetainedSync(full)
    speaker.receive(empty_digest(), NOW)
    payload = speaker.next_payload(NOW)
    assert payload is not None
    assert listener.receive(payload, NOW) == []
    assert full.status()["not_stored"] == 1


def test_a_push_says_what_is_last_when_it_is_sent() -> None:
    left = RetainedStore("a")
    left.record_local(b"t", b"old", now_ms=NOW)
    speaker, listener = RetainedSync(left), RetainedSync(RetainedStore("b"))
    speaker.receive(empty_digest(), NOW)
    left.record_local(b"t", b"new", expiry_s=10, now_ms=NOW)
    payload = speaker.next_payload(NOW + 4000)
    assert payload is not None
    ((news, _),) = listener.receive(payload, NOW + 4000)
    assert (news.payload, news.expiry_s) == (b"new", 6)


def test_lists_of_a_leaf_with_long_topics_are_cut_and_put_together() -> None:
    """65,536 leaves are rarely full, so the topics are chosen to fall into one."""
    left, right = RetainedStore("a"), RetainedStore("b")
    for number, topic in enumerate(same_leaf(10)):
        (left if number % 2 else right).record_local(topic, b"%d" % number, now_ms=NOW)
    said = synchronize(left, right)
    assert left.branch_digests() == right.branch_digests()
    assert len(left) == len(right) == 10
    assert sum(payload[1] == 5 for payload in said) > 2
    assert all(len(payload) <= 518 or payload[1] == 1 for payload in said)


def test_only_what_differs_in_a_leaf_is_pushed() -> None:
    left, right = RetainedStore("a"), RetainedStore("b")
    topics = same_leaf(8)
    for topic in topics:
        right.offer(left.record_local(topic, b"x", now_ms=NOW), NOW)
    left.record_local(topics[3], b"y", now_ms=NOW)
    right.record_local(topics[6], b"z", now_ms=NOW + 1)
    pushed = [payload for payload in synchronize(left, right, NOW + 1) if payload[1] == 6]
    assert len(pushed) == 2
    assert all(len(payload) < 2 * len(topics[0]) for payload in pushed)
    assert left.branch_digests() == right.branch_digests()


def same_leaf(count: int) -> list[bytes]:
    found: dict[int, list[bytes]] = {}
    for number in range(10_000_000):
        topic = b"%s/%d" % (b"long" * 40, number)
        topics = found.setdefault(zlib.crc32(topic) & 0xFFFF, [])
        topics.append(topic)
        if len(topics) == count:
            return topics
    raise AssertionError("no such topics")


def empty_digest() -> bytes:
    return head(1) + bytes(2048)


def message_bytes() -> bytes:
    store = RetainedStore("a")
    store.record_local(b"t", b"x", expiry_s=5, properties=b"\x01\x01", now_ms=NOW)
    sync = RetainedSync(store)
    sync.receive(empty_digest(), NOW)
    payload = sync.next_payload(NOW)
    assert payload is not None
    return payload


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "past the end"),
        (b"\x02", "past the end"),
        (b"\x01\x01" + bytes(4), "format 1, not 2"),
        (head(9), "unknown kind 9"),
        (head(6) + bytes(40_000), "no node's id"),
        (head(4) + bytes(40_000), "40006 bytes about many"),
        (head(3) + bytes(40_000), "40006 bytes about many"),
        (head(1) + bytes(2047), "2048 bytes where 2047 are left"),
        (head(1) + bytes(2049), "bytes follow"),
        (head(2) + b"\x05\x05", "not in order"),
        (head(3) + b"\x05", "past the end"),
        (head(3) + b"\x05\x00\x02\x01" + bytes(8) + b"\x01" + bytes(8), "not in order"),
        (head(3) + b"\x05\x00\x02\x01" + bytes(8), "past the end"),
        (head(4) + b"\x00", "past the end"),
        (head(4) + b"\x00\x02\x00\x01", "not in order"),
        (head(5) + b"\x00\x00\x00\x00\x00" + bytes(4), "no end"),
        (head(5) + b"\x00\x00\x00\x00\x02" + bytes(4), "no end"),
        (head(5) + b"\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01t", "out of place"),
        (head(5) + b"\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01#", "not the topic"),
        (head(6) + b"\x00", "past the end"),
    ],
)
def test_a_malformed_payload_is_the_neighbors_fault(payload: bytes, problem: str) -> None:
    sync = RetainedSync(RetainedStore("a"))
    with pytest.raises(RemoteProtocolError, match=problem):
        sync.receive(payload, NOW)
    assert not sync.has_more


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"\x01a", b"\x01\xff", "no node's id"),
        (b"\x01a", b"\x00", "no node's id"),
        (b"\x00\x01t", b"\x00\x00", "not the topic"),
        (b"\x00\x01t", b"\x00\x01#", "not the topic"),
        (b"\x00\x01t\x04", b"\x00\x01t\x07", "flags 0x07"),
        (b"\x00\x01t\x04", b"\x00\x01t\x0c", "flags 0x0C"),
        (b"\x02\x01\x01", b"\x02\x01\x02", "payload_format_indicator"),
        (b"\x00\x02\x01\x01", b"\x00\x03\x23\x00\x01", "topic alias"),
        (b"\x00\x01x", b"\x00\x02x", "2 bytes where 1 are left"),
    ],
)
def test_a_malformed_message_changes_nothing(old: bytes, new: bytes, problem: str) -> None:
    good = message_bytes()
    assert good.count(old) == 1
    store = RetainedStore("b")
    with pytest.raises(RemoteProtocolError, match=problem):
        RetainedSync(store).receive(good + good[6:].replace(old, new), NOW)
    assert len(store) == 0


def test_no_step_of_a_comparison_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with many topics in one leaf: no payload, slice of the journal or sweep has many."""

    def crowded(topic: bytes) -> int:
        return 7 if topic.startswith(b"crowd/") else leaf_of(topic)

    monkeypatch.setattr(retained, "leaf_of", crowded)
    monkeypatch.setattr(retained_sync, "leaf_of", crowded)
    crowd = [b"crowd/%d" % number for number in range(3000)]
    left, right = RetainedStore("a", journal=True), RetainedStore("b", journal=True)
    for topic in [b"t/%d" % number for number in range(5000)] + crowd:
        left.record_local(topic, b"x", expiry_s=60, now_ms=NOW)
    right.record_local(crowd[0], b"newer", now_ms=NOW + 1)
    ends = (RetainedSync(left), RetainedSync(right))
    ends[0].start()
    ends[1].start()
    while ends[0].has_more or ends[1].has_more:
        for speaker, listener in (ends, ends[::-1]):
            payload = speaker.next_payload(NOW + 1)
            if payload is not None:
                assert len(payload) <= CHUNK_BYTES + 6
                assert len(listener.receive(payload, NOW + 1)) <= SLICE
                steps = 0
                while listener.has_to_compare:
                    listener.compare_more()
                    steps += 1
                assert steps <= 3000 // SLICE + 1
    assert left.branch_digests() == right.branch_digests()
    for store in (left, right):
        journal = b"".join(store.snapshot())
        assert len(kept_records.read(journal).records) == 8001
        for piece in [*store.snapshot(), *iter(store.drain, b"")]:
            assert piece.count(b"\xf5\xa7") <= SLICE + 1
        pauses = list(RetainedStore("z").loading(journal, NOW))
        assert len(pauses) >= 8000 // SLICE
        sweeps = 1
        while store.sweep(NOW + 120_000):
            sweeps += 1
        assert sweeps >= 8000 // SLICE


# ---- the journal ----


def journal_of(store: RetainedStore) -> bytes:
    return b"".join(store.snapshot())


def test_a_journal_brings_back_messages_deletions_and_the_clock() -> None:
    store = RetainedStore("a", RetainedLimits(max_bytes=3000), journal=True)
    store.record_local(b"t", b"x", properties=b"\x01\x01", qos=1, expiry_s=60, now_ms=NOW)
    store.record_local(b"gone", b"", now_ms=NOW)
    journal = journal_of(store)
    store.record_local(b"u", b"y", now_ms=NOW)
    store.record_local(b"t", b"z", now_ms=NOW)
    store.record_local(b"big", b"x" * 9000, now_ms=NOW)
    journal += store.drain()
    assert store.drain() == b""
    again = RetainedStore("a", RetainedLimits(max_bytes=3000), journal=True)
    assert again.load(journal, NOW) == []
    assert again.branch_digests() == store.branch_digests()
    assert again.version(b"big") is not None
    assert again.get(b"big", NOW) is None
    assert {found.topic: found for found in again.live(NOW)} == {
        found.topic: found for found in store.live(NOW)
    }
    assert again.drain() == b""
    assert again.stamp(NOW) == store.stamp(NOW)


def test_what_was_forgotten_does_not_come_back_from_the_journal() -> None:
    limits = RetainedLimits(tombstone_ms=DAY)
    store = RetainedStore("a", limits, journal=True)
    journal = journal_of(store)
    store.record_local(b"t", b"x", now_ms=NOW)
    journal += store.drain()
    store.record_local(b"t", b"", now_ms=NOW)
    store.sweep(NOW + DAY)
    journal += store.drain()
    again = RetainedStore("a", limits)
    again.load(journal, NOW)
    assert again.version(b"t") is None
    assert again.stamp(NOW) > Version(NOW, 1, "a")


def test_expiry_goes_on_while_the_node_is_away() -> None:
    store = RetainedStore("a", journal=True)
    store.record_local(b"t", b"x", expiry_s=60, now_ms=NOW)
    journal = journal_of(store)
    again = RetainedStore("a")
    again.load(journal, NOW + 30_000)
    found = again.get(b"t", NOW + 30_000)
    assert found is not None
    assert found.expiry_s == 30
    late = RetainedStore("a")
    late.load(journal, NOW + 60_000)
    assert len(late) == 0


def test_changes_are_drained_in_pieces_and_each_topic_once() -> None:
    store = RetainedStore("a", journal=True)
    journal = journal_of(store)
    for _ in range(3):
        for number in range(50):
            store.record_local(b"t%d" % number, b"x" * 100, now_ms=NOW)
    pieces: list[bytes] = []
    while piece := store.drain(1000):
        assert len(piece) < 1300
        pieces.append(piece)
    assert len(pieces) > 3
    records = kept_records.read(journal + b"".join(pieces)).records
    assert sum(record[:1] != b"C" for record in records) == 50


def test_a_store_without_a_journal_notes_nothing() -> None:
    store = RetainedStore("a")
    store.record_local(b"t", b"x", now_ms=NOW)
    assert store.drain() == b""


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(IsthmusError, match="format"):
        RetainedStore("a").load(kept_records.write("retained", 1, []), NOW)
    with pytest.raises(IsthmusError, match="format"):
        RetainedStore("a").load(b"#!/bin/sh", NOW)
    assert RetainedStore("a").load(b"", NOW) == []


def test_limits_hold_for_a_journal_of_larger_ones() -> None:
    store = RetainedStore("a")
    for number in range(10):
        store.record_local(b"t%d" % number, b"x", now_ms=NOW)
    smaller = RetainedStore("a", RetainedLimits(max_topics=3))
    smaller.load(journal_of(store), NOW)
    assert len(smaller) == 3
    assert smaller.status()["not_stored"] == 7
