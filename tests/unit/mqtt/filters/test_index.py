"""The filter index: what it finds, in which order, and that it leaves nothing behind."""

from __future__ import annotations

import pytest

from isthmus.mqtt.filters.index import FilterIndex, _Leaf, _Node


def _index(*topic_filters: str) -> FilterIndex[str]:
    """Each filter with itself as its value."""
    index: FilterIndex[str] = FilterIndex()
    for topic_filter in topic_filters:
        assert index.add(topic_filter, topic_filter)
    return index


EVERYTHING = (
    "#",
    "+",
    "+/#",
    "+/+",
    "/+",
    "/",
    "sport",
    "sport/#",
    "sport/+",
    "sport/+/player1",
    "sport/tennis/#",
    "sport/tennis/+",
    "sport/tennis/player1",
    "sport/tennis/player1/#",
    "+/monitor/+",
    "$SYS/#",
    "$SYS/monitor/+",
    "$SYS/monitor/Clients",
)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("sport", {"#", "+", "+/#", "sport", "sport/#"}),
        ("sport/", {"#", "+/#", "+/+", "sport/#", "sport/+"}),
        ("/", {"#", "+/#", "+/+", "/+", "/"}),
        (
            "sport/tennis/player1",
            {
                "#",
                "+/#",
                "sport/#",
                "sport/+/player1",
                "sport/tennis/#",
                "sport/tennis/+",
                "sport/tennis/player1",
                "sport/tennis/player1/#",
            },
        ),
        (
            "sport/tennis/player1/score",
            {"#", "+/#", "sport/#", "sport/tennis/#", "sport/tennis/player1/#"},
        ),
        ("$SYS", {"$SYS/#"}),
        ("$SYS/monitor/Clients", {"$SYS/#", "$SYS/monitor/+", "$SYS/monitor/Clients"}),
        ("$other/monitor/Clients", set()),
        ("x/monitor/y", {"#", "+/#", "+/monitor/+"}),
    ],
)
def test_match(topic: str, expected: set[str]) -> None:
    for order in (EVERYTHING, EVERYTHING[::-1]):
        index = _index(*order)
        assert len(index) == len(EVERYTHING)
        found = index.match(topic)
        assert set(found) == expected
        assert len(found) == len(expected)


@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "#"])
def test_several_values_of_one_filter(topic_filter: str) -> None:
    index: FilterIndex[int] = FilterIndex()
    assert index.add(topic_filter, 3)
    assert index.add(topic_filter, 1)
    assert index.add(topic_filter, 2)
    assert not index.add(topic_filter, 1)
    assert len(index) == 3
    assert index.match("a/b") == [3, 1, 2]
    assert index.values(topic_filter) == [3, 1, 2]
    assert not index.discard(topic_filter, 9)
    assert index.discard(topic_filter, 3)
    assert not index.discard(topic_filter, 3)
    assert index.match("a/b") == [1, 2]
    assert index.discard(topic_filter, 1)
    assert index.match("a/b") == index.values(topic_filter) == [2]
    assert not index.discard(topic_filter, 1)
    assert index.discard(topic_filter, 2)
    assert not index.discard(topic_filter, 2)
    assert index.match("a/b") == index.values(topic_filter) == []
    assert len(index) == 0


def test_a_value_of_several_filters_comes_once() -> None:
    index: FilterIndex[str] = FilterIndex()
    for topic_filter in ("a/b", "a/+", "#", "+/b"):
        index.add(topic_filter, "session")
    assert index.match("a/b") == ["session"]


@pytest.mark.parametrize("value", [None, 0, "", (), frozenset({1})])
def test_any_hashable_value_will_do(value: object) -> None:
    index: FilterIndex[object] = FilterIndex()
    for topic_filter in ("a", "+"):
        assert index.add(topic_filter, value)
        assert not index.add(topic_filter, value)
    assert index.match("a") == [value]
    assert index.discard("a", value)
    assert index.match("a") == [value]
    assert index.discard("+", value)
    assert index.match("a") == []


def test_a_lone_filter_takes_one_leaf_however_deep() -> None:
    index = _index("a/b/c/d/e/+")
    assert isinstance(index._root.get("a"), _Leaf)
    index.add("a/b/+", "x")
    node = index._root.get("a")
    assert isinstance(node, _Node)
    index.discard("a/b/+", "x")
    assert isinstance(index._root.get("a"), _Leaf)
    assert index.match("a/b/c/d/e/f") == ["a/b/c/d/e/+"]


def test_an_emptied_index_holds_no_node() -> None:
    index = _index(*EVERYTHING)
    for topic_filter in EVERYTHING:
        assert index.discard(topic_filter, topic_filter)
    assert list(index._root.parts()) == []
    assert index._root.literals is None
    assert not index._exact


def test_what_is_not_there_is_not_found() -> None:
    index = _index("a/+/c", "a/+/d")
    for absent in ("a/+", "a/+/#", "a/+/c/#", "a/+/e", "b/+", "a/b", "a/+/c/d"):
        assert index.values(absent) == []
        assert not index.discard(absent, "a/+/c")
    assert len(index) == 2


def test_the_longest_filters_do_not_recurse() -> None:
    deep = "/" * 65_533
    index = _index(deep + "+", deep + "#", deep[1:] + "+/a")
    assert set(index.match(deep + "a")) == {deep + "+", deep + "#", deep[1:] + "+/a"}
    assert set(index.match(deep[1:])) == {deep + "#"}
    for topic_filter in (deep + "+", deep + "#", deep[1:] + "+/a"):
        assert index.discard(topic_filter, topic_filter)
    assert list(index._root.parts()) == []
