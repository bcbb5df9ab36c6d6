"""Filters without overlap, against a listed universe of names."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.mqtt.filters.disjoint import DisjointFilters, join, overlap
from support.topic_oracle import FILTERS, contains, listed_filters, mask


def test_overlap_and_join_agree_with_the_names_that_match() -> None:
    filters = [each for each in FILTERS if not each.startswith("$")]
    for one in filters:
        for other in filters:
            assert overlap(one, other) == bool(mask(one) & mask(other)), (one, other)
            joined = mask(join(one, other))
            assert contains(joined, mask(one) | mask(other)), (one, other)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), listed_filters), max_size=20), st.integers(2, 8))
def test_what_is_held_is_covered_once(changes: list[tuple[bool, str]], most: int) -> None:
    held, wanted, told = DisjointFilters(max_filters=most), set[str](), set[str]()
    for add, topic_filter in changes:
        if topic_filter.startswith("$"):
            continue
        (held.add if add else held.remove)(topic_filter)
        (wanted.add if add else wanted.discard)(topic_filter)
        assert not held.added.keys() & told
        assert held.removed.keys() <= told
        told = (told | held.added.keys()) - held.removed.keys()
        held.added.clear()
        held.removed.clear()
        assert told == set(held.covers)
        assert not any(mask(one) & mask(other) for one, other in combinations(told, 2))
        for each in wanted:
            assert any(contains(mask(cover), mask(each)) for cover in told)
    if not wanted:
        assert not told


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), listed_filters), max_size=20), st.randoms())
def test_what_is_refused_is_done_without(
    changes: list[tuple[bool, str]], drawn: random.Random
) -> None:
    held, told = DisjointFilters(max_filters=6), set[str]()
    for add, topic_filter in changes:
        if topic_filter.startswith("$"):
            continue
        (held.add if add else held.remove)(topic_filter)
        refused = drawn.choice(sorted(held.covers)) if held.covers and drawn.random() < 0.3 else ""
        if refused:
            held.refuse(refused)
            assert refused not in held.covers
        if drawn.random() < 0.1:
            held.forgive()
            assert all(any(contains(mask(c), mask(e)) for c in held.covers) for e in held._held)
        assert not held.added.keys() & told
        assert held.removed.keys() <= told
        told = (told | held.added.keys()) - held.removed.keys()
        held.added.clear()
        held.removed.clear()
        assert told == set(held.covers)
        assert not told & held.refused
        assert not any(mask(one) & mask(other) for one, other in combinations(told, 2))
