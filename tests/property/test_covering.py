"""Covering agrees with subsets of a listed universe of names; a table announces what it must."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isthmus.mqtt.cover_table import CoverChange, CoverTable
from isthmus.mqtt.covering import covers, normal_form
from isthmus.mqtt.covering_set import CoveringSet, minimal_cover, union_covers
from isthmus.mqtt.topics import matches

from .topic_oracle import (
    FILTERS,
    all_filters,
    close_filters,
    contains,
    filters_for,
    listed_filters,
    mask,
    mask_of_all,
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


def test_union_covering_agrees_on_every_small_set() -> None:
    few = all_filters(("a",), 2)
    for size in range(4):
        for members in combinations(few, size):
            held = CoveringSet(members)
            together = mask_of_all(list(members))
            for b in few:
                assert held.union_covers(b) == contains(together, mask(b)), (members, b)
                assert held.covers(b) == any(covers(a, b) for a in members), (members, b)


@settings(deadline=None)
@given(st.lists(either_filters, max_size=8), either_filters)
def test_covering_by_sets(members: list[str], b: str) -> None:
    assert union_covers(members, b) == contains(mask_of_all(members), mask(b))
    assert CoveringSet(members).covers(b) == any(contains(mask(a), mask(b)) for a in members)


@settings(deadline=None)
@given(st.lists(either_filters, max_size=12), either_filters)
def test_the_largest_members(members: list[str], within: str) -> None:
    largest = {normal_form(topic_filter) for topic_filter in naive_maximal(members)}
    found = minimal_cover(members)
    assert set(found) == largest
    assert len(found) == len(largest)
    inside = CoveringSet(members).maximal_within(within)
    assert sorted(inside) == sorted(f for f in largest if contains(mask(within), mask(f)))


@settings(deadline=None)
@given(st.data(), topic_names)
def test_who_covers_matches_too(data: st.DataObject, topic: str) -> None:
    a = data.draw(filters_for(topic))
    b = data.draw(filters_for(topic))
    if covers(a, b) and matches(b, topic):
        assert matches(a, topic)


class CoverTableMachine(RuleBasedStateMachine):
    """Random additions and removals; a neighbour applies the changes it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.table = CoverTable()
        self.held: Counter[str] = Counter()
        self.neighbour: set[str] = set()

    def apply(self, change: CoverChange) -> None:
        announced, withdrawn = set(change.announce), set(change.withdraw)
        assert len(announced) == len(change.announce)
        assert len(withdrawn) == len(change.withdraw)
        assert not announced & self.neighbour
        assert withdrawn <= self.neighbour
        before = mask_of_all(list(self.neighbour))
        self.neighbour |= announced
        # Told in this order, the neighbour never misses what is wanted before and after.
        assert contains(mask_of_all(list(self.neighbour)), before)
        self.neighbour -= withdrawn

    @rule(topic_filter=either_filters)
    def add(self, topic_filter: str) -> None:
        self.held[topic_filter] += 1
        self.apply(self.table.add(topic_filter))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.drop(data.draw(st.sampled_from(sorted(self.held))))

    @precondition(lambda self: self.neighbour)
    @rule(data=st.data())
    def remove_an_announced_one(self, data: st.DataObject) -> None:
        announced = data.draw(st.sampled_from(sorted(self.neighbour)))
        same = [f for f in sorted(self.held) if normal_form(f) == announced]
        self.drop(data.draw(st.sampled_from(same)))

    def drop(self, topic_filter: str) -> None:
        self.held[topic_filter] -= 1
        self.held += Counter()  # forget those at zero
        self.apply(self.table.remove(topic_filter))

    @invariant()
    def announces_the_largest_and_nothing_else(self) -> None:
        largest = {normal_form(topic_filter) for topic_filter in naive_maximal(list(self.held))}
        assert self.neighbour == largest
        assert set(self.table.announced) == largest
        assert len(self.table.announced) == len(largest)
        assert mask_of_all(list(self.neighbour)) == mask_of_all(list(self.held))

    @invariant()
    def holds_what_was_added(self) -> None:
        distinct = {normal_form(topic_filter) for topic_filter in self.held}
        assert len(self.table) == len(distinct)
        assert set(self.table._held) == distinct
        total = sum(self.table.count(topic_filter) for topic_filter in distinct)
        assert total == self.held.total()

    def teardown(self) -> None:
        for topic_filter in sorted(self.held.elements()):
            self.apply(self.table.remove(topic_filter))
        assert not self.neighbour
        assert len(self.table) == 0
        assert self.table.announced == ()
        assert self.table._held._root.children is None
        assert len(self.table._held._occurrences) == 0


TestCoverTable = CoverTableMachine.TestCase
TestCoverTable.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
