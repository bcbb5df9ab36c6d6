"""Covering, case by case, and the announcements of a `CoverTable`."""

from __future__ import annotations

import pytest

from isthmus.mqtt.cover_table import CoverChange, CoverTable
from isthmus.mqtt.covering import covers, normal_form
from isthmus.mqtt.covering_set import CoveringSet, minimal_cover, union_covers

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
    assert CoveringSet([a]).covers(b)
    assert union_covers([a], b)


@pytest.mark.parametrize(("a", "b"), COVERS_NOT)
def test_does_not_cover(a: str, b: str) -> None:
    assert not covers(a, b)
    assert not CoveringSet([a]).covers(b)
    assert not union_covers([a], b)


@pytest.mark.parametrize(
    ("members", "b", "covered"),
    [
        (["a", "a/+/#"], "a/#", True),
        (["a", "a/+", "a/+/+/#"], "a/#", True),
        (["+", "+/+/#"], "#", True),
        (["+", "+/+/#"], "a/#", True),
        (["+", "a/+/#"], "a/#", True),
        (["a", "+/+", "a/+/+/#"], "a/#", True),
        (["a", "a/+/+/#"], "a/#", False),
        (["a", "a/+"], "a/#", False),
        (["a/+/#"], "a/#", False),
        (["a", "a/b/#"], "a/#", False),
        (["+", "+/+/#"], "$SYS/#", False),
        (["$SYS", "$SYS/+/#"], "$SYS/#", True),
        (["$SYS", "+/+/#"], "$SYS/#", False),
        (["a/b", "a/c"], "a/+", False),
        ([], "a", False),
        ([], "#", False),
    ],
)
def test_several_together(members: list[str], b: str, covered: bool) -> None:
    assert union_covers(members, b) is covered
    assert not CoveringSet(members).covers(b)


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
def test_minimal_cover(topic_filters: list[str], largest: set[str]) -> None:
    for order in (topic_filters, topic_filters[::-1]):
        found = minimal_cover(order)
        assert set(found) == largest
        assert len(found) == len(largest)


def test_normal_form() -> None:
    assert normal_form("+/#") == "#"
    assert normal_form("/+/#") == "/#"
    for topic_filter in ("#", "+", "a/+/#", "+/+/#", "/#", "//+/#", "$/+/#"):
        assert normal_form(topic_filter) == topic_filter


def test_a_set_holds_each_filter_once() -> None:
    members = CoveringSet(["a/b", "a/#", "+/#"])
    assert not members.add("a/b")
    assert not members.add("#")
    assert len(members) == 3
    assert set(members) == {"a/b", "a/#", "#"}
    assert "#" in members
    assert "+/#" in members
    assert "a" not in members
    assert "a/b/c" not in members
    assert not members.discard("a")
    assert not members.discard("a/b/c")
    assert members.discard("#")
    assert members.discard("a/b")
    assert members.discard("a/#")
    assert not members.discard("a/#")
    assert len(members) == 0
    assert members._root.children is None
    assert len(members._occurrences) == 0


def test_a_covering_filter_hides_and_restores() -> None:
    table = CoverTable()
    assert table.add("a/b") == CoverChange(announce=("a/b",))
    assert table.add("a/c/d") == CoverChange(announce=("a/c/d",))
    change = table.add("a/#")
    assert change.announce == ("a/#",)
    assert set(change.withdraw) == {"a/b", "a/c/d"}
    assert not table.add("a/x")
    assert not table.remove("a/b")
    assert table.announced == ("a/#",)
    change = table.remove("a/#")
    assert change.withdraw == ("a/#",)
    assert set(change.announce) == {"a/c/d", "a/x"}


def test_restored_filters_may_hide_others() -> None:
    table = CoverTable()
    for topic_filter in ("#", "a/#", "a/b/#", "a/b", "b"):
        table.add(topic_filter)
    assert set(table.remove("#").announce) == {"a/#", "b"}
    assert set(table.remove("a/#").announce) == {"a/b/#"}
    assert table.remove("a/b/#") == CoverChange(announce=("a/b",), withdraw=("a/b/#",))


def test_restoring_looks_at_filters_beside_the_one_removed() -> None:
    table = CoverTable()
    for topic_filter in ("a/+", "+/b", "a/b", "a/c"):
        table.add(topic_filter)
    assert table.remove("a/+") == CoverChange(announce=("a/c",), withdraw=("a/+",))
    assert set(table.announced) == {"+/b", "a/c"}


def test_a_leading_plus_finds_its_own_among_many() -> None:
    """So few have the literal behind the ``+`` that the search begins at the literal."""
    table = CoverTable()
    for number in range(50):
        table.add(f"site-{number}/humidity")
    for topic_filter in ("a/x", "$b/x", "c/#", "c/x", "d/+", "d/x", "e/x/#", "/x", "f/x/y"):
        table.add(topic_filter)
    change = table.add("+/x")
    assert change.announce == ("+/x",)
    assert set(change.withdraw) == {"a/x", "/x"}
    assert not table.remove("a/x")
    assert table.remove("+/x") == CoverChange(announce=("/x",), withdraw=("+/x",))
    assert set(table.add("+/x/#").withdraw) == {"e/x/#", "/x", "f/x/y"}


def test_a_table_counts() -> None:
    table = CoverTable()
    assert table.add("a")
    assert not table.add("a")
    assert table.count("a") == 2
    assert len(table) == 1
    assert not table.remove("a")
    assert table.remove("a") == CoverChange(withdraw=("a",))
    assert "a" not in table
    with pytest.raises(KeyError):
        table.remove("a")


def test_the_two_ways_to_write_everything_are_one_filter() -> None:
    table = CoverTable()
    assert table.add("+/#") == CoverChange(announce=("#",))
    assert not table.add("#")
    assert not table.remove("+/#")
    assert table.is_announced("+/#")
    assert table.covers("a")
    assert not table.covers("$SYS")
    assert table.remove("#") == CoverChange(withdraw=("#",))
    assert len(table) == 0


def test_the_longest_filters_do_not_recurse() -> None:
    deep = "/" * 65_533
    table = CoverTable()
    for topic_filter in (deep + "a", deep + "+", deep + "#", deep[1:] + "+/a"):
        table.add(topic_filter)
    assert set(table.announced) == {deep + "#", deep[1:] + "+/a"}
    assert table.covers(deep + "b")
    assert covers("#", deep + "+")
    assert table.remove(deep + "#") == CoverChange((deep + "+",), (deep + "#",))
    for topic_filter in (deep + "+", deep[1:] + "+/a", deep + "a"):
        table.remove(topic_filter)
    assert table.announced == ()
    assert table._held._root.children is None
    assert len(table._held._occurrences) == 0
