"""The forwarding table against a naive oracle: what it says is what the algorithm would say now.

However little it has room for, and whatever was asked and dropped before.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isthmus.cooperation.api import Route, SessionInfo, SessionKind
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.traffic import routes
from isthmus.exchange.traffic.aged import ENTRY_BYTES
from isthmus.exchange.traffic.routes import RouteTable
from isthmus.mqtt.filters.topics import matches

NAMES = ["a", "b", "a/b", "a/c", "b/a/c", "/", "$a", "\u00fc", "a\u00fc/b", *"defghij"]
FILTERS = ["a", "a/b", "+/b", "a/#", "#", "b/+/c", "\u00fc", "nobody", "d", "e", "f"]
SESSIONS = [SessionInfo(n, SessionKind.NEIGHBOR, f"n{n}") for n in range(3)]
FEW = 3


class RouteTableMachine(RuleBasedStateMachine):
    """`said` are routes of single topics, `every` is that of the others if there is one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, Route] = {}
        self.every: Route | None = None
        self.table = RouteTable(self._route, lambda: None if self.said else self.every)
        self.table.most_bytes = 12 * ENTRY_BYTES

    def _route(self, topic: str) -> Route:
        return self.said.get(topic, self.every or Route())

    @rule(name=st.sampled_from(NAMES))
    def ask(self, name: str) -> None:
        assert self.table[name.encode()] == self._route(name)

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=5, max_size=30))
    def ask_many(self, names: list[str]) -> None:
        for name in names:
            self.ask(name)

    @rule(bad=st.sampled_from([b"", b"+", b"a/#", b"\xff", b"a\0"]))
    def ask_for_none(self, bad: bytes) -> None:
        with pytest.raises(RemoteProtocolError):
            self.table[bad]

    @rule(
        wanted=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3),
        to=st.lists(st.sampled_from(SESSIONS), max_size=2, unique=True),
    )
    def change_some(self, wanted: list[str], to: list[SessionInfo]) -> None:
        for name in NAMES:
            if any(matches(each, name) for each in wanted):
                self.said[name] = Route(tuple(to))
        self.table.drop(wanted)

    @rule(to=st.lists(st.sampled_from(SESSIONS), max_size=2, unique=True))
    def change_all(self, to: list[SessionInfo]) -> None:
        self.said.clear()
        self.every = Route(tuple(to))
        self.table.drop(None)

    @rule()
    def wait(self) -> None:
        self.table.ask_each()

    @invariant()
    def is_bounded(self) -> None:
        assert self.table.total <= 12
        assert sum(map(len, self.table._leaving)) <= 12


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "FEW", FEW)
    monkeypatch.setattr(routes, "MAX_COMPARISONS", 20)
    monkeypatch.setattr(routes, "MAX_SAME", 2)


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
