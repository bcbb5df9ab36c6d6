"""Retained messages end the same everywhere, whatever the order of writes, links and losses.

    0 ── 1 ── 2
         └─ 3 ┘        four nodes; the links 1-3 and 3-2 close a ring

A link is a first-in-first-out channel in each direction.  It carries retained messages as they are
published, with their versions, and the payloads of the synchronization between them; when it goes
down, what is on it is lost.
"""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isthmus.errors import IsthmusError, RemoteProtocolError
from isthmus.exchange import kept_records
from isthmus.exchange.retained.store import RetainedLimits, RetainedStore
from isthmus.exchange.retained.sync import RetainedSync
from isthmus.exchange.retained.values import Retained, RetainedEntry, Version

NOW = 1_760_000_000_000
LINKS = ((0, 1), (1, 2), (1, 3), (3, 2))
TOPICS = [b"t", b"t/1", b"t/2", b"u", b"/", b"u/v/w"]

some_topics = st.sampled_from(TOPICS)
some_payloads = st.sampled_from([b"", b"1", b"2", b"long" * 40])
some_skews = st.integers(-5000, 5000)


class _Node:
    def __init__(self, number: int) -> None:
        self.store = RetainedStore(f"n{number}", journal=True)
        self.broker: dict[bytes, bytes] = {}  # what the local broker retains
        self.journal = b"".join(self.store.snapshot())
        self.skew_ms = 0

    def publish(self, retained: Retained) -> None:
        """At the local broker, with retain."""
        self.broker[retained.topic] = retained.payload


class RetainedMachine(RuleBasedStateMachine):
    """Local writes, links that come and go, and messages that arrive one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW
        self.nodes = [_Node(number) for number in range(4)]
        self.channels: dict[tuple[int, int], deque[bytes | Retained]] = {}
        self.syncs: dict[tuple[int, int], RetainedSync] = {}
        self.last: dict[bytes, Retained] = {}

    def now_at(self, number: int) -> int:
        return self.now_ms + self.nodes[number].skew_ms

    # ---- what happens ----

    @rule(number=st.integers(0, 3), topic=some_topics, payload=some_payloads, ms=st.integers(0, 2))
    def write(self, number: int, topic: bytes, payload: bytes, ms: int) -> None:
        self.now_ms += ms
        node = self.nodes[number]
        retained = node.store.record_local(topic, payload, now_ms=self.now_at(number))
        node.publish(retained)
        assert topic not in self.last or self.last[topic].version != retained.version
        if topic not in self.last or self.last[topic].version < retained.version:
            self.last[topic] = retained
        self.forward(number, retained, None)

    @rule(number=st.integers(0, 3), skew_ms=some_skews)
    def set_clock(self, number: int, skew_ms: int) -> None:
        self.nodes[number].skew_ms = skew_ms

    @rule(link=st.sampled_from(LINKS))
    def toggle(self, link: tuple[int, int]) -> None:
        if link in self.channels:
            self.down(link)
        else:
            self.up(link)

    @precondition(lambda self: self.syncs)
    @rule(data=st.data())
    def say(self, data: st.DataObject) -> None:
        self.speak(data.draw(st.sampled_from(sorted(self.syncs))))

    @precondition(lambda self: any(self.channels.values()))
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        busy = sorted(way for way, channel in self.channels.items() if channel)
        self.hear(data.draw(st.sampled_from(busy)))

    @rule(number=st.integers(0, 3))
    def restart(self, number: int) -> None:
        """The node comes back with what its journal says, and its links are made anew."""
        node = self.nodes[number]
        before = node.store.branch_digests()
        while piece := node.store.drain(200):
            node.journal += piece
        node.store = RetainedStore(f"n{number}", journal=True)
        assert node.store.load(node.journal, self.now_at(number)) == []
        assert node.store.branch_digests() == before
        for link in LINKS:
            if number in link and link in self.channels:
                self.down(link)

    @invariant()
    def what_a_broker_has_is_what_its_node_knows(self) -> None:
        for number, node in enumerate(self.nodes):
            for topic, payload in node.broker.items():
                found = node.store.get(topic, self.now_at(number))
                assert found is not None
                assert found.payload == payload

    def teardown(self) -> None:
        """Once the links stand and nothing is on its way, all brokers agree on the last one."""
        for link in LINKS:
            if link in self.channels:
                self.down(link)
            self.up(link)
        while any(sync.has_more for sync in self.syncs.values()) or any(self.channels.values()):
            for way in list(self.channels):
                self.speak(way)
                while self.channels[way]:
                    self.hear(way)
        for node in self.nodes:
            assert node.broker == {topic: last.payload for topic, last in self.last.items()}
            for topic, last in self.last.items():
                assert node.store.version(topic) == last.version

    # ---- links ----

    def up(self, link: tuple[int, int]) -> None:
        for way in (link, link[::-1]):
            self.channels[way] = deque()
            sync = RetainedSync(self.nodes[way[0]].store, chunk_bytes=100)
            sync.start()
            self.syncs[way] = sync

    def down(self, link: tuple[int, int]) -> None:
        for way in (link, link[::-1]):
            del self.channels[way], self.syncs[way]

    def speak(self, way: tuple[int, int]) -> None:
        payload = self.syncs[way].next_payload(self.now_at(way[0]))
        if payload is not None:
            self.channels[way].append(payload)

    def hear(self, way: tuple[int, int]) -> None:
        sender, receiver = way
        node = self.nodes[receiver]
        now_ms = self.now_at(receiver)
        item = self.channels[way].popleft()
        if isinstance(item, bytes):
            sync = self.syncs[receiver, sender]
            news = [retained for retained, _ in sync.receive(item, now_ms)]
            while sync.has_to_compare:
                sync.compare_more()
        else:
            news = [item] if node.store.offer(item, now_ms) else []
        for retained in news:
            node.publish(retained)
            self.forward(receiver, retained, sender)

    def forward(self, number: int, retained: Retained, arrived_from: int | None) -> None:
        for way, channel in self.channels.items():
            if way[0] == number and way[1] != arrived_from:
                channel.append(retained)


TestRetained = RetainedMachine.TestCase
TestRetained.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# ---- the clock ----


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(NOW - 10_000, NOW + 10_000),
            st.none()
            | st.builds(
                Version,
                st.integers(NOW - 20_000, NOW + 20_000),
                st.integers(0, 0xFFFF_FFFF),
                st.sampled_from(["a", "b", "z"]),
            ),
        )
    )
)
def test_stamps_are_greater_than_all_before_them(
    events: list[tuple[int, Version | None]],
) -> None:
    store = RetainedStore("m")
    seen = [Version(0, 0, "")]
    for now_ms, heard in events:
        if heard is None:
            stamp = store.stamp(now_ms)
            assert stamp > max(seen)
            assert stamp.wall_ms >= now_ms
            assert Version.parse(str(stamp)) == stamp
            seen.append(stamp)
        else:
            assert store.observe(heard, now_ms)
            seen.append(heard)


# ---- the wire ----


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 7))
def test_bytes_of_any_kind_are_taken_or_refused(noise: bytes, kind: int) -> None:
    sync = RetainedSync(RetainedStore("a"))
    for payload in (noise, bytes((2, kind, 0, 0, 0, 0)) + noise):
        try:
            sync.receive(payload, NOW)
        except RemoteProtocolError:
            pass
        while sync.has_more:
            sync.next_payload(NOW)


@settings(deadline=None)
@given(st.data(), st.integers(1, 400))
def test_any_two_stores_agree_after_one_exchange(data: st.DataObject, chunk_bytes: int) -> None:
    """Also with long topics and chunks so small that each holds one thing."""
    topics = st.text("abc/", min_size=1, max_size=150).map(str.encode)
    stores = [RetainedStore(name) for name in "ab"]
    writes = st.lists(st.tuples(st.integers(0, 1), topics, some_payloads), max_size=30)
    for number, topic, payload in data.draw(writes):
        stores[number].record_local(topic, payload, now_ms=NOW)
    syncs = [RetainedSync(store, chunk_bytes=chunk_bytes) for store in stores]
    for sync in syncs:
        sync.start()
    while any(sync.has_more for sync in syncs):
        for speaker, listener in (syncs, syncs[::-1]):
            said = speaker.next_payload(NOW)
            if said is not None:
                listener.receive(said, NOW)
    found = [{item.topic: item for item in store.live(NOW)} for store in stores]
    assert found[0] == found[1]
    assert stores[0].branch_digests() == stores[1].branch_digests()


# ---- the store ----


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            some_topics,
            some_payloads,
            st.integers(-300, 300),
            st.none() | st.integers(0, 2),
            st.integers(0, 300),
        ),
        max_size=40,
    )
)
def test_accounts_are_right_whatever_happens(
    events: list[tuple[bytes, bytes, int, int | None, int]],
) -> None:
    limits = RetainedLimits(max_topics=3, max_bytes=1200, max_tombstones=2, tombstone_ms=700)
    store = RetainedStore("a", limits)
    now_ms = NOW
    for topic, payload, age_ms, expiry_s, step_ms in events:
        now_ms += step_ms
        version = Version(now_ms - age_ms, 0, "b")
        store.offer(Retained(topic, payload, b"", 0, version, expiry_s), now_ms)
        entries = {
            topic: RetainedEntry.unpacked(packed)
            for leaf in store._leaves.values()
            for topic, packed in leaf.items()
        }
        live = [entry for entry in entries.values() if not entry.deleted]
        assert len(store) == len(live) <= 3
        assert len(entries) - len(live) == store.status()["tombstones"]
        assert len(entries) - len(live) <= 2
        used = sum(entry.size(topic) for topic, entry in entries.items())
        assert used == store.status()["bytes"]
        assert used <= 1200
        # Without a body the order is still kept, so a digest made anew must be the same.
        fresh = RetainedStore("z")
        for found, entry in entries.items():
            fresh._put(found, entry)
        assert fresh.branch_digests() == store.branch_digests()
        assert fresh._leaf_digests == store._leaf_digests


# ---- the journal ----


@settings(deadline=None)
@given(st.data(), st.lists(st.tuples(some_topics, some_payloads, st.booleans()), max_size=15))
def test_a_journal_survives_being_cut_or_damaged_anywhere(
    data: st.DataObject, writes: list[tuple[bytes, bytes, bool]]
) -> None:
    store = RetainedStore("a", journal=True, salt=data.draw(st.integers(0, 0xFFFF_FFFF)))
    journal = b"".join(store.snapshot())
    states = {len(journal): store.branch_digests()}
    for topic, payload, drain in writes:
        store.record_local(topic, payload, now_ms=NOW)
        if drain:
            journal += store.drain()
            states[len(journal)] = store.branch_digests()
    for end, digests in states.items():
        whole = RetainedStore("a")
        assert whole.load(journal[:end], NOW) == []
        assert whole.branch_digests() == digests

    # Cut anywhere, it has what stood before the cut; damaged anywhere, all but one record.
    cut = data.draw(st.integers(1, len(journal)))
    torn = RetainedStore("a")
    try:
        assert len(torn.load(journal[:cut], NOW)) <= 1
    except IsthmusError:
        assert cut <= journal.index(b"\n")
    records = kept_records.read(journal).records
    place = data.draw(st.integers(0, len(journal) - 1))
    damaged = bytearray(journal)
    damaged[place] ^= data.draw(st.integers(1, 255))
    kept = kept_records.read(bytes(damaged))
    assert kept.damage
    assert len(kept.records) >= len(records) - 1
    assert not set(kept.records) - set(records)

    # What is appended after the damage is read again.
    again = RetainedStore("a", journal=True)
    again.load(bytes(damaged), NOW)
    again.record_local(b"new", b"x", now_ms=NOW)
    final = RetainedStore("a")
    final.load(bytes(damaged) + again.drain(), NOW)
    assert final.branch_digests() == again.branch_digests()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(some_topics, some_payloads), max_size=30), st.data())
def test_a_rewrite_beside_changes_is_the_store(
    writes: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    """What changes while the new journal is written goes into it as it comes."""
    store = RetainedStore("a", journal=True, salt=7)
    for topic, payload in writes[::2]:
        store.record_local(topic, payload, now_ms=NOW)
    pieces = store.snapshot()
    fresh = bytearray(next(pieces))
    for topic, payload in writes[1::2]:
        store.record_local(topic, payload, now_ms=NOW)
        if data.draw(st.booleans()):
            fresh += store.drain()
        if data.draw(st.booleans()):
            fresh += next(pieces, b"")
    fresh += b"".join(pieces)
    while more := store.drain():
        fresh += more
    again = RetainedStore("a")
    assert again.load(bytes(fresh), NOW) == []
    assert again.branch_digests() == store.branch_digests()
