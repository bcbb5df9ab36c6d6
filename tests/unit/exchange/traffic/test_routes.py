"""The forwarding table forgets what a change touches, and never takes long for it."""

from __future__ import annotations

import pytest

from isthmus.cooperation.api import CooperationAlgorithm, Route, SessionInfo, SessionKind
from isthmus.cooperation.link_rules import NO_RULES, Crossing, LinkRules
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.traffic.message import Message
from isthmus.exchange.traffic.routes import (
    FEW,
    MAX_BYTES,
    MAX_COMPARISONS,
    MAX_LABELS,
    Routes,
    RouteTable,
)

ROUTE = Route()
ANY, B, C = (SessionInfo(n, SessionKind.NEIGHBOR, name) for n, name in enumerate(("", "b", "c")))


def table_of(*topics: str) -> RouteTable:
    table = RouteTable(lambda _: ROUTE)
    for topic in topics:
        assert table[topic.encode()] is ROUTE
    return table


def test_what_filters_match_is_forgotten() -> None:
    table = table_of("a/b", "a/c", "b", "c/d/e")
    table.drop(["a/b", "b", "not/there"])
    assert sorted(table.every_key()) == [b"a/c", b"c/d/e"]
    table.drop(["c/#"])
    assert sorted(table.every_key()) == [b"a/c"]
    table.drop(["+/c"])
    assert not table.total


def test_everything_is_forgotten_when_looking_through_takes_longer() -> None:
    table = table_of(*(f"t/{number}" for number in range(MAX_COMPARISONS // 2)))
    table.drop([f"t/{number}" for number in range(10)])
    assert table.total == MAX_COMPARISONS // 2 - 10
    table.drop(["x/+"])
    assert table.total == MAX_COMPARISONS // 2 - 10
    table.drop(["x/+", "y/+", "z/+"])
    assert not table.total


def test_equal_routes_are_one_object() -> None:
    table = RouteTable(lambda topic: Route((), to_local_broker=topic.startswith("a")))
    first = table[b"a/1"]
    assert table[b"a/2"] is first
    assert table[b"b/1"] is not first
    assert table[b"b/1"] == Route()


def test_what_is_asked_for_all_the_time_stays_and_what_is_not_goes() -> None:
    asked: list[str] = []

    def ask(topic: str) -> Route:
        asked.append(topic)
        return ROUTE

    table = RouteTable(ask)
    table.most_bytes = 20_000
    for number in range(1_000):
        assert table[b"often"] is table[b"%d" % number] is ROUTE
        assert table.total < 130
    assert asked.count("often") == 1
    asked.clear()
    assert table[b"999"] is table[b"0"] is ROUTE
    assert asked == ["0"]


def test_where_all_topics_are_alike_only_a_few_have_an_entry() -> None:
    alike, other = Route((B,)), Route((C,))
    said: list[Route | None] = [alike]
    table = RouteTable(lambda _: other, lambda: said[0])
    table.max_levels = 2
    assert table[b"a/b"] is table[b"c"] is alike
    for number in range(2 * FEW):
        assert table[b"%d" % number] is alike
    assert table.total == FEW
    assert table["\u00fc".encode()] is other, "what takes a closer look gets one"
    for wrong in (b"a/b/c", b"a/#", b"+", b"", b"a\0", b"\xff"):
        with pytest.raises(RemoteProtocolError):
            table[wrong]
    said[0] = None
    assert table[b"c"] is alike
    table.drop(["not/there"])
    assert table[b"e"] is other
    said[0] = alike
    assert table[b"d"] is other, "asked once, until something changes"
    table.drop(["e"])
    assert table[b"e"] is alike


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
    assert {table.most_bytes for table in made._of_links.values()} == {MAX_BYTES // 2}


class Alike(Asked):
    """Says it of all topics at once."""

    def route_of_all(self, arrived_on: SessionInfo) -> Route | None:
        return Route((B, C))


class Overridden(Alike):
    """Has a `route` of its own, of which its base knows nothing."""

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        return Route()


def test_what_is_said_of_all_topics_spares_asking_unless_something_is_particular() -> None:
    made, _ = routes()
    made.algorithm = algorithm = Alike()
    message, dollar = Message(b"t", b""), Message(b"$t", b"")
    for source in (None, B):
        assert made.of(message, source) == Route((B, C))
        assert made.of(dollar, source) == Route()
    assert algorithm.asked == []
    assert made.is_alike(B, made.of(message, B))
    assert not made.is_alike(B, made.of(dollar, B))
    made.any_pending = lambda: True
    made.ask_each()
    made.of(Message(b"u", b""), B)
    assert algorithm.asked == [("u", "b", False)]
    made.any_pending = lambda: False
    made.drop(["t"])
    assert made.of(message, B) == Route((B, C))
    made.rule(C, Crossing.of(LinkRules(out=("only/this",)), NO_RULES))
    made.drop(None)
    made.of(message, B)
    assert algorithm.asked[1:] == [("t", "b", False)]
    made.of(Message(b"t", b"", label=b"x"), B)
    assert algorithm.labels[-1] == b"x"


def test_what_a_base_says_of_all_topics_is_not_believed_of_another_route() -> None:
    made, _ = routes()
    made.algorithm = Overridden()
    assert made.of(Message(b"t", b""), None) == Route()
