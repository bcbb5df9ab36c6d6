"""Covering, case by case, and the announcements of a `CoverTable`."""

from __future__ import annotations

from itertools import product

import pytest

from isthmus.mqtt.filters.cover_table import EARNED, MAX_CREDIT, CoverTable
from isthmus.mqtt.filters.covering import covers, normal_form
from isthmus.mqtt.filters.covering_set import CoveringSet, Steps

COVERS = [
    ("a", "a"),
    ("#", "#"),
    ("#", "a"),
    ("#", "/"),
    ("#", "+"),
    ("#", "+/#"),
    ("+/#", "#"),
    ("+/#", "+"),
    ("/#", "/+/#"),  # the empty string is no topic name
    ("/+/#", "/#"),
    ("/+/#", "/"),
    ("#", "a/$b"),
    ("a/#", "a"),
    ("a/#", "a/"),
    ("a/#", "a/+"),
    ("a/#", "a/+/#"),
    ("a/#", "a/b/c/#"),
    ("a/#", "a/#"),
    ("a/+", "a/b"),
    ("a/+", "a/"),
    ("a/+", "a/$b"),
    ("a/+/#", "a/+"),
    ("a/+/#", "a/b/#"),
    ("+/x", "a/x"),
    ("+/x", "/x"),
    ("+/+", "+/x"),
    ("+/+", "/"),
    ("$SYS/#", "$SYS"),
    ("$SYS/#", "$SYS/+/x"),
    ("$SYS/+", "$SYS/$x"),
    ("+/$x", "a/$x"),
]

COVERS_NOT = [
    ("a", "b"),
    ("a", "+"),
    ("a", "#"),
    ("+", "#"),
    ("+", "a/b"),
    ("+", "+/#"),
    ("a/#", "#"),
    ("a/#", "+/#"),
    ("a/#", "ab"),
    ("a/+", "a"),
    ("a/+", "a/#"),
    ("a/+", "a/+/#"),
    ("a/+/#", "a"),
    ("a/+/#", "a/#"),
    ("a/b", "a/+"),
    ("//#", "/#"),
    ("+/+/#", "#"),
    ("+/x", "+/+"),
    ("+/x", "+/x/#"),
    ("/+", "+/+"),
    ("a/+/c/#", "a/#"),
    # the rule about $
    ("#", "$SYS"),
    ("#", "$SYS/#"),
    ("+", "$SYS"),
    ("+/x", "$SYS/x"),
    ("+/#", "$SYS/+"),
    ("$SYS/#", "#"),
    ("$SYS/#", "+/#"),
]


@pytest.mark.parametrize(("a", "b"), COVERS)
def test_covers(a: str, b: str) -> None:
    assert covers(a, b)
    assert CoveringSet([a]).cover_of(b, Steps(100)) == normal_form(a)


@pytest.mark.parametrize(("a", "b"), COVERS_NOT)
def test_does_not_cover(a: str, b: str) -> None:
    assert not covers(a, b)
    assert CoveringSet([a]).cover_of(b, Steps(100)) is None


@pytest.mark.parametrize(
    ("members", "b"),
    [
        (["a", "a/+/#"], "a/#"),
        (["+", "+/+/#"], "#"),
        (["a", "+/+", "a/+/+/#"], "a/#"),
        (["+", "+/+/#"], "$SYS/#"),
        (["$SYS", "$SYS/+/#"], "$SYS/#"),
        (["a/b", "a/c"], "a/+"),
        ([], "a"),
        ([], "#"),
    ],
)
def test_several_together_do_not_cover(members: list[str], b: str) -> None:
    assert CoveringSet(members).cover_of(b, Steps(100)) is None


@pytest.mark.parametrize(
    ("topic_filters", "largest"),
    [
        ([], set()),
        (["a", "b"], {"a", "b"}),
        (["#", "a", "+/b", "$SYS/#", "$SYS/x"], {"#", "$SYS/#"}),
        (["+/#"], {"#"}),
        (["#", "+/#"], {"#"}),
        (["a/#", "a/+/#", "a/+", "a", "b/a"], {"a/#", "b/a"}),
        (["+/b", "a/+", "a/b"], {"+/b", "a/+"}),
        (["a", "a/+/#", "a/b"], {"a", "a/+/#"}),
        (["$a/+", "+/+", "$a/b", "x/b"], {"$a/+", "+/+"}),
        (["a/+/c", "+/b/c", "a/b/c", "a/b/#"], {"a/+/c", "+/b/c", "a/b/#"}),
    ],
)
def test_the_largest_are_announced(topic_filters: list[str], largest: set[str]) -> None:
    for order in (topic_filters, topic_filters[::-1]):
        table = CoverTable()
        for topic_filter in order:
            table.add(topic_filter)
        table.settle()
        assert set(table.announced) == largest
        assert told(table) == (largest, set())


def test_normal_form() -> None:
    assert normal_form("+/#") == "#"
    assert normal_form("/+/#") == "/#"
    for topic_filter in ("#", "+", "a/+/#", "+/+/#", "/#", "//+/#", "$/+/#"):
        assert normal_form(topic_filter) == topic_filter


def test_a_set_holds_each_filter_once() -> None:
    members = CoveringSet(["a/b", "a/#", "+/#"])
    assert not members.add("a/b")
    assert not members.add("#")
    assert [each for each in members.within("#") if each] == ["a/#", "a/b", "#"]
    assert not members.discard("a")
    assert not members.discard("a/b/c")
    assert members.discard("#")
    assert members.discard("a/b")
    assert members.discard("a/#")
    assert not members.discard("a/#")
    assert members._root.children is None
    assert len(members._occurrences) == 0


def told(table: CoverTable) -> tuple[set[str], set[str]]:
    """Let the table settle; what is to be announced and to be withdrawn since the last time."""
    table.settle()
    changes = set(table.announce), set(table.withdraw)
    table.announce.clear()
    table.withdraw.clear()
    return changes


def holding(*topic_filters: str) -> CoverTable:
    table = CoverTable()
    for topic_filter in topic_filters:
        table.add(topic_filter)
    told(table)
    return table


def test_a_covering_filter_hides_and_restores() -> None:
    table = CoverTable()
    table.add("a/b")
    table.add("a/c/d")
    assert told(table) == ({"a/b", "a/c/d"}, set())
    table.add("a/#")
    assert told(table) == ({"a/#"}, {"a/b", "a/c/d"})
    table.add("a/x")
    table.remove("a/b")
    assert told(table) == (set(), set())
    assert list(table.announced) == ["a/#"]
    table.remove("a/#")
    assert told(table) == ({"a/c/d", "a/x"}, {"a/#"})


def test_restored_filters_may_hide_others() -> None:
    table = holding("#", "a/#", "a/b/#", "a/b", "b")
    table.remove("#")
    assert told(table) == ({"a/#", "b"}, {"#"})
    table.remove("a/#")
    assert told(table) == ({"a/b/#"}, {"a/#"})
    table.remove("a/b/#")
    assert told(table) == ({"a/b"}, {"a/b/#"})


def test_restoring_looks_at_filters_beside_the_one_removed() -> None:
    table = holding("a/+", "+/b", "a/b", "a/c")
    table.remove("a/+")
    assert told(table) == ({"a/c"}, {"a/+"})
    assert set(table.announced) == {"+/b", "a/c"}


def test_a_filter_is_withdrawn_only_when_all_it_hid_is_announced() -> None:
    table = holding("a/#", "a/1", "a/2", "a/3")
    table.remove("a/#")
    while table.pending:
        assert not table.withdraw
        table.work(1)
    assert told(table) == ({"a/1", "a/2", "a/3"}, {"a/#"})


def test_a_filter_that_is_back_before_it_was_withdrawn_changes_nothing() -> None:
    table = holding("a/#", "a/1", "a/2")
    table.remove("a/#")
    table.add("a/#")
    assert told(table) == (set(), set())


def test_what_a_filter_between_hid_is_not_lost_with_it() -> None:
    """``a/b`` hides ``a/b/c``; both go in the one order, then in the other, work left undone."""
    for first, second in (("#", "a/b/#"), ("a/b/#", "#")):
        table = holding("a/b/#", "a/b/c", "#")
        table.remove(first)
        table.remove(second)
        while table.pending:
            table.work(1)
            assert not table.withdraw or "a/b/c" in table.announce
        assert told(table) == ({"a/b/c"}, {"#"})


def test_a_leading_plus_finds_its_own_among_many() -> None:
    """So few have the literal behind the ``+`` that the search begins at the literal."""
    table = holding(*(f"site-{number}/humidity" for number in range(50)))
    for topic_filter in ("a/x", "$b/x", "c/#", "c/x", "d/+", "d/x", "e/x/#", "/x", "f/x/y"):
        table.add(topic_filter)
    told(table)
    table.add("+/x")
    assert table.work(1_000) < 30
    assert told(table) == ({"+/x"}, {"a/x", "/x"})
    table.remove("a/x")
    assert told(table) == (set(), set())
    table.remove("+/x")
    assert told(table) == ({"/x"}, {"+/x"})
    table.add("+/x/#")
    assert told(table) == ({"+/x/#"}, {"e/x/#", "/x", "f/x/y"})


def test_a_table_is_a_set() -> None:
    table = CoverTable()
    table.add("a")
    table.add("a")
    assert len(table) == 1
    assert "a" in table
    assert told(table) == ({"a"}, set())
    table.remove("a")
    assert "a" not in table
    table.remove("a")
    assert told(table) == (set(), {"a"})


def test_the_two_ways_to_write_everything_are_one_filter() -> None:
    table = CoverTable()
    table.add("+/#")
    table.add("#")
    assert told(table) == ({"#"}, set())
    assert table.is_announced("+/#")
    table.remove("+/#")
    assert told(table) == (set(), {"#"})
    assert len(table) == 0


def hard_filters(levels: int) -> list[str]:
    """Each level ``+`` or ``a``, in every combination but the one that covers all others."""
    return ["/".join(chosen) + "/#" for chosen in product("+a", repeat=levels)][1:]


@pytest.mark.parametrize("backwards", [False, True])
def test_hard_filters_cost_little_more_than_others(backwards: bool) -> None:
    """8,191 of them took 114 s to remove, in a single turn of a node's event loop."""
    filters = hard_filters(13)[:: -1 if backwards else 1]
    table = CoverTable()
    steps = sum(table.add(topic_filter) for topic_filter in filters)
    while table.pending:
        steps += table.work(1_000)
    assert set(table.announced) == {each for each in filters if each.count("a") == 1}
    steps += sum(table.remove(topic_filter) for topic_filter in filters)
    while table.pending:
        steps += table.work(1_000)
    assert not len(table)
    assert not list(table.announced)
    assert steps < 2 * len(filters) * (EARNED + 8)


def test_no_single_step_takes_longer_than_the_credit() -> None:
    """Half of the levels are ``+``, so none covers another, and all lead to ``a/a/.../a``."""
    table = CoverTable()
    filters = [each for each in hard_filters(14) if each.count("+") == 7]
    for topic_filter in filters:
        assert table.add(topic_filter) <= MAX_CREDIT + 4
        assert table.work(100) <= 100 + MAX_CREDIT + 4
    table.settle()
    assert set(table.announced) == set(filters)


def test_a_search_that_takes_too_long_is_given_up() -> None:
    members = CoveringSet([each[:-1] + "x" for each in hard_filters(10)])
    steps = Steps(100)
    assert members.cover_of("/".join("a" * 10) + "/y", steps) is None
    assert steps.left == 0


def test_the_longest_filters_do_not_recurse() -> None:
    deep = "/" * 65_533
    table = CoverTable()
    table._credit.left = 10**9
    for topic_filter in (deep + "a", deep + "+", deep + "#", deep[1:] + "+/a"):
        table.add(topic_filter)
        table._credit.left = 10**9
    table.settle()
    assert covers("#", deep + "+")
    for topic_filter in (deep + "#", deep + "+", deep[1:] + "+/a", deep + "a"):
        table.remove(topic_filter)
    table.settle()
    assert not list(table.announced)
    assert table._roots._root.children is None
    assert len(table._roots._occurrences) == 0
