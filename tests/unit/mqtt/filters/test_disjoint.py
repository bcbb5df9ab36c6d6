"""Filters without overlap: what is joined, what is given back, and when it is too much."""

from __future__ import annotations

import time

from isthmus.mqtt.filters.disjoint import MAX_FILTERS, DisjointFilters


def changes(held: DisjointFilters) -> tuple[set[str], set[str]]:
    told = set(held.added), set(held.removed)
    held.added.clear()
    held.removed.clear()
    return told


def test_filters_that_overlap_are_joined_and_parted_again() -> None:
    held = DisjointFilters()
    held.add("a/+")
    held.add("c")
    assert changes(held) == ({"a/+", "c"}, set())
    held.add("+/b")
    assert changes(held) == ({"+/+"}, {"a/+"})
    held.add("x/y")
    assert changes(held) == (set(), set()), "it is covered"
    held.remove("+/b")
    assert changes(held) == ({"a/+", "x/y"}, {"+/+"})
    held.remove("c")
    assert changes(held) == (set(), {"c"})


def test_what_comes_and_goes_untold_leaves_no_trace() -> None:
    held = DisjointFilters()
    held.add("a")
    held.remove("a")
    held.remove("never")
    assert changes(held) == (set(), set())
    assert not held.covers


def test_too_many_are_everything_until_they_are_few() -> None:
    held = DisjointFilters(max_filters=4)
    for each in "abcd":
        held.add(each)
    changes(held)
    held.add("e")
    assert changes(held) == ({"#"}, set("abcd"))
    held.add("f")
    held.remove("a")
    held.remove("b")
    assert changes(held) == (set(), set())
    held.remove("c")
    held.remove("d")
    assert changes(held) == ({"e", "f"}, {"#"})


def test_one_that_is_refused_is_done_without() -> None:
    held = DisjointFilters(max_filters=4)
    for each in ("a/+", "b", "+/b"):
        held.add(each)
    assert changes(held) == ({"+/+", "b"}, set())
    held.refuse("+/+")
    assert changes(held) == ({"a/+"}, {"+/+"})
    held.remove("a/+")
    assert changes(held) == ({"+/b"}, {"a/+"})
    for each in "cdef":
        held.add(each)
    assert changes(held) == ({"#"}, {"b", "+/b"})
    held.refuse("#")
    assert changes(held) == ({"b", "+/b", "c", "d"}, {"#"})
    held.remove("d")
    assert changes(held) == ({"e"}, {"d"})
    held.forgive()
    assert changes(held) == ({"#"}, {"b", "+/b", "c", "e"})


def test_many_filters_take_no_long_turn() -> None:
    held = DisjointFilters()
    began_s = time.process_time()
    for number in range(MAX_FILTERS - 1):
        held.add(f"plant/line-{number}/temperature")
    for _ in range(3):
        held.add("#")
        held.remove("#")
    assert time.process_time() - began_s < 0.3  # looking at all for each takes 2 s
    assert len(held.covers) == MAX_FILTERS - 1
