"""Filters without overlap: what is joined, what is given back, and when it is too much."""

from __future__ import annotations

from isthmus.mqtt.filters.disjoint import DisjointFilters


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
