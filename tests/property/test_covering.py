"""Covering agrees with subsets of a listed universe of names; a table announces what it must."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isthmus.mqtt.filters import cover_table
from isthmus.mqtt.filters.cover_table import CoverTable
from isthmus.mqtt.filters.covering import covers, normal_form
from isthmus.mqtt.filters.covering_set import CoveringSet, Steps
from isthmus.mqtt.filters.topics import matches
from support.topic_oracle import (
    FILTERS,
    all_filters,
    close_filters,
    contains,
    filters_for,
    listed_filters,
    mask,
    naive_maximal,
    topic_names,
)

either_filters = st.one_of(listed_filters, close_filters)


def test_covering_agrees_on_every_pair_of_small_filters() -> None:
    for a in FILTERS:
        for b in FILTERS:
            assert covers(a, b) == contains(mask(a), mask(b)), (a, b)


def test_only_two_pairs_of_filters_mean_the_same() -> None:
    by_mask: dict[int, set[str]] = {}
    for topic_filter in FILTERS:
        by_mask.setdefault(mask(topic_filter), set()).add(topic_filter)
    pairs = [sorted(same) for same in by_mask.values() if len(same) > 1]
    assert sorted(pairs) == [["#", "+/#"], ["/#", "/+/#"]]
    assert len({normal_form(topic_filter) for topic_filter in FILTERS}) == len(by_mask)


def test_sets_agree_on_every_small_set() -> None:
    few = all_filters(("a",), 2)
    for size in range(4):
        for members in combinations(few, size):
            held = CoveringSet(members)
            for b in few:
                found = held.cover_of(b, Steps(1_000))
                assert (found is not None) == any(covers(a, b) for a in members), (members, b)


@settings(deadline=None)
@given(st.lists(either_filters, max_size=12), either_filters)
def test_who_covers_and_who_is_covered(members: list[str], b: str) -> None:
    held = CoveringSet(members)
    distinct = {normal_form(topic_filter) for topic_filter in members}
    cover = held.cover_of(b, Steps(10_000))
    covering = {each for each in distinct if covers(each, b)}
    assert cover in covering if covering else cover is None
    inside = [each for each in held.within(b) if each is not None]
    assert sorted(inside) == sorted(each for each in distinct if covers(b, each))


@settings(deadline=None)
@given(st.lists(either_filters, max_size=12), either_filters, st.data())
def test_members_that_stay_are_found_whatever_comes_and_goes(
    members: list[str], b: str, data: st.DataObject
) -> None:
    held = CoveringSet(members)
    staying = {normal_form(topic_filter) for topic_filter in members}
    found = set()
    for each in held.within(b):
        found.add(each)
        other = normal_form(data.draw(either_filters))
        if data.draw(st.booleans()):
            held.add(other)
        else:
            held.discard(other)
            staying.discard(other)
    assert {each for each in staying if covers(b, each)} <= found


@settings(deadline=None)
@given(st.data(), topic_names)
def test_who_covers_matches_too(data: st.DataObject, topic: str) -> None:
    a = data.draw(filters_for(topic))
    b = data.draw(filters_for(topic))
    if covers(a, b) and matches(b, topic):
        assert matches(a, topic)


class CoverTableMachine(RuleBasedStateMachine):
    """Changes in any order, with some of the work done between them; a neighbor is told of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = CoverTable()
        self.held: set[str] = set()
        self.neighbor: set[str] = set()

    @rule(topic_filter=either_filters)
    def add(self, topic_filter: str) -> None:
        self.held.add(normal_form(topic_filter))
        self.table.add(topic_filter)

    @rule(topic_filter=either_filters)
    def remove_any(self, topic_filter: str) -> None:
        self.held.discard(normal_form(topic_filter))
        self.table.remove(topic_filter)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.remove_any(data.draw(st.sampled_from(sorted(self.held))))

    @precondition(lambda self: self.neighbor & self.held)
    @rule(data=st.data())
    def remove_an_announced_one(self, data: st.DataObject) -> None:
        self.remove_any(data.draw(st.sampled_from(sorted(self.neighbor & self.held))))

    @rule(topic_filters=st.lists(either_filters, max_size=12), adding=st.booleans())
    def many(self, topic_filters: list[str], adding: bool) -> None:
        for topic_filter in topic_filters:
            (self.add if adding else self.remove_any)(topic_filter)

    @rule(steps=st.integers(1, 8))
    def work(self, steps: int) -> None:
        self.table.work(steps)

    @rule()
    def tell_some(self) -> None:
        """The neighbor hears of one change; of a withdrawal when there is nothing to announce."""
        table = self.table
        if table.announce:
            topic_filter = table.announce.popitem(last=False)[0]
            assert topic_filter not in self.neighbor
            self.neighbor.add(topic_filter)
        elif table.withdraw:
            topic_filter = table.withdraw.popitem(last=False)[0]
            assert topic_filter in self.neighbor
            self.neighbor.remove(topic_filter)

    @rule()
    def settle(self) -> None:
        self.table.settle()
        self.tell_all()
        assert self.neighbor == {normal_form(each) for each in naive_maximal(sorted(self.held))}

    def tell_all(self) -> None:
        while self.table.announce or self.table.withdraw:
            self.tell_some()
            self.nothing_is_missed()

    @invariant()
    def nothing_is_missed(self) -> None:
        """What is told, and what is about to be, covers every filter held."""
        told = self.neighbor | set(self.table.announce)
        for topic_filter in self.held:
            assert any(covers(each, topic_filter) for each in told), topic_filter
        assert set(self.table.announced) == told - set(self.table.withdraw)
        assert len(self.table) == len(self.held)

    def teardown(self) -> None:
        self.settle()
        for topic_filter in sorted(self.held):
            self.remove_any(topic_filter)
        self.settle()
        assert not self.neighbor
        table = self.table
        assert [table._cover, table._hidden, table._sweeps, table._drains] == [{}, {}, {}, {}]
        assert table._roots._root.children is None
        assert len(table._roots._occurrences) == 0


TestCoverTable = CoverTableMachine.TestCase
TestCoverTable.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


@settings(deadline=None)
@given(
    st.lists(st.tuples(either_filters, st.booleans()), max_size=40),
    st.integers(0, 5),
)
def test_without_credit_more_is_announced_and_never_less(
    changes: list[tuple[str, bool]], credit: int
) -> None:
    held: set[str] = set()
    table = CoverTable()
    earned, most = cover_table.EARNED, cover_table.MAX_CREDIT
    cover_table.EARNED, cover_table.MAX_CREDIT = credit, credit  # type: ignore[misc]
    try:
        table._credit.left = credit
        for topic_filter, adding in changes:
            (held.add if adding else held.discard)(normal_form(topic_filter))
            (table.add if adding else table.remove)(topic_filter)
            table.settle()
            announced = set(table.announced)
            largest = {normal_form(each) for each in naive_maximal(sorted(held))}
            assert largest <= announced <= held
        for topic_filter in sorted(held):
            table.remove(topic_filter)
        table.settle()
    finally:
        cover_table.EARNED, cover_table.MAX_CREDIT = earned, most  # type: ignore[misc]
    assert [table._announced, table._cover, table._hidden] == [{}, {}, {}]
    assert table._roots._root.children is None


def test_taking_a_table_apart_leaves_nothing() -> None:
    table = CoverTable()
    for topic_filter in ("a/#", "a/b", "a/+", "c/d/e", "c/+/e", "+/x"):
        table.add(topic_filter)
    for _ in table.dismantle():
        pass
    assert [table._announced, table._cover, table._hidden] == [{}, {}, {}]
    assert table._roots._root.children is None
