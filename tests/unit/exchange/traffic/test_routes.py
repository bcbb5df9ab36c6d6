"""The forwarding table forgets what a change touches, and never takes long for it."""

from __future__ import annotations

from isthmus.cooperation.api import CooperationAlgorithm, Route, SessionInfo, SessionKind
from isthmus.exchange.traffic.message import Message
from isthmus.exchange.traffic.routes import (
    MAX_COMPARISONS,
    MAX_LABELS,
    MAX_TOPICS,
    Routes,
    RouteTable,
)

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


class Asked(CooperationAlgorithm):
    """Sends everything back to where it came from, and notes what it was asked."""

    name = "asked"
    max_label_bytes = 8

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bool]] = []
        self.labels: list[bytes] = []

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        self.asked.append((topic, arrived_on.name, retain))
        self.labels.append(label)
        return Route((arrived_on,), labels=(label,) if label else ())


ANY, B, C = (SessionInfo(n, SessionKind.NEIGHBOR, name) for n, name in enumerate(("", "b", "c")))


def routes() -> tuple[Routes, Asked]:
    made = Routes(ANY)
    made.algorithm = algorithm = Asked()
    return made, algorithm


def test_a_route_is_asked_for_once_for_each_place_it_comes_from() -> None:
    made, algorithm = routes()
    message = Message(b"t", b"")
    for _ in range(2):
        assert made.of(message, None) == Route((ANY,))
        assert made.of(message, B) == Route((B,))
    assert algorithm.asked == [("t", "", False), ("t", "b", False)]
    made.drop(["t"])
    made.of(message, B)
    made.forget(B)
    made.of(message, B)
    assert algorithm.asked[2:] == [("t", "b", False)] * 2


def test_a_route_is_asked_for_once_for_each_label() -> None:
    made, algorithm = routes()
    for _ in range(2):
        for label in (b"", b"a", b"b"):
            route = made.of(Message(b"t", b"", label=label), B)
            assert route.hops == ((B, label),)
    assert algorithm.labels == [b"", b"a", b"b"]
    made.drop(["u"])
    made.of(Message(b"t", b"", label=b"a"), B)
    made.forget(B)
    made.of(Message(b"t", b"", label=b"a"), B)
    made.of(Message(b"t", b"", label=b"c", retain=True), B)
    assert algorithm.labels[3:] == [b"a", b"a", b"c"]


def test_labels_are_not_remembered_without_a_bound() -> None:
    made, algorithm = routes()
    for number in range(3 * MAX_LABELS):
        made.of(Message(b"t", b"", label=b"%d" % number), B)
    assert len(made._of_labels) <= MAX_LABELS
    assert len(algorithm.labels) == 3 * MAX_LABELS


def test_retained_messages_are_asked_for_each_time() -> None:
    made, algorithm = routes()
    for source in (None, B, B):
        made.of(Message(b"t", b"", retain=True), source)
    assert algorithm.asked == [("t", "", True), ("t", "b", True), ("t", "b", True)]


def test_what_starts_with_a_dollar_goes_nowhere() -> None:
    made, algorithm = routes()
    assert made.of(Message(b"$SYS/load", b""), None) == Route()
    assert algorithm.asked == []


def test_neighbors_share_one_bound() -> None:
    made, _ = routes()
    for session in (B, C):
        made.of(Message(b"t", b""), session)
    assert {table.most for table in made._of_links.values()} == {MAX_TOPICS // 2}
