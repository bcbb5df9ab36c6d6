"""The forwarding table forgets what a change touches, and never takes long for it."""

from __future__ import annotations

from isthmus.cooperation.api import Route
from isthmus.exchange.traffic.routes import MAX_COMPARISONS, RouteTable

ROUTE = Route()


def table_of(*topics: str) -> RouteTable:
    table = RouteTable(lambda _: ROUTE)
    for topic in topics:
        assert table[topic.encode()] is ROUTE
    return table


def test_what_filters_match_is_forgotten() -> None:
    table = table_of("a/b", "a/c", "b", "c/d/e")
    table.drop(["a/b", "b", "not/there"])
    assert sorted(table) == [b"a/c", b"c/d/e"]
    table.drop(["c/#"])
    assert sorted(table) == [b"a/c"]
    table.drop(["+/c"])
    assert not table


def test_everything_is_forgotten_when_looking_through_takes_longer() -> None:
    table = table_of(*(f"t/{number}" for number in range(MAX_COMPARISONS // 2)))
    table.drop([f"t/{number}" for number in range(10)])
    assert len(table) == MAX_COMPARISONS // 2 - 10
    table.drop(["x/+"])
    assert len(table) == MAX_COMPARISONS // 2 - 10
    table.drop(["x/+", "y/+", "z/+"])
    assert not table


def test_a_full_table_begins_anew() -> None:
    table = table_of("a", "b", "c")
    table.most = 3
    assert table[b"d"] is ROUTE
    assert sorted(table) == [b"d"]


def test_equal_routes_are_one_object_until_the_table_is_emptied() -> None:
    table = RouteTable(lambda topic: Route((), to_local_broker=topic.startswith("a")))
    table.most = 3
    first = table[b"a/1"]
    assert table[b"a/2"] is first
    assert table[b"b/1"] is not first
    assert table[b"b/1"] == Route()
    assert table[b"a/3"] is not first  # it was full, and everything was forgotten
    assert list(table) == [b"a/3"]
