"""The tables of a link's life, and that nothing else decides about it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.cooperation.api import SessionInfo, SessionKind, SessionStatus
from isthmus.errors import LocalProtocolError
from isthmus.exchange.link.hello import Hello, write_connack, write_connect
from isthmus.exchange.link.life import (
    DIALING,
    GREETING,
    LINK,
    DialState,
    GreetingState,
    LinkEvent,
    LinkState,
)
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.links import LinkSettings
from isthmus.mqtt.encoding import encode
from isthmus.sim import SimFabric
from isthmus.sim.node import SimNode
from isthmus.tables import step
from unit.exchange.link.test_connection import FakeChannel, connection

REPOSITORY = Path(__file__).parents[4]
TABLES: list[tuple[Any, Any, Any]] = [
    (LINK, LinkState.DOWN, LinkState.GONE),
    (GREETING, GreetingState.CONNECT, GreetingState.CLOSED),
    (GREETING, GreetingState.CONNACK, GreetingState.CLOSED),
    (DIALING, DialState.RESTING, DialState.FORGOTTEN),
]


def reached(table: Any, start: Any) -> set[Any]:
    found, todo = {start}, [start]
    while todo:
        for after, _ in table[todo.pop()].values():
            if after not in found:
                found.add(after)
                todo.append(after)
    return found


@pytest.mark.parametrize(("table", "start", "end"), TABLES)
def test_every_state_has_its_row_and_a_way_to_the_end(table: Any, start: Any, end: Any) -> None:
    assert set(table) == set(start.__class__)
    for state in table:
        assert end in reached(table, state), state


def test_every_state_is_reached() -> None:
    assert reached(LINK, LinkState.DOWN) == set(LinkState)
    assert reached(DIALING, DialState.RESTING) == set(DialState)
    both = reached(GREETING, GreetingState.CONNECT) | reached(GREETING, GreetingState.CONNACK)
    assert both == set(GreetingState)


def test_what_is_not_in_the_table_cannot_happen() -> None:
    with pytest.raises(LocalProtocolError, match=r"'both ends open it' cannot .* 'down'"):
        step(LINK, LinkState.DOWN, LinkEvent.AGREED)


def test_the_algorithm_sees_what_follows_from_the_state() -> None:
    """A session is established from the first agreement until it is closed, up or not."""
    info = SessionInfo(1, SessionKind.NEIGHBOR, "b")
    link = Link(info, "s", qos=1, queue_bytes=1, round_robin=False)
    event, seen = LinkEvent, []
    for each in (
        *(event.COMPLETE, event.LOST, event.COMPLETE, event.AGREED, event.LOST),
        *(event.COMPLETE, event.RING, event.AGREED, event.LOST, event.LET_GO),
    ):
        link.happens(each)
        seen.append((link.state.name, info.status is SessionStatus.ESTABLISHED))
    assert seen == [
        ("LEARNING", False),
        ("DOWN", False),
        ("LEARNING", False),
        ("ACTIVE", True),
        ("HELD", True),
        ("RETURNING", True),
        ("BLOCKED", False),
        ("ACTIVE", True),
        ("HELD", True),
        ("GONE", False),
    ]


def test_nobody_but_its_owner_sets_a_state() -> None:
    """In the exchange `state` is assigned by `happens`, and by who makes the object."""
    found = set()
    for file in sorted((REPOSITORY / "src" / "isthmus" / "exchange").rglob("*.py")):
        for item in ast.walk(ast.parse(file.read_text())):
            if isinstance(item, ast.FunctionDef):
                for inner in ast.walk(item):
                    if (
                        isinstance(inner, ast.Attribute)
                        and isinstance(inner.ctx, ast.Store)
                        and inner.attr == "state"
                    ):
                        found.add((file.name, item.name))
    assert found == {
        (name, method)
        for name in (
            *("connection.py", "dialing.py", "input.py", "link.py"),
            *("moving.py", "part.py"),
        )
        for method in ("__init__", "happens")
    }


def test_the_figures_are_right() -> None:
    checked = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "life.py"), "--check"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_people_see_the_state() -> None:
    fabric = SimFabric(seed=1, link=LinkSettings(hold_s=100.0))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    fabric.settle()
    (link,) = a.exchange.status()["links"]
    assert (link["status"], link["blocked"]) == ("active", False)
    assert a.exchange.status()["topology"]["neighbors"] == {"b": "active"}
    fabric.partition([a], [b])
    fabric.run(10.0)
    assert a.exchange.links.links["b"].state is LinkState.HELD
    assert a.exchange.status()["links"][0]["status"] == "down"
    assert a.exchange.status()["topology"]["neighbors"] == {}


# ---- lanes that are missing ----------------------------------------------------------------


def first_lane_of_two(node: SimNode) -> tuple[Any, FakeChannel]:
    """A node x opens the first of two lanes to `node`."""
    channel = FakeChannel()
    links = node.exchange.links
    opened = links.accepted(channel)
    algorithm = links.hello.algorithm
    hello = Hello("x", "1f", algorithm, 0, 2)
    links.received(opened, encode(write_connect(hello, 3, b""), 5))
    node.exchange.flush()
    assert links.links["x"].connections == [opened, None]
    return opened, channel


def test_a_neighbor_whose_lanes_never_all_come_is_let_go() -> None:
    """Once it stayed in the table, and counted against the limit of links, for ever."""
    fabric = SimFabric(seed=1, link=LinkSettings(hold_s=5.0))
    node = fabric.node("a")
    fabric.settle()
    opened, _ = first_lane_of_two(node)
    node.exchange.links.lost(opened, "end of stream")
    fabric.run(1.0)
    assert "x" in node.exchange.links.links
    fabric.run(10.0)
    assert "x" not in node.exchange.links.links


def test_a_dialed_neighbor_whose_lanes_never_all_come_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = SimFabric(seed=1, link=LinkSettings(hold_s=5.0))
    node = fabric.node("a")
    fabric.settle()
    links, dialed = node.exchange.links, dials_of(node, monkeypatch)
    peer = links.dialing.dial("x:7883", 2, 1)
    fabric.run(0.1)
    open_lane(node, dialed.pop(), 0)
    assert list(links.links) == ["x"]
    dialed.pop()[1]("refused")
    assert peer.state is DialState.WAITING
    fabric.run(10.0)
    assert "x" not in links.links
    assert peer.link is None


def dials_of(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What to call when a connection that the node dials is open, and if it cannot be opened."""
    dialed: list[tuple[Any, Any]] = []
    host = node.exchange.links.host
    monkeypatch.setattr(host, "dial", lambda _, *both: dialed.append(both), raising=False)
    return dialed


def open_lane(node: SimNode, dial: tuple[Any, Any], lane: int) -> None:
    """Node x answers and takes the link."""
    links = node.exchange.links
    hello = Hello("x", "1f", links.hello.algorithm, lane, 2)
    links.received(dial[0](FakeChannel()), encode(write_connack(hello, b""), 5))


def test_a_set_that_lost_a_lane_to_another_takes_the_link_down_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two addresses lead to x; a lane of the one set completes the other."""
    fabric = SimFabric(seed=1, link=LinkSettings(hold_s=50.0))
    node = fabric.node("a")
    fabric.settle()
    links, dialed = node.exchange.links, dials_of(node, monkeypatch)
    links.dialing.dial("x:1", 2, 1)
    fabric.run(0.1)
    open_lane(node, dialed.pop(), 0)
    of_first = dialed.pop()
    links.dialing.dial("x:2", 2, 1)
    fabric.run(0.1)
    open_lane(node, dialed.pop(), 0)
    of_second = dialed.pop()
    open_lane(node, of_first, 1)
    link = links.links["x"]
    assert link.state.up
    of_second[1]("refused")
    assert not link.state.up
    fabric.run(5.0)
    assert len(dialed) == 2, "both are dialed again"


def test_messages_are_not_sent_before_every_lane_is_back() -> None:
    """Once those at QoS 0 were, on the lanes that were there: and the neighbor kept only 1,000."""
    info = SessionInfo(1, SessionKind.NEIGHBOR, "b")
    link = Link(info, "s", qos=1, queue_bytes=1 << 20, round_robin=False)
    hello = Hello("a", "1", "sf", 0, 2)
    link.prepare("a", "1", 2, "t")
    link.connections = [connection(hello, dialed=True), connection(hello, dialed=True)]
    link.happens(LinkEvent.COMPLETE)
    link.happens(LinkEvent.AGREED)
    link.disconnect()
    link.happens(LinkEvent.LOST)
    link.prepare("a", "1", 2, "t")
    back = link.connections[0] = connection(hello, dialed=True)
    for number in range(8):
        link.send_plain([b"%d" % number], [b"frame"])
    back.flush()
    assert isinstance(back.channel, FakeChannel)
    assert back.channel.written == b""
    assert link.dropped == 8
